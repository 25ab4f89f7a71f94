//! What attempts leave behind: a line of the log each, the delivery's next state, the webhook's counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::disable::{self, Disabled};
use super::statement::{Statements, arrays};
use super::{Result, Store, hours, plan_by_index, superseded};
use crate::domain::delivery::{Attempted, Next, Outcome, Sent};
use crate::domain::disablement::{Policy, Verdict};
use crate::domain::webhook::Tally;
use crate::postgres::ANSWER_TIMEOUT;

const FENCE: &str = include_str!("../../sql/store/delivery_fence.sql");
const ATTEMPT_INSERT: &str = include_str!("../../sql/store/attempt_insert.sql");
const END: &str = include_str!("../../sql/store/delivery_end.sql");
const END_HELD: &str = include_str!("../../sql/store/delivery_end_held.sql");
const RETRY: &str = include_str!("../../sql/store/delivery_retry.sql");
const TRIGGERED: &str = include_str!("../../sql/store/webhook_triggered.sql");
const COUNT: &str = include_str!("../../sql/store/webhook_count.sql");

/// One line of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'a> {
    pub id: Uuid,
    pub attempted: &'a Attempted,
    pub outcome: Outcome,
    pub error_message: Option<&'a str>,
    pub test: bool,
    /// Whether to keep the answer's text; not to keep it is the way out when the store refuses it.
    pub with_response: bool,
}

/// An attempt and what follows from it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub line: LogLine<'a>,
    pub next: Next,
}

/// What came of recording a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// For each attempt, whether it counted.
    pub counted: Vec<bool>,
    /// Webhooks that are switched off by it.
    pub disabled: Vec<Disabled>,
}

/// What came of one try.
enum Tried {
    Recorded(Recorded),
    /// These webhooks are to be switched off. Their deliveries must be held before the webhooks are, as everybody locks.
    MustLock(Vec<Uuid>),
}

impl<'a> LogLine<'a> {
    pub fn new(id: Uuid, attempted: &'a Attempted, outcome: Outcome) -> LogLine<'a> {
        let error_message = attempted.attempt.answer.message();
        LogLine { id, attempted, outcome, error_message, test: false, with_response: true }
    }

    fn sent(&self) -> Option<&'a Sent> {
        self.attempted.attempt.sent.as_ref()
    }
}

impl Store {
    /// Records attempts in one transaction: an answer to an attempt whose lease has passed to somebody else changes nothing. Where the
    /// delivery was redelivered or cancelled meanwhile, the attempt is logged, and changes nothing else.
    /// Switches off webhooks that have failed as often as `policy` allows, and warns at half of it.
    pub async fn record(&self, entries: &[Entry<'_>], policy: &Policy) -> Result<Recorded> {
        // Almost always there is none. Each round but the last adds one of the batch.
        let mut failing = BTreeSet::new();
        loop {
            match self.in_time(ANSWER_TIMEOUT, self.try_record(entries, policy, &failing)).await? {
                Tried::Recorded(recorded) => return Ok(recorded),
                Tried::MustLock(webhooks) => failing.extend(webhooks),
            }
        }
    }

    /// Records the attempts, unless a webhook has to be switched off whose deliveries are not held: those of `failing` are.
    async fn try_record(&self, entries: &[Entry<'_>], policy: &Policy, failing: &BTreeSet<Uuid>) -> Result<Tried> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        if !failing.is_empty() {
            plan_by_index(&transaction).await?;
            disable::lock(&transaction, entries, failing).await?;
        }
        // As they do while receivers are well.
        let all_end = entries.iter().all(|entry| matches!(entry.next, Next::End(_)));
        let hold = if all_end { END_HELD } else { FENCE };
        let ((), counted) = tokio::try_join!(biased; plan_by_index(&transaction), fence(&transaction, hold, entries))?;
        let late = superseded::take(&transaction, entries, &counted).await?;
        let entries: Vec<Entry<'_>> =
            entries.iter().zip(&counted).filter_map(|(entry, counted)| counted.then_some(*entry)).collect();
        let mut disabled = Vec::new();
        let logged = [entries.as_slice(), &late].concat();
        if !logged.is_empty() {
            let lines: Vec<LogLine<'_>> = logged.iter().map(|entry| entry.line).collect();
            let tallies = tallies(&entries);
            // Otherwise they are gone already.
            let locked = if all_end { &[] } else { entries.as_slice() };
            // In this order: of a transaction that fails, the first error is the cause, and the others follow from it.
            let ((), (), (), standings) = tokio::try_join!(
                biased;
                insert_attempts(&transaction, &lines),
                end_deliveries(&transaction, locked),
                retry_deliveries(&transaction, locked),
                count(&transaction, &tallies, &logged),
            )?;
            let judged = disable::judge(&standings, &tallies, policy);
            let doomed = judged.iter().filter(|judged| judged.verdict == Verdict::Disable).map(|judged| judged.webhook);
            let not_held: Vec<Uuid> = doomed.filter(|webhook| !failing.contains(webhook)).collect();
            if !not_held.is_empty() {
                transaction.rollback().await?;
                return Ok(Tried::MustLock(not_held));
            }
            disabled = disable::apply(&transaction, &judged, policy).await?;
        }
        transaction.commit().await?;
        Ok(Tried::Recorded(Recorded { counted, disabled }))
    }

    /// Writes one line of the log that belongs to no delivery in the store, such as a test's. It changes when the webhook was last
    /// called and none of its counters. A webhook that is gone meanwhile gets none: it may have been erased.
    pub async fn log(&self, line: LogLine<'_>) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        let mut tally = Tally::default();
        tally.add(&line.attempted.attempt);
        let triggered = transaction.prepare_cached(TRIGGERED).await?;
        let webhook = line.attempted.delivery.webhook;
        if transaction.query_opt(&triggered, &[&webhook, &tally.last_triggered_at]).await?.is_none() {
            return Ok(());
        }
        insert_attempts(&transaction, &[line]).await?;
        transaction.commit().await?;
        Ok(())
    }
}

fn tallies(entries: &[Entry<'_>]) -> BTreeMap<Uuid, Tally> {
    let mut tallies: BTreeMap<Uuid, Tally> = BTreeMap::new();
    for entry in entries {
        let attempted = entry.line.attempted;
        tallies.entry(attempted.delivery.webhook).or_default().add(&attempted.attempt);
    }
    tallies.retain(|_, tally| !tally.is_empty());
    tallies
}

/// For which entries the lease is still theirs. `FENCE` locks their deliveries; `END_HELD` removes them at once, which is half
/// the work.
async fn fence(transaction: &Transaction<'_>, statement: &str, entries: &[Entry<'_>]) -> Result<Vec<bool>> {
    let statement = transaction.prepare_cached(statement).await?;
    let delivery = |index: usize| &entries[index].line.attempted.delivery;
    // Of a delivery that is there twice, the place is that of its newer lease: the older one holds no more.
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by_key(|index| (delivery(*index).id, delivery(*index).lease.token));
    let deliveries = || order.iter().map(|index| delivery(*index));
    let ids: Vec<Uuid> = deliveries().map(|delivery| delivery.id).collect();
    let leases: Vec<Uuid> = deliveries().map(|delivery| delivery.lease.token).collect();
    let attempts: Vec<i16> = deliveries().map(|delivery| small(delivery.attempt)).collect();
    let mut counted = vec![false; entries.len()];
    for row in transaction.query(&statement, &[&ids, &leases, &attempts]).await? {
        counted[order[row.get::<_, i32>(0) as usize - 1]] = true;
    }
    Ok(counted)
}

async fn insert_attempts(transaction: &Transaction<'_>, lines: &[LogLine<'_>]) -> Result<()> {
    let arrays = arrays!(lines, |line| (
        line.id,
        line.attempted.delivery.webhook,
        line.attempted.delivery.id,
        line.attempted.delivery.event,
        line.attempted.delivery.kind.as_str(),
        small(line.attempted.delivery.round),
        small(line.attempted.delivery.attempt),
        line.test,
        line.attempted.attempt.started_at,
        line.sent().map(|sent| milliseconds(sent.duration)),
        line.outcome.as_str(),
        line.attempted.attempt.answer.status().map(small),
        line.attempted.attempt.answer.error().map(|error| error.as_str()),
        line.error_message.filter(|_| line.with_response),
        line.sent().map(|sent| &*sent.url),
        line.sent().map(|sent| &sent.signatures.body[..]),
        line.sent().map(|sent| &sent.signatures.standard[..]),
        line.sent().filter(|_| line.with_response).map(|sent| &*sent.excerpt)
    ));
    transaction.run(ATTEMPT_INSERT, &arrays.params()).await?;
    Ok(())
}

async fn end_deliveries(transaction: &Transaction<'_>, entries: &[Entry<'_>]) -> Result<()> {
    let ended = entries.iter().filter(|entry| matches!(entry.next, Next::End(_)));
    let ids: Vec<Uuid> = ended.map(|entry| entry.line.attempted.delivery.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(END).await?;
    transaction.execute(&statement, &[&ids]).await?;
    Ok(())
}

async fn retry_deliveries(transaction: &Transaction<'_>, entries: &[Entry<'_>]) -> Result<()> {
    let mut retries: Vec<(Uuid, i16, f64)> = entries
        .iter()
        .filter_map(|entry| match entry.next {
            Next::Retry { after, attempt } => {
                Some((entry.line.attempted.delivery.id, small(attempt), after.as_secs_f64()))
            }
            Next::End(_) => None,
        })
        .collect();
    if retries.is_empty() {
        return Ok(());
    }
    retries.sort_unstable_by_key(|(id, ..)| *id);
    let (ids, attempts, waits): (Vec<Uuid>, Vec<i16>, Vec<f64>) = retries.into_iter().collect();
    let statement = transaction.prepare_cached(RETRY).await?;
    transaction.execute(&statement, &[&ids, &attempts, &waits]).await?;
    Ok(())
}

/// Counts for the webhooks, then for their hours: one behind the other, so that everybody locks in this order.
/// Gives where the webhooks stand now.
async fn count(
    transaction: &Transaction<'_>,
    tallies: &BTreeMap<Uuid, Tally>,
    entries: &[Entry<'_>],
) -> Result<Vec<Row>> {
    let standings = count_webhooks(transaction, tallies).await?;
    hours::add(transaction, entries).await?;
    Ok(standings)
}

async fn count_webhooks(transaction: &Transaction<'_>, tallies: &BTreeMap<Uuid, Tally>) -> Result<Vec<Row>> {
    if tallies.is_empty() {
        return Ok(Vec::new());
    }
    let statement = transaction.prepare_cached(COUNT).await?;
    let webhooks: Vec<Uuid> = tallies.keys().copied().collect();
    let successes: Vec<i64> = tallies.values().map(|tally| tally.successes as i64).collect();
    let failures: Vec<i64> = tallies.values().map(|tally| tally.failures as i64).collect();
    let trailing: Vec<i64> = tallies.values().map(|tally| tally.trailing_failures as i64).collect();
    let triggered: Vec<Option<Timestamp>> = tallies.values().map(|tally| tally.last_triggered_at).collect();
    Ok(transaction.query(&statement, &[&webhooks, &successes, &failures, &trailing, &triggered]).await?)
}

/// Attempts, rounds and statuses are far from 2¹⁵.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
