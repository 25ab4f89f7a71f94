//! Failures of the outbox: the application's transactions commit regardless, and lost changes are
//! reported as a gap.

use tokio_postgres::Client;

use super::{by_triggers, number, prepared};
use crate::publication::Scene;
use crate::support::{TestApp, eventually, metrics, one, run_sql};
use crate::wait_until_unready;

const INSERT: &str =
    "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values";

async fn running() -> (TestApp, Client, i64) {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    app.setup().await;
    app.run().await;

    (app, platform.client, user)
}

/// Waits until the gap is recorded and the process is not ready. Returns the gap's detail.
async fn gap(app: &mut TestApp, reason: &str) -> String {
    let store = app.store().await;
    let query = "select detail from walhook.gap where reason = $1 and repaired_at is null";
    let found = eventually(&format!("a gap: {reason}"), async || {
        store.query_opt(query, &[&reason]).await.unwrap()
    })
    .await;
    let url = app.sidecar().metrics_url.clone();

    eventually("the process not to be ready", async || {
        let ready = reqwest::get(format!("{url}/readyz")).await.ok()?;
        (ready.status() == 503).then_some(())
    })
    .await;
    assert!(!metrics(&url).await.contains("walhook_gaps_open 0"));

    found.get(0)
}

#[tokio::test]
async fn failures_of_the_outbox_abort_no_transaction_and_are_reported() {
    // Simulates a full disk for the outbox alone, with the server's error code.
    let full = "create function no_space() returns trigger language plpgsql as $$ begin
            raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
        create trigger no_space before insert on walhook_capture.outbox for each row execute function no_space()";
    let cases = [
        (
            "revoke insert on walhook_capture.outbox from {owner}",
            "trigger_failed",
            "42501",
        ),
        (full, "trigger_failed", "53100"),
        ("drop table walhook_capture.outbox", "outbox_lost", "outbox"),
        (
            "truncate walhook_capture.outbox",
            "trigger_failed",
            "emptied by postgres",
        ),
    ];
    for (harm, reason, detail) in cases {
        let (mut app, client, user) = running_as_owner().await;
        client
            .batch_execute(&harm.replace("{owner}", &format!("owner_{}", app.name)))
            .await
            .unwrap();
        run_sql(
            &client,
            &format!("{INSERT} (1, {user}, 'I', 1, 1, 'ready')"),
        )
        .await;
        assert_eq!(
            number(&client, "select count(*) from payment").await,
            1,
            "{harm}"
        );

        let recorded = gap(&mut app, reason).await;
        assert!(recorded.contains(detail), "{harm}: {recorded}");
    }
}

/// Starts a sidecar whose outbox is owned by a role that is not a superuser: a superuser has every
/// privilege.
async fn running_as_owner() -> (TestApp, Client, i64) {
    let mut app = TestApp::prepare().await;
    by_triggers(&mut app);

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    app.setup().await;
    let owner = format!("owner_{}", app.name);
    let give = format!(
        "create role {owner} login; alter schema walhook_capture owner to {owner};
         alter table walhook_capture.outbox owner to {owner}; alter table walhook_capture.progress owner to {owner};
         alter table walhook_capture.failure owner to {owner}; alter sequence walhook_capture.failures owner to {owner};
         do $$ declare name text; begin
            for name in select oid::regprocedure from pg_proc where pronamespace = 'walhook_capture'::regnamespace loop
                execute format('alter function %s owner to {owner}', name);
            end loop;
         end $$"
    );

    run_sql(&platform.client, &give).await;
    app.run().await;

    (app, platform.client, user)
}

#[tokio::test]
async fn a_renamed_column_is_reported_by_name_and_other_tables_are_still_captured() {
    let (mut app, client, user) = running().await;
    run_sql(
        &client,
        "alter table release rename column cat to catalogue",
    )
    .await;

    let statements = format!(
        "insert into label (id, user_id, name) values (1, {user}, 'L');
         insert into release (id, label_id, review_status, delivery_status) values (1, 1, 'draft', 'pending')"
    );
    run_sql(&client, &statements).await;
    assert_eq!(number(&client, "select count(*) from release").await, 1);

    let recorded = gap(&mut app, "trigger_failed").await;
    assert!(
        recorded.contains("INSERT of release") && recorded.contains("cat"),
        "{recorded}"
    );
    wait_until_unready(app.sidecar(), "capture: table public.release: lacks cat").await;
    run_sql(
        &client,
        &format!("{INSERT} (1, {user}, 'I', 1, 1, 'ready')"),
    )
    .await;
    app.wait_for_events(1).await;

    let check = app.walhook(&["check"]).await;
    let check = String::from_utf8(check.stdout).unwrap();

    assert!(
        check.contains("fail  trigger failures: 1, the last at INSERT of release"),
        "{check}"
    );

    // After a change of the mapping, setup must replace the triggers' functions.
    assert!(app.stop().await.success());
    app.set("source.tables.release.columns.cat", "catalogue");

    let refused = app.walhook(&["run"]).await;
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("run `walhook setup`"),
        "{refused:?}"
    );
    app.setup().await;

    let repaired = app.walhook_ok(&["repair"]).await;
    assert!(
        repaired.contains("gap trigger_failed: ") && !repaired.contains("gap trigger_missing: "),
        "{repaired}"
    );
    app.run().await;
}

#[tokio::test]
async fn a_disabled_trigger_is_reported() {
    let (mut app, client, _) = running().await;
    run_sql(
        &client,
        "alter table payment disable trigger walhook_insert",
    )
    .await;

    let recorded = gap(&mut app, "trigger_missing").await;
    assert!(
        recorded.contains("triggers of public.payment: disabled: walhook_insert of public.payment"),
        "{recorded}"
    );
    app.setup().await;

    let state =
        "select count(*) from pg_trigger where tgname = 'walhook_insert' and tgenabled <> 'A'";
    assert_eq!(number(&client, state).await, 0);
}

/// As scripts for bulk updates do.
#[tokio::test]
async fn a_trigger_that_was_disabled_for_a_while_is_reported_before_the_next_event_is_routed() {
    const GAP: &str = "gap: changes were lost (trigger_missing)";
    let mut scene = Scene::start(prepared().await).await;
    let unnoticed = format!(
        "alter table label disable trigger user; {}; alter table label enable always trigger walhook_insert;
         alter table label enable always trigger walhook_update; alter table label enable always trigger walhook_delete;
         alter table label enable always trigger walhook_truncate",
        scene.transfer()
    );

    scene.platform.transaction(&unnoticed).await;
    scene
        .platform
        .set_distribution_status(scene.entry, "batched")
        .await;
    scene.owner.wait_for(1).await;
    assert_eq!(
        scene.former.requests().len(),
        1,
        "events of the former owner"
    );
    wait_until_unready(scene.app.sidecar(), GAP).await;
    assert!(scene.app.stop().await.success());
    scene.app.walhook_ok(&["repair"]).await;

    // Also while no process runs, and setup is run before the next one starts.
    scene.app.run().await;
    assert!(scene.app.stop().await.success());
    scene.platform.transaction(&unnoticed).await;

    let done = scene.app.walhook_ok(&["setup"]).await;
    assert!(
        done.contains("disabled, enabled or dropped since setup: walhook_"),
        "{done}"
    );
    assert_eq!(
        scene.app.walhook_ok(&["setup"]).await.trim(),
        "everything is set up"
    );

    let sidecar = scene.app.spawn(&[]);
    wait_until_unready(&sidecar, GAP).await;
    assert!(sidecar.stop().await.success());
}

#[tokio::test]
async fn a_cancelled_statement_stays_cancelled() {
    let (app, client, user) = running().await;
    let slow =
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; end $$;
        create trigger slow before insert on walhook_capture.outbox for each row execute function slow()";

    run_sql(&client, slow).await;
    let statement =
        format!("set statement_timeout = '200ms'; {INSERT} (1, {user}, 'I', 1, 1, 'ready')");
    let error = client.batch_execute(&statement).await.unwrap_err();

    assert_eq!(
        error.code(),
        Some(&tokio_postgres::error::SqlState::QUERY_CANCELED)
    );
    assert_eq!(number(&client, "select count(*) from payment").await, 0);

    let called: bool = one(&client, "select is_called from walhook_capture.failures").await;
    assert!(!called, "nothing failed");
    drop(app);
}

#[tokio::test]
async fn a_table_that_is_dropped_and_created_again_is_named_and_a_gap_once_it_has_rows() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    app.setup().await;
    app.run().await;

    let gaps = "select count(*) from walhook.gap";
    let payment = |id: i64| format!("{INSERT} ({id}, {user}, 'I', 1, 1, 'ready')");

    platform.transaction(&payment(1)).await;
    app.wait_for_events(1).await;
    platform
        .transaction("create table copy (like payment including all); drop table payment")
        .await;
    wait_until_unready(app.sidecar(), "capture: table public.payment: missing").await;
    platform
        .transaction("alter table copy rename to payment")
        .await;

    let named = "triggers of public.payment: missing: walhook_insert of public.payment";
    wait_until_unready(app.sidecar(), &format!("capture: {named}")).await;

    let check = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    assert!(check.contains(named), "{check}");

    // Nothing was written to it yet.
    app.setup().await;
    app.sidecar().wait_until_ready().await;
    platform.transaction(&payment(2)).await;
    app.wait_for_events(2).await;
    assert_eq!(number(&app.store().await, gaps).await, 0);

    platform
        .transaction(&format!(
            "alter table payment rename to old; create table payment (like old including all); {}",
            payment(3)
        ))
        .await;

    assert!(gap(&mut app, "trigger_missing").await.contains(named));
    assert!(app.stop().await.success());
    app.walhook_ok(&["repair"]).await;
    app.run().await;
    app.wait_for_events(3).await;

    // Also if setup is the first to see it.
    assert!(app.stop().await.success());
    platform
        .transaction(&format!(
            "drop table payment; create table payment (like old including all); {}",
            payment(4)
        ))
        .await;

    let done = app.walhook_ok(&["setup"]).await;
    assert!(done.contains(named), "{done}");
    app.walhook_ok(&["repair"]).await;
    app.wait_for_events(4).await;
}
