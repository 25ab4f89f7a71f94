//! Compares the watched tables with the ledger, in pages.

use std::collections::{HashMap, HashSet};

use crate::config::Source;
use crate::domain::change::{Change, Tuple};
use crate::domain::ledger::{self, Comparison, Difference, LedgerChanges, LedgerRow};
use crate::domain::lsn::Lsn;
use crate::domain::position::Position;
use crate::domain::table::Table;
use crate::primary::error::Result;
use crate::primary::snapshot::{Rows, SnapshotSession};
use crate::store::Transaction;
use crate::store::ledger::ledger_page;

/// Rows of the ledger read at once: as many as the cursor over the table fetches.
const PAGE: i64 = 5_000;
/// Changes returned at once.
const CHANGES: usize = 1_000;

/// Some differences of one table.
#[derive(Debug)]
pub struct Found {
    pub table: Table,
    /// Rows that were compared.
    pub compared: u64,
    pub changed: u64,
    /// Rows that the ledger lacks.
    pub new: u64,
    /// The ledger is incomplete for this table, so rows that it lacks may be old ones.
    pub unknown: bool,
    pub gone: u64,
    /// The changes that lead from the ledger's rows to the table's.
    pub changes: Vec<Change>,
    /// The changes that bring the ledger up to date.
    pub ledger: LedgerChanges,
}

/// Iterates over all differences, table by table, ordered by id.
pub struct Differences<'a> {
    source: &'a Source,
    snapshot: &'a SnapshotSession,
    complete: HashSet<Table>,
    commit: Lsn,
    /// The timeline of `commit`.
    timeline: u32,
    ordinal: u64,
    tables: Vec<Table>,
    current: Option<OpenTable<'a>>,
}

/// A table whose comparison has started.
struct OpenTable<'a> {
    table: Table,
    rows: Rows<'a>,
    comparison: Comparison,
    /// The ledger's rows up to this id were read.
    after_id: Option<i64>,
    compared: u64,
    pending: Vec<Difference>,
}

impl<'a> Differences<'a> {
    pub(crate) fn new(
        source: &'a Source,
        snapshot: &'a SnapshotSession,
        complete: HashSet<Table>,
        commit: Lsn,
        timeline: u32,
    ) -> Differences<'a> {
        let mut tables: Vec<Table> = ledger::tables()
            .filter(|table| source.follows(*table))
            .collect();
        tables.reverse();

        Differences {
            source,
            snapshot,
            complete,
            commit,
            timeline,
            ordinal: 0,
            tables,
            current: None,
        }
    }

    /// Returns the next differences; none at the end of the last table.
    pub async fn next(&mut self, transaction: &Transaction<'_>) -> Result<Option<Found>> {
        let mut open = match self.current.take() {
            Some(open) => open,
            None => {
                let Some(table) = self.tables.pop() else {
                    return Ok(None);
                };

                let rows = self.snapshot.watched_rows(self.source, table).await?;

                OpenTable {
                    table,
                    rows,
                    comparison: Comparison::default(),
                    after_id: None,
                    compared: 0,
                    pending: Vec::new(),
                }
            }
        };

        while open.pending.len() < CHANGES && !open.comparison.is_complete() {
            open.advance(transaction).await?;
        }

        let table = open.table;
        let compared = std::mem::take(&mut open.compared);
        let part: Vec<Difference> = open
            .pending
            .drain(..open.pending.len().min(CHANGES))
            .collect();

        if open.pending.is_empty() && open.comparison.is_complete() {
            open.rows.close().await?;
        } else {
            self.current = Some(open);
        }

        self.found(table, compared, part).await.map(Some)
    }

    async fn found(&mut self, table: Table, compared: u64, part: Vec<Difference>) -> Result<Found> {
        let unknown = !self.complete.contains(&table);
        let mut found = Found {
            table,
            compared,
            changed: 0,
            new: 0,
            unknown,
            gone: 0,
            changes: Vec::new(),
            ledger: LedgerChanges::default(),
        };

        let mut rows = self.rows(table, &part).await?;

        for difference in part {
            let row = id(&difference).and_then(|id| rows.remove(&id));
            if let Some(operation) =
                row.and_then(|row| ledger::missed(table, &difference, row, !unknown))
            {
                self.ordinal += 1;
                let Differences {
                    timeline,
                    commit,
                    ordinal,
                    ..
                } = *self;

                found.changes.push(Change {
                    position: Position::Wal {
                        timeline,
                        commit,
                        ordinal,
                    },
                    committed_at: self.snapshot.at,
                    muted: false,
                    table,
                    operation,
                });
            }

            match difference {
                Difference::New(LedgerRow { id, state }) => {
                    found.new += 1;
                    found.ledger.put(table, id, state);
                }
                Difference::Changed { id, to, .. } => {
                    found.changed += 1;
                    found.ledger.put(table, id, to);
                }
                Difference::Gone(id) => {
                    found.gone += 1;
                    found.ledger.remove(table, id);
                }
            }
        }

        Ok(found)
    }

    /// Reads the complete rows that may raise events, by id.
    async fn rows(&self, table: Table, part: &[Difference]) -> Result<HashMap<i64, Tuple>> {
        let complete = self.complete.contains(&table);
        let raises = |difference: &&Difference| match difference {
            Difference::New(_) => complete || table == Table::Release,
            Difference::Changed { .. } => true,
            Difference::Gone(_) => false,
        };

        let ids: Vec<i64> = part.iter().filter(raises).filter_map(id).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }

        let rows = self.snapshot.rows(self.source, table, &ids).await?;
        let with_id = |row: Tuple| Some((row.id()?, row));
        Ok(rows.into_iter().filter_map(with_id).collect())
    }
}

fn id(difference: &Difference) -> Option<i64> {
    match difference {
        Difference::New(LedgerRow { id, .. }) | Difference::Changed { id, .. } => Some(*id),
        Difference::Gone(_) => None,
    }
}

impl OpenTable<'_> {
    async fn advance(&mut self, transaction: &Transaction<'_>) -> Result<()> {
        if self.comparison.rows.need_more() {
            self.comparison.rows.add(self.rows.next().await?);
        }

        if self.comparison.ledger.need_more() {
            let page = ledger_page(transaction, self.table, self.after_id, PAGE).await?;
            self.after_id = page.last().map(|entry| entry.id).or(self.after_id);
            self.comparison.ledger.add(page);
        }

        let (compared, differences) = self.comparison.advance();
        self.compared += compared;
        self.pending.extend(differences);

        Ok(())
    }
}
