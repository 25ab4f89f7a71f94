//! Connections to the store that wait in the server, where they stay after their client has given
//! them up.

use tokio::task::JoinSet;
use tokio_postgres::Client;
use walhook::private_postgres::Options;
use walhook::store::{Store, StoreError};

use crate::support::{eventually, run_sql, server};

const CONNECTIONS: usize = 3;

/// Repeats a statement on new connections until all of them wait: the server applies settings some
/// time after a reload. They end when the result is dropped.
async fn wait_with(
    statement: &'static str,
    url: &str,
    watching: &Client,
    event: &str,
) -> JoinSet<()> {
    let mut all = JoinSet::new();

    for _ in 0..CONNECTIONS {
        let client = walhook::postgres::connect(url).await.unwrap();
        all.spawn(async move { while client.batch_execute(statement).await.is_ok() {} });
    }

    let waiting = "select count(*) from pg_stat_activity where wait_event = $1";
    eventually("all to wait", async || {
        let found: i64 = watching.query_one(waiting, &[&event]).await.unwrap().get(0);
        (found == CONNECTIONS as i64).then_some(())
    })
    .await;

    all
}

async fn assert_refused(url: &str) {
    let error = Store::open_for_service(url, CONNECTIONS)
        .unwrap()
        .ping()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::Pool(reason) if reason.starts_with("3 already wait")),
        "{error}"
    );
    assert!(error.is_outage());
}

async fn until_accepted(url: &str) {
    let store = Store::open_for_service(url, CONNECTIONS).unwrap();
    eventually("a connection", async || store.ping().await.ok()).await;
}

#[tokio::test]
async fn no_more_are_opened_while_as_many_as_the_pool_has_wait_in_the_server() {
    let server = server(Options::default()).await;
    let url = server.url("postgres");
    let holder = walhook::postgres::connect(&url).await.unwrap();

    run_sql(&holder, "create table entry (id bigint)").await;
    run_sql(&holder, "begin; lock table entry").await;

    let waiting = wait_with("insert into entry values (1)", &url, &holder, "relation").await;
    assert_refused(&url).await;
    drop(waiting);
    run_sql(&holder, "commit").await;
    until_accepted(&url).await;

    run_sql(
        &holder,
        "alter system set synchronous_standby_names = 'absent'",
    )
    .await;
    run_sql(&holder, "select pg_reload_conf()").await;

    let _waiting = wait_with("insert into entry values (1)", &url, &holder, "SyncRep").await;
    assert_refused(&url).await;
    run_sql(&holder, "alter system reset synchronous_standby_names").await;
    run_sql(&holder, "select pg_reload_conf()").await;
    until_accepted(&url).await;
}
