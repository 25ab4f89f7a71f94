//! Makes rows of deliveries that were handed off some seconds ago and have not been recorded: their
//! receivers are slow, or their process was killed.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::failpoint::failpoint;
use crate::store::handoffs::{Handoffs, Locked, unpack};
use crate::store::{Result, Store};
use crate::telemetry::Activity;

/// The age at which a hand-off is unpacked. Most are recorded before: a process sends what it holds
/// in about a second. Shorter than any lease.
const AGE: Duration = Duration::from_secs(2);
/// The pause before the next search.
const INTERVAL: Duration = Duration::from_secs(1);

/// Unpacks until `shutdown`.
pub async fn unpack_old(store: Store, shutdown: CancellationToken) {
    let activity = Activity::new("looking for deliveries that were handed off and not recorded");
    let mut pause = INTERVAL;

    while shutdown
        .run_until_cancelled(tokio::time::sleep(pause))
        .await
        .is_some()
    {
        pause = INTERVAL;

        match unpack_next(&store).await {
            Ok(deliveries) => {
                activity.succeeded();

                if deliveries > 0 {
                    // There may be more.
                    pause = Duration::ZERO;
                }
            }
            Err(error) => activity.failed(&error),
        }
    }
}

/// Unpacks the next hand-offs. The statement is a transaction of its own: a process that freezes
/// locks no hand-off.
async fn unpack_next(store: &Store) -> Result<u64> {
    let deliveries = unpack(store, Handoffs::Older(AGE), Locked::Skip).await?;
    if deliveries > 0 {
        failpoint!("handoff_unpacked_answer_not_received")?;
    }

    Ok(deliveries)
}
