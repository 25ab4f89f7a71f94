//! Transitions that raised no event because a value is not known, counted by the reason.

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use serde::Serialize;

use super::statement::{Statements, arrays, from_row};
use super::unrouted::storable;
use super::{Result, Store};
use crate::domain::change::Change;
use crate::domain::table::ID;
use crate::sql::store as sql;

/// The ignored transitions of one reason, with the last one of them.
#[derive(Clone, Debug, Serialize)]
pub struct IgnoredTransitions {
    /// A name from a fixed set, such as `unknown_review_status`.
    pub reason: String,
    pub transitions: i64,
    pub table: String,
    pub row: String,
    /// The value that is not known.
    pub value: String,
    pub last_at: Timestamp,
}

from_row!(IgnoredTransitions {
    reason,
    transitions,
    table = "source",
    row = "source_id",
    value,
    last_at
});

impl IgnoredTransitions {
    /// One transition.
    pub fn new(reason: &str, change: &Change, value: &str) -> IgnoredTransitions {
        let (_, row) = change.operation.rows();
        let row = row.and_then(|row| row.text(ID)).unwrap_or_default();

        IgnoredTransitions {
            reason: reason.to_owned(),
            transitions: 1,
            table: change.table.name().to_owned(),
            row: storable(row),
            value: storable(value),
            last_at: change.committed_at,
        }
    }
}

/// Adds transitions, of which each reason occurs once.
pub async fn add_ignored(
    transaction: &impl GenericClient,
    ignored: &[IgnoredTransitions],
) -> Result<()> {
    if ignored.is_empty() {
        return Ok(());
    }

    let rows = arrays!(ignored, |of| (
        of.reason.as_str(),
        of.transitions,
        of.table.as_str(),
        of.row.as_str(),
        of.value.as_str(),
        of.last_at,
    ));

    let sql = sql::ignored_transition::ADD;
    transaction.run(sql, &rows.params()).await.map(drop)
}

/// Removes reasons for which no transition was ignored within `days`.
pub async fn remove_old(store: &Store, days: u32) -> Result<u64> {
    let sql = sql::ignored_transition::EXPIRE;
    store.run(sql, &[&(days as i32)]).await
}

impl Store {
    pub async fn ignored_transitions(&self) -> Result<Vec<IgnoredTransitions>> {
        self.fetch_all(sql::ignored_transition::LIST, &[]).await
    }
}
