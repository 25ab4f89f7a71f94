//! A committed change of one row, in the reference schema's names, as capture hands it on.

use jiff::Timestamp;

use super::lsn::{Checkpoint, Position};
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
    /// By the log: its position is where it stands in it.
    Log,
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
