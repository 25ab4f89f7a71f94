//! The log: the events of a store, in the order of their numbers, as another store reads them.

use std::collections::HashSet;
use std::pin::pin;

use deadpool_postgres::GenericClient;
use futures_util::TryStreamExt;
use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use serde::Deserialize;
use tokio_postgres::Row;
use uuid::Uuid;

use super::statement::{Statements, column, from_row, stream_rows};
use super::{DAY_MS, Result, Store, StoreError, lowest_id_at, millis_of_id};
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

/// The state of a log.
#[derive(Clone, Debug, Deserialize)]
pub struct LogState {
    /// The id of the store.
    pub store: Uuid,
    system_identifier: i64,
    timeline: Option<String>,
    /// The server's clock.
    pub now: Timestamp,
    /// The number of the last event.
    pub last: u64,
    /// The id of the event after which the page begins. None if the log does not have it.
    pub before: Option<Uuid>,
    /// The number and the id of the last event of the page, of any shard. None if there is none.
    pub newest: Option<(u64, Uuid)>,
    /// How many events up to the newest one the log no longer has.
    pub missing: u64,
    /// The epoch of the reader's cell; for a reader without one, of any cell.
    pub epoch: Option<i64>,
}

impl LogState {
    /// Returns the server's lineage. None if the server is a standby.
    pub fn lineage(&self) -> Option<Lineage> {
        Lineage::of_server(self.system_identifier, self.timeline.as_deref())
    }
}

/// Returns the lowest id that events after this one usually have: events are numbered in the order of
/// commits, and clocks differ by less than a day. Events that were derived again are older.
pub fn lowest_id_after(event: Uuid) -> Uuid {
    lowest_id_at(millis_of_id(event) - DAY_MS)
}

/// The state of a log and its next events, from one snapshot.
#[derive(Clone, Debug)]
pub struct LogPage {
    pub state: LogState,
    /// The next events of the reader's shards.
    pub events: Vec<Event>,
    /// Whether the page may have more events, which were not read.
    pub is_cut: bool,
    /// The kind of the event after them, if this build does not know it.
    pub unknown: Option<String>,
}

impl LogPage {
    /// Returns the number and the id of the last event that was read, of any shard.
    pub fn newest(&self) -> Option<(u64, Uuid)> {
        match self.is_cut {
            false => self.state.newest,
            true => self
                .events
                .last()
                .map(|event| (event.position.ordinal(), event.id)),
        }
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
    /// Reads the events of a cell, or of a store of no cell, among up to `numbers` events after a
    /// number whose ids are not below `lowest`. This is the log's store. Reads rows one by one: those
    /// beyond a megabyte do not stay in memory.
    pub async fn log_page(
        &self,
        after: u64,
        lowest: Uuid,
        numbers: u64,
        cell: Option<&Cell>,
    ) -> Result<LogPage> {
        let name = cell.map(|cell| &*cell.name);
        let (first, last) = cell.map_or(Shards::ALL, |cell| cell.shards).bounds();
        let after = after as i64;
        let numbers = numbers as i64;
        let most = PAGE as i64;
        let params: [&(dyn ToSql + Sync); 7] =
            [&after, &numbers, &name, &first, &last, &most, &lowest];

        self.statement(async {
            let connection = self.connection().await?;
            let mut rows = pin!(stream_rows(&*connection, sql::log::PAGE, &params).await?);

            let Some(first) = rows.try_next().await? else {
                return Err(StoreError::Corrupt(
                    "walhook.event_sequence has no row".to_owned(),
                ));
            };

            let Json(state) = first.try_get("state")?;
            let mut page = LogPage {
                state,
                events: Vec::new(),
                is_cut: false,
                unknown: None,
            };
            let mut bytes = 0;

            while let Some(row) = rows.try_next().await? {
                let kind: String = column(&row, "kind")?;

                match kind.parse() {
                    Ok(kind) if bytes < PAGE_BYTES => page.events.push(event(&row, kind)?),
                    Ok(_) => page.is_cut = true,
                    Err(_) => {
                        page.is_cut = true;
                        page.unknown = Some(kind);
                    }
                }

                if page.is_cut {
                    break;
                }

                bytes += row.raw_size_bytes();
            }

            page.is_cut |= page.events.len() == PAGE as usize;
            Ok(page)
        })
        .await
    }

    /// Returns the state of the log, with the id of the event at `after`.
    pub async fn log_state(&self, after: u64) -> Result<LogState> {
        Ok(self.log_page(after, Uuid::nil(), 0, None).await?.state)
    }

    /// Returns the state of the log at its end.
    pub async fn log_end(&self) -> Result<LogState> {
        self.log_state(i64::MAX as u64).await
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

/// Wakes the processes that read this store's events as a log.
pub async fn notify_readers(store: &Store) -> Result<()> {
    store.run(sql::log::NOTIFY, &[]).await.map(drop)
}
