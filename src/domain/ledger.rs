//! What the store last saw of each watched row, how the stream moves it on, and what a look at the rows themselves finds
//! different.

use std::collections::{HashMap, HashSet, VecDeque};

use super::change::{Change, Datum, Operation, Tuple};
use super::table::{Column, Table};

/// Which table a row of the ledger is of: numbers that are stored and never change.
pub const fn relation(table: Table) -> Option<i16> {
    match table {
        Table::Release => Some(1),
        Table::DistroQueue => Some(2),
        Table::TranscoderQueue => Some(3),
        Table::Payment => Some(4),
        Table::PreflightReport => Some(5),
        Table::StreamRadarFlag => Some(6),
        _ => None,
    }
}

/// The tables whose rows the ledger has.
pub fn tables() -> impl Iterator<Item = Table> {
    Table::ALL.iter().copied().filter(|table| relation(*table).is_some())
}

/// The values of a row's watched columns, in [`Table::watched`]'s order, as a JSON array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Box<str>);

impl State {
    /// Nothing where one of the values was not sent: the state is then whatever it was.
    pub fn of(table: Table, row: &Tuple) -> Option<State> {
        let mut values = Vec::with_capacity(table.watched().len());
        for column in watched(table) {
            match row.get(column) {
                Datum::Absent => return None,
                value => values.push(value.as_str()),
            }
        }
        let json = serde_json::to_string(&values).expect("texts and nulls are JSON");
        Some(State(json.into()))
    }

    /// As it was stored.
    pub fn stored(text: &str) -> State {
        State(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A row of which only the id and the watched columns are known; nothing where the state is not one of this table's.
    fn row(&self, table: Table, id: i64) -> Option<Tuple> {
        let values: Vec<Option<String>> = serde_json::from_str(&self.0).ok()?;
        if values.len() != table.watched().len() {
            return None;
        }
        let mut row = Tuple::absent(table);
        row.set(ID, Datum::text(id.to_string()));
        for (column, value) in watched(table).zip(values) {
            row.set(column, value.map_or(Datum::Null, Datum::text));
        }
        Some(row)
    }
}

/// Every captured table has its id in the first column.
const ID: Column = Column(0);

fn watched(table: Table) -> impl Iterator<Item = Column> {
    table.watched().iter().filter_map(move |name| table.column(name))
}

fn row_id(row: &Tuple) -> Option<i64> {
    row.text(ID)?.parse().ok()
}

/// What a stretch of the stream changes of the ledger: the last word on each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerChanges {
    emptied: HashSet<Table>,
    rows: HashMap<(Table, i64), Option<State>>,
}

impl LedgerChanges {
    /// Follows the stream by one change. An update that left the watched columns alone, or does not say what they were,
    /// changes nothing: under an index identity the first, and where the identity was lost the ledger goes on knowing what
    /// was last certain.
    pub fn follow(&mut self, change: &Change) {
        let table = change.table;
        if relation(table).is_none() {
            return;
        }
        match &change.operation {
            Operation::Insert { new } | Operation::Replace { new, .. } => self.set(table, new),
            Operation::Update { old: None, .. } => {}
            Operation::Update { old: Some(old), new } => {
                let moved = row_id(old) != row_id(new);
                if moved {
                    self.remove_row(table, old);
                }
                if moved || watched(table).any(|column| old.get(column) != new.get(column)) {
                    self.set(table, new);
                }
            }
            Operation::Delete { old } => self.remove_row(table, old),
            Operation::Truncate => {
                self.rows.retain(|(other, _), _| *other != table);
                self.emptied.insert(table);
            }
        }
    }

    pub fn put(&mut self, table: Table, id: i64, state: State) {
        self.rows.insert((table, id), Some(state));
    }

    pub fn remove(&mut self, table: Table, id: i64) {
        self.rows.insert((table, id), None);
    }

    /// Tables that are empty before the rows are put in.
    pub fn emptied(&self) -> impl Iterator<Item = Table> {
        self.emptied.iter().copied()
    }

    /// Rows with what they are now; nothing for those that are gone.
    pub fn rows(&self) -> impl Iterator<Item = (Table, i64, Option<&State>)> {
        self.rows.iter().map(|((table, id), state)| (*table, *id, state.as_ref()))
    }

    pub fn is_empty(&self) -> bool {
        self.emptied.is_empty() && self.rows.is_empty()
    }

    fn set(&mut self, table: Table, row: &Tuple) {
        if let (Some(id), Some(state)) = (row_id(row), State::of(table, row)) {
            self.put(table, id, state);
        }
    }

    fn remove_row(&mut self, table: Table, row: &Tuple) {
        if let Some(id) = row_id(row) {
            self.remove(table, id);
        }
    }
}

/// One row of a table or of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: i64,
    pub state: State,
}

/// What a table's rows are against what the ledger has of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The ledger does not have the row.
    New(Entry),
    Changed {
        id: i64,
        from: State,
        to: State,
    },
    /// The row is no more.
    Gone(i64),
}

/// Compares two sides that come sorted by id, a part at a time.
#[derive(Debug, Default)]
pub struct Comparison {
    rows: Side,
    ledger: Side,
}

#[derive(Debug, Default)]
struct Side {
    entries: VecDeque<Entry>,
    ended: bool,
}

impl Side {
    fn is_wanting(&self) -> bool {
        self.entries.is_empty() && !self.ended
    }

    /// An empty part is the end.
    fn extend(&mut self, part: Vec<Entry>) {
        self.ended |= part.is_empty();
        self.entries.extend(part);
    }
}

impl Comparison {
    /// Whether the next part of the table's rows must come before the comparison can go on.
    pub fn wants_rows(&self) -> bool {
        self.rows.is_wanting()
    }

    pub fn wants_ledger(&self) -> bool {
        self.ledger.is_wanting()
    }

    /// The next part of the table's rows, behind all before; empty at the end.
    pub fn add_rows(&mut self, part: Vec<Entry>) {
        self.rows.extend(part);
    }

    pub fn add_ledger(&mut self, part: Vec<Entry>) {
        self.ledger.extend(part);
    }

    pub fn is_over(&self) -> bool {
        let over = |side: &Side| side.ended && side.entries.is_empty();
        over(&self.rows) && over(&self.ledger)
    }

    /// What differs, as far as both sides are known. How many rows that were, and the differences in order of id.
    pub fn advance(&mut self) -> (u64, Vec<Difference>) {
        let (mut seen, mut found) = (0, Vec::new());
        while !self.rows.is_wanting() && !self.ledger.is_wanting() {
            let ids = (self.rows.entries.front().map(|row| row.id), self.ledger.entries.front().map(|known| known.id));
            let (takes_row, takes_known) = match ids {
                (None, None) => break,
                (row, known) => {
                    let next = row.into_iter().chain(known).min();
                    (row == next, known == next)
                }
            };
            let row = takes_row.then(|| self.rows.entries.pop_front()).flatten();
            let known = takes_known.then(|| self.ledger.entries.pop_front()).flatten();
            seen += u64::from(row.is_some());
            match (row, known) {
                (Some(row), Some(known)) if row.state != known.state => {
                    found.push(Difference::Changed { id: row.id, from: known.state, to: row.state });
                }
                (Some(row), None) => found.push(Difference::New(row)),
                (None, Some(known)) => found.push(Difference::Gone(known.id)),
                _ => {}
            }
        }
        (seen, found)
    }
}

/// The change that leads from what the ledger has to the row as it is; nothing for a row that raises nothing: one that is
/// gone, or one the ledger does not have where it is not `complete`, as nobody knows what that row was.
///
/// A release's own ledger of distributions is always complete, so a release may come as new: nothing else is raised by one.
pub fn missed(table: Table, difference: &Difference, row: Tuple, complete: bool) -> Option<Operation> {
    match difference {
        Difference::New(_) if complete || table == Table::Release => Some(Operation::Insert { new: row }),
        Difference::Changed { id, from, .. } => Some(Operation::Update { old: from.row(table, *id), new: row }),
        Difference::New(_) | Difference::Gone(_) => None,
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
