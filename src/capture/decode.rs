//! What the server sends, in the reference schema's tables, columns and values.

use std::collections::HashMap;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pg_walstream::{
    ColumnData, ColumnInfo, LogicalReplicationMessage as Message, LogicalReplicationParser, ReplicaIdentity, TupleData,
};

use super::CaptureError;
use super::deleted::Deleted;
use crate::config::{Source, TableMappings};
use crate::domain::change::{Change, Datum, Operation, Origin, Tuple};
use crate::domain::lsn::{Lsn, Position, TimelineHistory};
use crate::domain::table::{Column, Table};

/// The prefix of logical messages that are meant for us.
pub(super) const MESSAGE_PREFIX: &str = "walhook";
const MUTE: &[u8] = b"mute";
const HANDOVER: &[u8] = b"handover";
pub(super) const HEARTBEAT: &str = "heartbeat ";
const TRANSACTIONAL: u8 = 1;
/// Of the protocol that is asked for: whole transactions only, each when it has committed.
pub(super) const PROTOCOL_VERSION: u32 = 1;
/// How the server marks an old row that holds its identity alone; of the others' values it says null.
const KEY_ALONE: char = 'K';
/// The server counts microseconds from the year 2000.
const SERVER_EPOCH: SignedDuration = SignedDuration::from_secs(946_684_800);

/// What one message came to, beside the changes it added.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Nothing,
    Began,
    /// The open transaction is complete; the next one begins behind `end`.
    Committed {
        commit: Lsn,
        end: Lsn,
    },
    /// A heartbeat, by its id.
    Heartbeat(String),
    /// A followed table is described: its columns or the publication may have changed.
    Described,
    /// A watched table's old rows come without what they were.
    IdentityLost {
        tables: String,
    },
    /// The open transaction made the triggers: what commits after it is in their outbox.
    Handover,
}

/// The transaction being received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub xid: u32,
    pub committed_at: Timestamp,
    /// Where its commit stands and how many row changes of it were received, of whatever table.
    pub position: Position,
    muted: bool,
}

/// One relation, as its rows are sent.
struct Plan {
    table: Table,
    columns: Vec<Sent>,
}

/// What a sent column is to us: it may serve for several of ours.
struct Sent {
    targets: Vec<Column>,
    is_key: bool,
    /// Of a type that fills values up with blanks.
    padded: bool,
}

/// `character(n)` in the catalog.
const PADDED_TYPE: u32 = 1042;

impl Plan {
    /// Whether old rows under another identity than full come with all that is watched; of an add-on with the whole row.
    fn is_told(&self) -> bool {
        let is_key = |wanted: &Column| self.columns.iter().any(|sent| sent.is_key && sent.targets.contains(wanted));
        let wanted = if self.table == Table::UserAddon { self.table.columns() } else { self.table.watched() };
        wanted.iter().filter_map(|name| self.table.column(name)).all(|column| is_key(&column))
    }
}

pub(super) struct Decoder {
    parser: LogicalReplicationParser,
    mappings: TableMappings,
    tables: HashMap<(String, String), Table>,
    /// The same by their numbers in the catalog, which stay when a table is renamed.
    numbers: HashMap<u32, Table>,
    /// By the relation's number. Nothing where the table is none of ours.
    plans: HashMap<u32, Option<Plan>>,
    timelines: TimelineHistory,
    open: Option<Open>,
    /// Rows that the open transaction has deleted.
    deleted: Deleted,
}

impl Decoder {
    pub fn new(source: &Source, numbers: HashMap<u32, Table>, timelines: TimelineHistory) -> Decoder {
        let followed = Table::ALL.iter().copied().filter(|table| source.follows(*table));
        let tables = followed.map(|table| (source.tables.qualified_name(table), table)).collect();
        let parser = LogicalReplicationParser::with_protocol_version(PROTOCOL_VERSION);
        Decoder {
            parser,
            mappings: source.tables.clone(),
            tables,
            numbers,
            plans: HashMap::new(),
            timelines,
            open: None,
            deleted: Deleted::default(),
        }
    }

    /// The tables that are read, by their numbers in the catalog.
    pub fn oids(&self) -> impl Iterator<Item = u32> {
        self.numbers.keys().copied()
    }

    pub fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Takes one message in, as the plugin wrote it, and adds the changes it holds for us.
    pub fn decode(&mut self, message: Bytes, changes: &mut Vec<Change>) -> Result<Decoded, CaptureError> {
        match self.parser.parse_wal_message_bytes(message)?.message {
            Message::Begin { xid, final_lsn, timestamp } => {
                if self.open.is_some() {
                    return Err(CaptureError::Protocol("a transaction inside another".into()));
                }
                let committed_at = time(timestamp)?;
                let position = Position { commit: Lsn(final_lsn), ordinal: 0 };
                self.deleted.clear();
                self.open = Some(Open { xid, committed_at, position, muted: false });
                Ok(Decoded::Began)
            }
            Message::Commit { end_lsn, .. } => {
                let open = self.open.take().ok_or_else(outside)?;
                Ok(Decoded::Committed { commit: open.position.commit, end: Lsn(end_lsn) })
            }
            Message::Relation { relation_id, namespace, relation_name, replica_identity, columns } => {
                let plan = self.plan(relation_id, &namespace, &relation_name, &columns)?;
                if plan.is_none() {
                    tracing::info!(table = %format_args!("{namespace}.{relation_name}"), "no mapping names it: passed over");
                }
                let is_full = ReplicaIdentity::from_byte(replica_identity) == Some(ReplicaIdentity::Full);
                let whole = is_full || plan.as_ref().is_none_or(Plan::is_told);
                let is_ours = plan.is_some();
                self.plans.insert(relation_id, plan);
                Ok(match whole {
                    true if is_ours => Decoded::Described,
                    true => Decoded::Nothing,
                    false => Decoded::IdentityLost { tables: format!("{namespace}.{relation_name}") },
                })
            }
            Message::Message { flags, prefix, content, .. } => {
                let ours = prefix == MESSAGE_PREFIX && flags & TRANSACTIONAL != 0;
                Ok(if ours { self.message(&content) } else { Decoded::Nothing })
            }
            row => {
                self.row(row, changes)?;
                Ok(Decoded::Nothing)
            }
        }
    }

    fn message(&mut self, content: &[u8]) -> Decoded {
        if content == MUTE {
            if let Some(open) = &mut self.open {
                open.muted = true;
            }
            return Decoded::Nothing;
        }
        if content == HANDOVER {
            return Decoded::Handover;
        }
        let heartbeat = std::str::from_utf8(content).ok().and_then(|text| text.strip_prefix(HEARTBEAT));
        heartbeat.map_or(Decoded::Nothing, |id| Decoded::Heartbeat(id.to_owned()))
    }

    fn row(&mut self, message: Message, changes: &mut Vec<Change>) -> Result<(), CaptureError> {
        match message {
            Message::Insert { relation_id, tuple } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_id)? else { return Ok(()) };
                let (table, new) = (plan.table, self.tuple(plan, &tuple)?);
                let operation = match self.deleted.take(table, &new) {
                    Some(old) => Operation::Replace { old, new },
                    None => Operation::Insert { new },
                };
                changes.push(self.change(table, position, operation)?);
            }
            Message::Update { relation_id, old_tuple, new_tuple, key_type } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_id)? else { return Ok(()) };
                let old = old_tuple.map(|old| self.old_tuple(plan, &old, key_type)).transpose()?;
                let mut new = self.tuple(plan, &new_tuple)?;
                if let Some(old) = &old {
                    new.fill_from(old);
                }
                changes.push(self.change(plan.table, position, Operation::Update { old, new })?);
            }
            Message::Delete { relation_id, old_tuple, key_type } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_id)? else { return Ok(()) };
                let (table, old) = (plan.table, self.old_tuple(plan, &old_tuple, Some(key_type))?);
                self.deleted.add(table, &old);
                changes.push(self.change(table, position, Operation::Delete { old })?);
            }
            Message::Truncate { relation_ids, .. } => {
                for relation in relation_ids {
                    let position = self.next()?;
                    let Some(plan) = self.plan_of(relation)? else { continue };
                    changes.push(self.change(plan.table, position, Operation::Truncate)?);
                }
            }
            // Types and origins say nothing to us; the rest belongs to modes that are not asked for.
            _ => {}
        }
        Ok(())
    }

    /// The position of the row change now received: every one counts, so that positions do not depend on the mapping.
    fn next(&mut self) -> Result<Position, CaptureError> {
        let open = self.open.as_mut().ok_or_else(outside)?;
        open.position.ordinal += 1;
        Ok(open.position)
    }

    fn change(&self, table: Table, position: Position, operation: Operation) -> Result<Change, CaptureError> {
        let open = self.open.as_ref().ok_or_else(outside)?;
        let (committed_at, muted) = (open.committed_at, open.muted);
        let origin = Origin::Log { timeline: self.timelines.timeline_at(position.commit) };
        Ok(Change { position, origin, committed_at, muted, table, operation })
    }

    fn plan_of(&self, relation: u32) -> Result<Option<&Plan>, CaptureError> {
        let plan = self.plans.get(&relation);
        plan.map(Option::as_ref)
            .ok_or_else(|| CaptureError::Protocol(format!("a row of relation {relation}, which was not described")))
    }

    /// By its number first: what the log calls it is the name of when it was written.
    fn plan(&self, number: u32, schema: &str, name: &str, sent: &[ColumnInfo]) -> Result<Option<Plan>, CaptureError> {
        let by_name = || self.tables.get(&(schema.to_owned(), name.to_owned()));
        let Some(table) = self.numbers.get(&number).or_else(by_name).copied() else { return Ok(None) };
        let column = |column: &ColumnInfo| Sent {
            targets: Vec::new(),
            is_key: column.is_key(),
            padded: column.type_id == PADDED_TYPE,
        };
        let mut columns: Vec<Sent> = sent.iter().map(column).collect();
        for reference in self.mappings.stored(table) {
            let theirs = self.mappings.column(table, reference);
            let mut names = std::iter::once(theirs).chain(self.mappings.formerly(table, reference));
            let found = names.find_map(|name| sent.iter().position(|column| *column.name == *name));
            match found {
                Some(index) => columns[index].targets.extend(table.column(reference)),
                None if crate::primary::is_required(table) => {
                    return Err(CaptureError::ColumnGone {
                        column: theirs.to_owned(),
                        table: format!("{schema}.{name}"),
                        key: table.name(),
                        reference,
                    });
                }
                None => {}
            }
        }
        Ok(Some(Plan { table, columns }))
    }

    /// The row in our columns.
    fn tuple(&self, plan: &Plan, row: &TupleData) -> Result<Tuple, CaptureError> {
        self.tuple_of(plan, row, |_| true)
    }

    /// The same of an old row, which may be its identity alone.
    fn old_tuple(&self, plan: &Plan, row: &TupleData, key_type: Option<char>) -> Result<Tuple, CaptureError> {
        let key_alone = key_type == Some(KEY_ALONE);
        self.tuple_of(plan, row, |sent| sent.is_key || !key_alone)
    }

    fn tuple_of(&self, plan: &Plan, row: &TupleData, counts: impl Fn(&Sent) -> bool) -> Result<Tuple, CaptureError> {
        let table = plan.table;
        if row.column_count() != plan.columns.len() {
            return Err(CaptureError::Protocol(format!("a row of {} with columns nobody described", table.name())));
        }
        let mut tuple = Tuple::absent(table);
        for (sent, value) in plan.columns.iter().zip(&row.columns).filter(|(sent, _)| counts(sent)) {
            for column in &sent.targets {
                tuple.set(*column, self.datum(table, *column, value, sent.padded)?);
            }
        }
        Ok(tuple)
    }

    fn datum(&self, table: Table, column: Column, value: &ColumnData, padded: bool) -> Result<Datum, CaptureError> {
        if value.is_null() {
            return Ok(Datum::Null);
        }
        if value.is_unchanged() {
            return Ok(Datum::Absent);
        }
        let reference = table.columns()[usize::from(column.0)];
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| CaptureError::Protocol(format!("column {reference} of {} is not text", table.name())))?;
        let text = if padded { text.trim_end_matches(' ') } else { text };
        Ok(Datum::text(self.mappings.value(table, reference, text).unwrap_or(text)))
    }
}

fn time(since_server_epoch: i64) -> Result<Timestamp, CaptureError> {
    let since_epoch = SERVER_EPOCH.saturating_add(SignedDuration::from_micros(since_server_epoch));
    Timestamp::from_duration(since_epoch).map_err(|error| CaptureError::Protocol(format!("a commit's time: {error}")))
}

fn outside() -> CaptureError {
    CaptureError::Protocol("a change outside of any transaction".into())
}

/// About how much memory a change's values take.
pub(super) fn weight(change: &Change) -> usize {
    let of = |tuple: &Tuple| tuple.iter().filter_map(|(_, value)| value.as_str()).map(str::len).sum::<usize>();
    match &change.operation {
        Operation::Insert { new } => of(new),
        Operation::Update { old, new } => old.as_ref().map_or(0, of) + of(new),
        Operation::Replace { old, new } => of(old) + of(new),
        Operation::Delete { old } => of(old),
        Operation::Truncate => 0,
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
