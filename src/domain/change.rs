//! Committed row changes under the reference schema's names, and the batches in which capture
//! passes them to enqueue.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::event::Event;
use super::extra::Extra;
use super::lsn::Lineage;
use super::position::{Checkpoint, Position};
use super::table::{Column, ID, Table};

/// The value of one column: the server's text output, with the configured value maps applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Datum {
    /// Not sent: an unchanged TOAST value, or a column outside the replica identity. The row's
    /// value is unknown.
    #[default]
    Absent,
    Null,
    Text(Box<str>),
}

impl Datum {
    pub fn text(value: impl Into<Box<str>>) -> Self {
        Datum::Text(value.into())
    }

    /// Returns the value of a column that was sent.
    pub fn of(value: Option<&str>) -> Self {
        value.map_or(Datum::Null, Datum::text)
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Datum::Text(text) => Some(text),
            Datum::Absent | Datum::Null => None,
        }
    }
}

/// A row of a known table: one value per column, in the order of [`Table::columns`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuple {
    values: Box<[Datum]>,
    /// What the primary has in columns whose value is mapped to another. None if it is not known.
    originals: Option<Vec<(Column, Datum)>>,
    /// Whether the row is outside of the condition `source.tables.X.only`.
    pub is_outside: bool,
    pub extra: Extra,
}

impl Tuple {
    /// Creates a row whose values are all absent.
    pub fn absent(table: Table) -> Self {
        Tuple {
            values: vec![Datum::Absent; table.columns().len()].into_boxed_slice(),
            originals: Some(Vec::new()),
            is_outside: false,
            extra: Extra::default(),
        }
    }

    /// Creates a row of the store, which has only mapped values.
    pub fn stored(table: Table) -> Self {
        Tuple {
            originals: None,
            ..Tuple::absent(table)
        }
    }

    pub fn set(&mut self, column: Column, value: Datum) {
        self.values[usize::from(column.0)] = value;
    }

    /// Sets a mapped value, and what the primary has in its place.
    pub fn set_mapped(&mut self, column: Column, value: Datum, original: Datum) {
        if value != original {
            self.originals
                .get_or_insert_default()
                .push((column, original));
        }

        self.set(column, value);
    }

    /// Returns what the primary has in a column, as far as it is known.
    pub fn original(&self, column: Column) -> &Datum {
        let originals = self.originals.iter().flatten();
        let mut found = originals.filter(|(mapped, _)| *mapped == column);
        found
            .next()
            .map_or_else(|| self.get(column), |(_, original)| original)
    }

    /// Returns the size of the texts, in bytes.
    pub fn size(&self) -> usize {
        let originals = self.originals.iter().flatten();
        let originals = originals.map(|(_, original)| original);
        let texts = self
            .values
            .iter()
            .chain(originals)
            .filter_map(Datum::as_str);
        texts.map(str::len).sum::<usize>() + self.extra.size()
    }

    pub fn get(&self, column: Column) -> &Datum {
        &self.values[usize::from(column.0)]
    }

    /// Returns the value as text. None if it is null or absent.
    pub fn text(&self, column: Column) -> Option<&str> {
        self.get(column).as_str()
    }

    /// Returns the row's id, if it has one.
    pub fn id(&self) -> Option<i64> {
        self.int(ID)
    }

    /// Returns an id. Only the canonical form is a number: `7`, but not `07`, which is another
    /// value in a column of text.
    pub fn int(&self, column: Column) -> Option<i64> {
        canonical_int(self.text(column)?)
    }

    /// Returns whether the values of all watched columns are known.
    pub fn has_watched(&self, table: Table) -> bool {
        let mut watched = table.watched_columns();
        watched.all(|column| *self.get(column) != Datum::Absent)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Column, &Datum)> {
        self.values
            .iter()
            .enumerate()
            .map(|(index, value)| (Column(index as u8), value))
    }

    /// Fills absent values from `older`: PostgreSQL leaves unchanged TOAST values out of the new
    /// row.
    pub fn fill_from(&mut self, older: &Tuple) {
        for (column, value) in older.iter() {
            if *self.get(column) == Datum::Absent {
                self.set_mapped(column, value.clone(), older.original(column).clone());
            }
        }

        self.extra.fill_from(&older.extra);
    }
}

/// Parses an integer in the form in which PostgreSQL prints integers.
pub fn canonical_int(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_canonical = text == "0" || digits.starts_with(|first: char| matches!(first, '1'..='9'));
    text.parse().ok().filter(|_| is_canonical)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Insert {
        new: Tuple,
    },
    /// `old` is none if no column of the replica identity changed. Columns outside the identity are
    /// absent in it.
    Update {
        old: Option<Tuple>,
        new: Tuple,
    },
    /// An insert of a row whose key the same transaction has deleted before: the row moved to
    /// another partition or was rewritten. It follows the [`Operation::Delete`]. `old` holds the
    /// key and the watched columns.
    Replace {
        old: Tuple,
        new: Tuple,
    },
    Delete {
        old: Tuple,
    },
    Truncate,
}

impl Operation {
    /// Returns the row before and after the operation, if there is one.
    pub fn rows(&self) -> (Option<&Tuple>, Option<&Tuple>) {
        match self {
            Operation::Insert { new } => (None, Some(new)),
            Operation::Update { old, new } => (old.as_ref(), Some(new)),
            Operation::Replace { old, new } => (Some(old), Some(new)),
            Operation::Delete { old } => (Some(old), None),
            Operation::Truncate => (None, None),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub position: Position,
    pub committed_at: Timestamp,
    /// Whether the transaction asked to raise no events. Lookups still follow the change.
    pub muted: bool,
    pub table: Table,
    pub operation: Operation,
}

impl Change {
    /// Forgets the new values of columns that are not watched, so that they are looked up.
    pub fn forget_unwatched(&mut self) {
        let (Operation::Insert { new }
        | Operation::Update { new, .. }
        | Operation::Replace { new, .. }) = &mut self.operation
        else {
            return;
        };

        let kept: Vec<Column> = self.table.watched_columns().chain([ID]).collect();

        for (index, value) in new.values.iter_mut().enumerate() {
            if !kept.contains(&Column(index as u8)) {
                *value = Datum::Absent;
            }
        }
    }

    /// Returns the change among the rows that meet the mapping's condition: a row that comes to meet
    /// it is inserted, and one that no longer does is deleted. None if it met the condition neither
    /// before nor after.
    pub fn within(&self) -> Option<Cow<'_, Change>> {
        let operation = match self.operation.rows() {
            (old, Some(new)) if new.is_outside => {
                let old = old.filter(|old| !old.is_outside)?.clone();
                Operation::Delete { old }
            }
            (Some(old), None) if old.is_outside => return None,
            (Some(old), Some(new)) if old.is_outside => Operation::Insert { new: new.clone() },
            _ => return Some(Cow::Borrowed(self)),
        };

        Some(Cow::Owned(Change {
            operation,
            ..self.clone()
        }))
    }
}

/// A change as JSON, without its position: what is needed to derive its events again. It has the
/// values of the primary, so that they can be mapped again.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChangeRecord {
    table: String,
    operation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<Values>,
    /// Whether the values of `old` are mapped ones: the store has no others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    old_is_mapped: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new: Option<Values>,
}

/// The values of a row that were sent, by the reference schema's names.
type Values = BTreeMap<String, Option<String>>;

/// The name of the extra values, which no column has.
const EXTRA: &str = "extra";

impl From<&Change> for ChangeRecord {
    fn from(change: &Change) -> Self {
        let table = change.table;
        let values = |row: &Tuple| {
            let sent = row.iter().filter(|(_, value)| **value != Datum::Absent);
            let sent = sent.map(|(column, _)| (column, row.original(column)));
            let extra =
                (!row.extra.is_empty()).then(|| (EXTRA.to_owned(), Some(row.extra.to_json())));
            sent.map(|(column, value)| {
                (
                    table.columns()[usize::from(column.0)].to_owned(),
                    value.as_str().map(str::to_owned),
                )
            })
            .chain(extra)
            .collect::<Values>()
        };

        let operation = match &change.operation {
            Operation::Insert { .. } => "insert",
            Operation::Update { .. } => "update",
            Operation::Replace { .. } => "replace",
            Operation::Delete { .. } => "delete",
            Operation::Truncate => "truncate",
        };

        let (old, new) = change.operation.rows();
        let old_is_mapped = old.is_some_and(|old| old.originals.is_none());
        let old = old.map(values);
        let new = new.map(values);
        ChangeRecord {
            table: table.name().to_owned(),
            operation: operation.to_owned(),
            old,
            old_is_mapped,
            new,
        }
    }
}

impl ChangeRecord {
    /// Returns the table and the operation. None if they are not known to this build. `map` returns
    /// the value of a column in the reference schema for the primary's.
    pub fn operation(
        &self,
        map: impl Fn(Table, &str, Option<&str>) -> Datum,
    ) -> Option<(Table, Operation)> {
        let table = Table::by_name(&self.table)?;
        let row = |values: &Values, is_mapped: bool| {
            let mut row = Tuple::absent(table);

            for (name, value) in values {
                if let Some(column) = table.column(name) {
                    let value = value.as_deref();
                    row.set(
                        column,
                        match is_mapped {
                            true => Datum::of(value),
                            false => map(table, name, value),
                        },
                    );
                }
            }

            let extra = values.get(EXTRA).and_then(Option::as_deref);
            row.extra = extra.map(Extra::from_json).unwrap_or_default();
            row
        };

        let old = self.old.as_ref().map(|old| row(old, self.old_is_mapped));
        let new = self.new.as_ref().map(|new| row(new, false));

        let operation = match self.operation.as_str() {
            "insert" => Operation::Insert { new: new? },
            "update" => Operation::Update { old, new: new? },
            "replace" => Operation::Replace {
                old: old?,
                new: new?,
            },
            _ => return None,
        };

        Some((table, operation))
    }
}

/// Consecutive changes, or events of a log, and the checkpoint to store with them. Both may be
/// empty.
#[derive(Clone, Debug)]
pub struct Batch {
    pub changes: Vec<Change>,
    /// Events that were derived by the process that writes the log. Then there are no changes.
    pub derived: Vec<Event>,
    pub checkpoint: Checkpoint,
    /// The transaction of the last change. Lookups wait until it is visible: a change can arrive a
    /// moment before other sessions see it.
    pub transaction: Option<u32>,
    /// The claim on the checkpoint under which the outbox was read: two processes give the same
    /// number to different windows. None if the WAL or a log was read.
    pub reader: Option<Uuid>,
}

impl Batch {
    /// Returns the number of changes or events.
    pub fn size(&self) -> usize {
        self.changes.len() + self.derived.len()
    }

    /// Returns the times of the first and of the last commit. None for an empty batch.
    pub fn committed(&self) -> Option<(Timestamp, Timestamp)> {
        let changes = self.changes.iter().map(|change| change.committed_at);
        let derived = self.derived.iter().map(|event| event.occurred_at);
        let mut all = changes.chain(derived);

        let first = all.next()?;
        Some((first, all.next_back().unwrap_or(first)))
    }

    /// Returns whether the batch's positions are valid on the stored checkpoint's timeline. A
    /// reader of the WAL moves the stored checkpoint to a new timeline before it reads from it. A
    /// batch of the outbox may be the first one on a new timeline.
    pub fn is_on_timeline(&self, stored: Lineage) -> bool {
        let Lineage {
            system_identifier,
            timeline,
        } = self.checkpoint.lineage;
        system_identifier == stored.system_identifier
            && (timeline == stored.timeline
                || (self.reader.is_some() && timeline > stored.timeline))
    }

    /// Returns whether this batch continues where `earlier` ends.
    pub fn follows(&self, earlier: &Batch) -> bool {
        let Checkpoint { lineage, progress } = &earlier.checkpoint;
        let changes = self.changes.first().map(|change| &change.position);
        let derived = self.derived.first().map(|event| &event.position);
        let is_stored = match changes.or(derived) {
            Some(position) => progress.includes(position),
            None => progress.has_reached(&self.checkpoint.progress),
        };

        self.checkpoint.lineage == *lineage && !is_stored
    }
}

#[cfg(test)]
mod tests {
    use super::super::lsn::Lsn;
    use super::super::position::{Progress, Through};
    use super::super::table::distro_queue;
    use super::*;

    fn batch(timeline: u32, first: Option<(u64, u64)>, commit: u64, through: Through) -> Batch {
        let change = |(commit, ordinal)| Change {
            position: Position::Wal {
                timeline,
                commit: Lsn(commit),
                ordinal,
            },
            committed_at: jiff::Timestamp::UNIX_EPOCH,
            muted: false,
            table: Table::Release,
            operation: Operation::Truncate,
        };

        let lineage = Lineage {
            system_identifier: 7,
            timeline,
        };

        let progress = Progress::Wal {
            commit: Lsn(commit),
            through,
            resume: Lsn(1),
        };

        let checkpoint = Checkpoint { lineage, progress };
        Batch {
            changes: first.map(change).into_iter().collect(),
            derived: Vec::new(),
            checkpoint,
            transaction: None,
            reader: None,
        }
    }

    #[test]
    fn only_the_canonical_form_is_an_integer() {
        for (text, value) in [
            ("0", 0),
            ("7", 7),
            ("-10", -10),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(canonical_int(text), Some(value));
        }

        for text in [
            "",
            "-",
            "00",
            "-0",
            "07",
            "+7",
            "7 ",
            "7.0",
            "9223372036854775808",
        ] {
            assert_eq!(canonical_int(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_record_has_the_values_of_the_primary_and_maps_those_of_the_store_no_further() {
        let status = distro_queue::status;
        let mut old = Tuple::stored(Table::DistroQueue);
        old.set(status, Datum::text("scheduled"));

        let mut new = Tuple::absent(Table::DistroQueue);
        new.set_mapped(status, Datum::text("complete"), Datum::text("done"));
        new.set(distro_queue::message, Datum::Null);

        let mut change = batch(1, Some((1, 1)), 1, Through::End).changes.remove(0);
        change.table = Table::DistroQueue;
        change.operation = Operation::Update {
            old: Some(old),
            new,
        };

        let record = serde_json::to_string(&ChangeRecord::from(&change)).unwrap();
        let record: ChangeRecord = serde_json::from_str(&record).unwrap();
        let map = |_: Table, column: &str, value: Option<&str>| {
            Datum::text(format!("{column} {}", value.unwrap_or("null")))
        };
        let (_, operation) = record.operation(map).unwrap();
        let (old, new) = operation.rows();

        assert_eq!(old.unwrap().text(status), Some("scheduled"));
        assert_eq!(new.unwrap().text(status), Some("status done"));
        assert_eq!(
            new.unwrap().text(distro_queue::message),
            Some("message null")
        );
        assert_eq!(*new.unwrap().get(distro_queue::takedown), Datum::Absent);
    }

    #[test]
    fn a_batch_of_the_wal_is_valid_on_its_own_timeline_only() {
        let stored = Lineage {
            system_identifier: 7,
            timeline: 2,
        };

        let fits =
            [1, 2, 3].map(|timeline| batch(timeline, None, 9, Through::End).is_on_timeline(stored));
        assert_eq!(fits, [false, true, false]);
        assert!(!batch(2, None, 9, Through::End).is_on_timeline(Lineage {
            system_identifier: 8,
            timeline: 2
        }));
    }

    #[test]
    fn a_batch_of_the_outbox_may_be_the_first_on_a_new_timeline() {
        let stored = Lineage {
            system_identifier: 7,
            timeline: 2,
        };

        let of_outbox = |timeline, through| Batch {
            reader: Some(Uuid::nil()),
            ..batch(timeline, None, 9, through)
        };

        let fits =
            [1, 2, 3].map(|timeline| of_outbox(timeline, Through::End).is_on_timeline(stored));
        assert_eq!(fits, [false, true, true]);
        assert!(
            of_outbox(3, Through::Ordinal(0)).is_on_timeline(stored),
            "the last one, which ends where the WAL begins"
        );
    }

    #[test]
    fn a_batch_that_is_read_again_does_not_follow() {
        let first = batch(1, Some((5, 1)), 6, Through::End);
        let follows = |more: &Batch| more.follows(&first);

        assert!(follows(&batch(1, Some((7, 1)), 7, Through::Ordinal(1))));
        assert!(
            follows(&batch(1, None, 7, Through::End)),
            "the end of a transaction without changes"
        );
        assert!(
            !follows(&batch(1, Some((5, 1)), 8, Through::End)),
            "read again"
        );
        assert!(
            !follows(&batch(2, Some((7, 1)), 7, Through::Ordinal(1))),
            "another timeline"
        );
    }
}
