//! Creates the triggers on all tables at one moment: every transaction that wrote to the tables before has ended, and every later
//! one is captured.

use std::time::Duration;

use postgres_types::Type;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::catalog::{Comparison, TableTrigger, TriggerState};
use super::function::function_name;
use crate::config::Source;
use crate::failpoint::failpoint;
use crate::primary::catalog::{self, followed};
use crate::primary::error::PrimaryError;

const SCHEMA: &str = include_str!("../../../sql/primary/outbox_schema.sql");
const PAIRING: &str = include_str!("../../../sql/primary/outbox_pairing.sql");
const LOCK: &str = include_str!("../../../sql/primary/outbox_lock.sql");
const SCHEMA_OID: &str = include_str!("../../../sql/primary/outbox_schema_oid.sql");
const PATIENCE: &str = include_str!("../../../sql/primary/outbox_patience.sql");
const BLOCKER: &str = include_str!("../../../sql/primary/outbox_blocker.sql");
const HANDOVER: &str = include_str!("../../../sql/primary/outbox_handover.sql");

/// About 12 × (0.8 s + 0.5 s): long enough for ordinary transactions to end.
const ATTEMPTS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(500);

/// The statements in the order in which they run. Only `lock` waits for locks on the platform's tables.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub prepare: String,
    pub lock: String,
    pub complete: String,
}

impl Script {
    /// Writes the script. `state` is none if the schema has to be created. With `switches`, the script writes the message to the WAL at
    /// which the outbox takes over.
    pub fn new(comparison: &Comparison, state: Option<&TriggerState>, switches: bool) -> Script {
        let mut script = Script::default();
        if state.is_none() {
            script.prepare.push_str(SCHEMA);
        }
        if !state.is_some_and(|state| state.paired) {
            // Locks the outbox, which may be in use.
            script.lock.push_str(PAIRING);
        }
        for function in &comparison.outdated {
            script.prepare.push_str(&function.create());
        }
        let create =
            |trigger: &TableTrigger| trigger.event.create(&trigger.relation.quoted(), &function_name(trigger.table));
        // The first trigger of each table locks it.
        let mut locked = Vec::new();
        for trigger in &comparison.missing {
            if locked.contains(&trigger.relation.oid) {
                script.complete.push_str(&create(trigger));
            } else {
                locked.push(trigger.relation.oid);
                script.lock.push_str(&create(trigger));
            }
        }
        let not_always = [&comparison.missing, &comparison.disabled, &comparison.ordinary].into_iter().flatten();
        for trigger in not_always.filter(|trigger| trigger.relation.owned) {
            script.complete.push_str(&trigger.event.enable_always(&trigger.relation.quoted()));
        }
        if switches {
            script.complete.push_str(HANDOVER);
        }
        script
    }

    pub fn is_empty(&self) -> bool {
        self.prepare.is_empty() && self.lock.is_empty() && self.complete.is_empty()
    }

    /// Runs the script. `schema` is the schema's oid when it was compared, if it existed.
    pub async fn run(&self, client: &Client, source: &Source, schema: Option<u32>) -> Result<(), PrimaryError> {
        // One statement, so that one timeout covers all locks together.
        let lock = format!("do $lock$ begin\n{}end $lock$", self.lock);
        let parts = [Part::Free(&self.prepare), Part::Locking(&lock), Part::Free(&self.complete)];
        run_with_retries(client, source, schema, &parts).await
    }
}

/// A part of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Statements that take no further locks on the platform's tables.
    Free(&'a str),
    /// One statement that waits for locks.
    Locking(&'a str),
}

/// Runs the parts in one transaction, if the schema of the triggers still has this oid, or still does not exist: another process may
/// have dropped or created the triggers in the meantime. Gives up and retries before the server's deadlock check could end a session of
/// the platform that waits for this one.
pub(crate) async fn run_with_retries(
    client: &Client,
    source: &Source,
    schema: Option<u32>,
    parts: &[Part<'_>],
) -> Result<(), PrimaryError> {
    for _ in 0..ATTEMPTS {
        client.batch_execute("begin").await?;
        match execute(client, schema, parts).await {
            Ok(()) => return Ok(client.batch_execute("commit").await?),
            Err(error) => {
                client.batch_execute("rollback").await?;
                if !is_lock_timeout(&error) {
                    return Err(error);
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    let holder = blocker(client, source).await?.map(|holder| format!("; {holder} holds them"));
    Err(PrimaryError::TablesBusy { attempts: ATTEMPTS, holder: holder.unwrap_or_default() })
}

async fn execute(client: &Client, schema: Option<u32>, parts: &[Part<'_>]) -> Result<(), PrimaryError> {
    client.query_typed(PATIENCE, &[]).await?;
    client.query_typed(LOCK, &[]).await?;
    if client.query_typed_one(SCHEMA_OID, &[]).await?.get::<_, Option<u32>>(0) != schema {
        return Err(PrimaryError::TriggersChanged);
    }
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
    Ok(failpoint!("triggers_changed_not_committed")?)
}

fn is_lock_timeout(error: &PrimaryError) -> bool {
    let PrimaryError::Query(error) = error else { return false };
    let timeouts = [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|code| timeouts.contains(code))
}

/// Describes the session because of which the tables could not be locked.
async fn blocker(client: &Client, source: &Source) -> Result<Option<String>, PrimaryError> {
    let tables = catalog::tables(client, source, followed(source).filter(|table| catalog::is_required(*table))).await?;
    let oids: Vec<u32> = tables.iter().flat_map(|table| &table.relations).map(|relation| relation.oid).collect();
    Ok(client.query_typed_opt(BLOCKER, &[(&oids, Type::OID_ARRAY)]).await?.map(|row| row.get(0)))
}
