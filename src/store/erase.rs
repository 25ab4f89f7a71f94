//! Everything that is stored of a user, removed: in transactions that are each small, while replicas deliver.

use std::collections::BTreeSet;

use futures_util::FutureExt;
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::webhooks::retry_deadlocks;
use super::{Result, Store};
use crate::domain::event::UserId;

const WEBHOOKS: &str = include_str!("../../sql/store/erase_webhooks.sql");
const TRACES: &str = include_str!("../../sql/store/erase_traces.sql");
const EVENTS: &str = include_str!("../../sql/store/erase_events.sql");
/// By webhook, in this order: a recovery makes deliveries, an answer to a delivery makes a line of the log and of an hour.
const OF_WEBHOOK: [(&str, &str); 5] = [
    ("recoveries", include_str!("../../sql/store/erase_recoveries.sql")),
    ("pending deliveries", include_str!("../../sql/store/erase_deliveries.sql")),
    ("entries of the delivery log", include_str!("../../sql/store/erase_attempts.sql")),
    ("missed events", include_str!("../../sql/store/erase_missed_events.sql")),
    ("hours of statistics", include_str!("../../sql/store/erase_hours.sql")),
];
const TOKENS: (&str, &str) = ("API tokens", include_str!("../../sql/store/erase_tokens.sql"));
const SESSIONS: (&str, &str) = ("sessions", include_str!("../../sql/store/erase_sessions.sql"));
const ANSWERS: (&str, &str) =
    ("answers kept for their idempotency keys", include_str!("../../sql/store/erase_answers.sql"));
const NOTICES: (&str, &str) = ("notices", include_str!("../../sql/store/erase_notices.sql"));
/// Last: until then it names the webhooks, for whoever goes on with an erasure that was cut short.
const AUDIT: (&str, &str) = ("audit records", include_str!("../../sql/store/erase_audit.sql"));
/// Rows that one transaction removes, or looks at, at most.
const CHUNK: i64 = 2_000;
/// What requests and replicas that were at work during one pass have left is found by the next. There need not be an end:
/// the platform may go on to commit what concerns the user.
const MOST_PASSES: usize = 3;

/// What was removed.
#[derive(Clone, Debug)]
pub struct Erased {
    /// Names this erasure in the audit, which keeps nothing else of it.
    pub id: Uuid,
    /// How many of what, in the order in which they went.
    pub counts: Vec<(&'static str, u64)>,
}

impl Erased {
    fn add(&mut self, what: &'static str, count: u64) {
        match self.counts.iter_mut().find(|(name, _)| *name == what) {
            Some((_, sum)) => *sum += count,
            None => self.counts.push((what, count)),
        }
    }

    /// Over everything.
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

/// Removes the user's webhooks with their secrets, tokens, sessions, events, deliveries, logs, statistics and audit records, those of
/// webhooks deleted earlier too. May be repeated, and must be when it fails midway: what is gone is gone.
///
/// Not removed: add-ons, which follow the platform's own table, and events whose owner was never found.
pub async fn erase(store: &Store, user: &UserId) -> Result<Erased> {
    let mut erased = Erased { id: Uuid::now_v7(), counts: Vec::new() };
    let mut webhooks = BTreeSet::new();
    for _ in 0..MOST_PASSES {
        let before = erased.total();
        pass(store, user, &mut webhooks, &mut erased).await?;
        if erased.total() == before {
            break;
        }
    }
    if erased.total() > 0 {
        let mut connection = store.connection().await?;
        let transaction = connection.transaction().await?;
        let nobody = Actor { user: UserId("".into()), via: Via::CommandLine };
        audit::record(&transaction, &nobody, Action::UserErased, erased.id, &[]).await?;
        transaction.commit().await?;
    }
    Ok(erased)
}

/// `webhooks` are those known already; more are found.
async fn pass(store: &Store, user: &UserId, webhooks: &mut BTreeSet<Uuid>, erased: &mut Erased) -> Result<()> {
    in_chunks(store, TOKENS, &&*user.0, erased).await?;
    in_chunks(store, SESSIONS, &&*user.0, erased).await?;
    let removed = retry_deadlocks(|| remove_webhooks(store, user).boxed()).await?;
    erased.add("webhooks with their secrets", removed);
    webhooks.extend(traces(store, user).await?);
    for webhook in &*webhooks {
        for step in OF_WEBHOOK {
            in_chunks(store, step, webhook, erased).await?;
        }
    }
    erase_events(store, user, erased).await?;
    in_chunks(store, NOTICES, &&*user.0, erased).await?;
    in_chunks(store, ANSWERS, &&*user.0, erased).await?;
    in_chunks(store, AUDIT, &&*user.0, erased).await
}

/// From now on nothing is delivered to them, and nothing new becomes pending.
async fn remove_webhooks(store: &Store, user: &UserId) -> Result<u64> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let lock = transaction.prepare_cached(include_str!("../../sql/store/webhook_lock_user.sql")).await?;
    transaction.execute(&lock, &[&&*user.0]).await?;
    let statement = transaction.prepare_cached(WEBHOOKS).await?;
    let rows = transaction.query(&statement, &[&&*user.0]).await?;
    let actor = Actor { user: user.clone(), via: Via::CommandLine };
    for row in &rows {
        audit::record(&transaction, &actor, Action::WebhookDeleted, row.get("id"), &[]).await?;
    }
    transaction.commit().await?;
    Ok(rows.len() as u64)
}

async fn traces(store: &Store, user: &UserId) -> Result<Vec<Uuid>> {
    let connection = store.connection().await?;
    let rows = connection.query(TRACES, &[&&*user.0]).await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

async fn in_chunks(
    store: &Store,
    (what, statement): (&'static str, &str),
    of: &(dyn postgres_types::ToSql + Sync),
    erased: &mut Erased,
) -> Result<()> {
    loop {
        let removed = retry_deadlocks(|| remove_chunk(store, statement, of).boxed()).await?;
        erased.add(what, removed);
        if removed == 0 {
            return Ok(());
        }
    }
}

async fn remove_chunk(store: &Store, statement: &str, of: &(dyn postgres_types::ToSql + Sync)) -> Result<u64> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(statement).await?;
    Ok(connection.execute(&statement, &[of, &CHUNK]).await?)
}

/// Events are in no order of users: all are gone through, a part at a time.
async fn erase_events(store: &Store, user: &UserId, erased: &mut Erased) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(EVENTS).await?;
    let mut behind = Uuid::nil();
    loop {
        let row = connection.query_one(&statement, &[&&*user.0, &behind, &CHUNK]).await?;
        erased.add("events", row.get::<_, i64>("gone") as u64);
        match row.get::<_, Option<Uuid>>("last") {
            Some(last) if row.get::<_, i64>("looked") == CHUNK => behind = last,
            _ => return Ok(()),
        }
    }
}
