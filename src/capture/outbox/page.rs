//! Reads the outbox page by page, and deletes rows whose events are stored.

use jiff::Timestamp;
use postgres_types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Row};

use crate::capture::CaptureError;
use crate::config::TableMappings;
use crate::domain::change::{Change, Operation, Tuple};
use crate::domain::extra::Extra;
use crate::domain::lsn::Lineage;
use crate::domain::position::Position;
use crate::domain::read_pages::Contents;
use crate::domain::table::{Column, Table};
use crate::domain::window::Snapshot;
use crate::sql::primary as sql;

/// The most changes of a page, and the size of its values at which it ends.
const MAX_CHANGES: i64 = 1_000;
const MAX_BYTES: i64 = 1 << 20;

/// The state of the server and of the outbox, read with every page.
#[derive(Clone, Debug)]
pub(super) struct ServerState {
    pub snapshot: Snapshot,
    pub system_identifier: u64,
    /// None on a standby.
    pub epoch: Option<Epoch>,
    /// Triggers have failed since failures were last acknowledged.
    pub failed: bool,
    /// A crash could still undo some of the page's rows.
    pub unflushed: bool,
    /// How far the outbox was cleared.
    pub cleared: Cleared,
    /// The last row number that was assigned. None if there is none, if the role may not read it,
    /// or if numbers may be assigned out of order.
    pub assigned: Option<u64>,
}

impl ServerState {
    /// Returns the cluster and the timeline. None on a standby.
    pub fn lineage(&self) -> Option<Lineage> {
        let Epoch { timeline, .. } = *self.epoch.as_ref()?;
        Some(Lineage {
            system_identifier: self.system_identifier,
            timeline,
        })
    }
}

/// Identifies a period without a crash or failover: after either, the server has another timeline
/// or has written another checkpoint (PostgreSQL's, not Walhook's). It also ends when row numbers
/// start again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub timeline: u32,
    checkpoint: String,
    /// The file of the sequence of row numbers: a new one after `restart`, `truncate`, or when the
    /// outbox was created again. None if numbers may be assigned out of order, because the sequence
    /// was altered.
    pub numbering: Option<u32>,
}

pub(super) struct OutboxPage {
    pub server: ServerState,
    pub rows: Vec<OutboxRow>,
    /// The row after which the page starts.
    pub after: u64,
    /// Whether the window has more rows.
    pub more: bool,
}

impl OutboxPage {
    /// Returns what identifies the page's rows.
    pub fn contents(&self) -> Contents {
        let times = self
            .rows
            .iter()
            .map(|row| i128::from(row.committed_at.as_microsecond()))
            .sum();
        Contents {
            rows: self.rows.len() as u64,
            times,
        }
    }
}

/// How far the outbox is cleared: up to a row of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cleared {
    pub window: u64,
    pub row: u64,
}

/// A row of the outbox.
pub(super) struct OutboxRow {
    pub ordinal: u64,
    transaction: u64,
    committed_at: Timestamp,
    relation: String,
    operation: String,
    muted: bool,
    old: Option<Vec<Option<String>>>,
    new: Option<Vec<Option<String>>>,
}

/// Reads a page of the rows that `to` sees, or that are visible now, and that `from` does not see:
/// those after `after`, or after one of the floors whose transactions have ended.
pub(super) async fn read(
    client: &Client,
    from: &Snapshot,
    to: Option<&Snapshot>,
    after: u64,
    (floors, transactions): (Vec<i64>, Vec<String>),
) -> Result<OutboxPage, CaptureError> {
    let from = from.as_str();
    let to = to.map(Snapshot::as_str);
    let after = after as i64;

    let rows = client
        .query_typed(
            sql::outbox::PAGE,
            &[
                (&from, Type::TEXT),
                (&to, Type::TEXT),
                (&after, Type::INT8),
                (&MAX_CHANGES, Type::INT8),
                (&MAX_BYTES, Type::INT8),
                (&floors, Type::INT8_ARRAY),
                (&transactions, Type::TEXT_ARRAY),
            ],
        )
        .await?;

    let first = rows
        .first()
        .ok_or_else(|| CaptureError::Protocol("the primary answered without a row".into()))?;
    let server = server(first)?;
    let after = first.get::<_, i64>("start") as u64;
    let total: i64 = first.get::<_, Option<i64>>("total").unwrap_or(0);
    let rows = rows
        .iter()
        .filter_map(|row| outbox_row(row).transpose())
        .collect::<Result<Vec<OutboxRow>, _>>()?;

    // A full page, or one that ended by its size.
    let more = total == MAX_CHANGES || (rows.len() as i64) < total;
    Ok(OutboxPage {
        server,
        rows,
        after,
        more,
    })
}

fn server(row: &Row) -> Result<ServerState, CaptureError> {
    let epoch = timeline(row)?.map(|timeline| Epoch {
        timeline,
        checkpoint: row.get("checkpoint"),
        numbering: row.get("numbering"),
    });

    let cleared = row
        .get::<_, Option<i64>>("number")
        .zip(row.get::<_, Option<i64>>("cleared"));
    let (window, ordinal) = cleared.unwrap_or_default();

    Ok(ServerState {
        snapshot: Snapshot::from(row.get::<_, &str>("snapshot")),
        system_identifier: row.get::<_, i64>("system_identifier") as u64,
        epoch,
        failed: row.get("failed"),
        unflushed: row.get::<_, Option<bool>>("unflushed").unwrap_or(false),
        cleared: Cleared {
            window: window as u64,
            row: ordinal as u64,
        },
        assigned: row
            .get::<_, Option<i64>>("assigned")
            .map(|assigned| assigned as u64),
    })
}

/// Returns the server's timeline. None on a standby.
fn timeline(row: &Row) -> Result<Option<u32>, CaptureError> {
    let timeline = row
        .get::<_, Option<&str>>("timeline")
        .map(|digits| u32::from_str_radix(digits, 16));
    timeline
        .transpose()
        .map_err(|_| CaptureError::Protocol("the timeline is not a number".into()))
}

/// Reads a row of the page. None for the single row of an empty page, which has only the server's
/// state.
fn outbox_row(row: &Row) -> Result<Option<OutboxRow>, CaptureError> {
    let Some(ordinal) = row.get::<_, Option<i64>>("seq") else {
        return Ok(None);
    };

    Ok(Some(OutboxRow {
        ordinal: ordinal as u64,
        transaction: transaction_id(row.get("xid"))?,
        committed_at: row.get("at"),
        relation: row.get("relation"),
        operation: row.get("operation"),
        muted: row.get("muted"),
        old: row.get("old"),
        new: row.get("new"),
    }))
}

fn transaction_id(text: &str) -> Result<u64, CaptureError> {
    text.parse()
        .map_err(|_| CaptureError::Protocol("the id of a transaction is not a number".into()))
}

/// The result of [`clear`].
pub(super) struct Clearing {
    /// The rows that were deleted.
    pub contents: Contents,
    /// The id of the transaction that deleted them. It began after every number up to the last
    /// row's was assigned.
    pub transaction: u64,
}

/// Deletes the rows after `after` and up to `reached` that `snapshot` sees, and stores `reached`.
/// Fails on a server of another timeline: a pooler may have connected to it meanwhile.
pub(super) async fn clear(
    client: &impl GenericClient,
    timeline: u32,
    snapshot: &Snapshot,
    after: u64,
    reached: Cleared,
) -> Result<Clearing, CaptureError> {
    let row = reached.row as i64;
    let snapshot = snapshot.as_str();
    let window = reached.window as i64;
    let after = after as i64;
    let timeline = format!("{timeline:08X}");

    let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
        (&row, Type::INT8),
        (&snapshot, Type::TEXT),
        (&window, Type::INT8),
        (&after, Type::INT8),
        (&timeline, Type::TEXT),
    ];

    let row = client
        .query_typed_one(sql::outbox::CLEAR, &parameters)
        .await?;
    if !row.get::<_, bool>("is_expected") {
        return Err(CaptureError::TimelineChanged);
    }

    let transaction = transaction_id(row.get("transaction"))?;
    let times = row.get::<_, &str>("times").parse();
    let times =
        times.map_err(|_| CaptureError::Protocol("a sum of times is not a number".into()))?;
    let contents = Contents {
        rows: row.get::<_, i64>("rows") as u64,
        times,
    };

    Ok(Clearing {
        contents,
        transaction,
    })
}

/// Assigns a transaction id on a server of this timeline, and returns it. Deletes nothing.
pub(super) async fn begin_transaction(client: &Client, timeline: u32) -> Result<u64, CaptureError> {
    Ok(
        clear(client, timeline, &Snapshot::empty(), 0, Cleared::default())
            .await?
            .transaction,
    )
}

/// Flushes the WAL of every commit that is visible now. Returns whether the server is in this
/// epoch: if not, it may have lost some of them.
pub(super) async fn flush(client: &Client, epoch: &Epoch) -> Result<bool, CaptureError> {
    let row = client.query_typed_one(sql::outbox::FLUSH, &[]).await?;
    Ok(timeline(&row)? == Some(epoch.timeline)
        && row.get::<_, &str>("checkpoint") == epoch.checkpoint)
}

/// Converts a row of the outbox to a change in the window of this number.
pub(super) fn change(
    row: OutboxRow,
    window: u64,
    mappings: &TableMappings,
) -> Result<Change, CaptureError> {
    let invalid = |what: &str| {
        CaptureError::Protocol(format!("row {} of the outbox has {what}", row.ordinal))
    };

    let table = Table::by_name(&row.relation).ok_or_else(|| invalid("an unknown table"))?;
    let tuple = |values: Option<Vec<Option<String>>>| {
        tuple(table, values, mappings).ok_or_else(|| invalid("too few values"))
    };

    let operation = match row.operation.as_str() {
        "I" => Operation::Insert {
            new: tuple(row.new)?,
        },
        "U" => Operation::Update {
            old: Some(tuple(row.old)?),
            new: tuple(row.new)?,
        },
        "D" => Operation::Delete {
            old: tuple(row.old)?,
        },
        "T" => Operation::Truncate,
        _ => return Err(invalid("an unknown operation")),
    };

    Ok(Change {
        position: Position::Outbox {
            window,
            transaction: row.transaction,
            ordinal: row.ordinal,
        },
        committed_at: row.committed_at,
        muted: row.muted,
        table,
        operation,
    })
}

fn tuple(
    table: Table,
    values: Option<Vec<Option<String>>>,
    mappings: &TableMappings,
) -> Option<Tuple> {
    let mut values = values?;
    let own = values.split_off(table.columns().len().min(values.len()));
    if values.len() < table.columns().len() {
        return None;
    }

    let mut tuple = Tuple::absent(table);

    for ((index, reference), value) in table.columns().iter().enumerate().zip(values) {
        if mappings.computed(table, reference).is_none() || mappings.lacks(table, reference) {
            mappings.set(&mut tuple, table, Column(index as u8), value.as_deref());
        }
    }

    // A trigger of another mapping writes neither, or other extra values.
    let [is_outside, extra] = [0, 1].map(|index| own.get(index)?.as_deref());
    tuple.is_outside = is_outside == Some("true");
    tuple.extra = extra.map(Extra::from_json).unwrap_or_default();

    Some(tuple)
}
