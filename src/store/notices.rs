//! The queue of notices to owners. Whoever sends one holds a lease on the store's clock.

use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;

use super::{Result, Store, StoreError};
use crate::domain::event::UserId;
use crate::domain::notice::{Notice, NoticeKind};

/// More are not counted.
const MOST_COUNTED: i64 = 100_000;

/// A notice in this process's hands.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub notice: Notice,
    pub lease: Uuid,
    /// Tries to send it that failed, and what was wrong with the last of them.
    pub tries: u32,
    pub last_error: Option<String>,
}

/// How a notice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Sent,
    /// Its owner has no e-mail address.
    NoAddress,
}

impl End {
    const fn as_str(self) -> &'static str {
        match self {
            End::Sent => "sent",
            End::NoAddress => "no_address",
        }
    }
}

/// Leases the notice that has been due longest, for `length`.
pub async fn claim(store: &Store, length: Duration) -> Result<Option<Claimed>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_claim.sql")).await?;
    let lease = Uuid::now_v7();
    let row = connection.query_opt(&statement, &[&lease, &length.as_secs_f64()]).await?;
    let claimed = |row: Row| {
        let tries = u32::try_from(row.get::<_, i32>("tries")).unwrap_or(0);
        Ok(Claimed { notice: notice(&row)?, lease, tries, last_error: row.get("last_error") })
    };
    row.map(claimed).transpose()
}

/// Makes the lease last for `length` from now on. False where it is lost.
pub async fn extend(store: &Store, claimed: &Claimed, length: Duration) -> Result<bool> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_extend.sql")).await?;
    let rows = connection.execute(&statement, &[&claimed.notice.id, &claimed.lease, &length.as_secs_f64()]).await?;
    Ok(rows > 0)
}

/// Gives the notice back, to be sent after `wait`. Changes nothing where the lease is lost.
pub async fn retry(store: &Store, claimed: &Claimed, wait: Duration, error: &str) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_retry.sql")).await?;
    connection.execute(&statement, &[&claimed.notice.id, &claimed.lease, &wait.as_secs_f64(), &error]).await?;
    Ok(())
}

/// Ends the notice, whoever holds it.
pub async fn end(store: &Store, notice: Uuid, end: End) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_end.sql")).await?;
    connection.execute(&statement, &[&notice, &end.as_str()]).await?;
    Ok(())
}

/// Up to `limit` notices that cannot be sent, for the reason `error`, and that nobody has been told of yet.
pub async fn untold(store: &Store, error: &str, limit: i64) -> Result<Vec<Notice>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_tell.sql")).await?;
    let rows = connection.query(&statement, &[&error, &limit]).await?;
    rows.iter().map(notice).collect()
}

/// How many are still to be sent.
pub async fn count_pending(store: &Store) -> Result<u64> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_count.sql")).await?;
    let row = connection.query_one(&statement, &[&MOST_COUNTED]).await?;
    Ok(row.get::<_, i64>(0) as u64)
}

/// Forgets what is older than `retention_days`, and warnings of yesterday; says how many of those were never sent.
pub async fn remove_old(store: &Store, retention_days: u32) -> Result<u64> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/notice_expire.sql")).await?;
    let days = i32::try_from(retention_days).unwrap_or(i32::MAX);
    Ok(connection.query_one(&statement, &[&days]).await?.get::<_, i64>(0) as u64)
}

fn notice(row: &Row) -> Result<Notice> {
    let kind: &str = row.get("kind");
    let unknown = || StoreError::Corrupt(format!("a notice of kind `{kind}`"));
    let number = |name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or(0);
    Ok(Notice {
        id: row.get("id"),
        kind: NoticeKind::ALL.iter().copied().find(|known| known.as_str() == kind).ok_or_else(unknown)?,
        at: row.get("at"),
        webhook: row.get("webhook_id"),
        user: UserId(row.get::<_, &str>("user_id").into()),
        name: row.get("name"),
        url: row.get("url"),
        reason: row.get("reason"),
        failures: number("failures"),
        threshold: number("threshold"),
    })
}
