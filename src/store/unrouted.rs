//! Events that could not be derived, routed or stored. They keep their change, so that they can be
//! derived again under the same ids.

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::statement::{Statements, arrays, from_row};
use super::{Result, Store};
use crate::domain::change::{Change, ChangeRecord, Operation};
use crate::domain::event::{EventKind, event_id};
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::table::ID;
use crate::sql::store as sql;

/// The most bytes of a change that are stored: with more, the event could not be delivered either.
const MAX_CHANGE: usize = 256 << 10;
/// The most characters of a detail or of a row's id.
const MAX_TEXT: usize = 300;

/// An event that is not delivered.
#[derive(Clone, Debug)]
pub struct Unrouted {
    pub id: Uuid,
    pub kind: String,
    /// A name from a fixed set, such as `label_not_found`.
    pub reason: String,
    /// What the primary or the store said.
    pub detail: String,
    pub table: String,
    pub row: String,
    pub occurred_at: Timestamp,
    pub commit: Option<Lsn>,
    pub ordinal: i64,
    /// None if the change is too long.
    pub change: Option<String>,
}

from_row!(Unrouted {
    id,
    kind,
    reason,
    detail,
    table = "source",
    row = "source_id",
    occurred_at,
    commit = "commit_lsn",
    ordinal,
    change
});

impl Unrouted {
    pub fn new(
        kind: EventKind,
        change: &Change,
        lineage: Lineage,
        reason: &str,
        detail: String,
    ) -> Unrouted {
        let row = match &change.operation {
            Operation::Insert { new }
            | Operation::Update { new, .. }
            | Operation::Replace { new, .. } => new.text(ID),
            Operation::Delete { old } => old.text(ID),
            Operation::Truncate => None,
        };

        let record = serde_json::to_string(&ChangeRecord::from(change)).ok();
        Unrouted {
            id: event_id(lineage.system_identifier, change, kind),
            kind: kind.as_str().to_owned(),
            reason: reason.to_owned(),
            detail: storable(&detail),
            table: change.table.name().to_owned(),
            row: storable(row.unwrap_or_default()),
            occurred_at: change.committed_at,
            commit: change.position.commit(),
            ordinal: change.position.ordinal() as i64,
            change: record
                .filter(|record| record.len() <= MAX_CHANGE)
                .map(|record| escaped(&record)),
        }
    }
}

/// Shortens a text to what every store accepts.
pub(super) fn storable(text: &str) -> String {
    text.chars()
        .take(MAX_TEXT)
        .flat_map(char::escape_default)
        .collect()
}

/// Escapes the characters of a JSON text that a store with another encoding may lack.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());

    for character in json.chars() {
        match character.is_ascii() {
            true => escaped.push(character),
            false => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    escaped.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }

    escaped
}

/// Which unrouted events are meant.
#[derive(Clone, Debug, Default)]
pub struct UnroutedSelection {
    pub reason: Option<String>,
    /// Recorded since this time.
    pub since: Option<Timestamp>,
}

/// A summary for the operator.
#[derive(Clone, Debug, Serialize)]
pub struct UnroutedCount {
    pub events: i64,
    pub oldest: Option<Timestamp>,
    pub reason: Option<String>,
}

from_row!(UnroutedCount {
    events,
    oldest,
    reason
});

impl Store {
    /// Returns the next unrouted events by id.
    pub async fn unrouted(
        &self,
        selection: &UnroutedSelection,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Unrouted>> {
        let UnroutedSelection { reason, since } = selection;
        let sql = sql::unrouted_event::LIST;
        self.fetch_all(sql, &[reason, since, &after, &limit]).await
    }

    /// Counts unrouted events, up to a limit.
    pub async fn count_unrouted(&self, limit: i64) -> Result<UnroutedCount> {
        self.fetch_one(sql::unrouted_event::COUNT, &[&limit]).await
    }

    pub async fn discard_unrouted(&self, ids: &[Uuid]) -> Result<u64> {
        self.run(sql::unrouted_event::REMOVE, &[&ids]).await
    }
}

/// Removes events that were recorded more than `days` ago. Returns how many.
pub async fn remove_old(store: &Store, days: u32) -> Result<u64> {
    const CHUNK: i64 = 10_000;
    let mut removed = 0;

    loop {
        let sql = sql::unrouted_event::EXPIRE;
        let count = store.run(sql, &[&(days as i32), &CHUNK]).await?;
        removed += count;

        if count == 0 {
            return Ok(removed);
        }
    }
}

pub async fn insert_unrouted(
    transaction: &impl GenericClient,
    unrouted: &[Unrouted],
) -> Result<()> {
    if unrouted.is_empty() {
        return Ok(());
    }

    let change = |event: &Unrouted| {
        let record = event
            .change
            .clone()
            .and_then(|change| RawValue::from_string(change).ok());
        record.map(postgres_types::Json)
    };

    let rows = arrays!(unrouted, |event| (
        event.id,
        event.kind.as_str(),
        event.reason.as_str(),
        event.table.as_str(),
        event.row.as_str(),
        event.occurred_at,
        event.commit,
        event.ordinal,
        event.detail.as_str(),
        change(event),
    ));

    transaction
        .run(sql::unrouted_event::INSERT, &rows.params())
        .await?;

    Ok(())
}

/// Removes an unrouted event that is stored as an event in the same transaction. Returns false if
/// another process has removed it.
pub async fn take_unrouted(transaction: &impl GenericClient, id: Uuid) -> Result<bool> {
    let sql = sql::unrouted_event::REMOVE;
    Ok(transaction.run(sql, &[&[id].as_slice()]).await? == 1)
}
