//! A committed change of one row, in the reference schema's names, as capture hands it on.

use jiff::Timestamp;

use super::lsn::{Checkpoint, Lineage, Position};
use super::table::{Column, Table};
use super::window::Window;

/// One column's value. Values are the server's text output, with the configured value maps applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Datum {
    /// Not sent: an unchanged out-of-line value, or a column outside the replica identity. It says nothing about the row.
    #[default]
    Absent,
    Null,
    Text(Box<str>),
}

impl Datum {
    pub fn text(value: impl Into<Box<str>>) -> Self {
        Datum::Text(value.into())
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Datum::Text(text) => Some(text),
            Datum::Absent | Datum::Null => None,
        }
    }
}

/// A row of a known table: one value for each of [`Table::columns`], in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuple {
    values: Box<[Datum]>,
}

impl Tuple {
    /// A row of which nothing is known yet.
    pub fn absent(table: Table) -> Self {
        Tuple { values: vec![Datum::Absent; table.columns().len()].into_boxed_slice() }
    }

    pub fn set(&mut self, column: Column, value: Datum) {
        self.values[usize::from(column.0)] = value;
    }

    pub fn get(&self, column: Column) -> &Datum {
        &self.values[usize::from(column.0)]
    }

    /// The value as text; nothing where it is null or was not sent.
    pub fn text(&self, column: Column) -> Option<&str> {
        self.get(column).as_str()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Column, &Datum)> {
        self.values.iter().enumerate().map(|(index, value)| (Column(index as u8), value))
    }

    /// Takes from `older` what was not sent: Postgres leaves unchanged out-of-line values out of the new row.
    pub fn fill_from(&mut self, older: &Tuple) {
        for (value, older) in self.values.iter_mut().zip(&older.values) {
            if *value == Datum::Absent {
                *value = older.clone();
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Insert {
        new: Tuple,
    },
    /// `old` is nothing when no column of the replica identity changed; columns outside the identity are absent in it.
    Update {
        old: Option<Tuple>,
        new: Tuple,
    },
    /// A row inserted by the same transaction that deleted the row with this key before: it moved to another partition or was
    /// written again. A [`Operation::Delete`] precedes it. `old` holds the key and the watched columns.
    Replace {
        old: Tuple,
        new: Tuple,
    },
    Delete {
        old: Tuple,
    },
    Truncate,
}

/// How a change came to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By the log: its position is where it stands in it, on the timeline that its commit was written on.
    Log { timeline: u32 },
    /// By the triggers' outbox, written by this transaction: its position is the window's number and its place in the outbox.
    Outbox { transaction: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub position: Position,
    pub origin: Origin,
    pub committed_at: Timestamp,
    /// Its transaction asked to raise no events; lookups follow it all the same.
    pub muted: bool,
    pub table: Table,
    pub operation: Operation,
}

/// Consecutive changes, and the checkpoint to store together with what they raise. The changes may be none.
#[derive(Clone, Debug)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub checkpoint: Checkpoint,
    /// The transaction that the last change belongs to. A lookup waits until its own snapshot sees it: a change can reach
    /// us a moment before the server shows it to other sessions.
    pub transaction: Option<u32>,
    /// The window of the outbox that was read; none when the WAL was read.
    pub window: Option<Window>,
}

impl Batch {
    /// Whether its positions mean what they mean on the timeline of the stored checkpoint. Who reads the log puts the checkpoint
    /// on a timeline before reading from it; a batch of the outbox may be the first on a new one.
    pub fn is_on_timeline(&self, stored: Lineage) -> bool {
        let Lineage { system_identifier, timeline } = self.checkpoint.lineage;
        system_identifier == stored.system_identifier
            && (timeline == stored.timeline || (!self.is_of_the_log() && timeline > stored.timeline))
    }

    /// The last batch of the outbox ends in the log too, before the first change that is read there: ordinals begin at one.
    fn is_of_the_log(&self) -> bool {
        self.window.is_none() && self.checkpoint.position.ordinal > 0
    }

    /// Whether it goes on where `earlier` ends.
    pub fn follows(&self, earlier: &Batch) -> bool {
        let begins = self.changes.first().map_or(self.checkpoint.position, |change| change.position);
        self.checkpoint.lineage == earlier.checkpoint.lineage && begins > earlier.checkpoint.position
    }
}

#[cfg(test)]
mod tests {
    use super::super::lsn::Lsn;
    use super::super::window::Bounds;
    use super::*;

    fn position(commit: u64, ordinal: u64) -> Position {
        Position { commit: Lsn(commit), ordinal }
    }

    fn batch(timeline: u32, first: Option<Position>, last: Position) -> Batch {
        let change = |position| Change {
            position,
            origin: Origin::Log { timeline },
            committed_at: jiff::Timestamp::UNIX_EPOCH,
            muted: false,
            table: Table::Release,
            operation: Operation::Truncate,
        };
        let lineage = Lineage { system_identifier: 7, timeline };
        let checkpoint = Checkpoint { lineage, position: last, resume: Lsn(1) };
        Batch { changes: first.map(change).into_iter().collect(), checkpoint, transaction: None, window: None }
    }

    #[test]
    fn a_batch_of_the_log_is_of_no_timeline_but_its_own() {
        let stored = Lineage { system_identifier: 7, timeline: 2 };
        let end = Position::end_of(Lsn(9));
        let fits = [1, 2, 3].map(|timeline| batch(timeline, None, end).is_on_timeline(stored));
        assert_eq!(fits, [false, true, false]);
        assert!(!batch(2, None, end).is_on_timeline(Lineage { system_identifier: 8, timeline: 2 }));
    }

    #[test]
    fn a_batch_of_the_outbox_may_be_the_first_on_a_new_timeline() {
        let stored = Lineage { system_identifier: 7, timeline: 2 };
        let window = Some(Window { bounds: Some(Bounds::nothing()), reader: uuid::Uuid::nil() });
        let of_outbox = |timeline| Batch { window: window.clone(), ..batch(timeline, None, Position::end_of(Lsn(9))) };
        let fits = [1, 2, 3].map(|timeline| of_outbox(timeline).is_on_timeline(stored));
        assert_eq!(fits, [false, true, true]);
        assert!(batch(3, None, position(9, 0)).is_on_timeline(stored), "the last one, which ends where the log begins");
    }

    #[test]
    fn what_is_read_again_does_not_go_on_where_a_batch_ends() {
        let first = batch(1, Some(position(5, 1)), Position::end_of(Lsn(6)));
        let goes_on = |more: &Batch| more.follows(&first);
        assert!(goes_on(&batch(1, Some(position(7, 1)), position(7, 1))));
        assert!(goes_on(&batch(1, None, Position::end_of(Lsn(7)))), "the end of a transaction by itself");
        assert!(!goes_on(&batch(1, Some(position(5, 1)), Position::end_of(Lsn(8)))), "read again");
        assert!(!goes_on(&batch(2, Some(position(7, 1)), position(7, 1))), "another timeline");
    }
}
