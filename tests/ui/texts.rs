//! Names and URLs in the form, without a browser.

use reqwest::Method;

use crate::sign_in::Visitor;

#[tokio::test]
async fn the_form_stores_what_is_shown_and_called_and_rejects_invisible_characters() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let headers = [("cookie", session.as_str())];
    let create = async |name: &str, url: &str| {
        let form = format!("name={name}&url={url}&events=delivery.failed&active=true");
        visitor
            .send(Method::POST, "/ui/webhooks/new", &headers, &form)
            .await
    };

    for (name, url, message) in [
        (
            "Sh%E2%80%8Bop",
            "https://receiver.example/",
            "The name must not contain control or invisible characters",
        ),
        (
            "%20%20",
            "https://receiver.example/",
            "The name must not be blank.",
        ),
        (
            "Shop",
            "https://receiver.example:0/",
            "The URL must not have port 0",
        ),
    ] {
        let answer = create(name, url).await;
        assert_eq!(answer.status(), 422, "{name} {url}");
        let page = answer.text().await.unwrap();
        assert!(page.contains(message), "{name} {url}: {page}");
    }

    assert_eq!(
        create("+Shop+", "+http:\\\\127.0.0.1:9\\in+")
            .await
            .status(),
        303
    );

    let webhook = visitor.stage.api.webhooks().await.remove(0);
    assert_eq!(
        (webhook["name"].as_str(), webhook["url"].as_str()),
        (Some("Shop"), Some("http://127.0.0.1:9/in"))
    );
}
