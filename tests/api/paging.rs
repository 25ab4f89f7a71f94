//! The delivery log of a busy webhook: its pages are complete while it grows, and the API's reads use indexes.

use std::collections::HashSet;

use crate::support::plan::{assert_stays_on_indexes, plans, reads};
use crate::support::{Api, Receiver, TestApp};
use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;

const ENTRIES: usize = 5_000;
/// Entries of one millisecond have the same time in their ids.
const PER_MILLISECOND: u128 = 7;

/// The id of the `n`th entry from `begin` on.
fn id(begin: Timestamp, n: usize) -> Uuid {
    let millis = begin.as_millisecond() as u128 + n as u128 / PER_MILLISECOND;
    Uuid::from_u128(millis << 80 | 0x7000_8000_0000_0000_0000 | (n as u128).wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF)
}

async fn insert(store: &Client, webhook: &str, ids: &[Uuid]) {
    let sql = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at,
                       duration_ms, outcome, response_status)
               select id, $2, id, id, case when n % 2 = 0 then 'delivery.failed' else 'payment.statement_ready' end, 1, 1,
                      now(), 5, case when n % 3 = 0 then 'failed' else 'delivered' end, 200
               from unnest($1::uuid[]) with ordinality as given (id, n)";
    let webhook: Uuid = webhook.parse().unwrap();
    store.execute(sql, &[&ids, &webhook]).await.unwrap();
}

/// Reads all pages; `between` runs before each page except the first.
async fn pages(api: &Api, path: &str, mut between: impl AsyncFnMut()) -> Vec<Uuid> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("{path}{cursor}")).await.expect(200).json();
        let ids =
            page["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap().parse::<Uuid>().unwrap());
        seen.extend(ids);
        let Some(next) = page["next_cursor"].as_str() else { return seen };
        cursor = format!("&cursor={next}");
        between().await;
    }
}

#[tokio::test]
async fn five_thousand_entries_are_paged_completely_while_new_ones_are_added() {
    let mut app = TestApp::prepare().await;
    app.set("limits.requests_per_second", "0");
    app.setup().await;
    app.run().await;
    let (platform, store) = (app.platform().await, app.store().await);
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/"), &["payment.statement_ready"]).await;
    // From yesterday on, so that they are in several partitions.
    let now = Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let yesterday = now - jiff::SignedDuration::from_hours(24);
    let mut expected: Vec<Uuid> = (0..ENTRIES).map(|n| id(if n % 2 == 0 { now } else { yesterday }, n)).collect();
    insert(&store, &webhook, &expected).await;
    let failed: HashSet<Uuid> =
        expected.iter().enumerate().filter(|(n, _)| (n + 1) % 3 == 0).map(|(_, id)| *id).collect();
    expected.sort_unstable_by(|one, other| other.cmp(one));

    let mut new = 0;
    let later = now + jiff::SignedDuration::from_hours(2);
    let add_entries = async || {
        platform.payment(user, "ready").await;
        let more: Vec<Uuid> = (new..new + 20).map(|n| id(later, n)).collect();
        new += 20;
        insert(&store, &webhook, &more).await;
    };
    let seen = pages(&api, &format!("/webhooks/{webhook}/logs?limit=100"), add_entries).await;
    assert_eq!(seen, expected);
    // The payment between each two pages was delivered, and logged while the pages were read.
    receiver.wait_for(ENTRIES / 100 - 1).await;

    let seen = pages(&api, &format!("/webhooks/{webhook}/logs?limit=37&outcome=failed"), async || {}).await;
    assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "no entry is listed twice");
    assert!(seen.is_sorted_by(|one, other| one > other));
    let seen_before: HashSet<Uuid> = seen.into_iter().filter(|id| expected.contains(id)).collect();
    assert_eq!(seen_before, failed);
}

#[tokio::test]
async fn reads_of_the_api_use_indexes() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url).await.unwrap();
    let own = walhook::store::Store::open(&app.store_url, 1).unwrap();
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    walhook::partitions::maintain(&own, today, 30).await.unwrap();
    let store = app.store().await;
    let fill = "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id)
                select gen_random_uuid(), n / 10, 'x', 'https://x.example/', '{delivery.failed}', '', 'k'
                from generate_series(1, 20000) as n;
                insert into walhook.api_token (id, user_id, name, hash)
                select gen_random_uuid(), n, '', sha256(n::text::bytea) from generate_series(1, 20000) as n;
                insert into walhook.session (hash, user_id) select hash, user_id from walhook.api_token;
                insert into walhook.delivery (id, webhook_id, event_id, due_at)
                select gen_random_uuid(), id, id, now() from walhook.webhook;
                insert into walhook.webhook_hour (webhook_id, hour) select id, now() from walhook.webhook;";
    store.batch_execute(fill).await.unwrap();
    let row = store.query_one("select id::text from walhook.webhook where user_id = '7' limit 1", &[]).await.unwrap();
    let webhook: String = row.get(0);
    let days = [-24, 0, 24, 48, 72].map(|hours| Timestamp::now() + jiff::SignedDuration::from_hours(hours));
    for (day, begin) in days.into_iter().enumerate() {
        let ids: Vec<Uuid> = (0..4_000).map(|n| id(begin, day * 10_000 + n)).collect();
        for (at, ids) in ids.chunks(1_000).enumerate() {
            let other = Uuid::from_u128(at as u128).to_string();
            insert(&store, if at == 0 { &webhook } else { &other }, ids).await;
        }
    }
    // The events of the entries, so that the planner prefers indexes for their tables too.
    let events = "insert into walhook.event (id, user_id, kind, occurred_at, data)
                  select event_id, '7', event_kind, started_at, '{}' from walhook.attempt";
    store.batch_execute(events).await.unwrap();
    store.batch_execute("analyze").await.unwrap();
    for (what, statement, types, arguments) in reads("7", &webhook) {
        assert_stays_on_indexes(what, &plans(&store, statement, types, &arguments).await);
    }
}
