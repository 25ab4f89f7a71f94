//! Reading a changed row: what moved, and columns as the types that the reference schema gives them.

use std::ops::Deref;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;

use super::value::{Amount, Date, Time};
use super::{Fact, Facts, Halt, LookupKey};
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::UserId;
use crate::domain::table::{Column, Table};

/// A row as the change leaves it. A value that was not sent is asked for: it is not null.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    table: Table,
    tuple: &'a Tuple,
}

impl<'a> Row<'a> {
    /// The text of a column; nothing where it is null.
    pub fn optional(&self, column: Column) -> Fact<Option<&'a str>> {
        match self.tuple.get(column) {
            Datum::Text(text) => Ok(Some(text)),
            Datum::Null => Ok(None),
            Datum::Absent => Err(self.absent(column)),
        }
    }

    fn absent(&self, column: Column) -> Halt {
        let id = self.table.column("id").and_then(|id| self.tuple.text(id)?.parse().ok());
        id.map_or_else(|| self.malformed(column, "not sent"), |id| Halt::Lookup(LookupKey::Row(self.table, id)))
    }

    /// The text of a column that must not be null.
    pub fn required(&self, column: Column) -> Fact<&'a str> {
        self.optional(column)?.ok_or_else(|| self.malformed(column, "null"))
    }

    pub fn optional_integer(&self, column: Column) -> Fact<Option<i64>> {
        let text = self.optional(column)?;
        text.map(|text| text.parse().map_err(|_| self.malformed(column, "no whole number of 64 bits"))).transpose()
    }

    pub fn integer(&self, column: Column) -> Fact<i64> {
        self.optional_integer(column)?.ok_or_else(|| self.malformed(column, "null"))
    }

    /// The id of the row that this one belongs to. Without it nobody owns the event, for the reason given.
    pub fn parent(&self, column: Column, orphaned: &'static str) -> Fact<i64> {
        self.optional_integer(column)?.ok_or(Halt::Unrouted(orphaned))
    }

    /// A boolean; null is false. Beside Postgres's own words it takes those of the platforms that keep a number.
    pub fn boolean(&self, column: Column) -> Fact<bool> {
        match self.optional(column)? {
            Some("t" | "true" | "1") => Ok(true),
            None | Some("f" | "false" | "0") => Ok(false),
            Some(_) => Err(self.malformed(column, "no boolean")),
        }
    }

    pub fn optional_time(&self, column: Column) -> Fact<Option<Time>> {
        let text = self.optional(column)?;
        text.map(|text| Time::parse(text).ok_or_else(|| self.malformed(column, "no finite time"))).transpose()
    }

    pub fn time(&self, column: Column) -> Fact<Time> {
        self.optional_time(column)?.ok_or_else(|| self.malformed(column, "null"))
    }

    pub fn optional_date(&self, column: Column) -> Fact<Option<Date>> {
        let text = self.optional(column)?;
        text.map(|text| Date::parse(text).ok_or_else(|| self.malformed(column, "no finite date"))).transpose()
    }

    pub fn amount(&self, column: Column) -> Fact<Amount> {
        Amount::parse(self.required(column)?).ok_or_else(|| self.malformed(column, "no finite number"))
    }

    /// One of a fixed set of words.
    pub fn word<T: Deserialize<'a>>(&self, column: Column) -> Fact<T> {
        word(self.required(column)?).ok_or_else(|| self.malformed(column, "a word outside its documented set"))
    }

    /// Names table, row and column, but not the value: it may be nobody's business who reads logs.
    pub fn malformed(&self, column: Column, what: &str) -> Halt {
        let (table, name) = (self.table.name(), self.table.columns()[usize::from(column.0)]);
        let id = self.table.column("id").and_then(|id| self.tuple.text(id)).unwrap_or("unknown");
        Halt::Malformed(format!("{table} {id}: {name} is {what}; correct the row, or map it in source.tables.{table}"))
    }
}

/// `text` as one of the words that `T` knows.
pub(super) fn word<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    let deserializer = IntoDeserializer::<ValueError>::into_deserializer(text);
    T::deserialize(deserializer).ok()
}

/// A column that came to have another value, or that a new row brought along.
#[derive(Clone, Copy)]
pub(super) struct Transition<'a> {
    pub row: Row<'a>,
    pub inserted: bool,
    pub from: Option<&'a str>,
    pub to: Option<&'a str>,
}

impl<'a> Deref for Transition<'a> {
    type Target = Row<'a>;

    fn deref(&self) -> &Row<'a> {
        &self.row
    }
}

impl<'a> Transition<'a> {
    /// What the change did to `column`. Nothing where it left it alone and where it is not known what stood there before.
    pub fn of(change: &'a Change, column: Column) -> Option<Self> {
        let row = |tuple| Row { table: change.table, tuple };
        match &change.operation {
            Operation::Insert { new } => {
                Some(Transition { row: row(new), inserted: true, from: None, to: new.text(column) })
            }
            Operation::Update { old: Some(old), new } | Operation::Replace { old, new } => {
                let (before, after) = (old.get(column), new.get(column));
                let known = *before != Datum::Absent && *after != Datum::Absent;
                (known && before != after).then(|| Transition {
                    row: row(new),
                    inserted: false,
                    from: before.as_str(),
                    to: after.as_str(),
                })
            }
            Operation::Update { old: None, .. } | Operation::Delete { .. } | Operation::Truncate => None,
        }
    }

    /// The same, if it is a move to `value`.
    pub fn to(change: &'a Change, column: Column, value: &str) -> Option<Self> {
        Transition::of(change, column).filter(|transition| transition.to == Some(value))
    }
}

/// The user to tell about a release of `label`.
pub(super) fn owner_of(label: i64, facts: &dyn Facts) -> Fact<UserId> {
    facts.label_owner(label)?.ok_or(Halt::Unrouted("label_without_user"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{insert, tuple, update};
    use super::*;
    use crate::domain::table::{distro_queue, stream_radar_flag};

    fn read<T>(column: Column, value: Option<&str>, read: impl FnOnce(Row<'_>) -> Fact<T>) -> Fact<T> {
        let mut tuple = tuple(Table::StreamRadarFlag, &[("id", "7")]);
        tuple.set(column, value.map_or(Datum::Null, Datum::text));
        read(Row { table: Table::StreamRadarFlag, tuple: &tuple })
    }

    fn is_malformed<T>(result: Fact<T>) -> bool {
        matches!(result, Err(Halt::Malformed(_)))
    }

    #[test]
    fn integers_are_whole_and_of_64_bits() {
        let column = stream_radar_flag::track_id;
        assert_eq!(read(column, Some("9223372036854775807"), |row| row.integer(column)), Ok(i64::MAX));
        assert_eq!(read(column, Some("-5"), |row| row.integer(column)), Ok(-5));
        assert_eq!(read(column, None, |row| row.optional_integer(column)), Ok(None));
        assert_eq!(read(column, None, |row| row.parent(column, "orphan")), Err(Halt::Unrouted("orphan")));
        assert!(is_malformed(read(column, None, |row| row.integer(column))));
        for bad in ["", "1.0", "9223372036854775808", "seven"] {
            assert!(is_malformed(read(column, Some(bad), |row| row.optional_integer(column))), "{bad}");
            assert!(is_malformed(read(column, Some(bad), |row| row.parent(column, "orphan"))), "{bad}");
        }
    }

    #[test]
    fn booleans_come_in_the_words_of_postgres_of_json_and_of_numbers() {
        let column = stream_radar_flag::status;
        let value = |text| read(column, text, |row| row.boolean(column));
        for text in ["t", "true", "1"] {
            assert_eq!(value(Some(text)), Ok(true), "{text}");
        }
        for text in [Some("f"), Some("false"), Some("0"), None] {
            assert_eq!(value(text), Ok(false), "{text:?}");
        }
        assert!(is_malformed(value(Some("maybe"))));
    }

    #[test]
    fn a_malformed_value_is_named_by_row_and_column_but_not_told() {
        let column = stream_radar_flag::track_id;
        let Err(Halt::Malformed(message)) = read(column, Some("hunter2"), |row| row.integer(column)) else {
            panic!("not refused")
        };
        assert!(message.starts_with("stream_radar_flag 7: track_id is no whole number"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn a_value_that_was_not_sent_is_asked_for_and_is_not_null() {
        let column = stream_radar_flag::isrc;
        let mut tuple = tuple(Table::StreamRadarFlag, &[("id", "7")]);
        tuple.set(column, Datum::Absent);
        let row = Row { table: Table::StreamRadarFlag, tuple: &tuple };
        let wanted = Halt::Lookup(LookupKey::Row(Table::StreamRadarFlag, 7));
        assert_eq!(row.optional(column), Err(wanted.clone()));
        assert_eq!(row.required(column), Err(wanted.clone()));
        assert_eq!(row.optional_time(column).err(), Some(wanted.clone()));
        assert_eq!(row.boolean(column), Err(wanted));
        tuple.set(stream_radar_flag::id, Datum::Absent);
        let row = Row { table: Table::StreamRadarFlag, tuple: &tuple };
        assert!(is_malformed(row.optional(column)), "nobody can say which row it is");
    }

    #[test]
    fn a_column_that_is_not_known_on_either_side_did_not_move() {
        let row = |status: Datum| {
            let mut tuple = tuple(Table::DistroQueue, &[("id", "1")]);
            tuple.set(distro_queue::status, status);
            tuple
        };
        let moves = |old: Datum, new: Datum| {
            let change = update(Table::DistroQueue, Some(row(old)), row(new));
            Transition::of(&change, distro_queue::status).is_some()
        };
        assert!(moves(Datum::text("a"), Datum::text("b")));
        assert!(moves(Datum::Null, Datum::text("b")));
        assert!(moves(Datum::text("a"), Datum::Null));
        assert!(!moves(Datum::text("a"), Datum::text("a")));
        assert!(!moves(Datum::Null, Datum::Null));
        assert!(!moves(Datum::Absent, Datum::text("b")));
        assert!(!moves(Datum::text("a"), Datum::Absent));
    }

    #[test]
    fn an_update_without_its_old_row_did_not_move_it() {
        let row = || tuple(Table::DistroQueue, &[("id", "1"), ("status", "complete")]);
        let moved = |change: &Change| Transition::of(change, distro_queue::status).is_some();
        assert!(moved(&insert(Table::DistroQueue, row())));
        assert!(!moved(&update(Table::DistroQueue, None, row())));
    }
}
