//! The optional settings of webhooks: description, metadata, custom headers and filter.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::support::{Api, one, run_sql};

const URL: &str = "https://receiver.example/in";
const KEY: &str = "Bearer of-the-gateway-7Qx";

fn with(key: &str, value: Value) -> Value {
    let mut body = json!({ "name": "x", "url": URL, "events": ["delivery.failed", "payment.statement_ready"] });
    body[key] = value;
    body
}

async fn pointers(api: &Api, path: &str, body: Value) -> Vec<String> {
    let method = if path == "/webhooks" { "POST" } else { "PATCH" };
    let problem = api
        .send(method, path, &[], Some(&body))
        .await
        .expect(422)
        .json();

    assert_eq!(problem["type"], "/problems/validation-failed", "{problem}");
    let errors = problem["errors"].as_array().unwrap();
    errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the values of the webhook's headers as they would be sent.
async fn stored_values(service: &Service, id: &str) -> Vec<(String, String)> {
    use secrecy::ExposeSecret;

    let id = id.parse().unwrap();
    let target = service.store.targets(&[id]).await.unwrap().pop().unwrap();
    let opened = crate::fixture::vault()
        .open_headers(id, target.headers.as_ref())
        .unwrap();

    opened
        .0
        .into_iter()
        .map(|header| (header.name, header.value.expose_secret().to_owned()))
        .collect()
}

#[tokio::test]
async fn options_are_saved_returned_and_cleared() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let mut body = with("description", json!("For the shop.\nAsk ops."));

    body["metadata"] = json!({ "team": "shop", "a.b": "" });
    body["filter"] =
        json!({ "label_ids": [9, 3, 9], "outlet_ids": [12], "statuses": ["rejected"] });
    body["headers"] = json!({ "X-Zone": "eu", "Authorization": KEY });

    let created = api.post("/webhooks", body).await.expect(201).json();
    let id = created["id"].as_str().unwrap();

    assert_eq!(created["description"], "For the shop.\nAsk ops.");
    assert_eq!(created["metadata"], json!({ "a.b": "", "team": "shop" }));
    assert_eq!(
        created["filter"],
        json!({ "label_ids": [3, 9], "outlet_ids": [12], "statuses": ["rejected"] })
    );
    assert_eq!(
        created["headers"].to_string(),
        r#"{"X-Zone":"***","Authorization":"***"}"#,
        "in the given order"
    );

    let expected = [("X-Zone", "eu"), ("Authorization", KEY)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(stored_values(&service, id).await, expected);

    let read = api.webhook(id).await;

    for option in ["description", "metadata", "filter", "headers"] {
        assert_eq!(read[option], created[option]);
        assert_eq!(api.webhooks().await[0][option], created[option]);
    }

    let path = format!("/webhooks/{id}");
    let edited = api
        .patch(&path, json!({ "metadata": { "new": "1" } }))
        .await
        .expect(200)
        .json();

    assert_eq!(
        edited["metadata"],
        json!({ "new": "1" }),
        "an edit replaces the whole object"
    );
    let clear = json!({ "description": null, "metadata": {}, "filter": {}, "headers": null });
    let cleared = api.patch(&path, clear).await.expect(200).json();
    let none = Value::Null;
    let empty = json!({});

    for (option, expected) in [
        ("description", &none),
        ("metadata", &empty),
        ("filter", &none),
        ("headers", &empty),
    ] {
        assert_eq!(&cleared[option], expected);
    }

    assert!(stored_values(&service, id).await.is_empty());
    let audited = "select string_agg(changed::text, ' ' order by id) from walhook.audit";
    let audited: String = one(&service.sql, audited).await;
    let options = "description,metadata,headers,filter";

    assert_eq!(audited.matches(options).count(), 2, "{audited}");
}

#[tokio::test]
async fn invalid_options_are_rejected_by_their_pointers() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api
        .create_webhook(URL, &["delivery.failed", "payment.statement_ready"])
        .await;
    let path = format!("/webhooks/{id}");
    let pairs = |count: usize| {
        (0..count)
            .map(|n| (format!("k{n}"), json!("v")))
            .collect::<serde_json::Map<_, _>>()
    };

    let large: serde_json::Map<_, _> = (0..5)
        .map(|n| (format!("X-{n}"), json!("v".repeat(1_000))))
        .collect();
    let cases = [
        (json!({ "description": "x".repeat(501) }), "/description"),
        (json!({ "description": "a\u{0}" }), "/description"),
        (json!({ "description": 1 }), "/description"),
        (json!({ "metadata": [] }), "/metadata"),
        (json!({ "metadata": { "a": 1 } }), "/metadata/a"),
        (json!({ "metadata": { "a b": "" } }), "/metadata/a b"),
        (
            json!({ "metadata": { "x".repeat(41): "" } }),
            &*format!("/metadata/{}", "x".repeat(41)),
        ),
        (
            json!({ "metadata": { "a": "x".repeat(501) } }),
            "/metadata/a",
        ),
        (json!({ "metadata": pairs(21) }), "/metadata"),
        (json!({ "headers": "X: y" }), "/headers"),
        (json!({ "headers": { "X-A": null } }), "/headers/X-A"),
        (json!({ "headers": { "X A": "v" } }), "/headers/X A"),
        (json!({ "headers": { "a/~b": "v" } }), "/headers/a~1~0b"),
        (
            json!({ "headers": { "X-A": "a\r\nX-B: c" } }),
            "/headers/X-A",
        ),
        (json!({ "headers": { "X-A": " a" } }), "/headers/X-A"),
        (
            json!({ "headers": { "X-A": "a", "x-a": "b" } }),
            "/headers/x-a",
        ),
        (json!({ "headers": pairs(11) }), "/headers"),
        (json!({ "headers": large }), "/headers"),
        (json!({ "headers": { "X-A": "***" } }), "/headers/X-A"),
        (json!({ "filter": [] }), "/filter"),
        (json!({ "filter": { "labels": [1] } }), "/filter/labels"),
        (
            json!({ "filter": { "label_ids": null } }),
            "/filter/label_ids",
        ),
        (
            json!({ "filter": { "label_ids": [] } }),
            "/filter/label_ids",
        ),
        (
            json!({ "filter": { "label_ids": [1, "2"] } }),
            "/filter/label_ids/1",
        ),
        (
            json!({ "filter": { "label_ids": [0] } }),
            "/filter/label_ids/0",
        ),
        (
            json!({ "filter": { "label_ids": [9_223_372_036_854_775_808_u64] } }),
            "/filter/label_ids/0",
        ),
        (
            json!({ "filter": { "outlet_ids": vec![1; 101] } }),
            "/filter/outlet_ids",
        ),
        (
            json!({ "filter": { "statuses": [""] } }),
            "/filter/statuses/0",
        ),
        (
            json!({ "filter": { "statuses": ["x".repeat(65)] } }),
            "/filter/statuses/0",
        ),
        (
            json!({ "filter": { "statuses": ["complete"] } }),
            "/filter/statuses",
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(
            pointers(&api, &path, options.clone()).await,
            [expected],
            "{options}"
        );
        let (key, value) = options.as_object().unwrap().iter().next().unwrap();
        assert_eq!(
            pointers(&api, "/webhooks", with(key, value.clone())).await,
            [expected],
            "{options}"
        );
    }

    let row = service
        .sql
        .query_one(
            "select count(*) from walhook.webhook where headers is not null",
            &[],
        )
        .await
        .unwrap();

    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn reserved_and_repeated_headers_are_rejected() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");

    let reserved = [
        "Host",
        "content-type",
        "Content-Encoding",
        "Connection",
        "transfer-encoding",
        "TE",
        "Trailer",
        "Upgrade",
        "Proxy-Authorization",
        "Expect",
        "Keep-Alive",
        "User-Agent",
        "Accept-Encoding",
        "X-Webhook-Signature",
        "Webhook-Id",
        "traceparent",
        "tracestate",
        "X-Forwarded-For",
    ];
    for name in reserved {
        let problem = api
            .patch(&path, json!({ "headers": { name: "secret-value" } }))
            .await
            .expect(422);
        assert!(
            problem.json()["errors"][0]["detail"]
                .as_str()
                .unwrap()
                .starts_with("is reserved"),
            "{problem:?}"
        );

        assert!(!problem.body.contains("secret-value"));
    }

    let twice = r#"{"headers":{"X-A":"1","X-A":"2"}}"#;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client
        .patch(format!("{}{path}", api.url))
        .bearer_auth(&api.token);
    let answer = request
        .header("content-type", "application/json")
        .body(twice)
        .send()
        .await
        .unwrap();

    assert_eq!(
        answer.status(),
        400,
        "a key that occurs twice is malformed at any depth"
    );
}

#[tokio::test]
async fn a_masked_webhook_can_be_sent_back() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let created = api
        .post(
            "/webhooks",
            with("headers", json!({ "Authorization": KEY, "X-Zone": "eu" })),
        )
        .await;

    let created = created.expect(201).json();
    let id = created["id"].as_str().unwrap();
    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let first = api.get(&path).await;
    let tag = first.header("etag").unwrap().to_owned();

    let mut headers = first.json()["headers"].clone();
    let same = api
        .patch(&path, json!({ "headers": headers }))
        .await
        .expect(200);

    assert_eq!(same.header("etag"), Some(&*tag), "nothing has changed");

    headers["X-New"] = json!("n");
    headers.as_object_mut().unwrap().remove("X-Zone");

    let edited = api
        .patch(&path, json!({ "headers": headers }))
        .await
        .expect(200);
    assert_ne!(edited.header("etag"), Some(&*tag));
    assert_eq!(
        edited.json()["headers"],
        json!({ "Authorization": "***", "X-New": "***" })
    );

    let expected = [("Authorization", KEY), ("X-New", "n")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(stored_values(&service, id).await, expected);

    // A new value under the same name is another version, and a mask under a name in another case
    // keeps the value.
    let tag = edited.header("etag").unwrap().to_owned();
    let changed = api
        .patch(
            &path,
            json!({ "headers": { "authorization": "***", "X-New": "m" } }),
        )
        .await
        .expect(200);

    assert_ne!(changed.header("etag"), Some(&*tag));
    let stale = json!({ "headers": {} });

    api.send("PATCH", &path, &[("if-match", &tag)], Some(&stale))
        .await
        .expect(412);
    let expected = [("authorization", KEY), ("X-New", "m")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(stored_values(&service, id).await, expected);
    assert_eq!(
        pointers(&api, &path, json!({ "headers": { "X-Zone": "***" } })).await,
        ["/headers/X-Zone"]
    );
}

#[tokio::test]
async fn a_filter_must_fit_the_events_after_the_edit() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let filter = json!({ "outlet_ids": [5], "statuses": ["rejected", "error"] });
    let created = api
        .post("/webhooks", with("filter", filter))
        .await
        .expect(201)
        .json();
    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let payments = json!({ "events": ["payment.statement_ready"] });

    assert_eq!(
        pointers(&api, &path, payments.clone()).await,
        ["/filter/outlet_ids", "/filter/statuses"]
    );
    let transcodes = json!({ "events": ["transcode.failed"] });

    assert_eq!(
        pointers(&api, &path, transcodes).await,
        ["/filter/outlet_ids", "/filter/statuses"]
    );
    assert_eq!(
        api.webhook(created["id"].as_str().unwrap()).await["events"],
        created["events"]
    );

    // Both at once, or an event whose statuses are the platform's own.
    api.patch(
        &path,
        json!({ "events": ["transcode.failed"], "filter": { "statuses": ["incomplete"] } }),
    )
    .await
    .expect(200);

    let open = json!({ "events": ["distribution.outlet.status_changed"], "filter": { "statuses": ["limbo"] } });
    api.patch(&path, open).await.expect(200);

    let labels = json!({ "events": ["payment.statement_ready"], "filter": { "label_ids": [1] } });
    assert_eq!(pointers(&api, &path, labels).await, ["/filter/label_ids"]);
    api.patch(&path, json!({ "name": "renamed" }))
        .await
        .expect(200);
}

#[tokio::test]
async fn every_option_is_part_of_the_version() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}");
    let mut tags = vec![api.get(&path).await.header("etag").unwrap().to_owned()];

    for edit in [
        json!({ "description": "d" }),
        json!({ "metadata": { "a": "b" } }),
        json!({ "filter": { "label_ids": [1] } }),
        json!({ "headers": { "X-A": "1" } }),
        json!({ "headers": { "X-A": "2" } }),
        json!({ "headers": {} }),
    ] {
        tags.push(
            api.patch(&path, edit)
                .await
                .expect(200)
                .header("etag")
                .unwrap()
                .to_owned(),
        );
    }

    let distinct: std::collections::HashSet<&String> = tags.iter().collect();
    assert_eq!(distinct.len(), tags.len(), "{tags:?}");
}

#[tokio::test]
async fn another_user_cannot_learn_or_change_options() {
    let service = Service::start().await;
    let owner = service.api("owner").await;
    let stranger = service.api("stranger").await;

    let created = owner
        .post(
            "/webhooks",
            with("headers", json!({ "Authorization": KEY })),
        )
        .await
        .expect(201)
        .json();

    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());

    for body in [
        json!({ "headers": { "Authorization": "***" } }),
        json!({ "filter": { "label_ids": [0] } }),
    ] {
        stranger.patch(&path, body).await.expect(404);
    }

    assert!(stranger.webhooks().await.is_empty());
    assert_eq!(
        owner.webhook(created["id"].as_str().unwrap()).await["headers"],
        json!({ "Authorization": "***" })
    );
}

#[tokio::test]
async fn a_repeated_create_returns_masked_headers_that_are_stored_nowhere_in_clear() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = with("headers", json!({ "Authorization": KEY }));
    let mut answers = Vec::new();

    for _ in 0..2 {
        answers.push(
            api.send(
                "POST",
                "/webhooks",
                &[("idempotency-key", "one")],
                Some(&body),
            )
            .await
            .expect(201),
        );
    }

    assert_eq!(answers[0].body, answers[1].body);
    assert!(
        !answers[0].body.contains(KEY)
            && answers[0].json()["headers"] == json!({ "Authorization": "***" })
    );

    let sealed: Vec<u8> = one(&service.sql, "select headers from walhook.webhook").await;

    assert!(
        !sealed
            .windows(KEY.len())
            .any(|window| window == KEY.as_bytes()),
        "encrypted at rest"
    );
}

/// Somebody who may edit a webhook, but does not know the values of its headers, could otherwise
/// have them sent to another host.
#[tokio::test]
async fn values_of_headers_do_not_follow_a_webhook_to_another_host() {
    let service = Service::start().await;
    let api = service.api("1").await;

    let id = api
        .post(
            "/webhooks",
            with("headers", json!({ "X-Zone": "eu", "Authorization": KEY })),
        )
        .await
        .expect(201)
        .json();

    let id = id["id"].as_str().unwrap().to_owned();
    let path = format!("/webhooks/{id}");
    let kept = [("X-Zone", "eu"), ("Authorization", KEY)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let masked = json!({ "X-Zone": "***", "Authorization": "***" });

    for url in [
        "https://other.example/in",
        "https://receiver.example:8443/in",
        "https://sub.receiver.example/in",
    ] {
        let expected = ["/headers/X-Zone", "/headers/Authorization"];
        assert_eq!(
            pointers(&api, &path, json!({ "url": url })).await,
            expected,
            "{url}"
        );
        assert_eq!(
            pointers(&api, &path, json!({ "url": url, "headers": masked })).await,
            expected,
            "{url}"
        );
        let one = json!({ "url": url, "headers": { "x-zone": "eu", "Authorization": "***" } });
        assert_eq!(
            pointers(&api, &path, one).await,
            ["/headers/Authorization"],
            "{url}"
        );
    }

    assert_eq!(api.webhook(&id).await["url"], URL);

    for url in [
        "https://receiver.example:443/other?x=1",
        "https://RECEIVER.example/in",
    ] {
        api.patch(&path, json!({ "url": url, "headers": masked }))
            .await
            .expect(200);
        assert_eq!(stored_values(&service, &id).await, kept, "{url}");
    }

    let again = json!({ "url": "https://other.example/in", "headers": { "Authorization": "new" } });
    api.patch(&path, again).await.expect(200);
    assert_eq!(
        stored_values(&service, &id).await,
        [("Authorization".to_owned(), "new".to_owned())]
    );
    api.patch(&path, json!({ "url": URL, "headers": {} }))
        .await
        .expect(200);
    api.patch(&path, json!({ "url": "https://other.example/in" }))
        .await
        .expect(200);
}

/// An edit that meets another one is checked again, against what is there then.
#[tokio::test]
async fn values_of_headers_do_not_follow_a_webhook_whose_host_changes_meanwhile() {
    let service = Service::start().await;
    let api = service.api("1").await;

    let created = api
        .post(
            "/webhooks",
            with("headers", json!({ "Authorization": KEY })),
        )
        .await
        .expect(201)
        .json();

    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let holder = service.app.store().await;

    run_sql(
        &holder,
        "begin; update walhook.webhook set url = 'https://other.example/in'",
    )
    .await;
    let edit = api.patch(&path, json!({ "url": "https://receiver.example/new" }));
    let change = async {
        service.wait_until_blocked(1).await;
        run_sql(&holder, "commit").await;
    };

    let (edited, ()) = tokio::join!(edit, change);
    let problem = edited.expect(422).json();
    assert_eq!(problem["errors"][0]["pointer"], "/headers/Authorization");
}
