//! Encodings, column types and ids that platforms have: served, or refused by name before anything
//! is touched.

use std::process::Output;

use walhook::postgres;

use crate::support::{TestApp, eventually, one, run_sql};

/// A database with another encoding, on the app's server. Returns its URL.
async fn database(app: &TestApp, encoding: &str) -> String {
    let name = format!("{}_{}", app.name, encoding.to_lowercase());
    let client = postgres::connect(&app.server.url("postgres"))
        .await
        .unwrap();
    let create = format!(
        "create database {name} encoding '{encoding}' lc_collate 'C' lc_ctype 'C' template template0"
    );

    run_sql(&client, &create).await;
    app.server.url(&name)
}

fn error_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn a_primary_in_latin1_is_served() {
    for mode in ["wal", "trigger"] {
        let mut app = TestApp::prepare().await;
        let source = database(&app, "LATIN1").await;
        let store = app.store_url.clone();

        app.use_databases(&source, &store).await;
        app.set("source.capture", mode);

        let platform = app.platform().await;
        let label = platform.label(platform.user(&[]).await).await;
        let release = platform.release(label).await;

        app.setup().await;
        app.run().await;
        platform
            .execute(
                "update release set title = 'Été', review_status = 'approved' where id = $1",
                &[&release],
            )
            .await;

        app.wait_for_events(1).await;
        let title = "select data->>'release_title' from walhook.event";
        let title: String = one(&app.store().await, title).await;

        assert_eq!(title, "Été", "{mode}");
        app.kill().await;
    }
}

#[tokio::test]
async fn encodings_that_cannot_have_or_give_every_text_are_refused() {
    let mut app = TestApp::prepare().await;
    let source = app.source_url.clone();
    let store = app.store_url.clone();
    let latin = database(&app, "LATIN1").await;

    app.set("store.url", &latin);
    let error = error_of(&app.walhook(&["setup"]).await);

    assert!(
        error.contains("LATIN1: create another database with `encoding 'UTF8'"),
        "{error}"
    );
    let check = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();

    assert!(
        check.contains("fail  store encoding: LATIN1; create another database"),
        "{check}"
    );

    let ascii = database(&app, "SQL_ASCII").await;
    app.use_databases(&ascii, &store).await;

    let error = error_of(&app.walhook(&["setup"]).await);
    assert!(error.contains("primary encoding: SQL_ASCII"), "{error}");
    app.set("source.url", &source);
    app.setup().await;
}

#[tokio::test]
async fn a_column_whose_type_has_no_ids_or_times_is_named_by_setup_and_check() {
    for ledger in ["true", "false"] {
        let mut app = TestApp::prepare().await;
        app.set("source.ledger", ledger);

        let platform = app.platform().await;
        let changed = "alter table track drop constraint track_release_id_fkey; alter table track alter release_id type uuid using null;
            alter table preflight_report alter generated_at type boolean using null";

        platform.transaction(changed).await;
        let error = error_of(&app.walhook(&["setup"]).await);
        let check = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
        let named = [
            "table public.track: release_id is uuid, but must have integers; compute it in source.tables.track.computed.release_id",
            "table public.preflight_report: generated_at is boolean, but must have points in time; name another column in \
             source.tables.preflight_report.columns.generated_at",
        ];

        assert!(
            named
                .iter()
                .all(|named| error.contains(named) && check.contains(named)),
            "{error}{check}"
        );

        app.set("source.tables.track.computed.release_id", "null::int");
        platform
            .transaction("alter table preflight_report alter generated_at type text")
            .await;
        app.setup().await;
    }
}

#[tokio::test]
async fn rows_whose_ids_are_no_integers_are_named_and_hold_up_neither_setup_nor_repair() {
    for mode in ["wal", "trigger"] {
        let mut app = TestApp::prepare().await;
        app.set("source.capture", mode);

        let platform = app.platform().await;
        let label = platform.label(platform.user(&[]).await).await;
        let release = platform.release(label).await;

        let texts = format!(
            "alter table distro_queue alter id drop identity if exists, alter id type text;
             alter table release drop constraint release_pkey cascade, alter id drop identity if exists, alter id type text;
             insert into release (id, label_id, title, review_status, delivery_status)
             values ('abc', {label}, 'T', 'draft', 'distributed'), ('0042', {label}, 'T', 'draft', 'pending');
             insert into distro_queue (id, release_id, status) select 'x' || n, {release}, 'batched' from generate_series(1, 6000) as n"
        );

        platform.transaction(&texts).await;
        let setup = app.walhook(&["setup"]).await;
        let text = String::from_utf8(setup.stdout).unwrap();
        let error = String::from_utf8(setup.stderr).unwrap();

        assert!(
            setup.status.success() && text.contains("1 rows are in the ledger"),
            "{text}{error}"
        );
        let skipped = |table: &str, count: usize| {
            let named = [format!("table={table} "), format!("skipped={count} ")];
            error
                .lines()
                .any(|line| named.iter().all(|named| line.contains(named)))
        };

        assert!(
            skipped("release", 2) && skipped("distro_queue", 6000),
            "{error}"
        );

        app.run().await;
        platform
            .transaction("update release set review_status = 'approved'")
            .await;
        app.wait_for_events(1).await;

        eventually("the other two", async || {
            let unrouted = app
                .walhook_ok(&["unrouted", "list", "--reason", "malformed_row"])
                .await;
            (unrouted.lines().count() == 2).then_some(())
        })
        .await;

        app.stop().await;
        let repaired = app.walhook(&["repair", "--force", "--dry-run"]).await;
        let text = String::from_utf8(repaired.stdout).unwrap();
        let error = String::from_utf8(repaired.stderr).unwrap();

        assert!(
            repaired.status.success() && error.contains("example=\"0042\""),
            "{text}{error}"
        );
    }
}
