//! Drains a backlog in the WAL, for several measures.

use crate::figures::Figures;
use crate::platform::Muted;
use crate::processes::Cpu;
use crate::rig::{Held, Rig};
use crate::sidecar::Sidecar;

/// A backlog of transitions, and its receivers.
#[derive(Clone, Copy)]
pub struct Backlog {
    pub user: u64,
    pub transitions: u64,
    /// Webhooks that receive each event.
    pub fan_out: u64,
    pub replicas: usize,
}

/// A drained backlog. The sidecars still run.
pub struct Drained {
    /// Deliveries per second, from the first receipt to the last.
    pub rate: f64,
    pub deliveries: u64,
    pub sidecars: Vec<Sidecar>,
    pub before: Cpu,
    pub after: Cpu,
}

impl Backlog {
    /// Writes the backlog, starts the replicas and waits until everything is received and recorded.
    pub async fn drain(self, rig: &mut Rig, figures: &mut Figures) -> anyhow::Result<Drained> {
        rig.platform
            .write_singly(self.user, self.transitions, Muted::No)
            .await?;
        rig.receiver.reset().await?;

        let deliveries = self.transitions * self.fan_out;
        let mut sidecars = Vec::with_capacity(self.replicas);
        let before = rig.cpu(&[]);

        for replica in 0..self.replicas {
            sidecars.push(
                rig.installation
                    .start(&format!("replica-{replica}"), "capture,deliver,api")?,
            );
        }

        rig.wait_for_deliveries(&mut sidecars, deliveries / 2)
            .await?;
        rig.require_bounded_queues(figures, Held::FirstAttempts, self.replicas)
            .await?;

        let status = rig.wait_for_deliveries(&mut sidecars, deliveries).await?;
        rig.settle().await?;

        let after = rig.cpu(&sidecars);
        let seconds = status.last_at.saturating_sub(status.first_at) as f64 / 1e6;

        Ok(Drained {
            rate: (deliveries - 1) as f64 / seconds,
            deliveries,
            sidecars,
            before,
            after,
        })
    }
}

impl Drained {
    pub async fn stop(self) -> anyhow::Result<()> {
        for sidecar in self.sidecars {
            sidecar.stop().await?;
        }

        Ok(())
    }
}
