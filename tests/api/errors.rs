//! Error responses of the API.

use serde_json::{Value, json};
use tokio::task::JoinSet;
use walhook::api::router;
use walhook::config::Config;
use walhook::store::Store;

use crate::fixture::{BASE, BLOCKED_URL, PLAIN_URL, Service, serve, state};
use crate::support::{Api, ApiAnswer, run_sql};

const URL: &str = "https://receiver.example/in";

#[track_caller]
fn expect_problem(answer: ApiAnswer, status: u16, slug: &str) -> Value {
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{answer:?}"
    );
    let problem = answer.expect(status).json();

    assert_eq!(problem["type"], format!("/problems/{slug}"));
    assert_eq!(problem["status"], status);
    assert!(problem["title"].is_string() && problem["detail"].is_string());

    problem
}

fn pointers(problem: &Value) -> Vec<&str> {
    let errors = problem["errors"].as_array().unwrap();
    assert!(errors.iter().all(|error| error["detail"].is_string()));

    errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect()
}

/// Sends a POST with this raw body.
async fn post_raw(api: &Api, content_type: &str, body: impl Into<reqwest::Body>) -> ApiAnswer {
    let request = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("{}/webhooks", api.url));
    let request = request
        .bearer_auth(&api.token)
        .header("content-type", content_type)
        .body(body);
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let headers = answer.headers().clone();

    ApiAnswer {
        status,
        headers,
        body: answer.text().await.unwrap(),
    }
}

#[tokio::test]
async fn every_error_of_a_body_is_listed() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let good = json!({ "name": "x", "url": URL, "events": ["delivery.failed"] });
    let with = |key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        body
    };

    let cases = [
        (json!({}), vec!["/name", "/url", "/events"]),
        (json!([]), vec![""]),
        (json!("text"), vec![""]),
        (with("name", json!("")), vec!["/name"]),
        (with("name", json!("a\u{7}")), vec!["/name"]),
        (with("name", json!("a\u{0}")), vec!["/name"]),
        (with("name", Value::Null), vec!["/name"]),
        (with("url", json!("receiver.example")), vec!["/url"]),
        (with("url", json!(BLOCKED_URL)), vec!["/url"]),
        (with("url", json!(PLAIN_URL)), vec!["/url"]),
        (with("events", json!([])), vec!["/events"]),
        (
            with("events", json!(["delivery.failed", "nothing.known"])),
            vec!["/events/1"],
        ),
        (with("active", json!("yes")), vec!["/active"]),
        (with("secret", json!("mine")), vec!["/secret"]),
        (
            json!({ "name": 1, "url": PLAIN_URL, "events": {}, "a/b": 1 }),
            vec!["/name", "/url", "/events", "/a~1b"],
        ),
    ];
    for (body, expected) in cases {
        let problem = expect_problem(
            api.post("/webhooks", body.clone()).await,
            422,
            "validation-failed",
        );
        assert_eq!(pointers(&problem), expected, "{body}");
        let detail = problem["detail"].as_str().expect("a text");
        assert!(!detail.starts_with(':'), "{detail}");
    }

    let rejected = api
        .post("/webhooks", with("url", json!(BLOCKED_URL)))
        .await
        .json();
    assert_eq!(rejected["errors"][0]["detail"], "its host is not allowed");
    assert!(api.webhooks().await.is_empty());

    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let body = json!({ "id": id, "success_count": 5, "url": PLAIN_URL });
    let problem = expect_problem(
        api.patch(&format!("/webhooks/{id}"), body).await,
        422,
        "validation-failed",
    );

    assert_eq!(pointers(&problem), ["/url", "/id", "/success_count"]);
}

#[tokio::test]
async fn a_body_must_be_small_json_with_a_json_content_type() {
    let service =
        Service::start_with(|config| config.http.max_body_bytes = walhook::config::Size(1_000))
            .await;
    let api = service.api("1").await;

    for body in ["", "{", "{\"name\": }", "\u{feff}{}", "nonsense"] {
        expect_problem(
            post_raw(&api, "application/json", body).await,
            400,
            "malformed-json",
        );
    }

    expect_problem(
        post_raw(&api, "application/json", vec![b'"', 0xFF, b'"']).await,
        400,
        "malformed-json",
    );
    let nested = "[".repeat(900);

    expect_problem(
        post_raw(&api, "application/json", nested).await,
        400,
        "malformed-json",
    );
    expect_problem(
        post_raw(&api, "text/plain", "{}").await,
        415,
        "unsupported-media-type",
    );

    let body = |length: usize| format!("{{\"x\":\"{}\"}}", "x".repeat(length - 8));
    expect_problem(
        post_raw(&api, "application/json; charset=utf-8", body(1_000)).await,
        422,
        "validation-failed",
    );
    expect_problem(
        post_raw(&api, "application/json", body(1_001)).await,
        413,
        "content-too-large",
    );
    expect_problem(
        post_raw(&api, "application/json", body(3_000_000)).await,
        413,
        "content-too-large",
    );
}

#[tokio::test]
async fn the_list_of_errors_is_bounded() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let body = json!({ "name": "x", "url": URL, "events": vec![0; 30_000] });
    let problem = expect_problem(api.post("/webhooks", body).await, 422, "validation-failed");
    assert_eq!(pointers(&problem).len(), 20);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    for path in [
        "/nothing",
        "/webhooks/",
        "/webhooks/no-id",
        "/webhooks/%FF",
        "/webhooks/%00",
    ] {
        expect_problem(api.get(path).await, 404, "not-found");
    }

    for path in ["/", "/webhooks"] {
        let origin = service.url.strip_suffix(BASE).unwrap();
        expect_problem(api.at(origin).get(path).await, 404, "not-found");
    }

    expect_problem(
        api.get(&format!("/webhooks/{id}/logs/no-id")).await,
        404,
        "not-found",
    );
    let wrong_methods = [
        ("PUT", "/webhooks".to_owned(), "GET,HEAD,POST"),
        ("POST", format!("/webhooks/{id}"), "GET,HEAD,PATCH,DELETE"),
        ("DELETE", "/webhooks/event-types".into(), "GET,HEAD"),
        ("GET", format!("/webhooks/{id}/regenerate-secret"), "POST"),
    ];
    for (method, path, allowed) in wrong_methods {
        let answer = api
            .send(method, &format!("{path}?colour=red"), &[], None)
            .await;
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        expect_problem(answer, 405, "method-not-allowed");
    }
}

#[tokio::test]
async fn queries_are_validated() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;

    for query in [
        "limit=0",
        "limit=101",
        "limit=ten",
        "cursor=x",
        "cursor=AAAA",
    ] {
        for path in ["/webhooks".to_owned(), format!("/webhooks/{id}/logs")] {
            let is_cursor = query.starts_with("cursor");
            let (status, slug) = if is_cursor {
                (400, "invalid-cursor")
            } else {
                (422, "validation-failed")
            };

            let problem = expect_problem(api.get(&format!("{path}?{query}")).await, status, slug);
            assert_eq!(
                pointers(&problem),
                [format!("/{}", query.split('=').next().unwrap())]
            );
        }
    }

    let path = format!(
        "/webhooks/{id}/logs?event=none&outcome=good&since=yesterday&until=2026-02-30T00:00:00Z"
    );
    let problem = expect_problem(api.get(&path).await, 422, "validation-failed");
    assert_eq!(
        pointers(&problem),
        ["/event", "/outcome", "/since", "/until"]
    );
}

#[tokio::test]
async fn requests_without_a_valid_token_are_rejected() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let flipped = |token: &str| token.replace(|c: char| c.is_ascii_lowercase(), "A");

    let tokens = [
        String::new(),
        "whk_".into(),
        flipped(&api.token),
        api.token[..46].into(),
        format!("{}x", api.token),
    ];
    for token in tokens {
        let api = Api::new(&api.url, &token);
        let operations = [
            ("GET", "/webhooks".to_owned()),
            ("POST", "/webhooks".to_owned()),
            ("GET", "/webhooks/event-types".to_owned()),
            ("GET", format!("/webhooks/{id}")),
            ("PATCH", format!("/webhooks/{id}")),
            ("DELETE", format!("/webhooks/{id}")),
            ("POST", format!("/webhooks/{id}/regenerate-secret")),
            ("POST", format!("/webhooks/{id}/test")),
            ("GET", format!("/webhooks/{id}/logs")),
            ("GET", format!("/webhooks/{id}/logs/{id}")),
        ];
        for (method, path) in operations {
            let answer = api.send(method, &path, &[], None).await;
            assert_eq!(
                answer.header("www-authenticate"),
                Some("Bearer"),
                "{method} {path}"
            );
            expect_problem(answer, 401, "unauthorized");
        }
    }

    api.get(&format!("/webhooks/{id}")).await.expect(200);
}

#[tokio::test]
async fn the_rate_limit_is_per_user_however_it_is_authenticated() {
    let service = Service::start_with(|config| {
        config.limits.requests_per_second = 1;
        config.limits.burst = 4;
    })
    .await;
    let api = service.api("1").await;
    let same_user = service.api("1").await;
    let other = service.api("2").await;
    let session = "insert into walhook.session (hash, user_id) values (sha256('session'), '1')";
    run_sql(&service.sql, session).await;

    let limited = |answer: &ApiAnswer| {
        assert_eq!(answer.header("ratelimit-policy"), Some("\"user\";q=4;w=4"));
        answer.header("ratelimit").unwrap().to_owned()
    };

    let first = api.get("/webhooks").await.expect(200);
    assert_eq!(limited(&first), "\"user\";r=3;t=1");
    let second = same_user.get("/webhooks").await.expect(200);
    assert_ne!(limited(&second), limited(&first));

    // On a slow machine, the rate limit may allow another request meanwhile.
    let mut answer = same_user.get("/webhooks").await;
    while answer.status == 200 {
        answer = same_user.get("/webhooks").await;
    }

    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(limited(&answer), "\"user\";r=0;t=1");
    expect_problem(answer, 429, "rate-limited");

    let cookie = [("cookie", "walhook_session=session")];
    let mut statuses = vec![api.get("/webhooks").await.status];
    statuses.push(api.get_without_token("/webhooks", &cookie).await.0);
    assert!(statuses.contains(&429), "{statuses:?}");

    other.get("/webhooks").await.expect(200);
    let nobody = Api::new(&service.url, "none").get("/webhooks").await;
    assert_eq!(nobody.expect(401).header("ratelimit"), None);
}

/// Otherwise a client that ignores the limit would keep the store busy.
#[tokio::test]
async fn requests_beyond_the_rate_limit_are_rejected_without_the_store() {
    let service = Service::start_with(|config| {
        (config.limits.requests_per_second, config.limits.burst) = (1, 1)
    })
    .await;
    let token = service.api("1").await.token;
    let holder = service.app.store().await;

    run_sql(
        &holder,
        "begin; lock table walhook.api_token, walhook.session",
    )
    .await;

    for (name, value) in [
        ("authorization", format!("Bearer {token}")),
        ("cookie", "walhook_session=any".to_owned()),
    ] {
        let mut requests = JoinSet::new();
        // More than the limit allows until the lookups of the first ones time out.
        for _ in 0..32 {
            let request = reqwest::Client::builder()
                .no_proxy()
                .build()
                .unwrap()
                .get(format!("{}/webhooks", service.url))
                .header(name, &value);
            requests.spawn(request.send());
        }
        let mut statuses = Vec::new();
        while let Some(response) = requests.join_next().await {
            statuses.push(response.unwrap().unwrap().status().as_u16());

            if statuses.contains(&429) {
                break;
            }
        }
        assert!(statuses.contains(&429), "{name}: {statuses:?}");
    }
}

#[tokio::test]
async fn guesses_of_tokens_are_limited_together_and_valid_tokens_are_not() {
    let service = Service::start_with(|config| {
        (config.limits.requests_per_second, config.limits.burst) = (5, 50)
    })
    .await;
    let api = service.api("1").await;

    api.get("/webhooks").await.expect(200);
    let mut guesses = JoinSet::new();
    let mut rejected = 0;

    for number in 0..100_000 {
        let guess = Api::new(&service.url, &format!("whk_{number:043}"));
        guesses.spawn(async move { guess.get("/webhooks").await.status });

        if number < 32 {
            continue;
        }

        match guesses.join_next().await.unwrap().unwrap() {
            401 => {}
            429 => {
                api.get("/webhooks").await.expect(200);
                rejected += 1;
            }
            status => panic!("{status}"),
        }

        if rejected == 10 {
            return;
        }
    }

    panic!("no guess was rejected");
}

#[tokio::test]
async fn internal_errors_reveal_nothing() {
    let service = Service::start().await;
    let api = service.api("1").await;

    run_sql(&service.sql, "drop schema walhook cascade").await;
    let answer = api.get("/webhooks").await;

    assert!(
        !answer.body.contains("api_token") && !answer.body.contains("relation"),
        "{answer:?}"
    );
    expect_problem(answer, 500, "internal-error");

    let nobody = walhook::private_postgres::free_port().unwrap();
    let store = Store::open(
        &format!("postgres://nobody:hidden@127.0.0.1:{nobody}/none?sslmode=disable"),
        1,
    )
    .unwrap();
    let origin = serve(router(state(&Config::default(), store))).await;
    let answer = api.at(&format!("{origin}{BASE}")).get("/webhooks").await;

    assert!(
        answer.header("retry-after").is_some() && !answer.body.contains("127.0.0.1"),
        "{answer:?}"
    );
    expect_problem(answer, 503, "unavailable");
}

#[tokio::test]
async fn responses_have_a_request_id_and_security_headers() {
    let service = Service::start().await;
    let api = service.api("1").await;

    for path in ["/webhooks", "/nothing", "/webhooks/no-id"] {
        let answer = api
            .send("GET", path, &[("x-request-id", "given-1.x:y")], None)
            .await;
        assert_eq!(answer.header("x-request-id"), Some("given-1.x:y"));

        if answer.status != 200 {
            assert_eq!(answer.json()["request_id"], "given-1.x:y");
        }

        let generated = api
            .send("GET", path, &[("x-request-id", "with space")], None)
            .await;
        let another = api.get(path).await;

        assert_eq!(generated.header("x-request-id").unwrap().len(), 36);
        assert_ne!(
            generated.header("x-request-id"),
            another.header("x-request-id")
        );

        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }

        assert!(
            answer
                .header("content-security-policy")
                .unwrap()
                .contains("default-src 'none'")
        );
    }
}
