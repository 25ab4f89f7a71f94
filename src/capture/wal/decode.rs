//! Decodes the messages of `pgoutput` to changes in the reference schema's tables, columns and
//! values.

use std::collections::{HashMap, HashSet};
use std::str::Utf8Error;
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pg_walstream::{
    ColumnData, ColumnInfo, LogicalReplicationMessage as Message, LogicalReplicationParser,
    ReplicaIdentity, TupleData,
};

use super::deleted::DeletedRows;
use crate::capture::error::CaptureError;
use crate::config::{Condition, Source, TableMappings};
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::extra::ValueKind;
use crate::domain::lsn::{Lsn, TimelineHistory};
use crate::domain::position::Position;
use crate::domain::table::{Column, Table};

/// The prefix of logical messages for Walhook.
pub(super) const MESSAGE_PREFIX: &str = "walhook";
const MUTE: &[u8] = b"mute";
const SWITCH: &[u8] = b"handover";
pub(super) const HEARTBEAT: &str = "heartbeat ";
const TRANSACTIONAL: u8 = 1;
/// Version 1 sends each transaction as a whole, after its commit.
pub(super) const PROTOCOL_VERSION: u32 = 1;
/// Marks an old row of which only the replica identity was sent. Its other values read as null.
const KEY_ONLY: char = 'K';
/// 2000-01-01: PostgreSQL counts microseconds from then.
const SERVER_EPOCH: SignedDuration = SignedDuration::from_secs(946_684_800);

/// The meaning of a message, apart from the changes that it adds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Nothing,
    Began,
    /// The open transaction is complete. The next one begins after `end`.
    Committed {
        commit: Lsn,
        end: Lsn,
    },
    /// A heartbeat, with its id.
    Heartbeat(String),
    /// The columns of a captured or looked-up table: they or the publication may have changed.
    TableDescribed,
    /// A table that was not one of Walhook's when the stream was opened.
    UnmappedTable {
        oid: u32,
    },
    /// Old rows of a watched table no longer include the watched columns.
    IdentityLost {
        table: String,
    },
    /// The open transaction contains the message that setup writes after it has installed the
    /// triggers. If the transaction did install them, changes that commit after it are in the
    /// outbox.
    SwitchRequested,
}

/// The transaction that is being received.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenTransaction {
    pub xid: u32,
    pub committed_at: Timestamp,
    pub commit: Lsn,
    /// The number of row changes received, of all tables.
    pub ordinal: u64,
    muted: bool,
}

/// How the rows of a relation are sent.
struct RelationMap {
    table: Table,
    columns: Vec<SentColumn>,
    /// The optional column, if the platform's table does not have it.
    lacking: Option<Column>,
    /// The keys of partitions whose replica identity is not full, by OID.
    partition_keys: HashMap<u32, HashSet<Arc<str>>>,
}

/// A sent column. It may be mapped to several columns of the reference schema.
struct SentColumn {
    name: Arc<str>,
    targets: Vec<Column>,
    /// The condition on the column that the table's rows must meet.
    only: Option<Condition>,
    /// The keys of the extra values that the column has.
    extra: Vec<String>,
    is_key: bool,
    form: TextForm,
}

/// What the text form of a type needs, or shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TextForm {
    /// `character(n)`: padded with blanks.
    Padded,
    Of(ValueKind),
}

/// The types whose text form is not simply a text, by OID and name.
const TEXT_FORMS: [(u32, &str, TextForm); 8] = [
    (1042, "bpchar", TextForm::Padded),
    (16, "bool", TextForm::Of(ValueKind::Boolean)),
    (20, "int8", TextForm::Of(ValueKind::Number)),
    (21, "int2", TextForm::Of(ValueKind::Number)),
    (23, "int4", TextForm::Of(ValueKind::Number)),
    (700, "float4", TextForm::Of(ValueKind::Number)),
    (701, "float8", TextForm::Of(ValueKind::Number)),
    (1700, "numeric", TextForm::Of(ValueKind::Number)),
];

impl RelationMap {
    fn has_key(&self) -> bool {
        self.columns.iter().any(|sent| sent.is_key)
    }

    /// Returns whether this may be the partitioned table of a partition with these columns.
    fn has_columns(&self, columns: &[ColumnInfo]) -> bool {
        let is_sent =
            |column: &ColumnInfo| self.columns.iter().any(|sent| sent.name == column.name);
        self.columns.len() == columns.len() && columns.iter().all(is_sent)
    }

    /// Marks the values that an old row lacks as not sent. The server sends the old rows of all
    /// partitions as if they had the partitioned table's replica identity. If a partition has
    /// another one, values outside of its key are null. Returns whether this is such a row.
    fn forget_unsent(&self, old: &mut TupleData) -> bool {
        let is_key_only = |key: &HashSet<Arc<str>>| {
            let mut values = self.columns.iter().zip(&old.columns);
            values.all(|(sent, value)| value.is_null() || key.contains(&sent.name))
        };

        let found = self.partition_keys.values().any(is_key_only);
        if found {
            let unsent = old.columns.iter_mut().filter(|value| value.is_null());
            unsent.for_each(|value| *value = ColumnData::unchanged());
        }

        found
    }

    /// Returns whether old rows that consist of the key include all watched columns, or the whole
    /// row of an add-on, and the columns of the condition.
    fn key_is_sufficient(&self) -> bool {
        let is_key = |wanted: &Column| {
            self.columns
                .iter()
                .any(|sent| sent.is_key && sent.targets.contains(wanted))
        };

        let wanted = if self.table == Table::UserAddon {
            self.table.columns()
        } else {
            self.table.watched()
        };

        let has_condition = self
            .columns
            .iter()
            .all(|sent| sent.is_key || sent.only.is_none());

        wanted
            .iter()
            .filter_map(|name| self.table.column(name))
            .all(|column| is_key(&column))
            && has_condition
    }
}

impl SentColumn {
    /// Returns whether old rows have the column: all columns, or only the replica identity's.
    fn is_in_old(&self, key_type: Option<char>) -> bool {
        self.is_key || key_type != Some(KEY_ONLY)
    }

    /// Returns whether the mapping names the column.
    fn is_read(&self) -> bool {
        !self.targets.is_empty() || self.only.is_some() || !self.extra.is_empty()
    }

    /// Returns how events show the column's values.
    fn kind(&self) -> ValueKind {
        match self.form {
            TextForm::Padded => ValueKind::Text,
            TextForm::Of(kind) => kind,
        }
    }

    /// Returns the value in PostgreSQL's text form. None if it is null.
    fn text<'a>(&self, value: &'a ColumnData) -> Option<Result<&'a str, Utf8Error>> {
        let text = (!value.is_null()).then(|| std::str::from_utf8(value.as_bytes()))?;
        Some(text.map(|text| match self.form {
            TextForm::Padded => text.trim_end_matches(' '),
            TextForm::Of(_) => text,
        }))
    }
}

pub(super) struct Decoder {
    parser: LogicalReplicationParser,
    mappings: TableMappings,
    tables: HashMap<(String, String), Table>,
    /// Tables by OID, which a rename does not change.
    oids: HashMap<u32, Table>,
    /// Relations by OID. None for a table that is not mapped.
    relations: HashMap<u32, Option<RelationMap>>,
    /// The OIDs of [`TEXT_FORMS`] and of the domains over them.
    text_forms: HashMap<u32, TextForm>,
    timelines: TimelineHistory,
    open: Option<OpenTransaction>,
    /// Rows that the open transaction has deleted.
    deleted: DeletedRows,
}

impl Decoder {
    pub fn new(source: &Source, oids: HashMap<u32, Table>, timelines: TimelineHistory) -> Decoder {
        let followed = Table::ALL
            .iter()
            .copied()
            .filter(|table| source.follows(*table));
        let tables = followed
            .map(|table| (source.tables.qualified_name(table), table))
            .collect();
        let parser = LogicalReplicationParser::with_protocol_version(PROTOCOL_VERSION);

        Decoder {
            parser,
            mappings: source.tables.clone(),
            tables,
            oids,
            relations: HashMap::new(),
            text_forms: TEXT_FORMS.map(|(oid, _, form)| (oid, form)).into(),
            timelines,
            open: None,
            deleted: DeletedRows::default(),
        }
    }

    /// Returns the OIDs of the tables that are read.
    pub fn oids(&self) -> impl Iterator<Item = u32> {
        self.oids.keys().copied()
    }

    pub fn open(&self) -> Option<&OpenTransaction> {
        self.open.as_ref()
    }

    /// Decodes a message and adds the changes that it contains.
    pub fn decode(
        &mut self,
        message: Bytes,
        changes: &mut Vec<Change>,
    ) -> Result<Decoded, CaptureError> {
        match self.parser.parse_wal_message_bytes(message)?.message {
            Message::Begin {
                xid,
                final_lsn,
                timestamp,
            } => {
                if self.open.is_some() {
                    return Err(CaptureError::Protocol(
                        "a transaction began inside another".into(),
                    ));
                }

                let committed_at = time(timestamp)?;
                self.deleted.clear();

                let commit = Lsn(final_lsn);
                self.open = Some(OpenTransaction {
                    xid,
                    committed_at,
                    commit,
                    ordinal: 0,
                    muted: false,
                });

                Ok(Decoded::Began)
            }
            Message::Commit { end_lsn, .. } => {
                let open = self.open.take().ok_or_else(outside_transaction)?;
                Ok(Decoded::Committed {
                    commit: open.commit,
                    end: Lsn(end_lsn),
                })
            }
            Message::Relation {
                relation_id,
                namespace,
                relation_name,
                replica_identity,
                columns,
            } => {
                let mut relation = self.map(relation_id, &namespace, &relation_name, &columns)?;
                let is_full =
                    ReplicaIdentity::from_byte(replica_identity) == Some(ReplicaIdentity::Full);
                let earlier = self.relations.remove(&relation_id).flatten();

                if let (Some(relation), Some(earlier)) = (&mut relation, earlier) {
                    relation.partition_keys = earlier.partition_keys;
                }

                self.note_partition(relation_id, &columns, is_full);

                let decoded = match &relation {
                    None => {
                        let table = format_args!("{namespace}.{relation_name}");
                        tracing::info!(%table, "the table is published but not mapped: its changes are skipped");
                        Decoded::UnmappedTable { oid: relation_id }
                    }
                    Some(relation) if is_full || relation.key_is_sufficient() => {
                        Decoded::TableDescribed
                    }
                    // Only inserted rows can follow: without any key, the server rejects updates
                    // and deletions.
                    Some(relation) if !relation.has_key() => Decoded::TableDescribed,
                    Some(_) => Decoded::IdentityLost {
                        table: format!("{namespace}.{relation_name}"),
                    },
                };

                self.relations.insert(relation_id, relation);
                Ok(decoded)
            }
            // Sent before each relation with columns of such a type. For a domain, the name is that
            // of its base type.
            Message::Type {
                type_id,
                namespace,
                type_name,
            } => {
                let found = TEXT_FORMS
                    .iter()
                    .find(|(_, name, _)| namespace.is_empty() && *name == type_name);
                match found {
                    Some((_, _, form)) => self.text_forms.insert(type_id, *form),
                    None => self.text_forms.remove(&type_id),
                };

                Ok(Decoded::Nothing)
            }
            Message::Message {
                flags,
                prefix,
                content,
                ..
            } => {
                let is_for_walhook = prefix == MESSAGE_PREFIX && flags & TRANSACTIONAL != 0;
                Ok(if is_for_walhook {
                    self.walhook_message(&content)
                } else {
                    Decoded::Nothing
                })
            }
            row => self.row(row, changes),
        }
    }

    /// Keeps the key of a relation with each table that it may be a partition of. Before a
    /// partition's first row, the server describes the partitioned table and then the partition.
    fn note_partition(&mut self, oid: u32, columns: &[ColumnInfo], is_full: bool) {
        let keys = columns.iter().filter(|column| column.is_key());
        let key: HashSet<Arc<str>> = keys.map(|column| column.name.clone()).collect();

        for relation in self.relations.values_mut().flatten() {
            if is_full || !relation.has_columns(columns) {
                relation.partition_keys.remove(&oid);
            } else {
                relation.partition_keys.insert(oid, key.clone());
            }
        }
    }

    fn walhook_message(&mut self, content: &[u8]) -> Decoded {
        if content == MUTE {
            if let Some(open) = &mut self.open {
                open.muted = true;
            }

            return Decoded::Nothing;
        }

        if content == SWITCH {
            return Decoded::SwitchRequested;
        }

        let heartbeat = std::str::from_utf8(content)
            .ok()
            .and_then(|text| text.strip_prefix(HEARTBEAT));
        heartbeat.map_or(Decoded::Nothing, |id| Decoded::Heartbeat(id.to_owned()))
    }

    /// Adds the changes of a row message.
    fn row(
        &mut self,
        message: Message,
        changes: &mut Vec<Change>,
    ) -> Result<Decoded, CaptureError> {
        // The table of an old row without the watched values. Its partition may no longer exist, and
        // then no check of the tables finds it.
        let mut lost = None;

        match message {
            Message::Insert { relation_id, tuple } => {
                let position = self.next_position()?;
                let Some(map) = self.relation(relation_id)? else {
                    return Ok(Decoded::Nothing);
                };

                let table = map.table;
                let new = self.tuple(map, &tuple)?;
                let operation = match self.deleted.take(table, &new) {
                    Some(old) => Operation::Replace { old, new },
                    None => Operation::Insert { new },
                };

                changes.push(self.change(table, position, operation)?);
            }
            Message::Update {
                relation_id,
                mut old_tuple,
                mut new_tuple,
                key_type,
            } => {
                let position = self.next_position()?;
                let Some(map) = self.relation(relation_id)? else {
                    return Ok(Decoded::Nothing);
                };

                let is_key_only = old_tuple.as_mut().is_some_and(|old| map.forget_unsent(old));

                // PostgreSQL leaves unchanged TOAST values out of the new row.
                if let Some(old) = &old_tuple {
                    let values = new_tuple.columns.iter_mut().zip(&old.columns);
                    for ((new, old), sent) in values.zip(&map.columns) {
                        if new.is_unchanged() && sent.is_in_old(key_type) {
                            new.clone_from(old);
                        }
                    }
                }

                let new = self.tuple(map, &new_tuple)?;
                let old = old_tuple
                    .map(|old| self.old_tuple(map, &old, key_type))
                    .transpose()?;

                let is_lost = |old: &Tuple| is_key_only && !old.has_watched(map.table);
                lost = old.as_ref().is_some_and(is_lost).then_some(map.table);
                changes.push(self.change(map.table, position, Operation::Update { old, new })?);
            }
            Message::Delete {
                relation_id,
                mut old_tuple,
                key_type,
            } => {
                let position = self.next_position()?;
                let Some(map) = self.relation(relation_id)? else {
                    return Ok(Decoded::Nothing);
                };

                let is_key_only = map.forget_unsent(&mut old_tuple);

                let table = map.table;
                let old = self.old_tuple(map, &old_tuple, Some(key_type))?;
                lost = (is_key_only && !old.has_watched(table)).then_some(table);
                self.deleted.add(table, &old);
                changes.push(self.change(table, position, Operation::Delete { old })?);
            }
            Message::Truncate { relation_ids, .. } => {
                for relation in relation_ids {
                    let position = self.next_position()?;
                    let Some(map) = self.relation(relation)? else {
                        continue;
                    };

                    changes.push(self.change(map.table, position, Operation::Truncate)?);
                }
            }
            // Origins are not needed. Other messages belong to modes that are not used.
            _ => {}
        }

        Ok(lost.map_or(Decoded::Nothing, |table| {
            let (schema, name) = self.mappings.qualified_name(table);
            let table = format!("{schema}.{name}");
            Decoded::IdentityLost { table }
        }))
    }

    /// Counts a row change and returns its position. Changes of unmapped tables count too:
    /// positions do not depend on the mapping.
    fn next_position(&mut self) -> Result<Position, CaptureError> {
        let open = self.open.as_mut().ok_or_else(outside_transaction)?;
        open.ordinal += 1;

        let timeline = self.timelines.timeline_at(open.commit);
        Ok(Position::Wal {
            timeline,
            commit: open.commit,
            ordinal: open.ordinal,
        })
    }

    fn change(
        &self,
        table: Table,
        position: Position,
        operation: Operation,
    ) -> Result<Change, CaptureError> {
        let OpenTransaction {
            committed_at,
            muted,
            ..
        } = *self.open.as_ref().ok_or_else(outside_transaction)?;
        Ok(Change {
            position,
            committed_at,
            muted,
            table,
            operation,
        })
    }

    fn relation(&self, oid: u32) -> Result<Option<&RelationMap>, CaptureError> {
        let relation = self.relations.get(&oid).map(Option::as_ref);
        relation.ok_or_else(|| {
            CaptureError::Protocol(format!("a row of relation {oid}, which was not described"))
        })
    }

    /// Maps a relation. Its OID is looked up before its name: the WAL has the name that the table
    /// had when the change was written.
    fn map(
        &self,
        oid: u32,
        schema: &str,
        name: &str,
        sent: &[ColumnInfo],
    ) -> Result<Option<RelationMap>, CaptureError> {
        let by_name = || self.tables.get(&(schema.to_owned(), name.to_owned()));
        let Some(table) = self.oids.get(&oid).or_else(by_name).copied() else {
            return Ok(None);
        };

        let column = |column: &ColumnInfo| SentColumn {
            name: column.name.clone(),
            targets: Vec::new(),
            only: None,
            extra: Vec::new(),
            is_key: column.is_key(),
            form: self
                .text_forms
                .get(&column.type_id)
                .copied()
                .unwrap_or(TextForm::Of(ValueKind::Text)),
        };

        let mut columns: Vec<SentColumn> = sent.iter().map(column).collect();

        for reference in self.mappings.stored(table) {
            let mapped = self.mappings.column(table, reference);
            let mut names = std::iter::once(mapped).chain(self.mappings.formerly(table, reference));
            let found = names.find_map(|name| sent.iter().position(|column| *column.name == *name));
            match found {
                Some(index) => columns[index].targets.extend(table.column(reference)),
                None if table.optional() == Some(reference) => {}
                None if crate::primary::is_required(table) => {
                    return Err(CaptureError::ColumnGone {
                        column: mapped.to_owned(),
                        table: format!("{schema}.{name}"),
                        key: table.name(),
                        reference,
                    });
                }
                None => {}
            }
        }

        let position = |name: &str| sent.iter().position(|column| *column.name == *name);

        for (column, condition) in self.mappings.only(table) {
            let index = position(column).ok_or_else(|| CaptureError::ConditionGone {
                column: column.clone(),
                table: format!("{schema}.{name}"),
                key: table.name(),
            })?;
            columns[index].only = Some(condition.clone());
        }

        // A column that the WAL lacks, because it was added later, is read from the row as it is
        // now.
        for (key, column) in self.mappings.extra(table) {
            if let Some(index) = position(column) {
                columns[index].extra.push(key.clone());
            }
        }

        let optional = table.optional().and_then(|name| table.column(name));
        let is_sent = |wanted: &Column| columns.iter().any(|sent| sent.targets.contains(wanted));
        let lacking = optional.filter(|wanted| !is_sent(wanted));

        Ok(Some(RelationMap {
            table,
            columns,
            lacking,
            partition_keys: HashMap::new(),
        }))
    }

    /// Converts a row to the columns of the reference schema.
    fn tuple(&self, map: &RelationMap, row: &TupleData) -> Result<Tuple, CaptureError> {
        self.tuple_of(map, row, |_| true)
    }

    /// Converts an old row, of which only the replica identity may have been sent.
    fn old_tuple(
        &self,
        map: &RelationMap,
        row: &TupleData,
        key_type: Option<char>,
    ) -> Result<Tuple, CaptureError> {
        self.tuple_of(map, row, |sent| sent.is_in_old(key_type))
    }

    fn tuple_of(
        &self,
        map: &RelationMap,
        row: &TupleData,
        was_sent: impl Fn(&SentColumn) -> bool,
    ) -> Result<Tuple, CaptureError> {
        let table = map.table;

        if row.column_count() != map.columns.len() {
            return Err(CaptureError::Protocol(format!(
                "a row of {} has other columns than were described",
                table.name()
            )));
        }

        let mut tuple = Tuple::absent(table);
        if let Some(lacking) = map.lacking {
            tuple.set(lacking, Datum::Null);
        }

        let sent = map.columns.iter().zip(&row.columns);

        for (sent, value) in
            sent.filter(|(sent, value)| was_sent(sent) && !value.is_unchanged() && sent.is_read())
        {
            let text = sent.text(value).transpose().map_err(|_| {
                CaptureError::Protocol(format!("a column of {} is not text", table.name()))
            })?;

            for column in &sent.targets {
                self.mappings.set(&mut tuple, table, *column, text);
            }

            tuple.is_outside |= sent.only.as_ref().is_some_and(|only| !only.is_met_by(text));

            for key in &sent.extra {
                tuple.extra.set(key, text, sent.kind());
            }
        }

        Ok(tuple)
    }
}

fn time(since_server_epoch: i64) -> Result<Timestamp, CaptureError> {
    let since_epoch = SERVER_EPOCH.saturating_add(SignedDuration::from_micros(since_server_epoch));
    Timestamp::from_duration(since_epoch).map_err(|error| {
        CaptureError::Protocol(format!("the time of a commit is invalid: {error}"))
    })
}

fn outside_transaction() -> CaptureError {
    CaptureError::Protocol("a change outside of a transaction".into())
}

/// Estimates the memory of a change's values, in bytes.
pub(super) fn weight(change: &Change) -> usize {
    let (old, new) = change.operation.rows();
    old.into_iter().chain(new).map(Tuple::size).sum()
}

#[cfg(test)]
#[path = "../../../tests/unit/decode.rs"]
mod tests;
