//! The ledger: the last state that the store saw of each watched or looked-up row, how changes
//! update it, and how a repair compares it with the platform's tables.

use std::collections::{HashMap, HashSet, VecDeque};

use super::change::{Change, Datum, Operation, Tuple};
use super::extra::Extra;
use super::table::{Column, ID, Table};

/// Returns the number under which the ledger stores a table. None for tables whose watched columns
/// the ledger does not have.
pub const fn relation(table: Table) -> Option<i16> {
    if table.is_captured() {
        table.number()
    } else {
        None
    }
}

/// Returns the tables that the ledger has.
pub fn tables() -> impl Iterator<Item = Table> {
    Table::ALL
        .iter()
        .copied()
        .filter(|table| relation(*table).is_some())
}

/// The values of a row's watched columns, in [`Table::watched`]'s order, as a JSON array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(Box<str>);

impl State {
    /// Returns the state of a row. None if a value was not sent: the state is then unknown.
    pub fn of(table: Table, row: &Tuple) -> Option<State> {
        State::of_columns(table.watched_columns(), row, None)
    }

    /// Returns the state of a row for the events of other rows: its columns of
    /// [`Table::looked_up`], then its extra values if there are any.
    pub fn of_looked_up(table: Table, row: &Tuple) -> Option<State> {
        let extra = (!row.extra.is_empty()).then(|| row.extra.to_json());
        State::of_columns(table.looked_up_columns(), row, extra.as_deref())
    }

    fn of_columns(
        columns: impl Iterator<Item = Column>,
        row: &Tuple,
        extra: Option<&str>,
    ) -> Option<State> {
        let mut values = Vec::new();

        for column in columns {
            match row.get(column) {
                Datum::Absent => return None,
                value => values.push(value.as_str()),
            }
        }

        values.extend(extra.map(Some));

        let json = serde_json::to_string(&values).expect("texts and nulls are JSON");
        Some(State(json.into()))
    }

    /// Wraps a state as the ledger stores it.
    pub fn stored(text: &str) -> State {
        State(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Converts the state to a row with the id and the watched columns; the others are absent. None
    /// if this is not a state of `table`.
    fn row(&self, table: Table, id: i64) -> Option<Tuple> {
        let columns: Vec<Column> = table.watched_columns().collect();
        row_of_columns(table, &columns, id, self.values()?)
    }

    /// Converts the state of [`State::of_looked_up`] to a row with the id, these columns and the
    /// extra values.
    pub fn looked_up_row(&self, table: Table, id: i64) -> Option<Tuple> {
        let columns: Vec<Column> = table.looked_up_columns().collect();
        let mut values = self.values()?;
        let has_extra = values.len() == columns.len() + 1;
        let extra = has_extra.then(|| values.pop()).flatten().flatten();

        let mut row = row_of_columns(table, &columns, id, values)?;
        row.extra = extra.as_deref().map(Extra::from_json).unwrap_or_default();
        Some(row)
    }

    fn values(&self) -> Option<Vec<Option<String>>> {
        serde_json::from_str(&self.0).ok()
    }
}

fn row_of_columns(
    table: Table,
    columns: &[Column],
    id: i64,
    values: Vec<Option<String>>,
) -> Option<Tuple> {
    if values.len() != columns.len() {
        return None;
    }

    let mut row = Tuple::stored(table);
    row.set(ID, Datum::text(id.to_string()));

    for (column, value) in columns.iter().zip(values) {
        row.set(*column, Datum::of(value.as_deref()));
    }

    Some(row)
}

/// The changes of a batch to the ledger. The last change of each row counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerChanges {
    emptied: HashSet<Table>,
    rows: HashMap<(Table, i64), Option<State>>,
}

impl LedgerChanges {
    /// Adds a change. An update that leaves the watched columns alone changes nothing. Neither does
    /// a change that comes without their old values: if the replica identity was lost, the ledger
    /// keeps the last state that is certain, from which a repair finds the transitions.
    pub fn follow(&mut self, change: &Change) {
        let table = change.table;
        if relation(table).is_none() {
            return;
        }

        let (old, new) = change.operation.rows();
        if let Some(old) = old
            && !old.has_watched(table)
            && new.is_none_or(|new| new.id() == old.id())
        {
            return;
        }

        match &change.operation {
            Operation::Insert { new } | Operation::Replace { new, .. } => self.set(table, new),
            Operation::Update { old: None, .. } => {}
            Operation::Update {
                old: Some(old),
                new,
            } => {
                let moved = old.id() != new.id();
                if moved {
                    self.remove_row(table, old);
                }

                if moved
                    || table
                        .watched_columns()
                        .any(|column| old.get(column) != new.get(column))
                {
                    self.set(table, new);
                }
            }
            Operation::Delete { old } => self.remove_row(table, old),
            Operation::Truncate => self.empty(table),
        }
    }

    /// Removes all rows of a table.
    pub fn empty(&mut self, table: Table) {
        self.rows.retain(|(other, _), _| *other != table);
        self.emptied.insert(table);
    }

    pub fn put(&mut self, table: Table, id: i64, state: State) {
        self.rows.insert((table, id), Some(state));
    }

    pub fn remove(&mut self, table: Table, id: i64) {
        self.rows.insert((table, id), None);
    }

    /// Tables that lose all their rows before the rows are stored.
    pub fn emptied(&self) -> impl Iterator<Item = Table> {
        self.emptied.iter().copied()
    }

    /// Rows with their new state. None for deleted rows.
    pub fn rows(&self) -> impl Iterator<Item = (Table, i64, Option<&State>)> {
        self.rows
            .iter()
            .map(|((table, id), state)| (*table, *id, state.as_ref()))
    }

    pub fn is_empty(&self) -> bool {
        self.emptied.is_empty() && self.rows.is_empty()
    }

    fn set(&mut self, table: Table, row: &Tuple) {
        if let (Some(id), Some(state)) = (row.id(), State::of(table, row)) {
            self.put(table, id, state);
        }
    }

    fn remove_row(&mut self, table: Table, row: &Tuple) {
        if let Some(id) = row.id() {
            self.remove(table, id);
        }
    }
}

/// A row of a table or of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    pub id: i64,
    pub state: State,
}

/// A difference between a table and the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A row that the ledger does not have.
    New(LedgerRow),
    Changed {
        id: i64,
        from: State,
        to: State,
    },
    /// A row that the table does not have any more.
    Gone(i64),
}

/// Compares a table with the ledger, page by page. Both are sorted by id.
#[derive(Debug, Default)]
pub struct Comparison {
    pub rows: Pages,
    pub ledger: Pages,
}

/// The rows of one side that were added and not compared yet.
#[derive(Debug, Default)]
pub struct Pages {
    pending: VecDeque<LedgerRow>,
    ended: bool,
}

impl Pages {
    /// Returns whether the comparison waits for the next page.
    pub fn need_more(&self) -> bool {
        self.pending.is_empty() && !self.ended
    }

    /// Adds a page. An empty page is the end.
    pub fn add(&mut self, page: Vec<LedgerRow>) {
        self.ended |= page.is_empty();
        self.pending.extend(page);
    }

    fn are_compared(&self) -> bool {
        self.pending.is_empty() && self.ended
    }
}

impl Comparison {
    pub fn is_complete(&self) -> bool {
        self.rows.are_compared() && self.ledger.are_compared()
    }

    /// Compares as far as both sides are known. Returns the number of the table's rows, and the
    /// differences by id.
    pub fn advance(&mut self) -> (u64, Vec<Difference>) {
        let mut compared = 0;
        let mut found = Vec::new();

        while !self.rows.need_more() && !self.ledger.need_more() {
            let next = self
                .rows
                .pending
                .front()
                .into_iter()
                .chain(self.ledger.pending.front())
                .map(|row| row.id)
                .min();

            let Some(next) = next else { break };
            let row = self.rows.pending.pop_front_if(|row| row.id == next);
            let known = self.ledger.pending.pop_front_if(|known| known.id == next);

            compared += u64::from(row.is_some());

            match (row, known) {
                (Some(row), Some(known)) if row.state != known.state => {
                    found.push(Difference::Changed {
                        id: next,
                        from: known.state,
                        to: row.state,
                    });
                }
                (Some(row), None) => found.push(Difference::New(row)),
                (None, Some(_)) => found.push(Difference::Gone(next)),
                _ => {}
            }
        }

        (compared, found)
    }
}

/// Returns the change from the ledger's state to the row's current state. None for a row that
/// raises no event: a deleted one, or one that is new to a ledger that is not `complete`, because
/// its earlier state is unknown.
///
/// A new release always counts: the only event of a release that a repair raises is
/// `release.distributed`, which has a complete ledger of its own.
pub fn missed(
    table: Table,
    difference: &Difference,
    row: Tuple,
    complete: bool,
) -> Option<Operation> {
    match difference {
        Difference::New(_) if complete || table == Table::Release => {
            Some(Operation::Insert { new: row })
        }
        Difference::Changed { id, from, .. } => Some(Operation::Update {
            old: from.row(table, *id),
            new: row,
        }),
        Difference::New(_) | Difference::Gone(_) => None,
    }
}

#[cfg(test)]
#[path = "../../tests/unit/ledger.rs"]
mod tests;
