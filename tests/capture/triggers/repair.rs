//! A repair finds changes that triggers failed to write, and raises their events once.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{number, prepared};
use crate::support::{Receiver, TestApp, eventually, run_sql};

const STATUS: &str = "distribution.outlet.status_changed";

/// Returns the reasons of the open gaps.
async fn open_gaps(app: &TestApp) -> Vec<String> {
    let statement = "select reason from walhook.gap where repaired_at is null order by reason";
    app.store()
        .await
        .query(statement, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Executes a statement that locks several tables, in another order than the sidecar does.
async fn repeat_after_deadlocks(client: &Client, statement: &str) {
    while let Err(error) = client.batch_execute(statement).await {
        assert_eq!(
            error.code(),
            Some(&SqlState::T_R_DEADLOCK_DETECTED),
            "{error}"
        );
    }
}

#[tokio::test]
async fn changes_missed_by_failing_triggers_and_a_lost_outbox_are_raised_once() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;
    let outlet = platform.outlet("Example Music").await;

    app.setup().await;
    app.run().await;

    let receiver = Receiver::start().await;
    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &[STATUS, "delivery.completed"])
        .await;

    let seen = platform.distribution(release, outlet, "scheduled").await;
    let hidden = platform.distribution(release, outlet, "scheduled").await;

    receiver.wait_for(2).await;

    for (harm, gap) in [
        (
            "alter table walhook_capture.outbox add constraint full_up check (false) not valid",
            "trigger_failed",
        ),
        ("drop schema walhook_capture cascade", "outbox_lost"),
    ] {
        receiver.clear();
        repeat_after_deadlocks(&platform.client, harm).await;
        platform
            .set_distribution_status(hidden, "transcoding")
            .await;
        platform.set_distribution_status(hidden, "complete").await;
        eventually("the gap to be recorded", async || {
            open_gaps(&app)
                .await
                .iter()
                .any(|open| open == gap)
                .then_some(())
        })
        .await;
        let busy = app.walhook(&["repair"]).await;
        assert!(!busy.status.success(), "another process captures");
        assert!(app.stop().await.success());
        let restore = "alter table if exists walhook_capture.outbox drop constraint full_up";
        run_sql(&platform.client, restore).await;

        let dry = app.walhook_ok(&["repair", "--dry-run"]).await;
        assert!(
            dry.contains(&format!("gap {gap}: ")) && dry.contains("Nothing was changed"),
            "{dry}"
        );
        let before = number(&app.store().await, "select count(*) from walhook.event").await;
        let real = app.walhook_ok(&["repair"]).await;
        assert!(real.contains("2 deliveries created"), "{real}");
        assert_eq!(open_gaps(&app).await, [""; 0]);
        app.wait_for_events(before as usize + 2).await;
        app.run().await;
        let received = receiver.wait_for(2).await;
        let moved = received
            .iter()
            .find(|request| request.event() == STATUS)
            .unwrap()
            .data();
        assert_eq!(
            (&moved["previous_status"], &moved["status"]),
            (&"scheduled".into(), &"complete".into())
        );

        // Later changes raise events as usual, and no event is repeated.
        platform.set_distribution_status(seen, "batched").await;
        platform.set_distribution_status(seen, "scheduled").await;
        platform.set_distribution_status(hidden, "scheduled").await;
        assert_eq!(receiver.wait_for(5).await.len(), 5);
    }

    assert!(app.stop().await.success());
    let again = app.walhook(&["repair"]).await;
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("nothing to repair"),
        "{again:?}"
    );
}
