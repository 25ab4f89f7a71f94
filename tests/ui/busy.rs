//! An account with as much in it as its pages show: no page of it is large.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::audit::MAX_PAGE_BYTES;
use crate::browser::{self, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::screenshots::HISTORY;
use crate::support::{Answer, TestApp, eventually};

const NAME: &str = "Import of the statements and deliveries of all our labels";
/// Each raises two events: more than the rows of a page, but less than the failures that disable a
/// webhook.
const DISTRIBUTIONS: i64 = 30;

/// Each has the parameters $1 webhook and $2 a name.
const FILLS: [&str; 3] = [
    "insert into walhook.api_token (id, user_id, name, hash, expires_at, used_at)
     select gen_random_uuid(), user_id, $2, sha256(n::text::bytea), now() + interval '1 day', now()
     from walhook.webhook, generate_series(1, 200) as n where id = $1",
    "insert into walhook.recovery (id, webhook_id, since, until, outcomes, missed, kind, phase, due_at, total)
     select gen_random_uuid(), $1, now(), now(), array[$2], false, 'replay', 'events', 'infinity', 20000 + n
     from generate_series(1, 60) as n",
    "insert into walhook.audit (id, user_id, via, action, subject_id, changed, count)
     select gen_random_uuid(), user_id, 'token', 'webhook.updated', $1,
         array['name', 'url', 'events', 'active', 'ordering', 'signing', 'description', 'metadata', 'headers', 'filter'], n
     from walhook.webhook, generate_series(1, 60) as n where id = $1 and $2 <> ''",
];

/// Further attempts ($1) of the delivery of an entry ($2).
const ATTEMPTS: &str = "
    insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, sequence, round, attempt, started_at,
        duration_ms, outcome, response_status, error_kind, error_message, url)
    select given.id, webhook_id, delivery_id, event_id, event_kind, sequence, 2 + n / 10, 1 + n % 10, now(),
        1000 * n, 'failed', null, 'response_timeout', 'no answer within 10 s', url
    from walhook.attempt, unnest($1::uuid[]) with ordinality as given (id, n) where attempt.id = $2";

async fn busy_webhook(stage: &Stage) -> String {
    let id = stage.webhook_with_log(NAME).await;
    let kinds = stage
        .api
        .get("/webhooks/event-types")
        .await
        .expect(200)
        .json();
    let kinds = kinds["data"].as_array().expect("a list");
    let events: Vec<&Value> = kinds.iter().map(|kind| &kind["event"]).collect();
    let pairs = |count: usize, prefix: &str| -> Map<String, Value> {
        let pair = |n| (format!("{prefix}{n}"), json!("a value of usual length"));
        (0..count).map(pair).collect()
    };

    let settings = json!({
        "events": events, "description": "Owner: the team. ".repeat(29), "metadata": pairs(20, "key-"),
        "headers": pairs(10, "X-Header-"), "filter": { "label_ids": (stage.label..stage.label + 20).collect::<Vec<_>>() },
    });
    let path = format!("/webhooks/{id}");
    stage.api.patch(&path, settings.clone()).await.expect(200);

    for n in 1..10 {
        let mut other = settings.clone();
        other["name"] = json!(format!("{NAME} {n}"));
        other["url"] = json!(stage.receiver.url("/a/path/of/usual/length"));
        stage.api.post("/webhooks", other).await.expect(201);
    }

    id
}

/// Raises many events, the last of which is large and is answered with a large response.
async fn raise_events(stage: &Stage, webhook: &str) {
    let page = "<p class=\"error\">Out of order & closed</p>\n".repeat(200);
    stage.receiver.answer(move |_| {
        let headers = (0..8).map(|_| ("x-cache-information", "none & never".repeat(15)));
        Answer::Full(500, headers.collect(), page.clone().into_bytes())
    });

    let release = stage.platform.release(stage.label).await;
    let outlet = stage
        .platform
        .outlet("An Outlet With a Long Name International")
        .await;
    let distributions = "insert into distro_queue (id, release_id, outlet_id, status)
                         select 1000000000 + n, $1, $2, 'complete' from generate_series(1, $3::bigint) as n";
    stage
        .platform
        .execute(distributions, &[&release, &outlet, &DISTRIBUTIONS])
        .await;

    let issues = json!(vec![
        json!({ "field": "artwork", "message": "The \"cover\" is too small" });
        800
    ]);
    let reject = "update release set review_status = 'rejected', review_issues = $2 where id = $1";
    stage.platform.execute(reject, &[&release, &issues]).await;

    let is_large = |log: &Value| log["event_type"] == REVIEW;
    stage
        .api
        .wait_for_logs(webhook, "many deliveries", |logs| {
            logs.len() > 60 && logs.iter().any(is_large)
        })
        .await;
}

/// Starts the account, and returns the name and the path of each page.
async fn start() -> (Stage, Vec<(&'static str, String)>) {
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0")
        .set("delivery.retry_schedule", &["1h"; 9].join(","));

    let stage = Stage::start_with(app).await;
    let webhook = busy_webhook(&stage).await;
    let id: Uuid = webhook.parse().unwrap();
    raise_events(&stage, &webhook).await;
    let mut pages = stage.pages(&webhook).await;

    let store = stage.app.store().await;
    store.execute(HISTORY, &[&id]).await.unwrap();

    for fill in FILLS {
        store.execute(fill, &[&id, &NAME]).await.unwrap();
    }

    let logs = stage.api.logs(&webhook).await;
    let large = logs
        .iter()
        .find(|log| log["event_type"] == REVIEW)
        .expect("a large one");
    let large: Uuid = large["id"].as_str().expect("an id").parse().unwrap();
    let attempts: Vec<Uuid> = (0..50).map(|_| Uuid::now_v7()).collect();
    store.execute(ATTEMPTS, &[&attempts, &large]).await.unwrap();

    pages.push(("large", format!("/ui/webhooks/{webhook}/logs/{large}")));
    (stage, pages)
}

#[tokio::test]
async fn no_page_of_a_busy_account_is_large() {
    if !browser::is_available() {
        return;
    }

    let (stage, pages) = start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let mut sizes = Vec::new();
    let mut unread: Vec<(&str, String)> = pages;
    let mut known: HashSet<String> = unread.iter().map(|(_, path)| path.clone()).collect();

    while let Some((name, path)) = unread.pop() {
        let page = format!("return fetch('{path}').then((response) => response.text())");
        let page = browser.evaluate(&page).await;
        let page = page.as_str().expect("a page");
        sizes.push((page.len(), name, path));

        // All chapters of the guide, and all pages of the API reference.
        let links = page.split("href=\"").skip(1);
        let links = links.filter_map(|rest| rest.split(['"', '#', '?']).next());
        let texts = ["/ui/guide/", "/api/public/docs/"];

        for link in links.filter(|link| texts.iter().any(|text| link.starts_with(text))) {
            if known.insert(link.to_owned()) {
                unread.push(("linked", link.to_owned()));
            }
        }
    }

    sizes.sort_unstable();
    assert!(sizes.len() > 140, "{}", sizes.len());
    let (largest, ..) = sizes.last().expect("pages");
    assert!(*largest < MAX_PAGE_BYTES, "{sizes:#?}");

    let large = sizes.iter().find(|(_, name, _)| *name == "large");
    assert!(
        large.is_some_and(|(size, ..)| *size > 20_000),
        "{large:?} has the start of the body"
    );
}

#[tokio::test]
#[ignore = "measures and tests nothing: prints when each page is first painted"]
async fn first_paint_of_every_page() {
    if !browser::is_available() {
        return;
    }

    let (stage, pages) = start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let paint = "const [paint] = performance.getEntriesByName('first-contentful-paint'); return paint?.startTime ?? null";
    let mut medians = Vec::new();

    for (name, path) in pages {
        let mut times = Vec::new();

        for _ in 0..5 {
            browser.visit(&path).await;
            let painted = eventually("a first paint", || async {
                browser.evaluate(paint).await.as_f64()
            });
            times.push(painted.await as u64);
        }

        times.sort_unstable();
        medians.push((times[times.len() / 2], name));
    }

    medians.sort_unstable();

    for (milliseconds, name) in medians {
        println!("{milliseconds:>5} ms  {name}");
    }
}
