//! What the pages say about webhooks that fail, are disabled or are inactive, and the way out.

use serde_json::{Value, json};

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::{TestApp, eventually};

/// Raises an event that the webhook is subscribed to.
async fn raise(stage: &Stage) {
    let release = stage.platform.release(stage.label).await;
    stage.platform.set_review_status(release, "to_review").await;
}

async fn check(browser: &Browser) {
    if browser.has_scripts() {
        audit::check(browser).await;
    }
}

#[tokio::test]
async fn a_disabled_webhook_is_tested_activated_and_recovered_by_one_form() {
    recover_all(Kind::Desktop).await;
}

#[tokio::test]
async fn a_disabled_webhook_is_recovered_without_scripts() {
    recover_all(Kind::NoScripts).await;
}

async fn recover_all(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let mut app = TestApp::prepare().await;
    app.set("disable.threshold", "3");
    let stage = Stage::start_with(app).await;
    let browser = stage.browser(kind).await;
    let url = stage.receiver.url("/in");
    let (id, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let path = format!("/ui/webhooks/{id}");
    stage.receiver.answer_status(500);

    raise(&stage).await;
    let failing = async |failures: i64| {
        let webhook = stage.api.webhook(&id).await;
        (webhook["consecutive_failures"] == failures).then_some(webhook)
    };
    let webhook = eventually("a failure", || failing(1)).await;
    assert_eq!(webhook["failures_until_disabled"], 2);
    assert!(webhook["failing_since"].is_string() && webhook["not_disabled_before"].is_null());

    for page in ["/ui", &path] {
        browser.visit(page).await;
        browser
            .wait_for_text("2 failures until it is disabled")
            .await;
        check(&browser).await;
    }

    for _ in 0..2 {
        raise(&stage).await;
    }

    let disabled = async || {
        let webhook = stage.api.webhook(&id).await;
        webhook["disabled_at"].is_string().then_some(webhook)
    };
    let webhook = eventually("the disablement", disabled).await;
    assert_eq!(webhook["failures_until_disabled"], Value::Null);

    // Missed while the webhook is disabled.
    raise(&stage).await;
    let waiting = async || {
        let recover = format!("/webhooks/{id}/recover");
        let counted = stage.api.post(&recover, json!({ "dry_run": true })).await;
        (counted.expect(200).json()["count"] == 4).then_some(())
    };
    eventually("four waiting events", waiting).await;

    browser.visit(&path).await;
    let banner = browser.text_of("#banner").await;
    for expected in [
        "Disabled automatically",
        "HTTP 500 answers",
        "4 events are waiting",
    ] {
        assert!(banner.contains(expected), "{expected} in {banner}");
    }
    check(&browser).await;

    // The receiver still fails.
    browser.click("#banner button").await;
    browser.wait_for_text("The webhook stays disabled.").await;
    assert_eq!(stage.api.webhook(&id).await["active"], false);

    stage.receiver.answer_status(200);
    let before = stage.receiver.requests().len();
    browser.visit(&path).await;
    browser.click("#banner button").await;
    browser
        .wait_for_text("The webhook is active, and the recovery of 4 deliveries has started.")
        .await;

    stage.receiver.wait_for(before + 5).await;
    let webhook = stage.api.webhook(&id).await;
    assert_eq!(
        (&webhook["active"], &webhook["disabled_at"]),
        (&json!(true), &Value::Null)
    );
    browser.visit(&path).await;
    assert_eq!(browser.count("#banner").await, 0);
}

#[tokio::test]
async fn an_inactive_webhook_says_so_and_is_activated() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Phone).await;
    let url = stage.receiver.url("/in");
    let (id, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let edit = json!({ "active": false });
    let path = format!("/webhooks/{id}");
    stage.api.patch(&path, edit).await.expect(200);

    browser.visit(&format!("/ui/webhooks/{id}")).await;
    let banner = browser.text_of("#banner").await;
    assert!(banner.contains("kept for 30 days"), "{banner}");
    audit::check(&browser).await;

    browser.click("#banner button").await;
    browser.wait_for_text("is now active").await;
    assert_eq!(browser.count("#banner").await, 0);
    assert_eq!(stage.api.webhook(&id).await["active"], true);
}

/// All pages show times in one format: how long ago, and the exact time, which says its zone, on
/// hover.
#[tokio::test]
async fn times_are_relative_and_exact_on_hover() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let webhook = stage.webhook_with_log("Aurora").await;

    for kind in [Kind::Desktop, Kind::NoScripts] {
        let browser = stage.browser(kind).await;
        let rest = ["", "/jobs", "/logs"].map(|rest| format!("/ui/webhooks/{webhook}{rest}"));

        for path in rest
            .iter()
            .map(String::as_str)
            .chain(["/ui/tokens", "/ui/audit", "/ui/events"])
        {
            browser.visit(path).await;
            let times = browser
                .driver
                .find_all(thirtyfour::By::Css("time[data-relative]"))
                .await;
            let times = times.unwrap();
            assert!(!times.is_empty(), "{path}");

            for time in times {
                let text = time.inner_html().await.unwrap();
                let title = time.attr("title").await.unwrap().unwrap_or_default();
                assert!(
                    text == "just now" || text.contains("ago") || text.starts_with("in "),
                    "{path}: {text}"
                );
                assert!(title.contains("UTC"), "{path}: {title}");
            }
        }
    }
}
