//! The change that a row's present state supposes, to show which events a mapping raises.

use jiff::Timestamp;

use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::position::Position;
use crate::domain::table::{Column, Table, release, stream_radar_flag};

/// Returns the change by which a row would have just reached its present state: an update of all
/// watched columns from a state before.
pub fn supposed_change(table: Table, row: &Tuple) -> Change {
    let mut old = row.clone();

    for column in table.watched_columns() {
        old.set(column, state_before(table, column, row));
    }

    Change {
        position: Position::Outbox {
            window: 0,
            transaction: 0,
            ordinal: 0,
        },
        committed_at: Timestamp::now(),
        muted: false,
        table,
        operation: Operation::Update {
            old: Some(old),
            new: row.clone(),
        },
    }
}

/// Rules accept null as the state before, with two exceptions.
fn state_before(table: Table, column: Column, row: &Tuple) -> Datum {
    match (table, column, row.text(column)) {
        (Table::Release, release::review_status, Some("to_review")) => Datum::text("draft"),
        (Table::Release, release::review_status, Some(_)) => Datum::text("to_review"),
        (Table::StreamRadarFlag, stream_radar_flag::status, Some("resolved")) => {
            Datum::text("active")
        }
        _ => Datum::Null,
    }
}
