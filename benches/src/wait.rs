//! Waits for a condition by polling.

use std::time::{Duration, Instant};

use anyhow::bail;

/// How long a condition may take that nothing but the machine's speed delays.
pub const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Waits until `question` is answered with true. Fails with the first error, and after [`PATIENCE`].
pub async fn eventually<F>(what: &str, question: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    eventually_within(PATIENCE, what, question).await
}

/// Like [`eventually`], with another limit.
pub async fn eventually_within<F>(limit: Duration, what: &str, mut question: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let started = Instant::now();
    while !question().await? {
        if started.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
