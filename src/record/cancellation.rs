//! Cancels what webhooks had pending when they were switched off, disabled or deleted.
//!
//! The transaction that changes the webhook does not touch its deliveries. Each replica looks for
//! webhooks that are inactive or do not exist and have pending deliveries, and cancels these in
//! chunks. A chunk that was interrupted has no effect, and is repeated by any replica.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::{Result, Store};
use crate::telemetry::Activity;

/// The webhooks with pending deliveries that one statement visits, which takes about a millisecond.
/// A longer statement would delay others that need the same processor.
const WEBHOOKS: i32 = 100;
/// The pause between two statements if nothing was cancelled and there are more webhooks.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after the last webhook.
const INTERVAL: Duration = Duration::from_secs(1);

/// The result of looking at the next webhooks.
#[derive(Clone, Copy, Debug)]
pub struct Cancelled {
    pub deliveries: u64,
    /// The webhook after which to continue. None if all were visited.
    pub next: Option<Uuid>,
}

/// Cancels until `shutdown`.
pub async fn cancel_inactive(store: Store, shutdown: CancellationToken) {
    let mut after = Uuid::nil();
    let activity = Activity::new("cancelling the deliveries of inactive webhooks");
    let mut pause = INTERVAL;
    let mut total = 0;

    while shutdown
        .run_until_cancelled(tokio::time::sleep(pause))
        .await
        .is_some()
    {
        let Some(cancelled) = shutdown
            .run_until_cancelled(cancel_next(&store, after))
            .await
        else {
            return;
        };

        pause = INTERVAL;

        match cancelled {
            Ok(Cancelled { deliveries, next }) => {
                activity.succeeded();
                total += deliveries;

                if deliveries > 0 {
                    // The same webhooks may have more.
                    pause = Duration::ZERO;
                    continue;
                }

                if total > 0 {
                    tracing::info!(
                        deliveries = total,
                        "cancelled deliveries of inactive or deleted webhooks"
                    );
                    total = 0;
                }

                (after, pause) = next.map_or((Uuid::nil(), INTERVAL), |next| (next, PAUSE));
            }
            Err(error) => activity.failed(&error),
        }
    }
}

/// Visits the next webhooks after `after` that have pending deliveries. Cancels a chunk of each
/// that is inactive or was deleted, so that none waits for the end of another's backlog.
pub async fn cancel_next(store: &Store, after: Uuid) -> Result<Cancelled> {
    let found = store.find_cancellable(after, WEBHOOKS).await?;
    let mut deliveries = 0;

    for webhook in found.webhooks {
        deliveries += store.cancel_pending(webhook).await?;
    }

    Ok(Cancelled {
        deliveries,
        next: found.last.filter(|_| found.visited >= i64::from(WEBHOOKS)),
    })
}
