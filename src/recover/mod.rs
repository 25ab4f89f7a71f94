//! The recovery stage: runs recoveries and replays step by step. Any number of replicas can run it:
//! each step locks its job.

mod job;
mod replay;
mod stored;
mod turns;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::retry::Backoff;
use crate::store::Store;
use crate::telemetry::Activity;

pub use job::{Step, step, step_in};
pub use turns::Turns;

/// The time limit of a step, which takes milliseconds, or seconds if the store is slow. A longer
/// one waits for a dead connection.
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// How long to wait when no job is due.
const IDLE: Duration = Duration::from_millis(500);

/// Runs until `stop`, which rolls back the current step. Another replica, or this one after a
/// restart, repeats it.
pub async fn run(store: Store, stop: CancellationToken) -> anyhow::Result<()> {
    let mut retries = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let activity = Activity::new("processing recoveries");
    let mut turns = Turns::default();
    while let Some(result) = stop
        .run_until_cancelled(store.in_time(STEP_LIMIT, step(&store, &mut turns)))
        .await
    {
        let pause = match result {
            Ok(step) => {
                activity.succeeded();
                retries.reset();

                if let Step::Finished {
                    recovery,
                    webhook,
                    recovered,
                } = step
                {
                    tracing::info!(job = %recovery, %webhook, deliveries = recovered, "recovery or replay ended");
                }

                if step == Step::Idle {
                    IDLE
                } else {
                    Duration::ZERO
                }
            }
            Err(error) => {
                activity.failed(&error);
                retries.next_wait()
            }
        };
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }

    Ok(())
}
