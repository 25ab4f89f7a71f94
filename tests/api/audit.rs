//! The audit log.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixture::{BLOCKED_URL, Service};
use crate::support::run_sql;

const URL: &str = "https://receiver.example/in";

/// User, via, whether the record has an API token, action, subject, changed fields.
type Record = (String, String, bool, String, Uuid, Vec<String>);

async fn records(service: &Service, action: &str) -> Vec<Record> {
    let query = "select user_id, via, token_id is not null, action, subject_id, changed
                 from walhook.audit where action like $1 order by id";
    let rows = service.sql.query(query, &[&action]).await.unwrap();

    let record = |row: &tokio_postgres::Row| {
        (
            row.get(0),
            row.get(1),
            row.get(2),
            row.get(3),
            row.get(4),
            row.get(5),
        )
    };

    rows.iter().map(record).collect()
}

#[tokio::test]
async fn every_change_of_a_webhook_is_audited_and_nothing_else() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let (id, secret) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");

    api.patch(&path, json!({ "name": "new", "active": false, "url": URL }))
        .await
        .expect(200);
    let renewed = api
        .post(&format!("{path}/regenerate-secret"), json!({}))
        .await
        .expect(200)
        .json();

    // An edit that changes nothing is not audited.
    api.patch(&path, json!({ "name": "new" })).await.expect(200);
    api.patch(&path, json!({ "url": BLOCKED_URL }))
        .await
        .expect(422);
    api.send("DELETE", &path, &[("if-match", "\"old\"")], None)
        .await
        .expect(412);
    other.delete(&path).await.expect(404);
    other
        .post(&format!("{path}/regenerate-secret"), json!({}))
        .await
        .expect(404);
    api.get(&path).await.expect(200);
    api.post(&format!("{path}/test"), json!({}))
        .await
        .expect(200);
    other
        .post(&format!("{path}/test"), json!({}))
        .await
        .expect(404);
    api.delete(&path).await.expect(204);

    let subject: Uuid = id.parse().unwrap();
    let expected = [
        ("webhook.created", vec!["name", "url", "events"]),
        ("webhook.updated", vec!["name", "active"]),
        ("webhook.secret_regenerated", vec!["secret"]),
        ("webhook.tested", vec![]),
        ("webhook.deleted", vec![]),
    ];

    let expected = expected.map(|(action, changed)| {
        let changed = changed.into_iter().map(str::to_owned).collect();
        (
            "1".to_owned(),
            "token".to_owned(),
            true,
            action.to_owned(),
            subject,
            changed,
        )
    });

    assert_eq!(records(&service, "webhook.%").await, expected);
    let texts = service
        .sql
        .query("select a::text from walhook.audit a", &[])
        .await
        .unwrap();
    let token = api.token.strip_prefix("whk_").unwrap();

    for text in texts.iter().map(|row| row.get::<_, &str>(0)) {
        assert!(!text.contains(&secret) && !text.contains(token), "{text}");
        assert!(
            !text.contains(renewed["secret"].as_str().unwrap()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn owners_read_their_own_records_by_page_subject_and_action() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (gone, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    api.patch(
        &format!("/webhooks/{id}"),
        json!({ "url": format!("{URL}/2") }),
    )
    .await
    .expect(200);
    api.delete(&format!("/webhooks/{gone}")).await.expect(204);
    let session = "insert into walhook.audit (id, user_id, via, action, subject_id)
                   values (gen_random_uuid(), '1', 'jwt', 'user.signed_in', gen_random_uuid())";
    run_sql(&service.sql, session).await;

    let records = async |query: &str| {
        let page = api.get(&format!("/audit{query}")).await.expect(200).json();
        page["data"].as_array().unwrap().clone()
    };

    let changes = records(&format!("?subject={id}")).await;
    let [updated, created] = &changes[..] else {
        panic!("{changes:?}")
    };

    assert_eq!(created["action"], "webhook.created");
    assert_eq!(updated["action"], "webhook.updated");
    assert_eq!(updated["changed"], json!(["url"]));
    assert_eq!(
        (
            &updated["via"],
            &updated["token_name"],
            &updated["subject_name"]
        ),
        (&json!("token"), &json!("test"), &json!("test"))
    );
    assert!(!json!(changes).to_string().contains(URL), "no values");

    let deleted = records("?action=webhook.deleted").await;
    assert_eq!(deleted[0]["subject_name"], json!(null));
    let signed_in = records("?action=user.signed_in").await;
    assert_eq!(signed_in[0]["subject_id"], json!(null));

    let first = api.get("/audit?limit=2").await.expect(200).json();
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = records(&format!("?limit=100&cursor={cursor}")).await;
    let all = records("").await;
    assert_eq!(rest, all[2..]);

    let own = other.get(&format!("/audit?subject={id}")).await.expect(200);
    assert_eq!(own.json()["data"], json!([]));

    for (query, pointer) in [("subject=x", "/subject"), ("action=x", "/action")] {
        let problem = api.get(&format!("/audit?{query}")).await.expect(422).json();
        assert_eq!(problem["errors"][0]["pointer"], pointer);
    }
}

#[tokio::test]
async fn a_change_and_its_audit_record_are_one_transaction() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let before = api.webhook(&id).await;
    let secret = service.stored_secret(&id).await;

    run_sql(
        &service.sql,
        "alter table walhook.audit add check (action = 'none') not valid",
    )
    .await;
    api.patch(&path, json!({ "name": "new" })).await.expect(500);
    api.post(&format!("{path}/regenerate-secret"), json!({}))
        .await
        .expect(500);
    api.delete(&path).await.expect(500);
    api.post(
        "/webhooks",
        json!({ "name": "x", "url": URL, "events": ["delivery.failed"] }),
    )
    .await
    .expect(500);

    assert_eq!(api.webhooks().await, [before]);
    assert_eq!(service.stored_secret(&id).await, secret);

    let created = service
        .app
        .walhook(&["token", "create", "--user", "1"])
        .await;
    assert!(!created.status.success() && created.stdout.is_empty());
}

#[tokio::test]
async fn tokens_are_audited_and_records_are_removed_after_the_retention_period() {
    let service = Service::start().await;
    service.app.token("7").await;

    let list = service
        .app
        .walhook_ok(&["token", "list", "--user", "7", "--json"])
        .await;
    let listed: Value = serde_json::from_str(&list).unwrap();
    let id = listed["id"].as_str().unwrap();

    for _ in 0..2 {
        service.app.walhook_ok(&["token", "revoke", id]).await;
    }

    let subject: Uuid = id.parse().unwrap();
    let expected = ["token.created", "token.revoked"].map(|action| {
        (
            "7".to_owned(),
            "command_line".to_owned(),
            false,
            action.to_owned(),
            subject,
            vec![],
        )
    });

    assert_eq!(records(&service, "token.%").await, expected);

    let age = "update walhook.audit set at = now() - interval '30 days 1 minute' where action = 'token.created'";
    service.sql.execute(age, &[]).await.unwrap();
    assert_eq!(
        walhook::store::audit::remove_old(&service.store, 31)
            .await
            .unwrap(),
        0
    );

    assert_eq!(
        walhook::store::audit::remove_old(&service.store, 30)
            .await
            .unwrap(),
        1
    );

    assert_eq!(records(&service, "token.%").await, expected[1..]);
}

/// A program that repeats a change as often as it may would otherwise fill the store's disk.
#[tokio::test]
async fn the_rows_of_a_user_and_a_day_are_limited_and_further_changes_are_counted() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let other = service.api("2").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (own, _) = other.create_webhook(URL, &["delivery.failed"]).await;
    let ids: Vec<Uuid> = (0..1_000).map(|_| Uuid::now_v7()).collect();
    let fill = "insert into walhook.audit (id, user_id, via, action, subject_id)
                select id, '1', 'token', 'webhook.updated', id from unnest($1::uuid[]) as id";

    service.sql.execute(fill, &[&ids]).await.unwrap();
    let before = records(&service, "%").await.len();

    for name in ["a", "b", "c"] {
        api.patch(&format!("/webhooks/{id}"), json!({ "name": name }))
            .await
            .expect(200);
        other
            .patch(&format!("/webhooks/{own}"), json!({ "name": name }))
            .await
            .expect(200);
    }

    api.patch(&format!("/webhooks/{id}"), json!({ "active": false }))
        .await
        .expect(200);

    for _ in 0..2 {
        api.post(&format!("/webhooks/{id}/regenerate-secret"), json!({}))
            .await
            .expect(200);
    }

    assert_eq!(
        records(&service, "%").await.len() - before,
        3 + 2,
        "the other's three, and one for each action"
    );
    let folded = "select action, count, changed, last_at > at, subject_id::text from walhook.audit where count > 1 order by action";
    let rows = service.sql.query(folded, &[]).await.unwrap();
    let found: Vec<(String, i64, Vec<String>, bool, String)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)))
        .collect();
    let text = str::to_owned;

    let expected = [
        (
            text("webhook.secret_regenerated"),
            2,
            vec![text("secret")],
            true,
            id.clone(),
        ),
        (text("webhook.updated"), 4, vec![text("active")], true, id),
    ];

    assert_eq!(found, expected);
}
