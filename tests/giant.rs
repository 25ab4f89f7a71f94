//! One transaction of a million updates: every event comes out, in bounded memory.

mod support;

use support::{Receiver, TestApp, eventually};

const ROWS: i64 = 1_000_000;
const MEMORY_LIMIT_KIB: u64 = 150 * 1024;

/// The most memory that the process ever had resident, as the kernel counts it.
fn peak_resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel counts");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of kB")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_updates_in_one_transaction_come_out_in_bounded_memory() {
    let app = TestApp::prepare().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Shop").await;
    let fill = "insert into distro_queue (id, release_id, outlet_id, status)
        select n, $1, $2, 'scheduled' from generate_series(1, $3::bigint) n";
    platform.execute(fill, &[&release, &outlet, &ROWS]).await;
    app.setup().await;
    let mut app = app;
    app.run().await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    // Subscribed to what a single row raises; the million are kept for everybody to count.
    api.create_webhook(&receiver.url("/"), &["delivery.completed"]).await;
    platform.execute("update distro_queue set status = 'transcoding'", &[]).await;
    platform.execute("update distro_queue set status = 'complete' where id = 1", &[]).await;

    // The single change behind the million is told only when they are in the store.
    let store = app.store().await;
    let count = "select count(*) from walhook.event where kind = 'distribution.outlet.status_changed'";
    let progress = "select count(*) from walhook.event";
    let mut last = -1;
    loop {
        let now: i64 = store.query_one(progress, &[]).await.unwrap().get(0);
        if now >= ROWS {
            break;
        }
        // Going on is the signal; how fast is no matter here.
        eventually("more events than before", async || {
            let more: i64 = store.query_one(progress, &[]).await.unwrap().get(0);
            (more > last).then_some(())
        })
        .await;
        last = now;
    }
    receiver.wait_for(1).await;
    eventually("all events", async || {
        let stored: i64 = store.query_one(count, &[]).await.unwrap().get(0);
        assert!(stored <= ROWS + 1, "{stored}");
        (stored == ROWS + 1).then_some(())
    })
    .await;
    let peak = peak_resident_kib(app.sidecar().pid());
    println!("peak resident memory: {} MiB", peak / 1024);
    assert!(peak < MEMORY_LIMIT_KIB, "{peak} KiB");
}
