//! Puts the triggers on the tables, all at one moment: every transaction that wrote to them before is over, every one after is
//! captured.

use std::time::Duration;

use postgres_types::Type;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{self, Comparison, Lacking, State, Watched};
use crate::capture::CaptureError;
use crate::config::Source;

const SCHEMA: &str = include_str!("../../../sql/primary/outbox_schema.sql");
const PAIRING: &str = include_str!("../../../sql/primary/outbox_pairing.sql");
const PATIENCE: &str = include_str!("../../../sql/primary/outbox_patience.sql");
const BLOCKER: &str = include_str!("../../../sql/primary/outbox_blocker.sql");
const HANDOVER: &str = include_str!("../../../sql/primary/outbox_handover.sql");

const ATTEMPTS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(500);

/// All statements, in the order that they are run in. Locking the tables is the second step and the only one that waits.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub prepare: String,
    pub lock: String,
    pub complete: String,
}

impl Script {
    /// `found` is none if the schema has to be created.
    pub fn new(comparison: &Comparison, found: Option<&State>, hands_over: bool) -> Script {
        let mut script = Script::default();
        if found.is_none() {
            script.prepare.push_str(SCHEMA);
        }
        if !found.is_some_and(|state| state.paired) {
            // It locks the outbox, which may be in use.
            script.lock.push_str(PAIRING);
        }
        for function in &comparison.outdated {
            script.prepare.push_str(&function.create());
        }
        let create = |trigger: &Lacking| trigger.event.create(&trigger.relation.quoted(), &trigger.function);
        // The first trigger of each table locks it.
        let mut locked = Vec::new();
        for trigger in &comparison.lacking {
            if locked.contains(&trigger.relation.oid) {
                script.complete.push_str(&create(trigger));
            } else {
                locked.push(trigger.relation.oid);
                script.lock.push_str(&create(trigger));
            }
        }
        let ours = [&comparison.lacking, &comparison.disabled, &comparison.ordinary].into_iter().flatten();
        for trigger in ours.filter(|trigger| trigger.relation.owned) {
            script.complete.push_str(&trigger.event.enable_always(&trigger.relation.quoted()));
        }
        if hands_over {
            script.complete.push_str(HANDOVER);
        }
        script
    }

    pub fn is_empty(&self) -> bool {
        self.prepare.is_empty() && self.lock.is_empty() && self.complete.is_empty()
    }
}

pub(crate) async fn run(client: &Client, source: &Source, script: &Script) -> Result<(), CaptureError> {
    // One statement, so that the bound is for all locks together.
    let lock = format!("do $lock$ begin\n{}end $lock$", script.lock);
    patiently(client, source, &[Part::Free(&script.prepare), Part::Locking(&lock), Part::Free(&script.complete)]).await
}

/// A part of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Locks no table of the application's that is not locked already.
    Free(&'a str),
    /// One statement that waits for locks.
    Locking(&'a str),
}

/// Does in one transaction what needs locks on the tables, giving up and trying again before anybody who waits for us would be
/// ended as deadlocked.
pub(crate) async fn patiently(client: &Client, source: &Source, parts: &[Part<'_>]) -> Result<(), CaptureError> {
    for _ in 0..ATTEMPTS {
        client.batch_execute("begin").await?;
        match execute(client, parts).await {
            Ok(()) => return Ok(client.batch_execute("commit").await?),
            Err(error) => {
                client.batch_execute("rollback").await?;
                if !is_busy(&error) {
                    return Err(error);
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    let watched = catalog::watched(client, source).await?;
    let holder = blocker(client, &watched).await?.map(|holder| format!("; {holder} holds them"));
    Err(CaptureError::TablesBusy { attempts: ATTEMPTS, holder: holder.unwrap_or_default() })
}

async fn execute(client: &Client, parts: &[Part<'_>]) -> Result<(), CaptureError> {
    for part in parts {
        let statements = match part {
            Part::Free(statements) => {
                client.batch_execute("set local statement_timeout = '60s'").await?;
                statements
            }
            Part::Locking(statement) => {
                client.query_typed(PATIENCE, &[]).await?;
                statement
            }
        };
        client.batch_execute(statements).await?;
    }
    Ok(())
}

fn is_busy(error: &CaptureError) -> bool {
    let CaptureError::Primary(error) = error else { return false };
    let busy = [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| busy.contains(code))
}

async fn blocker(client: &Client, watched: &[Watched]) -> Result<Option<String>, CaptureError> {
    let oids: Vec<u32> = watched.iter().flat_map(|table| &table.relations).map(|relation| relation.oid).collect();
    Ok(client.query_typed_opt(BLOCKER, &[(&oids, Type::OID_ARRAY)]).await?.map(|row| row.get(0)))
}
