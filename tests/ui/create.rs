//! The form that creates a webhook: selections of events, names in the filter, a test before saving,
//! errors at their fields, and the checklist afterwards.

use serde_json::json;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::{TestApp, eventually};

#[tokio::test]
async fn a_webhook_is_created_with_scripts() {
    create(Kind::Desktop).await;
}

#[tokio::test]
async fn a_webhook_is_created_without_scripts() {
    create(Kind::NoScripts).await;
}

#[tokio::test]
async fn a_webhook_is_created_on_a_phone() {
    create(Kind::Phone).await;
}

async fn check(browser: &Browser) {
    if browser.has_scripts() {
        audit::check(browser).await;
    }
}

/// Waits until so many events are selected.
async fn wait_for_selected(browser: &Browser, count: usize) {
    eventually("the selection", || async {
        (browser.count("input[name=events]:checked").await == count).then_some(())
    })
    .await;
}

/// Returns the name of the field that has the focus.
async fn focused(browser: &Browser) -> Option<String> {
    let focused = browser.driver.active_element().await.ok()?;
    focused.attr("name").await.ok()?
}

async fn create(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(kind).await;
    browser.visit("/ui/webhooks/new").await;
    assert_eq!(browser.text_of("#limit").await, "You have 0 of 3 webhooks.");

    // Everything that is wrong is marked, and the first field has the focus.
    browser.fill("#name", "Shop").await;
    browser.fill("#url", "ftp://elsewhere").await;
    browser.click("form.edit .primary").await;
    browser.find("#events-error").await;
    assert_eq!(focused(&browser).await.as_deref(), Some("url"));
    let marked = "input[name=events][aria-invalid][aria-describedby=events-error]";
    assert_eq!(browser.count(marked).await, 12);
    check(&browser).await;

    browser.fill("#url", &stage.receiver.url("/in")).await;
    browser.click("form.edit .primary").await;
    wait_for_focus(&browser, "events").await;

    // Two failures, a whole group more, without it again, and the rest of another group.
    for (button, count) in [
        ("#choose-all", 12),
        ("#choose-none", 0),
        ("#choose-failures", 2),
        ("#choose-4", 3),
        ("#choose-4", 2),
        ("#choose-5", 3),
    ] {
        browser.click(button).await;
        wait_for_selected(&browser, count).await;
    }

    test_before_saving(&stage, &browser).await;
    let outlet = choose_outlet(&stage, &browser).await;
    assert!(stage.api.webhooks().await.is_empty());

    browser.click("form.edit .primary").await;
    browser.find("#secret").await;
    let webhook = stage.api.webhooks().await.remove(0);
    assert_eq!(webhook["filter"], json!({ "outlet_ids": [outlet] }));
    assert_eq!(webhook["name"], "Shop");
    assert_eq!(
        webhook["events"],
        json!(["delivery.failed", "transcode.completed", "transcode.failed"])
    );

    browser.click("main .primary").await;
    follow_checklist(&browser, webhook["id"].as_str().unwrap()).await;
}

async fn test_before_saving(stage: &Stage, browser: &Browser) {
    stage.receiver.answer_status(401);
    browser.click("#try").await;
    browser.wait_for_text("Your receiver can be reached.").await;

    stage.receiver.answer_status(200);
    browser.click("#try").await;
    browser
        .wait_for_text("accepted a request that it cannot have verified")
        .await;

    let sent = stage.receiver.requests();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].event(), "delivery.failed");
    assert_eq!(sent[0].header("x-webhook-test"), "true");
    assert_eq!(sent[0].header("x-webhook-signature").len(), 64);
    check(browser).await;
}

/// Finds an outlet of the account's events by its name, and selects it.
async fn choose_outlet(stage: &Stage, browser: &Browser) -> i64 {
    let release = stage.platform.release(stage.label).await;
    let outlet = stage.platform.outlet("Example Music").await;
    let other = stage.platform.outlet("Other").await;
    stage
        .platform
        .distribution(release, other, "complete")
        .await;
    stage
        .platform
        .distribution(release, outlet, "complete")
        .await;
    let stored = async || {
        let events = stage.api.get("/events").await.expect(200).json();
        (events["data"].as_array()?.len() == 4).then_some(())
    };
    eventually("the events", stored).await;

    // The Enter key searches and does not save.
    browser.click("#filter summary").await;
    browser.fill("#find", "example \u{E007}").await;
    let checkbox = "input[name=outlet_ids][type=checkbox]";
    eventually("the outlet", || async {
        (browser.count(checkbox).await == 1).then_some(())
    })
    .await;
    browser.click(checkbox).await;

    // What is selected stays selected when something else is searched for.
    browser.fill("#find", "other").await;
    browser.click("#search").await;
    eventually("both outlets", || async {
        (browser.count(checkbox).await == 2).then_some(())
    })
    .await;
    assert_eq!(browser.count(&format!("{checkbox}:checked")).await, 1);
    assert!(browser.text_of("#filter").await.contains("Example Music"));

    // A label is found by its name too.
    let name = format!("label {}", stage.label);
    browser.fill("#find", &name).await;
    browser.click("#search").await;
    let label = "input[name=label_ids][type=checkbox]";
    eventually("the label", || async {
        (browser.count(label).await == 1).then_some(())
    })
    .await;
    assert!(
        browser
            .text_of("#filter")
            .await
            .to_lowercase()
            .contains(&name)
    );
    check(browser).await;
    outlet
}

async fn follow_checklist(browser: &Browser, id: &str) {
    browser.find("#checklist").await;
    assert_eq!(browser.count("#checklist .done").await, 1, "it is active");
    check(browser).await;

    browser.click("#checklist a[href$='/test']").await;
    let page = if browser.has_scripts() {
        "dialog[open]"
    } else {
        "main"
    };
    browser.click(&format!("{page} form button")).await;
    browser.wait_for_text("Test delivered: 200").await;
    browser.visit(&format!("/ui/webhooks/{id}")).await;
    assert_eq!(browser.count("#checklist .done").await, 3);
}

async fn wait_for_focus(browser: &Browser, name: &str) {
    let is_focused = || async { (focused(browser).await.as_deref() == Some(name)).then_some(()) };
    eventually("the focus", is_focused).await;
}

#[tokio::test]
async fn the_limit_is_said_before_the_form() {
    if !browser::is_available() {
        return;
    }

    let mut app = TestApp::prepare().await;
    app.set("limits.webhooks_per_user", "1");
    let stage = Stage::start_with(app).await;
    let browser = stage.browser(Kind::Desktop).await;

    browser.visit("/ui/webhooks/new").await;
    assert_eq!(browser.text_of("#limit").await, "You have 0 of 1 webhooks.");
    let url = stage.receiver.url("/in");
    stage.api.create_webhook(&url, &[REVIEW]).await;

    browser.visit("/ui/webhooks/new").await;
    assert!(browser.text_of("#limit").await.contains("the limit is 1"));
    assert_eq!(browser.count("form.edit").await, 0);
    audit::check(&browser).await;
}

/// A secret is replaced with an overlap unless the visitor decides otherwise.
#[tokio::test]
async fn the_overlap_is_offered_first() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let url = stage.receiver.url("/in");
    let (id, _) = stage.api.create_webhook(&url, &[REVIEW]).await;

    browser.visit(&format!("/ui/webhooks/{id}/secret")).await;
    browser.click("main form button").await;
    browser
        .wait_for_text("The old secret also signs for 24 hours.")
        .await;
    let webhook = stage.api.webhook(&id).await;
    assert!(webhook["previous_secret_expires_at"].is_string());
}
