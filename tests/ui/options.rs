//! The optional settings of a webhook in the form and on its page.

use reqwest::Method;
use serde_json::json;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::sign_in::Visitor;
use crate::support::Receiver;

async fn value(browser: &Browser, selector: &str) -> String {
    browser
        .find(selector)
        .await
        .value()
        .await
        .unwrap()
        .unwrap_or_default()
}

#[tokio::test]
async fn options_are_set_shown_and_kept_with_scripts() {
    check(Kind::Desktop).await;
}

#[tokio::test]
async fn options_are_set_shown_and_kept_on_a_phone() {
    check(Kind::Phone).await;
}

async fn check(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(kind).await;

    browser.visit("/ui/webhooks/new").await;
    browser.fill("#name", "Shop").await;
    browser.fill("#url", &stage.receiver.url("/in")).await;
    browser.click(&format!("input[value='{REVIEW}']")).await;
    browser.click("#filter summary").await;
    browser.click("#advanced summary").await;
    browser.fill("#description", "<b>Shop</b>").await;
    browser
        .fill("#headers", "Authorization: Bearer s3cret\nHost: evil")
        .await;
    browser.fill("#outlet_ids", "12").await;
    browser.click("input[name=statuses][value=approved]").await;
    browser.fill("#statuses", "rejected, limbo").await;
    browser.fill("#metadata", "team=ops").await;
    browser.click("form.edit .primary").await;

    assert!(
        browser
            .text_of("#headers-error")
            .await
            .contains("Host: is reserved"),
        "{}",
        browser.text().await
    );

    // The input is kept: a status with a checkbox is checked.
    assert_eq!(value(&browser, "#statuses").await, "limbo");
    assert_eq!(browser.count("input[name=statuses]:checked").await, 2);
    let focused = "return document.activeElement.id";
    assert_eq!(browser.evaluate(focused).await, "headers");
    audit::check(&browser).await;
    browser
        .fill("#headers", "Authorization: Bearer s3cret")
        .await;
    browser.click("form.edit .primary").await;

    assert!(
        browser
            .text_of("#outlet_ids-error")
            .await
            .contains("has an outlet"),
        "{}",
        browser.text().await
    );

    assert_eq!(browser.evaluate(focused).await, "outlet_ids");
    browser.fill("#statuses", "").await;
    browser.fill("#outlet_ids", "").await;
    browser.fill("#label_ids", &stage.label.to_string()).await;
    browser.click("form.edit .primary").await;
    browser.find("#secret").await;

    let webhook = stage.api.webhooks().await.remove(0);
    let id = webhook["id"].as_str().unwrap();

    assert_eq!(
        webhook["filter"],
        json!({ "label_ids": [stage.label], "statuses": ["approved", "rejected"] })
    );
    browser.visit(&format!("/ui/webhooks/{id}")).await;

    let text = browser.text().await;

    for shown in [
        "<b>Shop</b>",
        "Authorization: ***",
        "approved, rejected",
        "team",
    ] {
        assert!(text.contains(shown), "no {shown} in {text}");
    }

    assert!(!text.contains("s3cret"));
    audit::check(&browser).await;

    // Saving the form unchanged keeps the value of the header.
    browser.visit(&format!("/ui/webhooks/{id}/edit")).await;
    assert_eq!(value(&browser, "#headers").await, "Authorization: ***");
    browser.fill("#description", "").await;
    browser.click("form.edit .primary").await;
    browser.wait_for_text("Changes saved.").await;

    let saved = stage.api.webhook(id).await;
    assert!(
        saved["description"].is_null() && saved["metadata"] == json!({ "team": "ops" }),
        "{saved}"
    );
    stage
        .api
        .post(&format!("/webhooks/{id}/test"), json!({}))
        .await
        .expect(200);
    assert_eq!(
        stage.receiver.wait_for(1).await[0].header("authorization"),
        "Bearer s3cret"
    );
}

/// Without a browser.
#[tokio::test]
async fn the_form_asks_for_the_values_of_headers_again_if_the_host_changes() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let url = visitor.stage.receiver.url("/in");
    let body = json!({ "name": "x", "url": url, "events": ["delivery.failed"], "headers": { "X-Key": "s3cret" } });

    let webhook = visitor
        .stage
        .api
        .post("/webhooks", body)
        .await
        .expect(201)
        .json();

    let path = format!("/ui/webhooks/{}/edit", webhook["id"].as_str().unwrap());
    let page = visitor.get(&path, &session).await.text().await.unwrap();

    let version = page
        .split("name=\"version\" value=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();

    let save = async |url: &str, value: &str| {
        let form = format!(
            "name=x&url={url}&events=delivery.failed&headers=X-Key: {value}&version={version}"
        );
        visitor
            .send(Method::POST, &path, &[("cookie", session.as_str())], &form)
            .await
    };

    // Another port is another receiver.
    let elsewhere = Receiver::start().await.url("/in");
    let refused = save(&elsewhere, "***").await;

    assert_eq!(refused.status(), 422);
    let page = refused.text().await.unwrap();
    let message = page
        .split("id=\"headers-error\">")
        .nth(1)
        .unwrap_or_else(|| panic!("{page}"));
    assert!(
        message.starts_with("X-Key: give the value again"),
        "{message:.200}"
    );
    assert_eq!(save(&elsewhere, "s3cret").await.status(), 303);
}
