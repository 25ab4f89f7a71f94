//! The changes that triggers capture, and those that they ignore.

use walhook::postgres;
use walhook::private_postgres::Options;

use super::{by_triggers, events, number, prepared};
use crate::support::{Receiver, TestApp, eventually};

#[tokio::test]
async fn transitions_raise_events_unless_they_are_rolled_back_or_muted() {
    let mut app = prepared().await;
    let platform = app.platform().await;
    let user = platform.user(&["stream_radar"]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let before = platform.release(label).await;

    platform.set_delivery_status(before, "distributed").await;
    app.setup().await;
    assert_eq!(
        app.walhook_ok(&["setup"]).await.trim(),
        "everything is set up"
    );
    app.run().await;

    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let kinds = [
        "release.review.status_changed",
        "release.distributed",
        "payment.statement_ready",
    ];
    let (_, secret) = api.create_webhook(&receiver.url("/"), &kinds).await;

    platform
        .rolled_back(&format!(
            "update release set review_status = 'approved' where id = {release}"
        ))
        .await;
    let nested = format!(
        "update release set review_status = 'to_review' where id = {release}; savepoint s;
         update release set review_status = 'rejected' where id = {release}; rollback to s;
         update release set title = 'T' where id = {release}"
    );

    platform.transaction(&nested).await;
    platform
        .transaction(&format!(
            "set local walhook.mute = 'on'; update release set review_status = 'audit' where id = {release}"
        ))
        .await;
    platform.set_review_status(release, "approved").await;

    // Distributed before the triggers existed, so it does not count as distributed again.
    platform.set_delivery_status(before, "pending").await;
    platform.set_delivery_status(before, "distributed").await;
    platform.set_delivery_status(release, "distributed").await;
    platform.payment(user, "ready").await;

    let received = receiver.wait_for(4).await;
    app.wait_for_events(4).await;

    for request in &received {
        request.assert_sound(&secret);
    }

    let count = |event: &str| {
        received
            .iter()
            .filter(|request| request.event() == event)
            .count()
    };

    assert_eq!(
        (count(kinds[0]), count(kinds[1]), count(kinds[2])),
        (2, 1, 1)
    );
    let moves: Vec<String> = events(&app)
        .await
        .into_iter()
        .filter(|(kind, _)| kind == kinds[0])
        .map(|(_, data)| format!("{} to {}", data["previous_status"], data["new_status"]))
        .collect();

    assert_eq!(
        moves,
        [r#""draft" to "to_review""#, r#""audit" to "approved""#]
    );
    let source = app.source().await;

    eventually("the outbox to be cleared", async || {
        (number(&source, "select count(*) from walhook_capture.outbox").await == 0).then_some(())
    })
    .await;
    app.wait_for_events(4).await;

    let check = app.walhook_ok(&["check"]).await;
    assert!(
        check.contains("ok    triggers of public.release: exist, on 1 tables"),
        "{check}"
    );
}

#[tokio::test]
async fn a_changed_key_counts_as_a_new_row_and_partitions_are_captured() {
    let mut app = TestApp::prepare().await;
    by_triggers(&mut app);

    let platform = app.platform().await;
    let partitioned = "drop table distro_queue;
        create table distro_queue (id bigint, release_id bigint not null, outlet_id bigint, status text not null,
            takedown boolean not null default false, message text, primary key (id)) partition by range (id);
        create table distro_queue_low partition of distro_queue for values from (minvalue) to (1000);
        create table distro_queue_high partition of distro_queue for values from (1000) to (maxvalue) partition by hash (id);
        create table distro_queue_leaf partition of distro_queue_high for values with (modulus 1, remainder 0)";

    platform.client.batch_execute(partitioned).await.unwrap();
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;

    app.setup().await;
    app.run().await;

    // Into the table, into a leaf, and into a partition between them.
    let insert = |table: &str, id: i64| {
        format!("insert into {table} (id, release_id, status) values ({id}, {release}, 'a');")
    };

    platform
        .transaction(&format!(
            "{}{}{}",
            insert("distro_queue", 1),
            insert("distro_queue_low", 2),
            insert("distro_queue_high", 1001)
        ))
        .await;

    platform
        .transaction(
            "update distro_queue_leaf set status = 'b'; update distro_queue set message = 'm'",
        )
        .await;

    // With another key, the row counts as new.
    platform
        .transaction("update distro_queue set id = 3 where id = 2")
        .await;
    app.wait_for_events(5).await;

    let found: Vec<(i64, String)> = events(&app)
        .await
        .into_iter()
        .map(|(_, data)| {
            (
                data["distro_queue_id"].as_i64().unwrap(),
                data["previous_status"].to_string(),
            )
        })
        .collect();

    let expected = [
        (1, "null"),
        (2, "null"),
        (1001, "null"),
        (1001, "null"),
        (3, "null"),
    ];

    assert_eq!(
        found,
        expected.map(|(id, from)| (id, from.to_owned())),
        "`a` is not a recognised status"
    );
}

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

    platform.client.batch_execute(&grants).await.unwrap();

    for (key, url) in [
        ("source.url", app.source_url.clone()),
        ("store.url", app.store_url.clone()),
    ] {
        app.set(key, &url.replace("postgres@", "walhook@"));
    }

    let catalog =
        "select string_agg(tgrelid::regclass || tgname, ',' order by tgrelid, tgname) || count(*)
        from pg_trigger where not tgisinternal";
    let before: Option<String> = platform
        .client
        .query_one(catalog, &[])
        .await
        .unwrap()
        .get(0);

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

    application.batch_execute(&insert).await.unwrap();
    app.wait_for_events(1).await;

    let check = app.walhook_ok(&["check"]).await;
    assert!(
        check.contains(
            "warn  triggers of public.release: do not fire where session_replication_role"
        ),
        "{check}"
    );

    assert!(app.stop().await.success());
    app.walhook_ok(&["teardown", "--yes"]).await;

    let after: Option<String> = platform
        .client
        .query_one(catalog, &[])
        .await
        .unwrap()
        .get(0);

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
