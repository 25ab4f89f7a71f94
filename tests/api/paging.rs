//! The delivery log of a busy webhook: its pages are complete while it grows, and the API's reads
//! use indexes.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::plan::{assert_stays_on_indexes, plans, reads};
use crate::support::{Api, Receiver, TestApp, eventually, one, run_sql};
use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::domain::event::{EventKind, UserId};
use walhook::store::job_progress::{JobProgress, Phase};
use walhook::store::logs::{self, LogFilter};
use walhook::store::{Store, log, plan_by_index, recovery};

const ENTRIES: usize = 5_000;
/// Entries of one millisecond have the same time in their ids.
const PER_MILLISECOND: u128 = 7;

/// The id of the `n`th entry from `begin` on.
fn id(begin: Timestamp, n: usize) -> Uuid {
    let millis = begin.as_millisecond() as u128 + n as u128 / PER_MILLISECOND;
    Uuid::from_u128(
        millis << 80
            | 0x7000_8000_0000_0000_0000
            | (n as u128).wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF,
    )
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
    let mut seen = Vec::new();
    let mut cursor = String::new();

    loop {
        let page = api.get(&format!("{path}{cursor}")).await.expect(200).json();
        let ids = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["id"].as_str().unwrap().parse::<Uuid>().unwrap());

        seen.extend(ids);
        let Some(next) = page["next_cursor"].as_str() else {
            return seen;
        };

        cursor = format!("&cursor={next}");
        between().await;
    }
}

#[tokio::test]
async fn five_thousand_entries_are_paged_completely_while_new_ones_are_added() {
    let app = TestApp::start_with(|app| app.set("limits.requests_per_second", "0")).await;

    let platform = app.platform().await;
    let store = app.store().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api
        .create_webhook(&receiver.url("/"), &["payment.statement_ready"])
        .await;

    // From yesterday on, so that they are in several partitions.
    let now = Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let yesterday = now - jiff::SignedDuration::from_hours(24);
    let mut expected: Vec<Uuid> = (0..ENTRIES)
        .map(|n| id(if n % 2 == 0 { now } else { yesterday }, n))
        .collect();

    insert(&store, &webhook, &expected).await;
    let failed: HashSet<Uuid> = expected
        .iter()
        .enumerate()
        .filter(|(n, _)| (n + 1) % 3 == 0)
        .map(|(_, id)| *id)
        .collect();

    expected.sort_unstable_by(|one, other| other.cmp(one));

    let mut new = 0;
    let later = now + jiff::SignedDuration::from_hours(2);
    let add_entries = async || {
        platform.payment(user, "ready").await;
        let more: Vec<Uuid> = (new..new + 20).map(|n| id(later, n)).collect();
        new += 20;
        insert(&store, &webhook, &more).await;
    };

    let seen = pages(
        &api,
        &format!("/webhooks/{webhook}/logs?limit=100"),
        add_entries,
    )
    .await;

    assert_eq!(seen, expected);

    // The payment between each two pages was delivered, and logged while the pages were read.
    receiver.wait_for(ENTRIES / 100 - 1).await;

    let seen = pages(
        &api,
        &format!("/webhooks/{webhook}/logs?limit=37&outcome=failed"),
        async || {},
    )
    .await;

    assert_eq!(
        seen.iter().collect::<HashSet<_>>().len(),
        seen.len(),
        "no entry is listed twice"
    );
    assert!(seen.is_sorted_by(|one, other| one > other));

    let seen_before: HashSet<Uuid> = seen
        .into_iter()
        .filter(|id| expected.contains(id))
        .collect();
    assert_eq!(seen_before, failed);
}

#[tokio::test]
async fn reads_of_the_api_use_indexes() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let own = walhook::store::Store::open(&app.store_url, 1).unwrap();
    let today = jiff::Timestamp::now()
        .to_zoned(jiff::tz::TimeZone::UTC)
        .date();

    walhook::store::partitions::maintain(&own, today, 30)
        .await
        .unwrap();
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

    run_sql(&store, fill).await;

    let row = store
        .query_one(
            "select id::text from walhook.webhook where user_id = '7' limit 1",
            &[],
        )
        .await
        .unwrap();

    let webhook: String = row.get(0);
    let days = [-24, 0, 24, 48, 72]
        .map(|hours| Timestamp::now() + jiff::SignedDuration::from_hours(hours));
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
    run_sql(&store, events).await;
    run_sql(&store, "analyze").await;

    for (what, statement, types, arguments) in reads("7", &webhook) {
        assert_stays_on_indexes(what, &plans(&store, statement, types, &arguments).await);
    }
}

/// A store with many webhooks, one of which has almost all entries. The planner does not know the
/// parameters and expects few entries of each webhook, so that reading and sorting all of them
/// seems as cheap as reading the first ones in order.
struct LongLog {
    app: TestApp,
    store: Client,
    user: UserId,
    webhook: Uuid,
}

impl LongLog {
    const ENTRIES: i64 = 100_000;

    /// Ids as they are today; the partitions of other days are empty.
    async fn fill() -> LongLog {
        let app = TestApp::prepare().await;
        walhook::store::migrate::migrate(&app.store_url)
            .await
            .unwrap();

        let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        walhook::store::partitions::maintain(&Store::open(&app.store_url, 1).unwrap(), today, 30)
            .await
            .unwrap();

        let store = app.store().await;
        let fill = format!(
            "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id)
                select md5(n::text)::uuid, n, 'x', 'https://x.example/', '{{delivery.failed}}', '', 'k'
                from generate_series(1, 3000) as n;
             insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || '7' || substr(gen_random_uuid()::text, 16))::uuid,
                    md5(least(n, 3000)::text)::uuid, gen_random_uuid(), gen_random_uuid(), 'delivery.failed', 1, 1, now(), 'delivered'
                from generate_series(1, {}) as n",
            LongLog::ENTRIES
        );

        run_sql(&store, &fill).await;
        run_sql(&store, "vacuum (analyze)").await;

        let webhook = one(&store, "select md5('3000')::uuid").await;
        LongLog {
            app,
            store,
            user: UserId("3000".into()),
            webhook,
        }
    }

    async fn read(&self) -> i64 {
        entries_read(&self.store, "attempt").await
    }
}

/// Returns how many entries of a table's indexes all sessions that have ended have read.
async fn entries_read(store: &Client, table: &str) -> i64 {
    let read =
        "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where starts_with(relname, $1)
                having not exists (select from pg_stat_activity where datname = current_database()
                    and backend_type = 'client backend' and pid <> pg_backend_pid())";
    let read = async || {
        store
            .query_opt(read, &[&table])
            .await
            .unwrap()
            .map(|row| row.get(0))
    };

    eventually("the sessions to end", read).await
}

#[tokio::test]
async fn a_page_of_a_long_log_reads_no_more_than_it_examines() {
    const PAGES: i64 = 10;
    let log = LongLog::fill().await;
    let requests =
        Store::open_for_requests(&log.app.store_url, 1, Duration::from_secs(60)).unwrap();
    let nothing = LogFilter {
        event: Some(EventKind::DeliveryCompleted),
        ..LogFilter::default()
    };

    for filter in [nothing, LogFilter::default()] {
        for _ in 0..PAGES {
            let found = logs::list(&requests, &log.user, &[log.webhook], &filter, None, 100)
                .await
                .unwrap();
            assert_eq!(
                found.entries.len(),
                if filter.event.is_some() { 0 } else { 100 }
            );
        }
    }

    drop(requests);

    // Each filtered page examines 2,000 entries.
    let read = log.read().await;
    assert!(
        (PAGES * 2_000..PAGES * 2_500).contains(&read),
        "{read} entries read"
    );
}

#[tokio::test]
async fn a_step_of_a_recovery_reads_no_more_than_its_part_of_a_long_log() {
    const STEPS: i64 = 10;
    let log = LongLog::fill().await;
    let day = jiff::SignedDuration::from_hours(24);
    let since = Timestamp::now() - day;
    let until = Timestamp::now() + day;
    let outcomes = vec!["failed".to_owned()];

    let scope = recovery::Scope {
        since,
        until,
        outcomes,
        missed: false,
    };

    let store = Store::open(&log.app.store_url, 1).unwrap();
    let mut session = store.connection().await.unwrap();
    let mut progress = JobProgress::start_of(Phase::AttemptLog);

    for _ in 0..STEPS {
        let transaction = session.transaction().await.unwrap();
        plan_by_index(&transaction).await.unwrap();

        let scan = recovery::scan(&transaction, log.webhook, &scope, progress, 1_000, true)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(scan.read, 1_000);
        progress.position = scan.last.unwrap();
    }

    drop((session, store));
    let read = log.read().await;
    assert!(
        (STEPS * 1_000..STEPS * 1_500).contains(&read),
        "{read} entries read"
    );
}

/// As on a new day, whose partition the server has not analyzed.
#[tokio::test]
async fn a_page_of_a_log_without_statistics_reads_no_more_than_its_events() {
    const PAGES: u64 = 40;
    let app = TestApp::prepare().await;
    app.setup().await;
    let store = app.store().await;
    let fill = format!(
        "insert into walhook.event (id, user_id, kind, sequence, occurred_at, ordinal, shard, data)
         select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || '7' || substr(gen_random_uuid()::text, 16))::uuid,
             '1', 'payment.statement_ready', n, now(), n, walhook.shard('1'),
             json_build_object('invoice_number', repeat('x', 300))
         from generate_series(1, {}) as n",
        5 * PAGES * log::PAGE
    );
    run_sql(&store, &fill).await;

    let reader = Store::open_log(&app.store_url, Duration::from_secs(60)).unwrap();
    let before = entries_read(&store, "event").await;
    let mut lowest = Uuid::nil();
    for page in 0..PAGES {
        let after = page * log::PAGE;
        let read = reader
            .log_page(after, lowest, log::PAGE, None)
            .await
            .unwrap();
        assert_eq!(read.events.len() as u64, log::PAGE);
        lowest = log::lowest_id_after(read.events[0].id);
    }

    drop(reader);
    let read = entries_read(&store, "event").await - before;
    let most = (PAGES * log::PAGE * 5 / 2) as i64;
    assert!(read < most, "{read} entries read");
}
