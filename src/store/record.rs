//! What attempts leave behind: a line of the log each, the delivery's next state, the webhook's counters.

use std::collections::BTreeMap;
use std::time::Duration;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use uuid::Uuid;

use super::{Result, Store, hours, plan_by_index};
use crate::domain::delivery::{Attempted, Next, Outcome};
use crate::domain::webhook::Tally;

const FENCE: &str = include_str!("../../sql/store/delivery_fence.sql");
const ATTEMPT_INSERT: &str = include_str!("../../sql/store/attempt_insert.sql");
const END: &str = include_str!("../../sql/store/delivery_end.sql");
const RETRY: &str = include_str!("../../sql/store/delivery_retry.sql");
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

impl<'a> LogLine<'a> {
    pub fn new(id: Uuid, attempted: &'a Attempted, outcome: Outcome) -> LogLine<'a> {
        let error_message = attempted.attempt.answer.message();
        LogLine { id, attempted, outcome, error_message, test: false, with_response: true }
    }
}

impl Store {
    /// Records attempts in one transaction, and says for each whether it counted: an answer to an attempt whose lease has
    /// passed to somebody else changes nothing.
    pub async fn record(&self, entries: &[Entry<'_>]) -> Result<Vec<bool>> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        let ((), counted) = tokio::try_join!(plan_by_index(&transaction), fence(&transaction, entries))?;
        let entries: Vec<Entry<'_>> =
            entries.iter().zip(&counted).filter_map(|(entry, counted)| counted.then_some(*entry)).collect();
        if !entries.is_empty() {
            let lines: Vec<LogLine<'_>> = entries.iter().map(|entry| entry.line).collect();
            let tallies = tallies(&entries);
            tokio::try_join!(
                insert_attempts(&transaction, &lines),
                end_deliveries(&transaction, &entries),
                retry_deliveries(&transaction, &entries),
                count(&transaction, &tallies, &entries),
            )?;
        }
        transaction.commit().await?;
        Ok(counted)
    }

    /// Writes one line of the log that belongs to no delivery in the store, such as a test's. Counts nowhere.
    pub async fn log(&self, line: LogLine<'_>) -> Result<()> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
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

/// Locks the deliveries whose lease is still the entry's.
async fn fence(transaction: &Transaction<'_>, entries: &[Entry<'_>]) -> Result<Vec<bool>> {
    let statement = transaction.prepare_cached(FENCE).await?;
    let deliveries = || entries.iter().map(|entry| &entry.line.attempted.delivery);
    let ids: Vec<Uuid> = deliveries().map(|delivery| delivery.id).collect();
    let leases: Vec<Uuid> = deliveries().map(|delivery| delivery.lease.token).collect();
    let attempts: Vec<i16> = deliveries().map(|delivery| small(delivery.attempt)).collect();
    let mut counted = vec![false; entries.len()];
    for row in transaction.query(&statement, &[&ids, &leases, &attempts]).await? {
        counted[row.get::<_, i64>(0) as usize - 1] = true;
    }
    Ok(counted)
}

async fn insert_attempts(transaction: &Transaction<'_>, lines: &[LogLine<'_>]) -> Result<()> {
    let statement = transaction.prepare_cached(ATTEMPT_INSERT).await?;
    let deliveries = || lines.iter().map(|line| &line.attempted.delivery);
    let attempts = || lines.iter().map(|line| &line.attempted.attempt);
    let sent = || lines.iter().map(|line| line.attempted.attempt.sent.as_ref());
    let ids: Vec<Uuid> = lines.iter().map(|line| line.id).collect();
    let webhooks: Vec<Uuid> = deliveries().map(|delivery| delivery.webhook).collect();
    let delivery_ids: Vec<Uuid> = deliveries().map(|delivery| delivery.id).collect();
    let events: Vec<Uuid> = deliveries().map(|delivery| delivery.event).collect();
    let kinds: Vec<&str> = deliveries().map(|delivery| delivery.kind.as_str()).collect();
    let rounds: Vec<i16> = deliveries().map(|delivery| small(delivery.round)).collect();
    let numbers: Vec<i16> = deliveries().map(|delivery| small(delivery.attempt)).collect();
    let tests: Vec<bool> = lines.iter().map(|line| line.test).collect();
    let started: Vec<Timestamp> = attempts().map(|attempt| attempt.started_at).collect();
    let durations: Vec<Option<i32>> = sent().map(|sent| Some(milliseconds(sent?.duration))).collect();
    let outcomes: Vec<&str> = lines.iter().map(|line| line.outcome.as_str()).collect();
    let statuses: Vec<Option<i16>> = attempts().map(|attempt| attempt.answer.status().map(small)).collect();
    let errors: Vec<Option<&str>> = attempts().map(|attempt| Some(attempt.answer.error()?.as_str())).collect();
    let messages: Vec<Option<&str>> =
        lines.iter().map(|line| line.error_message.filter(|_| line.with_response)).collect();
    let urls: Vec<Option<&str>> = sent().map(|sent| Some(&*sent?.url)).collect();
    let signatures: Vec<Option<&[u8]>> = sent().map(|sent| Some(&sent?.signatures.body[..])).collect();
    let standard: Vec<Option<&[u8]>> = sent().map(|sent| Some(&sent?.signatures.standard[..])).collect();
    let bodies: Vec<Option<&[u8]>> =
        lines.iter().zip(sent()).map(|(line, sent)| sent.filter(|_| line.with_response).map(|s| &*s.excerpt)).collect();
    transaction
        .execute(
            &statement,
            &[
                &ids,
                &webhooks,
                &delivery_ids,
                &events,
                &kinds,
                &rounds,
                &numbers,
                &tests,
                &started,
                &durations,
                &outcomes,
                &statuses,
                &errors,
                &messages,
                &urls,
                &signatures,
                &standard,
                &bodies,
            ],
        )
        .await?;
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
    let (mut ids, mut attempts, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        if let Next::Retry { after, attempt } = entry.next {
            ids.push(entry.line.attempted.delivery.id);
            attempts.push(small(attempt));
            waits.push(after.as_secs_f64());
        }
    }
    if ids.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(RETRY).await?;
    transaction.execute(&statement, &[&ids, &attempts, &waits]).await?;
    Ok(())
}

/// Counts for the webhooks, then for their hours: one behind the other, so that everybody locks in this order.
async fn count(transaction: &Transaction<'_>, tallies: &BTreeMap<Uuid, Tally>, entries: &[Entry<'_>]) -> Result<()> {
    count_webhooks(transaction, tallies).await?;
    hours::add(transaction, entries).await
}

async fn count_webhooks(transaction: &Transaction<'_>, tallies: &BTreeMap<Uuid, Tally>) -> Result<()> {
    if tallies.is_empty() {
        return Ok(());
    }
    let statement = transaction.prepare_cached(COUNT).await?;
    let webhooks: Vec<Uuid> = tallies.keys().copied().collect();
    let successes: Vec<i64> = tallies.values().map(|tally| tally.successes as i64).collect();
    let failures: Vec<i64> = tallies.values().map(|tally| tally.failures as i64).collect();
    let trailing: Vec<i64> = tallies.values().map(|tally| tally.trailing_failures as i64).collect();
    let since: Vec<Option<Timestamp>> = tallies.values().map(|tally| tally.failing_since).collect();
    let triggered: Vec<Option<Timestamp>> = tallies.values().map(|tally| tally.last_triggered_at).collect();
    transaction.execute(&statement, &[&webhooks, &successes, &failures, &trailing, &since, &triggered]).await?;
    Ok(())
}

/// Attempts, rounds and statuses are far from 2¹⁵.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
