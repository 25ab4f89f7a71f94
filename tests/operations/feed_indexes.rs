//! The feed after an upgrade: maintenance builds the indexes of partitions that are older than the
//! feed.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio_postgres::Client;
use walhook::store::partition_indexes::Build;
use walhook::store::{Store, migrate};

use crate::support::{TestApp, eventually};

const FEED: &str = include_str!("../../migrations/V15__event_feed.sql");
const ORDER: &str = include_str!("../../migrations/V16__event_order.sql");
/// The advisory lock of maintenance.
const MAINTENANCE: i64 = 8_097_873_612_312_603_999;

/// Repeats what the migrations do to a store that has partitions.
async fn upgrade(client: &Client) {
    let (_, feed_indexes) = FEED
        .split_once("-- Without `only`")
        .expect("the migration's indexes");
    let statements =
        format!("drop index walhook.event_feed, walhook.event_order; --{feed_indexes}; {ORDER}");
    client.batch_execute(&statements).await.unwrap();
}

async fn number(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// The number of parent indexes that Postgres considers complete.
const VALID: &str = "select count(*) from pg_index where indisvalid
                     and indexrelid in ('walhook.event_feed'::regclass, 'walhook.event_order'::regclass)";

#[tokio::test]
async fn indexes_of_older_partitions_are_built_and_the_feed_waits_for_them() {
    let mut app = TestApp::prepare().await;
    app.setup().await;

    let store = Store::open(&app.store_url, 3).unwrap();
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();

    walhook::partitions::maintain(&store, today, 30)
        .await
        .unwrap();
    let client = app.store().await;

    assert_eq!(number(&client, VALID).await, 2, "a fresh store is complete");

    assert!(
        walhook::partitions::build_indexes(&store)
            .await
            .unwrap()
            .built
            .is_empty()
    );

    upgrade(&client).await;
    assert_eq!(number(&client, VALID).await, 0);

    // A new partition gets the indexes although the others lack them.
    walhook::partitions::maintain(&store, today.tomorrow().unwrap(), 30)
        .await
        .unwrap();
    assert_eq!(store.missing_indexes().await.unwrap().len(), 2 * 5);

    // An interrupted build has left an invalid index.
    let partition = format!("event_{}", today.strftime("%Y%m%d"));
    let left_over = format!(
        "create index {partition}_feed on walhook.{partition} (user_id, sequence) where sequence is not null;
         update pg_index set indisvalid = false where indexrelid = 'walhook.{partition}_feed'::regclass"
    );

    client.batch_execute(&left_over).await.unwrap();
    let other = app.store().await;

    other
        .batch_execute(&format!(
            "begin; select pg_advisory_xact_lock({MAINTENANCE})"
        ))
        .await
        .unwrap();

    let done = walhook::partitions::build_indexes(&store).await.unwrap();
    assert_eq!(
        (done.built.len(), done.left.len()),
        (0, 2 * 5),
        "another replica maintains: {done:?}"
    );
    app.run().await;

    let user = app.platform().await.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let problem = api.get("/events").await.expect(503);

    assert_eq!(
        (
            problem.header("retry-after"),
            problem.json()["type"].as_str()
        ),
        (Some("30"), Some("/problems/feed-in-preparation"))
    );

    app.platform().await.payment(user, "ready").await;
    app.wait_for_events(1).await;

    other.batch_execute("commit").await.unwrap();
    let done = walhook::partitions::build_indexes(&store).await.unwrap();

    assert_eq!(
        (done.built.len(), done.failed.len()),
        (2 * 5, 0),
        "{done:?}"
    );
    let found = api.get("/events").await.expect(200).json();

    assert_eq!(found["data"].as_array().unwrap().len(), 1);
    assert_eq!(number(&client, VALID).await, 2);

    // Partitions of later days get the indexes when they are made.
    walhook::partitions::maintain(
        &store,
        today.checked_add(jiff::Span::new().days(2)).unwrap(),
        30,
    )
    .await
    .unwrap();

    assert!(
        walhook::partitions::build_indexes(&store)
            .await
            .unwrap()
            .built
            .is_empty()
    );

    assert_eq!(number(&client, VALID).await, 2);
}

/// The server ends a transaction that waits too long for its next statement, and releases its
/// locks. The one that holds the lock of maintenance waits for the build.
#[tokio::test]
async fn a_build_keeps_its_lock_for_longer_than_other_transactions_may_be_idle() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let separator = if app.store_url.contains('?') {
        '&'
    } else {
        '?'
    };

    // The pool of a running process has such a limit, of 35 s.
    let limited = format!(
        "{}{separator}options=-c%20idle_in_transaction_session_timeout%3D5s",
        app.store_url
    );
    let store = Store::open(&limited, 3).unwrap();
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();

    walhook::partitions::maintain(&store, today, 30)
        .await
        .unwrap();
    let client = app.store().await;

    upgrade(&client).await;
    let missing = store.missing_indexes().await.unwrap();

    // A build waits for the transactions that write to the partition.
    let writer = app.store().await;
    writer
        .batch_execute("begin; lock table walhook.event in row exclusive mode")
        .await
        .unwrap();

    let build = tokio::spawn({
        let store = store.clone();
        let missing = missing[0].clone();
        async move { store.build_index(&missing).await }
    });

    let blocked = "select count(*) from pg_stat_activity
                   where datname = current_database() and query like 'create index concurrently%' and wait_event_type = 'Lock'";
    eventually("a build that waits", async || {
        (number(&client, blocked).await == 1).then_some(())
    })
    .await;

    let holder = "select activity.state_change < clock_timestamp() - interval '7 s' from pg_locks
                  join pg_stat_activity as activity using (pid)
                  where locktype = 'advisory' and granted and activity.datname = current_database()";
    eventually(
        "a transaction that is idle for longer than the limit",
        async || {
            let found = client.query_opt(holder, &[]).await.unwrap();
            found
                .expect("the lock is held during the build")
                .get::<_, bool>(0)
                .then_some(())
        },
    )
    .await;

    let other = Store::open(&app.store_url, 1).unwrap();
    assert_eq!(
        other.build_index(&missing[1]).await.unwrap(),
        Build::NotNeeded
    );
    writer.batch_execute("commit").await.unwrap();
    assert_eq!(build.await.unwrap().unwrap(), Build::Built);
    assert_eq!(
        store.missing_indexes().await.unwrap().len(),
        missing.len() - 1
    );
}

#[tokio::test]
async fn a_running_process_prepares_the_feed_by_itself() {
    let mut app = TestApp::prepare().await;
    app.setup().await;

    let store = Store::open(&app.store_url, 1).unwrap();
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();

    walhook::partitions::maintain(&store, today, 30)
        .await
        .unwrap();
    assert!(migrate::migrate(&app.store_url).await.unwrap().is_empty());
    upgrade(&app.store().await).await;
    app.run().await;

    let api = app.api("1").await;
    eventually("the feed", async || {
        (api.get("/events").await.status == 200).then_some(())
    })
    .await;
}
