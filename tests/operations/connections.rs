//! Connections to the store that wait in the server, where they stay after their client has given them up.

use tokio_postgres::Client;
use walhook::private_postgres::{Options, PrivatePostgres};
use walhook::store::{Store, StoreError};

use crate::support::eventually;

const CONNECTIONS: usize = 3;

/// Sends a statement on so many new connections that all of them wait.
async fn wait_with(statement: &'static str, url: &str, watching: &Client, event: &str) {
    for _ in 0..CONNECTIONS {
        let client = walhook::postgres::connect(url).await.unwrap();
        tokio::spawn(async move { client.batch_execute(statement).await });
    }
    let waiting = "select count(*) from pg_stat_activity where wait_event = $1";
    eventually("all to wait", async || {
        let found: i64 = watching.query_one(waiting, &[&event]).await.unwrap().get(0);
        (found == CONNECTIONS as i64).then_some(())
    })
    .await;
}

async fn assert_refused(url: &str) {
    let error = Store::open_for_service(url, CONNECTIONS).unwrap().ping().await.unwrap_err();
    assert!(matches!(&error, StoreError::Pool(reason) if reason.starts_with("3 already wait")), "{error}");
    assert!(error.is_outage());
}

async fn until_accepted(url: &str) {
    let store = Store::open_for_service(url, CONNECTIONS).unwrap();
    eventually("a connection", async || store.ping().await.ok()).await;
}

#[tokio::test]
async fn no_more_are_opened_while_as_many_as_the_pool_has_wait_in_the_server() {
    let server = PrivatePostgres::start(Options::default()).await.unwrap();
    let url = server.url("postgres");
    let holder = walhook::postgres::connect(&url).await.unwrap();
    holder.batch_execute("create table entry (id bigint)").await.unwrap();
    holder.batch_execute("begin; lock table entry").await.unwrap();
    wait_with("insert into entry values (1)", &url, &holder, "relation").await;
    assert_refused(&url).await;
    holder.batch_execute("commit").await.unwrap();
    until_accepted(&url).await;

    holder.batch_execute("alter system set synchronous_standby_names = 'absent'").await.unwrap();
    holder.batch_execute("select pg_reload_conf()").await.unwrap();
    wait_with("insert into entry values (1)", &url, &holder, "SyncRep").await;
    assert_refused(&url).await;
    holder.batch_execute("alter system reset synchronous_standby_names").await.unwrap();
    holder.batch_execute("select pg_reload_conf()").await.unwrap();
    until_accepted(&url).await;
}
