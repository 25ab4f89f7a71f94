//! Capture by triggers: the real binary on a real Postgres.

mod crash;
mod events;
mod failover;
mod failures;
mod feed;
mod floors;
mod generated;
mod lease;
mod limits;
mod locks;
mod pooler;
mod removal;
mod repair;
mod statements;

use crate::support::TestApp;

/// Prepares an app for capture by triggers. No command has run yet.
async fn prepared() -> TestApp {
    let mut app = TestApp::prepare().await;
    by_triggers(&mut app);
    app
}

fn by_triggers(app: &mut TestApp) {
    app.set("source.capture", "trigger")
        .set("source.poll_interval", "20ms")
        .set("source.heartbeat", "300ms");
}

async fn number(client: &tokio_postgres::Client, query: &str) -> i64 {
    client
        .query_one(query, &[])
        .await
        .unwrap_or_else(|error| panic!("{query}: {error:?}"))
        .get(0)
}

/// Returns the kinds and data of the stored events, in the order of their ordinals.
async fn events(app: &TestApp) -> Vec<(String, serde_json::Value)> {
    let query = "select kind, data::text from walhook.event order by ordinal, kind";
    let rows = app.store().await.query(query, &[]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap()))
        .collect()
}
