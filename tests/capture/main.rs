//! Capture from a real Postgres: the stream, crashes and failovers, repairs, setup and teardown.

#[path = "../support/mod.rs"]
mod support;

mod as_of;
mod catalog;
mod chaos;
mod connections;
mod crash;
mod ddl;
mod ddl_catalogue;
mod drift;
mod equivalence;
mod events;
mod failover;
mod fencing;
mod filters;
mod giant;
mod identity;
mod lookups;
mod mapping;
mod names;
mod partitions;
mod prepare;
mod privileges;
mod publication;
mod repair;
mod replaced;
mod rows;
mod shapes;
mod silence;
mod stage;
mod stream;
mod triggers;
mod unrouted;
mod versions;
mod visibility;

use support::{Sidecar, eventually};

/// Waits until readiness fails with `reason`.
async fn wait_until_unready(sidecar: &Sidecar, reason: &str) {
    eventually(reason, async || {
        let (status, text) = sidecar.readiness().await?;
        (status == 503 && text.contains(reason)).then_some(())
    })
    .await;
}

/// Waits until changes are read again, while readiness still reports the gap.
async fn wait_until_reading(sidecar: &Sidecar) {
    eventually("changes to be read again", async || {
        sidecar.readiness().await.filter(|(_, text)| {
            text.contains("gap: changes were lost") && !text.contains("capture: ")
        })
    })
    .await;
}
