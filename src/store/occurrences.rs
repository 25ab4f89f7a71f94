//! Walhook's own occurrences for the operator's webhooks. They are found in the tables that record
//! them, so that nothing is written where they happen.

use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::statement::{ColumnValue, Params, Statements, from_row};
use super::{Result, Store, StoreError, Transaction};
use crate::domain::notice::NoticeKind;
use crate::domain::occurrence::{Occurrence, OccurrenceKind};
use crate::sql::store as sql;

/// Rows that one search reports, of each kind: their locks are short, and the others follow.
const ROWS: i64 = 5_000;
/// The items that an occurrence lists. Others are counted only.
const ITEMS: i64 = 20;
/// With more undelivered occurrences, searches are rare, and each counts more.
const MANY: i64 = 100;
const DAYS_KEPT: i32 = 1;

/// How often occurrences are looked for.
#[derive(Clone, Copy, Debug)]
pub struct SearchPace {
    pub usual: Duration,
    /// While many wait to be delivered.
    pub congested: Duration,
}

/// An occurrence that this process has leased.
#[derive(Clone, Debug)]
pub struct ClaimedOccurrence {
    pub occurrence: Occurrence,
    lease: Uuid,
}

from_row!(Occurrence {
    id,
    kind,
    at,
    data,
    attempt
});
from_row!(ClaimedOccurrence {
    occurrence: Occurrence::from_row,
    lease
});

impl ColumnValue for OccurrenceKind {
    type Stored = String;

    fn from_stored(stored: String) -> Result<Self, String> {
        stored.parse()
    }
}

struct Taken {
    count: i64,
    items: Option<String>,
}

from_row!(Taken { count, items });

/// Looks for occurrences that are not reported yet, if it is time to, and stores one of each kind
/// for each URL. Without URLs, they are only marked as reported.
pub async fn search(store: &Store, urls: &[String], pace: SearchPace) -> Result<()> {
    let usual = pace.usual.as_secs_f64();
    let congested = pace.congested.as_secs_f64();
    let turn: &Params<'_> = &[&usual, &MANY, &congested];

    store
        .transaction(async |transaction| {
            if transaction.run(sql::occurrence::BEGIN_SEARCH, turn).await? == 0 {
                return Ok(());
            }

            for kind in OccurrenceKind::ALL {
                let taken = take(transaction, *kind).await?;
                if taken.count > 0 {
                    insert(transaction, *kind, taken, urls).await?;
                }
            }

            let gone: &Params<'_> = &[&urls, &DAYS_KEPT];
            transaction.run(sql::occurrence::EXPIRE, gone).await?;
            Ok::<_, StoreError>(())
        })
        .await
}

async fn take(transaction: &Transaction<'_>, kind: OccurrenceKind) -> Result<Taken> {
    let warning = NoticeKind::Warning.as_str();
    let disabled = NoticeKind::Disabled.as_str();
    let limits: &Params<'_> = &[&ROWS, &ITEMS];
    let warnings: &Params<'_> = &[&ROWS, &ITEMS, &warning];
    let disablements: &Params<'_> = &[&ROWS, &ITEMS, &disabled];

    let (statement, params) = match kind {
        OccurrenceKind::Failing => (sql::occurrence::TAKE_NOTICES, warnings),
        OccurrenceKind::Disabled => (sql::occurrence::TAKE_NOTICES, disablements),
        OccurrenceKind::PermanentlyFailed => (sql::occurrence::TAKE_FAILURES, limits),
        OccurrenceKind::GapOpened => (sql::occurrence::TAKE_GAPS, limits),
        OccurrenceKind::GapRepaired => (sql::occurrence::TAKE_REPAIRS, limits),
        OccurrenceKind::Unrouted => (sql::occurrence::TAKE_UNROUTED, limits),
    };

    transaction.fetch_one(statement, params).await
}

async fn insert(
    transaction: &Transaction<'_>,
    kind: OccurrenceKind,
    taken: Taken,
    urls: &[String],
) -> Result<()> {
    let items = RawValue::from_string(taken.items.unwrap_or_else(|| "[]".to_owned()))
        .map_err(|error| StoreError::Corrupt(format!("items of occurrences: {error}")))?;
    let data = json!({ "count": taken.count, "items": items }).to_string();
    let kind = kind.as_str();
    let params: &Params<'_> = &[&Uuid::now_v7(), &kind, &data, &urls];
    transaction
        .run(sql::occurrence::INSERT, params)
        .await
        .map(drop)
}

/// Leases the occurrence of a URL that has been due longest, for `length`.
pub async fn claim(
    store: &Store,
    url: &str,
    length: Duration,
) -> Result<Option<ClaimedOccurrence>> {
    let params: &Params<'_> = &[&url, &Uuid::now_v7(), &length.as_secs_f64()];
    store.fetch_optional(sql::occurrence::CLAIM, params).await
}

/// Releases the occurrence, to be sent again after `wait`.
pub async fn retry(
    store: &Store,
    url: &str,
    claimed: &ClaimedOccurrence,
    wait: Duration,
) -> Result<()> {
    let id = claimed.occurrence.id;
    let params: &Params<'_> = &[&id, &url, &claimed.lease, &wait.as_secs_f64()];
    store.run(sql::occurrence::RETRY, params).await.map(drop)
}

/// Removes an occurrence that was delivered, or that is given up.
pub async fn remove(store: &Store, url: &str, claimed: &ClaimedOccurrence) -> Result<()> {
    let params: &Params<'_> = &[&claimed.occurrence.id, &url];
    store.run(sql::occurrence::REMOVE, params).await.map(drop)
}
