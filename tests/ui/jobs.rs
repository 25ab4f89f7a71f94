//! A replay from its preview to its end, in a browser.

use serde_json::json;

use crate::audit;
use crate::browser::{self, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::{Answer, TestApp, eventually};

/// Stores events of the user from an hour ago.
async fn store_events(stage: &Stage, count: i32) {
    let insert = "with counter as (update walhook.event_sequence set last = last + $1 returning last - $1 as first)
                  insert into walhook.event (id, user_id, kind, occurred_at, sequence, shard, ordinal, data)
                  select (overlay(gen_random_uuid()::text placing
                          left(lpad(to_hex((extract(epoch from now() - interval '1 hour') * 1000)::bigint), 12, '0'), 8) || '-'
                          || right(to_hex((extract(epoch from now() - interval '1 hour') * 1000)::bigint), 4) || '-7' from 1 for 15))::uuid,
                      user_id, $2, now() - interval '1 hour', first + n, walhook.shard(user_id), 0, '{}'
                  from counter, walhook.api_token, generate_series(1, $1) as n";
    stage
        .app
        .store()
        .await
        .execute(insert, &[&i64::from(count), &REVIEW])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_replay_is_previewed_watched_and_cancelled() {
    run(Kind::Desktop).await;
}

#[tokio::test]
async fn a_replay_is_previewed_and_cancelled_without_scripts() {
    run(Kind::NoScripts).await;
}

async fn run(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let mut app = TestApp::prepare().await;

    // The first chunk stays pending, so that the replay never ends.
    app.set("delivery.timeout", "120s");
    let stage = Stage::start_with(app).await;

    stage.receiver.answer(|_| Answer::Hang);
    store_events(&stage, 300).await;

    let (id, _) = stage
        .api
        .create_webhook(&stage.receiver.url("/in"), &[REVIEW, "delivery.failed"])
        .await;
    let browser = stage.browser(kind).await;

    browser.visit(&format!("/ui/webhooks/{id}")).await;
    browser.click(".tabs a[href$='/replay']").await;
    browser.click("input[value='delivery.failed']").await;
    browser.fill("#labels", "one").await;
    browser.click("main form button").await;
    browser
        .wait_for_text("“Label IDs” must be up to 100 whole numbers")
        .await;
    browser.fill("#labels", "").await;
    browser.click("main form button").await;
    assert_eq!(browser.text_of("#preview-title").await, "300 deliveries");

    assert_eq!(
        browser
            .count("input[value='delivery.failed']:checked")
            .await,
        0,
        "the selection is kept"
    );

    browser.click("#preview button").await;
    browser
        .wait_for_text("Replay of 300 deliveries started")
        .await;

    let jobs = format!("/webhooks/{id}/jobs");
    let running = async || {
        let jobs = stage.api.get(&jobs).await.expect(200).json();
        let job = jobs["data"][0].clone();
        (job["state"] == "running" && job["done"] != 0).then_some(job)
    };

    let job = eventually("the first chunk", running).await;
    browser.visit(&format!("/ui{jobs}")).await;

    let value = browser
        .find("progress")
        .await
        .prop("value")
        .await
        .unwrap()
        .unwrap();

    assert_eq!(value, job["done"].to_string());
    browser.click("a[href$='/cancel']").await;

    let container = if browser.has_scripts() {
        "dialog[open]"
    } else {
        "main"
    };

    browser.find(&format!("{container} form")).await;

    if browser.has_scripts() {
        audit::check(&browser).await;
    }

    browser.click(&format!("{container} form button")).await;
    browser.wait_for_text("Replay cancelled.").await;
    assert_eq!(browser.count("progress").await, 0);

    let path = format!("{jobs}/{}", job["id"].as_str().unwrap());
    assert_eq!(
        stage.api.get(&path).await.expect(200).json()["state"],
        "cancelled"
    );

    if browser.has_scripts() {
        watch(&stage, &browser, &id).await;
    }
}

/// A page that refreshes itself shows the end of a job.
async fn watch(stage: &Stage, browser: &browser::Browser, webhook: &str) {
    let body = json!({ "since": "2026-01-01T00:00:00Z" });
    let started = stage
        .api
        .post(&format!("/webhooks/{webhook}/replay"), body)
        .await
        .expect(202)
        .json();

    let job = started["job_id"].as_str().unwrap();
    browser.visit(&format!("/ui/webhooks/{webhook}/jobs")).await;
    assert_eq!(browser.count("progress").await, 1);
    browser.click("#live").await;
    stage
        .api
        .delete(&format!("/webhooks/{webhook}/jobs/{job}"))
        .await
        .expect(204);

    let ended = async || (browser.count("progress").await == 0).then_some(());
    eventually("the job's end on the page", ended).await;
    assert_eq!(
        browser
            .text_of(&format!("tr[data-entry='{job}'] .badge"))
            .await,
        "Cancelled"
    );
}
