//! E-mails webhook owners about warnings and disablements, from a durable queue. Any number of
//! replicas may run this stage: a notice is sent by the replica that holds its lease.
//!
//! SMTP has no transactions. A notice is sent again, with the same Message-ID, if the process dies
//! or loses the store after the mail server has accepted the mail and before that is recorded. No
//! other step comes between these two.

mod mailer;
mod message;
pub mod operator;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

pub use mailer::Mailer;

use crate::domain::event::UserId;
use crate::domain::notice::Notice;
use crate::failpoint::failpoint;
use crate::retry::Backoff;
use crate::store::notices::{self, ClaimedNotice, End};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity, Recurring};

/// Finds the e-mail address of a user on the primary; None if the user has none.
pub type FindAddress =
    Arc<dyn Fn(UserId) -> BoxFuture<'static, anyhow::Result<Option<String>>> + Send + Sync>;

/// The longest time after which another replica takes over the notice of a replica that died.
const LEASE: Duration = Duration::from_secs(15);
/// Several renewals fit into a lease, so that one that fails does not lose it.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(4);
/// Between two polls of an empty queue.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts to send a notice.
const RETRIES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// Between two attempts to read the store.
const STORE_RETRIES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Notices that are logged in one batch while mail is not configured.
const LOG_BATCH: i64 = 100;
/// Error messages are for people to read, in the store and in the server log.
const MAX_ERROR_CHARS: usize = 300;

/// What the stage needs.
pub struct Notifier {
    pub store: Store,
    pub find_address: FindAddress,
    /// None if mail is not configured: notices are then logged and kept.
    pub mailer: Option<Mailer>,
}

/// Why a notice could not be sent. It will be retried.
struct Failed {
    /// The `cause` label of the metric.
    cause: &'static str,
    error: String,
}

/// Sends notices until `stop`. A mail that is being sent is finished first.
pub async fn run(notifier: Notifier, stop: CancellationToken) -> anyhow::Result<()> {
    let failures = Recurring::new();
    let mut counted_at = None;
    let mut store_retries = STORE_RETRIES;
    let reading = Activity::new("reading notices");

    while !stop.is_cancelled() {
        let step = match &notifier.mailer {
            Some(mailer) => notifier.send_next(mailer, &failures).await,
            None => notifier.log_next().await,
        };

        let pause = match step {
            Ok(worked) => {
                store_retries.reset();
                reading.succeeded();

                if worked {
                    Duration::ZERO
                } else {
                    POLL_INTERVAL
                }
            }
            Err(error) => {
                reading.failed(&error);
                store_retries.next_wait()
            }
        };

        if counted_at.is_none_or(|at: Instant| at.elapsed() >= COUNT_INTERVAL) {
            counted_at = Some(Instant::now());

            if let Ok(pending) = notifier.count_pending().await {
                metrics::gauge!(telemetry::NOTICES_PENDING).set(pending as f64);
            }
        }

        stop.run_until_cancelled(sleep(pause)).await;
    }

    Ok(())
}

impl Notifier {
    /// Counts the notices that wait for the mail server. Without one, notices are kept but wait for
    /// nothing.
    async fn count_pending(&self) -> Result<i64, StoreError> {
        if self.mailer.is_none() {
            Ok(0)
        } else {
            notices::count_pending(&self.store).await
        }
    }

    /// Sends the notice that has been due longest. Returns false if no notice is due.
    async fn send_next(&self, mailer: &Mailer, failures: &Recurring) -> Result<bool, StoreError> {
        let Some(claimed) = notices::claim(&self.store, LEASE).await? else {
            return Ok(false);
        };

        let notice = &claimed.notice;
        let Notice {
            id,
            kind,
            webhook,
            user,
            ..
        } = notice;

        let kind = kind.as_str();
        failpoint!("notice_claimed_mail_not_sent")?;

        if !claimed.holds {
            self.record_end(&claimed, End::Outdated).await;
            tracing::info!(notice = %id, %webhook, kind, "a notice is not sent: what it reports is no longer so");
            return Ok(true);
        }

        let sent = tokio::select! {
            biased;
            sent = self.send(mailer, &claimed) => sent,
            () = self.keep_lease(&claimed) => Ok(None),
        };

        match sent {
            Ok(None) => tracing::info!(notice = %id, "another replica has taken over the notice"),
            Ok(Some(end)) => {
                self.record_end(&claimed, end).await;

                if end == End::Sent {
                    metrics::counter!(telemetry::NOTICES_SENT, "kind" => kind).increment(1);
                    tracing::info!(notice = %id, %webhook, kind, "webhook owner notified");
                } else {
                    metrics::counter!(telemetry::NOTICE_FAILURES, "cause" => "no_address")
                        .increment(1);
                    tracing::info!(notice = %id, %webhook, %user, kind, "webhook owner has no valid e-mail address");
                }
            }
            Err(Failed { cause, error }) => {
                metrics::counter!(telemetry::NOTICE_FAILURES, "cause" => cause).increment(1);

                // The texts of errors are not compared, because servers may word the same error
                // differently each time.
                if failures.must_log(cause) {
                    tracing::warn!(notice = %id, %webhook, cause, error, "webhook owner cannot be notified; retrying");
                }

                failpoint!("mail_rejected_retry_not_stored")?;

                notices::retry(
                    &self.store,
                    &claimed,
                    RETRIES.wait_after(claimed.tries),
                    &error,
                )
                .await?;
            }
        }

        Ok(true)
    }

    /// Returns how the notice ended. None if another replica has taken it over.
    async fn send(&self, mailer: &Mailer, claimed: &ClaimedNotice) -> Result<Option<End>, Failed> {
        let notice = &claimed.notice;
        let found = timeout(ADDRESS_TIMEOUT, (self.find_address)(notice.user.clone())).await;
        let found = found.map_err(|_| Failed::new("lookup", "the primary does not respond"))?;
        let address = found.map_err(|error| Failed::new("lookup", &format!("{error:#}")))?;
        let Some(to) = address.as_deref().and_then(message::mailbox) else {
            return Ok(Some(End::NoAddress));
        };

        // The lease may have ended meanwhile: the process may have been suspended.
        match notices::extend(&self.store, claimed, LEASE).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(Failed::new("store", &error.to_string())),
        }

        mailer
            .send(notice, to)
            .await
            .map_err(|error| Failed::new(error.cause(), &error.to_string()))?;
        Ok(Some(End::Sent))
    }

    /// Renews the lease. Returns when it is lost.
    async fn keep_lease(&self, claimed: &ClaimedNotice) {
        let mut until = Instant::now() + LEASE;

        loop {
            sleep(RENEWAL_INTERVAL).await;
            let renewed_at = Instant::now();

            match timeout_at(until, notices::extend(&self.store, claimed, LEASE)).await {
                Ok(Ok(true)) => until = renewed_at + LEASE,
                Ok(Ok(false)) | Err(_) => return,
                // The store may be back before the lease ends.
                Ok(Err(_)) => {}
            }
        }
    }

    /// Records the end of a notice, and renews the lease until then. Retries until the store
    /// accepts it: a notice that was sent must not be sent again.
    async fn record_end(&self, claimed: &ClaimedNotice, end: End) {
        let renewal = async {
            self.keep_lease(claimed).await;
            // The end counts even if the lease is lost.
            std::future::pending().await
        };

        tokio::select! {
            () = self.try_record_end(&claimed.notice, end) => {}
            () = renewal => {}
        }
    }

    async fn try_record_end(&self, notice: &Notice, end: End) {
        let _ = failpoint!("mail_accepted_notice_not_ended");
        let mut retries = Backoff::new(Duration::from_millis(50), RENEWAL_INTERVAL);
        let recording = Activity::new("recording the end of a notice");

        while let Err(error) = notices::end(&self.store, notice.id, end).await {
            recording.failed(&format_args!("notice {}: {error}", notice.id));
            retries.wait().await;
        }
    }

    /// Logs notices that cannot be sent because mail is not configured, each once, and keeps them.
    async fn log_next(&self) -> Result<bool, StoreError> {
        let unsent = notices::mark_unsendable(
            &self.store,
            "mail.smtp_url and mail.from are not set",
            LOG_BATCH,
        )
        .await?;

        for notice in &unsent {
            tracing::info!(
                notice = %notice.id,
                webhook = %notice.webhook,
                user = %notice.user,
                name = notice.name,
                kind = notice.kind.as_str(),
                reason = notice.reason,
                "webhook owner not notified: mail.smtp_url and mail.from are not set"
            );
        }

        Ok(!unsent.is_empty())
    }
}

impl Failed {
    fn new(cause: &'static str, error: &str) -> Failed {
        // Postgres text cannot hold NUL, and line breaks would split a log line.
        let error = error
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_ERROR_CHARS)
            .collect();
        Failed { cause, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_waits_double_from_a_second_to_five_minutes() {
        let waits: Vec<u64> = [0, 1, 2, 8, 9, 31, 32, u32::MAX]
            .map(|tries| RETRIES.wait_after(tries).as_secs())
            .into();
        assert_eq!(waits, [1, 2, 4, 256, 300, 300, 300, 300]);
    }
}
