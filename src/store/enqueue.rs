//! One transaction for what a batch of changes raised and for the checkpoint behind it.

use std::collections::{HashMap, HashSet};

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use postgres_types::PgLsn;
use uuid::Uuid;

use super::ledger::prepare_ledger;
use super::{Result, Store, StoreError};
use crate::domain::change::Origin;
use crate::domain::event::{Event, EventKind, UserId};
use crate::domain::lsn::{Checkpoint, Lineage, Lsn, Position};
use crate::domain::webhook::SealedTarget;
use crate::domain::window::Window;

const CHECKPOINT_READ: &str = include_str!("../../sql/store/checkpoint_read.sql");
const CHECKPOINT_ADVANCE: &str = include_str!("../../sql/store/checkpoint_advance.sql");
const DISTRIBUTED_RELEASE_CLAIM: &str = include_str!("../../sql/store/distributed_release_claim.sql");
const DISTRIBUTED_RELEASE_NEW: &str = include_str!("../../sql/store/distributed_release_new.sql");
const SUBSCRIPTIONS: &str = include_str!("../../sql/store/subscriptions.sql");
const EVENT_INSERT: &str = include_str!("../../sql/store/event_insert.sql");
const DELIVERY_INSERT: &str = include_str!("../../sql/store/delivery_insert.sql");
const MISSED_EVENT_INSERT: &str = include_str!("../../sql/store/missed_event_insert.sql");
const UNROUTED_EVENT_INSERT: &str = include_str!("../../sql/store/unrouted_event_insert.sql");

/// A webhook, as the transaction found it.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// To an inactive one nothing is delivered, but what it misses is remembered.
    pub target: SealedTarget,
    pub events: Vec<EventKind>,
}

/// A delivery to store; `leased` where this process keeps it at hand.
#[derive(Clone, Copy, Debug)]
pub struct NewDelivery {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub leased: bool,
}

/// The lease of all the leased deliveries of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct NewLease {
    pub token: Uuid,
    pub seconds: f64,
}

impl NewLease {
    /// For deliveries none of which is leased.
    pub const NONE: NewLease = NewLease { token: Uuid::nil(), seconds: 0.0 };
}

/// An event without anybody to tell.
#[derive(Clone, Debug)]
pub struct Unrouted {
    pub id: Uuid,
    pub kind: EventKind,
    pub reason: &'static str,
    pub table: &'static str,
    pub row: String,
    pub occurred_at: Timestamp,
    pub position: Position,
    pub origin: Origin,
}

impl Store {
    pub async fn checkpoint(&self, slot: &str) -> Result<Option<Checkpoint>> {
        self.checkpoint_of_reader(slot, None).await
    }

    /// Returns the checkpoint if `reader` holds the claim on it. Nobody else has stored anything since it was claimed.
    pub async fn checkpoint_of_reader(&self, slot: &str, reader: Option<Uuid>) -> Result<Option<Checkpoint>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(CHECKPOINT_READ).await?;
        let Some(row) = connection.query_opt(&statement, &[&slot, &reader]).await? else { return Ok(None) };
        let corrupt = |what: &str| StoreError::Corrupt(format!("{what} of the checkpoint of slot {slot} is negative"));
        Ok(Some(Checkpoint {
            lineage: Lineage {
                system_identifier: row.get::<_, i64>(0) as u64,
                timeline: u32::try_from(row.get::<_, i32>(1)).map_err(|_| corrupt("the timeline"))?,
            },
            position: Position {
                commit: Lsn(row.get::<_, PgLsn>(2).into()),
                ordinal: u64::try_from(row.get::<_, i64>(3)).map_err(|_| corrupt("the ordinal"))?,
            },
            resume: Lsn(row.get::<_, PgLsn>(4).into()),
        }))
    }
}

/// Moves the checkpoint on from `expected`, with the window it is in then; false when it is somewhere else, on another timeline,
/// or claimed by another process.
pub async fn advance_checkpoint(
    transaction: &impl GenericClient,
    slot: &str,
    expected: &Checkpoint,
    next: &Checkpoint,
    window: Option<&Window>,
) -> Result<bool> {
    let bounds = window.and_then(|window| window.bounds.as_ref());
    let statement = transaction.prepare_cached(CHECKPOINT_ADVANCE).await?;
    let moved = transaction
        .execute(
            &statement,
            &[
                &slot,
                &lsn(expected.position.commit),
                &ordinal(expected.position.ordinal),
                &lsn(next.position.commit),
                &ordinal(next.position.ordinal),
                &lsn(next.resume),
                &(next.lineage.timeline as i32),
                &bounds.map(|bounds| bounds.from.as_str()),
                &bounds.map(|bounds| bounds.to.as_str()),
                &window.map(|window| window.reader),
                &(expected.lineage.timeline as i32),
            ],
        )
        .await?;
    Ok(moved == 1)
}

/// Which of `releases` had never been distributed before; they have been now.
pub async fn claim_distributed(transaction: &impl GenericClient, releases: &HashSet<i64>) -> Result<HashSet<i64>> {
    if releases.is_empty() {
        return Ok(HashSet::new());
    }
    let releases: Vec<i64> = releases.iter().copied().collect();
    let statement = transaction.prepare_cached(DISTRIBUTED_RELEASE_CLAIM).await?;
    let rows = transaction.query(&statement, &[&releases]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The same without claiming them.
pub async fn undistributed(transaction: &impl GenericClient, releases: &HashSet<i64>) -> Result<HashSet<i64>> {
    let releases: Vec<i64> = releases.iter().copied().collect();
    let rows = transaction.query(DISTRIBUTED_RELEASE_NEW, &[&releases]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The webhooks of each of `users`.
pub async fn subscriptions(
    transaction: &impl GenericClient,
    users: &[&str],
) -> Result<HashMap<UserId, Vec<Subscription>>> {
    let statement = transaction.prepare_cached(SUBSCRIPTIONS).await?;
    let mut found: HashMap<UserId, Vec<Subscription>> = HashMap::new();
    for row in transaction.query(&statement, &[&users]).await? {
        let names: Vec<&str> = row.get(2);
        // An event of a newer build: this one cannot raise it.
        let events = names.iter().filter_map(|name| name.parse().ok()).collect();
        let user = UserId(row.get::<_, &str>(1).into());
        let target = SealedTarget {
            webhook: row.get(0),
            active: row.get(3),
            url: row.get(4),
            secret: row.get(5),
            secret_key_id: row.get(6),
        };
        found.entry(user).or_default().push(Subscription { target, events });
    }
    Ok(found)
}

/// Makes the connection know what events, deliveries and what is missed are stored by, so that each of the following goes out
/// at once.
pub async fn prepare_inserts(client: &impl GenericClient) -> Result<()> {
    for statement in [EVENT_INSERT, DELIVERY_INSERT, MISSED_EVENT_INSERT] {
        client.prepare_cached(statement).await?;
    }
    Ok(())
}

impl Store {
    /// Opens a connection and prepares what a batch of changes is stored by. The pool gives the connection to the next batch.
    pub async fn prepare_enqueue(&self) -> Result<()> {
        let connection = self.connection().await?;
        for statement in [CHECKPOINT_READ, CHECKPOINT_ADVANCE, SUBSCRIPTIONS] {
            connection.prepare_cached(statement).await?;
        }
        prepare_ledger(&*connection).await?;
        prepare_inserts(&*connection).await
    }
}

/// Stores events; `repaired` are those that a comparison found after a gap.
pub async fn insert_events(transaction: &impl GenericClient, events: &[Event], repaired: bool) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(EVENT_INSERT).await?;
    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    let users: Vec<&str> = events.iter().map(|event| &*event.user.0).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    let occurred: Vec<Timestamp> = events.iter().map(|event| event.occurred_at).collect();
    let commits: Vec<Option<PgLsn>> = events.iter().map(|event| commit(event.position, event.origin)).collect();
    let ordinals: Vec<i64> = events.iter().map(|event| ordinal(event.position.ordinal)).collect();
    let data: Vec<&str> = events.iter().map(|event| &*event.data).collect();
    transaction.execute(&statement, &[&ids, &users, &kinds, &occurred, &commits, &ordinals, &data, &repaired]).await?;
    Ok(())
}

pub async fn insert_deliveries(
    transaction: &impl GenericClient,
    deliveries: &[NewDelivery],
    lease: NewLease,
) -> Result<()> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(DELIVERY_INSERT).await?;
    let ids: Vec<Uuid> = deliveries.iter().map(|delivery| delivery.id).collect();
    let webhooks: Vec<Uuid> = deliveries.iter().map(|delivery| delivery.webhook).collect();
    let events: Vec<Uuid> = deliveries.iter().map(|delivery| delivery.event).collect();
    let leased: Vec<bool> = deliveries.iter().map(|delivery| delivery.leased).collect();
    transaction.execute(&statement, &[&ids, &webhooks, &events, &leased, &lease.token, &lease.seconds]).await?;
    Ok(())
}

/// Remembers which webhooks, being inactive, were not told of which events.
pub async fn insert_missed(transaction: &impl GenericClient, missed: &[(Uuid, Uuid)]) -> Result<()> {
    if missed.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(MISSED_EVENT_INSERT).await?;
    let (webhooks, events): (Vec<Uuid>, Vec<Uuid>) = missed.iter().copied().unzip();
    transaction.execute(&statement, &[&webhooks, &events]).await?;
    Ok(())
}

pub async fn insert_unrouted(transaction: &impl GenericClient, unrouted: &[Unrouted]) -> Result<()> {
    if unrouted.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(UNROUTED_EVENT_INSERT).await?;
    let ids: Vec<Uuid> = unrouted.iter().map(|event| event.id).collect();
    let kinds: Vec<&str> = unrouted.iter().map(|event| event.kind.as_str()).collect();
    let reasons: Vec<&str> = unrouted.iter().map(|event| event.reason).collect();
    let tables: Vec<&str> = unrouted.iter().map(|event| event.table).collect();
    let rows: Vec<&str> = unrouted.iter().map(|event| event.row.as_str()).collect();
    let occurred: Vec<Timestamp> = unrouted.iter().map(|event| event.occurred_at).collect();
    let commits: Vec<Option<PgLsn>> = unrouted.iter().map(|event| commit(event.position, event.origin)).collect();
    let ordinals: Vec<i64> = unrouted.iter().map(|event| ordinal(event.position.ordinal)).collect();
    transaction.execute(&statement, &[&ids, &kinds, &reasons, &tables, &rows, &occurred, &commits, &ordinals]).await?;
    Ok(())
}

/// Where the log has the commit; nothing where it came by the outbox.
fn commit(position: Position, origin: Origin) -> Option<PgLsn> {
    matches!(origin, Origin::Log { .. }).then(|| lsn(position.commit))
}

fn lsn(lsn: Lsn) -> PgLsn {
    PgLsn::from(lsn.0)
}

/// Ordinals are far from 2⁶³: Postgres itself counts a transaction's commands in 32 bits.
fn ordinal(ordinal: u64) -> i64 {
    ordinal as i64
}
