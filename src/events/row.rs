//! Reads a changed row: which column changed, and column values as the types of the reference
//! schema.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;

use super::rule::{Fact, Facts, LookupKey, NoEvent, Owner};
use super::value::FromText;
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::table::{Column, Table};

/// A changed row and the column of it that changed, or a column of an inserted row.
#[derive(Clone, Copy)]
pub(super) struct Transition<'a> {
    table: Table,
    row: &'a Tuple,
    pub inserted: bool,
    pub from: Option<&'a str>,
    pub to: Option<&'a str>,
}

impl<'a> Transition<'a> {
    /// Returns the transition of `column`. An update has none if the value did not change or an old
    /// value of a watched column is unknown: a repair finds the transitions of all of them.
    pub fn of(change: &'a Change, column: Column) -> Fact<Self> {
        let (old, row) = match &change.operation {
            Operation::Insert { new } => (None, new),
            Operation::Update {
                old: Some(old),
                new,
            }
            | Operation::Replace { old, new } => (Some(old), new),
            Operation::Update { old: None, .. }
            | Operation::Delete { .. }
            | Operation::Truncate => {
                return Err(NoEvent::NotApplicable);
            }
        };

        let after = row.get(column);
        let changed =
            |before: &Datum| before != after && *before != Datum::Absent && *after != Datum::Absent;

        require(old.is_none_or(|old| changed(old.get(column)) && old.has_watched(change.table)))?;
        let from = old.and_then(|old| old.text(column));
        Ok(Transition {
            table: change.table,
            row,
            inserted: old.is_none(),
            from,
            to: after.as_str(),
        })
    }

    /// Returns the transition of `column` to `value`.
    pub fn to(change: &'a Change, column: Column, value: &str) -> Fact<Self> {
        let transition = Transition::of(change, column)?;
        require(transition.to == Some(value))?;
        Ok(transition)
    }

    /// Returns the new text of a column, or None if it is null. A value that the change does not
    /// contain must be looked up.
    pub fn text(&self, column: Column) -> Fact<Option<&'a str>> {
        match self.row.get(column) {
            Datum::Text(text) => Ok(Some(text)),
            Datum::Null => Ok(None),
            Datum::Absent => Err(self.absent(column)),
        }
    }

    /// Returns the new value of a column that may be null.
    pub fn optional<T: FromText>(&self, column: Column) -> Fact<Option<T>> {
        let parse = |text| {
            T::from_text(text)
                .ok_or_else(|| self.malformed(column, &format!("not {}", T::EXPECTED)))
        };
        self.text(column)?.map(parse).transpose()
    }

    /// Returns the new value of a column that must not be null.
    pub fn required<T: FromText>(&self, column: Column) -> Fact<T> {
        self.optional(column)?
            .ok_or_else(|| self.malformed(column, "null"))
    }

    /// Returns the id of the parent row. Without a parent the event has no owner, and `orphaned` is
    /// the reason.
    pub fn parent(&self, column: Column, orphaned: &'static str) -> Fact<i64> {
        self.optional(column)?.ok_or(NoEvent::Unrouted(orphaned))
    }

    fn absent(&self, column: Column) -> NoEvent {
        let id = self.row.id();
        id.map_or_else(
            || self.malformed(column, "not sent"),
            |id| NoEvent::Lookup(LookupKey::Row(self.table, id)),
        )
    }

    /// Names table, row and column, but not the value: it may be confidential, and the message is
    /// logged.
    fn malformed(&self, column: Column, what: &str) -> NoEvent {
        let table = self.table.name();
        let name = self.table.columns()[usize::from(column.0)];
        let id = self.id().unwrap_or("unknown");

        NoEvent::Malformed(format!(
            "{table} {id}: {name} is {what}; correct the row, or map it in source.tables.{table}"
        ))
    }

    fn id(&self) -> Option<&'a str> {
        self.row.text(self.table.column("id")?)
    }
}

/// Ends the rule without an event unless `condition` holds.
pub(super) fn require(condition: bool) -> Fact<()> {
    if condition {
        Ok(())
    } else {
        Err(NoEvent::NotApplicable)
    }
}

/// Parses `text` as the serialised name of one of `T`'s variants.
pub(super) fn variant<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    T::deserialize(IntoDeserializer::<ValueError>::into_deserializer(text)).ok()
}

/// Returns the owner of `label`.
pub(super) fn owner_of(label: i64, facts: &dyn Facts) -> Fact<Owner> {
    let user = facts
        .label_owner(label)?
        .ok_or(NoEvent::Unrouted("label_without_user"))?;
    Ok(Owner {
        user,
        label: Some(label),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixtures::{insert, tuple, update};
    use super::*;
    use crate::domain::table::{distro_queue, release, stream_radar_flag};

    fn read<T>(
        column: Column,
        value: Option<&str>,
        read: impl FnOnce(Transition<'_>) -> Fact<T>,
    ) -> Fact<T> {
        let mut tuple = tuple(Table::StreamRadarFlag, &[("id", "7")]);
        tuple.set(column, value.map_or(Datum::Null, Datum::text));
        read(inserted(&tuple))
    }

    fn inserted(row: &Tuple) -> Transition<'_> {
        Transition {
            table: Table::StreamRadarFlag,
            row,
            inserted: true,
            from: None,
            to: None,
        }
    }

    fn is_malformed<T>(result: Fact<T>) -> bool {
        matches!(result, Err(NoEvent::Malformed(_)))
    }

    #[test]
    fn integers_must_fit_64_bits() {
        let column = stream_radar_flag::track_id;
        assert_eq!(
            read(column, Some("9223372036854775807"), |row| row
                .required::<i64>(column)),
            Ok(i64::MAX)
        );
        assert_eq!(
            read(column, Some("-5"), |row| row.required::<i64>(column)),
            Ok(-5)
        );
        assert_eq!(
            read(column, None, |row| row.optional::<i64>(column)),
            Ok(None)
        );
        assert_eq!(
            read(column, None, |row| row.parent(column, "orphan")),
            Err(NoEvent::Unrouted("orphan"))
        );
        assert!(is_malformed(
            read(column, None, |row| row.required::<i64>(column))
        ));

        for bad in ["", "1.0", "9223372036854775808", "seven"] {
            assert!(
                is_malformed(read(column, Some(bad), |row| row.optional::<i64>(column))),
                "{bad}"
            );
            assert!(
                is_malformed(read(column, Some(bad), |row| row.parent(column, "orphan"))),
                "{bad}"
            );
        }
    }

    #[test]
    fn booleans_may_be_written_as_in_postgres_json_or_as_numbers() {
        let column = stream_radar_flag::status;
        let value = |text| read(column, text, |row| row.optional::<bool>(column));

        for text in ["t", "true", "1"] {
            assert_eq!(value(Some(text)), Ok(Some(true)), "{text}");
        }

        for text in ["f", "false", "0"] {
            assert_eq!(value(Some(text)), Ok(Some(false)), "{text}");
        }

        assert_eq!(value(None), Ok(None));
        assert!(is_malformed(value(Some("maybe"))));
    }

    #[test]
    fn an_error_names_row_and_column_but_not_the_value() {
        let column = stream_radar_flag::track_id;
        let Err(NoEvent::Malformed(message)) =
            read(column, Some("hunter2"), |row| row.required::<i64>(column))
        else {
            panic!("a malformed integer was accepted")
        };

        assert!(
            message.starts_with("stream_radar_flag 7: track_id is not a 64-bit integer"),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn a_value_that_was_not_sent_is_looked_up_and_not_taken_as_null() {
        let column = stream_radar_flag::isrc;
        let mut tuple = tuple(Table::StreamRadarFlag, &[("id", "7")]);

        tuple.set(column, Datum::Absent);
        let row = inserted(&tuple);
        let lookup = NoEvent::Lookup(LookupKey::Row(Table::StreamRadarFlag, 7));

        assert_eq!(row.optional::<String>(column), Err(lookup.clone()));
        assert_eq!(row.required::<String>(column), Err(lookup.clone()));
        assert_eq!(row.optional::<i64>(column), Err(lookup.clone()));
        assert_eq!(row.optional::<bool>(column), Err(lookup));
        tuple.set(stream_radar_flag::id, Datum::Absent);

        let row = inserted(&tuple);
        assert!(
            is_malformed(row.text(column)),
            "without an id the row cannot be looked up"
        );
    }

    #[test]
    fn a_column_unknown_before_or_after_has_no_transition() {
        let row = |status: Datum| {
            let mut tuple = tuple(Table::DistroQueue, &[("id", "1")]);
            tuple.set(distro_queue::status, status);
            tuple
        };

        let changed = |old: Datum, new: Datum| {
            let change = update(Table::DistroQueue, Some(row(old)), row(new));
            Transition::of(&change, distro_queue::status).is_ok()
        };

        assert!(changed(Datum::text("a"), Datum::text("b")));
        assert!(changed(Datum::Null, Datum::text("b")));
        assert!(changed(Datum::text("a"), Datum::Null));
        assert!(!changed(Datum::text("a"), Datum::text("a")));
        assert!(!changed(Datum::Null, Datum::Null));
        assert!(!changed(Datum::Absent, Datum::text("b")));
        assert!(!changed(Datum::text("a"), Datum::Absent));
    }

    #[test]
    fn a_row_of_which_an_old_watched_value_is_unknown_has_no_transition() {
        let new = || tuple(Table::Release, &[("review_status", "audit")]);
        let mut old = tuple(Table::Release, &[("review_status", "draft")]);
        let has_transition = |old: &Tuple| {
            let change = update(Table::Release, Some(old.clone()), new());
            Transition::of(&change, release::review_status).is_ok()
        };

        old.set(release::delivery_status, Datum::Absent);
        assert!(!has_transition(&old));
        old.set(release::delivery_status, Datum::Null);
        assert!(has_transition(&old));
    }

    #[test]
    fn an_update_without_an_old_row_has_no_transition() {
        let row = || tuple(Table::DistroQueue, &[("id", "1"), ("status", "complete")]);
        let has_transition = |change: &Change| Transition::of(change, distro_queue::status).is_ok();
        assert!(has_transition(&insert(Table::DistroQueue, row())));
        assert!(!has_transition(&update(Table::DistroQueue, None, row())));
    }
}
