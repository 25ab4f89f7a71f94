//! What the server sends, in the reference schema's tables, columns and values.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use pg_walstream::{ChangeEvent, ColumnValue, EventType, RelationColumn, ReplicaIdentity, RowData};

use super::CaptureError;
use crate::config::{Source, TableMappings};
use crate::domain::change::{Change, Datum, Operation, Origin, Tuple};
use crate::domain::lsn::{Lsn, Position};
use crate::domain::table::{Column, Table};

/// The prefix of logical messages that are meant for us.
pub(super) const MESSAGE_PREFIX: &str = "walhook";
const MUTE: &[u8] = b"mute";
const HANDOVER: &[u8] = b"handover";
pub(super) const HEARTBEAT: &str = "heartbeat ";
const TRANSACTIONAL: u8 = 1;

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

/// The columns of one relation in the order they are sent in.
struct Plan {
    table: Table,
    columns: Vec<Sent>,
}

struct Sent {
    name: Arc<str>,
    /// What it is to us: one may serve for several of ours.
    targets: Vec<Column>,
    /// Of a type that fills values up with blanks.
    padded: bool,
}

/// `character(n)` in the catalog.
const PADDED_TYPE: u32 = 1042;

impl Plan {
    /// Whether old rows under another identity than full come with all that is watched; `sent` is as the relation has it.
    fn is_told(&self, sent: &[RelationColumn]) -> bool {
        let is_key = |wanted: &Column| {
            let mut columns = self.columns.iter().zip(sent);
            columns.any(|(ours, column)| column.is_key && ours.targets.contains(wanted))
        };
        self.table.watched().iter().filter_map(|name| self.table.column(name)).all(|column| is_key(&column))
    }
}

pub(super) struct Decoder {
    mappings: TableMappings,
    tables: HashMap<(String, String), Table>,
    /// The same by their numbers in the catalog, which stay when a table is renamed.
    numbers: HashMap<u32, Table>,
    /// By the relation's number. Nothing where the table is none of ours.
    plans: HashMap<u32, Option<Plan>>,
    open: Option<Open>,
}

impl Decoder {
    pub fn new(source: &Source, numbers: HashMap<u32, Table>) -> Decoder {
        let followed = Table::ALL.iter().copied().filter(|table| source.follows(*table));
        let tables = followed.map(|table| (source.tables.qualified_name(table), table)).collect();
        Decoder { mappings: source.tables.clone(), tables, numbers, plans: HashMap::new(), open: None }
    }

    pub fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Takes one message in and adds the changes it holds for us.
    pub fn decode(&mut self, event: ChangeEvent, changes: &mut Vec<Change>) -> Result<Decoded, CaptureError> {
        match event.event_type {
            EventType::Begin { transaction_id, final_lsn, commit_timestamp } => {
                if self.open.is_some() {
                    return Err(CaptureError::Protocol("a transaction inside another".into()));
                }
                let committed_at = Timestamp::from_microsecond(commit_timestamp.timestamp_micros())
                    .map_err(|error| CaptureError::Protocol(format!("a commit's time: {error}")))?;
                let position = Position { commit: Lsn(final_lsn.value()), ordinal: 0 };
                self.open = Some(Open { xid: transaction_id, committed_at, position, muted: false });
                Ok(Decoded::Began)
            }
            EventType::Commit { end_lsn, .. } => {
                let open = self.open.take().ok_or_else(outside)?;
                Ok(Decoded::Committed { commit: open.position.commit, end: Lsn(end_lsn.value()) })
            }
            EventType::Relation { relation_id, namespace, relation_name, columns, replica_identity } => {
                let plan = self.plan(relation_id, &namespace, &relation_name, &columns)?;
                if plan.is_none() {
                    tracing::info!(table = %format_args!("{namespace}.{relation_name}"), "no mapping names it: passed over");
                }
                let whole =
                    replica_identity == ReplicaIdentity::Full || plan.as_ref().is_none_or(|p| p.is_told(&columns));
                self.plans.insert(relation_id, plan);
                Ok(match whole {
                    true => Decoded::Nothing,
                    false => Decoded::IdentityLost { tables: format!("{namespace}.{relation_name}") },
                })
            }
            EventType::Message { flags, prefix, content, .. } => {
                let ours = &*prefix == MESSAGE_PREFIX && flags & TRANSACTIONAL != 0;
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

    fn row(&mut self, event: EventType, changes: &mut Vec<Change>) -> Result<(), CaptureError> {
        match event {
            EventType::Insert { relation_oid, data, .. } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_oid)? else { return Ok(()) };
                let operation = Operation::Insert { new: self.tuple(plan, &data, None)? };
                changes.push(self.change(plan.table, position, operation)?);
            }
            EventType::Update { relation_oid, old_data, new_data, replica_identity, key_columns, .. } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_oid)? else { return Ok(()) };
                let sent = sent_columns(replica_identity, &key_columns);
                let old = old_data.map(|old| self.tuple(plan, &old, sent)).transpose()?;
                let mut new = self.tuple(plan, &new_data, None)?;
                if let Some(old) = &old {
                    new.fill_from(old);
                }
                changes.push(self.change(plan.table, position, Operation::Update { old, new })?);
            }
            EventType::Delete { relation_oid, old_data, replica_identity, key_columns, .. } => {
                let position = self.next()?;
                let Some(plan) = self.plan_of(relation_oid)? else { return Ok(()) };
                let old = self.tuple(plan, &old_data, sent_columns(replica_identity, &key_columns))?;
                changes.push(self.change(plan.table, position, Operation::Delete { old })?);
            }
            EventType::Truncate { tables, .. } => {
                for name in tables {
                    let position = self.next()?;
                    if let Some(table) = self.by_full_name(&name) {
                        changes.push(self.change(table, position, Operation::Truncate)?);
                    }
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
        Ok(Change { position, origin: Origin::Log, committed_at, muted, table, operation })
    }

    fn plan_of(&self, relation: u32) -> Result<Option<&Plan>, CaptureError> {
        let plan = self.plans.get(&relation);
        plan.map(Option::as_ref)
            .ok_or_else(|| CaptureError::Protocol(format!("a row of relation {relation}, which was not described")))
    }

    fn by_full_name(&self, name: &str) -> Option<Table> {
        let mut tables = self.tables.iter();
        let found = tables.find(|((schema, table), _)| {
            name.strip_prefix(schema.as_str()).and_then(|rest| rest.strip_prefix('.')) == Some(table)
        });
        found.map(|(_, table)| *table)
    }

    /// By its number first: what the log calls it is the name of when it was written.
    fn plan(
        &self,
        number: u32,
        schema: &str,
        name: &str,
        sent: &[RelationColumn],
    ) -> Result<Option<Plan>, CaptureError> {
        let by_name = || self.tables.get(&(schema.to_owned(), name.to_owned()));
        let Some(table) = self.numbers.get(&number).or_else(by_name).copied() else { return Ok(None) };
        let column = |column: &RelationColumn| Sent {
            name: Arc::clone(&column.name),
            targets: Vec::new(),
            padded: column.type_id == PADDED_TYPE,
        };
        let mut columns: Vec<Sent> = sent.iter().map(column).collect();
        for reference in self.mappings.stored(table) {
            let theirs = self.mappings.column(table, reference);
            let mut names = std::iter::once(theirs).chain(self.mappings.formerly(table, reference));
            let found = names.find_map(|name| columns.iter().position(|column| *column.name == *name));
            match found {
                Some(index) => columns[index].targets.extend(table.column(reference)),
                None if super::is_required(table) => {
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

    /// The row in our columns; of the columns that `sent` names only, where it is given.
    fn tuple(&self, plan: &Plan, row: &RowData, sent: Option<&[Arc<str>]>) -> Result<Tuple, CaptureError> {
        let mut tuple = Tuple::absent(plan.table);
        // Rows come in the relation's order, with unchanged out-of-line values left out.
        let mut columns = plan.columns.iter();
        for (name, value) in row.iter() {
            let Some(column) = columns.find(|column| column.name == *name) else {
                return Err(CaptureError::Protocol(format!("an unexpected column {name} of {}", plan.table.name())));
            };
            if sent.is_some_and(|sent| !sent.contains(name)) {
                continue;
            }
            for target in &column.targets {
                tuple.set(*target, self.datum(plan.table, *target, column, value)?);
            }
        }
        Ok(tuple)
    }

    fn datum(&self, table: Table, target: Column, column: &Sent, value: &ColumnValue) -> Result<Datum, CaptureError> {
        if value.is_null() {
            return Ok(Datum::Null);
        }
        let text = value
            .as_str()
            .ok_or_else(|| CaptureError::Protocol(format!("column {} of {} is not text", column.name, table.name())))?;
        let text = if column.padded { text.trim_end_matches(' ') } else { text };
        let reference = table.columns()[usize::from(target.0)];
        Ok(Datum::text(self.mappings.value(table, reference, text).unwrap_or(text)))
    }
}

/// Which columns an old row has: all under FULL (nothing), the identity's under any other. The rest read as null on the wire.
fn sent_columns(identity: ReplicaIdentity, key: &[Arc<str>]) -> Option<&[Arc<str>]> {
    (identity != ReplicaIdentity::Full).then_some(key)
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
        Operation::Delete { old } => of(old),
        Operation::Truncate => 0,
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
