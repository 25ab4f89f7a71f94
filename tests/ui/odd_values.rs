//! Values that no page offers, in forms and queries, without a browser.

use reqwest::Method;
use serde_json::json;

use crate::fixture::REVIEW;
use crate::sign_in::Visitor;

#[tokio::test]
async fn a_choice_that_a_form_does_not_offer_is_named_and_changes_nothing() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let headers = [("cookie", session.as_str())];
    let api = &visitor.stage.api;
    let url = visitor.stage.receiver.url("/in");
    let (id, _) = api.create_webhook(&url, &[REVIEW]).await;
    let at = |rest: &str| format!("/ui/webhooks/{id}{rest}");

    let tokens = async || api.get("/tokens").await.expect(200).json()["data"].clone();
    let audit = async || api.get("/audit").await.expect(200).json()["data"].clone();
    let before = (api.webhook(&id).await, tokens().await, audit().await);

    for (path, form, field) in [
        (at("/active"), "active=yes", "active"),
        (at("/active"), "", "active"),
        (at("/secret"), "overlap=1d", "overlap"),
        (at("/secret"), "", "overlap"),
        (
            "/ui/tokens".to_owned(),
            "name=x&scope=full&lifetime=soon",
            "lifetime",
        ),
        (
            "/ui/tokens".to_owned(),
            "name=x&scope=root&lifetime=90",
            "scope",
        ),
    ] {
        let answer = visitor.send(Method::POST, &path, &headers, form).await;
        assert_eq!(answer.status(), 422, "{path} {form}");
        let page = answer.text().await.unwrap();
        assert!(page.contains(&format!("/{field}: ")), "{form}: {page}");
    }

    let after = (api.webhook(&id).await, tokens().await, audit().await);
    assert_eq!(after, before);
}

#[tokio::test]
async fn an_invalid_filter_is_marked() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let answer = visitor
        .get("/ui/logs?release_id=x&track_id=7", &session)
        .await;

    assert_eq!(answer.status(), 422);
    let page = answer.text().await.unwrap();
    let input = |name: &str| {
        let start = page
            .find(&format!("<input id=\"{name}\""))
            .expect("a field");
        page[start..].split('>').next().unwrap_or_default()
    };

    assert!(input("release_id").contains("aria-invalid"), "{page}");
    assert!(!input("track_id").contains("aria-invalid"), "{page}");
}

/// The script would refresh the page with the same error, and fail.
#[tokio::test]
async fn a_page_with_an_error_does_not_refresh_itself() {
    let visitor = Visitor::start(&[("delivery.retry_schedule", "30s,30s")]).await;
    let (_, session) = visitor.sign_in("").await;
    let stage = &visitor.stage;
    stage.receiver.answer_status(500);

    let url = stage.receiver.url("/in");
    let (id, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let release = stage.platform.release(stage.label).await;
    stage.platform.set_review_status(release, "to_review").await;
    stage
        .api
        .wait_for_logs(&id, "an attempt", |logs| !logs.is_empty())
        .await;

    let entry = stage.entry(&id, "failed").await;
    let delivery = stage.delivery_of(&id, &entry).await;
    let path = format!("/ui/webhooks/{id}/deliveries/{delivery}");

    for (query, status, is_live) in [
        (String::new(), 200, true),
        (format!("?compare={entry}"), 422, false),
    ] {
        let answer = visitor.get(&format!("{path}{query}"), &session).await;
        assert_eq!(answer.status(), status);
        let page = answer.text().await.unwrap();
        assert_eq!(page.contains("data-auto"), is_live, "{page}");
    }
}

#[tokio::test]
async fn a_failed_test_has_failed_everywhere_and_has_nothing_to_compare() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let stage = &visitor.stage;
    stage.receiver.answer_status(500);

    let url = stage.receiver.url("/in");
    let (id, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let test = format!("/webhooks/{id}/test");
    let tested = stage.api.post(&test, json!({})).await.expect(200).json();
    let log = tested["log_id"].as_str().expect("an id");
    let page = visitor
        .get(&format!("/ui/webhooks/{id}/logs/{log}"), &session)
        .await;
    let page = page.text().await.unwrap();

    // In the state, in the timeline and in the attempt.
    assert_eq!(page.matches(">Failed<").count(), 3, "{page}");
    for absent in ["Failed permanently", "name=\"compare\"", "data-live"] {
        assert!(!page.contains(absent), "{absent} in {page}");
    }
}

#[tokio::test]
async fn the_reference_has_the_values_of_parameters_in_paragraphs() {
    let visitor = Visitor::start(&[]).await;
    let read = async |name: &str| {
        let page = visitor.get(&format!("/api/public/docs/{name}"), "").await;
        page.text().await.unwrap()
    };
    let page = read("searchLogs").await;

    for expected in [
        "<code>permanently_failed</code>",
        "<code>response_timeout</code>",
        "<small>query, uuid</small>",
        "<p>With <code>format</code>",
    ] {
        assert!(page.contains(expected), "{expected} in {page}");
    }

    let schema = read("schema-Webhook").await;
    assert!(
        schema.contains("disabled") && !schema.contains("\\n"),
        "{schema}"
    );
}
