//! Time limits of queries to the primary.

use walhook::private_postgres::Options;

use super::by_triggers;
use crate::support::TestApp;
use crate::wait_until_unready;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_gets_no_answer_ends_the_session() {
    // Otherwise a page needs no flush.
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    by_triggers(&mut app);
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let holder = app.source().await;

    holder
        .batch_execute("begin; select from walhook_capture.progress for update")
        .await
        .unwrap();
    platform.payment(user, "ready").await;
    wait_until_unready(app.sidecar(), "capture: changes cannot be read now").await;
    holder.batch_execute("rollback").await.unwrap();
    app.wait_for_events(1).await;
}
