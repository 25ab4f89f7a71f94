//! Notifies the operator's webhooks of Walhook's own occurrences, from a durable queue. Any number of
//! replicas may run this stage.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::domain::backoff::RetrySchedule;
use crate::domain::occurrence::Occurrence;
use crate::store::occurrences::{self, ClaimedOccurrence, SearchPace};
use crate::store::{Store, StoreError};
use crate::telemetry::{Activity, recurring};
use crate::vault::random_bytes;

/// Makes one attempt to send an occurrence to a URL. The inner error is why it was not accepted.
pub type PostOccurrence = Arc<
    dyn Fn(Arc<str>, Occurrence) -> BoxFuture<'static, anyhow::Result<Result<(), String>>>
        + Send
        + Sync,
>;

/// Occurrences of one kind within this time are one request.
const SEARCH: SearchPace = SearchPace {
    usual: Duration::from_secs(10),
    congested: Duration::from_secs(600),
};
/// Between two polls of the store.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longer than an attempt takes, with any time-out that is usual.
const LEASE_MARGIN: Duration = Duration::from_secs(10);

/// What the stage needs.
pub struct OperatorNotifier {
    pub store: Store,
    pub urls: Vec<String>,
    pub post: PostOccurrence,
    pub schedule: RetrySchedule,
    /// The time limit of an attempt.
    pub timeout: Duration,
}

impl OperatorNotifier {
    /// Looks for occurrences and sends them until `stop`. A request in flight is finished first. A
    /// webhook that does not answer delays no other.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut tasks = vec![self.repeat(None, &stop).boxed()];
        tasks.extend(
            self.urls
                .iter()
                .map(|url| self.repeat(Some(url), &stop).boxed()),
        );

        join_all(tasks).await;
        Ok(())
    }

    /// Sends the occurrences of a URL, or looks for new ones, until `stop`.
    async fn repeat(&self, url: Option<&str>, stop: &CancellationToken) {
        let activity = Activity::new(match url {
            Some(_) => "reading occurrences",
            None => "looking for occurrences",
        });

        while !stop.is_cancelled() {
            let step = match url {
                Some(url) => self.send_next(url).await,
                None => self.search().await,
            };

            match step {
                Ok(worked) => {
                    activity.succeeded();

                    if worked {
                        continue;
                    }
                }
                Err(error) => activity.failed(&error),
            }

            stop.run_until_cancelled(sleep(POLL_INTERVAL)).await;
        }
    }

    async fn search(&self) -> Result<bool, StoreError> {
        occurrences::search(&self.store, &self.urls, SEARCH).await?;
        Ok(false)
    }

    /// Sends the occurrence that has been due longest. Returns false if none is due.
    async fn send_next(&self, url: &str) -> Result<bool, StoreError> {
        let lease = self.timeout + LEASE_MARGIN;
        let Some(claimed) = occurrences::claim(&self.store, url, lease).await? else {
            return Ok(false);
        };

        let Occurrence { id, kind, .. } = claimed.occurrence;
        let kind = kind.as_str();
        let posted = (self.post)(url.into(), claimed.occurrence.clone()).await;
        let refused = posted
            .unwrap_or_else(|error| Err(format!("{error:#}")))
            .err();

        match refused {
            None => {
                occurrences::remove(&self.store, url, &claimed).await?;
                tracing::info!(occurrence = %id, kind, "operator notified");
            }
            Some(error) => self.put_off(url, &claimed, &error).await?,
        }

        Ok(true)
    }

    async fn put_off(
        &self,
        url: &str,
        claimed: &ClaimedOccurrence,
        error: &str,
    ) -> Result<(), StoreError> {
        let Occurrence {
            id, kind, attempt, ..
        } = claimed.occurrence;
        let kind = kind.as_str();
        let random = f64::from(u16::from_le_bytes(random_bytes::<2>())) / f64::from(u16::MAX);

        match self.schedule.wait_after(attempt, random) {
            Some(wait) => {
                recurring!(warn, occurrence = %id, kind, error, "an operator's webhook does not accept an occurrence; retrying");
                occurrences::retry(&self.store, url, claimed, wait).await
            }
            None => {
                tracing::error!(occurrence = %id, kind, error, data = claimed.occurrence.data, "an operator's webhook did not accept an occurrence: it is given up");
                occurrences::remove(&self.store, url, claimed).await
            }
        }
    }
}
