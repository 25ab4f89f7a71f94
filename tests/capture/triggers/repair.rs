//! What triggers failed to write is found by comparison, and told once.

use super::{number, prepared};
use crate::support::{Receiver, TestApp, eventually};

const STATUS: &str = "distribution.outlet.status_changed";

/// The gaps that are open.
async fn open_gaps(app: &TestApp) -> Vec<String> {
    let statement = "select reason from walhook.gap where repaired_at is null order by reason";
    app.store().await.query(statement, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_failing_triggers_and_a_lost_outbox_hid_is_told_once() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;
    let outlet = platform.outlet("Example Music").await;
    app.setup().await;
    app.run().await;
    let receiver = Receiver::start().await;
    app.api(&user.to_string()).await.create_webhook(&receiver.url("/"), &[STATUS, "delivery.completed"]).await;
    let (seen, hidden) = (
        platform.distribution(release, outlet, "scheduled").await,
        platform.distribution(release, outlet, "scheduled").await,
    );
    receiver.wait_for(2).await;

    for (harm, gap) in [
        ("alter table walhook_capture.outbox add constraint full_up check (false) not valid", "trigger_failed"),
        ("drop schema walhook_capture cascade", "outbox_lost"),
    ] {
        receiver.clear();
        platform.client.batch_execute(harm).await.unwrap();
        platform.set_distribution_status(hidden, "transcoding").await;
        platform.set_distribution_status(hidden, "complete").await;
        eventually("the gap to be told", async || open_gaps(&app).await.iter().any(|open| open == gap).then_some(()))
            .await;
        let busy = app.walhook(&["repair"]).await;
        assert!(!busy.status.success(), "somebody captures");
        assert!(app.stop().await.success());
        let mended = "alter table if exists walhook_capture.outbox drop constraint full_up";
        platform.client.batch_execute(mended).await.unwrap();

        let dry = app.walhook_ok(&["repair", "--dry-run"]).await;
        assert!(dry.contains(&format!("gap {gap}: ")) && dry.contains("Nothing was changed"), "{dry}");
        let before = number(&app.store().await, "select count(*) from walhook.event").await;
        let real = app.walhook_ok(&["repair"]).await;
        assert!(real.contains("2 deliveries created"), "{real}");
        assert_eq!(open_gaps(&app).await, [""; 0]);
        app.wait_for_events(before as usize + 2).await;
        app.run().await;
        let received = receiver.wait_for(2).await;
        let moved = received.iter().find(|request| request.event() == STATUS).unwrap().data();
        assert_eq!((&moved["previous_status"], &moved["status"]), (&"scheduled".into(), &"complete".into()));

        // What comes now is told as ever, and nothing is told twice.
        platform.set_distribution_status(seen, "batched").await;
        platform.set_distribution_status(seen, "scheduled").await;
        platform.set_distribution_status(hidden, "scheduled").await;
        assert_eq!(receiver.wait_for(5).await.len(), 5);
    }
    assert!(app.stop().await.success());
    let again = app.walhook(&["repair"]).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to repair"), "{again:?}");
}
