//! A repair: what capture finds, enqueue makes events of, in one transaction.

use std::collections::BTreeMap;

use anyhow::Context;

use crate::capture::repair::{Found, Repair, Request};
use crate::config::Config;
use crate::domain::event::EventKind;
use crate::domain::lsn::Lsn;
use crate::domain::table::Table;
use crate::enqueue::repair::{Repair as Raise, Repaired};
use crate::lookup::Lookups;
use crate::store::capture::OpenGap;
use crate::store::ledger::change_ledger;
use crate::store::{StoreError, Transaction};

/// Examples that are kept of what was found.
const EXAMPLES: usize = 5;
/// One for the repair's transaction, the others for what it asks beside.
const CONNECTIONS: usize = 3;

/// What the rows of one table came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    pub compared: u64,
    pub changed: u64,
    pub new: u64,
    pub gone: u64,
    /// The ledger does not have all of this table: new rows may be old ones, and raised nothing.
    pub unknown: bool,
}

/// What a repair found, and did unless it was a dry run.
#[derive(Debug, Default)]
pub struct Report {
    pub gaps: Vec<OpenGap>,
    pub done: Vec<String>,
    pub tables: BTreeMap<Table, Rows>,
    pub events: BTreeMap<EventKind, u64>,
    pub examples: Vec<String>,
    pub deliveries: usize,
    pub missed: usize,
    pub unrouted: usize,
    /// Where the stream goes on; nothing after a dry run.
    pub begins: Option<Lsn>,
}

/// Compares, and unless it is a dry run stores what was missed together with the new beginning of the stream.
pub async fn repair(config: &Config, dry_run: bool, force: bool) -> anyhow::Result<Report> {
    let (url, store_url) = (config.source_url()?, config.store_url()?);
    let store = super::open_store(store_url, CONNECTIONS).await?;
    if !dry_run {
        // What is raised today belongs into today's partitions, also where nothing has run for days.
        super::retention::round(&store, config.retention.days).await.context("making the store's partitions")?;
    }
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;
    let source = &config.source;
    let request = Request { source, url, store: &store, transaction: &transaction, dry_run, force };
    let repair = Repair::begin(request).await?;
    let raise = Raise { lookups: Lookups::at_present(url, source, store.clone()), lineage: repair.lineage(), dry_run };
    match work(&repair, raise, &transaction, dry_run).await {
        Ok(report) if dry_run => {
            repair.end().await;
            Ok(report)
        }
        Ok(report) => match transaction.commit().await.map_err(StoreError::from) {
            Ok(()) => {
                repair.end().await;
                Ok(report)
            }
            // It may have gone through all the same: dropping the slot then would be the next gap.
            Err(error) => Err(anyhow::Error::from(error).context("the end of the repair is not known: run it again")),
        },
        Err(error) => Err(repair.abandon(error).await),
    }
}

async fn work(
    repair: &Repair<'_>,
    mut raise: Raise,
    transaction: &Transaction<'_>,
    dry_run: bool,
) -> anyhow::Result<Report> {
    let mut report =
        Report { gaps: repair.gaps.clone(), done: repair.done.clone(), begins: repair.begins(), ..Report::default() };
    let mut differences = repair.differences(transaction).await?;
    while let Some(found) = differences.next(transaction).await? {
        let repaired = raise.raise(transaction, &found.changes).await?;
        if !dry_run {
            change_ledger(transaction, &found.ledger).await?;
        }
        report.add(&found, repaired);
    }
    repair.finish(transaction).await?;
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
