//! The queue of notices to owners. A sender holds a lease that ends by the store's clock.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::statement::{ColumnValue, Statements, from_row};
use super::{Result, Store};
use crate::domain::notice::{Notice, NoticeKind};
use crate::sql::store as sql;

/// Counting stops here: a longer queue needs the same action.
const MAX_COUNTED: i64 = 100_000;

/// A notice that this process has leased.
#[derive(Clone, Debug)]
pub struct ClaimedNotice {
    pub notice: Notice,
    pub lease: Uuid,
    /// How many times sending it has failed.
    pub tries: u32,
    /// Whether what it reports is still so: the webhook exists, and has neither been activated
    /// again nor recovered.
    pub holds: bool,
    /// Why it failed the last time.
    pub last_error: Option<String>,
}

/// How a notice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Sent,
    /// The owner has no e-mail address.
    NoAddress,
    /// What it reports is no longer so.
    Outdated,
}

impl End {
    const fn as_str(self) -> &'static str {
        match self {
            End::Sent => "sent",
            End::NoAddress => "no_address",
            End::Outdated => "outdated",
        }
    }
}

from_row!(ClaimedNotice {
    notice: Notice::from_row,
    lease,
    tries,
    holds,
    last_error
});

from_row!(Notice { id, kind, at, failing_since, webhook = "webhook_id", user = "user_id", name, url, reason, failures, threshold });

impl ColumnValue for NoticeKind {
    type Stored = String;

    fn from_stored(stored: String) -> Result<Self, String> {
        let kind = NoticeKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.as_str() == stored);
        kind.ok_or_else(|| format!("`{stored}` is not a kind of notice"))
    }
}

/// Returns when the failures began that disabled a webhook last. None if it was never disabled, or
/// longer ago than notices are kept.
pub async fn last_failing_since(store: &Store, webhook: Uuid) -> Result<Option<Timestamp>> {
    store
        .fetch_optional(sql::notice::LAST_DISABLED, &[&webhook])
        .await
}

/// Leases the notice that has been due longest, for `length`.
pub async fn claim(store: &Store, length: Duration) -> Result<Option<ClaimedNotice>> {
    store
        .fetch_optional(
            sql::notice::CLAIM,
            &[&Uuid::now_v7(), &length.as_secs_f64()],
        )
        .await
}

/// Extends the lease to `length` from now. Returns false if another process holds it.
pub async fn extend(store: &Store, claimed: &ClaimedNotice, length: Duration) -> Result<bool> {
    Ok(store
        .run(
            sql::notice::EXTEND,
            &[&claimed.notice.id, &claimed.lease, &length.as_secs_f64()],
        )
        .await?
        > 0)
}

/// Releases the notice, to be sent again after `wait`. Does nothing if another process holds the
/// lease.
pub async fn retry(
    store: &Store,
    claimed: &ClaimedNotice,
    wait: Duration,
    error: &str,
) -> Result<()> {
    store
        .run(
            sql::notice::RETRY,
            &[
                &claimed.notice.id,
                &claimed.lease,
                &wait.as_secs_f64(),
                &error,
            ],
        )
        .await?;

    Ok(())
}

/// Ends the notice, regardless of its lease: a notice that was sent must not be sent again.
pub async fn end(store: &Store, notice: Uuid, end: End) -> Result<()> {
    store
        .run(sql::notice::END, &[&notice, &end.as_str()])
        .await?;
    Ok(())
}

/// Returns up to `limit` notices that cannot be sent, each only once, and stores `error` as the
/// reason.
pub async fn mark_unsendable(store: &Store, error: &str, limit: i64) -> Result<Vec<Notice>> {
    store
        .fetch_all(sql::notice::MARK_UNSENDABLE, &[&error, &limit])
        .await
}

/// Returns how many notices are still to be sent.
pub async fn count_pending(store: &Store) -> Result<i64> {
    store.fetch_one(sql::notice::COUNT, &[&MAX_COUNTED]).await
}

/// Removes notices older than `retention_days`, and unsent warnings older than a day. Returns how
/// many had not been sent.
pub async fn remove_old(store: &Store, retention_days: u32) -> Result<u64> {
    let days = i32::try_from(retention_days).unwrap_or(i32::MAX);
    store.fetch_one(sql::notice::EXPIRE, &[&days]).await
}
