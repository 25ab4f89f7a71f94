//! The lease on reading the outbox: a replica that lost it and takes it again.

use rustix::process::Signal;

use super::prepared;

#[tokio::test]
async fn a_reader_that_takes_the_lease_again_continues_after_the_reader_in_between() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    app.setup().await;

    // It has the lease and has read the checkpoint, and has stored nothing.
    app.run_with(&["--roles", "capture"]).await;
    app.sidecar().signal(Signal::STOP);

    let between = app.replica(&["--roles", "capture"]).await;

    // One window each.
    for count in 1..=3 {
        platform.payment(user, "ready").await;
        app.wait_for_events(count).await;
    }

    assert!(between.stop().await.success());
    app.sidecar().signal(Signal::CONT);
    platform.payment(user, "ready").await;
    app.wait_for_events(4).await;
    platform.payment(user, "ready").await;
    app.wait_for_events(5).await;
}
