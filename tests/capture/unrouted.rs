//! One row that cannot be looked up, derived or stored holds up no other event, and its event can
//! be routed later, in both capture modes.

use walhook::private_postgres::Options;

use crate::support::{Platform, Receiver, TestApp, eventually, one};
use crate::wait_until_unready;

const MODES: [&str; 2] = ["wal", "trigger"];
const STATUS: &str = "distribution.outlet.status_changed";

async fn prepared(mode: &str) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set("source.capture", mode)
        .set("source.poll_interval", "20ms")
        .set("source.heartbeat", "300ms");
    app
}

async fn release(platform: &Platform, user: i64) -> i64 {
    let label = platform.label(user).await;
    platform.release(label).await
}

async fn wait_for_unrouted(app: &TestApp, count: usize) {
    app.wait_for_count("select count(*) from walhook.unrouted_event", count)
        .await;
}

/// A reference may be wider than the id to which it leads.
#[tokio::test]
async fn a_reference_that_is_too_large_for_an_id_leads_to_no_row() {
    for mode in MODES {
        let app = prepared(mode).await;
        let platform = app.platform().await;
        let narrow = "alter table distro_queue drop constraint distro_queue_outlet_id_fkey; alter table outlet alter id type smallint";

        platform.transaction(narrow).await;
        let release = release(&platform, platform.user(&[]).await).await;

        app.setup().await;
        let mut app = app;

        app.run().await;
        let entry = format!(
            "insert into distro_queue (id, release_id, outlet_id, status) values (1, {release}, 70000, 'batched')"
        );

        platform.transaction(&entry).await;
        platform.payment(platform.user(&[]).await, "ready").await;
        app.wait_for_events(2).await;
    }
}

#[tokio::test]
async fn a_computed_column_that_fails_for_one_row_is_retried_when_the_row_is_corrected() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;

        platform
            .transaction(
                "alter table release add column settings jsonb not null default '{\"n\": 7}'",
            )
            .await;
        app.set(
            "source.tables.release.computed.cat",
            "((this.settings->>'n')::int)::text",
        );

        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;

        app.setup().await;
        app.run().await;
        app.api(&user.to_string())
            .await
            .create_webhook(&receiver.url("/"), &[STATUS])
            .await;

        let good = release(&platform, user).await;
        let bad = release(&platform, user).await;
        let outlet = platform.outlet("O").await;
        let spoil = format!(
            "update release set settings = '{{\"n\": \"abc\"}}' where id = {bad};
             insert into distro_queue (id, release_id, outlet_id, status)
             select id, case when id = 7 then {bad} else {good} end, {outlet}, 'batched' from generate_series(1, 20) as id"
        );

        platform.transaction(&spoil).await;
        app.wait_for_events(19).await;
        wait_for_unrouted(&app, 1).await;
        receiver.wait_for(19).await;

        let list = app.walhook_ok(&["unrouted", "list"]).await;
        assert!(
            list.contains("distro_queue 7\tlookup_failed")
                && list.contains(&format!("release {bad}")),
            "{list}"
        );

        let id = list.split('\t').next().unwrap().to_owned();
        let check = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();

        assert!(
            check.contains("warn  unrouted events: 1, since "),
            "{check}"
        );
        assert!(
            app.walhook_ok(&["unrouted", "retry"])
                .await
                .contains("1 still unrouted: lookup_failed")
        );

        platform
            .execute(
                "update release set settings = '{\"n\": 8}' where id = $1",
                &[&bad],
            )
            .await;

        assert_eq!(
            app.walhook_ok(&["unrouted", "retry", "--reason", "lookup_failed"])
                .await,
            "1 routed\n"
        );
        let received = receiver.wait_for(20).await;
        let late = received
            .iter()
            .find(|request| request.data()["release_id"] == bad)
            .expect("delivered");

        assert_eq!(
            (
                late.header("x-webhook-event-id"),
                late.data()["release_cat"].as_str()
            ),
            (&*id, Some("8")),
            "{mode}"
        );

        wait_for_unrouted(&app, 0).await;
        assert_eq!(app.walhook_ok(&["unrouted", "retry"]).await, "0 routed\n");
    }
}

/// `open` and `done` are mapped to statuses that are mapped themselves: only what the platform wrote
/// is mapped, once.
#[tokio::test]
async fn a_kept_change_follows_the_mapping_and_the_row_that_were_corrected_later() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let outlets_of_text = "alter table distro_queue drop constraint distro_queue_outlet_id_fkey; alter table distro_queue alter outlet_id type text";
        platform.transaction(outlets_of_text).await;

        let mapping = "source.tables.distro_queue.values";
        let statuses = [
            ("open", "scheduled"),
            ("scheduled", "transcoding"),
            ("done", "complete"),
            ("complete", "error"),
        ];
        for (own, meaning) in statuses {
            app.set(&format!("{mapping}.status.{own}"), meaning);
        }

        app.setup().await;
        app.run().await;

        let release = release(&platform, platform.user(&[]).await).await;
        let outlet = platform.outlet("T").await;
        let entries = format!(
            "insert into distro_queue (id, release_id, outlet_id, status) values (1, {release}, 'tidal', 'open'), (2, {release}, 'tidl', 'open');
             update distro_queue set status = 'done' where id = 1"
        );
        platform.transaction(&entries).await;
        wait_for_unrouted(&app, 4).await;

        let retried = app.walhook_ok(&["unrouted", "retry"]).await;
        assert_eq!(retried, "0 routed\n4 still unrouted: malformed_row\n");

        app.set(&format!("{mapping}.outlet_id.tidal"), &outlet.to_string());
        let retried = app.walhook_ok(&["unrouted", "retry"]).await;
        assert_eq!(
            retried, "3 routed\n1 still unrouted: malformed_row\n",
            "{mode}"
        );

        let corrected = "update distro_queue set outlet_id = 'tidal' where id = 2";
        platform.transaction(corrected).await;
        assert_eq!(app.walhook_ok(&["unrouted", "retry"]).await, "1 routed\n");

        let kept = "select array_agg(concat_ws(' ', data->>'distro_queue_id', data->>'outlet_id', data->>'previous_status', data->>'status')
            order by data->>'distro_queue_id', kind, data->>'status' desc) from walhook.event";
        let kept: Vec<String> = one(&app.store().await, kept).await;
        let expected = [
            format!("1 {outlet} complete"),
            format!("1 {outlet} scheduled"),
            format!("1 {outlet} scheduled complete"),
            format!("2 {outlet} scheduled"),
        ];
        assert_eq!(kept, expected, "{mode}");
    }
}

/// Lookups that need longer together than a statement may take are divided until they are answered.
#[tokio::test]
async fn what_the_store_refuses_is_kept_apart_and_can_be_discarded() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let text = "alter table label drop constraint label_user_id_fkey; alter table label alter user_id type text;
            alter table user_addon drop constraint user_addon_user_id_fkey, drop constraint user_addon_pkey; alter table user_addon alter user_id type text";

        platform.transaction(text).await;
        app.setup().await;
        app.run().await;

        // Not compressible: an index entry may have 2,704 bytes.
        let long = "(select string_agg(md5(n::text), '') from generate_series(1, 300) as n)";
        let rows = format!(
            "insert into user_addon values ('1', (select string_agg(md5(n::text), '') from generate_series(1, 200) as n)), ('2', 'stream_radar');
             insert into label (id, user_id, name) values (1, {long}, 'L'), (2, '2', 'M'), (3, '', 'N');
             insert into release (id, label_id, title, review_status, delivery_status)
             select id, id, 'T', 'draft', 'pending' from generate_series(1, 3) as id;
             update release set review_status = 'approved'"
        );

        platform.transaction(&rows).await;
        app.wait_for_events(2).await;
        wait_for_unrouted(&app, 1).await;

        let owners = app
            .store()
            .await
            .query("select user_id from walhook.event order by sequence", &[])
            .await
            .unwrap();

        assert_eq!(
            owners
                .iter()
                .map(|row| row.get::<_, &str>(0))
                .collect::<Vec<_>>(),
            ["2", ""],
            "{mode}"
        );

        let list = app.walhook_ok(&["unrouted", "list", "--json"]).await;
        assert!(
            list.contains(r#""reason":"store_refused""#) && list.contains("54000"),
            "{list}"
        );
        assert_eq!(
            app.walhook(&["unrouted", "discard"]).await.status.code(),
            Some(1)
        );
        assert_eq!(
            app.walhook_ok(&["unrouted", "discard", "--yes"]).await,
            "1 discarded\n"
        );
        wait_for_unrouted(&app, 0).await;
        platform
            .transaction("update release set review_status = 'rejected' where id = 2")
            .await;
        app.wait_for_events(3).await;
    }
}

const LONG_USER: &str = "(select string_agg(md5(n::text), '') from generate_series(1, 300) as n)";

/// A release whose label belongs to a user that the store refuses, and has just been distributed.
async fn distributed_for_a_refused_user(mode: &str) -> (TestApp, Platform) {
    let mut app = prepared(mode).await;
    let platform = app.platform().await;
    let text = "alter table label drop constraint label_user_id_fkey; alter table label alter user_id type text";

    platform.transaction(text).await;
    app.setup().await;
    app.run().await;

    let rows = format!(
        "insert into label (id, user_id, name) values (1, {LONG_USER}, 'L');
         insert into release (id, label_id, title, review_status, delivery_status) values (1, 1, 'T', 'draft', 'pending');
         update release set delivery_status = 'distributed'"
    );
    platform.transaction(&rows).await;
    wait_for_unrouted(&app, 1).await;

    (app, platform)
}

#[tokio::test]
async fn a_release_whose_distribution_was_refused_is_announced_once_by_a_retry_or_by_the_next_distribution()
 {
    for mode in MODES {
        let (app, platform) = distributed_for_a_refused_user(mode).await;
        platform
            .transaction(
                "update label set user_id = '7'; update release set review_status = 'approved'",
            )
            .await;
        app.wait_for_events(1).await;
        assert_eq!(
            app.walhook_ok(&["unrouted", "retry"]).await,
            "1 routed\n",
            "{mode}"
        );
        app.wait_for_events(2).await;
        platform
            .transaction("update release set delivery_status = 'pending'")
            .await;
        platform
            .transaction(
                "update release set delivery_status = 'distributed'; update release set review_status = 'rejected'",
            )
            .await;
        app.wait_for_events(3).await;

        let (app, platform) = distributed_for_a_refused_user(mode).await;
        platform
            .transaction(
                "update label set user_id = '7'; update release set delivery_status = 'pending'",
            )
            .await;
        platform
            .transaction("update release set delivery_status = 'distributed'")
            .await;
        app.wait_for_events(1).await;

        let retried = app.walhook_ok(&["unrouted", "retry"]).await;
        assert_eq!(
            retried, "0 routed\n1 still unrouted: distributed_before\n",
            "{mode}"
        );
        wait_for_unrouted(&app, 1).await;
    }
}

/// A lock or a cancelled query is no fault of the rows.
#[tokio::test]
async fn lookups_wait_for_a_lock_on_their_table_and_route_everything_afterwards() {
    let mut app = TestApp::prepare_alone(Options::default()).await;
    app.set("source.tables.outlet.computed.name", "upper(this.name)");

    let platform = app.platform().await;
    platform
        .transaction("alter table distro_queue drop constraint distro_queue_outlet_id_fkey")
        .await;

    let user = platform.user(&[]).await;
    let release = release(&platform, user).await;
    let outlet = platform.outlet("o").await;

    app.setup().await;
    app.run().await;

    let mut holder = app.source().await;
    let lock = holder.transaction().await.unwrap();

    lock.batch_execute("lock table outlet in access exclusive mode")
        .await
        .unwrap();
    let rows = format!(
        "insert into distro_queue (id, release_id, outlet_id, status) select id, {release}, {outlet}, 'batched' from generate_series(1, 3) as id"
    );

    platform.execute(&rows, &[]).await;
    let cancelled = "select pg_cancel_backend(pid) from pg_stat_activity
        where wait_event_type = 'Lock' and query like '%upper(this.name)%' and datname = current_database()";

    eventually("a lookup to cancel", async || {
        (!platform
            .client
            .query(cancelled, &[])
            .await
            .unwrap()
            .is_empty())
        .then_some(())
    })
    .await;

    wait_until_unready(app.sidecar(), "events cannot be stored").await;

    eventually("a lookup that waits again", async || {
        (!platform
            .client
            .query(cancelled, &[])
            .await
            .unwrap()
            .is_empty())
        .then_some(())
    })
    .await;

    lock.rollback().await.unwrap();
    app.wait_for_events(3).await;
    wait_for_unrouted(&app, 0).await;
}

/// Together the rows need longer than a statement may take.
#[tokio::test]
#[ignore = "takes more than a minute: `make soak`"]
async fn slow_computed_columns_of_many_rows_are_evaluated_in_parts() {
    let mut app = prepared("wal").await;
    let platform = app.platform().await;

    app.set(
        "source.tables.release.computed.cat",
        "(select 'C' from pg_sleep(0.05 + 0 * this.id))",
    );
    let label = platform.label(platform.user(&[]).await).await;

    app.setup().await;
    app.run().await;

    let rows = format!(
        "insert into release (id, label_id, title, review_status, delivery_status)
         select id, {label}, 'T', 'draft', 'pending' from generate_series(1, 1000) as id;
         insert into distro_queue (id, release_id, status) select id, id, 'batched' from generate_series(1, 1000) as id"
    );
    platform.transaction(&rows).await;
    app.wait_for_events(1000).await;
    wait_for_unrouted(&app, 0).await;
}

/// The lookup that the guide shows casts the keys, which may be no numbers.
#[tokio::test]
async fn a_lookup_query_that_fails_for_one_user_fails_for_no_other() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;

        platform
            .transaction(
                "alter table label drop constraint label_user_id_fkey; alter table label alter user_id type text",
            )
            .await;
        let lookup = "select user_id, addon from user_addon where user_id = any($1::bigint[])";

        app.set("source.lookups.user_addon", lookup);
        let user = platform.user(&["stream_radar"]).await;

        app.setup().await;
        app.run().await;

        let rows = format!(
            "insert into label (id, user_id, name) values (1, '', 'L'), (2, '{user}', 'M');
             insert into release (id, label_id, title, review_status, delivery_status)
             select id, id, 'T', 'draft', 'pending' from generate_series(1, 2) as id;
             insert into stream_radar_flag (id, dsp, isrc, release_id, severity, status, published_at)
             select id, 'd', 'i', id, 'low', 'active', now() from generate_series(1, 2) as id"
        );

        platform.transaction(&rows).await;
        app.wait_for_events(1).await;
        wait_for_unrouted(&app, 1).await;
    }
}
