//! A webhook with a long backlog is switched off, disabled or deleted: no transaction is as long as
//! the backlog.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::scene::Scene;
use crate::support::{Bench, Receiver, eventually, one, run_sql};
use jiff::Timestamp;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::domain::delivery::{
    Answer, Attempt, Attempted, Delivery, ErrorKind, NewDelivery, Next, Outcome,
};
use walhook::domain::event::{UserId, delivery_id};
use walhook::domain::sequence::Sequences;
use walhook::record::{Recorded, cancel_next};
use walhook::store::attempt::CompletedAttempt;
use walhook::store::audit::{Actor, Via};
use walhook::store::delivery;
use walhook::store::erase::{self, OF_WEBHOOK};
use walhook::store::webhooks::{self, Updated};
use walhook::store::{Store, sequences};

const BACKLOG: i64 = 20_000;
/// Two chunks and a half.
const CHUNKS: i64 = 5_000;
/// The most deliveries that one transaction cancels.
const CHUNK: i64 = 2_000;
const KEY: i64 = 7;

/// Inserts events of this moment with a pending delivery each: a half of them retries, none of them
/// due.
async fn insert_backlog(client: &Client, webhook: Uuid, count: i64, key: Option<i64>) {
    let insert = "with made as (
                      insert into walhook.event (id, user_id, kind, occurred_at, data)
                      select encode(overlay(
                                 uuid_send(gen_random_uuid())
                                 placing substring(int8send((extract(epoch from now()) * 1000)::bigint) from 3)
                                 from 1 for 6
                             ), 'hex')::uuid,
                             'u', 'release.distributed', now(), '{}'
                      from generate_series(1, $2::bigint)
                      returning id
                  )
                  insert into walhook.delivery (id, webhook_id, event_id, attempt, due_at, sequence, order_key)
                  select gen_random_uuid(), $1, id, case when $3::bigint is null then 1 + number % 2 else 1 end,
                      case when $3 is null or number = 1 then now() + interval '1 hour' else 'infinity' end, number, $3
                  from (select id, row_number() over () as number from made) as numbered";
    client
        .execute(insert, &[&webhook, &count, &key])
        .await
        .unwrap();
}

async fn count(client: &Client, query: &str, webhook: Uuid) -> i64 {
    client.query_one(query, &[&webhook]).await.unwrap().get(0)
}

async fn pending(client: &Client, webhook: Uuid) -> i64 {
    count(
        client,
        "select count(*) from walhook.delivery where webhook_id = $1",
        webhook,
    )
    .await
}

/// Each delivery was cancelled once, and no transaction cancelled more than a chunk. The hours
/// count the same.
async fn assert_cancelled(client: &Client, webhook: Uuid, expected: i64) {
    let cancelled = "select count(*), count(distinct delivery_id) from walhook.attempt
                     where webhook_id = $1 and outcome = 'cancelled' and error_kind = 'webhook_inactive'";
    let row = client.query_one(cancelled, &[&webhook]).await.unwrap();

    assert_eq!(
        (row.get(0), row.get(1)),
        (expected, expected),
        "each delivery is cancelled once"
    );
    let largest = "select coalesce(max(count), 0) from (
                       select count(*) from walhook.attempt
                       where webhook_id = $1 and outcome = 'cancelled' group by xmin::text
                   ) as of_transaction";
    let largest = count(client, largest, webhook).await;

    assert!(
        largest <= CHUNK,
        "a transaction cancelled {largest} deliveries"
    );
    let hours = "select coalesce(sum(cancelled), 0)::bigint from walhook.webhook_hour where webhook_id = $1";
    assert_eq!(count(client, hours, webhook).await, expected);
}

/// Cancels as a replica does, until nothing is left that is not locked.
async fn cancel_all(store: &Store) {
    while cancel_next(store, Uuid::nil()).await.unwrap().deliveries > 0 {}
}

fn actor() -> Actor {
    Actor {
        user: UserId("u".into()),
        via: Via::CommandLine,
    }
}

async fn set_active(bench: &Bench, webhook: Uuid, active: bool) -> bool {
    let updated = bench
        .edit(webhook, |settings| settings.active = active)
        .await;
    matches!(updated, Updated::Done(webhook) if webhook.settings.active == active)
}

/// Records one batch, all of whose attempts count: the deliveries of `failing` have failed, the others were delivered.
async fn record(bench: &Bench, deliveries: Vec<Delivery>, failing: Uuid) -> Recorded {
    let attempted = |delivery: Delivery| {
        let answer = match delivery.webhook == failing {
            true => Answer::Failed {
                kind: ErrorKind::HttpStatus,
                message: "no".into(),
                status: Some(500),
            },
            false => Answer::Accepted { status: 200 },
        };

        Attempted {
            delivery,
            attempt: Attempt {
                started_at: Timestamp::now(),
                answer,
                sent: None,
            },
        }
    };

    let next = |attempted: &Attempted| match attempted.delivery.webhook == failing {
        true => Next::Retry {
            after: Duration::from_secs(3_600),
            attempt: 2,
        },
        false => Next::End(Outcome::Delivered),
    };

    let mut batch: Vec<CompletedAttempt> = deliveries
        .into_iter()
        .map(attempted)
        .map(|attempted| {
            let next = next(&attempted);
            CompletedAttempt::new(Uuid::now_v7(), attempted, next)
        })
        .collect();

    let policy = bench.config.disable.policy();
    let recorded = walhook::record::record(&bench.store, &mut batch, &policy, None)
        .await
        .unwrap();
    assert!(batch.iter().all(CompletedAttempt::is_counted));

    recorded
}

/// Locks a few deliveries of the webhook for as long as `client` keeps its transaction open.
async fn lock_some(client: &Client, webhook: Uuid) -> i64 {
    run_sql(client, "begin").await;
    let lock = "select id from walhook.delivery where webhook_id = $1 order by id desc limit 100 for update";
    client.query(lock, &[&webhook]).await.unwrap().len() as i64
}

/// Stores an event with a delivery of an ordered webhook, as capture does that has read the webhook
/// while it was active.
async fn capture(bench: &Bench, webhook: Uuid) -> Uuid {
    let event = bench.event("{}").await;
    let id = delivery_id(event, webhook);
    let mut numbers = Sequences::default();
    let mut connection = bench.store.connection().await.unwrap();
    let transaction = connection.transaction().await.unwrap();

    sequences::start(&transaction, &[webhook], &mut numbers)
        .await
        .unwrap();

    let delivery = NewDelivery {
        id,
        webhook,
        event,
        sequence: Some(BACKLOG + 1),
        order_key: Some(KEY),
        is_parked: false,
        leased: false,
    };

    delivery::insert(&transaction, &[delivery], None)
        .await
        .unwrap();
    transaction.commit().await.unwrap();

    id
}

#[tokio::test]
async fn a_backlog_that_is_locked_holds_up_neither_its_disablement_nor_other_tenants_nor_capture() {
    let mut bench = Bench::new().await;
    bench.config.disable.threshold = 1;

    let [failing, ordered, other] = [
        bench.webhook("http://a/").await.0,
        bench.webhook("http://b/").await.0,
        bench.webhook("http://c/").await.0,
    ];
    insert_backlog(&bench.client, failing, BACKLOG, None).await;
    insert_backlog(&bench.client, ordered, BACKLOG, Some(KEY)).await;

    let failed = bench.delivery(failing).await;
    let delivered = bench.delivery(other).await;
    let in_flight = bench.claim().await;
    let ids: BTreeSet<Uuid> = in_flight.iter().map(|delivery| delivery.id).collect();

    assert_eq!(ids, [failed, delivered].into());
    let one = bench.store.connection().await.unwrap();
    let two = bench.store.connection().await.unwrap();
    let locked = lock_some(&one, failing).await;

    lock_some(&two, ordered).await;

    // Each of these would wait for the locks, and fail when it is given up.
    let recorded = record(&bench, in_flight, failing).await;

    assert_eq!(
        recorded
            .disabled
            .iter()
            .map(|disabled| disabled.webhook)
            .collect::<Vec<_>>(),
        [failing]
    );

    assert!(!bench.is_pending(delivered).await);
    let captured = tokio::join!(set_active(&bench, ordered, false), capture(&bench, ordered));

    assert!(captured.0 && bench.is_pending(captured.1).await);

    cancel_all(&bench.store).await;
    assert_eq!(
        pending(&bench.client, failing).await,
        locked,
        "everything but what is locked"
    );

    for holder in [one, two] {
        run_sql(&holder, "commit").await;
    }

    cancel_all(&bench.store).await;

    for (webhook, count) in [(failing, BACKLOG + 1), (ordered, BACKLOG + 1), (other, 0)] {
        assert_eq!(pending(&bench.client, webhook).await, 0);
        assert_cancelled(&bench.client, webhook, count).await;
    }

    let reasons = "select distinct error_message from walhook.attempt where webhook_id = $1 and outcome = 'cancelled'";
    let reason = bench.client.query(reasons, &[&failing]).await.unwrap();
    assert_eq!(
        reason.iter().map(|row| row.get(0)).collect::<Vec<&str>>(),
        ["the webhook was disabled"]
    );
}

#[tokio::test]
async fn a_webhook_is_activated_when_what_was_pending_is_cancelled() {
    let bench = Bench::new().await;

    for key in [None, Some(KEY)] {
        let webhook = bench.webhook("http://127.0.0.1:9/").await.0;
        insert_backlog(&bench.client, webhook, CHUNKS, key).await;
        assert!(set_active(&bench, webhook, false).await);
        assert_eq!(
            pending(&bench.client, webhook).await,
            CHUNKS - CHUNK,
            "one chunk, before the response"
        );

        // Those that wait are left for the cancellation. A search for stranded deliveries starts
        // none of them.
        let visited = bench
            .store
            .promote_stranded((Uuid::nil(), i64::MIN), 1_000)
            .await
            .unwrap();
        assert_eq!(
            (visited.promoted, visited.keys),
            (0, i64::from(key.is_some()))
        );

        let holder = bench.store.connection().await.unwrap();
        let locked = lock_some(&holder, webhook).await;

        let (is_active, ()) = tokio::join!(set_active(&bench, webhook, true), async {
            eventually(
                "everything but what is locked to be cancelled",
                async || (pending(&bench.client, webhook).await == locked).then_some(()),
            )
            .await;
            let active = "select active::integer::bigint from walhook.webhook where id = $1";
            assert_eq!(count(&bench.client, active, webhook).await, 0, "it waits");
            run_sql(&holder, "commit").await;
        });

        assert!(is_active);
        assert_eq!(pending(&bench.client, webhook).await, 0);
        assert_cancelled(&bench.client, webhook, CHUNKS).await;

        let fresh = bench.delivery(webhook).await;
        cancel_all(&bench.store).await;
        assert_eq!(bench.store.cancel_pending(webhook).await.unwrap(), 0);
        assert!(
            bench.is_pending(fresh).await,
            "it is of the time after the activation"
        );
        assert_eq!(bench.claim().await.len(), 1);
    }
}

#[tokio::test]
async fn a_deleted_webhook_is_gone_at_once_and_its_backlog_is_cancelled_in_chunks() {
    let bench = Bench::new().await;
    let receiver = Receiver::start().await;
    let webhook = bench.webhook(&receiver.url("/")).await.0;

    insert_backlog(&bench.client, webhook, CHUNKS, None).await;
    let get = async || {
        webhooks::get(&bench.store, &actor().user, webhook)
            .await
            .unwrap()
    };
    let found = get().await.unwrap();

    assert!(
        webhooks::delete(&bench.store, &actor(), &found)
            .await
            .unwrap()
    );
    assert!(get().await.is_none());

    assert_eq!(pending(&bench.client, webhook).await, CHUNKS - CHUNK);
    run_sql(&bench.client, "update walhook.delivery set due_at = now()").await;

    let running = bench.run();
    eventually("the end of all", async || {
        (pending(&bench.client, webhook).await == 0).then_some(())
    })
    .await;
    running.stop().await;
    assert!(receiver.requests().is_empty());
    assert_cancelled(&bench.client, webhook, CHUNKS).await;
}

#[tokio::test]
async fn an_erasure_beside_a_cancellation_leaves_no_delivery() {
    let bench = Bench::new().await;
    let webhook = Uuid::now_v7();

    insert_backlog(&bench.client, webhook, CHUNKS, None).await;
    let deliveries = OF_WEBHOOK
        .into_iter()
        .find(|removal| removal.what == "pending deliveries")
        .unwrap();

    // A cancellation of all but one that an erasure finds, about to commit.
    let canceller = bench.store.connection().await.unwrap();
    run_sql(&canceller, "begin").await;

    let cancel = "delete from walhook.delivery
                  where webhook_id = $1 and id <> (select id from walhook.delivery where webhook_id = $1 order by id limit 1)";
    canceller.execute(cancel, &[&webhook]).await.unwrap();

    let erase = async {
        while erase::remove(&bench.store, deliveries, &webhook, None)
            .await
            .unwrap()
            > 0
        {}
    };

    let ((), ()) = tokio::join!(erase, async {
        let waits = "select exists (select from pg_stat_activity
                                    where datname = current_database() and wait_event_type = 'Lock')";
        let someone_waits = async || one::<bool>(&bench.client, waits).await.then_some(());

        eventually("the erasure to wait", someone_waits).await;
        run_sql(&canceller, "commit").await;
    });

    assert_eq!(pending(&bench.client, webhook).await, 0);
}

#[tokio::test]
async fn a_cancellation_is_continued_after_a_kill_and_an_activation_before_its_end_is_refused() {
    let mut scene = Scene::begin(&[]).await;
    let store = scene.app.store().await;
    let webhook: Uuid = scene.webhook.parse().unwrap();

    insert_backlog(&store, webhook, BACKLOG, None).await;
    let holder = scene.app.store().await;
    let locked = lock_some(&holder, webhook).await;

    assert_eq!(scene.set_active(false).await["active"], false);

    // It waits for what is locked, and is given up.
    let refused = scene
        .api
        .patch(&scene.path(), json!({ "active": true }))
        .await
        .expect(503);
    assert_eq!(
        (refused.header("retry-after"), &refused.json()["type"]),
        (Some("5"), &json!("/problems/unavailable"))
    );
    assert_eq!(scene.api.webhook(&scene.webhook).await["active"], false);
    scene.app.kill().await;
    assert!(pending(&store, webhook).await >= locked);
    run_sql(&holder, "commit").await;
    scene.app.run().await;
    eventually("the end of the backlog", async || {
        (pending(&store, webhook).await == 0).then_some(())
    })
    .await;
    assert_cancelled(&store, webhook, BACKLOG).await;

    let api = scene.app.api(&scene.user.to_string()).await;
    let active = api
        .patch(&scene.path(), json!({ "active": true }))
        .await
        .expect(200)
        .json();

    assert_eq!(active["active"], true);
    scene.payment().await;
    scene.receiver.wait_for(1).await;
    assert_eq!(scene.receiver.requests().len(), 1);
}
