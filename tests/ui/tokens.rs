//! API tokens and the audit log in a browser.

use serde_json::json;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::Api;

#[tokio::test]
async fn a_token_is_created_shown_once_and_revoked() {
    run(Kind::Desktop).await;
}

#[tokio::test]
async fn a_token_is_created_and_revoked_without_scripts() {
    run(Kind::NoScripts).await;
}

async fn run(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(kind).await;

    browser.click("header a[href='/ui/tokens']").await;
    browser.fill("#name", " ").await;
    browser.choose("#scope", "read_only").await;
    browser.click("main form button").await;
    assert_eq!(browser.text_of("#name-error").await, "Must not be blank.");

    if browser.has_scripts() {
        audit::check(&browser).await;
    }

    browser.fill("#name", "catalogue import").await;
    browser.click("main form button").await;
    let token = browser.text_of("#token").await;
    let api = Api::new(&stage.api.url, &token);

    if browser.has_scripts() {
        audit::check(&browser).await;
    }

    api.get("/webhooks").await.expect(200);
    api.post("/webhooks", json!({})).await.expect(403);
    browser.click("main a[href='/ui/tokens']").await;
    browser.wait_for_text("catalogue import").await;
    let page = browser.text().await;
    assert!(
        page.contains("Read-only") && !page.contains(&token),
        "{page}"
    );

    let listed = api.get("/tokens").await.expect(200).json();
    let id = listed["data"][0]["id"].as_str().expect("an id");
    browser.click(&format!("[data-token='{id}'] a")).await;
    let container = match browser.has_scripts() {
        true => "dialog[open]",
        false => "main",
    };

    browser.click(&format!("{container} form button")).await;
    browser.wait_for_text("Token revoked.").await;
    api.get("/webhooks").await.expect(401);
}

#[tokio::test]
async fn the_audit_log_says_who_changed_a_webhook() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let (id, _) = stage
        .api
        .create_webhook(&stage.receiver.url("/in"), &[REVIEW])
        .await;
    let browser = stage.browser(Kind::Desktop).await;

    browser.visit(&format!("/ui/webhooks/{id}/edit")).await;
    browser.fill("#url", &stage.receiver.url("/other")).await;
    browser.click("form.edit .primary").await;
    browser.wait_for_text("Changes saved.").await;
    browser.click("a[href^='/ui/audit?subject=']").await;

    let newest = browser.text_of("tbody tr").await;
    assert!(
        newest.contains("Webhook updated") && newest.contains("url") && newest.contains("Web UI"),
        "{newest}"
    );
    assert_eq!(browser.count("tbody tr").await, 2);
    browser.choose("#action", "webhook.created").await;
    browser.click("main form button").await;
    browser
        .wait_for_path("the filter", |path| path.contains("action="))
        .await;
    assert_eq!(browser.count("tbody tr").await, 1, "both filters apply");
}

#[tokio::test]
async fn a_session_of_a_read_only_token_changes_nothing() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let (id, _) = stage
        .api
        .create_webhook(&stage.receiver.url("/in"), &[REVIEW])
        .await;
    let body = json!({ "name": "reader", "scope": "read_only" });
    let token = stage.api.post("/tokens", body).await.expect(201).json();
    let browser = Browser::start(Kind::Desktop, &stage.origin()).await;

    browser
        .sign_in(token["token"].as_str().expect("a token"))
        .await;

    // What changes something is hidden, with the reason.
    for rest in [
        "", "/edit", "/delete", "/secret", "/test", "/recover", "/replay", "/logs", "/jobs",
    ] {
        browser.visit(&format!("/ui/webhooks/{id}{rest}")).await;
        assert_may_only_read(&browser).await;
    }

    for path in ["/ui", "/ui/tokens", "/ui/event-types", "/ui/logs"] {
        browser.visit(path).await;
        assert_may_only_read(&browser).await;
    }

    audit::check(&browser).await;

    // The server decides, whatever the page shows.
    browser.visit(&format!("/ui/webhooks/{id}/delete")).await;
    browser
        .evaluate("document.querySelector('main form').submit()")
        .await;
    browser.wait_for_text("The token may only read").await;
    browser.wait_for_text("Request ID").await;
    stage.api.webhook(&id).await;
}

async fn assert_may_only_read(browser: &Browser) {
    let visible = "return [...document.querySelectorAll('main :is(form[method=post], [data-dialog], a[href$=\"/edit\"])')]
        .filter((element) => element.checkVisibility()).map((element) => element.outerHTML)";
    assert_eq!(browser.evaluate(visible).await, json!([]));
    let reason = browser.text_of("#read-only").await;
    assert!(reason.contains("may only read"), "{reason}");
}
