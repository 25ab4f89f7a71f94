//! Removing what capture from the WAL has left, while another session's transaction keeps the tables from being locked.

use walhook::private_postgres::Options;

use super::locks::{INDEX, INDEXES, Probe, identity, long_report};
use super::{by_triggers, number, prepared};
use crate::support::{TestApp, eventually};

/// The end of the reader's warning about the removal.
const WARNING: &str = "after the switch to triggers; retrying";

async fn wait_for_warning(app: &TestApp) -> String {
    let warning = async || {
        let log = std::fs::read_to_string(app.log_file()).unwrap_or_default();
        log.lines().find(|line| line.contains(WARNING)).map(str::to_owned)
    };
    eventually("a warning about the removal", warning).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_switch_a_long_transaction_delays_the_removal_and_neither_the_platform_nor_capture() {
    for replica_identity in ["full", "index"] {
        let mut app = TestApp::prepare_alone(Options::default()).await;
        app.set("source.replica_identity", replica_identity);
        app.setup().await;
        app.run().await;
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        platform.payment(user, "ready").await;
        app.wait_for_events(1).await;
        let before = identity(&platform.client).await;

        let report = long_report(&app).await;
        let probe = Probe::start(&app).await;
        by_triggers(&mut app);
        app.setup().await;
        app.restart().await;
        let warning = wait_for_warning(&app).await;
        for count in 2..=6 {
            platform.payment(user, "ready").await;
            app.wait_for_events(count).await;
        }
        probe.assert_never_blocked().await;
        assert!(warning.contains("(nightly report)"), "{warning}");
        assert_eq!(identity(&platform.client).await, before);
        // With a heartbeat of 300 ms there was time for more rounds.
        let log = std::fs::read_to_string(app.server.log_file()).unwrap();
        let attempts = log.lines().filter(|line| line.contains("STATEMENT:") && line.contains("replica identity"));
        assert_eq!(attempts.count(), 3, "{log}");
        // Not kept by the report: the slot retains WAL.
        assert_eq!(number(&platform.client, "select count(*) from pg_replication_slots").await, 0);

        report.batch_execute("commit").await.unwrap();
        app.restart().await;
        let removed = async || {
            let restored = identity(&platform.client).await == "d" && number(&platform.client, INDEXES).await == 0;
            restored.then_some(())
        };
        eventually("the replica identities to be restored", removed).await;
        platform.payment(user, "ready").await;
        app.wait_for_events(7).await;
        assert!(app.stop().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_cannot_be_dropped_now_stays_valid_and_does_not_stop_the_reader() {
    let mut app = prepared().await;
    app.setup().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    // As a removal leaves it that was killed before the last step.
    platform.client.batch_execute(INDEX).await.unwrap();
    let report = long_report(&app).await;
    app.run().await;
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    wait_for_warning(&app).await;
    platform.payment(user, "ready").await;
    app.wait_for_events(2).await;
    let valid = "select count(*) from pg_index where indexrelid = 'walhook_identity_payment'::regclass and indisvalid";
    assert_eq!(number(&platform.client, valid).await, 1);
    report.batch_execute("commit").await.unwrap();
    app.restart().await;
    let dropped = async || (number(&platform.client, INDEXES).await == 0).then_some(());
    eventually("the index to be dropped", dropped).await;
}
