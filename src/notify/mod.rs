//! The stage that tells owners by e-mail what became of their webhooks, from a durable queue. Any number of replicas may run
//! it: a notice is sent by whoever holds its lease.
//!
//! SMTP knows no transactions. A notice is sent again if the process dies, or loses the store, between the mail server's yes
//! and the note that it was given, and then has the same Message-ID. Nothing else stands between the two.

mod mailer;
mod message;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use mailer::Mailer;

use crate::domain::event::UserId;
use crate::domain::notice::Notice;
use crate::store::notices::{self, Claimed, End};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Condition, Recurring};

/// Finds the e-mail address of a user on the primary; none where there is none.
pub type FindAddress = Arc<dyn Fn(UserId) -> BoxFuture<'static, anyhow::Result<Option<String>>> + Send + Sync>;

/// How long the notice of a replica that died waits at most before another takes it.
const LEASE: Duration = Duration::from_secs(15);
/// Between two renewals of a lease.
const RENEWAL: Duration = Duration::from_secs(4);
/// Between two looks when there was nothing to do.
const IDLE: Duration = Duration::from_secs(1);
/// Between two tries to send a notice: twice as long each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Between two tries to reach the store.
const LONGEST_STORE_WAIT: Duration = Duration::from_secs(30);
/// For the primary to say who is to be told.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(60);
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Notices that are logged at once, while there is no mail server.
const UNTOLD: i64 = 100;
/// Messages are for people.
const MAX_ERROR_CHARS: usize = 300;

pub struct Context {
    pub store: Store,
    pub find_address: FindAddress,
    /// None where mail is not configured: notices are logged and kept.
    pub mailer: Option<Mailer>,
}

/// Why owners could not be told, by cause: the server may word it anew each time, and the tries are closer than a calm.
type Faults = BTreeMap<&'static str, Recurring>;

/// What came of trying to tell an owner.
enum Told {
    Sent,
    NoAddress,
    Failed {
        cause: &'static str,
        error: String,
    },
    /// Another has the notice.
    LeaseLost,
}

/// Runs until `stop`. A mail under way is finished first.
pub async fn run(context: Context, stop: CancellationToken) -> anyhow::Result<()> {
    let mut faults = Faults::new();
    let mut counted_at = None;
    let mut store_wait = FIRST_WAIT;
    let unreadable = Condition::new();
    while !stop.is_cancelled() {
        let step = match &context.mailer {
            Some(mailer) => context.send_next(mailer, &mut faults).await,
            None => context.log_next().await,
        };
        let pause = match step {
            Ok(worked) => {
                store_wait = FIRST_WAIT;
                if unreadable.ends() {
                    tracing::info!("notices can be read again");
                }
                if worked { Duration::ZERO } else { IDLE }
            }
            Err(error) => {
                if unreadable.begins() {
                    tracing::warn!(%error, "notices cannot be read now; trying again until they can");
                }
                store_wait = (store_wait * 2).min(LONGEST_STORE_WAIT);
                store_wait
            }
        };
        if counted_at.is_none_or(|at: Instant| at.elapsed() >= COUNT_INTERVAL) {
            counted_at = Some(Instant::now());
            if let Ok(pending) = notices::count_pending(&context.store).await {
                metrics::gauge!(telemetry::NOTICES_PENDING).set(pending as f64);
            }
        }
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
    Ok(())
}

impl Context {
    /// Sends the notice that has been due longest. False where there is none.
    async fn send_next(&self, mailer: &Mailer, faults: &mut Faults) -> Result<bool, StoreError> {
        let Some(claimed) = notices::claim(&self.store, LEASE).await? else { return Ok(false) };
        let notice = &claimed.notice;
        let told = tokio::select! {
            biased;
            told = self.tell(mailer, notice) => told,
            () = self.lose_lease(&claimed) => Told::LeaseLost,
        };
        match told {
            Told::Sent => {
                self.end(notice, End::Sent).await;
                metrics::counter!(telemetry::NOTICES_SENT, "kind" => notice.kind.as_str()).increment(1);
                tracing::info!(notice = %notice.id, webhook = %notice.webhook, kind = notice.kind.as_str(), "owner told");
            }
            Told::NoAddress => {
                self.end(notice, End::NoAddress).await;
                metrics::counter!(telemetry::NOTICE_FAILURES, "cause" => "no_address").increment(1);
                tracing::info!(notice = %notice.id, webhook = %notice.webhook, user = %notice.user, kind = notice.kind.as_str(),
                    "the owner has no usable e-mail address and is not told");
            }
            Told::Failed { cause, error } => {
                metrics::counter!(telemetry::NOTICE_FAILURES, "cause" => cause).increment(1);
                if faults.entry(cause).or_default().is_news() {
                    tracing::warn!(notice = %notice.id, webhook = %notice.webhook, cause, error,
                        "the owner of a webhook cannot be told now; trying again until the mail server takes it");
                }
                notices::retry(&self.store, &claimed, wait_after(claimed.tries), &error).await?;
            }
            Told::LeaseLost => tracing::info!(notice = %notice.id, "another replica has taken the notice over"),
        }
        Ok(true)
    }

    async fn tell(&self, mailer: &Mailer, notice: &Notice) -> Told {
        let found = tokio::time::timeout(ADDRESS_TIMEOUT, (self.find_address)(notice.user.clone())).await;
        let address = match found {
            Ok(Ok(Some(address))) => address,
            Ok(Ok(None)) => return Told::NoAddress,
            Ok(Err(error)) => return Told::failed("lookup", &format!("{error:#}")),
            Err(_) => return Told::failed("lookup", "the primary does not answer"),
        };
        let Some(to) = message::mailbox(&address) else { return Told::NoAddress };
        match mailer.send(notice, to).await {
            Ok(()) => Told::Sent,
            Err(error) => Told::failed(error.cause(), &error.to_string()),
        }
    }

    /// Renews the lease; returns when it is lost.
    async fn lose_lease(&self, claimed: &Claimed) {
        let mut until = Instant::now() + LEASE;
        loop {
            tokio::time::sleep(RENEWAL).await;
            let asked_at = Instant::now();
            match tokio::time::timeout_at(until, notices::extend(&self.store, claimed, LEASE)).await {
                Ok(Ok(true)) => until = asked_at + LEASE,
                Ok(Ok(false)) | Err(_) => return,
                // The store may be back in time.
                Ok(Err(_)) => {}
            }
        }
    }

    /// Notes the end, for as long as it takes: what has been sent must not be sent again.
    async fn end(&self, notice: &Notice, end: End) {
        let mut wait = Duration::from_millis(50);
        let failing = Condition::new();
        while let Err(error) = notices::end(&self.store, notice.id, end).await {
            if failing.begins() {
                tracing::warn!(notice = %notice.id, %error, "the end of a notice cannot be noted now; trying until it can");
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RENEWAL);
        }
    }

    /// Logs what nobody can be told of, once, and keeps it.
    async fn log_next(&self) -> Result<bool, StoreError> {
        let untold = notices::mark_unsendable(&self.store, "mail.smtp_url and mail.from are not set", UNTOLD).await?;
        for Notice { id, kind, webhook, user, name, reason, .. } in &untold {
            let kind = kind.as_str();
            tracing::info!(notice = %id, %webhook, %user, name, kind, reason,
                "the owner of a webhook is not told: mail.smtp_url and mail.from are not set");
        }
        Ok(!untold.is_empty())
    }
}

impl Told {
    fn failed(cause: &'static str, error: &str) -> Told {
        // Postgres has no NUL, and a line of the log no line break.
        let error = error.chars().filter(|letter| !letter.is_control()).take(MAX_ERROR_CHARS).collect();
        Told::Failed { cause, error }
    }
}

fn wait_after(tries: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_second_to_five_minutes() {
        let waits: Vec<u64> = [0, 1, 2, 8, 9, 31, 32, u32::MAX].map(|tries| wait_after(tries).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 256, 300, 300, 300, 300]);
    }
}
