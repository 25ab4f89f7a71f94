//! Statements that remove what is stored of a user. Each is a small transaction, so that it does
//! not delay deliveries.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use postgres_types::ToSql;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::statement::{Statements, from_row};
use super::{Result, Store, StoreError, Transaction};
use crate::domain::event::UserId;
use crate::sql::store as sql;

/// The most rows that one transaction removes or reads.
const CHUNK: i64 = 2_000;
/// All transactions lock in the same order, except that deliveries may be inserted in the meantime.
/// Then two transactions can deadlock; Postgres ends one, which is retried.
const MAX_TRIES: usize = 5;

/// A statement that removes one kind of row, a chunk at a time.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// A name for the rows, for the summary.
    pub what: &'static str,
    sql: &'static str,
}

const fn removal(what: &'static str, sql: &'static str) -> Removal {
    Removal { what, sql }
}

/// By webhook, in this order: a job creates deliveries, and the answer to a delivery creates rows
/// of the log and the hours.
pub const OF_WEBHOOK: [Removal; 7] = [
    // Found by their recoveries.
    removal("events that replays skip", sql::replay_exclusion::ERASE),
    removal("recoveries and replays", sql::recovery::ERASE),
    removal("pending deliveries", sql::delivery::ERASE),
    removal("entries of the delivery log", sql::attempt::ERASE),
    removal("missed events", sql::missed_event::ERASE),
    removal("hours of statistics", sql::webhook_hour::ERASE),
    removal("delivery counters", sql::webhook_sequence::ERASE),
];
/// By user, before the webhooks: afterwards nobody can act as this user.
pub const ACCESS: [Removal; 2] = [
    removal("API tokens", sql::api_token::ERASE),
    removal("sessions", sql::session::ERASE),
];
/// By user, after the events. The audit records are last: they name the webhooks, which an
/// interrupted erasure needs when it is repeated.
pub const RECORDS: [Removal; 6] = [
    // Found by their labels.
    removal("copies of releases", sql::lookup_row::ERASE_RELEASES),
    removal("copies of labels", sql::lookup_row::ERASE_LABELS),
    removal("notices", sql::notice::ERASE),
    removal("items of operator notices", sql::occurrence::ERASE),
    removal(
        "responses stored for idempotency keys",
        sql::idempotency::ERASE,
    ),
    removal("audit records", sql::audit::ERASE),
];

/// An erasure that the audit log does not have yet. The first transaction that removes rows also
/// records it: an erasure that is killed and finds nothing when it is repeated is recorded too.
pub type Unrecorded = Option<Uuid>;

/// Runs a transaction again when Postgres ended it to resolve a deadlock.
async fn retry_deadlocks<'a, T>(transaction: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
    for _ in 1..MAX_TRIES {
        match transaction().await {
            Err(StoreError::Query(error))
                if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
            result => return result,
        }
    }

    transaction().await
}

/// Removes a chunk of the rows of a user or a webhook. Returns how many: zero when none are left.
pub async fn remove(
    store: &Store,
    removal: Removal,
    of: &(dyn ToSql + Sync),
    unrecorded: Unrecorded,
) -> Result<u64> {
    retry_deadlocks(|| try_remove(store, removal, of, unrecorded).boxed()).await
}

async fn try_remove(
    store: &Store,
    removal: Removal,
    of: &(dyn ToSql + Sync),
    unrecorded: Unrecorded,
) -> Result<u64> {
    store
        .transaction(async |transaction| {
            let removed = transaction.run(removal.sql, &[of, &CHUNK]).await?;
            record(transaction, unrecorded.filter(|_| removed > 0)).await?;

            Ok(removed)
        })
        .await
}

/// Removes the user's webhooks. Afterwards nothing is sent to them, and no deliveries are created.
pub async fn remove_webhooks(store: &Store, user: &UserId, unrecorded: Unrecorded) -> Result<u64> {
    retry_deadlocks(|| try_remove_webhooks(store, user, unrecorded).boxed()).await
}

async fn try_remove_webhooks(store: &Store, user: &UserId, unrecorded: Unrecorded) -> Result<u64> {
    let actor = Actor {
        user: user.clone(),
        via: Via::CommandLine,
    };

    store
        .transaction(async |transaction| {
            transaction.run(sql::webhook::LOCK_USER, &[user]).await?;
            let webhooks: Vec<Uuid> = transaction
                .fetch_all(sql::webhook::FIND_OF_USER, &[user])
                .await?;

            for webhook in &webhooks {
                audit::record(transaction, &actor, Action::WebhookDeleted, *webhook, &[]).await?;
            }

            record(transaction, unrecorded.filter(|_| !webhooks.is_empty())).await?;
            Ok(webhooks.len() as u64)
        })
        .await
}

/// Finds the user's webhooks that were deleted, by the rows that remain of them.
pub async fn find_deleted_webhooks(store: &Store, user: &UserId) -> Result<Vec<Uuid>> {
    store
        .fetch_all(sql::webhook::FIND_DELETED_OF_USER, &[user])
        .await
}

/// A chunk of the events of all users, from which the user's events were removed.
#[derive(Clone, Copy, Debug)]
pub struct EventChunk {
    pub removed: u64,
    read: i64,
    last: Option<Uuid>,
}

from_row!(EventChunk { removed = "gone", read = "examined", last });

impl EventChunk {
    /// The event after which the next chunk starts. `None` when there is none.
    pub fn next(&self) -> Option<Uuid> {
        self.last.filter(|_| self.read == CHUNK)
    }
}

/// Reads the next events after `after`, and removes those of the user. Events are not indexed by
/// user.
pub async fn remove_events(
    store: &Store,
    user: &UserId,
    after: Uuid,
    unrecorded: Unrecorded,
) -> Result<EventChunk> {
    store
        .transaction(async |transaction| {
            let chunk: EventChunk = transaction
                .fetch_one(sql::event::ERASE, &[user, &after, &CHUNK])
                .await?;
            record(transaction, unrecorded.filter(|_| chunk.removed > 0)).await?;

            Ok(chunk)
        })
        .await
}

/// Records the erasure in the audit log, without the user.
async fn record(transaction: &Transaction<'_>, erasure: Option<Uuid>) -> Result<()> {
    let Some(erasure) = erasure else {
        return Ok(());
    };

    let nobody = Actor {
        user: UserId("".into()),
        via: Via::CommandLine,
    };

    audit::record(transaction, &nobody, Action::UserErased, erasure, &[]).await
}
