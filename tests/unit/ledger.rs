use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::lsn::Lsn;
use super::super::position::Position;
use super::super::table::{distro_queue, release};
use super::*;

const TABLE: Table = Table::DistroQueue;

fn row(id: i64, status: Option<&str>) -> Tuple {
    let mut row = Tuple::absent(TABLE);
    row.set(distro_queue::id, Datum::text(id.to_string()));
    row.set(
        distro_queue::status,
        status.map_or(Datum::Null, Datum::text),
    );

    row
}

fn change(operation: Operation) -> Change {
    Change {
        position: Position::Wal {
            timeline: 1,
            commit: Lsn::ZERO,
            ordinal: 1,
        },
        committed_at: Timestamp::UNIX_EPOCH,
        muted: false,
        table: TABLE,
        operation,
    }
}

fn state(text: &str) -> State {
    State::stored(text)
}

#[test]
fn a_state_holds_all_watched_values_in_order_and_converts_back_to_a_row() {
    let mut row = Tuple::stored(Table::Release);
    row.set(release::id, Datum::text("7"));
    row.set(release::review_status, Datum::text("to \"review\""));
    assert_eq!(
        State::of(Table::Release, &row),
        None,
        "the other value was not sent"
    );
    row.set(release::delivery_status, Datum::Null);

    let state = State::of(Table::Release, &row).unwrap();
    assert_eq!(state.as_str(), r#"["to \"review\"",null]"#);
    assert_eq!(state.row(Table::Release, 7), Some(row));
    assert_eq!(state.row(TABLE, 7), None, "of another table");
    assert_eq!(State::stored("x").row(TABLE, 7), None);
}

#[test]
fn every_watched_table_has_its_own_number() {
    let numbers: HashSet<i16> = tables().filter_map(relation).collect();
    assert_eq!(
        numbers.len(),
        Table::ALL
            .iter()
            .filter(|table| table.is_captured())
            .count()
    );
}

#[test]
fn the_last_change_of_a_row_counts() {
    let mut changes = LedgerChanges::default();
    changes.follow(&change(Operation::Insert {
        new: row(1, Some("a")),
    }));
    changes.follow(&change(Operation::Truncate));
    changes.follow(&change(Operation::Insert {
        new: row(2, Some("a")),
    }));
    changes.follow(&change(Operation::Update {
        old: Some(row(2, Some("a"))),
        new: row(3, Some("b")),
    }));
    changes.follow(&change(Operation::Delete {
        old: row(4, Some("a")),
    }));
    changes.follow(&change(Operation::Delete {
        old: row(5, Some("a")),
    }));
    changes.follow(&change(Operation::Replace {
        old: row(5, Some("a")),
        new: row(5, Some("a")),
    }));

    let mut rows: Vec<_> = changes
        .rows()
        .map(|(_, id, state)| (id, state.map(State::as_str)))
        .collect();
    rows.sort_unstable();

    assert_eq!(
        rows,
        [
            (2, None),
            (3, Some(r#"["b"]"#)),
            (4, None),
            (5, Some(r#"["a"]"#))
        ]
    );

    assert_eq!(changes.emptied().collect::<Vec<_>>(), [TABLE]);
}

#[test]
fn updates_of_other_columns_or_without_an_old_row_change_nothing() {
    let mut changes = LedgerChanges::default();
    let mut longer = row(1, Some("a"));

    longer.set(distro_queue::message, Datum::text("m"));
    changes.follow(&change(Operation::Update {
        old: Some(row(1, Some("a"))),
        new: longer,
    }));
    changes.follow(&change(Operation::Update {
        old: None,
        new: row(1, Some("b")),
    }));
    changes.follow(&Change {
        table: Table::Label,
        ..change(Operation::Truncate)
    });
    assert!(changes.is_empty());
}

#[test]
fn changes_without_old_values_keep_the_last_state_that_is_certain() {
    let mut unknown = Tuple::absent(TABLE);
    unknown.set(distro_queue::id, Datum::text("1"));

    let mut changes = LedgerChanges::default();
    changes.follow(&change(Operation::Delete {
        old: unknown.clone(),
    }));
    changes.follow(&change(Operation::Replace {
        old: unknown.clone(),
        new: row(1, Some("b")),
    }));
    changes.follow(&change(Operation::Update {
        old: Some(unknown),
        new: row(1, Some("b")),
    }));
    assert!(changes.is_empty());
}

#[test]
fn new_rows_raise_nothing_unless_the_ledger_is_complete() {
    let new = Difference::New(LedgerRow {
        id: 1,
        state: state("[]"),
    });

    assert!(missed(TABLE, &new, row(1, None), true).is_some());
    assert_eq!(missed(TABLE, &new, row(1, None), false), None);
    assert!(missed(Table::Release, &new, Tuple::absent(Table::Release), false).is_some());
    assert_eq!(
        missed(TABLE, &Difference::Gone(1), row(1, None), true),
        None
    );
}

/// A statement on one of five rows: sets its status, or deletes it if the status is none.
type Action = (i64, Option<u8>);

fn histories() -> impl Strategy<Value = Vec<Action>> {
    vec((0..5_i64, prop::option::weighted(0.85, 0..4_u8)), 0..60)
}

/// The platform's table: the status of each row.
#[derive(Default)]
struct PlatformTable(BTreeMap<i64, String>);

impl PlatformTable {
    /// Executes a statement and returns the change that the stream shows. None if it changes
    /// nothing.
    fn act(&mut self, (id, status): &Action) -> Option<Change> {
        let new = status.map(|status| format!("s{status}"));
        let old = match &new {
            Some(new) => self.0.insert(*id, new.clone()),
            None => self.0.remove(id),
        };

        let tuple = |status: &String| row(*id, Some(status));
        let operation = match (old, new) {
            (None, None) => return None,
            (None, Some(new)) => Operation::Insert { new: tuple(&new) },
            (Some(old), Some(new)) => Operation::Update {
                old: Some(tuple(&old)),
                new: tuple(&new),
            },
            (Some(old), None) => Operation::Delete { old: tuple(&old) },
        };

        Some(change(operation))
    }

    fn entries(&self) -> Vec<LedgerRow> {
        let entry = |(id, status): (&i64, &String)| LedgerRow {
            id: *id,
            state: state(&format!("[\"{status}\"]")),
        };
        self.0.iter().map(entry).collect()
    }
}

/// The ledger as the store keeps it.
#[derive(Default)]
struct Ledger(BTreeMap<i64, State>);

impl Ledger {
    fn apply(&mut self, changes: &LedgerChanges) {
        if changes.emptied().next().is_some() {
            self.0.clear();
        }

        for (_, id, state) in changes.rows() {
            match state {
                Some(state) => drop(self.0.insert(id, state.clone())),
                None => drop(self.0.remove(&id)),
            }
        }
    }

    fn entries(&self) -> Vec<LedgerRow> {
        self.0
            .iter()
            .map(|(id, state)| LedgerRow {
                id: *id,
                state: state.clone(),
            })
            .collect()
    }
}

fn compare(rows: &[LedgerRow], ledger: &[LedgerRow], part: usize) -> (u64, Vec<Difference>) {
    let mut comparison = Comparison::default();
    let mut rows = rows.chunks(part);
    let mut ledger = ledger.chunks(part + 1);
    let mut seen = 0;
    let mut found = Vec::new();

    while !comparison.is_complete() {
        if comparison.rows.need_more() {
            comparison
                .rows
                .add(rows.next().unwrap_or_default().to_vec());
        }

        if comparison.ledger.need_more() {
            comparison
                .ledger
                .add(ledger.next().unwrap_or_default().to_vec());
        }

        let (more, differences) = comparison.advance();
        seen += more;
        found.extend(differences);
    }

    (seen, found)
}

/// Applies a raised transition to the states that a receiver knows, and asserts that it starts in
/// the known state.
fn apply_transition(known: &mut BTreeMap<i64, String>, operation: &Operation) {
    match operation {
        Operation::Insert { new } => {
            let id = new.id().unwrap();
            let status = new.text(distro_queue::status).unwrap();
            assert_eq!(
                known.insert(id, status.to_owned()),
                None,
                "row {id} was raised as new twice"
            );
        }
        Operation::Update {
            old: Some(old),
            new,
        } => {
            let id = new.id().unwrap();
            let from = old.text(distro_queue::status).map(str::to_owned);
            let status = new.text(distro_queue::status).unwrap().to_owned();

            assert_eq!(
                known.insert(id, status),
                from,
                "the transition of row {id} starts in another state"
            );
        }
        Operation::Delete { old } => drop(known.remove(&old.id().unwrap())),
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// Streams changes, loses some in a gap, compares, and streams again: each raised transition of
    /// a row starts where the previous one ended, and the last one ends in the row's state.
    #[test]
    fn raised_transitions_of_a_row_form_a_chain_across_a_gap(before in histories(), hidden in histories(), after in histories(), part in 1..4_usize) {
        let mut table = PlatformTable::default();
        let mut ledger = Ledger::default();
        let mut known = BTreeMap::new();

        let stream = |table: &mut PlatformTable, ledger: &mut Ledger, known: &mut _, history: &[Action]| {
            // Batches of any length leave the same ledger.
            for batch in history.chunks(part) {
                let mut changes = LedgerChanges::default();

                for change in batch.iter().filter_map(|action| table.act(action)) {
                    changes.follow(&change);
                    apply_transition(known, &change.operation);
                }

                ledger.apply(&changes);
            }
        };

        stream(&mut table, &mut ledger, &mut known, &before);
        prop_assert_eq!(ledger.entries(), table.entries());

        for action in &hidden {
            table.act(action);
        }

        let (seen, differences) = compare(&table.entries(), &ledger.entries(), part);
        prop_assert_eq!(seen as usize, table.0.len());

        let mut changes = LedgerChanges::default();

        for difference in &differences {
            match difference {
                Difference::New(LedgerRow { id, state }) | Difference::Changed { id, to: state, .. } => {
                    changes.put(TABLE, *id, state.clone());
                    let operation = missed(TABLE, difference, row(*id, Some(&table.0[id])), true);
                    apply_transition(&mut known, &operation.unwrap());
                }
                Difference::Gone(id) => {
                    changes.remove(TABLE, *id);
                    known.remove(id);
                }
            }
        }

        ledger.apply(&changes);
        prop_assert_eq!(ledger.entries(), table.entries());
        prop_assert_eq!(&known, &table.0);
        stream(&mut table, &mut ledger, &mut known, &after);
        prop_assert_eq!(known, table.0);
    }
}
