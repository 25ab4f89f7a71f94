//! Screenshots of every page: `make screenshots`.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde_json::json;
use uuid::Uuid;

use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::questions::{Scene, ask_all};
use crate::support::TestApp;

/// Inserts hourly statistics of a busy webhook ($1).
pub const HISTORY: &str = "
    insert into walhook.webhook_hour (webhook_id, hour, delivered, failed, permanently_failed, durations)
    select $1, hour, 20 + (80 * abs(sin(n / 7.0)))::int, case when n % 11 = 3 then 9 + n % 5 else n % 3 end, 0,
           array[0, 0, 0, 0, 0, 0, 1, 4, 9, 14 + n % 7, 9, 6, 3, 1, n % 2, n % 3]
    from generate_series(1, 700) as n, lateral (select date_trunc('hour', now()) - n * interval '1 hour' as hour) as at
    on conflict do nothing";
const COUNTERS: &str =
    "update walhook.webhook set success_count = 48217, failure_count = 61 where id = $1";

/// The screenshots in the README. They are cropped, because they are committed.
const KEPT: [&str; 3] = ["list-desktop", "webhook-dark", "entry-failed-phone"];
const KEPT_HEIGHT: f64 = 1_150.0;

async fn shoot(browser: &Browser, directory: &Path, name: &str) {
    let size = "const page = document.documentElement; return [page.clientWidth, page.scrollHeight, devicePixelRatio]";
    let size = browser.evaluate(size).await;
    let number = |index: usize| size[index].as_f64().expect("a number");
    let height = if KEPT.contains(&name) {
        number(1).min(KEPT_HEIGHT)
    } else {
        number(1)
    };

    let clip =
        json!({ "x": 0, "y": 0, "width": number(0), "height": height, "scale": 1.0 / number(2) });
    let wanted = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
    let answer = browser.devtools("Page.captureScreenshot", wanted).await;
    let png = base64::engine::general_purpose::STANDARD
        .decode(answer["data"].as_str().expect("a picture"))
        .unwrap();

    std::fs::write(directory.join(format!("{name}.png")), png).unwrap();
}

fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[tokio::test]
#[ignore = "takes screenshots and tests nothing: `make screenshots`"]
async fn screenshots_of_every_page() {
    if !browser::is_available() {
        return;
    }

    let directory = directory();
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0");

    let stage = Stage::start_with(app).await;
    let first = stage.browser(Kind::Desktop).await;

    shoot(&first, &directory, "empty").await;
    drop(first);

    let webhook = stage.webhook_with_log("Aurora Recordings").await;
    let others = other_webhooks(&stage, &webhook).await;
    let mut pages = stage.pages(&webhook).await;

    pages.extend(pages_of_others(&others));

    pages.push((
        "entry-test",
        format!(
            "/ui/webhooks/{webhook}/logs/{}",
            stage.test_entry(&webhook).await
        ),
    ));

    for kind in [Kind::Desktop, Kind::Phone, Kind::Dark] {
        let browser = Browser::start(kind, &stage.origin()).await;
        shoot_all(&stage, &browser, &directory, &pages, &others).await;
    }
}

#[tokio::test]
#[ignore = "takes screenshots and tests nothing: `make screenshots`"]
async fn screenshots_of_answers() {
    if !browser::is_available() {
        return;
    }

    let directory = directory();
    let scene = Scene::start().await;

    for kind in [Kind::Desktop, Kind::Phone, Kind::Dark] {
        let browser = scene.stage.browser(kind).await;
        ask_all(&browser, &scene, async |name: &str| {
            let name = format!("{name}-{kind:?}").to_lowercase();
            shoot(&browser, &directory, &name).await;
        })
        .await;
    }
}

/// The IDs of further webhooks.
struct Others {
    disabled: Uuid,
    inactive: Uuid,
    /// Without deliveries.
    quiet: Uuid,
}

/// Makes the webhook a busy one with a previous secret that still signs, and creates others.
async fn other_webhooks(stage: &Stage, webhook: &str) -> Others {
    let sql = stage.app.store().await;
    let id: Uuid = webhook.parse().unwrap();

    sql.execute(HISTORY, &[&id]).await.unwrap();
    sql.execute(COUNTERS, &[&id]).await.unwrap();

    stage
        .api
        .post(
            &format!("/webhooks/{webhook}/regenerate-secret"),
            json!({ "overlap": "24h" }),
        )
        .await
        .expect(200);

    sql.execute(
        "update walhook.webhook set url = 'https://hooks.aurora.example/walhook' where id = $1",
        &[&id],
    )
    .await
    .unwrap();

    let create = async |name: &str, event: &str, ordering: &str| -> Uuid {
        let url = stage.receiver.url("/other");
        let body = json!({ "name": name, "url": url, "events": [event], "ordering": ordering });
        let created = stage.api.post("/webhooks", body).await.expect(201).json();
        created["id"].as_str().unwrap().parse().unwrap()
    };

    let disabled = create("Back office", REVIEW, "none").await;
    let url = "https://hooks.papermoon.example/walhook/in?source=distribution";
    let disable = "update walhook.webhook set active = false, disabled_at = now() - interval '3 hours', url = $2,
                   disabled_reason = 'no answer in time (response_timeout)', failure_count = 100, consecutive_failures = 100,
                   failing_since = now() - interval '5 hours' where id = $1";
    let miss = "insert into walhook.missed_event select $1, id from walhook.event where kind = $2";

    sql.execute(disable, &[&disabled, &url]).await.unwrap();
    sql.execute(miss, &[&disabled, &REVIEW]).await.unwrap();

    let inactive = create("Staging", REVIEW, "none").await;
    let edit = json!({ "active": false });
    stage
        .api
        .patch(&format!("/webhooks/{inactive}"), edit)
        .await
        .expect(200);

    Others {
        disabled,
        inactive,
        quiet: create("Quiet", "stream_radar.flag_created", "strict").await,
    }
}

fn pages_of_others(others: &Others) -> Vec<(&'static str, String)> {
    let at = |id: Uuid, rest: &str| format!("/ui/webhooks/{id}{rest}");
    let Others {
        disabled,
        inactive,
        quiet,
    } = *others;

    vec![
        ("webhook-disabled", at(disabled, "")),
        (
            "replay-disabled",
            at(disabled, "/replay?since=2026-01-01T00%3A00"),
        ),
        ("webhook-inactive", at(inactive, "")),
        ("webhook-quiet", at(quiet, "")),
        ("logs-quiet", at(quiet, "/logs")),
        ("jobs-quiet", at(quiet, "/jobs")),
        (
            "recover-nothing",
            at(quiet, "/recover?since=2026-01-01T00%3A00"),
        ),
    ]
}

async fn shoot_all(
    stage: &Stage,
    browser: &Browser,
    directory: &Path,
    pages: &[(&'static str, String)],
    others: &Others,
) {
    let shoot = async |name: &str| {
        shoot(
            browser,
            directory,
            &format!("{name}-{:?}", browser.kind).to_lowercase(),
        )
        .await;
    };

    browser.visit("/ui/login").await;
    shoot("login").await;
    browser.fill("#token", "whk_wrong").await;
    browser.click("main button").await;
    browser.find("#token-error").await;
    shoot("login-invalid").await;
    browser.sign_in(&stage.api.token).await;

    for (name, path) in pages {
        browser.visit(path).await;
        shoot(name).await;
    }

    browser.visit("/ui").await;
    browser.click("a[href$='/delete']").await;
    browser.find("dialog form").await;
    shoot("dialog").await;
    browser.visit("/ui/webhooks/new").await;
    browser.fill("#url", "http://receiver.example").await;
    browser.click("#filter summary").await;
    browser.click("#advanced summary").await;
    browser.fill("#headers", "Host: evil").await;
    browser.fill("#label_ids", "x").await;
    browser.click("form.edit .primary").await;
    browser.find("#errors").await;
    shoot("new-invalid").await;

    browser.visit("/ui/webhooks/new").await;
    browser.fill("#name", "Shop").await;
    browser.fill("#url", &stage.receiver.url("/shop")).await;
    browser.click("#choose-progress").await;
    browser.find("input[name=events]:checked").await;
    browser.click("#filter summary").await;
    browser.click("#try").await;
    browser.find("#test-result").await;
    shoot("new-tested").await;

    let quiet = format!("/ui/webhooks/{}", others.quiet);
    browser.visit(&format!("{quiet}/test")).await;
    browser.click("main .primary").await;
    browser
        .wait_for_path("the result", |path| !path.ends_with("/test"))
        .await;
    shoot("test-result").await;
    browser.visit(&format!("{quiet}/secret")).await;
    browser.click("main form button").await;
    browser.find("#secret").await;
    shoot("new-secret").await;
}
