//! Samples for metrics: of the store, the backlog and its age, webhooks by state, the age of the
//! checkpoint and connection pools; of the primary, the slot.

use std::time::Duration;

use metrics::gauge;
use tokio_util::sync::CancellationToken;

use crate::domain::delivery::DeliveryClass;
use crate::postgres;
use crate::primary::catalog::{self, SlotLag};
use crate::primary::error::PrimaryError;
use crate::store::observe::{Extent, PoolUse, WebhookStates};
use crate::store::{Result, Store};
use crate::telemetry::{self, Activity};

/// Unrouted events that are counted: to an operator, more make no difference.
const MAX_UNROUTED: i64 = 10_000;
const INTERVAL: Duration = Duration::from_secs(10);
/// For the connection to the primary and the query.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);
/// PostgreSQL's values of `wal_status`, and one for a missing slot.
const STATUSES: [&str; 6] = [
    "reserved",
    "extended",
    "unreserved",
    "lost",
    "unknown",
    MISSING,
];
const MISSING: &str = "missing";

/// Samples the store at intervals until shutdown. While the store does not answer, the metrics keep
/// their values: readiness reports the outage.
pub async fn sample_store(
    store: Store,
    pools: Vec<Store>,
    slot: String,
    shutdown: CancellationToken,
) {
    let measuring = Activity::new("measuring the store's backlog");
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);

    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let uses: Vec<PoolUse> = pools.iter().map(Store::pool_use).collect();
        let count = |of: fn(&PoolUse) -> usize| uses.iter().map(of).sum::<usize>() as f64;

        gauge!(telemetry::STORE_CONNECTIONS, "state" => "open").set(count(|pool| pool.open));
        gauge!(telemetry::STORE_CONNECTIONS, "state" => "busy").set(count(|pool| pool.busy));

        for pool in &pools {
            // Finds connections that were dropped silently before a request needs them. The sample
            // below reports an outage.
            let _ = pool.probe().await;
        }

        match shutdown.run_until_cancelled(sample(&store, &slot)).await {
            None => return,
            Some(Ok(())) => measuring.succeeded(),
            Some(Err(error)) => measuring.failed(&error),
        }
    }
}

async fn sample(store: &Store, slot: &str) -> Result<()> {
    for (attempt, class) in [
        ("first", DeliveryClass::Fresh),
        ("retry", DeliveryClass::Retry),
    ] {
        let queue = store.queue(class, Extent::All).await?;
        gauge!(telemetry::PENDING, "attempt" => attempt).set(queue.deliveries as f64);
        gauge!(telemetry::OLDEST_DUE, "attempt" => attempt).set(queue.oldest_due);
    }

    let WebhookStates {
        active,
        inactive,
        disabled,
        failing: _,
    } = store.webhook_states(Extent::All).await?;
    for (state, webhooks) in [
        ("active", active),
        ("inactive", inactive),
        ("disabled", disabled),
    ] {
        gauge!(telemetry::WEBHOOKS, "state" => state).set(webhooks as f64);
    }

    gauge!(telemetry::UNROUTED).set(store.count_unrouted(MAX_UNROUTED).await?.events as f64);

    if let Some(age) = store.checkpoint_age(slot).await? {
        gauge!(telemetry::CHECKPOINT_AGE).set(age);
    }

    Ok(())
}

/// Samples the slot at intervals until shutdown, whether or not it is read: a slot without a reader
/// fills the primary's disk. While the primary does not answer, the metrics keep their values:
/// capture reports the outage.
pub async fn sample_slot(url: String, slot: String, shutdown: CancellationToken) {
    let mut client = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);

    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let sampled = async {
            let connected = match client.take() {
                Some(client) => client,
                None => postgres::connect(&url).await?,
            };

            let found = catalog::slot_lag(&connected, &slot).await?;
            client = Some(connected);
            Ok::<_, PrimaryError>(found)
        };

        if let Ok(Ok(found)) = tokio::time::timeout(SLOT_TIMEOUT, sampled).await {
            show_slot(found.as_ref());
        }
    }
}

fn show_slot(slot: Option<&SlotLag>) {
    let status = slot.map_or(MISSING, |slot| slot.wal_status.as_str());

    for known in STATUSES {
        gauge!(telemetry::SLOT_STATUS, "status" => known).set(f64::from(known == status));
    }

    let is_active = slot.is_some_and(|slot| slot.active);
    gauge!(telemetry::SLOT_ACTIVE).set(f64::from(is_active));

    let Some(slot) = slot else { return };
    for (metric, bytes) in [
        (telemetry::SLOT_RETAINED, slot.retained),
        (telemetry::SLOT_UNACKNOWLEDGED, slot.unacknowledged),
        (telemetry::SLOT_LEFT, slot.left_to_limit),
    ] {
        if let Some(bytes) = bytes {
            gauge!(metric).set(bytes);
        }
    }
}
