//! The delivery log as a webhook's owner reads it.

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::{Result, Store};
use crate::domain::delivery::Outcome;
use crate::domain::event::{EventKind, UserId};

/// A line of the log's id tells its time, give or take what clocks and long requests differ by.
pub(super) const ID_TOLERANCE_MS: i64 = 3_600_000;

/// Entries that one filtered page looks at: some ten milliseconds' worth. A filter that matches nothing would otherwise read the
/// webhook's whole log.
const LOOKED_AT: i64 = 10_000;

/// One attempt, or a cancellation.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: Uuid,
    pub delivery: Uuid,
    pub event_kind: String,
    pub round: i16,
    pub attempt: i16,
    pub test: bool,
    /// The event was found by comparison after a gap.
    pub repaired: bool,
    pub started_at: Timestamp,
    pub duration_ms: Option<i32>,
    pub outcome: String,
    pub response_status: Option<i16>,
    pub error: Option<(String, String)>,
}

/// One attempt with what is needed to show its request again.
#[derive(Clone, Debug)]
pub struct Detail {
    pub webhook: Uuid,
    pub entry: Entry,
    pub event: Uuid,
    /// Null where no request was made.
    pub url: Option<String>,
    pub signature: Option<Vec<u8>>,
    pub standard_signature: Option<Vec<u8>>,
    pub response_body: Option<Vec<u8>>,
    pub event_data: Option<EventData>,
}

#[derive(Clone, Debug)]
pub struct EventData {
    pub occurred_at: Timestamp,
    /// As stored: the bytes that were sent.
    pub data: String,
}

/// The responses whose status has the same first digit, or the attempts without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusClass(i16);

impl StatusClass {
    /// The names of the classes, at the index of their first digit.
    pub const NAMES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

    /// Parses a class by its name.
    pub fn named(name: &str) -> Option<StatusClass> {
        StatusClass::NAMES.iter().position(|class| *class == name).map(|digit| StatusClass(digit as i16))
    }
}

/// Which log entries to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub event: Option<EventKind>,
    pub outcome: Option<Outcome>,
    /// From this time on.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    pub status: Option<StatusClass>,
}

impl Filter {
    /// Whether every entry passes, so that a page is full after as many entries as it shows.
    fn is_empty(&self) -> bool {
        let Filter { event, outcome, since, until, status } = self;
        event.is_none() && outcome.is_none() && since.is_none() && until.is_none() && status.is_none()
    }
}

/// Entries that match, newest first.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    pub entries: Vec<Entry>,
    /// The last entry that was looked at, where more are below it. None where the search came to its end.
    pub horizon: Option<Uuid>,
}

/// At most `limit` entries of the webhook's log below the id `before`, newest first. A filtered search looks at a bounded number of
/// entries and returns where it stopped.
pub async fn list(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    filter: &Filter,
    before: Option<Uuid>,
    limit: usize,
) -> Result<Matches> {
    let Filter { since, until, .. } = filter;
    let (event, outcome) = (filter.event.map(EventKind::as_str), filter.outcome.map(Outcome::as_str));
    let status_class = filter.status.map(|class| class.0);
    let lowest = since.map_or(Uuid::nil(), |since| lowest_id_at(since.as_millisecond() - ID_TOLERANCE_MS));
    let latest = until.map_or(Uuid::max(), |until| lowest_id_at(until.as_millisecond() + ID_TOLERANCE_MS));
    let below = before.unwrap_or(Uuid::max()).min(latest);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let connection = store.connection().await?;
    let horizon = match filter.is_empty() {
        true => None,
        false => {
            let statement = connection.prepare_cached(include_str!("../../sql/store/log_horizon.sql")).await?;
            let arguments: [&(dyn ToSql + Sync); 5] = [&&*user.0, &webhook, &lowest, &below, &(LOOKED_AT - 1)];
            connection.query_opt(&statement, &arguments).await?.map(|row| row.get::<_, Uuid>("id"))
        }
    };
    let lowest = horizon.unwrap_or(lowest);
    let statement = connection.prepare_cached(include_str!("../../sql/store/log_list.sql")).await?;
    let rows = connection
        .query(
            &statement,
            &[&&*user.0, &webhook, &lowest, &below, &event, &outcome, since, until, &status_class, &limit],
        )
        .await?;
    Ok(Matches { entries: rows.iter().map(entry).collect(), horizon })
}

pub async fn get(store: &Store, user: &UserId, webhook: Uuid, id: Uuid) -> Result<Option<Detail>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/log_get.sql")).await?;
    let row = connection.query_opt(&statement, &[&&*user.0, &webhook, &id]).await?;
    Ok(row.map(|row| Detail {
        webhook,
        entry: entry(&row),
        event: row.get("event_id"),
        url: row.get("url"),
        signature: row.get("signature"),
        standard_signature: row.get("standard_signature"),
        response_body: row.get("response_body"),
        event_data: row
            .get::<_, Option<Timestamp>>("occurred_at")
            .map(|occurred_at| EventData { occurred_at, data: row.get("data") }),
    }))
}

/// How often which kind of failure is among the webhook's newest `look_at` entries since a time, the most frequent first.
pub async fn errors(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    since: Timestamp,
    look_at: i64,
) -> Result<Vec<(String, i64)>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/log_errors.sql")).await?;
    let lowest = lowest_id_at(since.as_millisecond());
    let rows = connection.query(&statement, &[&&*user.0, &webhook, &lowest, &look_at]).await?;
    Ok(rows.iter().map(|row| (row.get("error_kind"), row.get("count"))).collect())
}

/// The next attempt of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub round: i16,
    pub attempt: i16,
    /// None while it is being made.
    pub due_at: Option<Timestamp>,
}

/// What is still to come of a delivery, if anything is.
pub async fn pending(store: &Store, user: &UserId, webhook: Uuid, delivery: Uuid) -> Result<Option<Pending>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/delivery_pending.sql")).await?;
    let row = connection.query_opt(&statement, &[&&*user.0, &webhook, &delivery]).await?;
    Ok(row.map(|row| Pending {
        round: row.get("round"),
        attempt: row.get("attempt"),
        due_at: Some(row.get("due_at")).filter(|_| !row.get::<_, bool>("leased")),
    }))
}

/// Adds an event that the owner asked for and no commit raised, so that its log entry can show what was sent, and records who
/// tests the webhook.
pub async fn insert_test_event(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    id: Uuid,
    kind: EventKind,
    occurred_at: Timestamp,
    data: &str,
) -> Result<()> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/store/event_insert_test.sql")).await?;
    transaction.execute(&statement, &[&id, &&*actor.user.0, &kind.as_str(), &occurred_at, &data]).await?;
    audit::record(&transaction, actor, Action::WebhookTested, webhook, &[]).await?;
    transaction.commit().await?;
    Ok(())
}

/// The lowest UUIDv7 of a time.
pub(super) fn lowest_id_at(millis: i64) -> Uuid {
    let millis = u64::try_from(millis).unwrap_or(0);
    Uuid::from_u128(u128::from(millis) << 80)
}

fn entry(row: &Row) -> Entry {
    let kind: Option<String> = row.get("error_kind");
    let message: Option<String> = row.get("error_message");
    Entry {
        id: row.get("id"),
        delivery: row.get("delivery_id"),
        event_kind: row.get("event_kind"),
        round: row.get("round"),
        attempt: row.get("attempt"),
        test: row.get("test"),
        repaired: row.get("repaired"),
        started_at: row.get("started_at"),
        duration_ms: row.get("duration_ms"),
        outcome: row.get("outcome"),
        response_status: row.get("response_status"),
        error: kind.map(|kind| (kind, message.unwrap_or_default())),
    }
}
