//! Every statement in sql/store is one that the migrated store accepts.

mod support;

use std::path::Path;

use support::TestApp;

#[tokio::test]
async fn every_statement_of_the_store_prepares() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url).await.expect("migrations apply");
    let client = app.store().await;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/store");
    let mut prepared = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let statement = std::fs::read_to_string(&path).unwrap();
        // A template becomes a statement only with its names filled in.
        if statement.contains('{') {
            continue;
        }
        if let Err(error) = client.prepare(&statement).await {
            panic!("{}: {}", path.display(), walhook::postgres::describe(&error));
        }
        prepared += 1;
    }
    assert!(prepared > 10, "{prepared}");
}

#[tokio::test]
async fn migrating_twice_changes_nothing_and_concurrent_migrations_wait_for_each_other() {
    let app = TestApp::prepare().await;
    let migrate = || walhook::store::migrate::migrate(&app.store_url);
    let (one, other) = tokio::join!(migrate(), migrate());
    let mut applied = [one.unwrap().len(), other.unwrap().len()];
    applied.sort_unstable();
    assert_eq!(applied[0], 0, "one of the two found everything applied");
    assert!(applied[1] > 0);
    assert!(migrate().await.unwrap().is_empty());
}

#[tokio::test]
async fn daily_partitions_are_made_ahead_and_dropped_when_their_days_are_over() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url).await.unwrap();
    let store = walhook::store::Store::open(&app.store_url, 2).unwrap();
    let day = |text: &str| text.parse::<jiff::civil::Date>().unwrap();
    let first = store.maintain_partitions(day("2026-03-01"), 30).await.unwrap();
    assert_eq!(first.created.len(), 15, "three tables, yesterday to three days ahead: {first:?}");
    assert!(first.created.contains(&"event_20260228".to_owned()), "{first:?}");
    let again = store.maintain_partitions(day("2026-03-01"), 30).await.unwrap();
    assert_eq!((again.created.len(), again.dropped.len()), (0, 0), "{again:?}");
    // 30 days after 1 March, that day is the oldest that is kept.
    let later = store.maintain_partitions(day("2026-03-31"), 30).await.unwrap();
    assert_eq!(later.dropped.len(), 3, "{later:?}");
    assert!(later.dropped.contains(&"attempt_20260228".to_owned()), "{later:?}");
}
