//! Reads an attempt log of ten million rows. Needs minutes and gigabytes: `make soak` runs it.

use std::time::{Duration, Instant};

use crate::support::plan::{assert_filters_stay_on_indexes, assert_stays_on_indexes, plans, reads};
use crate::support::{Api, TestApp, one, run_sql};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use uuid::Uuid;
use walhook::domain::event::delivery_id;
use walhook::store::Store;

const ROWS: u64 = 10_000_000;
const DAYS: u64 = 10;
/// Number of webhooks that share nine tenths of the rows. One webhook has the other tenth.
const OTHERS: u64 = 2_000;
const READS: usize = 50;

/// Parameters: $1 time of the first row in milliseconds, $2 milliseconds between rows, $3 and $4
/// the range of rows, $5 the busy webhook.
const FILL: &str = "
    insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, duration_ms,
                                 outcome, response_status, url, signature, standard_signature)
    select id,
           case when n % 10 = 0 then $5::uuid else md5((n % 2000)::text)::uuid end,
           md5('d' || n)::uuid, id,
           case when n % 4 = 0 then 'delivery.failed' else 'distribution.outlet.status_changed' end, 1, 1,
           to_timestamp(ms / 1000.0), 31,
           case when n % 1000 = 0 then 'permanently_failed' when n % 3 = 0 then 'failed' else 'delivered' end, 200,
           'https://receiver.example/in', '\\x00', '\\x00'
    from generate_series($3::bigint, $4::bigint) as n,
         lateral (select ($1::bigint + n * $2::double precision)::bigint as ms) as at,
         lateral (select (lpad(to_hex(ms), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
                          || substr(md5(n::text), 4, 15))::uuid as id) as made";

async fn fill(app: &TestApp, rows: u64, webhook: &str) {
    let store = app.store().await;
    let maintained = Store::open(&app.store_url, 1).unwrap();
    let now = Timestamp::now();

    for day in 0..=DAYS {
        let date = (now - SignedDuration::from_hours(24 * day as i64))
            .to_zoned(TimeZone::UTC)
            .date();
        walhook::store::partitions::maintain(&maintained, date, 365)
            .await
            .unwrap();
    }

    let begin = now.as_millisecond() - (DAYS * 86_400_000) as i64;
    let step = (DAYS * 86_400_000) as f64 / rows as f64;
    let webhook: Uuid = webhook.parse().unwrap();

    for first in (0..rows).step_by(500_000) {
        let last = (first + 500_000).min(rows) - 1;
        store
            .execute(
                FILL,
                &[&begin, &step, &(first as i64), &(last as i64), &webhook],
            )
            .await
            .unwrap();
    }

    let others = "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id)
                  select md5(n::text)::uuid, case when n between 1 and 9 then 'busy' else 'other' || n / 10 end, 'x', 'https://x.example/', '{delivery.failed}', '', 'k'
                  from generate_series(0, $1::bigint - 1) as n";
    store.execute(others, &[&(OTHERS as i64)]).await.unwrap();

    // Adds some events to each day's partition, because plans scan empty partitions sequentially.
    let events = "insert into walhook.event (id, user_id, kind, occurred_at, data, release_id, track_id, catalogue)
                  select event_id, 'busy', event_kind, started_at,
                         json_build_object('release_id', n, 'release_cat', 'CAT-' || n, 'outlet_id', n % 50), n,
                         case when n % 10 = 7 then n end, ($1::bigint[])[1 + n]
                  from walhook.attempt tablesample bernoulli (5),
                       lateral (select (extract(epoch from started_at) * 1000)::bigint % 5000 as n) as numbered
                  on conflict do nothing";
    let keys: Vec<i64> = (0..5_000)
        .map(|n| walhook::domain::about::catalogue_key(&format!("CAT-{n}")))
        .collect();
    store.execute(events, &[&keys]).await.unwrap();

    let tokens = "insert into walhook.api_token (id, user_id, name, hash)
                  select gen_random_uuid(), n, '', sha256(n::text::bytea) from generate_series(1, 20000) as n;
                  insert into walhook.session (hash, user_id) select hash, user_id from walhook.api_token;
                  vacuum (analyze)";
    for statement in tokens.split(';') {
        run_sql(&store, statement).await;
    }
}

/// Measures the median and the slowest of several requests, each at another position of the log if
/// `path` takes a cursor.
async fn measure(api: &Api, what: &str, path: &str, walk: bool) -> Duration {
    let mut times = Vec::new();
    let mut cursor = String::new();

    for _ in 0..READS {
        let answer = loop {
            let started = Instant::now();
            let answer = api.get(&format!("{path}{cursor}")).await;
            // Filtered pages are limited to ten per second.
            if answer.status != 429 {
                times.push(started.elapsed());
                break answer.expect(200);
            }

            tokio::time::sleep(Duration::from_secs(1)).await;
        };

        if let Some(next) = answer.json()["next_cursor"].as_str().filter(|_| walk) {
            cursor = format!("&cursor={next}");
        }
    }

    times.sort_unstable();
    println!(
        "{what:<32} median {:>10.2?}   slowest {:>10.2?}",
        times[READS / 2],
        times[READS - 1]
    );

    times[READS / 2]
}

/// Measures pages of the web UI, signed in by the token.
async fn measure_pages(api: &Api, webhook: &str, entry: &str) {
    let origin = api
        .url
        .strip_suffix("/api/public")
        .expect("the base path is the default one");
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let form = client
        .post(format!("{origin}/ui/login"))
        .header("content-type", "application/x-www-form-urlencoded");
    let answer = form
        .body(format!("token={}", api.token))
        .send()
        .await
        .unwrap();

    let cookie = answer.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();

    for rest in [
        "",
        "/logs",
        "/logs?status=5xx",
        "/logs?outcome=permanently_failed",
        &format!("/logs/{entry}"),
        "/recover",
    ] {
        let started = Instant::now();
        let page = client
            .get(format!("{origin}/ui/webhooks/{webhook}{rest}"))
            .header("cookie", &cookie);
        assert_eq!(page.send().await.unwrap().status(), 200, "{rest}");
        println!(
            "{:<32} {:>10.2?}",
            format!("page …{}", &rest[..rest.len().min(24)]),
            started.elapsed()
        );
    }
}

#[tokio::test]
#[ignore = "takes minutes and gigabytes: `make soak`"]
async fn reads_of_ten_million_rows_stay_on_indexes() {
    let rows = std::env::var("WALHOOK_SOAK_ROWS")
        .ok()
        .map_or(ROWS, |text| text.parse().expect("a number of rows"));
    let mut app = TestApp::prepare().await;

    app.set("limits.requests_per_second", "0");
    app.setup().await;
    app.run_with(&["--roles", "api"]).await;

    let api = app.api("busy").await;
    let (webhook, _) = api
        .create_webhook("http://127.0.0.1:9/", &["delivery.failed"])
        .await;
    let started = Instant::now();

    fill(&app, rows, &webhook).await;
    let store = app.store().await;
    let size = "select pg_size_pretty(sum(pg_total_relation_size(relid))) from pg_partition_tree('walhook.attempt')";
    let size: String = one(&store, size).await;

    println!("{rows} rows, {size}, made in {:.0?}", started.elapsed());

    for (what, statement, types, arguments) in reads("busy", &webhook) {
        assert_stays_on_indexes(what, &plans(&store, statement, types, &arguments).await);
    }

    assert_filters_stay_on_indexes(&store, "busy", &webhook).await;

    let logs = format!("/webhooks/{webhook}/logs?limit=100");
    let since = Timestamp::now() - SignedDuration::from_hours(24 * 5);
    let until = since + SignedDuration::from_hours(1);
    let newest = &api.logs(&webhook).await[0];
    let id = |name: &str| -> Uuid { newest[name].as_str().unwrap().parse().unwrap() };
    let entry = id("id").to_string();

    // The page of a delivery finds its event by the id.
    let delivery = delivery_id(id("event_id"), webhook.parse().unwrap());
    let name = "update walhook.attempt set delivery_id = $1 where id = $2";
    store.execute(name, &[&delivery, &id("id")]).await.unwrap();

    measure_pages(&api, &webhook, &entry).await;
    measure(&api, "webhooks", "/webhooks?limit=100", false).await;
    measure(&api, "the log's first page", &logs, false).await;
    measure(&api, "the log, page after page", &logs, true).await;

    measure(
        &api,
        "an event's entries",
        &format!("{logs}&event=delivery.failed"),
        true,
    )
    .await;

    measure(
        &api,
        "a rare outcome's entries",
        &format!("{logs}&outcome=permanently_failed"),
        false,
    )
    .await;

    measure(
        &api,
        "an hour five days ago",
        &format!("{logs}&since={since}&until={until}"),
        true,
    )
    .await;

    for (what, filter) in [
        ("a catalogue number", "cat=cat-77"),
        ("a release", "release_id=77"),
        ("a track, and an outlet", "track_id=77&outlet_id=12"),
        ("failures of the account", "outcome=failed"),
        ("a failure of the account", "error=dns&status=none"),
        (
            "a rare outcome of the account",
            "outcome=permanently_failed",
        ),
        ("an outlet of the account", "outlet_id=12"),
        (
            "successes of the account",
            "outcome=delivered&event=delivery.failed",
        ),
    ] {
        measure(&api, what, &format!("/logs?limit=100&{filter}"), true).await;
    }

    measure(
        &api,
        "one entry",
        &format!("/webhooks/{webhook}/logs/{entry}"),
        false,
    )
    .await;
}
