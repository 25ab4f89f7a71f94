//! The changes that triggers capture, and those that they ignore.

use walhook::postgres;
use walhook::private_postgres::Options;

use super::{by_triggers, number, prepared};
use crate::support::{TestApp, eventually, one, run_sql};

#[tokio::test]
async fn triggers_need_no_superuser_no_logical_wal_level_and_no_ownership_of_the_tables() {
    let settings = [("wal_level", "replica")];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    by_triggers(&mut app);
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let grants = format!(
        "create role walhook login; grant create on database {0}_platform to walhook; grant create on database {0}_store to walhook;
         grant select, trigger on all tables in schema public to walhook;
         create role app login; grant all on all tables in schema public to app",
        app.name
    );

    run_sql(&platform.client, &grants).await;

    for (key, url) in [
        ("source.url", app.source_url.clone()),
        ("store.url", app.store_url.clone()),
    ] {
        app.set(key, &url.replace("postgres@", "walhook@"));
    }

    let catalog =
        "select string_agg(tgrelid::regclass || tgname, ',' order by tgrelid, tgname) || count(*)
        from pg_trigger where not tgisinternal";
    let before: Option<String> = one(&platform.client, catalog).await;

    // A DBA runs the printed script.
    let script = app.walhook_ok(&["setup", "--print"]).await;
    platform
        .client
        .batch_execute(&script)
        .await
        .unwrap_or_else(|error| panic!("{}\n{script}", postgres::describe(&error)));
    app.setup().await;
    app.run().await;

    // The application's role has no privileges on the outbox.
    let application = postgres::connect(&app.source_url.replace("postgres@", "app@"))
        .await
        .unwrap();
    let insert = format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values (1, {user}, 'I', 1, 1, 'ready')"
    );

    run_sql(&application, &insert).await;
    app.wait_for_events(1).await;

    let check = app.walhook_ok(&["check"]).await;
    // The script lets the triggers fire always, which the role could not.
    assert!(
        check.contains("ok    triggers of public.release: exist"),
        "{check}"
    );

    assert!(app.stop().await.success());
    app.walhook_ok(&["teardown", "--yes"]).await;

    let after: Option<String> = one(&platform.client, catalog).await;

    assert_eq!(before, after);

    assert_eq!(
        number(
            &platform.client,
            "select count(*) from pg_namespace where nspname = 'walhook_capture'"
        )
        .await,
        0
    );
}

#[tokio::test]
async fn a_statement_on_many_rows_raises_all_events_in_bounded_memory() {
    /// Many times the number of changes that are in memory at once.
    const ROWS: i64 = 60_000;
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let fill = "insert into distro_queue (id, release_id, status) select n, $1, 'scheduled' from generate_series(1, $2::bigint) n";

    platform.execute(fill, &[&release, &ROWS]).await;
    app.setup().await;
    app.run().await;
    platform
        .execute("update distro_queue set status = 'batched'", &[])
        .await;

    let metric = "walhook_events_total{event=\"distribution.outlet.status_changed\"}";
    let sidecar = app.sidecar();
    let mut stored = 0.0;
    while stored < ROWS as f64 {
        // Progress is the signal; how fast it goes does not matter here.
        let more = async || sidecar.metric(metric).await.filter(|now| *now > stored);
        stored = eventually("more events than before", more).await;
    }

    app.wait_for_events(ROWS as usize).await;
    let peak = app.sidecar().peak_memory_kib();
    println!("peak resident memory: {peak} KiB");
    assert!(peak < 150 * 1024, "{peak} KiB");
}
