//! Statements of replays, which deliver stored events to a webhook that never had them.

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use uuid::Uuid;

use super::job_progress::{JobProgress, JobSize};
use super::statement::{Statements, column, from_row};
use super::{DAY_MS, ID_TOLERANCE_MS, Result, Store, lowest_id_at, start_of_day};
use crate::domain::event::{EventKind, UserId};
use crate::domain::subject::{EventFilter, Subject};
use crate::sql::store as sql;

/// A count reads at most this many events and as many rows of the attempt log, which takes about a
/// tenth of a second. Beyond that it is an estimate.
const MAX_COUNTED: i64 = 50_000;
/// The same for a webhook with a filter: the data of its events is read too.
const MAX_COUNTED_WITH_DATA: i64 = 5_000;
/// The most rows that one transaction removes.
const EXPIRE_CHUNK: i64 = 10_000;

/// The events that a replay delivers, unless the webhook has had them.
#[derive(Clone, Debug)]
pub struct Selection {
    pub since: Timestamp,
    /// Exclusive.
    pub until: Timestamp,
    pub events: Vec<String>,
    /// None for all labels.
    pub labels: Option<Vec<i64>>,
}

from_row!(Selection { since, until, events, labels = "label_ids" });

impl Selection {
    /// The ids between which the events are. An event's id contains the time of its commit in
    /// milliseconds, rounded down.
    fn ids(&self) -> (Uuid, Uuid) {
        let since = self.since.as_millisecond();
        let until = self.until.as_millisecond();
        (lowest_id_at(since), lowest_id_at(until.saturating_add(1)))
    }

    /// The same, for whole days: each day is one partition.
    fn ids_of_days(&self) -> (Uuid, Uuid) {
        let since = self.since.as_millisecond();
        let until = self.until.as_millisecond();
        (
            lowest_id_at(start_of_day(since)),
            lowest_id_at(start_of_day(until).saturating_add(DAY_MS)),
        )
    }

    /// The id after which the attempts of these events are. An attempt's id contains its time by a
    /// replica's clock. There is no upper bound: a retry, or a delivery that waited, is attempted
    /// long after its event.
    fn first_attempt_id(&self) -> Uuid {
        lowest_id_at(self.since.as_millisecond().saturating_sub(ID_TOLERANCE_MS))
    }
}

/// A replay that is locked by this transaction.
#[derive(Clone, Debug)]
pub struct Replay {
    pub id: Uuid,
    pub webhook: Uuid,
    pub user: UserId,
    pub selection: Selection,
    /// The number of the last event that it delivers.
    pub last_sequence: i64,
    pub progress: JobProgress,
    /// The deliveries that were created last.
    pub chunk: Vec<Uuid>,
    /// How many they were at most.
    pub chunk_size: i32,
    /// How many seconds ago they were created. None if there were none yet.
    pub chunk_age: Option<f64>,
}

from_row!(Replay {
    id,
    webhook = "webhook_id",
    user = "user_id",
    selection: Selection::from_row,
    last_sequence,
    progress: JobProgress::from_row,
    chunk,
    chunk_size,
    chunk_age
});

/// What was counted for a preview.
struct ReplayCount {
    /// Before the filter.
    found: u64,
    events: i64,
    others: i64,
    /// The numbers of the first and the last event that were read, and of the last that there is.
    first: Option<i64>,
    last: Option<i64>,
    highest: Option<i64>,
    /// The events that were found, if there is a filter.
    kinds: Vec<String>,
    labels: Vec<Option<i64>>,
    data: Vec<String>,
}

from_row!(ReplayCount {
    found,
    events,
    others,
    first,
    last,
    highest,
    kinds,
    labels,
    data
});

impl ReplayCount {
    /// Counts the events that pass the filter, and extrapolates from those that were read to all.
    fn counted(self, filter: Option<&EventFilter>, limit: i64) -> JobSize {
        let found = filter.map_or(self.found, |filter| self.passing(filter));
        let ReplayCount { events, others, .. } = self;
        let span = |to: Option<i64>| Some((to? - self.first? + 1) as f64);
        let share = match (span(self.last), span(self.highest)) {
            (Some(read), Some(all)) if events > limit => all / read,
            _ => 1.0,
        };

        let is_exact = events <= limit && others <= limit;
        JobSize {
            count: (found as f64 * share.max(1.0)).round() as u64,
            is_exact,
        }
    }

    fn passing(&self, filter: &EventFilter) -> u64 {
        let events = self.kinds.iter().zip(&self.labels).zip(&self.data);
        let passes = |((kind, label), data): &((&String, &Option<i64>), &String)| {
            kind.parse()
                .is_ok_and(|kind| filter.passes(&Subject::new(kind, **label, data)))
        };

        events.filter(passes).count() as u64
    }
}

/// Returns how many deliveries a replay of this selection would create for a webhook with this
/// filter.
pub async fn count(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    filter: Option<&EventFilter>,
    selection: &Selection,
) -> Result<JobSize> {
    let connection = store.connection().await?;
    let Selection {
        since,
        until,
        events,
        labels,
    } = selection;

    let ((from, to), attempts_from) = (selection.ids(), selection.first_attempt_id());
    let limit = if filter.is_some() {
        MAX_COUNTED_WITH_DATA
    } else {
        MAX_COUNTED
    };

    let counted: ReplayCount = connection
        .fetch_one(
            sql::recovery::COUNT_REPLAY,
            &[
                user,
                &webhook,
                &from,
                &to,
                &attempts_from,
                events,
                labels,
                since,
                until,
                &(limit + 1),
                &filter.is_some(),
            ],
        )
        .await?;

    Ok(counted.counted(filter, limit))
}

/// Excludes events from the webhook's unfinished replays, because another job delivers them.
pub async fn exclude(transaction: &Transaction<'_>, webhook: Uuid, events: &[Uuid]) -> Result<()> {
    transaction
        .run(sql::replay_exclusion::INSERT, &[&webhook, &events])
        .await
        .map(drop)
}

/// How much a statement has read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub rows: i64,
    /// The last id.
    pub last: Option<Uuid>,
}

from_row!(Read { rows = "examined", last });

/// An event that matches the selection.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    pub id: Uuid,
    pub kind: EventKind,
    pub label: Option<i64>,
    pub data: String,
}

/// The next events.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Where to continue. None after the last event.
    pub next: Option<JobProgress>,
    pub found: Vec<StoredEvent>,
}

/// A row of a scan. The first columns are the same in all rows.
struct ScanRow {
    examined: i64,
    last_sequence: Option<i64>,
    id: Option<Uuid>,
    sequence: Option<i64>,
    event: Option<StoredEvent>,
}

from_row!(ScanRow {
    examined,
    last_sequence,
    id,
    sequence,
    event: event
});

/// Leaves out an event of a newer version, which this one cannot render.
fn event(row: &tokio_postgres::Row) -> Result<Option<StoredEvent>> {
    let (id, kind): (Option<Uuid>, Option<String>) = (column(row, "id")?, column(row, "kind")?);
    let (label, data): (_, Option<String>) = (column(row, "label_id")?, column(row, "data")?);
    let kind = kind.and_then(|kind| kind.parse().ok());

    Ok(id.zip(kind).map(|(id, kind)| StoredEvent {
        id,
        kind,
        label,
        data: data.unwrap_or_default(),
    }))
}

/// The pending deliveries of a webhook, counted up to a limit each.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub first_attempts: i64,
    pub retries: i64,
    /// First attempts among the deliveries that the replay created last.
    pub of_chunk: i64,
}

from_row!(Pending {
    first_attempts,
    retries,
    of_chunk
});

impl Replay {
    pub async fn pending(
        &self,
        transaction: &Transaction<'_>,
        limits: (i64, i64),
    ) -> Result<Pending> {
        transaction
            .fetch_one(
                sql::delivery::COUNT_PENDING,
                &[&self.webhook, &self.chunk, &limits.0, &limits.1],
            )
            .await
    }

    /// The ids between which the replayed events are.
    pub fn event_ids(&self) -> (Uuid, Uuid) {
        self.selection.ids()
    }

    /// The id after which the attempt log is read next.
    pub fn attempts_after(&self) -> Uuid {
        self.selection
            .first_attempt_id()
            .max(self.progress.position)
    }

    /// Excludes the events of all pending deliveries.
    pub async fn exclude_pending(&self, transaction: &Transaction<'_>) -> Result<()> {
        let (from, to) = self.event_ids();
        transaction
            .run(
                sql::replay_exclusion::INSERT_PENDING,
                &[&self.id, &self.webhook, &from, &to],
            )
            .await
            .map(drop)
    }

    /// Excludes the events of the next `limit` rows of the attempt log.
    pub async fn exclude_logged(&self, transaction: &Transaction<'_>, limit: i64) -> Result<Read> {
        let ((from, to), after) = (self.event_ids(), self.attempts_after());
        transaction
            .fetch_one(
                sql::replay_exclusion::INSERT_LOGGED,
                &[&self.id, &self.webhook, &from, &to, &after, &limit],
            )
            .await
    }

    /// Reads up to `limit` events, and returns the first `most` of those to deliver.
    pub async fn scan(&self, transaction: &Transaction<'_>, limit: i64, most: i64) -> Result<Scan> {
        let rows = self.scan_rows(transaction, limit, most).await?;
        let Some(first) = rows.first() else {
            return Ok(Scan {
                next: None,
                found: Vec::new(),
            });
        };

        let is_full = rows.iter().filter(|row| row.id.is_some()).count() as i64 >= most;
        let sequence = match rows.last().filter(|_| is_full) {
            Some(last) => last.sequence,
            None => first.last_sequence,
        };

        let next = JobProgress {
            sequence: sequence.unwrap_or(self.progress.sequence),
            ..self.progress
        };

        let next = Some(next).filter(|_| is_full || first.examined >= limit);
        Ok(Scan {
            next,
            found: rows.into_iter().filter_map(|row| row.event).collect(),
        })
    }

    async fn scan_rows(
        &self,
        transaction: &Transaction<'_>,
        limit: i64,
        most: i64,
    ) -> Result<Vec<ScanRow>> {
        let Selection {
            since,
            until,
            events,
            labels,
        } = &self.selection;

        let (from, to) = self.selection.ids_of_days();
        transaction
            .fetch_all(
                sql::event::SCAN_REPLAY,
                &[
                    &self.user,
                    &self.progress.sequence,
                    &self.last_sequence,
                    &from,
                    &to,
                    &limit,
                    &self.id,
                    events,
                    labels,
                    since,
                    until,
                    &most,
                ],
            )
            .await
    }

    /// Returns those of `events` that another job has delivered or whose delivery is pending.
    pub async fn excluded(
        &self,
        transaction: &Transaction<'_>,
        events: &[Uuid],
        deliveries: &[Uuid],
    ) -> Result<Vec<Uuid>> {
        transaction
            .fetch_all(
                sql::replay_exclusion::FIND,
                &[&self.id, &events, &deliveries],
            )
            .await
    }
}

/// Removes what ended replays have excluded.
pub(super) async fn expire(store: &Store) -> Result<()> {
    while store
        .run(sql::replay_exclusion::EXPIRE, &[&EXPIRE_CHUNK])
        .await?
        >= EXPIRE_CHUNK as u64
    {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(since: &str, until: &str) -> Selection {
        let at = |text: &str| text.parse().unwrap();
        Selection {
            since: at(since),
            until: at(until),
            events: Vec::new(),
            labels: None,
        }
    }

    #[test]
    fn ids_of_days_include_every_id_of_the_period() {
        let at = |text: &str| lowest_id_at(text.parse::<Timestamp>().unwrap().as_millisecond());
        let of_two_days = selection("2026-03-01T10:00:00.000500Z", "2026-03-02T00:00:00.000001Z");
        assert_eq!(
            of_two_days.ids(),
            (at("2026-03-01T10:00:00Z"), at("2026-03-02T00:00:00.001Z"))
        );
        assert_eq!(
            of_two_days.ids_of_days(),
            (at("2026-03-01T00:00:00Z"), at("2026-03-03T00:00:00Z"))
        );
    }

    #[test]
    fn a_count_that_is_not_complete_is_extrapolated() {
        let count = |events, last| ReplayCount {
            found: 1_000,
            events,
            others: 0,
            first: Some(101),
            last: Some(last),
            highest: Some(1_100),
            kinds: Vec::new(),
            labels: Vec::new(),
            data: Vec::new(),
        };

        let counted = count(MAX_COUNTED, 600).counted(None, MAX_COUNTED);
        assert_eq!((counted.count, counted.is_exact), (1_000, true));

        let counted = count(MAX_COUNTED + 1, 600).counted(None, MAX_COUNTED);
        assert_eq!((counted.count, counted.is_exact), (2_000, false));
    }
}
