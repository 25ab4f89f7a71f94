//! An insert and the end of the delivery before it at the same time, and deliveries that were left
//! waiting.

use std::time::Duration;

use crate::support::{Bench, eventually, one, run_sql};
use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::domain::delivery::{Answer, Attempt, Attempted, Delivery, NewDelivery, Next, Outcome};
use walhook::domain::event::delivery_id;
use walhook::domain::sequence::Sequences;
use walhook::record::{PromotionLimits, record};
use walhook::store::attempt::CompletedAttempt;
use walhook::store::delivery::{self, NewLease};
use walhook::store::{Store, Transaction, sequences};

const KEY: i64 = 0;

/// Inserts a delivery as enqueue does. Returns its id, and whether it is leased because it waits
/// for no other.
async fn insert(transaction: &Transaction<'_>, webhook: Uuid, event: Uuid) -> (Uuid, bool) {
    let id = delivery_id(event, webhook);
    let mut sequences = Sequences::default();

    sequences::start(transaction, &[webhook], &mut sequences)
        .await
        .unwrap();

    let delivery = NewDelivery {
        leased: true,
        ..sequences.delivery(webhook, event, Some(KEY))
    };

    let lease = NewLease::starting_now(Duration::ZERO);

    let parked = delivery::insert(transaction, &[delivery], Some(lease))
        .await
        .unwrap();
    sequences::store(transaction, &sequences.changed())
        .await
        .unwrap();

    (id, parked.is_empty())
}

async fn insert_committed(store: &Store, webhook: Uuid, event: Uuid) -> (Uuid, bool) {
    let mut connection = store.connection().await.unwrap();
    let transaction = connection.transaction().await.unwrap();
    let inserted = insert(&transaction, webhook, event).await;

    transaction.commit().await.unwrap();
    inserted
}

/// Records that the delivery was delivered. Returns the deliveries that were promoted.
async fn end(bench: &Bench, delivery: Delivery) -> Vec<Uuid> {
    let answer = Answer::Accepted { status: 200 };
    let attempted = Attempted {
        delivery,
        attempt: Attempt {
            started_at: Timestamp::now(),
            answer,
            sent: None,
        },
    };

    let next = Next::End(Outcome::Delivered);
    let mut batch = [CompletedAttempt::new(Uuid::now_v7(), attempted, next)];
    let limits = Some(PromotionLimits {
        lease_length: Duration::from_secs(20),
        max_bytes: usize::MAX,
    });

    let policy = bench.config.disable.policy();
    let recorded = record(&bench.store, &mut batch, &policy, limits)
        .await
        .unwrap();

    assert!(batch[0].is_counted());
    recorded
        .promoted
        .iter()
        .map(|delivery| delivery.id)
        .collect()
}

/// Waits until a session of this database waits for a lock.
async fn someone_waits(client: &Client) {
    let waiting = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let probe = || async { one::<bool>(client, waiting).await.then_some(()) };

    eventually("a session that waits for a lock", probe).await;
}

async fn is_parked(client: &Client, delivery: Uuid) -> bool {
    let parked = "select due_at = 'infinity' from walhook.delivery where id = $1";
    client.query_one(parked, &[&delivery]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_end_waits_for_an_insert_behind_it_and_promotes_it() {
    let bench = Bench::new().await;
    let webhook = bench.webhook("http://127.0.0.1:9/").await.0;
    let first = bench.event("{}").await;
    let second = bench.event("{}").await;
    let (first, is_head) = insert_committed(&bench.store, webhook, first).await;

    assert!(is_head);
    let held = bench.claim().await.pop().unwrap();

    assert_eq!(
        (held.id, held.order_key, held.sequence),
        (first, Some(KEY), Some(1))
    );
    let mut connection = bench.store.connection().await.unwrap();
    let transaction = connection.transaction().await.unwrap();
    let (second, is_head) = insert(&transaction, webhook, second).await;

    assert!(!is_head);
    let (promoted, ()) = tokio::join!(end(&bench, held), async {
        someone_waits(&bench.client).await;
        transaction.commit().await.unwrap();
    });

    assert_eq!(promoted, [second]);
    assert!(!bench.is_pending(first).await && !is_parked(&bench.client, second).await);
}

#[tokio::test]
async fn an_insert_waits_for_the_end_before_it_and_does_not_wait_for_more() {
    let bench = Bench::new().await;
    let webhook = bench.webhook("http://127.0.0.1:9/").await.0;
    let first = bench.event("{}").await;
    let second = bench.event("{}").await;
    let (first, _) = insert_committed(&bench.store, webhook, first).await;

    // As recording does, up to the commit.
    run_sql(&bench.client, "begin").await;
    bench
        .client
        .execute("delete from walhook.delivery where id = $1", &[&first])
        .await
        .unwrap();

    let observer = bench.store.connection().await.unwrap();
    let ((second, is_head), ()) =
        tokio::join!(insert_committed(&bench.store, webhook, second), async {
            someone_waits(&observer).await;
            run_sql(&bench.client, "commit").await;
        });

    assert!(is_head && !is_parked(&bench.client, second).await);
}

#[tokio::test]
async fn a_delivery_that_waits_for_nothing_is_found_and_one_that_waits_is_left() {
    let bench = Bench::new().await;
    let mut pairs = Vec::new();

    for _ in 0..3 {
        let webhook = bench.webhook("http://127.0.0.1:9/").await.0;
        let first = bench.event("{}").await;
        let second = bench.event("{}").await;

        pairs.push((
            insert_committed(&bench.store, webhook, first).await.0,
            insert_committed(&bench.store, webhook, second).await.0,
        ));
    }

    // A build that does not know keys removes deliveries like this.
    let (ended, stranded) = pairs[1];
    bench
        .client
        .execute("delete from walhook.delivery where id = $1", &[&ended])
        .await
        .unwrap();

    // In steps of one key, from the first to the last.
    let mut after = (Uuid::nil(), i64::MIN);
    let mut promoted = Vec::new();

    loop {
        let visited = bench.store.promote_stranded(after, 1).await.unwrap();
        let Some(last) = visited.last() else { break };
        promoted.push(visited.promoted);
        after = last;
    }

    assert_eq!(promoted, [0, 1, 0]);
    assert!(!is_parked(&bench.client, stranded).await);
    assert!(
        is_parked(&bench.client, pairs[0].1).await && is_parked(&bench.client, pairs[2].1).await
    );

    let claimed: Vec<Uuid> = bench
        .claim()
        .await
        .iter()
        .map(|delivery| delivery.id)
        .collect();

    assert_eq!(claimed.len(), 3, "the first of each webhook: {claimed:?}");
    assert!(claimed.contains(&stranded));
}

#[tokio::test]
async fn a_promotion_is_bounded_by_bytes_and_takes_at_least_one_delivery() {
    let bench = Bench::new().await;
    let data = format!(r#"{{"text":"{}"}}"#, "x".repeat(100_000));
    let mut waiting = Vec::new();

    for _ in 0..5 {
        let webhook = bench.webhook("http://127.0.0.1:9/").await.0;

        for _ in 0..3 {
            let event = bench.event(&data).await;
            waiting.push(insert_committed(&bench.store, webhook, event).await.0);
        }
    }

    // Ends the first delivery of each webhook in one transaction.
    let promoted = async |max_bytes| {
        let answer = || Answer::Accepted { status: 200 };
        let attempt = || Attempt {
            started_at: Timestamp::now(),
            answer: answer(),
            sent: None,
        };

        let claimed = bench.claim().await.into_iter();
        let attempted = claimed.map(|delivery| Attempted {
            delivery,
            attempt: attempt(),
        });

        let next = Next::End(Outcome::Delivered);
        let mut batch: Vec<CompletedAttempt> = attempted
            .map(|attempted| CompletedAttempt::new(Uuid::now_v7(), attempted, next))
            .collect();

        let limits = Some(PromotionLimits {
            lease_length: Duration::from_secs(20),
            max_bytes,
        });

        let recorded = record(
            &bench.store,
            &mut batch,
            &bench.config.disable.policy(),
            limits,
        )
        .await
        .unwrap();

        assert!(batch.len() == 5 && batch.iter().all(CompletedAttempt::is_counted));
        recorded.promoted
    };

    let leased = "select count(*) from walhook.delivery where lease is not null";
    let leased = async || -> i64 { one(&bench.client, leased).await };
    let first = promoted(250_000).await;

    assert_eq!(
        (first.len(), leased().await),
        (2, 2),
        "the others were released"
    );
    bench.store.release(&first).await.unwrap();
    assert_eq!((promoted(1).await.len(), leased().await), (1, 1));
}
