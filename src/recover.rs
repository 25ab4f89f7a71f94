//! The stage that works recoveries off, chunk by chunk. Any number of replicas may run it: each step takes a recovery that no
//! other holds, and what it does and how far it got are one transaction.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::store::Store;
use crate::store::recovery::Step;
use crate::telemetry::Condition;

/// Between two looks when there was nothing to do.
const IDLE: Duration = Duration::from_millis(500);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Runs until `stop`. A chunk under way is not waited for: it is taken back, and done again by whoever is next.
pub async fn run(store: Store, stop: CancellationToken) -> anyhow::Result<()> {
    let mut wait = FIRST_WAIT;
    let failing = Condition::new();
    loop {
        let Some(step) = stop.run_until_cancelled(store.step_recovery()).await else { return Ok(()) };
        let pause = match &step {
            Ok(Step::Idle) => IDLE,
            Ok(_) => Duration::ZERO,
            Err(_) => wait,
        };
        match step {
            Err(error) => {
                if failing.begins() {
                    tracing::warn!(%error, "recoveries cannot be worked off now; trying again until they can");
                }
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Ok(step) => {
                wait = FIRST_WAIT;
                if failing.ends() {
                    tracing::info!("recoveries can be worked off again");
                }
                if let Step::Finished { recovery, webhook, recovered } = step {
                    tracing::info!(%recovery, %webhook, recovered, "a recovery is over");
                }
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}
