//! Statements on the feed: a user's events in the order of their commits.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::statement::{Statements, column, from_row};
use super::{ID_TOLERANCE_MS, Result, Store, lowest_id_at};
use crate::domain::about::About;
use crate::domain::event::{EventKind, UserId};
use crate::sql::store as sql;

/// Events that one filtered page examines, which takes a few milliseconds. A filter that matches
/// nothing would otherwise read all events of the user.
const MOST_EXAMINED: i64 = 2_000;
/// The newest attempts of an event that are read, which takes a few milliseconds. A redelivery adds
/// at most ten.
const MOST_ATTEMPTS: i64 = 5_000;

/// An event as the feed shows it.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: Uuid,
    pub kind: String,
    pub occurred_at: Timestamp,
    pub label: Option<i64>,
    /// The `data` object, as JSON.
    pub data: String,
    /// Its place in the feed.
    pub sequence: i64,
}

from_row! { Event { id, kind, occurred_at, label = "label_id", data, sequence } }

/// An event without its data.
#[derive(Clone, Debug)]
pub struct EventHeadline {
    pub id: Uuid,
    pub kind: String,
    pub occurred_at: Timestamp,
    pub label: Option<i64>,
    pub sequence: i64,
    pub about: About,
}

from_row! { EventHeadline { id, kind, occurred_at, label = "label_id", sequence, about } }

/// A value of a list in webhooks' filters that events of a user have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterValue {
    /// The name of the list: `label_ids`, `outlet_ids` or `statuses`.
    pub list: String,
    pub value: String,
    /// The name of the outlet or the label.
    pub name: Option<String>,
    /// The catalogue number of the label's newest release.
    pub release: Option<String>,
}

from_row! { FilterValue { list, value, name, release } }

/// Which events to return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedFilter {
    /// Empty for all.
    pub kinds: Vec<EventKind>,
    pub label: Option<i64>,
}

impl FeedFilter {
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.label.is_none()
    }

    fn names(&self) -> Option<Vec<&'static str>> {
        (!self.kinds.is_empty()).then(|| self.kinds.iter().map(|kind| kind.as_str()).collect())
    }
}

/// The limits of a page. It has at least one event, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    pub events: usize,
    /// The page ends after the event whose data exceeds this length.
    pub bytes: usize,
}

/// A page of the feed.
#[derive(Clone, Debug, Default)]
pub struct FeedRead {
    pub events: Vec<Event>,
    /// Every event up to this number is in this page or an earlier one, or does not match the
    /// filter.
    pub next: i64,
    /// Whether there may be more events now.
    pub more: bool,
}

/// A row of a page. The first has the counter even if there is no event.
struct PageRow {
    last: i64,
    matching: Option<i64>,
    event: Option<Event>,
}

from_row! { PageRow { last, matching, event: event } }

fn event(row: &Row) -> Result<Option<Event>> {
    let id: Option<Uuid> = column(row, "id")?;
    id.map(|_| super::statement::FromRow::from_row(row))
        .transpose()
}

/// Returns the number of the last event.
pub async fn last_sequence(store: &Store) -> Result<i64> {
    store.fetch_one(sql::event::LAST_SEQUENCE, &[]).await
}

/// Returns the values of filters that the newest `examined` events of the user have, the latest
/// first, at most `most` of each list.
pub async fn filter_values(
    store: &Store,
    user: &UserId,
    examined: i64,
    most: i64,
) -> Result<Vec<FilterValue>> {
    store
        .fetch_all(sql::event::FILTER_VALUES, &[user, &examined, &most])
        .await
}

/// Reads the user's events after the number `after`, in order.
///
/// No event can later appear at or below `next`. The transaction that stores events locks the
/// counter's row until it has committed, and Postgres makes a transaction visible before it
/// releases its locks: a snapshot that contains an event contains every event with a lower number.
/// The last page reads the counter in the same snapshot as the events.
pub async fn page(
    store: &Store,
    user: &UserId,
    filter: &FeedFilter,
    after: i64,
    size: PageSize,
) -> Result<FeedRead> {
    let connection = store.connection().await?;
    let horizon: Option<i64> = match filter.is_empty() {
        true => None,
        false => {
            connection
                .fetch_optional(
                    sql::event::FEED_HORIZON,
                    &[user, &after, &(MOST_EXAMINED - 1)],
                )
                .await?
        }
    };

    let limit = i64::try_from(size.events).unwrap_or(i64::MAX);
    let bytes = i64::try_from(size.bytes).unwrap_or(i64::MAX);
    let highest = horizon.unwrap_or(i64::MAX);

    let rows: Vec<PageRow> = connection
        .fetch_all(
            sql::event::FEED_PAGE,
            &[
                user,
                &after,
                &highest,
                &filter.names(),
                &filter.label,
                &limit,
                &bytes,
            ],
        )
        .await?;

    let (matching, last) = rows
        .first()
        .map_or((0, after), |row| (row.matching.unwrap_or(0), row.last));
    let events: Vec<Event> = rows.into_iter().filter_map(|row| row.event).collect();
    let is_cut = matching == limit || (events.len() as i64) < matching;
    let next = match (events.last().filter(|_| is_cut), horizon) {
        (Some(event), _) => event.sequence,
        (None, Some(horizon)) => horizon,
        // A cursor from before a restore of the store may be higher than the counter.
        (None, None) => last.max(after),
    };

    Ok(FeedRead {
        events,
        next,
        more: is_cut || horizon.is_some(),
    })
}

/// Lists the user's events with numbers below `before`, the newest first. The second value is where
/// the search stopped, if that was early.
pub async fn newest(
    store: &Store,
    user: &UserId,
    kind: Option<EventKind>,
    before: i64,
    limit: usize,
) -> Result<(Vec<EventHeadline>, Option<i64>)> {
    let connection = store.connection().await?;
    let horizon: Option<i64> = match kind {
        None => None,
        Some(_) => {
            connection
                .fetch_optional(
                    sql::event::FEED_NEWEST_HORIZON,
                    &[user, &before, &(MOST_EXAMINED - 1)],
                )
                .await?
        }
    };

    let lowest = horizon.unwrap_or(0);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let kind = kind.map(EventKind::as_str);
    let found = connection
        .fetch_all(
            sql::event::FEED_NEWEST,
            &[user, &before, &lowest, &kind, &limit],
        )
        .await?;

    Ok((found, horizon))
}

/// Which users have new events.
#[derive(Clone, Debug)]
pub struct NewEvents {
    pub users: Vec<String>,
    /// The highest number that was read. None if there is no event.
    pub last: Option<i64>,
    pub examined: i64,
}

from_row! { NewEvents { users, last, examined } }

/// Returns which of `users` have events after one number and up to another, among the first `limit`
/// of these events.
pub async fn users_with_events(
    store: &Store,
    after: i64,
    highest: i64,
    limit: i64,
    users: &[&str],
) -> Result<NewEvents> {
    store
        .fetch_one(sql::event::FEED_USERS, &[&after, &highest, &limit, &users])
        .await
}

/// Returns the user's event with this id, unless it is a test.
pub async fn get(store: &Store, user: &UserId, id: Uuid) -> Result<Option<Event>> {
    store.fetch_optional(sql::event::GET, &[user, &id]).await
}

/// A delivery of an event.
#[derive(Clone, Debug)]
pub struct EventDelivery {
    pub id: Uuid,
    pub webhook: Uuid,
    /// Attempts in the log, of all rounds.
    pub attempts: i64,
    /// The outcome of the last log entry. None before the first attempt.
    pub outcome: Option<String>,
    /// The last log entry.
    pub last_log: Option<Uuid>,
    pub is_pending: bool,
    /// When the next attempt is due, or the lease ends. None if the delivery has ended or waits for
    /// another.
    pub due_at: Option<Timestamp>,
    /// Whether an attempt is in flight.
    pub leased: bool,
}

from_row! { EventDelivery { id, webhook = "webhook_id", attempts, outcome, last_log, is_pending, due_at, leased } }

/// Returns those of the event's deliveries to these webhooks of one user that there are. `ids` are
/// their ids.
pub async fn deliveries(
    store: &Store,
    webhooks: &[Uuid],
    ids: &[Uuid],
    event: &Event,
) -> Result<Vec<EventDelivery>> {
    let lowest = lowest_id_at(event.occurred_at.as_millisecond() - ID_TOLERANCE_MS);
    store
        .fetch_all(
            sql::event::DELIVERIES,
            &[&webhooks, &ids, &event.id, &lowest, &MOST_ATTEMPTS],
        )
        .await
}
