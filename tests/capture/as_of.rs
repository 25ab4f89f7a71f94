//! Owners, names and add-ons are those of the moment of the change, however late it is read, in
//! both capture modes.

use crate::support::{Platform, TestApp, one};

const MODES: [&str; 2] = ["wal", "trigger"];

async fn prepared(mode: &str) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set("source.capture", mode)
        .set("source.poll_interval", "20ms")
        .set("source.heartbeat", "300ms");
    app
}

/// Creates a scheduled distribution. Returns the release's label and the distribution.
async fn scheduled(platform: &Platform, user: i64) -> (i64, i64) {
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("O").await;

    (
        label,
        platform.distribution(release, outlet, "scheduled").await,
    )
}

/// Returns the owners of the events of one type, in commit order.
async fn owners(app: &TestApp, event: &str) -> Vec<String> {
    let owners = "select user_id from walhook.event where kind = $1 order by sequence";
    app.store()
        .await
        .query(owners, &[&event])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

#[tokio::test]
async fn an_event_that_is_read_late_belongs_to_the_owner_as_of_its_change() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let former = platform.user(&[]).await;
        let owner = platform.user(&[]).await;
        let (label, entry) = scheduled(&platform, former).await;

        app.setup().await;
        platform.set_distribution_status(entry, "complete").await;
        platform
            .execute(
                "update label set user_id = $2 where id = $1",
                &[&label, &owner],
            )
            .await;

        let transfer = format!(
            "update distro_queue set status = 'error' where id = {entry};
             update label set user_id = {former} where id = {label};
             update distro_queue set status = 'complete' where id = {entry}"
        );
        platform.transaction(&transfer).await;
        platform
            .execute("delete from distro_queue where id = $1", &[&entry])
            .await;
        platform
            .execute(
                "update label set user_id = $2 where id = $1",
                &[&label, &owner],
            )
            .await;

        app.run().await;
        app.wait_for_events(6).await;

        let expected = [former, owner, former].map(|id| id.to_string());
        assert_eq!(
            owners(&app, "distribution.outlet.status_changed").await,
            expected,
            "{mode}"
        );
    }
}

/// In a column of text, `0100` is another value than `100`.
#[tokio::test]
async fn an_id_in_another_form_is_another_row() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let other = platform.user(&[]).await;
        let text = "alter table release drop constraint if exists release_label_id_fkey;
             alter table label alter id type text; alter table release alter label_id type text";

        platform.transaction(text).await;
        app.setup().await;
        app.run().await;

        let rows = format!(
            "insert into label (id, user_id, name) values ('100', {user}, 'L'), ('0100', {other}, 'M');
             insert into release (id, label_id, title, review_status, delivery_status)
             values (1, '100', 'A', 'draft', 'pending'), (2, '0100', 'B', 'draft', 'pending');
             update release set review_status = 'approved'"
        );

        platform.transaction(&rows).await;
        app.wait_for_events(1).await;
        app.wait_for_count("select count(*) from walhook.unrouted_event", 1)
            .await;
        assert_eq!(
            owners(&app, "release.review.status_changed").await,
            [user.to_string()],
            "{mode}"
        );
    }
}

#[tokio::test]
async fn an_add_on_counts_until_its_last_row_is_deleted() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let keyless = "alter table user_addon drop constraint user_addon_pkey";

        platform.execute(keyless, &[]).await;
        let user = platform.user(&["stream_radar"]).await;

        platform
            .execute(
                "insert into user_addon values ($1, 'stream_radar')",
                &[&user],
            )
            .await;

        let label = platform.label(user).await;
        let release = platform.release(label).await;

        app.setup().await;
        app.run().await;

        let delete_one = "delete from user_addon where ctid = (select min(ctid) from user_addon)";

        for flag in 1..=3i64 {
            let raise = format!(
                "insert into stream_radar_flag (id, dsp, isrc, release_id, severity, status, published_at)
                 values ({flag}, 'd', 'i', {release}, 'low', 'active', now())"
            );
            platform.execute(&raise, &[]).await;
            platform.execute(delete_one, &[]).await;
        }

        platform.payment(user, "ready").await;
        app.wait_for_events(3).await;
        assert_eq!(
            owners(&app, "stream_radar.flag_created").await.len(),
            2,
            "{mode}"
        );
    }
}

/// Rows that were copied by other names are not used: they are looked up by the present names until
/// they are copied again.
#[tokio::test]
async fn a_changed_mapping_of_looked_up_rows_takes_effect_at_once() {
    let mut app = prepared("wal").await;
    let platform = app.platform().await;

    platform
        .transaction("alter table outlet add column display text default 'Shown'")
        .await;
    let user = platform.user(&[]).await;
    let (_, entry) = scheduled(&platform, user).await;

    app.setup().await;
    app.run().await;

    let name =
        "select data::jsonb->>'outlet_name' from walhook.event order by sequence desc limit 1";
    let store = app.store().await;

    platform.set_distribution_status(entry, "batched").await;
    app.wait_for_events(1).await;
    assert_eq!(
        store.query_one(name, &[]).await.unwrap().get::<_, &str>(0),
        "O"
    );
    app.set_environment("WALHOOK_SOURCE__TABLES__OUTLET__COLUMNS__NAME", "display");
    app.restart().await;
    platform.set_distribution_status(entry, "transcoding").await;
    app.wait_for_events(2).await;
    assert_eq!(
        store.query_one(name, &[]).await.unwrap().get::<_, &str>(0),
        "Shown"
    );
    assert!(app.stop().await.success());
    app.walhook_ok(&["repair", "--force"]).await;

    let copied = "select state from walhook.lookup_row where relation = 8";
    let copied: String = one(&store, copied).await;
    assert_eq!(copied, r#"["Shown"]"#);
}

/// The rows of a transcode are known although they were written long before, moved, or deleted by
/// their key alone.
#[tokio::test]
async fn files_that_were_written_before_capture_began_are_those_of_the_change() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let track = platform.track(platform.release(label).await).await;
        let before = format!(
            "insert into transcoder_queue (id, track_id, status) values (1, {track}, 'queued'), (2, {track}, 'queued');
             insert into transcoder_queue_file (id, transcoder_queue_id, asset_type_id, status)
             select id, 1, id, 'complete' from generate_series(1, 3) as id"
        );

        platform.transaction(&before).await;
        app.setup().await;
        platform
            .transaction("delete from transcoder_queue_file where id = 1")
            .await;
        platform
            .transaction("update transcoder_queue_file set transcoder_queue_id = 2 where id = 2")
            .await;
        platform
            .transaction("update transcoder_queue set status = 'complete'")
            .await;
        platform.transaction("truncate transcoder_queue_file").await;
        app.run().await;
        app.wait_for_events(2).await;

        let files = "select data::jsonb->'files' from walhook.event order by data::jsonb->>'transcoder_queue_id'";
        let found = app.store().await.query(files, &[]).await.unwrap();
        let types = found
            .iter()
            .map(|row| row.get::<_, serde_json::Value>(0)[0]["asset_type_id"].clone());

        assert_eq!(types.collect::<Vec<_>>(), [3, 2], "{mode}");
        assert!(
            found
                .iter()
                .all(|row| row.get::<_, serde_json::Value>(0).as_array().map(Vec::len) == Some(1)),
            "{mode}"
        );
    }
}

#[tokio::test]
async fn add_ons_that_a_transaction_replaces_are_those_that_it_inserts() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let user = platform.user(&["stream_radar"]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;

        app.setup().await;
        app.run().await;

        let replace = format!(
            "delete from user_addon where user_id = {user};
             insert into user_addon values ({user}, 'stream_radar'), ({user}, 'analytics')"
        );
        platform.transaction(&replace).await;

        let raise = format!(
            "insert into stream_radar_flag (id, dsp, isrc, release_id, severity, status, published_at)
             values (1, 'd', 'i', {release}, 'low', 'active', now())"
        );
        platform.transaction(&raise).await;
        app.wait_for_events(1).await;

        let granted = "select addon from walhook.user_addon order by addon";
        let granted = app.store().await.query(granted, &[]).await.unwrap();
        let granted: Vec<&str> = granted.iter().map(|row| row.get(0)).collect();

        assert_eq!(granted, ["analytics", "stream_radar"], "{mode}");
    }
}
