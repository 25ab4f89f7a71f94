//! Triggers that an earlier build installed, and the rows that they left in the outbox.

use super::{events, number, prepared};

/// Restores the state of an earlier build, whose triggers did not pair rows and were not noted.
const EARLIER: &str = "
    drop table walhook_capture.installed;
    drop trigger paired on walhook_capture.outbox;
    drop function walhook_capture.outbox_paired();
    drop index walhook_capture.outbox_deleted;
    do $$ begin
        execute replace(pg_get_functiondef('walhook_capture.capture_distro_queue'::regproc),
            'order by n.walhook_row is not null', '');
    end $$";
const PARTITIONED: &str = "
    alter table distro_queue rename to before;
    alter table before drop constraint distro_queue_pkey;
    create table distro_queue (like before including defaults, primary key (id, status)) partition by list (status);
    create table distro_queue_done partition of distro_queue for values in ('complete');
    create table distro_queue_rest partition of distro_queue default;
    drop table before";

#[tokio::test]
async fn setup_updates_the_triggers_of_an_earlier_build_and_their_rows_are_read() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    platform.client.batch_execute(PARTITIONED).await.unwrap();
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    app.setup().await;
    platform.client.batch_execute(EARLIER).await.unwrap();
    // Written by the earlier build's triggers: the move is a deletion and an insertion.
    let first = platform.distribution(release, platform.outlet("Shop").await, "batched").await;
    platform.set_distribution_status(first, "complete").await;
    let deletions = "select count(*) from walhook_capture.outbox where operation = 'D'";
    assert_eq!(number(&platform.client, deletions).await, 1);
    let check = app.walhook(&["check"]).await;
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains("does not pair rows") && check.contains("made for another mapping"), "{check}");

    let done = app.walhook_ok(&["setup"]).await;
    assert!(done.contains("1 functions created, 0 triggers created, rows"), "{done}");
    assert_eq!(app.walhook_ok(&["setup"]).await.trim(), "everything is set up");
    assert!(!app.walhook_ok(&["check"]).await.contains("does not pair rows"));
    let second = platform.distribution(release, platform.outlet("Store").await, "batched").await;
    platform.set_distribution_status(second, "complete").await;
    assert_eq!(number(&platform.client, deletions).await, 1, "the move after setup is one update");
    app.run_with(&["--roles", "capture"]).await;
    app.wait_for_events(6).await;
    let stored = events(&app).await;
    let moves = stored.iter().filter(|(kind, _)| kind == "distribution.outlet.status_changed");
    let moves: Vec<String> = moves.map(|(_, data)| format!("{} {}", data["previous_status"], data["status"])).collect();
    let expected = [r#"null "batched""#, r#"null "complete""#, r#"null "batched""#, r#""batched" "complete""#];
    assert_eq!(moves, expected);
}
