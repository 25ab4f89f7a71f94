//! The stage that works recoveries off, chunk by chunk. Any number of replicas may run it: each step takes a recovery that no
//! other holds, and what it does and how far it got are one transaction.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::retry::Backoff;
use crate::store::Store;
use crate::store::recovery::Step;
use crate::telemetry::Activity;

/// Between two looks when there was nothing to do.
const IDLE: Duration = Duration::from_millis(500);

/// Runs until `stop`. A chunk in progress is rolled back, and repeated by the replica that takes the recovery next.
pub async fn run(store: Store, stop: CancellationToken) -> anyhow::Result<()> {
    let mut retries = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let activity = Activity::new("processing recoveries");
    while let Some(step) = stop.run_until_cancelled(store.step_recovery()).await {
        let pause = match step {
            Err(error) => {
                activity.failed(&error);
                retries.next_wait()
            }
            Ok(step) => {
                activity.succeeded();
                retries.reset();
                if let Step::Finished { recovery, webhook, recovered } = step {
                    tracing::info!(%recovery, %webhook, recovered, "a recovery is over");
                }
                if matches!(step, Step::Idle) { IDLE } else { Duration::ZERO }
            }
        };
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
    Ok(())
}
