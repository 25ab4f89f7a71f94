//! The store's daily partitions: if one cannot be created, rows are kept, the others are created,
//! and processes start.

use std::pin::pin;
use std::time::Instant;

use crate::support::{TestApp, eventually, one, run_sql, sent};
use jiff::Timestamp;
use jiff::civil::Date;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::config::Config;
use walhook::domain::delivery::{Answer, Attempt, Attempted, Delivery, Lease, Next, Outcome};
use walhook::domain::event::EventKind;
use walhook::record::record;
use walhook::store::attempt::CompletedAttempt;
use walhook::store::{Store, migrate};

const TABLES: [(&str, &str); 3] = [
    ("event", "id"),
    ("attempt", "id"),
    ("missed_event", "event_id"),
];

struct Scene {
    app: TestApp,
    store: Store,
    client: Client,
}

impl Scene {
    async fn new() -> Scene {
        let app = TestApp::prepare().await;
        migrate::migrate(&app.store_url).await.unwrap();
        let store = Store::open(&app.store_url, 3).unwrap();
        let client = app.store().await;
        Scene { app, store, client }
    }

    /// Returns the partition of each table that contains the row with this id.
    async fn partitions_of(&self, id: Uuid) -> Vec<String> {
        let mut partitions = Vec::new();

        for (table, column) in TABLES {
            let find =
                format!("select tableoid::regclass::text from walhook.{table} where {column} = $1");
            let rows = self.client.query(&find, &[&id]).await.unwrap();
            partitions.extend(
                rows.iter()
                    .map(|row| row.get::<_, String>(0).replace("walhook.", "")),
            );
        }

        partitions
    }
}

fn day(text: &str) -> Date {
    text.parse().unwrap()
}

/// A UUIDv7 of this time. `n` makes it unique.
fn id_at(at: &str, n: u128) -> Uuid {
    let at: Timestamp = at.parse().unwrap();
    Uuid::from_u128((at.as_millisecond() as u128) << 80 | 0x7000_8000_0000_0000_0000 | n)
}

/// Inserts a row into each table, for a new webhook.
async fn insert(client: &Client, id: Uuid) -> Uuid {
    let webhook = Uuid::now_v7();
    let rows = [
        "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id)
         values ($2, 'u', 'n', 'https://x.example/', '{delivery.failed}', '', encode(uuid_send($1), 'hex'))",
        "insert into walhook.event (id, user_id, kind, occurred_at, data)
         select $1, user_id, 'delivery.failed', now(), '{}' from walhook.webhook where id = $2",
        "insert into walhook.attempt (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome)
         values ($1, $2, $1, $1, 'delivery.failed', 1, 1, now(), 'delivered')",
        "insert into walhook.missed_event (webhook_id, event_id) values ($2, $1)",
    ];
    for row in rows {
        client.execute(row, &[&id, &webhook]).await.unwrap();
    }

    webhook
}

#[tokio::test]
async fn a_missing_partition_is_created_although_its_rows_are_in_the_default_one() {
    let scene = Scene::new().await;
    let yesterday = id_at("2026-02-28T23:59:59.999Z", 1);
    let today = id_at("2026-03-01T00:00:00Z", 2);

    // Within retention, but of a day whose partition was not created in time.
    let earlier = id_at("2026-02-10T12:00:00Z", 3);
    for id in [yesterday, today, earlier] {
        insert(&scene.client, id).await;
    }

    assert_eq!(
        scene
            .store
            .tables_without_partitions(day("2026-03-01"))
            .await
            .unwrap(),
        ["event", "attempt", "missed_event"]
    );

    let done = walhook::store::partitions::maintain(&scene.store, day("2026-03-01"), 30)
        .await
        .unwrap();
    assert!(done.is_complete(), "{done:?}");
    assert_eq!(done.created.len(), 3 * 6, "{done:?}");

    for (id, day) in [
        (yesterday, "20260228"),
        (today, "20260301"),
        (earlier, "20260210"),
    ] {
        assert_eq!(
            scene.partitions_of(id).await,
            TABLES.map(|(table, _)| format!("{table}_{day}"))
        );
    }

    assert!(
        scene
            .store
            .tables_without_partitions(day("2026-03-01"))
            .await
            .unwrap()
            .is_empty()
    );

    // Attached partitions have the indexes of the table.
    let unlike = "select count(*) from pg_index parent
                  where parent.indrelid in (select partrelid from pg_partitioned_table)
                      and (select count(*) from pg_inherits where inhparent = parent.indexrelid)
                          <> (select count(*) from pg_inherits where inhparent = parent.indrelid)";
    assert_eq!(one::<i64>(&scene.client, unlike).await, 0);
}

#[tokio::test]
async fn queries_find_all_rows_while_these_are_moved_into_partitions() {
    let scene = Scene::new().await;
    let days = ["2026-02-10", "2026-02-20", "2026-02-28", "2026-03-01"];

    for (n, day) in (0..).zip(days) {
        insert(&scene.client, id_at(&format!("{day}T12:00:00Z"), n)).await;
    }

    let maintaining = walhook::store::partitions::maintain(&scene.store, day("2026-03-01"), 30);
    let mut maintaining = pin!(maintaining);

    loop {
        tokio::select! {
            done = &mut maintaining => {
                let done = done.unwrap();
                assert!(done.is_complete(), "{done:?}");
                break;
            }
            found = scene.client.query("select id from walhook.event", &[]) => {
                assert_eq!(found.unwrap().len(), days.len());
            }
        }
    }
}

#[tokio::test]
async fn a_locked_table_does_not_prevent_partitions_of_other_tables() {
    let scene = Scene::new().await;

    // Like a running pg_dump.
    let dump = scene.app.store().await;
    run_sql(
        &dump,
        "begin; lock table walhook.attempt in access share mode",
    )
    .await;

    let done = walhook::store::partitions::maintain(&scene.store, day("2026-03-01"), 30)
        .await
        .unwrap();
    assert_eq!(
        (done.created.len(), done.waiting.len(), &done.failed),
        (10, 1, &Vec::new()),
        "{done:?}"
    );
    run_sql(&dump, "commit").await;

    let done = walhook::store::partitions::maintain(&scene.store, day("2026-03-01"), 30)
        .await
        .unwrap();
    assert_eq!(
        (done.created.len(), done.is_complete()),
        (5, true),
        "{done:?}"
    );
}

#[tokio::test]
async fn expired_rows_are_removed_from_default_partitions_and_their_deliveries_cancelled_and_logged()
 {
    let scene = Scene::new().await;
    let old = id_at("2026-01-01T12:00:00Z", 1);
    let webhook = insert(&scene.client, old).await;
    walhook::store::partitions::maintain(&scene.store, day("2026-01-10"), 30)
        .await
        .unwrap();
    // One whose event is in a partition, one whose event is in the default one, and one of today.
    let in_default = id_at("2026-01-02T12:00:00Z", 2);
    let kept = id_at("2026-03-01T12:00:00Z", 3);
    assert_eq!(scene.partitions_of(old).await[0], "event_20260101");
    for id in [in_default, kept] {
        insert(&scene.client, id).await;
    }
    let pending = "insert into walhook.delivery (id, webhook_id, event_id, due_at, attempt, lease)
                   select id, $1, id, now(), 2, gen_random_uuid() from unnest($2::uuid[]) as id";
    scene
        .client
        .execute(pending, &[&webhook, &vec![old, in_default, kept]])
        .await
        .unwrap();
    let lease = "select lease from walhook.delivery where id = $1";
    let lease: Uuid = scene
        .client
        .query_one(lease, &[&in_default])
        .await
        .unwrap()
        .get(0);
    let done = walhook::store::partitions::maintain(&scene.store, day("2026-03-01"), 30)
        .await
        .unwrap();
    assert!(done.is_complete(), "{done:?}");
    assert_eq!(done.expired, 2);
    assert!(
        done.dropped.contains(&"event_20260101".to_owned()),
        "{done:?}"
    );
    assert_eq!(
        (
            scene.partitions_of(old).await,
            scene.partitions_of(in_default).await
        ),
        (vec![], vec![])
    );
    assert_eq!(scene.partitions_of(kept).await.len(), 3);
    let lines = "select delivery_id, outcome, error_kind, attempt, event_kind from walhook.attempt
                 where error_kind is not null order by delivery_id";
    let rows = scene.client.query(lines, &[]).await.unwrap();
    let line = |row: &tokio_postgres::Row| {
        let text = |at| row.get::<_, String>(at);
        (
            row.get::<_, Uuid>(0),
            text(1),
            text(2),
            row.get::<_, i16>(3),
            text(4),
        )
    };
    let expected = [old, in_default].map(|id| {
        (
            id,
            "cancelled".to_owned(),
            "event_expired".to_owned(),
            2,
            "delivery.failed".to_owned(),
        )
    });
    assert_eq!(rows.iter().map(line).collect::<Vec<_>>(), expected);
    log_in_flight(&scene, webhook, in_default, lease).await;
    let left = "select (select count(*) from walhook.delivery), (select sum(cancelled)::bigint from walhook.webhook_hour)";
    let row = scene.client.query_one(left, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 2));
}

/// Records the attempt that was in flight when its delivery was cancelled, and asserts that it is
/// logged.
async fn log_in_flight(scene: &Scene, webhook: Uuid, id: Uuid, lease: Uuid) {
    let delivery = Delivery {
        id,
        webhook,
        event: id,
        kind: EventKind::DeliveryFailed,
        occurred_at: Timestamp::now(),
        data: "{}".into(),
        round: 1,
        attempt: 2,
        sequence: None,
        order_key: None,
        activation: 0,
        lease: Lease {
            token: lease,
            until: Instant::now(),
            place: None,
        },
    };

    let attempt = Attempt {
        started_at: Timestamp::now(),
        answer: Answer::Accepted { status: 200 },
        sent: Some(sent()),
    };

    let attempted = Attempted { delivery, attempt };
    let next = Next::End(Outcome::Delivered);
    let mut batch = [CompletedAttempt::new(Uuid::now_v7(), attempted, next)];
    let policy = Config::default().disable.policy();

    record(&scene.store, &mut batch, &policy, None)
        .await
        .unwrap();

    assert!(!batch[0].is_counted());
    let lines = "select outcome from walhook.attempt where delivery_id = $1 and attempt = 2 order by outcome";
    let rows = scene.client.query(lines, &[&id]).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(),
        ["cancelled", "delivered"]
    );
}

#[tokio::test]
async fn a_running_dump_does_not_block_a_start() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    let dump = app.store().await;
    let lock = "begin; lock table walhook.event, walhook.attempt, walhook.missed_event in access share mode";

    run_sql(&dump, lock).await;
    app.run().await;
    assert!(app.stop().await.success());
}

#[tokio::test]
async fn a_store_that_cannot_be_maintained_is_unready_until_it_can() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let client = app.store().await;
    let id = Uuid::now_v7();

    insert(&client, id).await;
    let refuse = "create function public.refuse() returns trigger language plpgsql as $$ begin raise 'not now'; end $$;
                  create trigger refuse before delete on walhook.event_default
                      for each statement execute function public.refuse()";

    run_sql(&client, refuse).await;
    let mut sidecar = app.spawn(&[]);
    let report = async || {
        sidecar
            .readiness()
            .await
            .filter(|(status, text)| *status == 503 && text.contains("maintenance"))
    };

    eventually("a report", report).await;
    let checked = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();

    assert!(
        checked
            .lines()
            .any(|line| line.starts_with("warn  partitions: rows of event are")),
        "{checked}"
    );

    // The other tables have their partitions.
    let others = "select count(*) from pg_inherits where inhparent = 'walhook.attempt'::regclass";
    assert_eq!(one::<i64>(&client, others).await, 6);

    run_sql(&client, "drop trigger refuse on walhook.event_default").await;
    sidecar.wait_until_ready().await;

    let checked = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    assert!(
        checked
            .lines()
            .any(|line| line.starts_with("ok    partitions: ")),
        "{checked}"
    );

    assert!(sidecar.stop().await.success());
}
