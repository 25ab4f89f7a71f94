//! The feed's cursors when the mode of capture changes.

use serde_json::Value;

use super::by_triggers;
use crate::support::{Api, TestApp};

/// Reads pages of the feed until at least `wanted` events have been seen: the last page may have
/// one more.
async fn read(
    app: &mut TestApp,
    token: &str,
    after: &mut String,
    wanted: usize,
    seen: &mut Vec<String>,
) {
    let api = Api::new(&app.sidecar().api_url, token);

    while seen.len() < wanted {
        let page = api
            .get(&format!("/events?limit=2&wait=30&after={after}"))
            .await
            .expect(200)
            .json();
        let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
        seen.extend(page["data"].as_array().unwrap().iter().map(id));
        *after = page["next_cursor"].as_str().unwrap().to_owned();
    }
}

#[tokio::test]
async fn a_cursor_survives_restarts_and_switches_of_capture() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let token = app.token(&user.to_string()).await;
    let mut after = "earliest".to_owned();
    let mut seen = Vec::new();
    let pay = async || {
        for _ in 0..3 {
            platform.payment(user, "ready").await;
        }
    };

    pay().await;
    read(&mut app, &token, &mut after, 2, &mut seen).await;
    app.kill().await;
    pay().await;
    app.run().await;
    read(&mut app, &token, &mut after, 5, &mut seen).await;
    assert!(app.stop().await.success());
    by_triggers(&mut app);
    app.setup().await;
    pay().await;
    app.run().await;
    read(&mut app, &token, &mut after, 8, &mut seen).await;
    assert!(app.stop().await.success());
    app.set("source.capture", "wal");
    app.setup().await;
    pay().await;
    app.run().await;
    read(&mut app, &token, &mut after, 12, &mut seen).await;

    let sql = "select id::text from walhook.event order by sequence";
    let stored: Vec<String> = app
        .store()
        .await
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();

    assert_eq!((seen.len(), seen), (12, stored));
}
