//! Which of the other tenants' receivers got a request in `hostile`.

use std::time::{Duration, Instant};

use crate::figures::{Figures, Must};
use crate::receiver::{Kind, Reached, Receiver};
use crate::wait::WAIT_LIMIT;

const POLL: Duration = Duration::from_millis(100);
/// One of this many receivers misbehaves.
const ONE_IN: usize = 3;

/// How a receiver behaves in a case in which a third of them misbehave: evenly spread over the
/// kinds and over the tenants.
pub fn mixed(number: usize) -> Kind {
    match number % ONE_IN {
        0 => Kind::MISBEHAVING[number / ONE_IN % Kind::MISBEHAVING.len()],
        _ => Kind::Answer,
    }
}

/// What the receivers have received.
pub struct Reach(Vec<(Kind, Reached)>);

impl Reach {
    pub async fn now(receiver: &mut Receiver) -> anyhow::Result<Reach> {
        Ok(Reach(receiver.reached().await?))
    }

    /// Waits until `receivers` got a request, or the time limit is over: those that answer are not
    /// known to, and wait for permits behind those that are slow.
    pub async fn wait(receiver: &mut Receiver, receivers: u64) -> anyhow::Result<Reach> {
        let started = Instant::now();

        loop {
            let reach = Reach::now(receiver).await?;
            if reach.receivers() >= receivers || started.elapsed() > WAIT_LIMIT {
                return Ok(reach);
            }

            tokio::time::sleep(POLL).await;
        }
    }

    /// The number of receivers that got a request.
    pub fn receivers(&self) -> u64 {
        self.0.iter().map(|(_, reached)| reached.webhooks).sum()
    }

    /// Requests in progress at receivers that keep them until the timeout.
    pub fn slow(&self) -> u64 {
        self.0
            .iter()
            .filter(|(kind, _)| kind.is_slow())
            .map(|(_, reached)| reached.open)
            .sum()
    }

    /// Requires that all `receivers` got a request. Records when the last of those that answer got
    /// its first, after a commit at `committed_at` that created a delivery for each.
    pub fn require_all(
        &self,
        figures: &mut Figures,
        case: &str,
        receivers: u64,
        committed_at: u64,
    ) {
        let missing = receivers as f64 - self.receivers() as f64;
        figures.require(
            format!("{case}: receivers without a request"),
            "",
            missing,
            Must::NeverAbove(0.0),
        );

        for (_, answering) in self
            .0
            .iter()
            .filter(|(kind, reached)| *kind == Kind::Answer && reached.webhooks > 0)
        {
            let seconds = answering.last_at.saturating_sub(committed_at) as f64 / 1e6;
            figures.add(
                format!("{case}: last of those that answer reached after"),
                "s",
                seconds,
            );
        }
    }

    /// Records how many receivers of each kind got how many requests.
    pub fn record_kinds(&self, figures: &mut Figures) {
        for (kind, reached) in &self.0 {
            let verb = kind.verb();
            figures.add(
                format!("receivers that {verb}: reached"),
                "",
                reached.webhooks as f64,
            );
            figures.add(
                format!("receivers that {verb}: requests"),
                "",
                reached.requests as f64,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_the_receivers_of_each_tenant_misbehave_evenly_in_all_ways() {
        let all: Vec<Kind> = (0..10_000).map(mixed).collect();

        for kind in Kind::MISBEHAVING {
            let count = all.iter().filter(|other| **other == kind).count();
            assert!((555..=556).contains(&count), "{count} {kind:?}");
        }

        for tenant in all.chunks(10) {
            let answering = tenant.iter().filter(|kind| **kind == Kind::Answer).count();
            assert!((6..=7).contains(&answering), "{tenant:?}");

            let mut ways: Vec<&Kind> = tenant
                .iter()
                .filter(|kind| **kind != Kind::Answer)
                .collect();
            let count = ways.len();

            ways.sort_by_key(|kind| kind.path());
            ways.dedup();
            assert_eq!(
                ways.len(),
                count,
                "a tenant's receivers misbehave in different ways: {tenant:?}"
            );
        }
    }
}
