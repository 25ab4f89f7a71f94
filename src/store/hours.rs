//! What webhooks did, hour by hour: counted in the transaction that records it, never by going through the log.

use std::collections::BTreeMap;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::record::Entry;
use super::{Result, Store};
use crate::domain::delivery::Outcome;
use crate::domain::durations::{BUCKETS, Durations};
use crate::domain::event::UserId;

const ADD: &str = include_str!("../../sql/store/webhook_hour_add.sql");
const CANCEL: &str = include_str!("../../sql/store/webhook_hour_cancel.sql");
const USER: &str = include_str!("../../sql/store/webhook_hour_user.sql");
const LIST: &str = include_str!("../../sql/store/webhook_hour_list.sql");
const SECONDS: i64 = 3_600;

/// What a webhook's attempts of some time ended in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub delivered: u64,
    pub failed: u64,
    pub permanently_failed: u64,
    pub cancelled: u64,
    pub durations: Durations,
}

/// An hour in which something happened.
#[derive(Clone, Debug)]
pub struct Hour {
    pub begins_at: Timestamp,
    pub counts: Counts,
}

impl Counts {
    /// Adds up the counts of several hours.
    pub fn sum<'a>(hours: impl IntoIterator<Item = &'a Hour>) -> Counts {
        hours.into_iter().fold(Counts::default(), |mut sum, Hour { counts, .. }| {
            sum.delivered += counts.delivered;
            sum.failed += counts.failed;
            sum.permanently_failed += counts.permanently_failed;
            sum.cancelled += counts.cancelled;
            sum.durations.merge(&counts.durations);
            sum
        })
    }

    pub fn attempts(&self) -> u64 {
        self.delivered + self.failed + self.permanently_failed
    }

    /// The share of attempts that were delivered, from 0 to 1. None where there were no attempts.
    pub fn success_rate(&self) -> Option<f64> {
        let attempts = self.attempts();
        (attempts > 0).then(|| self.delivered as f64 / attempts as f64)
    }

    fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Delivered => &mut self.delivered,
            Outcome::Failed => &mut self.failed,
            Outcome::PermanentlyFailed => &mut self.permanently_failed,
            Outcome::Cancelled => &mut self.cancelled,
        } += 1;
    }
}

/// Adds recorded attempts. The hours' rows are the last that a transaction locks, in order.
pub(super) async fn add(transaction: &Transaction<'_>, entries: &[Entry<'_>]) -> Result<()> {
    let mut hours: BTreeMap<(Uuid, i64), Counts> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.line.test) {
        let attempted = entry.line.attempted;
        let hour = attempted.attempt.started_at.as_second().div_euclid(SECONDS);
        let counts = hours.entry((attempted.delivery.webhook, hour)).or_default();
        counts.add(entry.line.outcome);
        if let Some(sent) = &attempted.attempt.sent {
            counts.durations.add(sent.duration.as_millis() as u64);
        }
    }
    if hours.is_empty() {
        return Ok(());
    }
    let number = |count: fn(&Counts) -> u64| -> Vec<i64> { hours.values().map(|hour| count(hour) as i64).collect() };
    let webhooks: Vec<Uuid> = hours.keys().map(|(webhook, _)| *webhook).collect();
    let begins: Vec<Timestamp> =
        hours.keys().map(|(_, hour)| Timestamp::from_second(hour * SECONDS).unwrap_or(Timestamp::UNIX_EPOCH)).collect();
    let durations: Vec<i32> = hours.values().flat_map(|hour| hour.durations.counts()).collect();
    let statement = transaction.prepare_cached(ADD).await?;
    transaction
        .execute(
            &statement,
            &[
                &webhooks,
                &begins,
                &number(|hour| hour.delivered),
                &number(|hour| hour.failed),
                &number(|hour| hour.permanently_failed),
                &number(|hour| hour.cancelled),
                &durations,
                &(BUCKETS as i64),
            ],
        )
        .await?;
    Ok(())
}

/// Adds what was cancelled just now without an attempt.
pub(super) async fn add_cancelled(transaction: &Transaction<'_>, webhook: Uuid, count: u64) -> Result<()> {
    if count > 0 {
        let statement = transaction.prepare_cached(CANCEL).await?;
        transaction.execute(&statement, &[&webhook, &(count as i64)]).await?;
    }
    Ok(())
}

/// The webhook's hours from `since` on, the oldest first; none where the user has no such webhook.
pub async fn list(store: &Store, user: &UserId, webhook: Uuid, since: Timestamp) -> Result<Option<Vec<Hour>>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(LIST).await?;
    let rows = connection.query(&statement, &[&&*user.0, &webhook, &since]).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    Ok(Some(rows.iter().filter_map(hour).collect()))
}

/// An hour of one of the user's webhooks, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BriefHour {
    pub webhook: Uuid,
    pub begins_at: Timestamp,
    pub delivered: u64,
    /// Attempts that failed, for good or not.
    pub failed: u64,
}

/// The hours from `since` on of all the user's webhooks, in no order.
pub async fn of_user(store: &Store, user: &UserId, since: Timestamp) -> Result<Vec<BriefHour>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(USER).await?;
    let rows = connection.query(&statement, &[&&*user.0, &since]).await?;
    let number = |row: &Row, name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or(0);
    let brief = |row: &Row| BriefHour {
        webhook: row.get("webhook_id"),
        begins_at: row.get("hour"),
        delivered: number(row, "delivered"),
        failed: number(row, "failed"),
    };
    Ok(rows.iter().map(brief).collect())
}

fn hour(row: &Row) -> Option<Hour> {
    let begins_at = row.get::<_, Option<Timestamp>>("hour")?;
    let number = |name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or(0);
    let mut durations = Durations::default();
    durations.add_counts(row.get::<_, Option<Vec<i32>>>("durations").as_deref().unwrap_or_default());
    let counts = Counts {
        delivered: number("delivered"),
        failed: number("failed"),
        permanently_failed: number("permanently_failed"),
        cancelled: number("cancelled"),
        durations,
    };
    Some(Hour { begins_at, counts })
}
