//! Hourly statistics of webhooks. They are counted in the transaction that records attempts, so
//! that reading them does not scan the attempt log.

use std::collections::BTreeMap;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::attempt::CompletedAttempt;
use super::statement::{FromRow, Statements, column, from_row};
use super::{Result, Store};
use crate::domain::delivery::Outcome;
use crate::domain::durations::{BUCKETS, Durations};
use crate::domain::event::UserId;
use crate::sql::store as sql;

const SECONDS: i64 = 3_600;

/// How many attempts of a webhook in a period had each outcome, and how long requests took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub delivered: u64,
    pub failed: u64,
    pub permanently_failed: u64,
    pub cancelled: u64,
    pub durations: Durations,
}

/// An hour with attempts or cancellations.
#[derive(Clone, Debug)]
pub struct Hour {
    pub begins_at: Timestamp,
    pub counts: Counts,
}

impl Counts {
    /// Adds up the counts of several hours.
    pub fn sum<'a>(hours: impl IntoIterator<Item = &'a Hour>) -> Counts {
        hours
            .into_iter()
            .fold(Counts::default(), |mut sum, Hour { counts, .. }| {
                sum.delivered += counts.delivered;
                sum.failed += counts.failed;
                sum.permanently_failed += counts.permanently_failed;
                sum.cancelled += counts.cancelled;
                sum.durations.merge(&counts.durations);

                sum
            })
    }

    /// Returns the number of attempts, which cancellations are not.
    pub fn attempts(&self) -> u64 {
        self.delivered + self.failed + self.permanently_failed
    }

    /// Returns the share of attempts that were delivered, from 0 to 1. `None` if there were no
    /// attempts.
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
pub async fn add(transaction: &Transaction<'_>, attempts: &[&CompletedAttempt]) -> Result<()> {
    let mut hours: BTreeMap<(Uuid, i64), Counts> = BTreeMap::new();

    for completed in attempts {
        let attempt = &completed.attempted.attempt;
        let hour = attempt.started_at.as_second().div_euclid(SECONDS);
        let counts = hours
            .entry((completed.delivery().webhook, hour))
            .or_default();

        counts.add(completed.outcome());

        if let Some(sent) = &attempt.sent {
            counts.durations.add(sent.duration.as_millis() as u64);
        }
    }

    if hours.is_empty() {
        return Ok(());
    }

    let number = |count: fn(&Counts) -> u64| -> Vec<i64> {
        hours.values().map(|hour| count(hour) as i64).collect()
    };

    let webhooks: Vec<Uuid> = hours.keys().map(|(webhook, _)| *webhook).collect();
    let begins: Vec<Timestamp> = hours
        .keys()
        .map(|(_, hour)| Timestamp::from_second(hour * SECONDS).unwrap_or(Timestamp::UNIX_EPOCH))
        .collect();
    let durations: Vec<i32> = hours
        .values()
        .flat_map(|hour| hour.durations.counts())
        .collect();

    transaction
        .run(
            sql::webhook_hour::ADD,
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

/// Adds deliveries that were just cancelled without an attempt.
pub async fn add_cancelled(transaction: &Transaction<'_>, webhook: Uuid, count: u64) -> Result<()> {
    if count > 0 {
        transaction
            .run(sql::webhook_hour::CANCEL, &[&webhook, &(count as i64)])
            .await?;
    }

    Ok(())
}

/// Lists the webhook's hours from `since` on, oldest first. None if the user has no such webhook.
pub async fn list(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    since: Timestamp,
) -> Result<Option<Vec<Hour>>> {
    // The statement returns one row without an hour for a webhook without hours.
    let rows: Vec<Option<Hour>> = store
        .fetch_all(sql::webhook_hour::LIST, &[user, &webhook, &since])
        .await?;
    Ok((!rows.is_empty()).then(|| rows.into_iter().flatten().collect()))
}

/// An hour of one of the user's webhooks, without the durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BriefHour {
    pub webhook: Uuid,
    pub begins_at: Timestamp,
    pub delivered: u64,
    /// Attempts that failed, permanently or not.
    pub failed: u64,
}

from_row! { BriefHour { webhook = "webhook_id", begins_at = "hour", delivered, failed } }

/// Lists the hours from `since` on of all the user's webhooks, in no order.
pub async fn of_user(store: &Store, user: &UserId, since: Timestamp) -> Result<Vec<BriefHour>> {
    store
        .fetch_all(sql::webhook_hour::USER, &[user, &since])
        .await
}

from_row! { Counts { delivered, failed, permanently_failed, cancelled, durations: durations } }

fn durations(row: &Row) -> Result<Durations> {
    let mut durations = Durations::default();
    durations.add_counts(
        column::<Option<Vec<i32>>>(row, "durations")?
            .as_deref()
            .unwrap_or_default(),
    );

    Ok(durations)
}

impl FromRow for Option<Hour> {
    fn from_row(row: &Row) -> Result<Self> {
        let Some(begins_at) = column(row, "hour")? else {
            return Ok(None);
        };

        Ok(Some(Hour {
            begins_at,
            counts: Counts::from_row(row)?,
        }))
    }
}
