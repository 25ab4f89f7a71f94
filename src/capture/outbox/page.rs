//! Reads the outbox page by page, and removes what the store has.

use jiff::Timestamp;
use postgres_types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::capture::CaptureError;
use crate::config::TableMappings;
use crate::domain::change::{Change, Datum, Operation, Origin, Tuple};
use crate::domain::lsn::{Lsn, Position};
use crate::domain::table::{Column, Table};
use crate::domain::window::Snapshot;

const PAGE: &str = include_str!("../../../sql/primary/outbox_page.sql");
const CLEAR: &str = include_str!("../../../sql/primary/outbox_clear.sql");

/// A page has this many changes at most, and values of about this many bytes.
const MAX_CHANGES: i64 = 1_000;
const MAX_BYTES: i64 = 1 << 20;

/// What the server says of itself with every page.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub snapshot: Snapshot,
    pub system_identifier: u64,
    /// Nothing on a standby.
    pub epoch: Option<Epoch>,
    /// Triggers have failed since that was last known.
    pub failed: bool,
    /// Some of the page's rows may not survive a crash yet.
    pub unflushed: bool,
    /// How far the outbox was cleared: a window's number and a row.
    pub cleared: Position,
}

/// A stretch of the server's life without crash or failover: both begin with another checkpoint or timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub timeline: u32,
    checkpoint: String,
}

pub(super) struct Page {
    pub server: Server,
    pub rows: Vec<Written>,
    /// The window goes on behind it.
    pub more: bool,
}

/// A row of the outbox.
pub(super) struct Written {
    pub seq: u64,
    transaction: u64,
    at: Timestamp,
    relation: String,
    operation: String,
    muted: bool,
    old: Option<Vec<Option<String>>>,
    new: Option<Vec<Option<String>>>,
}

/// The rows behind `after` that `from` does not see and `to` does; without `to`, all that are visible now.
pub(super) async fn read(
    client: &Client,
    from: &Snapshot,
    to: Option<&Snapshot>,
    after: u64,
) -> Result<Page, CaptureError> {
    let (from, to, after) = (from.as_str(), to.map(Snapshot::as_str), after as i64);
    let rows = client
        .query_typed(
            PAGE,
            &[
                (&from, Type::TEXT),
                (&to, Type::TEXT),
                (&after, Type::INT8),
                (&MAX_CHANGES, Type::INT8),
                (&MAX_BYTES, Type::INT8),
            ],
        )
        .await?;
    let first = rows.first().ok_or_else(|| CaptureError::Protocol("the primary answered without a row".into()))?;
    let server = server(first)?;
    let total: i64 = first.get::<_, Option<i64>>("total").unwrap_or(0);
    let rows = rows.iter().filter_map(|row| written(row).transpose()).collect::<Result<Vec<Written>, _>>()?;
    // A full page, or one that its size has cut short.
    let more = total == MAX_CHANGES || (rows.len() as i64) < total;
    Ok(Page { server, rows, more })
}

fn server(row: &Row) -> Result<Server, CaptureError> {
    let timeline = row.get::<_, Option<&str>>("timeline").map(|digits| u32::from_str_radix(digits, 16));
    let timeline = timeline.transpose().map_err(|_| CaptureError::Protocol("a timeline that is no number".into()))?;
    let epoch = timeline.map(|timeline| Epoch { timeline, checkpoint: row.get("checkpoint") });
    let number = row.get::<_, Option<i64>>("number").zip(row.get::<_, Option<i64>>("cleared"));
    let (number, seq) = number.unwrap_or_default();
    Ok(Server {
        snapshot: Snapshot::from(row.get::<_, &str>("snapshot")),
        system_identifier: row.get::<_, i64>("system_identifier") as u64,
        epoch,
        failed: row.get("failed"),
        unflushed: row.get::<_, Option<bool>>("unflushed").unwrap_or(false),
        cleared: Position { commit: Lsn(number as u64), ordinal: seq as u64 },
    })
}

fn written(row: &Row) -> Result<Option<Written>, CaptureError> {
    let Some(seq) = row.get::<_, Option<i64>>("seq") else { return Ok(None) };
    let transaction: &str = row.get("xid");
    Ok(Some(Written {
        seq: seq as u64,
        transaction: transaction.parse().map_err(|_| CaptureError::Protocol("a transaction without number".into()))?,
        at: row.get("at"),
        relation: row.get("relation"),
        operation: row.get("operation"),
        muted: row.get("muted"),
        old: row.get("old"),
        new: row.get("new"),
    }))
}

/// Removes the rows behind `after`, up to the position reached, that `seen` sees, and notes that position. How many there were.
pub(super) async fn clear(
    client: &Client,
    seen: &Snapshot,
    after: u64,
    reached: Position,
) -> Result<u64, CaptureError> {
    let (seq, seen, number, after) = (reached.ordinal as i64, seen.as_str(), reached.commit.0 as i64, after as i64);
    let parameters: [(&(dyn ToSql + Sync), Type); 4] =
        [(&seq, Type::INT8), (&seen, Type::TEXT), (&number, Type::INT8), (&after, Type::INT8)];
    let row = client.query_typed_one(CLEAR, &parameters).await?;
    Ok(row.get::<_, i64>(0) as u64)
}

/// A row of the outbox as the change that it stands for, in the window of this number.
pub(super) fn change(written: Written, number: u64, mappings: &TableMappings) -> Result<Change, CaptureError> {
    let unknown = |what: &str| CaptureError::Protocol(format!("row {} of the outbox has {what}", written.seq));
    let table = Table::by_name(&written.relation).ok_or_else(|| unknown("an unknown table"))?;
    let row = |values: Option<Vec<Option<String>>>| tuple(table, values, mappings);
    let lacking = || unknown("too few values");
    let operation = match written.operation.as_str() {
        "I" => Operation::Insert { new: row(written.new).ok_or_else(lacking)? },
        "U" => Operation::Update {
            old: Some(row(written.old).ok_or_else(lacking)?),
            new: row(written.new).ok_or_else(lacking)?,
        },
        "D" => Operation::Delete { old: row(written.old).ok_or_else(lacking)? },
        "T" => Operation::Truncate,
        _ => return Err(unknown("an unknown operation")),
    };
    Ok(Change {
        position: Position { commit: Lsn(number), ordinal: written.seq },
        origin: Origin::Outbox { transaction: written.transaction },
        committed_at: written.at,
        muted: written.muted,
        table,
        operation,
    })
}

fn tuple(table: Table, values: Option<Vec<Option<String>>>, mappings: &TableMappings) -> Option<Tuple> {
    let values = values.filter(|values| values.len() == table.columns().len())?;
    let mut tuple = Tuple::absent(table);
    for ((index, reference), value) in table.columns().iter().enumerate().zip(values) {
        let datum = match value {
            _ if mappings.computed(table, reference).is_some() => Datum::Absent,
            None => Datum::Null,
            Some(text) => match mappings.value(table, reference, &text) {
                Some(meaning) => Datum::text(meaning),
                None => Datum::text(text),
            },
        };
        tuple.set(Column(index as u8), datum);
    }
    Some(tuple)
}
