//! Reads single deliveries, as a webhook's owner sees them.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::logs::Entry;
use super::statement::{FromRow, Statements, column, from_row};
use super::{ID_TOLERANCE_MS, Result, Store, lowest_id_at, millis_of_id};
use crate::domain::about::About;
use crate::domain::delivery::Timing;
use crate::domain::event::{UserId, delivered_event};
use crate::sql::store as sql;

/// The newest attempts of a delivery that are read: twenty rounds.
const MOST_ATTEMPTS: i64 = 200;

/// An attempt with the times of its parts.
#[derive(Clone, Debug)]
pub struct TimedEntry {
    pub entry: Entry,
    pub timing: Timing,
}

from_row! { TimedEntry { entry: Entry::from_row, timing: Timing::from_row } }

/// The next attempt of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextAttempt {
    pub round: i16,
    pub attempt: i16,
    /// When it is due, or when the lease ends. None if the delivery waits for an earlier one.
    pub due_at: Option<Timestamp>,
    /// Whether it is in flight.
    pub leased: bool,
}

from_row! { NextAttempt { round, attempt, due_at, leased } }

/// A delivery as the store has it, without its attempts.
#[derive(Clone, Debug)]
pub struct StoredDelivery {
    /// None if the event has expired.
    pub event: Option<DeliveredEvent>,
    /// The delivery's number within its webhook, while it is pending.
    pub sequence: Option<i64>,
    /// None if the delivery has ended, or has never been made.
    pub next: Option<NextAttempt>,
    /// The rounds that recoveries have started.
    pub recovered: Vec<i16>,
}

from_row! { StoredDelivery { event: event, sequence, next: next, recovered } }

/// The event of a delivery.
#[derive(Clone, Debug)]
pub struct DeliveredEvent {
    pub kind: String,
    pub occurred_at: Timestamp,
    pub about: About,
    /// Its place in the feed. None for a test.
    pub sequence: Option<i64>,
}

fn event(row: &Row) -> Result<Option<DeliveredEvent>> {
    let Some(kind) = column(row, "kind")? else {
        return Ok(None);
    };

    Ok(Some(DeliveredEvent {
        kind,
        occurred_at: column(row, "occurred_at")?,
        about: column(row, "about")?,
        sequence: column(row, "feed_sequence")?,
    }))
}

fn next(row: &Row) -> Result<Option<NextAttempt>> {
    let is_pending: bool = column(row, "is_pending")?;
    is_pending.then(|| NextAttempt::from_row(row)).transpose()
}

/// Returns a delivery, and its newest attempts, the newest first. None if the user has no such
/// webhook. A delivery that was never made has neither attempts nor a next one.
pub async fn get(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    delivery: Uuid,
) -> Result<Option<(StoredDelivery, Vec<TimedEntry>)>> {
    let event = delivered_event(delivery, webhook);
    // Attempts are made after the event. The time chooses the partitions to read.
    let lowest = lowest_id_at(millis_of_id(event) - ID_TOLERANCE_MS);

    store
        .transaction(async |transaction| {
            transaction.batch_execute(sql::server::ONE_SNAPSHOT).await?;

            let found = transaction
                .fetch_optional(sql::delivery::READ, &[user, &webhook, &delivery, &event])
                .await?;
            let Some(found) = found else {
                return Ok(None);
            };

            let attempts = transaction
                .fetch_all(
                    sql::attempt::LIST_OF_DELIVERY,
                    &[user, &webhook, &delivery, &event, &lowest, &MOST_ATTEMPTS],
                )
                .await?;

            Ok(Some((found, attempts)))
        })
        .await
}
