//! Users see and change only their own webhooks, over plain HTTP.

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::sign_in::Visitor;

#[tokio::test]
async fn another_user_s_webhook_is_not_found_by_any_page_or_form() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let cookie = [("cookie", session.as_str())];
    let url = visitor.stage.receiver.url("/in");
    let (own, _) = visitor
        .stage
        .api
        .create_webhook(&url, &["delivery.failed"])
        .await;
    let owner = visitor.stage.app.api("another user").await;
    let (id, _) = owner.create_webhook(&url, &["delivery.failed"]).await;
    let tested = owner
        .post(&format!("/webhooks/{id}/test"), json!({}))
        .await
        .expect(200)
        .json();
    let log = tested["log_id"].as_str().expect("an id");
    let delivery = owner.get(&format!("/webhooks/{id}/logs/{log}")).await;
    let delivery = delivery.expect(200).json()["delivery_id"].clone();
    let delivery = format!("/deliveries/{}", delivery.as_str().expect("an id"));
    let recovery = owner
        .post(
            &format!("/webhooks/{id}/recover"),
            json!({ "since": "2026-01-01T00:00:00Z" }),
        )
        .await;

    let cancel = format!(
        "/jobs/{}/cancel",
        recovery.expect(202).json()["job_id"]
            .as_str()
            .expect("an id")
    );

    let before = owner.webhook(&id).await;

    let at = |webhook: &str, rest: &str| format!("/ui/webhooks/{webhook}{rest}");
    let entry = format!("/logs/{log}");
    let since = "since=2026-01-01T00:00";

    let pages = [
        "",
        "/edit",
        "/delete",
        "/secret",
        "/new-secret",
        "/test",
        "/recover",
        "/replay",
        "/jobs",
        "/logs",
        &entry,
    ]
    .map(|rest| at(&id, rest));

    let tokens = owner.get("/tokens").await.expect(200).json();
    let token = tokens["data"][0]["id"].as_str().expect("an id");
    let queries = [
        format!("/ui/tokens/{token}/revoke"),
        at(&id, &format!("/recover?{since}")),
        at(&id, "/logs?outcome=failed"),
        at(&own, &entry),
        at(&id, &cancel),
        at(&own, &cancel),
        at(&id, &delivery),
        at(&own, &delivery),
        format!("/ui/logs?webhook={id}"),
    ];
    for page in pages.iter().chain(&queries) {
        let answer = visitor.send(Method::GET, page, &cookie, "").await;
        assert_eq!(answer.status(), 404, "{page}");
    }

    let edit = format!("name=x&url={url}&events=delivery.failed&version=");
    let redeliver = format!("{entry}/redeliver");
    let first = format!("webhook={id}");
    let chosen = format!("webhook={id}&event=delivery.failed");

    let forms = [
        (at(&id, "/edit"), edit.as_str()),
        (at(&id, "/edit"), ""),
        (at(&id, "/edit"), "choose=all"),
        (at(&id, "/reactivate"), ""),
        (at(&id, "/active"), "active=false"),
        (at(&id, "/delete"), ""),
        (at(&id, "/secret"), ""),
        (at(&id, "/new-secret"), ""),
        (at(&id, "/recover"), since),
        (at(&id, "/recover"), "since=yesterday"),
        (at(&id, "/replay"), since),
        (at(&id, "/replay"), "since=yesterday"),
        (at(&id, &cancel), ""),
        (at(&own, &cancel), ""),
        (at(&id, &redeliver), ""),
        (at(&own, &redeliver), ""),
        ("/ui/test".to_owned(), first.as_str()),
        ("/ui/test".to_owned(), chosen.as_str()),
        (format!("/ui/tokens/{token}/revoke"), ""),
    ];
    for (path, form) in forms {
        let answer = visitor.send(Method::POST, &path, &cookie, form).await;
        assert_eq!(answer.status(), 404, "{path} {form}");
    }

    assert_eq!(owner.webhook(&id).await, before);
    assert_eq!(owner.logs(&id).await.len(), 1, "no other test was sent");

    let changes =
        "select count(*) from walhook.audit where subject_id = $1 and user_id <> 'another user'";
    let store = visitor.stage.app.store().await;
    let changes = store
        .query_one(changes, &[&id.parse::<Uuid>().unwrap()])
        .await
        .unwrap();

    assert_eq!(changes.get::<_, i64>(0), 0);
}
