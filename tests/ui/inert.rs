//! Text from users, receivers and the platform is shown as text and never interpreted as HTML or
//! script.

use serde_json::json;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::Answer;

/// Texts that would run a script if a page did not escape them.
const ATTEMPTS: [&str; 6] = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror=window.hit=1>",
    "\"><svg onload=window.hit=1>",
    "' autofocus onfocus='window.hit=1",
    "</title></textarea></pre><iframe srcdoc='<script>parent.hit=1</script>'>",
    "javascript:window.hit=1//{{7*7}}${7*7}",
];

async fn assert_inert(browser: &Browser, what: &str) {
    let found = "return [window.hit === undefined, document.querySelectorAll(
        'script:not([src]), iframe, img, svg[onload], [onerror], [onfocus], [href^=javascript]').length]";
    assert_eq!(
        browser.evaluate(found).await,
        json!([true, 0]),
        "{what} at {}",
        browser.path().await
    );

    audit::assert_silent(browser, what).await;
}

#[tokio::test]
async fn stored_text_is_not_interpreted() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let everything = ATTEMPTS.concat();

    stage.receiver.answer({
        let body = everything.clone();
        move |_| {
            Answer::Full(
                500,
                vec![("x-answer", "<script>window.hit=1</script>".into())],
                body.clone().into_bytes(),
            )
        }
    });

    let name: String = everything.chars().take(200).collect();
    let url = stage
        .receiver
        .url("/\"><svg/onload=window.hit=1><script>window.hit=1</script>?'\"<img/src=x/onerror=window.hit=1>");

    let created = stage
        .api
        .post(
            "/webhooks",
            json!({ "name": name, "url": url, "events": [REVIEW] }),
        )
        .await
        .expect(201)
        .json();

    let id = created["id"].as_str().unwrap();
    let platform = &stage.platform;
    let release = platform.release(stage.label).await;
    let issues = json!(ATTEMPTS.map(|text| json!({ "field": text, "message": text })));
    let reject = "update release set title = $2, cat = $3, review_status = 'rejected', review_issues = $4 where id = $1";

    platform
        .execute(reject, &[&release, &everything, &ATTEMPTS[0], &issues])
        .await;
    stage
        .api
        .wait_for_logs(id, "the delivery", |logs| logs.len() == 1)
        .await;

    let reason =
        "update walhook.webhook set disabled_at = now(), active = false, disabled_reason = $1";
    stage
        .app
        .store()
        .await
        .execute(reason, &[&everything])
        .await
        .unwrap();

    let entry = stage.entry(id, "failed").await;
    let events = stage.api.get("/events").await.expect(200).json();
    let event = format!("/ui/events/{}", events["data"][0]["id"].as_str().unwrap());
    let at = |rest: &str| format!("/ui/webhooks/{id}{rest}");
    let paths = [
        "", "/edit", "/delete", "/secret", "/test", "/logs", "/recover", "/replay", "/jobs",
    ]
    .map(at);
    let entry = at(&format!("/logs/{entry}"));

    for path in paths
        .iter()
        .chain([&entry, &"/ui".to_owned(), &"/ui/events".to_owned(), &event])
    {
        browser.visit(path).await;
        assert_inert(&browser, path).await;
    }

    browser.visit(&entry).await;
    assert!(
        browser.text_of("#response").await.contains(ATTEMPTS[4]),
        "the response is shown unchanged"
    );
    assert!(
        browser
            .text_of("#pretty")
            .await
            .contains("<script>window.hit = 1</script>")
    );

    browser.visit("/ui").await;
    browser.click("a[href$='/delete']").await;
    browser.find("dialog form").await;
    assert_inert(&browser, "a dialog").await;
}

#[tokio::test]
async fn entered_text_is_not_interpreted() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let webhook = stage
        .api
        .create_webhook(&stage.receiver.url("/in"), &[REVIEW])
        .await
        .0;

    for attempt in ATTEMPTS {
        browser.visit("/ui/webhooks/new").await;
        browser.fill("#name", attempt).await;
        browser.fill("#url", attempt).await;
        browser.click("form.edit .primary").await;
        browser.find("#errors").await;
        assert_eq!(
            browser.find("#name").await.value().await.unwrap().unwrap(),
            attempt
        );
        assert_inert(&browser, attempt).await;

        let encoded: String = url::form_urlencoded::byte_serialize(attempt.as_bytes()).collect();

        for query in ["since", "event", "status", "cursor"] {
            browser
                .visit(&format!("/ui/webhooks/{webhook}/logs?{query}={encoded}"))
                .await;
            assert_inert(&browser, query).await;
        }

        browser.visit(&format!("/ui/{encoded}")).await;
        assert_inert(&browser, "a path").await;
        browser.visit(&format!("/ui/login?next={encoded}")).await;
        assert_inert(&browser, "the page to return to").await;
    }
}

#[tokio::test]
async fn a_user_id_is_not_interpreted() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let token = stage.app.token(&ATTEMPTS[..3].concat()).await;
    let browser = Browser::start(Kind::Desktop, &stage.origin()).await;

    browser.sign_in(&token).await;
    assert!(browser.text_of(".user").await.contains(ATTEMPTS[1]));
    assert_inert(&browser, "a user's name").await;
}
