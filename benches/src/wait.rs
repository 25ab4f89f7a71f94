//! Waits for a condition by polling.

use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::time::{MissedTickBehavior, interval};

/// How long to wait for a condition that only the machine's speed can delay.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Each poll is a query, which takes processor time from what is measured.
const POLL: Duration = Duration::from_millis(20);

/// Waits until `condition` returns true. Fails with the first error, and after [`WAIT_LIMIT`].
pub async fn eventually<F>(what: &str, condition: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    eventually_within(WAIT_LIMIT, what, condition).await
}

/// Like [`eventually`], with another limit.
pub async fn eventually_within<F>(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let started = Instant::now();

    while !condition().await? {
        if started.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }

        tokio::time::sleep(POLL).await;
    }

    Ok(())
}

/// Ticks at a steady rate. Late ticks are not made up for.
pub fn steady(per_second: f64) -> tokio::time::Interval {
    let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
