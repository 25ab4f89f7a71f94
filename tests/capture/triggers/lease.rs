//! Only one reader at a time, and leases that return to an earlier holder.

use rustix::process::Signal;

use super::prepared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_gets_the_lease_back_reads_on_behind_the_one_between() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    app.setup().await;
    // It has the lease and knows where to read on, and has stored nothing.
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
