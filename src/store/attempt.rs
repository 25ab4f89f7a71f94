//! Attempts and their effects: rows of the attempt log, the next states of deliveries, the counters
//! of webhooks, and what happens to webhooks that keep failing.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use deadpool_postgres::Transaction;
use postgres_types::ToSql;
use uuid::Uuid;

use super::statement::{Arrays, Statements, arrays, from_row};
use super::{Result, Store};
use crate::domain::delivery::{Attempted, Delivery, Next, Outcome, Sent};
use crate::domain::disablement::Standing;
use crate::domain::event::UserId;
use crate::domain::notice;
use crate::domain::webhook::{Failure, Tally};
use crate::sql::store as sql;

/// The `disabled_reason` and the kind of error of webhooks whose receiver is gone.
const GONE: &str = "gone";

static INSERT_MISSING: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} on conflict do nothing returning id",
        sql::attempt::INSERT
    )
});

/// A row of the attempt log.
#[derive(Clone, Copy, Debug)]
pub struct AttemptRow<'a> {
    pub id: Uuid,
    pub attempted: &'a Attempted,
    pub outcome: Outcome,
    pub error_message: Option<&'a str>,
    pub test: bool,
    /// False omits the text of the response, for a response that the store rejects.
    pub with_response: bool,
}

/// A row of the attempt log, with the next state of the delivery.
#[derive(Clone, Copy, Debug)]
pub struct CompletedAttempt<'a> {
    pub row: AttemptRow<'a>,
    pub next: Next,
}

/// A webhook's counters after a batch was counted.
#[derive(Clone, Debug)]
pub struct Counters {
    pub webhook: Uuid,
    pub standing: Standing,
}

from_row!(Counters { webhook = "id", standing: Standing::from_row });

from_row!(Standing {
    active,
    failures = "failure_count",
    consecutive_failures,
    failing_since,
    warned_at,
    now = "counted_at"
});

impl<'a> AttemptRow<'a> {
    pub fn new(id: Uuid, attempted: &'a Attempted, outcome: Outcome) -> AttemptRow<'a> {
        let error_message = attempted.attempt.answer.message();
        AttemptRow {
            id,
            attempted,
            outcome,
            error_message,
            test: false,
            with_response: true,
        }
    }

    fn sent(&self) -> Option<&'a Sent> {
        self.attempted.attempt.sent.as_ref()
    }
}

impl<'a> CompletedAttempt<'a> {
    pub fn delivery(&self) -> &'a Delivery {
        &self.row.attempted.delivery
    }

    /// Returns the attempt as it is logged if it changes nothing. It ends no delivery: its outcome
    /// is that of the request.
    pub fn without_effect(mut self) -> CompletedAttempt<'a> {
        self.row.outcome = self.row.attempted.attempt.answer.outcome();
        self
    }
}

/// Locks the deliveries of those attempts that were made under the current lease. Returns, for each
/// attempt, whether it was.
pub async fn lock_leased(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
) -> Result<Vec<bool>> {
    fence(transaction, sql::delivery::FENCE, attempts).await
}

/// Like [`lock_leased`], but removes the deliveries in the same statement. This is half the work if
/// all of them end.
pub async fn end_leased(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
) -> Result<Vec<bool>> {
    fence(transaction, sql::delivery::END_HELD, attempts).await
}

async fn fence(
    transaction: &Transaction<'_>,
    sql: &str,
    attempts: &[CompletedAttempt<'_>],
) -> Result<Vec<bool>> {
    // If a batch contains a delivery twice, the statement returns the last position, which is that
    // of the newer lease.
    let mut order: Vec<usize> = (0..attempts.len()).collect();
    order.sort_unstable_by_key(|index| {
        (
            attempts[*index].delivery().id,
            attempts[*index].delivery().lease.token,
        )
    });

    let deliveries: Vec<&Delivery> = order
        .iter()
        .map(|index| attempts[*index].delivery())
        .collect();
    let arrays = arrays!(deliveries, |delivery| (
        delivery.id,
        delivery.lease.token,
        small(delivery.attempt)
    ));
    let mut counted = vec![false; attempts.len()];

    for position in transaction.fetch_all::<i32>(sql, &arrays.params()).await? {
        counted[order[position as usize - 1]] = true;
    }

    Ok(counted)
}

/// Locks these webhooks against deletion. Returns those that exist.
pub async fn hold_webhooks(transaction: &Transaction<'_>, webhooks: &[Uuid]) -> Result<Vec<Uuid>> {
    transaction
        .fetch_all(sql::webhook::LOCK, &[&webhooks])
        .await
}

pub async fn insert_attempts(transaction: &Transaction<'_>, rows: &[AttemptRow<'_>]) -> Result<()> {
    if !rows.is_empty() {
        let arrays = arrays_of(rows);
        transaction
            .run(sql::attempt::INSERT, &arrays.params())
            .await?;
    }

    Ok(())
}

/// Inserts those rows that do not exist, and returns their ids.
pub async fn insert_missing_attempts(
    transaction: &Transaction<'_>,
    rows: &[AttemptRow<'_>],
) -> Result<Vec<Uuid>> {
    let arrays = arrays_of(rows);
    transaction
        .fetch_all(&INSERT_MISSING, &arrays.params())
        .await
}

fn arrays_of<'a>(rows: &'a [AttemptRow<'a>]) -> Arrays<'a> {
    arrays!(rows, |row| (
        row.id,
        row.attempted.delivery.webhook,
        row.attempted.delivery.id,
        row.attempted.delivery.event,
        row.attempted.delivery.kind.as_str(),
        small(row.attempted.delivery.round),
        small(row.attempted.delivery.attempt),
        row.test,
        row.attempted.attempt.started_at,
        row.sent().map(|sent| milliseconds(sent.duration)),
        row.outcome.as_str(),
        row.attempted.attempt.answer.status().map(small),
        row.attempted
            .attempt
            .answer
            .error()
            .map(|error| error.as_str()),
        row.error_message.filter(|_| row.with_response),
        row.sent().map(|sent| &*sent.url),
        row.sent().map(|sent| &sent.signatures.body[..]),
        row.sent().map(|sent| &sent.signatures.standard[..]),
        row.sent()
            .filter(|_| row.with_response)
            .map(|sent| &*sent.excerpt),
        row.attempted.delivery.sequence,
        row.sent()
            .map(|sent| &*sent.signatures.more)
            .filter(|more| !more.is_empty())
    ))
}

/// Removes the deliveries of the attempts that end them.
pub async fn end_deliveries(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
) -> Result<()> {
    let ended = attempts
        .iter()
        .filter(|attempt| matches!(attempt.next, Next::End(_)));
    let ids: Vec<Uuid> = ended.map(|attempt| attempt.delivery().id).collect();
    if !ids.is_empty() {
        transaction.run(sql::delivery::END, &[&ids]).await?;
    }

    Ok(())
}

/// Schedules the retries of the attempts that have one.
pub async fn retry_deliveries(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
) -> Result<()> {
    let retry = |completed: &CompletedAttempt<'_>| match completed.next {
        Next::Retry { after, attempt } => {
            Some((completed.delivery().id, small(attempt), after.as_secs_f64()))
        }
        Next::End(_) => None,
    };

    let mut retries: Vec<(Uuid, i16, f64)> = attempts.iter().filter_map(retry).collect();
    if !retries.is_empty() {
        retries.sort_unstable_by_key(|(id, ..)| *id);
        let arrays = arrays!(retries, |(id, attempt, wait)| (*id, *attempt, *wait));
        transaction
            .run(sql::delivery::RETRY, &arrays.params())
            .await?;
    }

    Ok(())
}

/// Adds to the webhooks' counters and returns their new values.
pub async fn count_webhooks(
    transaction: &Transaction<'_>,
    tallies: &BTreeMap<Uuid, Tally>,
) -> Result<Vec<Counters>> {
    if tallies.is_empty() {
        return Ok(Vec::new());
    }

    let arrays = arrays!(tallies, |(webhook, tally)| (
        *webhook,
        tally.successes as i64,
        tally.failures as i64,
        tally.trailing_failures as i64,
        tally.last_triggered_at
    ));

    transaction
        .fetch_all(sql::webhook::COUNT, &arrays.params())
        .await
}

/// A webhook that keeps failing or whose receiver is gone, and why.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    pub webhook: Uuid,
    pub failure: Failure,
    /// Whether the receiver is gone, so that the webhook is disabled regardless of its failures.
    pub is_gone: bool,
    /// Failures that count towards the threshold.
    pub failures: u64,
    pub threshold: u32,
}

/// Inserts a warning for the webhook's owner.
pub async fn warn(transaction: &Transaction<'_>, failing: &Failing) -> Result<()> {
    failing
        .notify(transaction, sql::webhook::WARN, &[])
        .await
        .map(drop)
}

/// Disables the webhook and inserts a notice for its owner, who is returned. Does nothing if the
/// webhook is inactive. Its pending deliveries are cancelled afterwards
/// ([`Store::cancel_pending`]).
pub async fn disable(transaction: &Transaction<'_>, failing: &Failing) -> Result<Option<UserId>> {
    failing
        .notify(
            transaction,
            sql::webhook::DISABLE,
            &[&failing.disabled_reason()],
        )
        .await
}

impl Failing {
    /// Returns the reason as it is logged.
    pub fn describe(&self) -> String {
        if self.is_gone {
            notice::GONE.to_owned()
        } else {
            self.failure.describe()
        }
    }

    /// Returns the kind of error for metrics and notices: of the last failure, as in the attempt
    /// log, or `gone`.
    pub fn error_kind(&self) -> &'static str {
        if self.is_gone {
            GONE
        } else {
            self.failure.kind.as_str()
        }
    }

    /// Returns the reason as the webhook shows it.
    fn disabled_reason(&self) -> String {
        match self.is_gone {
            true => GONE.to_owned(),
            false => format!("{} ({})", self.failure.describe(), self.failure.kind),
        }
    }

    async fn notify(
        &self,
        transaction: &Transaction<'_>,
        sql: &str,
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<UserId>> {
        let reason = self.describe();
        let kind = self.error_kind();
        let failures = self.failures as i64;
        let threshold = i64::from(self.threshold);
        let notice = Uuid::now_v7();

        let first: [&(dyn ToSql + Sync); 6] = [
            &self.webhook,
            &reason,
            &kind,
            &notice,
            &failures,
            &threshold,
        ];

        transaction
            .fetch_optional(sql, &[&first[..], more].concat())
            .await
    }
}

impl Store {
    /// Inserts a row of the attempt log for which the store has no delivery, such as a test's. Sets
    /// when the webhook was last called, and changes none of its counters. Does nothing if the
    /// webhook no longer exists: its user may have been erased.
    pub async fn log_attempt(&self, row: AttemptRow<'_>) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        let mut tally = Tally::default();

        tally.add_uncounted(&row.attempted.attempt);
        let webhook = row.attempted.delivery.webhook;
        let exists: Option<Uuid> = transaction
            .fetch_optional(
                sql::webhook::TRIGGERED,
                &[&webhook, &tally.last_triggered_at],
            )
            .await?;
        if exists.is_some() {
            insert_attempts(&transaction, &[row]).await?;
            transaction.commit().await?;
        }

        Ok(())
    }
}

/// Attempts, rounds and statuses are far below 2¹⁵.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
