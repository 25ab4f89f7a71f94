//! Creates the triggers on all tables at one moment: every transaction that wrote to the tables
//! before has ended, and every later one is captured.

use std::collections::{BTreeSet, HashSet};

use futures_util::FutureExt;
use postgres_types::Type;
use tokio_postgres::Client;

use super::catalog::{Comparison, TableTrigger};
use super::function::function_name;
use crate::config::Source;
use crate::failpoint::failpoint;
use crate::postgres::quote_identifier;
use crate::primary::catalog::{self, Relation};
use crate::primary::error::{PrimaryError, Result};
use crate::primary::finding::{Fix, FixKind};
use crate::primary::inspect::Triggers;
use crate::primary::table_locks::{
    Attempts, LockMode, limit_wait, limit_work, lock_table, together, try_in_transaction,
};
use crate::sql::primary as sql;

/// The statements in the order in which they run. Only `lock` waits for locks on the platform's
/// tables.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub prepare: String,
    pub lock: String,
    pub complete: String,
    /// The oids of the tables that `lock` locks.
    locked: HashSet<u32>,
    /// The quoted names of those that the role owns.
    owned: Vec<String>,
    /// Statements that only the owners of other tables may run.
    by_owners: String,
    /// Those owners.
    owners: BTreeSet<String>,
}

impl Script {
    /// Writes the script. The schema is created unless it `is_whole`; `altered` are the triggers
    /// that differ from what is noted. With `switches`, the script writes the message to
    /// the WAL at which the outbox takes over.
    pub fn new(
        comparison: &Comparison,
        is_whole: bool,
        altered: &[String],
        switches: bool,
    ) -> Script {
        let mut script = Script::default();

        if !is_whole {
            push(&mut script.prepare, sql::triggers::SCHEMA);
        }

        for function in &comparison.outdated {
            push(&mut script.prepare, &function.create());
        }

        let create = |trigger: &TableTrigger| {
            trigger
                .event
                .create(&trigger.relation.quoted(), &function_name(trigger.table))
        };

        for trigger in comparison.to_create() {
            script.change(&trigger.relation, &create(trigger));
        }

        let Comparison {
            missing,
            disabled,
            ordinary,
            ..
        } = comparison;

        let not_always = [missing, disabled, ordinary].into_iter().flatten();
        for trigger in not_always {
            let relation = &trigger.relation;
            let enable = trigger.event.enable_always(&relation.quoted());

            if relation.owned {
                script.change(relation, &enable);
            } else {
                push(&mut script.by_owners, &enable);
                script.owners.insert(relation.owner.clone());
            }
        }

        if !script.is_empty() || !altered.is_empty() {
            push(&mut script.complete, sql::triggers::INSTALLED);
        }

        if switches {
            push(&mut script.complete, sql::triggers::HANDOVER);
        }

        script
    }

    /// Adds a statement that locks the table. A table that the role owns is locked before. The role
    /// may not lock other tables separately, so the first statement on such a table waits for its
    /// lock.
    fn change(&mut self, relation: &Relation, statement: &str) {
        let is_first = self.locked.insert(relation.oid);
        if is_first && relation.owned {
            self.lock
                .push_str(&lock_table(&relation.quoted(), LockMode::ShareRowExclusive));
            self.owned.push(relation.quoted());
        }

        let part = if is_first && !relation.owned {
            &mut self.lock
        } else {
            &mut self.complete
        };

        push(part, statement);
    }

    /// Returns whether setup has nothing to do.
    pub fn is_empty(&self) -> bool {
        self.prepare.is_empty() && self.lock.is_empty() && self.complete.is_empty()
    }

    /// Returns the script for a DBA: one transaction, after which nothing is left to create. `role`
    /// is Walhook's.
    ///
    /// Where the outbox exists, only setup creates triggers: it records what a table without them
    /// may have lost. The same goes for a switch from the WAL (`switches`).
    pub fn for_dba(triggers: &Triggers, switches: bool, role: &str) -> Option<Fix> {
        let Triggers {
            state,
            comparison,
            altered,
            ..
        } = triggers;
        let is_whole = switches || state.is_installed();
        let mut comparison = comparison.clone();

        if is_whole {
            comparison.outdated.clear();
            comparison.missing.clear();
        }

        let script = Script::new(&comparison, is_whole, &[], false);
        if script.is_empty() && script.by_owners.is_empty() {
            return None;
        }

        // What was altered is noted by the repair that it needs.
        let note = match altered.is_empty() {
            true => sql::triggers::INSTALLED,
            false => "",
        };

        let mut sql = String::from(
            "-- Locks the tables against writing for a moment. If it waits, cancel it and try again.\n\
             begin;\nset local lock_timeout = '500ms';\n",
        );

        if !script.is_empty() {
            let Script {
                prepare,
                lock,
                complete,
                ..
            } = &script;
            let role = quote_identifier(role);
            sql.push_str(&format!(
                "set local role {role};\n{prepare}{lock}{complete}set local role none;\n"
            ));
        }

        sql.push_str(&format!("{}{note}\ncommit;", script.by_owners));
        let owners = script.owners.iter().map(String::as_str);
        let roles: Vec<&str> = owners.chain([role]).collect();

        Some(Fix::new(roles.join(" and "), FixKind::Other, sql))
    }

    /// Runs the script. `schema` is the schema's oid when it was compared, if it existed.
    pub async fn run(&self, client: &Client, source: &Source, schema: Option<u32>) -> Result<()> {
        let lock = together(&self.lock);
        let parts = [
            ScriptPart::Free(&self.prepare),
            ScriptPart::Locking(&lock),
            ScriptPart::Free(&self.complete),
        ];
        if run_with_retries(client, schema, &self.owned, &parts).await? {
            return Ok(());
        }

        let holder = blocker(client, source)
            .await?
            .map(|holder| format!("; {holder} holds them"));
        Err(PrimaryError::TablesBusy {
            attempts: Attempts::Many.count(),
            holder: holder.unwrap_or_default(),
        })
    }
}

/// Appends a statement on a line of its own.
fn push(text: &mut String, statement: &str) {
    text.push_str(statement);
    text.push('\n');
}

/// A part of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptPart<'a> {
    /// Statements that take no further locks on the platform's tables.
    Free(&'a str),
    /// One statement that waits for locks.
    Locking(&'a str),
}

/// Runs the parts in one transaction, if the schema of the triggers still has this oid, or still
/// does not exist: another process may have dropped or created the triggers in the meantime. Gives
/// up and retries before the server's deadlock check could end a session of the platform that waits
/// for this one. `owned` are the quoted names of the tables that are locked and belong to the role.
/// Returns false if the tables could not be locked.
pub(crate) async fn run_with_retries(
    client: &Client,
    schema: Option<u32>,
    owned: &[String],
    parts: &[ScriptPart<'_>],
) -> Result<bool> {
    try_in_transaction(client, Attempts::Many, owned, || {
        execute(client, schema, parts).boxed()
    })
    .await
}

async fn execute(client: &Client, schema: Option<u32>, parts: &[ScriptPart<'_>]) -> Result<()> {
    limit_wait(client).await?;
    client.query_typed(sql::triggers::LOCK, &[]).await?;

    if client
        .query_typed_one(sql::triggers::SCHEMA_OID, &[])
        .await?
        .get::<_, Option<u32>>(0)
        != schema
    {
        return Err(PrimaryError::TriggersChanged);
    }

    for part in parts {
        let statements = match part {
            ScriptPart::Free(statements) => {
                limit_work(client).await?;
                statements
            }
            ScriptPart::Locking(statement) => {
                limit_wait(client).await?;
                statement
            }
        };
        client.batch_execute(statements).await?;
    }

    Ok(failpoint!("triggers_changed_not_committed")?)
}

/// Describes the session because of which the tables could not be locked.
async fn blocker(client: &Client, source: &Source) -> Result<Option<String>> {
    let tables = catalog::tables(client, source, catalog::required(source)).await?;

    let oids: Vec<u32> = tables
        .iter()
        .flat_map(|table| &table.relations)
        .map(|relation| relation.oid)
        .collect();
    Ok(client
        .query_typed_opt(sql::triggers::BLOCKER, &[(&oids, Type::OID_ARRAY)])
        .await?
        .map(|row| row.get(0)))
}
