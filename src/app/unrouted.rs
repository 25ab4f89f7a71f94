//! Routes unrouted events again.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::config::Config;
use crate::domain::lsn::Lineage;
use crate::enqueue::repair::RepairEnqueue;
use crate::enqueue::unrouted::Rerouted;
use crate::lookup::Lookups;
use crate::record;
use crate::store::unrouted::UnroutedSelection;

/// Unrouted events that are read at once.
const PAGE: i64 = 500;
const CONNECTIONS: usize = 2;

/// The result of routing unrouted events again.
#[derive(Debug, Default)]
pub struct RoutingReport {
    pub routed: u64,
    /// How many are still unrouted, by reason.
    pub unrouted: BTreeMap<String, u64>,
}

/// Derives and routes the selected events again, each in a transaction of its own.
pub async fn retry(
    config: &Config,
    selection: &UnroutedSelection,
) -> anyhow::Result<RoutingReport> {
    let store = super::open_store(config.store_url()?, CONNECTIONS).await?;
    let lookups = Lookups::for_repair(config.source_url()?, &config.source, store.clone());
    let lineage = Lineage {
        system_identifier: 0,
        timeline: 0,
    };

    let mut enqueue = RepairEnqueue {
        lookups,
        lineage,
        max_data: config.delivery.max_payload_bytes,
        dry_run: false,
    };

    let mappings = &config.source.tables;
    let mut report = RoutingReport::default();
    let mut after = Uuid::nil();

    loop {
        let page = store.unrouted(selection, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = last.id;

        for unrouted in &page {
            match enqueue.reroute(&store, mappings, unrouted).await? {
                Rerouted::Routed => report.routed += 1,
                Rerouted::Gone => {}
                Rerouted::Unrouted(reason) => *report.unrouted.entry(reason).or_default() += 1,
            }
        }
    }

    if report.routed > 0 {
        // A running replica does the same within seconds.
        let _ = record::promote_all_stranded(&store).await;
    }

    Ok(report)
}
