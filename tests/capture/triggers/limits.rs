//! Time limits of queries to the primary.

use walhook::private_postgres::Options;

use super::by_triggers;
use crate::support::{TestApp, run_sql};
use crate::wait_until_unready;

#[tokio::test]
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

    run_sql(
        &holder,
        "begin; select from walhook_capture.progress for update",
    )
    .await;
    platform.payment(user, "ready").await;
    wait_until_unready(app.sidecar(), "capture: changes cannot be read now").await;
    run_sql(&holder, "rollback").await;
    app.wait_for_events(1).await;
}
