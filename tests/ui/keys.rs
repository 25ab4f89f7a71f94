//! Keys in the web UI, without a browser: the forms and the webhook's page.

use reqwest::Method;
use serde_json::Value;

use crate::sign_in::Visitor;

#[tokio::test]
async fn the_forms_set_the_signing_and_the_overlap() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let headers = [("cookie", session.as_str())];
    let post = async |path: &str, form: &str| {
        let answer = visitor.send(Method::POST, path, &headers, form).await;
        assert_eq!(answer.status(), 303, "{path}: {answer:?}");
    };

    let get = async |path: &str| {
        visitor
            .send(Method::GET, path, &headers, "")
            .await
            .text()
            .await
            .unwrap()
    };

    let settings = format!(
        "name=x&url={}&events=delivery.failed&active=true",
        visitor.stage.receiver.url("/in")
    );
    post(
        "/ui/webhooks/new",
        &format!("{settings}&signing=hmac%2Bed25519"),
    )
    .await;

    let api = &visitor.stage.api;
    let webhook = api.webhooks().await.remove(0);
    let id = webhook["id"].as_str().unwrap();
    let key = webhook["public_key"].as_str().expect("a key pair");
    let page = format!("/ui/webhooks/{id}");

    // Templates escape the plus signs of base64.
    let shown = |key: &str| key.replace('+', "&#43;");
    let overview = get(&page).await;

    assert!(
        overview.contains(key) || overview.contains(&shown(key)),
        "{overview}"
    );
    assert!(
        get(&format!("{page}/edit"))
            .await
            .contains(r#"value="hmac+ed25519" checked"#)
    );

    assert!(
        get(&format!("{page}/secret"))
            .await
            .contains("The ed25519 key pair is replaced too.")
    );
    post(&format!("{page}/secret"), "overlap=24h").await;

    let replaced = api.webhook(id).await;
    let until = replaced["previous_secret_expires_at"]
        .as_str()
        .expect("an overlap");

    assert!(replaced["public_key"] != key && get(&page).await.contains(until));
    post(&format!("{page}/secret"), "overlap=0s").await;
    assert_eq!(
        api.webhook(id).await["previous_secret_expires_at"],
        Value::Null
    );

    let version = get(&format!("{page}/edit")).await;
    let version = version
        .split(r#"name="version" value=""#)
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();

    post(
        &format!("{page}/edit"),
        &format!("{settings}&signing=hmac&version={version}"),
    )
    .await;
    let plain = api.webhook(id).await;
    assert_eq!(
        (plain["signing"].as_str(), &plain["public_key"]),
        (Some("hmac"), &Value::Null)
    );
}
