//! Screenshots of every page: `make screenshots`.

use std::path::Path;

use base64::Engine;
use serde_json::json;

use crate::browser::{self, Browser, Kind};
use crate::fixture::Stage;

/// Inserts hourly statistics of a busy webhook ($1).
const HISTORY: &str = "
    insert into walhook.webhook_hour (webhook_id, hour, delivered, failed, permanently_failed, durations)
    select $1, hour, 20 + (80 * abs(sin(n / 7.0)))::int, case when n % 11 = 3 then 9 + n % 5 else n % 3 end, 0,
           array[0, 0, 0, 0, 0, 0, 1, 4, 9, 14 + n % 7, 9, 6, 3, 1, n % 2, n % 3]
    from generate_series(1, 700) as n, lateral (select date_trunc('hour', now()) - n * interval '1 hour' as hour) as at
    on conflict do nothing";
const COUNTERS: &str = "update walhook.webhook set success_count = 48217, failure_count = 61 where id = $1";

/// The screenshots in the README. They are cropped, because they are committed.
const KEPT: [&str; 3] = ["list-desktop", "webhook-dark", "entry-failed-phone"];
const KEPT_HEIGHT: f64 = 1_150.0;

async fn shoot(browser: &Browser, directory: &Path, name: &str) {
    let size = "const page = document.documentElement; return [page.clientWidth, page.scrollHeight, devicePixelRatio]";
    let size = browser.evaluate(size).await;
    let number = |index: usize| size[index].as_f64().expect("a number");
    let height = if KEPT.contains(&name) { number(1).min(KEPT_HEIGHT) } else { number(1) };
    let clip = json!({ "x": 0, "y": 0, "width": number(0), "height": height, "scale": 1.0 / number(2) });
    let wanted = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
    let answer = browser.devtools("Page.captureScreenshot", wanted).await;
    let png = base64::engine::general_purpose::STANDARD.decode(answer["data"].as_str().expect("a picture")).unwrap();
    std::fs::write(directory.join(format!("{name}.png")), png).unwrap();
}

#[tokio::test]
#[ignore = "takes screenshots and tests nothing: `make screenshots`"]
async fn screenshots_of_every_page() {
    if !browser::is_available() {
        return;
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&directory).unwrap();
    let stage = Stage::start().await;
    let first = stage.browser(Kind::Desktop).await;
    shoot(&first, &directory, "empty").await;
    drop(first);
    let webhook = stage.webhook_with_log("Aurora Recordings").await;
    let url = "https://hooks.papermoon.example/walhook/in?source=distribution";
    let other = json!({ "name": "Back office", "url": stage.receiver.url("/back-office"), "events": ["payment.statement_ready"] });
    let other = stage.api.post("/webhooks", other).await.expect(201).json();
    let sql = stage.app.store().await;
    let id: uuid::Uuid = webhook.parse().unwrap();
    sql.execute(HISTORY, &[&id]).await.unwrap();
    sql.execute(COUNTERS, &[&id]).await.unwrap();
    let disabled = "update walhook.webhook set active = false, disabled_at = now() - interval '3 hours', url = $2,
                    disabled_reason = '100 failures in a row: no answer within 10 s', failure_count = 100 where id = $1";
    let other: uuid::Uuid = other["id"].as_str().unwrap().parse().unwrap();
    sql.execute(disabled, &[&other, &url]).await.unwrap();
    sql.execute("update walhook.webhook set url = 'https://hooks.aurora.example/walhook' where id = $1", &[&id])
        .await
        .unwrap();
    let pages = stage.pages(&webhook).await;
    for kind in [Kind::Desktop, Kind::Phone, Kind::Dark] {
        let browser = stage.browser(kind).await;
        for (name, path) in &pages {
            browser.visit(path).await;
            shoot(&browser, &directory, &format!("{name}-{kind:?}").to_lowercase()).await;
        }
        browser.visit("/ui").await;
        browser.click("a[href$='/delete']").await;
        browser.find("dialog form").await;
        shoot(&browser, &directory, &format!("dialog-{kind:?}").to_lowercase()).await;
    }
}
