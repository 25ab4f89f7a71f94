//! The recovery stage: runs recoveries step by step. Any number of replicas can run it: each step locks its recovery.

mod job;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::store::Store;
use crate::telemetry::Condition;

pub use job::{Step, step};

/// How long to wait when no recovery is due.
const IDLE: Duration = Duration::from_millis(500);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Runs until `stop`, which rolls back the current step: the next process to run repeats it.
pub async fn run(store: Store, stop: CancellationToken) -> anyhow::Result<()> {
    let mut wait = FIRST_WAIT;
    let failing = Condition::new();
    loop {
        let Some(result) = stop.run_until_cancelled(step(&store)).await else { return Ok(()) };
        let pause = match result {
            Ok(step) => {
                wait = FIRST_WAIT;
                if failing.ends() {
                    tracing::info!("recoveries can be run again");
                }
                if let Step::Finished { recovery, webhook, recovered } = step {
                    tracing::info!(%recovery, %webhook, recovered, "recovery finished");
                }
                if step == Step::Idle { IDLE } else { Duration::ZERO }
            }
            Err(error) => {
                if failing.begins() {
                    tracing::warn!(%error, "recoveries cannot be run; retrying");
                }
                let pause = wait;
                wait = (wait * 2).min(LONGEST_WAIT);
                pause
            }
        };
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}
