//! Creating, reading, editing and deleting webhooks.

use futures_util::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixture::{CONNECTIONS, Service};
use crate::support::{Api, one, run_sql};

const URL: &str = "https://receiver.example/in";

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

const WEBHOOK_KEYS: [&str; 24] = [
    "id",
    "name",
    "url",
    "events",
    "active",
    "ordering",
    "signing",
    "description",
    "metadata",
    "headers",
    "filter",
    "success_count",
    "failure_count",
    "consecutive_failures",
    "failing_since",
    "failures_until_disabled",
    "not_disabled_before",
    "last_triggered_at",
    "disabled_at",
    "disabled_reason",
    "created_at",
    "updated_at",
    "public_key",
    "previous_secret_expires_at",
];

fn new_webhook(name: &str) -> Value {
    json!({ "name": name, "url": URL, "events": ["delivery.completed"] })
}

#[tokio::test]
async fn a_webhook_is_created_with_a_secret_and_read_without() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = json!({ "name": "Ops", "url": URL, "events": ["transcode.failed", "delivery.failed", "transcode.failed"] });
    let answer = api.post("/webhooks", body).await.expect(201);
    let created = answer.json();

    assert_eq!(keys(&created), [&WEBHOOK_KEYS[..], &["secret"]].concat());
    assert_eq!(
        created["events"],
        json!(["delivery.failed", "transcode.failed"]),
        "without duplicates, in the catalogue's order"
    );
    assert_eq!(
        (&created["name"], &created["url"], &created["active"]),
        (&json!("Ops"), &json!(URL), &json!(true))
    );
    assert!(created["created_at"].as_str().unwrap().ends_with("+00:00"));

    let id = created["id"].as_str().unwrap();
    assert_eq!(
        answer.header("location").unwrap(),
        format!("/api/public/webhooks/{id}")
    );

    let secret = created["secret"].as_str().unwrap();
    assert_eq!(secret.strip_prefix("whsec_").unwrap().len(), 44);
    assert_eq!(service.stored_secret(id).await, secret);

    let sealed: Vec<u8> = one(&service.sql, "select secret from walhook.webhook").await;

    assert!(
        !sealed.windows(6).any(|window| window == b"whsec_"),
        "encrypted at rest"
    );

    let read = api.get(&format!("/webhooks/{id}")).await.expect(200);
    assert_eq!(read.header("etag"), answer.header("etag"));
    assert_eq!(keys(&read.json()), WEBHOOK_KEYS);
    assert_eq!(api.webhooks().await, [read.json()]);
}

#[tokio::test]
async fn a_webhook_can_be_created_inactive() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = json!({ "name": "x", "url": URL, "events": ["delivery.failed"], "active": false });

    assert_eq!(
        api.post("/webhooks", body).await.expect(201).json()["active"],
        false
    );
}

#[tokio::test]
async fn a_new_secret_replaces_the_old_one_and_is_shown_once() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, old) = api.create_webhook(URL, &["delivery.failed"]).await;

    let answer = api
        .send(
            "POST",
            &format!("/webhooks/{id}/regenerate-secret"),
            &[],
            None,
        )
        .await
        .expect(200);

    let new = answer.json();
    assert_eq!(
        keys(&new),
        ["id", "secret", "public_key", "previous_secret_expires_at"]
    );
    assert_ne!(new["secret"], old);
    assert_eq!(
        service.stored_secret(&id).await,
        new["secret"].as_str().unwrap()
    );

    let path = format!("/webhooks/{id}");
    let others = [
        api.get(&path).await,
        api.get("/webhooks").await,
        api.patch(&path, json!({ "name": "y" })).await,
        api.get(&format!("{path}/logs")).await,
        api.get("/webhooks/event-types").await,
        api.get("/openapi.json").await,
        api.delete(&path).await,
    ];
    for answer in others {
        assert!(answer.status < 300, "{answer:?}");
        let stored = new["secret"].as_str().unwrap();
        assert!(
            !answer.body.contains(stored) && !answer.body.contains(&old),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn an_edit_changes_only_the_given_settings() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let before = api.webhook(&id).await;

    assert_eq!(api.patch(&path, json!({})).await.expect(200).json(), before);

    let edits = [
        ("name", json!("renamed")),
        ("url", json!("https://other.example/")),
        (
            "events",
            json!(["delivery.completed", "payment.statement_ready"]),
        ),
        ("active", json!(false)),
        ("description", json!("For the\nlabel office")),
        ("metadata", json!({ "team": "ops" })),
        ("filter", json!({ "statuses": ["complete"] })),
    ];

    let mut expected = before.clone();

    for (key, value) in edits {
        let answer = api
            .patch(&path, json!({ key: value }))
            .await
            .expect(200)
            .json();
        expected[key] = value;
        if key == "active" {
            // An inactive webhook is not disabled for failures.
            expected["failures_until_disabled"] = Value::Null;
        }

        expected["updated_at"] = answer["updated_at"].clone();
        assert_eq!(answer, expected);
        assert_eq!(api.webhook(&id).await, expected);
    }

    assert_ne!(expected["updated_at"], before["updated_at"]);
}

#[tokio::test]
async fn activation_resets_failures_only_after_an_automatic_disablement() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let counted = "update walhook.webhook set success_count = 5, failure_count = 7, consecutive_failures = 3, failing_since = now()";

    run_sql(&service.sql, counted).await;
    api.patch(&path, json!({ "active": false }))
        .await
        .expect(200);

    let toggled = api
        .patch(&path, json!({ "active": true }))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&toggled["failure_count"], &toggled["consecutive_failures"]),
        (&json!(7), &json!(3))
    );

    let disabled = "update walhook.webhook set active = false, disabled_at = now(), disabled_reason = 'http_status'";
    run_sql(&service.sql, disabled).await;

    let renamed = api
        .patch(&path, json!({ "name": "still off" }))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&renamed["disabled_reason"], &renamed["failure_count"]),
        (&json!("http_status"), &json!(7))
    );

    let back = api
        .patch(&path, json!({ "active": true }))
        .await
        .expect(200)
        .json();
    assert_eq!(back["active"], true);

    for (key, value) in [
        ("failure_count", json!(0)),
        ("consecutive_failures", json!(0)),
        ("disabled_at", Value::Null),
        ("disabled_reason", Value::Null),
        ("success_count", json!(5)),
    ] {
        assert_eq!(back[key], value, "{key}");
    }

    let row = service
        .sql
        .query_one("select failing_since is null from walhook.webhook", &[])
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
}

/// Adds an event with a pending delivery for each webhook.
async fn add_pending(service: &Service, webhooks: &[&str]) {
    let event = Uuid::now_v7();
    let insert = "insert into walhook.event (id, user_id, kind, occurred_at, data) values ($1, '1', 'delivery.failed', now(), '{}')";
    service.sql.execute(insert, &[&event]).await.unwrap();

    for webhook in webhooks {
        let insert = "insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at) values ($1, $2, $3, 4, now())";
        let webhook: Uuid = webhook.parse().unwrap();
        service
            .sql
            .execute(insert, &[&Uuid::now_v7(), &webhook, &event])
            .await
            .unwrap();
    }
}

async fn pending(service: &Service) -> i64 {
    one(&service.sql, "select count(*) from walhook.delivery").await
}

#[tokio::test]
async fn deactivation_cancels_pending_deliveries_and_logs_it() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let (other, _) = api.create_webhook(URL, &["delivery.failed"]).await;

    add_pending(&service, &[&id, &other]).await;
    add_pending(&service, &[&id]).await;
    api.patch(
        &format!("/webhooks/{id}"),
        json!({ "name": "an edit cancels nothing" }),
    )
    .await
    .expect(200);

    assert_eq!(pending(&service).await, 3);
    api.patch(&format!("/webhooks/{id}"), json!({ "active": false }))
        .await
        .expect(200);
    assert_eq!(pending(&service).await, 1, "the other webhook's stays");
    assert!(api.logs(&other).await.is_empty());

    let logs = api.logs(&id).await;
    assert_eq!(logs.len(), 2);

    for entry in logs {
        assert_eq!(entry["outcome"], "cancelled");
        assert_eq!(entry["error"]["kind"], "webhook_inactive");
        assert_eq!(
            (&entry["attempt"], &entry["duration_ms"]),
            (&json!(4), &Value::Null)
        );

        let entry: Uuid = entry["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(entry.get_version_num(), 7);

        let age = Uuid::now_v7().get_timestamp().unwrap().to_unix().0
            - entry.get_timestamp().unwrap().to_unix().0;
        assert!(age < 60, "the id contains the time");
    }
}

#[tokio::test]
async fn a_deleted_webhook_and_its_pending_deliveries_are_gone() {
    let service = Service::start_with(|config| config.limits.webhooks_per_user = 1).await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;

    add_pending(&service, &[&id]).await;
    let answer = api.delete(&format!("/webhooks/{id}")).await.expect(204);

    assert!(answer.body.is_empty());
    assert_eq!(pending(&service).await, 0);

    let logged = service
        .sql
        .query_one("select outcome from walhook.attempt", &[])
        .await
        .unwrap();
    assert_eq!(logged.get::<_, &str>(0), "cancelled");

    for path in [format!("/webhooks/{id}"), format!("/webhooks/{id}/logs")] {
        api.get(&path).await.expect(404);
    }

    api.delete(&format!("/webhooks/{id}")).await.expect(404);
    api.create_webhook(URL, &["delivery.failed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creations_cannot_exceed_the_limit() {
    let service = Service::start().await;
    let api = service.api("1").await;

    for _ in 0..9 {
        api.create_webhook(URL, &["delivery.failed"]).await;
    }

    // A lock blocks the creations between counting and inserting, until as many as can run at once
    // have reached it.
    let hold = "create function public.hold() returns trigger language plpgsql as $$
                    begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
                create trigger hold before insert on walhook.webhook for each row execute function public.hold();
                select pg_advisory_lock(1)";
    run_sql(&service.sql, hold).await;

    let answers = join_all((0..20).map(|_| api.post("/webhooks", new_webhook("race"))));
    let release = async {
        service.wait_until_blocked(CONNECTIONS).await;
        run_sql(&service.sql, "select pg_advisory_unlock(1)").await;
    };

    let (answers, ()) = tokio::join!(answers, release);
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let rejected = answers.iter().filter(|answer| answer.status == 409).count();

    assert_eq!((created, rejected), (1, 19));
    let rejection = answers
        .iter()
        .find(|answer| answer.status == 409)
        .unwrap()
        .json();

    assert_eq!(rejection["type"], "/problems/webhook-limit-reached");
    assert_eq!(api.webhooks().await.len(), 10);
    service
        .api("2")
        .await
        .create_webhook(URL, &["delivery.failed"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_waits_for_another_whatever_isolation_is_the_default() {
    let service = Service::start().await;
    let prefer = "do $$ begin
        execute format('alter database %I set default_transaction_isolation = serializable', current_database());
    end $$";
    run_sql(&service.sql, prefer).await;

    let api = service.api("1").await;
    let (webhook, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{webhook}");

    let other = "begin; update walhook.webhook set description = 'of the other edit'";
    run_sql(&service.sql, other).await;

    let edit = api.patch(&path, json!({ "name": "edited" }));
    let commit = async {
        service.wait_until_blocked(1).await;
        run_sql(&service.sql, "commit").await;
    };

    let (edited, ()) = tokio::join!(edit, commit);
    let edited = edited.expect(200).json();
    assert_eq!(edited["name"], "edited");
    assert_eq!(edited["description"], "of the other edit");
}

async fn page(api: &Api, path: &str, cursor: Option<&str>) -> (Vec<Value>, Option<String>) {
    let path = cursor.map_or_else(
        || path.to_owned(),
        |cursor| format!("{path}&cursor={cursor}"),
    );
    let page = api.get(&path).await.expect(200).json();
    assert_eq!(keys(&page), ["data", "next_cursor"]);

    (
        page["data"].as_array().unwrap().clone(),
        page["next_cursor"].as_str().map(str::to_owned),
    )
}

#[tokio::test]
async fn pages_are_complete_and_disjoint_while_webhooks_are_added() {
    let service = Service::start_with(|config| config.limits.webhooks_per_user = 50).await;
    let api = service.api("1").await;
    let mut created = Vec::new();

    for _ in 0..7 {
        created.push(api.create_webhook(URL, &["delivery.failed"]).await.0);
    }

    let mut seen = Vec::new();
    let mut cursor = None;

    loop {
        let (data, next) = page(&api, "/webhooks?limit=3", cursor.as_deref()).await;
        assert!(!data.is_empty() && data.len() <= 3);
        seen.extend(
            data.iter()
                .map(|webhook| webhook["id"].as_str().unwrap().to_owned()),
        );

        if created.len() < 12 {
            created.push(api.create_webhook(URL, &["delivery.failed"]).await.0);
        }

        cursor = next;

        if cursor.is_none() {
            break;
        }
    }

    assert_eq!(seen[..], created[..seen.len()]);
    assert!(
        seen.len() >= 9,
        "webhooks that were added meanwhile are listed too"
    );
}

#[tokio::test]
async fn an_edit_of_another_version_is_rejected() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let first = api.get(&path).await.header("etag").unwrap().to_owned();
    let counted = "update walhook.webhook set success_count = 9, last_triggered_at = now(), updated_at = now()";

    run_sql(&service.sql, counted).await;
    assert_eq!(
        api.get(&path).await.header("etag"),
        Some(&*first),
        "a busy webhook can be edited"
    );

    let edit = |tag: String, name: &'static str| {
        let api = &api;
        let path = &path;

        async move {
            api.send(
                "PATCH",
                path,
                &[("if-match", &tag)],
                Some(&json!({ "name": name })),
            )
            .await
        }
    };

    let second = edit(first.clone(), "one")
        .await
        .expect(200)
        .header("etag")
        .unwrap()
        .to_owned();

    assert_ne!(first, second);
    let rejected = edit(first.clone(), "two").await.expect(412);

    assert_eq!(rejected.json()["type"], "/problems/precondition-failed");
    edit(format!("W/{second}"), "two").await.expect(412);
    api.send("DELETE", &path, &[("if-match", &first)], None)
        .await
        .expect(412);
    assert_eq!(api.webhook(&id).await["name"], "one");
    edit(format!("{first}, {second}"), "three")
        .await
        .expect(200);
    edit("*".into(), "four").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_concurrent_edits_of_a_version_succeeds() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let tag = api.get(&path).await.header("etag").unwrap().to_owned();

    // A lock blocks the edits after they have read the version, until all have reached it.
    run_sql(
        &service.sql,
        "begin; select from walhook.webhook for update",
    )
    .await;

    let edits = (0..CONNECTIONS).map(|n| {
        let api = &api;
        let path = &path;
        let tag = &tag;

        async move {
            api.send(
                "PATCH",
                path,
                &[("if-match", tag)],
                Some(&json!({ "name": format!("{n}") })),
            )
            .await
            .status
        }
    });

    let release = async {
        service.wait_until_blocked(CONNECTIONS).await;
        run_sql(&service.sql, "commit").await;
    };

    let (mut answers, ()) = tokio::join!(join_all(edits), release);
    answers.sort_unstable();
    assert_eq!(answers, [200, 412, 412, 412, 412, 412, 412, 412]);
}
