//! Every statement of the store is valid in the migrated store.

use crate::support::plan::plans;
use crate::support::{TestApp, run_sql};

#[tokio::test]
async fn every_statement_of_the_store_prepares() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .expect("migrations apply");

    let client = app.store().await;

    for (name, statement) in walhook::sql::store::ALL {
        // Templates are not statements until their names are filled in, and a script is several.
        if statement.contains('{') || statement.contains(";\n") {
            continue;
        }

        if let Err(error) = client.prepare(statement).await {
            panic!("{name}: {}", walhook::postgres::describe(&error));
        }
    }
}

#[tokio::test]
async fn migrating_twice_changes_nothing_and_concurrent_migrations_are_serialized() {
    let app = TestApp::prepare().await;
    let migrate = || walhook::store::migrate::migrate(&app.store_url);
    let (one, other) = tokio::join!(migrate(), migrate());
    let mut applied = [one.unwrap().len(), other.unwrap().len()];

    applied.sort_unstable();
    assert_eq!(applied[0], 0, "one of the two applies nothing");
    assert!(applied[1] > 0);
    assert!(migrate().await.unwrap().is_empty());
}

#[tokio::test]
async fn daily_partitions_are_created_ahead_and_dropped_when_they_are_too_old() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let store = walhook::store::Store::open(&app.store_url, 2).unwrap();
    let day = |text: &str| text.parse::<jiff::civil::Date>().unwrap();
    let first = walhook::store::partitions::maintain(&store, day("2026-03-01"), 30)
        .await
        .unwrap();

    assert_eq!(
        first.created.len(),
        15,
        "three tables, yesterday to three days ahead: {first:?}"
    );
    assert!(
        first.created.contains(&"event_20260228".to_owned()),
        "{first:?}"
    );

    let again = walhook::store::partitions::maintain(&store, day("2026-03-01"), 30)
        .await
        .unwrap();
    assert_eq!(
        (again.created.len(), again.dropped.len()),
        (0, 0),
        "{again:?}"
    );

    // 30 days after 1 March, that day is the oldest that is kept.
    let later = walhook::store::partitions::maintain(&store, day("2026-03-31"), 30)
        .await
        .unwrap();
    assert_eq!(later.dropped.len(), 3, "{later:?}");
    assert!(
        later.dropped.contains(&"attempt_20260228".to_owned()),
        "{later:?}"
    );
}

/// While no deliveries are pending, the statistics show an empty table, and plans that are made
/// then are kept for a later backlog: none may read all of it to find a batch.
#[tokio::test]
async fn a_batch_is_found_by_its_ids_even_if_the_plan_was_made_for_an_empty_table() {
    const BY_INDEX: &str = walhook::sql::store::server::PLAN_BY_INDEX;

    let statements = [
        (
            "fence",
            walhook::sql::store::delivery::FENCE,
            "uuid[], uuid[], smallint[]",
            "'{}', '{}', '{}'",
        ),
        (
            "end_held",
            walhook::sql::store::delivery::END_HELD,
            "uuid[], uuid[], smallint[]",
            "'{}', '{}', '{}'",
        ),
        ("end", walhook::sql::store::delivery::END, "uuid[]", "'{}'"),
        (
            "release",
            walhook::sql::store::delivery::RELEASE,
            "uuid[], uuid[]",
            "'{}', '{}'",
        ),
        (
            "remove_orphans",
            walhook::sql::store::delivery::REMOVE_ORPHANS,
            "uuid[]",
            "'{}'",
        ),
    ];

    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let client = app.store().await;

    for deliveries in [0, 20] {
        let fill = format!(
            "insert into walhook.delivery (id, webhook_id, event_id, due_at)
             select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now() from generate_series(1, {deliveries})"
        );
        run_sql(&client, &fill).await;
        run_sql(&client, "vacuum analyze walhook.delivery").await;
        run_sql(&client, "begin").await;
        run_sql(&client, BY_INDEX).await;

        for (name, statement, types, arguments) in statements {
            let [_, generic] = plans(&client, statement, types, arguments).await;
            let mut lines = generic
                .lines()
                .skip_while(|line| !line.contains("Index Scan using delivery_pkey"));
            let searched = lines
                .nth(1)
                .is_some_and(|line| line.contains("Index Cond: (id = ANY ("));

            assert!(searched, "{name} with {deliveries} deliveries:\n{generic}");
            assert!(
                !generic.contains("Seq Scan on delivery"),
                "{name} with {deliveries} deliveries:\n{generic}"
            );
        }

        run_sql(&client, "rollback").await;
    }
}
