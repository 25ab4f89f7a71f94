//! Finds deliveries that are parked although nothing is pending before them, and makes them due.
//!
//! Whatever ends a delivery also makes the next one due, in the same transaction. The exceptions
//! are a repair, and a transaction that held a lock on the next delivery and was rolled back.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::delivery::Key;
use crate::store::{Result, Store};
use crate::telemetry::{Activity, recurring};

/// The keys that one statement visits, which takes about a millisecond. A longer statement would
/// delay others that need the same processor.
const KEYS: i32 = 100;
/// The pause between two statements while there are more keys: with many, the search uses a
/// hundredth of a processor.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after the last key. A stranded delivery delays its key as long as a lost lease does,
/// or less.
const INTERVAL: Duration = Duration::from_secs(5);
/// Before the first key.
const START: Key = (Uuid::nil(), i64::MIN);

/// Searches until `shutdown`. A delivery that is found is reported.
pub async fn promote_stranded(store: Store, shutdown: CancellationToken) {
    let mut after = START;
    let activity = Activity::new("looking for deliveries that wait for nothing");
    let mut pause = INTERVAL;
    while shutdown
        .run_until_cancelled(tokio::time::sleep(pause))
        .await
        .is_some()
    {
        match store.promote_stranded(after, KEYS).await {
            Ok(visited) => {
                activity.succeeded();

                if visited.promoted > 0 {
                    recurring!(
                        warn,
                        deliveries = visited.promoted,
                        "deliveries waited for others that were no longer pending. They are due now"
                    );
                }

                let next = visited.last().filter(|_| visited.keys >= i64::from(KEYS));
                (after, pause) = next.map_or((START, INTERVAL), |next| (next, PAUSE));
            }
            Err(error) => {
                activity.failed(&error);
                pause = INTERVAL;
            }
        }
    }
}

/// Searches once: for a repair, which parks all deliveries with an order key.
pub async fn promote_all_stranded(store: &Store) -> Result<()> {
    let mut after = Some(START);
    while let Some(start) = after {
        let visited = store.promote_stranded(start, KEYS).await?;
        after = visited.last().filter(|_| visited.keys >= i64::from(KEYS));
    }

    Ok(())
}
