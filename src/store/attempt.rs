//! Attempts and their effects: rows of the attempt log, the next states of deliveries, the counters
//! of webhooks, and what happens to webhooks that keep failing.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use deadpool_postgres::Transaction;
use postgres_types::ToSql;
use uuid::Uuid;

use super::statement::{Arrays, Statements, arrays, from_row};
use super::{Result, Store, handoffs};
use crate::domain::delivery::{Answer, Attempted, Delivery, Next, Outcome, Sent, Timing};
use crate::domain::disablement::Standing;
use crate::domain::event::UserId;
use crate::domain::notice;
use crate::domain::webhook::{LastFailure, Tally};
use crate::sql::store as sql;

/// The `disabled_reason` and the kind of error of webhooks whose receiver is gone.
const GONE: &str = "gone";

static INSERT_MISSING: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} on conflict do nothing returning id",
        sql::attempt::INSERT
    )
});

/// An attempt to record: an entry of the attempt log, and the next state of its delivery.
#[derive(Clone, Debug)]
pub struct CompletedAttempt {
    pub id: Uuid,
    pub attempted: Attempted,
    pub next: Next,
    pub effect: Effect,
}

/// What recording an attempt changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The attempt was made under its delivery's current lease: it is logged, counts for its
    /// webhook, and changes its delivery.
    Counted,
    /// Another replica has taken over the delivery, or it was redelivered or cancelled in the
    /// meantime: the attempt is only logged.
    Superseded,
    /// The attempt is not logged: it sent nothing, was logged before, or its webhook was deleted.
    NotStored,
    /// A test of the webhook: it has no delivery in the store, and is only logged.
    Test,
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

impl CompletedAttempt {
    pub fn new(id: Uuid, attempted: Attempted, next: Next) -> CompletedAttempt {
        CompletedAttempt {
            id,
            attempted,
            next,
            effect: Effect::NotStored,
        }
    }

    pub fn delivery(&self) -> &Delivery {
        &self.attempted.delivery
    }

    pub fn ends_delivery(&self) -> bool {
        matches!(self.next, Next::End(_))
    }

    /// Whether the delivery may have a row: it was not handed off, or the hand-off was unpacked.
    fn may_have_row(&self) -> bool {
        self.delivery().lease.place.is_none()
    }

    pub fn is_counted(&self) -> bool {
        self.effect == Effect::Counted
    }

    /// Returns the outcome as it is logged. An attempt that is only logged ends no delivery.
    pub fn outcome(&self) -> Outcome {
        if self.is_counted() {
            self.next.outcome()
        } else {
            self.attempted.attempt.answer.outcome()
        }
    }

    /// Removes the text of the response, because the store rejects it.
    pub fn remove_response(&mut self) {
        if let Some(sent) = &mut self.attempted.attempt.sent {
            sent.response_headers.clear();
            sent.excerpt.clear();
        }

        if let Answer::Failed { message, .. } = &mut self.attempted.attempt.answer {
            message.clear();
        }
    }

    fn sent(&self) -> Option<&Sent> {
        self.attempted.attempt.sent.as_ref()
    }

    /// Returns how long a part of the request took, in milliseconds.
    fn took(&self, part: impl FnOnce(&Timing) -> Option<Duration>) -> Option<i32> {
        part(&self.sent()?.timing).map(milliseconds)
    }
}

/// Finds the attempts that were made under their deliveries' current leases: they count. Most
/// deliveries were handed off and have no row. Locks the rows of the others, or removes them in the
/// same statement if all attempts end them, which is half the work. Attempts that do not count are
/// superseded, or sent nothing, such as those of an inactive webhook, whose cancellation is logged.
pub async fn fence(
    transaction: &Transaction<'_>,
    batch: &mut [CompletedAttempt],
    all_end: bool,
) -> Result<()> {
    for attempt in &mut *batch {
        attempt.effect = match attempt.sent() {
            Some(_) => Effect::Superseded,
            None => Effect::NotStored,
        };
    }

    handoffs::record(transaction, batch).await?;

    let statement = if all_end {
        sql::delivery::END_HELD
    } else {
        sql::delivery::FENCE
    };

    // If a batch contains a delivery twice, the statement returns the last position, which is that
    // of the newer lease.
    let mut sorted: Vec<&mut CompletedAttempt> = batch
        .iter_mut()
        .filter(|attempt| attempt.may_have_row())
        .collect();
    if sorted.is_empty() {
        return Ok(());
    }

    sorted.sort_unstable_by_key(|attempt| (attempt.delivery().id, attempt.delivery().lease.token));

    let arrays = arrays!(sorted, |attempt| (
        attempt.delivery().id,
        attempt.delivery().lease.token,
        small(attempt.delivery().attempt)
    ));
    let positions: Vec<i32> = transaction.fetch_all(statement, &arrays.params()).await?;

    for position in positions {
        sorted[position as usize - 1].effect = Effect::Counted;
    }

    Ok(())
}

/// Logs the superseded attempts. When a commit's answer is lost, all attempts of the batch are
/// superseded the next time, and were logged before. The users of webhooks that no longer exist may
/// have been erased.
pub async fn log_superseded(
    transaction: &Transaction<'_>,
    batch: &mut [CompletedAttempt],
) -> Result<()> {
    let mut superseded: Vec<&mut CompletedAttempt> = batch
        .iter_mut()
        .filter(|attempt| attempt.effect == Effect::Superseded)
        .collect();
    if superseded.is_empty() {
        return Ok(());
    }

    let webhooks: Vec<Uuid> = superseded
        .iter()
        .map(|attempt| attempt.delivery().webhook)
        .collect();
    // Locks them against deletion.
    let existing: Vec<Uuid> = transaction
        .fetch_all(sql::webhook::LOCK, &[&webhooks])
        .await?;

    let rows: Vec<&CompletedAttempt> = superseded
        .iter()
        .map(|attempt| &**attempt)
        .filter(|attempt| existing.contains(&attempt.delivery().webhook))
        .collect();
    let inserted: Vec<Uuid> = transaction
        .fetch_all(&INSERT_MISSING, &arrays_of(&rows).params())
        .await?;

    for attempt in &mut superseded {
        if !inserted.contains(&attempt.id) {
            attempt.effect = Effect::NotStored;
        }
    }

    Ok(())
}

/// Logs attempts that were not logged before.
pub async fn insert_attempts(
    transaction: &Transaction<'_>,
    attempts: &[&CompletedAttempt],
) -> Result<()> {
    if !attempts.is_empty() {
        let arrays = arrays_of(attempts);
        transaction
            .run(sql::attempt::INSERT, &arrays.params())
            .await?;
    }

    Ok(())
}

fn arrays_of<'a>(attempts: &[&'a CompletedAttempt]) -> Arrays<'a> {
    arrays!(attempts, |completed| (
        completed.id,
        completed.delivery().webhook,
        completed.delivery().id,
        completed.delivery().event,
        completed.delivery().kind.as_str(),
        small(completed.delivery().round),
        small(completed.delivery().attempt),
        completed.effect == Effect::Test,
        completed.attempted.attempt.started_at,
        completed.sent().map(|sent| milliseconds(sent.duration)),
        completed.outcome().as_str(),
        completed.attempted.attempt.answer.status().map(small),
        completed
            .attempted
            .attempt
            .answer
            .error()
            .map(|error| error.as_str()),
        completed
            .attempted
            .attempt
            .answer
            .message()
            .filter(|message| !message.is_empty()),
        completed.sent().map(|sent| &*sent.url),
        completed.sent().map(|sent| &sent.signatures.body[..]),
        completed.sent().map(|sent| &sent.signatures.standard[..]),
        completed.sent().map(|sent| &*sent.excerpt),
        completed.delivery().sequence,
        completed
            .sent()
            .map(|sent| &*sent.signatures.more)
            .filter(|more| !more.is_empty()),
        completed
            .sent()
            .map(|sent| &*sent.response_headers)
            .filter(|headers| !headers.is_empty()),
        completed.took(|timing| timing.dns),
        completed.took(|timing| timing.connect),
        completed.took(|timing| timing.tls),
        completed.took(|timing| timing.wait)
    ))
}

/// Removes the deliveries of the attempts that end them.
pub async fn end_deliveries(
    transaction: &Transaction<'_>,
    counted: &[&CompletedAttempt],
) -> Result<()> {
    let ended = counted
        .iter()
        .filter(|attempt| attempt.ends_delivery() && attempt.may_have_row());
    let ids: Vec<Uuid> = ended.map(|attempt| attempt.delivery().id).collect();
    if !ids.is_empty() {
        transaction.run(sql::delivery::END, &[&ids]).await?;
    }

    Ok(())
}

/// Schedules the retries of the attempts that have one.
pub async fn retry_deliveries(
    transaction: &Transaction<'_>,
    counted: &[&CompletedAttempt],
) -> Result<()> {
    let mut retries: Vec<(&Delivery, i16, f64)> = Vec::new();

    for completed in counted {
        if let Next::Retry { after, attempt } = completed.next {
            retries.push((completed.delivery(), small(attempt), after.as_secs_f64()));
        }
    }

    if !retries.is_empty() {
        retries.sort_unstable_by_key(|(delivery, ..)| delivery.id);
        let arrays = arrays!(retries, |(delivery, attempt, wait)| (
            delivery.id,
            delivery.webhook,
            delivery.event,
            delivery.sequence,
            delivery.order_key,
            small(delivery.round),
            *attempt,
            *wait
        ));
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
    pub failure: LastFailure,
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
    /// Logs an attempt for which the store has no delivery, such as a test. Sets when the webhook
    /// was last called, and changes none of its counters. Does nothing if the webhook no longer
    /// exists: its user may have been erased.
    pub async fn log_attempt(&self, completed: &CompletedAttempt) -> Result<()> {
        let mut tally = Tally::default();
        tally.add_uncounted(&completed.attempted.attempt);
        let webhook = completed.delivery().webhook;

        self.transaction(async |transaction| {
            let exists: Option<Uuid> = transaction
                .fetch_optional(
                    sql::webhook::TRIGGERED,
                    &[&webhook, &tally.last_triggered_at],
                )
                .await?;
            if exists.is_some() {
                insert_attempts(transaction, &[completed]).await?;
            }

            Ok(())
        })
        .await
    }
}

/// Attempts, rounds and statuses are far below 2¹⁵.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
