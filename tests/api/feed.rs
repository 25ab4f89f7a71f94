//! The feed: a user's events in the order of their commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::domain::event::{Event, EventKind, UserId};
use walhook::domain::lsn::Lsn;
use walhook::domain::position::Position;
use walhook::store::{Store, enqueue};

use crate::fixture::Service;
use crate::support::plan::plans;
use crate::support::{Api, TestApp, eventually, one, run_sql};

fn event(user: &str, kind: EventKind, label: Option<i64>) -> Event {
    static ORDINAL: AtomicU64 = AtomicU64::new(1);
    Event {
        id: Uuid::now_v7(),
        kind,
        user: UserId(user.into()),
        label,
        occurred_at: Timestamp::now(),
        position: Position::Wal {
            timeline: 1,
            commit: Lsn(1),
            ordinal: ORDINAL.fetch_add(1, Ordering::Relaxed),
        },
        repaired: false,
        data: r#"{"amount":10.50}"#.into(),
    }
}

async fn insert(store: &Store, events: &[Event]) {
    let mut connection = store.connection().await.unwrap();
    let transaction = connection.transaction().await.unwrap();
    enqueue::insert_events(&transaction, events).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Returns the ids of a user's events in the order of their numbers.
async fn stored(client: &Client, user: &str) -> Vec<String> {
    let sql = "select id::text from walhook.event where user_id = $1 and sequence is not null order by sequence";
    client
        .query(sql, &[&user])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Reads a page: the ids of its events, and the next cursor.
async fn page(api: &Api, query: &str) -> (Vec<String>, String) {
    let page = api
        .get(&format!("/events?{query}"))
        .await
        .expect(200)
        .json();
    let id = |event: &Value| event["id"].as_str().unwrap().to_owned();
    (
        page["data"].as_array().unwrap().iter().map(id).collect(),
        page["next_cursor"].as_str().unwrap().to_owned(),
    )
}

/// Stores events in transactions of different lengths, a part of which is rolled back.
async fn write(store: Store, of: usize) {
    for n in 0..40 {
        let user = if n % 3 == 0 { "other" } else { "owner" };
        let events: Vec<Event> = (0..1 + n % 4)
            .map(|_| event(user, EventKind::DeliveryFailed, None))
            .collect();
        let mut connection = store.connection().await.unwrap();
        let transaction = connection.transaction().await.unwrap();

        enqueue::insert_events(&transaction, &events).await.unwrap();

        // The counter is locked meanwhile: readers and the other writers get their turns.
        let pause = format!("select pg_sleep(0.00{})", (n * 7 + of) % 5);
        transaction.batch_execute(&pause).await.unwrap();

        match (n + of) % 5 {
            0 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_readers_get_each_event_once_and_in_order_while_events_are_committed() {
    let service = Service::start_with(|config| config.limits.requests_per_second = 0).await;
    let api = Arc::new(service.api("owner").await);
    let writers = Store::open(&service.app.store_url, 4).unwrap();
    let has_ended = Arc::new(AtomicBool::new(false));

    let read = |limit: usize| {
        let api = api.clone();
        let has_ended = has_ended.clone();

        tokio::spawn(async move {
            let mut seen = Vec::new();
            let mut after = "earliest".to_owned();

            loop {
                let was_last = has_ended.load(Ordering::Acquire);
                let (ids, next) = page(&api, &format!("limit={limit}&after={after}")).await;
                if ids.is_empty() && was_last {
                    return seen;
                }

                seen.extend(ids);
                after = next;
            }
        })
    };

    let readers = [read(2), read(3)];
    let writing = (0..4).map(|of| tokio::spawn(write(writers.clone(), of)));

    futures_util::future::try_join_all(writing).await.unwrap();
    has_ended.store(true, Ordering::Release);

    let expected = stored(&service.sql, "owner").await;
    assert!(expected.len() > 100, "{}", expected.len());

    for reader in readers {
        assert_eq!(reader.await.unwrap(), expected);
    }

    let gapless = "select count(*) = max(sequence) and count(*) = (select last from walhook.event_sequence) from walhook.event";
    assert!(one::<bool>(&service.sql, gapless).await);
}

#[tokio::test]
async fn an_event_has_the_id_and_the_data_of_its_deliveries() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let stored = event("1", EventKind::PaymentStatementReady, Some(42));

    insert(&service.store, std::slice::from_ref(&stored)).await;
    let page = api.get("/events").await.expect(200);

    assert_eq!(page.header("vary"), Some("accept"));

    // Numbers keep their digits.
    let occurred_at = walhook::domain::time::micros(stored.occurred_at);
    let object = format!(
        r#"{{"id":"{}","event":"payment.statement_ready","occurred_at":"{occurred_at}","label_id":42,"data":{{"amount":10.50}}}}"#,
        stored.id
    );

    assert!(
        page.body
            .starts_with(&format!(r#"{{"data":[{object}],"next_cursor":""#)),
        "{}",
        page.body
    );

    let one = api.get(&format!("/events/{}", stored.id)).await.expect(200);
    assert_eq!(
        one.body,
        format!(r#"{},"deliveries":[]}}"#, object.strip_suffix('}').unwrap())
    );
}

#[tokio::test]
async fn another_user_s_events_and_tests_are_not_in_the_feed() {
    let service = Service::start().await;
    let owner = service.api("owner").await;
    let stranger = service.api("stranger").await;
    let (webhook, _) = owner
        .create_webhook("https://receiver.example/in", &["delivery.completed"])
        .await;

    owner
        .post(&format!("/webhooks/{webhook}/test"), json!({}))
        .await
        .expect(200);
    let test = one::<String>(&service.sql, "select id::text from walhook.event").await;

    assert_eq!(page(&owner, "").await.0, Vec::<String>::new());
    owner.get(&format!("/events/{test}")).await.expect(404);
    insert(
        &service.store,
        &[event("owner", EventKind::DeliveryFailed, None)],
    )
    .await;

    let (ids, cursor) = page(&owner, "").await;
    assert_eq!(ids.len(), 1);
    assert_eq!(page(&stranger, "").await.0, Vec::<String>::new());

    let same_id = [("x-request-id", "same")];
    let read = async |id: String| {
        let path = format!("/events/{id}");
        stranger
            .send("GET", &path, &same_id, None)
            .await
            .expect(404)
    };
    let found = read(ids[0].to_string()).await;
    assert_eq!(found.body, read(Uuid::nil().to_string()).await.body);

    stranger.get("/events/x").await.expect(404);
    assert_eq!(
        page(&stranger, &format!("after={cursor}")).await.0,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn invalid_parameters_are_named() {
    let service = Service::start().await;
    let api = service.api("1").await;

    let queries = [
        ("after=", "/after"),
        ("after=oldest", "/after"),
        ("after=AAAAAAAAAAAAAAAAAAAAAA", "/after"),
        ("after=earliest&after=latest", "/after"),
        ("limit=0", "/limit"),
        ("limit=101", "/limit"),
        ("event=delivery.done", "/event"),
        ("event=delivery.failed,", "/event"),
        ("label_id=x", "/label_id"),
        ("label_id=9223372036854775808", "/label_id"),
        ("wait=31", "/wait"),
        ("wait=-1", "/wait"),
        ("wait=1.5", "/wait"),
    ];
    for (query, pointer) in queries {
        let is_cursor = pointer == "/after";
        let problem = api
            .get(&format!("/events?{query}"))
            .await
            .expect(if is_cursor { 400 } else { 422 })
            .json();

        assert_eq!(
            problem["type"],
            if is_cursor {
                "/problems/invalid-cursor"
            } else {
                "/problems/validation-failed"
            }
        );

        assert_eq!(
            problem["errors"][0]["pointer"], pointer,
            "{query}: {problem}"
        );
        assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem}");
    }

    let headers = [("accept", "text/event-stream"), ("last-event-id", "x")];
    let problem = api
        .send("GET", "/events", &headers, None)
        .await
        .expect(400)
        .json();

    assert_eq!(problem["type"], "/problems/invalid-cursor");
    assert_eq!(problem["errors"][0]["pointer"], "/Last-Event-ID");

    // Pages ignore the header.
    api.send("GET", "/events", &headers[1..], None)
        .await
        .expect(200);
}

#[tokio::test]
async fn filters_examine_a_bounded_part_of_the_feed() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let fill = "insert into walhook.event (id, user_id, kind, occurred_at, ordinal, data, sequence, shard, label_id)
                select gen_random_uuid(), '1', case n when 24999 then 'transcode.failed' when 25000 then 'delivery.failed'
                    else 'delivery.completed' end, now(), n, '{}', n, walhook.shard('1'), case when n = 12345 then 7 end
                from generate_series(1, 25000) as n;
                update walhook.event_sequence set last = 25000";

    run_sql(&service.sql, fill).await;

    let read = async |filter: &str, until: usize| {
        let mut found = Vec::new();
        let mut pages = 0;
        let mut after = "earliest".to_owned();

        while found.len() < until {
            let (ids, next) = page(&api, &format!("{filter}&after={after}")).await;
            found.extend(ids);
            pages += 1;
            after = next;
        }

        (found, pages, after)
    };

    for filter in [
        "event=transcode.failed,delivery.failed",
        "event=transcode.failed&event=delivery.failed",
    ] {
        let (found, pages, after) = read(filter, 2).await;
        assert_eq!(
            (found, pages),
            (stored(&service.sql, "1").await[24_998..].to_vec(), 13),
            "{filter}"
        );
        assert_eq!(
            page(&api, &format!("after={after}")).await.0,
            Vec::<String>::new(),
            "nothing is read again"
        );
    }

    let (found, pages, _) = read("label_id=7&event=delivery.completed", 1).await;
    assert_eq!(
        (&found[0], pages),
        (&stored(&service.sql, "1").await[12_344], 7)
    );

    // A long poll does not end with a page that is empty because of the bound.
    let (found, _) = page(&api, "wait=30&event=transcode.failed").await;
    assert_eq!(found.len(), 1);
}

/// A long poll reads on while it finds nothing. If the limit on searches ends it, the client must
/// be able to continue where it was.
#[tokio::test]
async fn a_long_poll_that_reaches_the_limit_on_searches_returns_its_progress() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let fill = "insert into walhook.event (id, user_id, kind, occurred_at, ordinal, data, sequence, shard)
                select gen_random_uuid(), '1', case n when 30000 then 'transcode.failed' else 'delivery.completed' end,
                    now(), n, '{}', n, walhook.shard('1')
                from generate_series(1, 30000) as n;
                update walhook.event_sequence set last = 30000";

    run_sql(&service.sql, fill).await;
    while api.get("/events?event=transcode.failed").await.status == 200 {}

    let mut after = "earliest".to_owned();
    let mut found = Vec::new();
    let mut requests = 0;

    while found.is_empty() {
        requests += 1;
        assert!(requests <= 30, "no progress beyond {after}");

        let answer = api
            .get(&format!(
                "/events?wait=30&event=transcode.failed&after={after}"
            ))
            .await;
        if answer.status == 429 {
            let wait = answer.header("retry-after").unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_secs(wait)).await;
            continue;
        }

        let page = answer.expect(200).json();
        let next = page["next_cursor"].as_str().unwrap().to_owned();

        assert_ne!(next, after);
        after = next;
        found = page["data"].as_array().unwrap().clone();
    }

    assert_eq!(found[0]["event"], "transcode.failed");
}

#[tokio::test]
async fn a_page_of_large_events_ends_early_and_the_next_one_continues() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let large = |_| Event {
        data: format!(r#"{{"text":"{}"}}"#, "x".repeat(400_000)).into(),
        ..event("1", EventKind::DeliveryFailed, None)
    };

    let events: Vec<Event> = (0..7).map(large).collect();
    insert(&service.store, &events).await;

    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    let mut after = "earliest".to_owned();

    while seen.len() < events.len() {
        let (ids, next) = page(&api, &format!("after={after}")).await;
        sizes.push(ids.len());
        seen.extend(ids);
        after = next;
    }

    assert_eq!(
        seen,
        events
            .iter()
            .map(|event| event.id.to_string())
            .collect::<Vec<_>>()
    );

    assert_eq!(sizes, [3, 3, 1]);
}

#[tokio::test]
async fn a_cursor_older_than_what_is_kept_continues_at_the_oldest_event() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let some = |_| event("1", EventKind::DeliveryFailed, None);

    insert(&service.store, &(0..3).map(some).collect::<Vec<_>>()).await;
    let (ids, cursor) = page(&api, "limit=1").await;

    run_sql(&service.sql, "delete from walhook.event where sequence < 3").await;
    let (rest, _) = page(&api, &format!("after={cursor}")).await;
    assert_eq!(rest, stored(&service.sql, "1").await);
    assert!(rest.len() == 1 && rest != ids);
}

#[tokio::test]
async fn an_event_lists_its_deliveries() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let one = event("1", EventKind::DeliveryFailed, None);

    insert(&service.store, std::slice::from_ref(&one)).await;
    let mut webhooks = Vec::new();

    for _ in 0..4 {
        webhooks.push(
            api.create_webhook("https://receiver.example/in", &["delivery.failed"])
                .await
                .0,
        );
    }

    let delivery =
        |webhook: &str| walhook::domain::event::delivery_id(one.id, webhook.parse().unwrap());
    let attempt = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                   values ($1, $2::text::uuid, $3, $4, 'delivery.failed', 1, $5, now(), $6)";
    let pending = "insert into walhook.delivery (id, webhook_id, event_id, due_at, attempt)
                   values ($1, $2::text::uuid, $3, '2030-01-01', 2)";

    let log = async |webhook: usize, number: i16, outcome: &str| {
        let webhook = &webhooks[webhook];
        let values: [&(dyn postgres_types::ToSql + Sync); 6] = [
            &Uuid::now_v7(),
            webhook,
            &delivery(webhook),
            &one.id,
            &number,
            &outcome,
        ];

        service.sql.execute(attempt, &values).await.unwrap();
    };

    for (webhook, outcome) in [(0, "failed"), (1, "failed"), (2, "cancelled")] {
        log(webhook, 1, outcome).await;
    }

    service
        .sql
        .execute(pending, &[&delivery(&webhooks[1]), &webhooks[1], &one.id])
        .await
        .unwrap();

    // The second attempt is far behind the first in the webhook's log.
    let busy = "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
                select (overlay(gen_random_uuid()::text placing substr($1::text, 1, 18) from 1 for 18))::uuid, $2::text::uuid,
                    gen_random_uuid(), gen_random_uuid(), 'delivery.failed', 1, 1, now(), 'delivered'
                from generate_series(1, 20000)";
    service
        .sql
        .execute(busy, &[&Uuid::now_v7().to_string(), &webhooks[0]])
        .await
        .unwrap();
    log(0, 2, "delivered").await;

    let found = api
        .get(&format!("/events/{}", one.id))
        .await
        .expect(200)
        .json();
    let expected = [
        (0, "delivered", 2, json!(null)),
        (1, "pending", 1, json!("2030-01-01T00:00:00.000+00:00")),
        (2, "cancelled", 0, json!(null)),
    ];
    let expected = expected.map(|(webhook, state, attempts, next)| {
        let webhook = &webhooks[webhook];
        json!({ "id": delivery(webhook), "webhook_id": webhook, "state": state, "attempts": attempts, "next_attempt_at": next })
    });

    let by_id = |deliveries: &[Value]| {
        deliveries
            .iter()
            .map(Value::to_string)
            .collect::<BTreeSet<_>>()
    };

    assert_eq!(
        by_id(found["deliveries"].as_array().unwrap()),
        by_id(&expected)
    );
}

#[tokio::test]
async fn a_long_poll_is_answered_by_the_next_event() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let other = platform.user(&[]).await;
    let api = Arc::new(app.api(&user.to_string()).await);
    let mut app = app;
    let waiting = tokio::spawn({
        let api = api.clone();
        async move { page(&api, "wait=30").await }
    });

    let sidecar = app.sidecar();
    let is_open =
        async || (sidecar.metric("walhook_feed_streams").await == Some(1.0)).then_some(());

    eventually("the long poll", is_open).await;
    platform.payment(other, "ready").await;
    platform.payment(user, "ready").await;

    let (ids, cursor) = waiting.await.unwrap();
    assert_eq!(ids.len(), 1);

    let (none, same) = page(&api, &format!("after={cursor}&wait=0")).await;
    assert_eq!((none.len(), same.len()), (0, cursor.len()));

    // A shutdown answers it at once.
    let waiting = tokio::spawn(async move { page(&api, &format!("after={same}&wait=30")).await });
    let sidecar = app.sidecar();
    let is_open =
        async || (sidecar.metric("walhook_feed_streams").await == Some(1.0)).then_some(());

    eventually("the long poll", is_open).await;
    assert!(app.stop().await.success());
    assert_eq!(waiting.await.unwrap().0.len(), 0);
}

/// Events of a busy user and of many others, over the days that have partitions, and their
/// deliveries.
const FILL: &str = "insert into walhook.event (id, user_id, kind, occurred_at, ordinal, data, sequence, shard, label_id)
    select (lpad(to_hex(((extract(epoch from now()) + (n % 5 - 1) * 86400) * 1000)::bigint), 12, '0')
            || '7000' || substr(md5(n::text), 1, 16))::uuid,
        case when n % 2 = 0 then '7' else (n % 5000)::text end, 'delivery.failed', now(), n, '{}', n, 0, n % 10
    from generate_series(1, 40000) as n;
    update walhook.event_sequence set last = 40000;
    insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
    select id, case when sequence % 4 = 0 then '00000000-0000-0000-0000-000000000001'::uuid else gen_random_uuid() end,
        id, id, kind, 1, 1, now(), 'delivered' from walhook.event;
    insert into walhook.delivery (id, webhook_id, event_id, due_at) select id, id, id, now() from walhook.event;
    insert into walhook.lookup_row (relation, row_id, state)
    select n % 3 + 6, n, json_build_array((n % 5000)::text, 'Label') from generate_series(1, 60000) as n;
    insert into walhook.lookup_table (relation, mapping) select n, '' from generate_series(6, 8) as n;
    analyze";

#[tokio::test]
async fn reads_of_the_feed_use_indexes() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    walhook::store::partitions::maintain(&Store::open(&app.store_url, 1).unwrap(), today, 30)
        .await
        .unwrap();

    let client = app.store().await;
    run_sql(&client, FILL).await;

    let webhook = "'{00000000-0000-0000-0000-000000000001}'";
    let page = walhook::sql::store::event::FEED_PAGE;
    let page_types = "text, bigint, bigint, text[], bigint, bigint, bigint";
    let max = i64::MAX;

    let reads = [
        (
            "a page",
            true,
            page,
            page_types,
            format!("'7', 100, {max}, null, null, 50, 65536"),
        ),
        (
            "a filtered page",
            true,
            page,
            page_types,
            format!("'7', 100, {max}, '{{delivery.failed}}', 3, 50, 65536"),
        ),
        (
            "the horizon",
            true,
            walhook::sql::store::event::FEED_HORIZON,
            "text, bigint, bigint",
            "'7', 100, 9999".into(),
        ),
        (
            "the list",
            true,
            walhook::sql::store::event::FEED_NEWEST,
            "text, bigint, bigint, text, bigint",
            format!("'7', {max}, 0, null, 51"),
        ),
        (
            "the list's horizon",
            true,
            walhook::sql::store::event::FEED_NEWEST_HORIZON,
            "text, bigint, bigint",
            format!("'7', {max}, 9999"),
        ),
        (
            "the values of filters",
            true,
            walhook::sql::store::event::FILTER_VALUES,
            "text, bigint, bigint",
            "'7', 2000, 500".into(),
        ),
        (
            "new events",
            true,
            walhook::sql::store::event::FEED_USERS,
            "bigint, bigint, bigint, text[]",
            "100, 40000, 10000, '{7,8}'".into(),
        ),
        (
            "an event",
            false,
            walhook::sql::store::event::GET,
            "text, uuid",
            format!("'7', '{}'", Uuid::now_v7()),
        ),
        (
            "deliveries",
            false,
            walhook::sql::store::event::DELIVERIES,
            "uuid[], uuid[], uuid, uuid, bigint",
            format!(
                "{webhook}, {webhook}, '{}', '01900000-0000-0000-0000-000000000000', 20000",
                Uuid::now_v7()
            ),
        ),
    ];
    for (what, is_ordered, statement, types, arguments) in reads {
        for plan in plans(&client, statement, types, &arguments).await {
            assert!(plan.contains("Index"), "{what}:\n{plan}");
            // Hand-offs are unpacked after two seconds.
            let small = ["event_sequence", "_default", "handoff", "lookup_table"];
            let reads_whole = |line: &&str| {
                line.contains("Seq Scan on ") && !small.iter().any(|table| line.contains(table))
            };

            assert_eq!(plan.lines().find(reads_whole), None, "{what}:\n{plan}");
            assert!(!plan.contains("Bitmap"), "{what}:\n{plan}");

            // Partitions are merged in order, not sorted.
            assert!(
                !is_ordered || plan.contains("Merge Append"),
                "{what}:\n{plan}"
            );
        }
    }
}
