//! One very large transaction: every event is raised, in bounded memory.

use crate::support::{Receiver, TestApp, eventually, one};

/// Many times the number of changes that are in memory at once.
const ROWS: i64 = 100_000;
const SOAK_ROWS: i64 = 1_000_000;
const KIND: &str = "distribution.outlet.status_changed";
/// More than may be sent, with default settings.
const HUGE: usize = 800 << 10;
const JOBS: i64 = 1_000;
/// The limit of the files in `deploy`.
const SHIPPED_LIMIT_KIB: u64 = 384 * 1024;
const MEMORY_LIMIT_KIB: u64 = 150 * 1024;

#[tokio::test]
async fn a_large_transaction_raises_all_events_in_bounded_memory() {
    assert_raises_all(ROWS).await;
}

#[tokio::test]
#[ignore = "takes minutes: `make soak`"]
async fn a_transaction_of_a_million_updates_raises_all_events_in_bounded_memory() {
    assert_raises_all(SOAK_ROWS).await;
}

#[tokio::test]
async fn a_large_transaction_that_rewrites_its_rows_raises_nothing_in_bounded_memory() {
    let mut app = TestApp::prepare().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;
    let fill = "insert into distro_queue (id, release_id, status) select n, $1, 'complete' from generate_series(1, $2::bigint) n";

    platform.execute(fill, &[&release, &ROWS]).await;
    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;

    let again = "create temporary table gone on commit drop as select * from distro_queue;
        delete from distro_queue; insert into distro_queue select * from gone";
    platform.transaction(again).await;
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;

    let peak = app.sidecar().peak_memory_kib();
    println!("peak resident memory: {} MiB", peak / 1024);
    assert!(peak < MEMORY_LIMIT_KIB, "{peak} KiB");
}

/// Texts that a change does not have, but its events: data that is produced is bounded, not only
/// what is read.
#[tokio::test]
async fn jobs_of_a_release_with_a_huge_catalogue_number_are_stored_without_it_in_bounded_memory() {
    for capture in ["wal", "trigger"] {
        for releases in [1, JOBS] {
            let mut app = TestApp::prepare().await;
            app.set("source.capture", capture);

            let platform = app.platform().await;
            let user = platform.user(&[]).await;
            let label = platform.label(user).await;
            let outlet = platform.outlet("Shop").await;

            // A text compresses well, as the platform's may.
            let fill = format!(
                "insert into release (id, label_id, cat, title, review_status, delivery_status)
                 select n, {label}, repeat('x', {HUGE}), 'T', 'draft', 'pending' from generate_series(1, {releases}) as n"
            );
            platform.transaction(&fill).await;
            app.setup().await;
            app.run().await;

            let receiver = Receiver::start().await;
            let api = app.api(&user.to_string()).await;

            api.create_webhook(&receiver.url("/"), &["delivery.completed"])
                .await;
            let jobs = format!(
                "insert into distro_queue (id, release_id, outlet_id, status)
                 select n, 1 + n % {releases}, {outlet}, 'complete' from generate_series(1, {JOBS}) as n"
            );

            platform.transaction(&jobs).await;
            app.wait_for_events(2 * JOBS as usize).await;

            let failed =
                "select count(*) from walhook.attempt where error_kind = 'payload_too_large'";
            app.wait_for_count(failed, JOBS as usize).await;

            let data: String = {
                let query = "select data::text from walhook.event where kind = 'delivery.completed' limit 1";
                one(&app.store().await, query).await
            };

            assert!(
                data.starts_with("{\"omitted_bytes\":65")
                    && data.contains("\"status\":\"complete\""),
                "{data:.300}"
            );
            let peak = app.sidecar().peak_memory_kib();

            println!(
                "{capture}, {releases} releases: peak resident memory: {} MiB",
                peak / 1024
            );
            assert!(
                peak < SHIPPED_LIMIT_KIB,
                "{capture}, {releases} releases: {peak} KiB"
            );
            app.stop().await;
        }
    }
}

async fn assert_raises_all(rows: i64) {
    let app = TestApp::prepare().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Shop").await;
    let fill = "insert into distro_queue (id, release_id, outlet_id, status)
        select n, $1, $2, 'scheduled' from generate_series(1, $3::bigint) n";

    platform.execute(fill, &[&release, &outlet, &rows]).await;
    app.setup().await;

    let mut app = app;
    app.run().await;

    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;

    // Subscribes to an event that a single row raises. The other events are only stored.
    api.create_webhook(&receiver.url("/"), &["delivery.completed"])
        .await;
    platform
        .execute("update distro_queue set status = 'transcoding'", &[])
        .await;
    platform
        .execute(
            "update distro_queue set status = 'complete' where id = 1",
            &[],
        )
        .await;

    // The last change is delivered only after the others are stored.
    let metric = format!("walhook_events_total{{event=\"{KIND}\"}}");
    let sidecar = app.sidecar();
    let mut stored = 0.0;
    while stored <= rows as f64 {
        // Progress is the signal; how fast it goes does not matter here.
        let more = async || sidecar.metric(&metric).await.filter(|now| *now > stored);
        stored = eventually("more events than before", more).await;
    }

    receiver.wait_for(1).await;

    let row = app
        .store()
        .await
        .query_one(
            "select count(*), count(distinct id) from walhook.event where kind = $1",
            &[&KIND],
        )
        .await;

    let row = row.unwrap();
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (rows + 1, rows + 1)
    );

    let peak = app.sidecar().peak_memory_kib();
    println!("peak resident memory: {} MiB", peak / 1024);
    assert!(peak < MEMORY_LIMIT_KIB, "{peak} KiB");
}
