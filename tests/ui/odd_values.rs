//! Values that no page offers, in forms and queries, without a browser.

use crate::fixture::REVIEW;
use crate::sign_in::Visitor;
use reqwest::Method;

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
