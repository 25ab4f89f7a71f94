//! The log: the events of a store, in the order of their numbers, as another store reads them.

use std::collections::HashSet;
use std::pin::pin;

use deadpool_postgres::GenericClient;
use futures_util::TryStreamExt;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::statement::{FromRow, Statements, column, from_row};
use super::{Result, Store, StoreError};
use crate::domain::cell::{Cell, Shards};
use crate::domain::event::{Event, EventKind};
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::Position;
use crate::sql::store as sql;

/// The channel of notifications that wake readers.
pub const CHANNEL: &str = "walhook_events";
/// Events per page at most: the size of the transactions in which they are stored.
pub const PAGE: u64 = 1_000;
/// Bytes of rows after which a page ends. The reader holds a few pages.
const PAGE_BYTES: usize = 1 << 20;

/// The state of a log and its next events, from one snapshot.
#[derive(Clone, Debug)]
pub struct LogPage {
    /// The id of the store.
    pub store: Uuid,
    /// None if the server is a standby.
    pub lineage: Option<Lineage>,
    /// The number of the last event.
    pub last: u64,
    /// The id of the event after which the page begins. None if the log does not have it.
    pub before: Option<Uuid>,
    /// The number and the id of the last event that was read, of any cell. None if there was none.
    pub newest: Option<(u64, Uuid)>,
    /// How many events were read.
    pub read: u64,
    /// Whether the page ended before as many as wanted, because they are long.
    pub is_cut: bool,
    /// Those of the reader's cell.
    pub events: Vec<Event>,
    /// The kind of the event after them, if this build does not know it.
    pub unknown: Option<String>,
    /// The epoch of the reader's cell; for a reader without one, of any cell.
    pub epoch: Option<i64>,
}

impl FromRow for LogPage {
    /// Reads the first row of a page.
    fn from_row(row: &Row) -> Result<LogPage> {
        let timeline: Option<String> = column(row, "timeline")?;

        Ok(LogPage {
            store: column(row, "store_id")?,
            lineage: Lineage::of_server(column(row, "system_identifier")?, timeline.as_deref()),
            last: column(row, "last")?,
            before: None,
            newest: None,
            read: 0,
            is_cut: false,
            events: Vec::new(),
            unknown: None,
            epoch: column(row, "epoch")?,
        })
    }
}

impl LogPage {
    /// Adds an event that was read after the number `after`. Returns false if this build does not
    /// know it.
    fn add(&mut self, row: &Row, after: u64) -> Result<bool> {
        let number = column(row, "sequence")?;
        let id = column(row, "id")?;

        if number == after {
            self.before = Some(id);
            return Ok(true);
        }

        if let Some(kind) = column::<Option<String>>(row, "kind")? {
            match kind.parse() {
                Ok(kind) => self.events.push(event(row, kind)?),
                Err(_) => {
                    self.unknown = Some(kind);
                    return Ok(false);
                }
            }
        }

        self.read += 1;
        self.newest = Some((number, id));
        Ok(true)
    }
}

/// How events of a log compare with a store.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The highest number at which the store has read the event.
    pub last_read: Option<u64>,
    /// The lowest number of an event that the store does not have, and that is not older than all
    /// of its events: such an event may have been dropped.
    pub first_missing: Option<u64>,
    /// Whether the store has any of the events.
    pub has_common: bool,
}

from_row!(Comparison {
    last_read,
    first_missing,
    has_common
});

impl Store {
    /// Reads up to `limit` events after a number, for a cell or for a store of no cell. This is the
    /// log's store. Reads rows one by one: those beyond a megabyte do not stay in memory.
    pub async fn log_page(&self, after: u64, limit: u64, cell: Option<&Cell>) -> Result<LogPage> {
        let name = cell.map(|cell| &*cell.name);
        let (first, last) = cell.map_or(Shards::ALL, |cell| cell.shards).bounds();
        let number = after as i64;
        // The event at `after` too.
        let rows = limit as i64 + 1;
        let params: [&(dyn ToSql + Sync); 5] = [&number, &rows, &name, &first, &last];

        self.statement(async {
            let connection = self.connection().await?;
            let statement = connection.prepare_cached(sql::log::PAGE).await?;
            let mut rows = pin!(connection.query_raw(&statement, params).await?);

            let Some(first) = rows.try_next().await? else {
                return Err(StoreError::Corrupt(
                    "walhook.event_sequence has no row".to_owned(),
                ));
            };

            let mut page = LogPage::from_row(&first)?;
            let mut bytes = 0;

            while let Some(row) = rows.try_next().await? {
                page.is_cut = page.read > 0 && bytes > PAGE_BYTES;
                if page.is_cut || !page.add(&row, after)? {
                    break;
                }

                bytes += row.raw_size_bytes();
            }

            Ok(page)
        })
        .await
    }

    /// Like [`Store::log_page`], without events.
    pub async fn log_end(&self) -> Result<LogPage> {
        self.log_page(i64::MAX as u64, 0, None).await
    }

    /// Returns the number of the last event.
    pub async fn last_event(&self) -> Result<u64> {
        self.fetch_one(sql::event::LAST_SEQUENCE, &[]).await
    }

    /// Lists the numbers and ids of events of some shards up to `highest`, the last ones first. This
    /// is the log's store.
    pub async fn log_numbers(&self, highest: u64, shards: Shards) -> Result<Vec<(i64, Uuid)>> {
        let (first, last) = shards.bounds();
        self.fetch_all(
            sql::log::NUMBERS,
            &[&(highest as i64), &(PAGE as i64), &first, &last],
        )
        .await
    }

    /// Returns how many events this store has after one. None if it does not have that one.
    pub async fn events_after(&self, event: Option<Uuid>) -> Result<Option<u64>> {
        self.fetch_optional(sql::log::COUNT_AFTER, &[&event]).await
    }

    /// Compares events of a log, with their numbers, with this store.
    pub async fn compare_log(&self, listed: &[(i64, Uuid)]) -> Result<Comparison> {
        let (numbers, ids): (Vec<i64>, Vec<Uuid>) = listed.iter().copied().unzip();
        self.fetch_one(sql::log::COMPARE, &[&numbers, &ids]).await
    }
}

fn event(row: &Row, kind: EventKind) -> Result<Event> {
    let data: String = column(row, "data")?;

    Ok(Event {
        id: column(row, "id")?,
        kind,
        user: column(row, "user_id")?,
        label: column(row, "label_id")?,
        occurred_at: column(row, "occurred_at")?,
        position: Position::Log {
            number: column(row, "sequence")?,
            commit: column::<Option<Lsn>>(row, "commit_lsn")?,
        },
        repaired: column(row, "repaired")?,
        data: data.into(),
    })
}

/// Returns which of a log's events this store has already.
pub async fn stored_events(
    transaction: &impl GenericClient,
    events: &[Event],
) -> Result<HashSet<Uuid>> {
    let of_log = |event: &&Event| matches!(event.position, Position::Log { .. });
    let ids: Vec<Uuid> = events.iter().filter(of_log).map(|event| event.id).collect();

    if ids.is_empty() {
        return Ok(HashSet::new());
    }

    let stored: Vec<Uuid> = transaction.fetch_all(sql::log::STORED, &[&ids]).await?;
    Ok(stored.into_iter().collect())
}

/// Wakes the processes that read this store's events as a log, when the transaction is committed.
pub async fn notify_readers(transaction: &impl GenericClient) -> Result<()> {
    transaction.run(sql::log::NOTIFY, &[]).await?;
    Ok(())
}
