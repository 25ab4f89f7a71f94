//! Reads the delivery log of a webhook, and redelivers its entries.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::log_export::csv_field;
use super::query::{LogFilterParameters, LogId, Page, QueryParameters, WebhookId};
use super::schema::{ErrorKindName, EventName, OutcomeName, SigningSecretName};
use super::state::ApiState;
use crate::auth::{Caller, Changer};
use crate::domain::about::About;
use crate::domain::delivery::Timing;
use crate::domain::response;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{Entry, List, LogEntry, LogScope, Redelivery, SigningSecret};

/// One attempt, or a cancellation
#[derive(Serialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogEntryBody {
    id: Uuid,
    webhook_id: Uuid,
    /// The same on every attempt of one delivery
    delivery_id: Uuid,
    event_id: Uuid,
    /// The delivery's number within the webhook, as in `X-Webhook-Sequence`; null for tests, and
    /// for deliveries that were made before deliveries were numbered
    #[schema(required = true)]
    sequence: Option<i64>,
    #[schema(value_type = EventName)]
    event_type: String,
    /// What the event is about, such as `CAT-001 · Example Music`; null if the event has
    /// expired or names nothing
    #[schema(required = true)]
    about: Option<String>,
    /// Null if there was no response
    #[schema(required = true)]
    response_status: Option<i16>,
    /// Null if nothing was sent
    #[schema(required = true)]
    duration_ms: Option<i32>,
    /// From 1 in each round
    attempt: i16,
    /// From 1; each redelivery starts the next round
    round: i16,
    #[schema(format = DateTime)]
    timestamp: String,
    #[schema(value_type = OutcomeName)]
    outcome: String,
    #[schema(required = true)]
    error: Option<LogError>,
    /// Whether this was a test that the owner requested
    test: bool,
    /// Whether the event was found by comparing states after changes were lost: its time is the
    /// time of the comparison, and intermediate changes are unknown
    repaired: bool,
}

/// Why an attempt failed
#[derive(Serialize, ToSchema)]
pub struct LogError {
    #[schema(value_type = ErrorKindName)]
    pub kind: String,
    pub message: String,
}

/// One attempt with its request and the beginning of the response
#[derive(Serialize, ToSchema)]
#[schema(as = LogDetail)]
pub struct LogDetailBody {
    #[serde(flatten)]
    entry: LogEntryBody,
    #[serde(flatten)]
    request: RequestBody,
    /// The secret of the webhook that verifies `X-Webhook-Signature` as it was sent; null if it has
    /// been replaced since, or without a request
    #[schema(required = true, value_type = Option<SigningSecretName>)]
    signed_with: Option<&'static str>,
    timing: TimingBody,
    /// Those that fit in 2 KiB, without the values of `Set-Cookie`; null if there was no response
    #[schema(required = true)]
    response_headers: Option<BTreeMap<String, String>>,
    /// The first 4 KiB; null if there was no response
    #[schema(required = true)]
    response_body: Option<String>,
}

/// The request as it was sent; null if none was, or if its event is older than the retention period
#[derive(Serialize, ToSchema)]
#[schema(as = ShownRequest)]
pub struct RequestBody {
    #[schema(required = true)]
    request_url: Option<String>,
    #[schema(required = true)]
    request_headers: Option<BTreeMap<String, String>>,
    #[schema(required = true)]
    request_body: Option<String>,
}

impl LogEntryBody {
    /// Writes the entry as a line of a CSV file.
    pub fn write_csv(&self, out: &mut String) {
        let number = |number: Option<i32>| number.map(|number| number.to_string());
        let error = self.error.as_ref();
        let fields = [
            Some(self.timestamp.clone()),
            Some(self.webhook_id.to_string()),
            Some(self.event_type.clone()),
            self.about.clone(),
            Some(self.outcome.clone()),
            number(self.response_status.map(i32::from)),
            number(self.duration_ms),
            Some(self.round.to_string()),
            Some(self.attempt.to_string()),
            error.map(|error| error.kind.clone()),
            error.map(|error| error.message.clone()),
            Some(self.test.to_string()),
            Some(self.delivery_id.to_string()),
            Some(self.event_id.to_string()),
            Some(self.id.to_string()),
        ];

        for (index, field) in fields.into_iter().enumerate() {
            if index > 0 {
                out.push(',');
            }

            csv_field(&field.unwrap_or_default(), out);
        }

        out.push_str("\r\n");
    }
}

/// How long the parts of the request took, in milliseconds. The first three are null if an open
/// connection was used, and so is each part that was not reached
#[derive(Serialize, ToSchema)]
#[schema(as = Timing)]
pub struct TimingBody {
    /// The lookup of the host's name
    #[schema(required = true)]
    dns_ms: Option<u64>,
    #[schema(required = true)]
    connect_ms: Option<u64>,
    #[schema(required = true)]
    tls_ms: Option<u64>,
    /// From the connection to the head of the response
    #[schema(required = true)]
    wait_ms: Option<u64>,
}

impl From<Timing> for TimingBody {
    fn from(timing: Timing) -> Self {
        let millis = |part: Option<Duration>| part.map(|part| part.as_millis() as u64);
        TimingBody {
            dns_ms: millis(timing.dns),
            connect_ms: millis(timing.connect),
            tls_ms: millis(timing.tls),
            wait_ms: millis(timing.wait),
        }
    }
}

impl From<Entry> for LogEntryBody {
    fn from(entry: Entry) -> Self {
        LogEntryBody {
            id: entry.id,
            webhook_id: entry.webhook,
            about: entry.about.as_ref().and_then(About::text),
            delivery_id: entry.delivery,
            event_id: entry.event,
            sequence: entry.sequence,
            event_type: entry.event_kind,
            response_status: entry.response_status,
            duration_ms: entry.duration_ms,
            attempt: entry.attempt,
            round: entry.round,
            timestamp: millis(entry.started_at),
            outcome: entry.outcome,
            error: entry
                .error
                .map(|(kind, message)| LogError { kind, message }),
            test: entry.test,
            repaired: entry.repaired,
        }
    }
}

/// Read the delivery log
///
/// Newest first: one entry per attempt or cancellation. With a filter, each request examines a
/// bounded part of the delivery log: a page may have fewer entries than `limit`, or none, and still
/// have a `next_cursor`. The last page is the one whose `next_cursor` is null.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/logs", tag = "logs", operation_id = "listLogs",
    params(
        ("limit" = Option<u8>, Query, description = "The number of entries; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
        LogFilterParameters,
    ),
    responses((status = 200, description = "A page of the delivery log", body = Page<LogEntryBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(webhook): WebhookId,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::Log(webhook));
    let filter = parameters.log_filter();

    // First, so that an unknown webhook is reported before errors of the query.
    state.manage().webhook(&user, webhook).await?;
    let target = parameters.finish()?;
    let page = state
        .manage()
        .log(&user, &LogScope::Webhook(webhook), &filter, cursor, limit)
        .await?;
    Ok(Page::<LogEntryBody>::from(page).response(&target))
}

/// Read one entry of the delivery log
#[utoipa::path(
    get, path = "/webhooks/{webhook}/logs/{log}", tag = "logs", operation_id = "readLog",
    responses((status = 200, description = "The entry with its request", body = LogDetailBody))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    LogId { webhook, log }: LogId,
) -> Result<Json<LogDetailBody>, Problem> {
    let LogEntry {
        detail,
        request,
        signed_with,
    } = state.manage().log_entry(&user, webhook, log).await?;
    let (request_headers, request_body) = request
        .map(|request| (request.headers, request.body))
        .unzip();

    Ok(Json(LogDetailBody {
        entry: detail.entry.into(),
        request: RequestBody {
            request_url: detail.url,
            request_headers,
            request_body,
        },
        signed_with: signed_with.map(SigningSecret::as_str),
        timing: detail.timing.into(),
        response_headers: detail.response_headers.as_deref().map(response::read),
        response_body: detail
            .response_body
            .map(|body| String::from_utf8_lossy(&body).into_owned()),
    }))
}

/// The round that was started
#[derive(Serialize, ToSchema)]
#[schema(as = StartedRedelivery)]
pub struct RedeliveryBody {
    /// The delivery's id, which is the same in each round
    delivery_id: Uuid,
    /// Its attempts are numbered from 1 again
    round: u16,
}

/// Redeliver
///
/// Starts the next round of the entry's delivery, with the whole retry schedule. It replaces a
/// pending retry. The request goes to the webhook's current URL and is signed with its current
/// secret.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/logs/{log}/redeliver", tag = "logs", operation_id = "redeliver",
    responses(
        (status = 202, description = "The delivery is due now", body = RedeliveryBody),
        (status = 409, description = "The webhook is inactive, or the entry belongs to a test"),
        (status = 410, description = "The event is older than the retention period"),
    )
)]
pub async fn redeliver(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    LogId { webhook, log }: LogId,
) -> Result<(StatusCode, Json<RedeliveryBody>), Problem> {
    let Redelivery {
        delivery: delivery_id,
        round,
    } = state.manage().redeliver(&actor, webhook, log).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(RedeliveryBody { delivery_id, round }),
    ))
}
