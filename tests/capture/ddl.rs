//! The platform's DDL on published tables: its own statements keep working, and what changed is
//! captured without an operator.

use std::path::Path;

use walhook::private_postgres::Options;

use crate::support::versions;
use crate::support::{TestApp, eventually, one, run_sql};
use crate::wait_until_unready;

const GAPS: &str = "select count(*) from walhook.gap";
const RELATIONS: &str = walhook::sql::primary::relation::FIND;

async fn prepared(programs: Option<&Path>) -> TestApp {
    let mut app = TestApp::prepare_alone(Options {
        programs,
        ..Options::default()
    })
    .await;
    app.set("source.heartbeat", "200ms");

    app
}

/// With replica identity full, PostgreSQL 18 rejects updates of a published table whose generated
/// columns are not published.
#[tokio::test]
async fn generated_columns_before_and_after_setup_leave_the_platforms_updates_alone() {
    let Some(programs) = versions::exactly(18) else {
        return;
    };
    let mut app = prepared(Some(&programs)).await;
    let platform = app.platform().await;
    let before = "alter table distro_queue add shown text generated always as (status || '!') virtual;
        alter table payment add shown text generated always as (invoice_number || '!') stored;
        alter table label add shown text generated always as (name || '!') virtual;
        alter table outlet drop constraint outlet_pkey cascade, alter id drop not null, add shown text generated always as (name || '!') stored";

    platform.transaction(before).await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("O").await;
    let entry = platform.distribution(release, outlet, "scheduled").await;

    app.setup().await;
    app.run().await;

    let update_all = format!(
        "update distro_queue set status = 'batched' where id = {entry}; update payment set invoice_number = 'x';
         update label set name = 'M'; update outlet set name = 'P'; update release set title = 'T'; delete from payment"
    );
    platform.transaction(&update_all).await;
    app.wait_for_events(1).await;

    let stored = "alter table release add words tsvector generated always as (to_tsvector('simple', coalesce(title, ''))) stored";
    platform.transaction(stored).await;
    platform
        .transaction("update release set review_status = 'approved'")
        .await;
    app.wait_for_events(2).await;

    // No publication can have it: until the replica identity is an index, updates fail.
    platform
        .transaction(
            "alter table release add upper_title text generated always as (upper(title)) virtual",
        )
        .await;
    eventually("updates to succeed again", async || {
        let update = "update release set review_status = 'rejected'";
        platform.client.batch_execute(update).await.ok()
    })
    .await;
    app.wait_for_events(3).await;

    assert_eq!(one::<i64>(&app.store().await, GAPS).await, 0);

    let check = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    assert!(!check.contains("fail  replica identity"), "{check}");
}

#[tokio::test]
async fn setup_refuses_virtual_columns_beside_which_no_replica_identity_is_safe() {
    let Some(programs) = versions::exactly(18) else {
        return;
    };
    let app = prepared(Some(&programs)).await;
    let platform = app.platform().await;

    // The column that is watched may be null.
    platform
        .transaction("alter table preflight_report add shown text generated always as (profile_name || '!') virtual")
        .await;
    let refused = app.walhook(&["setup"]).await;
    let error = String::from_utf8(refused.stderr).unwrap();

    assert!(
        refused.status.code() == Some(1) && error.contains("has virtual generated columns (shown)"),
        "{error}"
    );
    let touched = "select count(*) from pg_publication union all select count(*) from pg_class where relreplident = 'f'";
    let touched = platform.client.query(touched, &[]).await.unwrap();
    assert!(touched.iter().all(|row| row.get::<_, i64>(0) == 0));
    platform
        .execute("update preflight_report set profile_name = 'x'", &[])
        .await;
}

/// A replica identity may contain only columns that every publication of the table has.
#[tokio::test]
async fn columns_that_another_publication_lacks_are_left_out_of_the_identity_or_refused() {
    let Some(programs) = versions::exactly(18) else {
        return;
    };
    let mut app = prepared(Some(&programs)).await;
    let platform = app.platform().await;
    let others = "create publication other for table payment (id, amount), distro_queue (id, status);
        alter table release add words text generated always as (title || '!') stored; create publication third for table release";

    platform.transaction(others).await;
    let refused = app.walhook(&["setup"]).await;
    let error = String::from_utf8(refused.stderr).unwrap();
    let named = "table public.payment: is in publication other without user_id, with which replica identity full makes every UPDATE and \
        DELETE fail; an index is impossible, since the table is in publication other without status";

    assert!(
        error.contains(named) && !error.contains("distro_queue") && !error.contains("release"),
        "{error}"
    );
    let own = format!(
        "select count(*) from pg_publication where pubname = '{}'",
        app.name
    );

    assert_eq!(one::<i64>(&platform.client, &own).await, 0);

    platform
        .transaction(
            "alter publication other set table payment (id, status), distro_queue (id, status)",
        )
        .await;
    app.setup().await;
    app.run().await;

    let label = platform.label(platform.user(&[]).await).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("O").await;

    platform.distribution(release, outlet, "scheduled").await;
    platform
        .transaction("update distro_queue set status = 'batched'; update release set review_status = 'approved'")
        .await;
    app.wait_for_events(3).await;
}

/// Capture by triggers and from the WAL may exist side by side, each with its own store.
#[tokio::test]
async fn another_installation_on_the_same_database_keeps_its_replica_identity() {
    let first = {
        let mut app = prepared(None).await;
        app.set("source.replica_identity", "index");
        app.setup().await;
        app
    };

    let mut second = TestApp::prepare_on(std::sync::Arc::clone(&first.server)).await;
    let url = first.source_url.clone();

    second
        .set("source.url", &url)
        .set("source.capture", "trigger");
    second.setup().await;
    second.run().await;
    first
        .platform()
        .await
        .payment(first.platform().await.user(&[]).await, "ready")
        .await;
    second.wait_for_events(1).await;
    second.stop().await;
    second.walhook_ok(&["teardown", "--yes"]).await;

    let identity = "select relreplident::text from pg_class where relname = 'payment'";
    let identity: String = one(&first.source().await, identity).await;

    assert_eq!(identity, "i");
}

/// The server looks the publication up as of the WAL that it decodes: one that is created again is
/// not there yet.
#[tokio::test]
async fn a_publication_that_was_dropped_and_created_again_is_a_gap_and_ends_no_process() {
    let mut app = prepared(None).await;
    let platform = app.platform().await;

    app.setup().await;
    app.run().await;

    let user = platform.user(&[]).await;
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    assert!(app.stop().await.success());
    platform
        .transaction(&format!("drop publication {}", app.name))
        .await;
    platform.payment(user, "ready").await;
    app.setup().await;

    let mut sidecar = app.spawn(&[]);
    wait_until_unready(&sidecar, "gap: changes were lost (publication_changed)").await;
    app.walhook_ok(&["repair"]).await;
    app.wait_for_events(2).await;
    sidecar.wait_until_ready().await;
    platform.payment(user, "ready").await;
    app.wait_for_events(3).await;
}

/// PostgreSQL's functions see a drop at once, even if the table is in the query's snapshot.
#[tokio::test]
async fn the_tables_can_be_read_while_one_is_dropped() {
    let app = TestApp::prepare().await;
    let reader = app.source().await;
    let platform = app.platform().await;

    run_sql(&reader, "begin isolation level repeatable read; select 1").await;
    run_sql(&platform.client, "drop table payment").await;

    let schemas = ["public"; 2];
    let tables = ["payment", "outlet"];
    let indexes = ["a", "b"];

    let found = reader
        .query(
            RELATIONS,
            &[&&schemas[..], &&tables[..], &&indexes[..], &"walhook"],
        )
        .await
        .unwrap();

    let found: Vec<(&str, bool)> = found
        .iter()
        .map(|row| (row.get("name"), row.get("may_trigger")))
        .collect();
    assert_eq!(found, [("payment", false), ("outlet", true)]);
}
