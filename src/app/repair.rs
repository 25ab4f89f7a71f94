//! Runs a repair: compares tables with the ledger and raises the missed events, in one transaction.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::config::Config;
use crate::domain::event::EventKind;
use crate::domain::lsn::Lsn;
use crate::domain::table::Table;
use crate::enqueue::repair::{RepairEnqueue, Repaired};
use crate::failpoint::failpoint;
use crate::lookup::Lookups;
use crate::record;
use crate::repair::{Found, Repair, Request};
use crate::store::checkpoint::OpenGap;
use crate::store::ledger::change_ledger;
use crate::store::{StoreError, Transaction};

/// Number of raised events that the report shows.
const EXAMPLES: usize = 5;
/// One for the repair's transaction, the others for queries outside it.
const CONNECTIONS: usize = 3;

/// The result of comparing one table.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableRows {
    pub compared: u64,
    pub changed: u64,
    pub new: u64,
    pub gone: u64,
    /// The ledger is incomplete for this table. Rows that it lacks may be older than the gap, so
    /// they raise no events.
    pub unknown: bool,
}

/// The result of a repair or of a dry run.
#[derive(Debug, Default)]
pub struct Report {
    pub gaps: Vec<OpenGap>,
    pub done: Vec<String>,
    pub tables: BTreeMap<Table, TableRows>,
    pub events: BTreeMap<EventKind, u64>,
    pub examples: Vec<String>,
    pub deliveries: usize,
    pub missed: usize,
    pub unrouted: usize,
    /// The LSN from which changes are read. None after a dry run.
    pub begins: Option<Lsn>,
}

/// Compares the tables with the ledger and, except in a dry run, stores the missed events together
/// with the new checkpoint.
pub async fn repair(config: &Config, dry_run: bool, force: bool) -> anyhow::Result<Report> {
    let url = config.source_url()?;
    let store_url = config.store_url()?;
    let store = super::open_store(store_url, CONNECTIONS).await?;

    if !dry_run {
        // Today's events need today's partitions, which do not exist if nothing has run for days.
        super::retention::run_once(&store, config.retention.days)
            .await
            .context("creating the store's partitions")?;
    }

    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;
    let source = &config.source;

    let request = Request {
        source,
        url,
        store: &store,
        transaction: &transaction,
        dry_run,
        force,
    };

    let repair = Repair::begin(request).await?;
    let lookups = Lookups::for_repair(url, source, store.clone());
    let enqueue = RepairEnqueue {
        lookups,
        lineage: repair.lineage(),
        max_data: config.delivery.max_payload_bytes,
        dry_run,
    };

    match compare(&repair, enqueue, &transaction, dry_run).await {
        Ok(report) if dry_run => {
            repair.end().await;
            Ok(report)
        }
        Ok(report) => match transaction.commit().await.map_err(StoreError::from) {
            Ok(()) => {
                failpoint!("repair_committed_heads_not_due")?;
                repair.end().await;

                if let Err(error) = record::promote_all_stranded(&store).await {
                    tracing::info!(%error, "the first deliveries of ordered webhooks are due when a replica has found them");
                }

                Ok(report)
            }
            // The commit may have succeeded: then dropping the slot would cause the next gap.
            Err(error) => Err(anyhow::Error::from(error)
                .context("it is unknown whether the repair was committed: run it again")),
        },
        Err(error) => Err(repair.abandon(error).await),
    }
}

async fn compare(
    repair: &Repair<'_>,
    mut enqueue: RepairEnqueue,
    transaction: &Transaction<'_>,
    dry_run: bool,
) -> anyhow::Result<Report> {
    let mut report = Report {
        gaps: repair.gaps.clone(),
        done: repair.done.clone(),
        begins: repair.begins(),
        ..Report::default()
    };

    let mut differences = repair.differences(transaction).await?;
    while let Some(found) = differences.next(transaction).await? {
        let repaired = enqueue.raise(transaction, &found.changes).await?;

        if !dry_run {
            change_ledger(transaction, &found.ledger).await?;
        }

        report.add(&found, repaired);
    }

    repair.finish(transaction).await?;
    failpoint!("repair_complete_not_committed")?;

    Ok(report)
}

impl Report {
    fn add(&mut self, found: &Found, repaired: Repaired) {
        let rows = self.tables.entry(found.table).or_default();
        rows.compared += found.compared;
        rows.changed += found.changed;
        rows.new += found.new;
        rows.gone += found.gone;
        rows.unknown = found.unknown;

        for event in &repaired.events {
            *self.events.entry(event.kind).or_default() += 1;

            if self.examples.len() < EXAMPLES {
                self.examples.push(format!("{} {}", event.kind, event.data));
            }
        }

        self.deliveries += repaired.deliveries;
        self.missed += repaired.missed;
        self.unrouted += repaired.unrouted;
    }
}
