//! What the operations of the API have in common: unknown parameters, cursors, conditional
//! requests, documents and types of problems.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::fixture::{BASE, Service};
use crate::support::{Api, ApiAnswer, run_sql};

const URL: &str = "https://receiver.example/in";
const EVENTS: [&str; 1] = ["delivery.failed"];

#[track_caller]
fn expect_problem(answer: ApiAnswer, status: u16, slug: &str) -> Value {
    let problem = answer.expect(status).json();
    assert_eq!(problem["type"], format!("/problems/{slug}"), "{problem}");
    problem
}

#[tokio::test]
async fn unknown_query_parameters_are_named_by_every_operation() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &EVENTS).await;
    let document: Value =
        serde_json::from_str(&walhook::api::openapi_document(BASE, &Default::default())).unwrap();

    for (path, item) in document["paths"].as_object().unwrap() {
        let target = path
            .replace("{webhook}", &id)
            .replace("{log}", &id)
            .replace("{job}", &id)
            .replace("{id}", &id);

        for (method, operation) in item.as_object().unwrap() {
            let target = format!("{target}?limit=1&colour=red&Limit=2&colour=blue");
            let body = json!({});
            let body = (method != "get").then_some(&body);
            let problem = expect_problem(
                api.send(&method.to_uppercase(), &target, &[], body).await,
                400,
                "unknown-parameter",
            );
            let pointers: Vec<&str> = problem["errors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|error| error["pointer"].as_str().unwrap())
                .collect();

            let parameters = operation["parameters"].as_array();
            let known: Vec<&str> = parameters
                .into_iter()
                .flatten()
                .filter(|parameter| parameter["in"] == "query")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            match known.contains(&"limit") {
                true => assert_eq!(pointers, ["/colour", "/Limit"], "{method} {path}"),
                false => assert_eq!(pointers, ["/limit", "/colour", "/Limit"], "{method} {path}"),
            }

            let detail = problem["errors"][0]["detail"].as_str().unwrap();
            assert!(
                known.iter().all(|name| detail.contains(name)),
                "{method} {path}: {detail}"
            );
        }
    }

    api.webhook(&id).await;

    // Who may not call the API learns nothing else.
    Api::new(&service.url, "none")
        .get("/webhooks?colour=red")
        .await
        .expect(401);
    let origin = service.url.strip_suffix(BASE).unwrap();
    let keys = Api::new(origin, "none")
        .get("/.well-known/walhook-keys.json?colour=red")
        .await;

    expect_problem(keys, 400, "unknown-parameter");
    let many = "x=1&".repeat(200);
    let problem = expect_problem(
        api.get(&format!("/webhooks?{many}")).await,
        400,
        "unknown-parameter",
    );
    assert_eq!(
        problem["errors"].as_array().unwrap().len(),
        1,
        "each name once"
    );
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (first, _) = api.create_webhook(URL, &EVENTS).await;
    let (second, _) = api.create_webhook(URL, &EVENTS).await;

    for webhook in [&first, &second] {
        for _ in 0..2 {
            api.post(&format!("/webhooks/{webhook}/test"), json!({}))
                .await
                .expect(200);
            let recover = json!({ "since": "2026-01-01T00:00:00Z" });
            api.post(&format!("/webhooks/{webhook}/recover"), recover)
                .await
                .expect(202);
        }
    }

    // The stand-in for the sending side logs no tests.
    let entries = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, duration_ms, outcome)
                   select gen_random_uuid(), id, id, id, 'delivery.failed', 1, n, now(), 5, 'failed'
                   from walhook.webhook, generate_series(1, 2) as n";
    run_sql(&service.sql, entries).await;

    let lists = [
        "/webhooks".to_owned(),
        format!("/webhooks/{first}/logs"),
        format!("/webhooks/{second}/logs"),
        format!("/webhooks/{first}/jobs"),
        format!("/webhooks/{second}/jobs"),
    ];

    let mut cursors = vec![
        "x".to_owned(),
        "AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
        format!("{}Z", "A".repeat(27)),
    ];

    for list in &lists {
        let page = api.get(&format!("{list}?limit=1")).await.expect(200).json();
        cursors.push(
            page["next_cursor"]
                .as_str()
                .unwrap_or_else(|| panic!("{list}: {page}"))
                .to_owned(),
        );
    }

    cursors.push(
        api.get("/events?limit=1").await.expect(200).json()["next_cursor"]
            .as_str()
            .unwrap()
            .to_owned(),
    );

    for (index, list) in lists.iter().enumerate() {
        for (given, cursor) in cursors.iter().enumerate() {
            let answer = api.get(&format!("{list}?limit=1&cursor={cursor}")).await;

            if given == index + 3 {
                answer.expect(200);
            } else {
                let problem = expect_problem(answer, 400, "invalid-cursor");
                assert_eq!(
                    problem["errors"][0]["pointer"], "/cursor",
                    "{list} {cursor}"
                );
            }
        }
    }

    for cursor in &cursors[..cursors.len() - 1] {
        let problem = expect_problem(
            api.get(&format!("/events?after={cursor}")).await,
            400,
            "invalid-cursor",
        );
        assert_eq!(problem["errors"][0]["pointer"], "/after");
    }

    let origin = service.url.strip_suffix(BASE).unwrap();
    let keys = Api::new(origin, "none")
        .get(&format!(
            "/.well-known/walhook-keys.json?cursor={}",
            cursors[3]
        ))
        .await;

    expect_problem(keys, 400, "invalid-cursor");
}

#[tokio::test]
async fn a_period_that_ends_before_it_begins_is_invalid() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &EVENTS).await;
    let path = format!("/webhooks/{id}/logs");
    let early = "2026-03-01T09:00:00Z";
    let late = "2026-03-01T09:00:01Z";
    let problem = expect_problem(
        api.get(&format!("{path}?since={late}&until={early}")).await,
        422,
        "validation-failed",
    );

    assert_eq!(problem["errors"][0]["pointer"], "/until", "{problem}");

    for (since, until) in [(early, late), (early, early)] {
        api.get(&format!("{path}?since={since}&until={until}"))
            .await
            .expect(200);
    }
}

#[tokio::test]
async fn if_none_match_saves_reading_what_is_known_and_guards_edits() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &EVENTS).await;
    let path = format!("/webhooks/{id}");

    let etag = api
        .get(&path)
        .await
        .expect(200)
        .header("etag")
        .unwrap()
        .to_owned();

    let with = async |method: &str, value: &str, body: Option<&Value>| {
        api.send(method, &path, &[("if-none-match", value)], body)
            .await
    };

    let rename = json!({ "name": "new" });

    for matching in [
        etag.clone(),
        format!("W/{etag}"),
        format!("\"other\", {etag}"),
        "*".to_owned(),
    ] {
        let answer = with("GET", &matching, None).await.expect(304);
        assert_eq!(
            (answer.header("etag"), &*answer.body),
            (Some(&*etag), ""),
            "{matching}"
        );
        assert!(
            answer.header("cache-control").is_some() && answer.header("content-type").is_none()
        );
        expect_problem(
            with("PATCH", &matching, Some(&rename)).await,
            412,
            "precondition-failed",
        );
        expect_problem(
            with("DELETE", &matching, None).await,
            412,
            "precondition-failed",
        );
    }

    for other in ["\"other\"", "other", "W/\"other\""] {
        assert_eq!(
            with("GET", other, None).await.expect(200).json()["name"],
            "test"
        );
    }

    with("PATCH", "\"other\"", Some(&rename)).await.expect(200);
    assert_eq!(
        with("GET", &etag, None).await.expect(200).json()["name"],
        "new",
        "it has another version now"
    );
    with("DELETE", &etag, None).await.expect(204);
    expect_problem(with("GET", "*", None).await, 404, "not-found");
}

#[tokio::test]
async fn documents_can_be_cached_and_are_compressed() {
    let service = Service::start().await;
    let origin = service.url.strip_suffix(BASE).unwrap();
    let client = Api::new(origin, "none");
    let mut etags = HashSet::new();
    let keys = "/.well-known/walhook-keys.json";

    for path in [
        &format!("{BASE}/openapi.json"),
        &format!("{BASE}/asyncapi.json"),
        &format!("{BASE}/docs"),
        keys,
    ] {
        let get = async |headers: &[(&str, &str)]| client.send("GET", path, headers, None).await;
        let whole = get(&[]).await.expect(200);
        let etag = whole
            .header("etag")
            .unwrap_or_else(|| panic!("{path} has no ETag"))
            .to_owned();
        assert!(
            whole
                .header("cache-control")
                .unwrap()
                .starts_with("public, max-age="),
            "{path}"
        );
        assert_eq!(whole.header("content-encoding"), None, "{path}");
        let known = get(&[("if-none-match", &etag)]).await.expect(304);
        assert_eq!(
            (known.header("etag"), &*known.body),
            (Some(&*etag), ""),
            "{path}"
        );
        assert_eq!(
            known.header("cache-control"),
            whole.header("cache-control"),
            "{path}"
        );
        etags.insert(etag);

        // Keys are read often, and are not compressed.
        if path == keys {
            continue;
        }

        assert_eq!(whole.header("vary"), Some("accept-encoding"), "{path}");

        for refused in ["identity", "gzip;q=0", "br", "gzip; q=0.0, *"] {
            assert_eq!(
                get(&[("accept-encoding", refused)])
                    .await
                    .header("content-encoding"),
                None,
                "{refused}"
            );
        }
        for accepted in ["gzip", "br, GZIP;q=0.5", "*"] {
            let compressed = get(&[("accept-encoding", accepted)]).await.expect(200);
            assert_eq!(
                compressed.header("content-encoding"),
                Some("gzip"),
                "{path} {accepted}"
            );

            let length = |answer: &ApiAnswer| {
                answer
                    .header("content-length")
                    .unwrap()
                    .parse::<usize>()
                    .unwrap()
            };

            assert!(length(&compressed) < length(&whole), "{path}");
        }
    }

    assert_eq!(etags.len(), 4);
}

#[tokio::test]
async fn types_of_problems_lead_to_their_description() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let origin = service.url.strip_suffix(BASE).unwrap();
    let client = Api::new(origin, "none");
    let docs = client
        .get(&format!("{BASE}/docs/problems"))
        .await
        .expect(200)
        .body;
    let document: Value =
        serde_json::from_str(&walhook::api::openapi_document(BASE, &Default::default())).unwrap();
    let text = document.to_string();
    let mut types: HashSet<String> = text
        .split("\"/problems/")
        .skip(1)
        .map(|rest| format!("/problems/{}", &rest[..rest.find('"').unwrap()]))
        .collect();

    types.insert(
        api.get("/webhooks?limit=0").await.json()["type"]
            .as_str()
            .unwrap()
            .to_owned(),
    );

    assert!(types.len() > 10, "{types:?}");

    for kind in types {
        let answer = client.get(&kind).await.expect(308);
        let target = answer.header("location").unwrap();
        let anchor = target
            .strip_prefix(&format!("{BASE}/docs/problems#"))
            .unwrap_or_else(|| panic!("{target}"));

        assert!(docs.contains(&format!("id=\"{anchor}\"")), "{target}");
    }

    client.get("/problems/nonsense").await.expect(404);
}
