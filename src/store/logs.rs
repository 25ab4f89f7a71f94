//! Statements on the attempt log, as a webhook's owner reads it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::statement::{FromRow, Statements, column, from_row};
use super::{ID_TOLERANCE_MS, Result, Store, events, lowest_id_at, millis_of_id, start_of_day};
use crate::domain::about::About;
use crate::domain::delivery::{ErrorKind, Outcome, Timing};
use crate::domain::event::{EventKind, UserId};
use crate::sql::store as sql;

/// Statements of one filtered page, which together take some tens of milliseconds. A filter that
/// matches nothing would otherwise read whole logs.
const MOST_STATEMENTS: usize = 8;
/// Entries of the events of a search that one statement examines.
const EXAMINED_OF_EVENTS: usize = 2_000;
/// Entries of a webhook that one statement examines. A longer statement would delay others that need
/// the same processor.
const EXAMINED_AT_ONCE: usize = 250;
/// Entries that one statement examines in all, if it reads the logs of several webhooks: with many
/// webhooks, each page goes less far back.
const EXAMINED_OF_ALL: usize = 1_000;
const LEAST_EXAMINED: usize = 20;

/// One attempt, or a cancellation.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: Uuid,
    pub webhook: Uuid,
    pub delivery: Uuid,
    pub event: Uuid,
    /// The delivery's number within its webhook. None for tests and for deliveries of earlier
    /// builds.
    pub sequence: Option<i64>,
    pub event_kind: String,
    pub round: i16,
    pub attempt: i16,
    pub test: bool,
    /// The event was found by repair after a gap.
    pub repaired: bool,
    pub started_at: Timestamp,
    pub duration_ms: Option<i32>,
    pub outcome: String,
    pub response_status: Option<i16>,
    /// Kind and message.
    pub error: Option<(String, String)>,
    /// What the event is about. None if it has expired.
    pub about: Option<About>,
}

from_row! {
    Entry {
        id, webhook = "webhook_id", delivery = "delivery_id", event = "event_id", sequence, event_kind, round, attempt, test, repaired, started_at, duration_ms, outcome,
        response_status, error: error, about,
    }
}

fn error(row: &Row) -> Result<Option<(String, String)>> {
    let (kind, message): (Option<String>, Option<String>) =
        (column(row, "error_kind")?, column(row, "error_message")?);
    Ok(kind.map(|kind| (kind, message.unwrap_or_default())))
}

impl FromRow for Timing {
    fn from_row(row: &Row) -> Result<Timing> {
        let part = |name| -> Result<Option<Duration>> {
            let millis: Option<u32> = column(row, name)?;
            Ok(millis.map(|millis| Duration::from_millis(millis.into())))
        };

        Ok(Timing {
            dns: part("dns_ms")?,
            connect: part("connect_ms")?,
            tls: part("tls_ms")?,
            wait: part("wait_ms")?,
        })
    }
}

/// One attempt with the data that its request is rendered from.
#[derive(Clone, Debug)]
pub struct LogDetail {
    pub webhook: Uuid,
    pub entry: Entry,
    /// None if no request was sent.
    pub url: Option<String>,
    pub signature: Option<Vec<u8>>,
    pub standard_signature: Option<Vec<u8>>,
    pub more_signatures: Option<Vec<u8>>,
    pub timing: Timing,
    /// As [`response::keep`](crate::domain::response::keep) returns them.
    pub response_headers: Option<Vec<u8>>,
    pub response_body: Option<Vec<u8>>,
    /// None if the event is older than the retention period.
    pub event_data: Option<EventData>,
    /// The names of the custom headers, if they have not changed since.
    pub custom_headers: Vec<String>,
}

from_row! {
    LogDetail {
        webhook = "webhook_id", entry: Entry::from_row, url, signature, standard_signature,
        more_signatures, timing: Timing::from_row, response_headers, response_body, event_data: event_data, custom_headers,
    }
}

#[derive(Clone, Debug)]
pub struct EventData {
    pub occurred_at: Timestamp,
    /// The bytes that were sent.
    pub data: String,
}

fn event_data(row: &Row) -> Result<Option<EventData>> {
    let occurred_at = column::<Option<_>>(row, "occurred_at")?;
    let data = column::<Option<_>>(row, "data")?;
    Ok(occurred_at
        .zip(data)
        .map(|(occurred_at, data)| EventData { occurred_at, data }))
}

/// A status, the responses whose status has the same first digit, or the attempts without a
/// response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusFilter(i16);

impl StatusFilter {
    /// The names of the classes, at the index of their first digit.
    pub const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    /// Parses a class by its name, or a status.
    pub fn parse(text: &str) -> Option<StatusFilter> {
        let class = StatusFilter::CLASSES
            .iter()
            .position(|class| *class == text);
        let status = || {
            text.parse()
                .ok()
                .filter(|status| (100..600).contains(status))
        };

        class
            .map(|digit| digit as i16)
            .or_else(status)
            .map(StatusFilter)
    }

    /// Whether only failed attempts and cancellations have such a status.
    fn is_failure(self) -> bool {
        self.0 != 2 && !(200..300).contains(&self.0)
    }
}

/// Which log entries to list.
#[derive(Clone, Debug, Default)]
pub struct LogFilter {
    pub event: Option<EventKind>,
    pub outcome: Option<Outcome>,
    pub status: Option<StatusFilter>,
    pub error: Option<ErrorKind>,
    pub release: Option<i64>,
    /// A catalogue number: all events of its releases.
    pub catalogue: Option<String>,
    pub track: Option<i64>,
    /// The id or the name of an outlet, in lower case.
    pub outlet: Option<String>,
    pub event_id: Option<Uuid>,
    pub delivery: Option<Uuid>,
    /// From this time on.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

impl LogFilter {
    /// Whether every entry matches. Then a page examines no more entries than it lists.
    pub fn is_empty(&self) -> bool {
        let LogFilter {
            event,
            outcome,
            status,
            error,
            release,
            catalogue,
            track,
            outlet,
            event_id,
            delivery,
            since,
            until,
        } = self;
        let texts = [catalogue, outlet];
        let numbers = [release, track];
        let ids = [event_id, delivery];

        event.is_none()
            && outcome.is_none()
            && status.is_none()
            && error.is_none()
            && texts.iter().all(|text| text.is_none())
            && numbers.iter().all(|number| number.is_none())
            && ids.iter().all(|id| id.is_none())
            && since.is_none()
            && until.is_none()
    }

    /// Whether only failed attempts and cancellations match.
    fn is_of_failures(&self) -> bool {
        self.outcome
            .is_some_and(|outcome| outcome != Outcome::Delivered)
            || self.status.is_some_and(StatusFilter::is_failure)
            || self.error.is_some()
    }
}

/// The entries that match, newest first.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    pub entries: Vec<Entry>,
    /// The last entry that was examined, if the search stopped early.
    pub horizon: Option<Uuid>,
}

/// An entry that was examined.
struct Examined {
    entry: Entry,
    is_match: bool,
    /// As many entries of its webhook as allowed were examined, and there may be more.
    is_last: bool,
}

from_row! { Examined { entry: Entry::from_row, is_match, is_last } }

/// The statements that list entries: all, failures, and those of given events.
pub struct ListStatements {
    pub all: String,
    pub failures: String,
    pub of_events: String,
}

pub static LIST: LazyLock<ListStatements> = LazyLock::new(|| {
    let list = |entries: &str| sql::attempt::LIST.replace("{entries}", entries);
    let subset = |condition| list(&sql::attempt::ENTRIES.replace("{subset}", condition));

    ListStatements {
        all: subset("true"),
        failures: subset("attempt.outcome <> 'delivered'"),
        of_events: list(sql::attempt::ENTRIES_OF_EVENTS),
    }
});

/// Lists at most `limit` entries of the logs of a user's webhooks with ids below `before`, newest
/// first. A filtered search examines a bounded number of entries and returns where it stopped.
pub async fn list(
    store: &Store,
    user: &UserId,
    webhooks: &[Uuid],
    filter: &LogFilter,
    before: Option<Uuid>,
    limit: usize,
) -> Result<Matches> {
    let LogFilter {
        since,
        until,
        event,
        outcome,
        status,
        error,
        outlet,
        delivery,
        ..
    } = filter;

    let mut oldest = since.map_or(Uuid::nil(), |since| {
        lowest_id_at(since.as_millisecond() - ID_TOLERANCE_MS)
    });

    let latest = until.map_or(Uuid::max(), |until| {
        lowest_id_at(until.as_millisecond() + ID_TOLERANCE_MS)
    });

    let event = event.map(EventKind::as_str);
    let outcome = outcome.map(Outcome::as_str);
    let error = error.map(ErrorKind::as_str);
    let status = status.map(|status| status.0);
    let mut found = Matches::default();
    let mut below = before.unwrap_or(Uuid::max()).min(latest);
    let mut statements = 0;

    let events = events::of_filter(store, user, webhooks, filter, below).await?;
    if let Some(events) = &events {
        // Attempts are made after their events.
        oldest = oldest.max(events.oldest);
    }

    let statement = match &events {
        Some(_) => &LIST.of_events,
        None if filter.is_of_failures() => &LIST.failures,
        None => &LIST.all,
    };
    let ids = events.as_ref().map(|events| &events.ids);

    // First the newest day, because a statement on all days is slower to plan than to execute.
    let mut lowest = oldest.max(first_id_of_day(below));

    loop {
        let started = Instant::now();
        let wanted = limit - found.entries.len();
        let at_once = match (&events, filter.is_empty()) {
            (Some(_), _) => EXAMINED_OF_EVENTS,
            (None, true) => wanted,
            (None, false) => {
                (EXAMINED_OF_ALL / webhooks.len().max(1)).clamp(LEAST_EXAMINED, EXAMINED_AT_ONCE)
            }
        };

        let most = i64::try_from(at_once).unwrap_or(i64::MAX);
        let returned = i64::try_from(wanted + webhooks.len()).unwrap_or(i64::MAX);
        let params: [&(dyn ToSql + Sync); 15] = [
            user, &webhooks, &lowest, &below, &most, &ids, &event, &outcome, since, until, &status,
            &error, outlet, delivery, &returned,
        ];

        // The connection is not held between the statements, so that searches take turns with other
        // requests.
        let rows: Vec<Examined> = store.fetch_all(statement, &params).await?;
        let last = rows.iter().find(|row| row.is_last).map(|row| row.entry.id);
        statements += 1;

        // Below the last entry of one webhook, entries of it are missing.
        let matches = rows
            .into_iter()
            .filter(|row| row.is_match && last.is_none_or(|last| row.entry.id >= last));
        found
            .entries
            .extend(matches.map(|row| row.entry).take(wanted));

        if found.entries.len() >= limit {
            return Ok(found);
        }

        (below, lowest) = match last {
            Some(last) => (last, oldest.max(first_id_of_day(last))),
            None if lowest > oldest => (lowest, oldest),
            None => {
                found.horizon = events.and_then(|events| events.horizon());
                return Ok(found);
            }
        };

        if last.is_some() && !filter.is_empty() && statements >= MOST_STATEMENTS {
            found.horizon = last;
            return Ok(found);
        }

        if !filter.is_empty() {
            // A search takes at most half of the time of the processor that executes it.
            tokio::time::sleep(started.elapsed()).await;
        }
    }
}

pub async fn get(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    id: Uuid,
) -> Result<Option<LogDetail>> {
    store
        .fetch_optional(sql::attempt::GET, &[user, &webhook, &id])
        .await
}

/// Counts the kinds of failure among the webhook's newest `limit` entries since a time, the most
/// frequent first.
pub async fn errors(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    since: Timestamp,
    limit: i64,
) -> Result<Vec<(String, i64)>> {
    store
        .fetch_all(
            sql::attempt::LIST_ERRORS,
            &[
                user,
                &webhook,
                &lowest_id_at(since.as_millisecond()),
                &limit,
            ],
        )
        .await
}

/// Inserts the event of a test, so that its log entry can show the request, and records who tested
/// the webhook.
pub async fn insert_test_event(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    id: Uuid,
    kind: EventKind,
    occurred_at: Timestamp,
    data: &str,
) -> Result<()> {
    store
        .transaction(async |transaction| {
            transaction
                .run(
                    sql::event::INSERT_TEST,
                    &[&id, &actor.user, &kind.as_str(), &occurred_at, &data],
                )
                .await?;
            audit::record(transaction, actor, Action::WebhookTested, webhook, &[]).await
        })
        .await
}

/// Returns the lowest UUIDv7 of the UTC day of an id, or of today if the id is of a later time.
fn first_id_of_day(id: Uuid) -> Uuid {
    let millis = millis_of_id(id).min(Timestamp::now().as_millisecond());
    lowest_id_at(start_of_day(millis))
}
