//! Hostile requests, measured from outside: however many small parts they have, they take little
//! memory.

use futures_util::future::join_all;
use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};
use reqwest::{Client, redirect};
use serde_json::json;

use crate::support::{Answer, Api, ApiAnswer, Receiver, TestApp};

const URL: &str = "https://receiver.example/in";
/// How much the process may grow by a hundred requests: each has a read buffer of 32 KiB, and a
/// body or a query.
const MAX_GROWTH_KIB: u64 = 32 << 10;
/// The parts of a long query or body. Each takes two bytes in the request, and 80 in memory.
const PART: &str = "&a";

async fn start(settings: &[(&str, &str)]) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0");

    for (key, value) in settings {
        app.set(key, value);
    }

    app.setup().await;
    app.run_with(&["--roles", "api"]).await;

    app
}

/// Sends one request to warm up, then `count` at once. Returns all their results.
async fn burst<T, F: Future<Output = T>>(
    app: &mut TestApp,
    count: usize,
    send: impl Fn(usize) -> F,
) -> Vec<T> {
    let first = send(0).await;
    let before = app.sidecar().peak_memory_kib();
    let mut results = join_all((0..count).map(send)).await;

    // The kernel approximates the peak, so that it can seem to fall by some pages.
    let grown = app.sidecar().peak_memory_kib().saturating_sub(before);
    println!("{count} requests: {before} KiB, then {grown} KiB more");
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
    results.push(first);

    results
}

/// Sends a request again while the service is handling as many as allowed, as on a busy machine.
async fn served<F: Future<Output = ApiAnswer>>(send: impl Fn() -> F) -> ApiAnswer {
    loop {
        let answer = send().await;
        if answer.status != 503 {
            return answer;
        }
    }
}

/// A browser, which does not follow redirects.
struct Browser {
    client: Client,
    origin: String,
}

impl Browser {
    fn new(api: &Api) -> Browser {
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .build()
            .unwrap();
        Browser {
            client,
            origin: api.url.strip_suffix("/api/public").unwrap().to_owned(),
        }
    }

    /// Returns the status, the cookie and the page.
    async fn post(&self, path: &str, cookie: &str, form: String) -> (u16, Option<String>, String) {
        let request = self
            .client
            .post(format!("{}{path}", self.origin))
            .header(COOKIE, cookie);
        let form = request
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        let response = form.send().await.unwrap();
        let status = response.status().as_u16();
        let set = response
            .headers()
            .get(SET_COOKIE)
            .map(|set| set.to_str().unwrap().to_owned());

        (status, set, response.text().await.unwrap())
    }
}

#[tokio::test]
async fn a_hundred_requests_with_many_errors_take_little_memory() {
    let mut app = start(&[]).await;
    let api = app.api("1").await;
    let wrong = json!({ "name": "x", "url": URL, "events": vec![1; 32_000] });
    for answer in burst(&mut app, 100, |_| {
        served(|| api.post("/webhooks", wrong.clone()))
    })
    .await
    {
        assert_eq!(
            answer.expect(422).json()["errors"]
                .as_array()
                .unwrap()
                .len(),
            20
        );
    }
}

/// The handler waits for the webhook before it reads the body.
#[tokio::test]
async fn a_hundred_bodies_that_wait_for_the_store_take_little_memory() {
    let mut app = start(&[]).await;
    let api = app.api("1").await;
    let (id, _) = api.create_webhook(URL, &["delivery.failed"]).await;
    let path = format!("/webhooks/{id}/test");
    let wrong = json!({ "event": vec![1; 32_000] });

    for answer in burst(&mut app, 100, |_| served(|| api.post(&path, wrong.clone()))).await {
        answer.expect(422);
    }
}

#[tokio::test]
async fn a_hundred_queries_with_many_errors_take_little_memory() {
    let mut app = start(&[]).await;
    let api = app.api("1").await;
    let path = format!("/events?event={}", ",".repeat(30_000));
    for answer in burst(&mut app, 100, |_| served(|| api.get(&path))).await {
        assert_eq!(
            answer.expect(422).json()["errors"]
                .as_array()
                .unwrap()
                .len(),
            20
        );
    }
}

#[tokio::test]
async fn a_hundred_queries_with_many_parameters_take_little_memory() {
    let mut app = start(&[]).await;
    let api = app.api("1").await;
    let path = format!("/webhooks?limit=1{}", PART.repeat(15_000));
    for answer in burst(&mut app, 100, |_| served(|| api.get(&path))).await {
        let problem = answer.expect(422).json();
        assert!(
            problem["detail"].as_str().unwrap().contains("256"),
            "{problem}"
        );
    }

    let most = format!("/webhooks?limit=1{}", PART.repeat(255));
    let problem = api.get(&most).await.expect(400).json();
    assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem}");
    api.get(&format!("{most}{PART}")).await.expect(422);
}

#[tokio::test]
async fn sign_ins_with_long_forms_take_little_memory() {
    let mut app = start(&[]).await;
    let api = app.api("1").await;
    let browser = Browser::new(&api);

    // Too long, and as long as allowed with too many fields.
    for (count, parts, expected) in [(30, 130_000, 413), (100, 12_000, 422)] {
        let form = |number: usize| format!("token=whk_{number:043}{}", PART.repeat(parts));

        for (status, ..) in burst(&mut app, count, |number| {
            browser.post("/ui/login", "", form(number))
        })
        .await
        {
            assert_eq!(status, expected);
        }
    }
}

#[tokio::test]
async fn forty_tests_in_flight_with_long_forms_take_little_memory() {
    let mut app = start(&[("delivery.timeout", "2s")]).await;
    let api = app.api("1").await;
    let receiver = Receiver::start().await;

    receiver.answer(|_| Answer::Hang);
    let mut webhooks = Vec::new();

    for _ in 0..10 {
        webhooks.push(
            api.create_webhook(&receiver.url("/in"), &["delivery.failed"])
                .await
                .0,
        );
    }

    let browser = Browser::new(&api);
    let (_, session, _) = browser
        .post("/ui/login", "", format!("token={}", api.token))
        .await;
    let session = session.unwrap().split(';').next().unwrap().to_owned();

    // At most four tests of one webhook are in flight.
    let webhook = |number: usize| &webhooks[number / 4];

    for (parts, expected) in [(130_000, 413), (12_000, 422), (255, 303)] {
        let form = |number: usize| format!("webhook={}{}", webhook(number), PART.repeat(parts));

        for (status, _, page) in burst(&mut app, 40, |number| {
            browser.post("/ui/test", &session, form(number))
        })
        .await
        {
            assert_eq!(status, expected);
            assert!(expected != 422 || page.contains("256"), "{page}");
        }
    }

    assert_eq!(receiver.requests().len(), 41);
}
