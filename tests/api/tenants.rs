//! Users see only their own webhooks.

use serde_json::json;
use uuid::Uuid;

use crate::fixture::Service;
use crate::support::{one, run_sql};

#[tokio::test]
async fn another_user_s_webhook_is_not_found_by_any_operation() {
    let service = Service::start().await;
    let owner = service.api("owner").await;
    let stranger = service.api("stranger").await;
    let (id, secret) = owner
        .create_webhook("https://receiver.example/in", &["delivery.failed"])
        .await;
    let log = Uuid::now_v7();
    let insert = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                  values ($1, $2, $1, $1, 'delivery.failed', 1, 1, now(), 'delivered')";

    service
        .sql
        .execute(insert, &[&log, &id.parse::<Uuid>().unwrap()])
        .await
        .unwrap();
    let job = Uuid::now_v7();
    let insert =
        "insert into walhook.recovery (id, webhook_id, kind, since, until, phase, total, outcomes, missed, finished_at)
                  values ($1, $2, 'recover', now(), now(), 'log', 0, '{}', false, now())";

    service
        .sql
        .execute(insert, &[&job, &id.parse::<Uuid>().unwrap()])
        .await
        .unwrap();
    let before = owner.webhook(&id).await;
    let path = format!("/webhooks/{id}");
    let (mine, _) = stranger
        .create_webhook("https://receiver.example/in", &["delivery.failed"])
        .await;

    let attempts = [
        ("GET", path.clone(), None),
        ("PATCH", path.clone(), Some(json!({ "active": false }))),
        (
            "PATCH",
            path.clone(),
            Some(json!({ "url": "not even a URL" })),
        ),
        ("DELETE", path.clone(), None),
        ("POST", format!("{path}/regenerate-secret"), None),
        ("POST", format!("{path}/test"), None),
        ("GET", format!("{path}/logs"), None),
        ("GET", format!("{path}/logs/{log}"), None),
        ("GET", format!("/webhooks/{mine}/logs/{log}"), None),
        ("POST", format!("{path}/logs/{log}/redeliver"), None),
        (
            "POST",
            format!("/webhooks/{mine}/logs/{log}/redeliver"),
            None,
        ),
        (
            "POST",
            format!("{path}/recover"),
            Some(json!({ "since": "2026-03-01T00:00:00Z" })),
        ),
        (
            "POST",
            format!("{path}/recover"),
            Some(json!({ "since": "yesterday" })),
        ),
        (
            "POST",
            format!("{path}/replay"),
            Some(json!({ "since": "2026-03-01T00:00:00Z" })),
        ),
        (
            "POST",
            format!("{path}/replay"),
            Some(json!({ "since": "yesterday" })),
        ),
        ("GET", format!("{path}/jobs"), None),
        ("GET", format!("{path}/jobs/{job}"), None),
        ("GET", format!("/webhooks/{mine}/jobs/{job}"), None),
        ("DELETE", format!("{path}/jobs/{job}"), None),
        ("DELETE", format!("/webhooks/{mine}/jobs/{job}"), None),
        ("GET", format!("{path}/stats"), None),
    ];
    let same_id = [("x-request-id", "same")];

    for (method, path, body) in attempts {
        let answer = stranger
            .send(method, &path, &same_id, body.as_ref())
            .await
            .expect(404);
        assert_eq!(answer.json()["type"], "/problems/not-found");

        let none = [&id, &log.to_string(), &job.to_string()]
            .into_iter()
            .fold(path, |path, own| {
                path.replace(own.as_str(), &Uuid::nil().to_string())
            });

        let nowhere = stranger.send(method, &none, &same_id, body.as_ref()).await;
        assert_eq!(
            answer.body, nowhere.body,
            "the response is the same as for a webhook that does not exist"
        );
    }

    let ids: Vec<_> = stranger
        .webhooks()
        .await
        .iter()
        .map(|webhook| webhook["id"].clone())
        .collect();

    assert_eq!(ids, [json!(mine)]);
    let started =
        "select (select count(*) from walhook.pending) + (select count(*) from walhook.recovery
                       where finished_at is null)";

    assert_eq!(
        one::<i64>(&service.sql, started).await,
        0,
        "nothing was started"
    );

    assert_eq!(owner.webhook(&id).await, before);
    assert_eq!(service.stored_secret(&id).await, secret);
    owner.get(&format!("{path}/logs/{log}")).await.expect(200);

    assert_eq!(
        owner
            .get(&format!("{path}/jobs/{job}"))
            .await
            .expect(200)
            .json()["state"],
        "finished"
    );
}

#[tokio::test]
async fn values_of_filters_are_those_of_the_account() {
    let service = Service::start().await;
    let fill = "insert into walhook.event (id, user_id, kind, occurred_at, data, sequence, shard, label_id)
                select gen_random_uuid(), user_id, kind, now(), data::json, sequence, walhook.shard(user_id), label_id
                from (values
                    ('owner', 'delivery.completed', 1, 7, '{\"release_cat\": \"CAT-001\", \"outlet_id\": 12, \"status\": \"complete\"}'),
                    ('owner', 'delivery.completed', 2, 7, '{\"release_cat\": \"CAT-002\", \"outlet_id\": 12, \"outlet_name\": \"Spotify\"}'),
                    ('owner', 'distribution.outlet.status_changed', 3, 8, '{\"status\": \"on_hold\"}'),
                    ('owner', 'delivery.failed', 4, null, '{\"outlet_id\": 13}'),
                    ('stranger', 'delivery.failed', 5, 9, '{\"outlet_id\": 14, \"status\": \"secret\"}')
                ) as event (user_id, kind, sequence, label_id, data)";
    run_sql(&service.sql, fill).await;

    let values = async |user: &str| {
        let api = service.api(user).await;
        api.get("/webhooks/filter-values").await.expect(200).json()
    };
    let own = values("owner").await;

    assert_eq!(
        own["label_ids"],
        json!([
            { "id": 8, "name": null, "newest_release": null },
            { "id": 7, "name": null, "newest_release": "CAT-002" }
        ])
    );
    assert_eq!(
        own["outlet_ids"],
        json!([{ "id": 13, "name": null }, { "id": 12, "name": "Spotify" }])
    );

    // Those of the catalogue follow those of the events.
    let statuses = own["statuses"].as_array().unwrap();
    assert_eq!(statuses[..2], [json!("on_hold"), json!("complete")]);
    assert!(statuses.contains(&json!("require_changes")) && !statuses.contains(&json!("secret")));

    let others = values("stranger").await;
    assert_eq!(
        others["label_ids"],
        json!([{ "id": 9, "name": null, "newest_release": null }])
    );
    assert_eq!(others["outlet_ids"], json!([{ "id": 14, "name": null }]));
    assert_eq!(others["statuses"][0], "secret");

    let nobody = values("nobody").await;
    assert_eq!(
        (&nobody["label_ids"], &nobody["outlet_ids"]),
        (&json!([]), &json!([]))
    );
}
