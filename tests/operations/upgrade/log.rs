//! A log and the store that reads it, of which one is a version ahead of the other.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::next_build::NextBuild;
use crate::support::{Receiver, TestApp, eventually, run_sql};

const PAYMENT: &str = "payment.statement_ready";

/// First the process that writes the log is a version behind the cell that reads it, or ahead of it.
/// Then it is replaced by the build of the cell, which migrates the log while the cell reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_and_its_reader_work_one_version_apart() {
    let next = tokio::task::spawn_blocking(NextBuild::make)
        .await
        .expect("the next build");
    let this = PathBuf::from(env!("CARGO_BIN_EXE_walhook"));

    for (writer, reader) in [(&this, &next.program), (&next.program, &this)] {
        let mut relay = TestApp::prepare().await;
        relay.set_program(writer).setup().await;
        relay.run_with(&["--roles", "capture"]).await;

        let mut cell = TestApp::prepare().await;
        cell.set_program(reader)
            .set("source.capture", "log")
            .set("source.log_url", relay.setting("store.url"))
            .set("cells.name", "a");
        cell.setup().await;
        cell.walhook_ok(&["cells", "add", "a"]).await;
        cell.run().await;

        let platform = relay.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        let api = cell.api(&user.to_string()).await;
        api.create_webhook(&receiver.url("/"), &[PAYMENT]).await;
        let mut payments = platform.payments(user, 5).await;
        receiver.wait_for_deliveries(5).await;

        relay.stop().await;
        relay.set_program(reader).setup().await;
        payments.extend(platform.payments(user, 5).await);
        relay.run_with(&["--roles", "capture"]).await;
        payments.extend(platform.payments(user, 5).await);
        cell.wait_for_events(15).await;
        cell.wait_for_count("select count(*) from walhook.pending", 0)
            .await;
        cell.walhook_ok(&["check"]).await;

        // By delivery: attempts may be repeated.
        let requests = receiver.requests().into_iter();
        let received: BTreeMap<String, i64> = requests
            .map(|request| {
                let payment = request.data()["payment_request_id"].as_i64().unwrap();
                (request.delivery().to_owned(), payment)
            })
            .collect();
        let mut received: Vec<i64> = received.into_values().collect();
        received.sort();
        payments.sort();
        assert_eq!(received, payments, "each is delivered once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_of_a_later_version_waits_for_the_update_of_the_reader() {
    let mut relay = TestApp::prepare().await;
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;
    let mut cell = TestApp::prepare().await;
    cell.set("source.capture", "log")
        .set("source.log_url", relay.setting("store.url"));
    cell.setup().await;
    cell.run().await;

    let log = relay.store().await;
    let insert = |kind: &str, number: usize| {
        format!(
            "insert into walhook.event (id, user_id, kind, occurred_at, sequence, shard, data)
             values (walhook.uuid_v7(), '1', '{kind}', now(), {number}, walhook.shard('1'), '{{}}');
             update walhook.event_sequence set last = {number};"
        )
    };
    let events = [
        insert(PAYMENT, 1),
        insert("royalty.split_agreed", 2),
        insert(PAYMENT, 3),
    ];
    run_sql(&log, &events.concat()).await;

    // What is before it is stored, and nothing after it.
    cell.wait_for_events(1).await;
    let sidecar = cell.sidecar();
    eventually("the reason of the wait", async || {
        let (_, reasons) = sidecar.readiness().await?;
        reasons
            .contains("an event royalty.split_agreed")
            .then_some(())
    })
    .await;
    cell.wait_for_events(1).await;

    // The update, as far as this build can be updated.
    run_sql(
        &log,
        "update walhook.event set kind = 'transcode.failed' where sequence = 2",
    )
    .await;
    cell.wait_for_events(3).await;
}
