//! Judges the primary: each condition once, for `walhook setup`, `walhook check` and the running
//! process alike.

mod inspection;
mod server;
mod standbys;
mod tables;
mod triggers;

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_postgres::Client;

use super::catalog::{self, MappedTable, Server};
use super::error::Result;
use super::finding::Finding;
use super::triggers::catalog::{altered_triggers, compare, failures, trigger_state};
use crate::config::{CaptureMode, Source};
use crate::domain::lsn::Lineage;
use crate::domain::table::Table;
use crate::postgres;

pub(crate) use inspection::{Conditions, Inspection, Triggers};
pub(crate) use server::wal_level;
pub(crate) use triggers::explained;

/// Reads the catalog and judges it.
///
/// All of it is read from one snapshot: otherwise a partition that is dropped or detached meanwhile
/// would be a table that has lost its triggers.
pub(crate) async fn inspect(
    client: &Client,
    source: &Source,
    conditions: Conditions,
) -> Result<Inspection> {
    client
        .batch_execute("begin isolation level repeatable read read only")
        .await?;
    let read = read(client, source, conditions).await;
    let ended = client.batch_execute("rollback").await;

    let mut found = read?;
    ended?;
    found.findings = found.judge(source);
    Ok(found)
}

/// Reads what [`inspect`] judges.
async fn read(client: &Client, source: &Source, conditions: Conditions) -> Result<Inspection> {
    let all = conditions == Conditions::All;
    let by_wal = match conditions {
        Conditions::All => source.capture == CaptureMode::Wal,
        Conditions::Wal => true,
        Conditions::Triggers => false,
    };

    // Triggers do not capture the table with the addresses for e-mail, which is looked up.
    let wanted =
        catalog::followed(source).filter(|table| all || by_wal || catalog::is_required(*table));
    let mut found = Inspection {
        server: if all {
            Some(catalog::server(client).await?)
        } else {
            None
        },
        tables: catalog::tables(client, source, wanted).await?,
        slot: if all {
            catalog::slot(client, &source.slot).await?
        } else {
            None
        },
        publication: if by_wal {
            catalog::publication(client, &source.publication).await?
        } else {
            None
        },
        triggers: None,
        findings: Vec::new(),
    };

    if !by_wal {
        let state = trigger_state(client).await?;
        let is_complete = state.is_complete();
        let failures = if is_complete {
            failures(client).await?
        } else {
            None
        };

        let comparison = compare(client, source, &found.tables).await?;
        let unguarded = comparison.unguarded(client).await?;
        let altered = if is_complete {
            altered_triggers(client).await?
        } else {
            Vec::new()
        };

        found.triggers = Some(Triggers {
            state,
            comparison,
            unguarded,
            altered,
            failures,
        });
    }

    Ok(found)
}

/// Identifies the primary's database, to compare it with the store's.
pub struct Database {
    pub system_identifier: i64,
    pub name: String,
    /// None if it is a standby.
    pub lineage: Option<Lineage>,
    /// Whether a failover to one of its standbys can undo acknowledged commits.
    pub has_asynchronous_standbys: bool,
}

/// Inspects the primary for `walhook check`. Fails if it does not answer.
pub async fn inspect_primary(source: &Source, url: &str) -> Result<(Database, Vec<Finding>)> {
    let client = postgres::connect(url).await?;
    let before = Timestamp::now();
    let server = catalog::server(&client).await?;
    let lineage = server.lineage();

    let Server {
        system_identifier,
        database: name,
        role,
        now,
        physical_slots,
        synchronous,
        ..
    } = server;

    let has_asynchronous_standbys = !synchronous && !physical_slots.is_empty();
    let mut findings = vec![
        Finding::ok("primary", format!("database {name} as {role}")),
        Finding::clock("primary clock", now, before),
    ];

    match inspect(&client, source, Conditions::All).await {
        Ok(found) => {
            let synchronizes = source.capture == CaptureMode::Wal
                && found.can_fail_over(source)
                && found.slot.is_some();
            findings.extend(found.findings);

            if synchronizes {
                findings.extend(standbys::inspect(source, url).await?);
            }
        }
        Err(error) => findings.push(Finding::fail(
            "primary catalog",
            error.to_string(),
            "run `walhook check` again",
        )),
    }

    Ok((
        Database {
            system_identifier,
            name,
            lineage,
            has_asynchronous_standbys,
        },
        findings,
    ))
}

/// What can be streamed.
pub(crate) struct Streamed {
    /// The captured tables by their OIDs.
    pub tables: HashMap<u32, Table>,
    /// Why the changes of some tables are missing.
    pub missing: Vec<Finding>,
}

impl Inspection {
    /// Verifies that the WAL has what events need.
    pub fn streamed(&self) -> Result<Streamed> {
        let missing = self.accept_for_streaming()?;

        // Partitions too: without publish_via_partition_root, their rows arrive under their own
        // OIDs.
        let all = self.tables.iter().flat_map(|mapped| {
            mapped
                .relations
                .iter()
                .map(|relation| (relation.oid, mapped.table))
        });

        Ok(Streamed {
            tables: all.collect(),
            missing,
        })
    }

    fn judge(&self, source: &Source) -> Vec<Finding> {
        let mut findings = Vec::new();

        if let Some(server) = &self.server {
            findings.extend(server::judge(source, server));
        }

        for mapped in &self.tables {
            findings.extend(self.judge_table(source, mapped));
        }

        if let Some(triggers) = &self.triggers {
            findings.extend(triggers::judge_outbox(triggers, self.server.as_ref()));
        } else {
            findings.push(tables::publication(source, self));
        }

        if let Some(server) = &self.server {
            findings.extend(server::judge_slot(source, server, self.slot.as_ref()));
        }

        findings
    }

    fn judge_table(&self, source: &Source, mapped: &MappedTable) -> Vec<Finding> {
        let Some(root) = mapped.root() else {
            return vec![tables::missing(source, mapped.table)];
        };

        let mut findings = vec![tables::columns(
            source,
            mapped.table,
            root,
            self.triggers.is_none(),
        )];

        findings.extend(tables::types(source, mapped.table, root));

        match &self.triggers {
            Some(triggers) if catalog::is_required(mapped.table) => {
                findings.extend(triggers::judge_table(mapped, root, triggers, &self.role()));
            }
            Some(_) => {}
            None => findings.extend(tables::replica_identity(source, mapped)),
        }

        if self.server.is_some() {
            findings.extend(tables::privileges(
                source,
                mapped.table,
                root,
                self.is_set_up(),
                &self.role(),
            ));
        }

        findings
    }
}
