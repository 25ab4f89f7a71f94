//! The delivery log of a webhook.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::Caller;
use super::openapi::{ErrorKindName, EventName, OutcomeName, StatusClassName};
use super::problem::Problem;
use super::query::{LogId, Page, Parameters, WebhookId, no_such_log};
use crate::domain::delivery::Outcome;
use crate::domain::event::{EventKind, UnknownEvent, UserId};
use crate::domain::time::millis;
use crate::manage::{self, OUTCOMES, RenderedRequest, StatusClass};
use crate::store::logs::{self, Matches};

pub const STATUS_CLASSES: [&str; 6] = StatusClass::NAMES;

/// One attempt, or a cancellation
#[derive(Serialize, ToSchema)]
pub struct LogEntry {
    id: Uuid,
    /// The same on every attempt of one delivery
    delivery_id: Uuid,
    #[schema(value_type = EventName)]
    event_type: String,
    /// Null where there was no answer
    #[schema(required = true)]
    response_status: Option<i16>,
    /// Null where nothing was sent
    #[schema(required = true)]
    duration_ms: Option<i32>,
    /// From 1, in each round anew
    attempt: i16,
    /// 1 at first, the next with each redelivery
    round: i16,
    #[schema(format = DateTime)]
    timestamp: String,
    #[schema(value_type = OutcomeName)]
    outcome: String,
    #[schema(required = true)]
    error: Option<LogError>,
    /// Whether this was a test that the owner asked for
    test: bool,
    /// Whether the event was found by comparison after changes were lost: the time is that of the comparison, and what was
    /// in between is not known
    repaired: bool,
}

/// Why an attempt failed
#[derive(Serialize, ToSchema)]
pub struct LogError {
    #[schema(value_type = ErrorKindName)]
    pub kind: String,
    pub message: String,
}

/// One attempt with its request and the beginning of the answer
#[derive(Serialize, ToSchema)]
pub struct LogDetail {
    #[serde(flatten)]
    entry: LogEntry,
    #[serde(flatten)]
    request: ShownRequest,
    /// The first 4 KiB; null where there was no answer
    #[schema(required = true)]
    response_body: Option<String>,
}

/// The request as it was sent; null where none was, or where its event is gone by age
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ShownRequest {
    #[schema(required = true)]
    pub request_url: Option<String>,
    #[schema(required = true)]
    pub request_headers: Option<BTreeMap<String, String>>,
    #[schema(required = true)]
    pub request_body: Option<String>,
}

impl From<logs::Entry> for LogEntry {
    fn from(entry: logs::Entry) -> Self {
        LogEntry {
            id: entry.id,
            delivery_id: entry.delivery,
            event_type: entry.event_kind,
            response_status: entry.response_status,
            duration_ms: entry.duration_ms,
            attempt: entry.attempt,
            round: entry.round,
            timestamp: millis(entry.started_at),
            outcome: entry.outcome,
            error: entry.error.map(|(kind, message)| LogError { kind, message }),
            test: entry.test,
            repaired: entry.repaired,
        }
    }
}

/// Read the delivery log
///
/// Newest first: one entry an attempt or cancellation. With a filter, each request looks at a bounded part of the log: a page may
/// hold fewer entries than `limit`, or none, and still have a `next_cursor`. The log ends where `next_cursor` is null.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/logs", tag = "logs", operation_id = "listLogs",
    params(
        ("webhook" = Uuid, Path, description = "The webhook's id"),
        ("limit" = Option<u8>, Query, description = "How many; 50 unless told", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before",
         pattern = "^[A-Za-z0-9_-]{21}[AQgw]$"),
        ("event" = Option<EventName>, Query, description = "Only this event"),
        ("outcome" = Option<OutcomeName>, Query, description = "Only this outcome"),
        ("status" = Option<StatusClassName>, Query, description = "Only answers of this class, or none"),
        ("since" = Option<String>, Query, format = DateTime, description = "From this time on (RFC 3339)"),
        ("until" = Option<String>, Query, format = DateTime, description = "Before this time (RFC 3339)"),
    ),
    responses((status = 200, description = "A page of the log", body = Page<LogEntry>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(webhook): WebhookId,
    mut parameters: Parameters,
) -> Result<Response, Problem> {
    let (limit, cursor) = (parameters.limit(), parameters.cursor());
    let filter = filter(&mut parameters);
    state.webhook(&user, webhook).await?;
    let target = parameters.finish()?;
    let Matches { entries, horizon } = state.log(&user, webhook, &filter, cursor, limit + 1).await?;
    Ok(Page::new(entries, limit, |entry| entry.id, LogEntry::from).or_continue_at(horizon).answer(&target))
}

/// The filter that a query asks for.
pub fn filter(parameters: &mut Parameters) -> logs::Filter {
    logs::Filter {
        event: parameters.optional("event", event),
        outcome: parameters.optional("outcome", outcome),
        since: parameters.time("since"),
        until: parameters.time("until"),
        status: parameters.optional("status", status_class),
    }
}

fn status_class(text: &str) -> Result<StatusClass, String> {
    StatusClass::named(text).ok_or_else(|| format!("expected one of {}", STATUS_CLASSES.join(", ")))
}

fn event(text: &str) -> Result<EventKind, String> {
    text.parse().map_err(|error: UnknownEvent| error.to_string())
}

fn outcome(text: &str) -> Result<Outcome, String> {
    manage::outcome(text).ok_or_else(|| {
        let names: Vec<&str> = OUTCOMES.iter().map(|outcome| outcome.as_str()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Read one entry of the delivery log
#[utoipa::path(
    get, path = "/webhooks/{webhook}/logs/{log}", tag = "logs", operation_id = "readLog",
    params(
        ("webhook" = Uuid, Path, description = "The webhook's id"),
        ("log" = Uuid, Path, description = "The entry's id"),
    ),
    responses((status = 200, description = "The entry with its request", body = LogDetail))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    LogId { webhook, log }: LogId,
) -> Result<Json<LogDetail>, Problem> {
    let mut found = state.log_entry(&user, webhook, log).await?;
    let response_body = found.response_body.take().map(|body| String::from_utf8_lossy(&body).into_owned());
    let rendered = state.request_of(&found);
    let request_url = found.url.take();
    let (request_headers, request_body) = rendered.map(|request| (request.headers, request.body)).unzip();
    let request = ShownRequest { request_url, request_headers, request_body };
    Ok(Json(LogDetail { entry: found.entry.into(), request, response_body }))
}

impl ApiState {
    /// The webhook's log, newest first, below the id `before`. A filtered search may stop before it has found `limit` entries.
    pub async fn log(
        &self,
        user: &UserId,
        webhook: Uuid,
        filter: &logs::Filter,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Matches, Problem> {
        Ok(logs::list(&self.store, user, webhook, filter, before, limit).await?)
    }

    pub async fn log_entry(&self, user: &UserId, webhook: Uuid, log: Uuid) -> Result<logs::Detail, Problem> {
        logs::get(&self.store, user, webhook, log).await?.ok_or_else(no_such_log)
    }

    /// The request of an entry, as it was sent; none where none was, or where its event is gone by age.
    pub fn request_of(&self, entry: &logs::Detail) -> Option<RenderedRequest> {
        self.manage().log_request(entry)
    }
}
