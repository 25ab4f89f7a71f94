//! Reads the feed of events: page by page, with long polls, or as a stream; and single events with
//! their deliveries.

use std::str::FromStr;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::time::{Duration, Instant};
use utoipa::ToSchema;
use uuid::Uuid;

use super::feed_reader::{EventBody, Reader};
use super::query::{EventId, QueryParameters};
use super::schema::{DeliveryStateName, EventName};
use super::state::ApiState;
use super::stream;
use crate::auth::Caller;
use crate::domain::event::EventKind;
use crate::domain::time::millis;
use crate::http::Occupied;
use crate::http::problem::Problem;
use crate::manage::feed::{DeliveryState, FeedPage, FeedPosition};
use crate::manage::{EventDelivery, Fault, FeedFilter, FeedPageSize};

/// A page ends after the event that exceeds this length, so that a hundred large events do not
/// occupy much memory.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Shorter than the idle timeouts of usual proxies, which are 60 seconds.
const LONGEST_WAIT: u64 = 30;
const EVENT_STREAM: &str = "text/event-stream";
pub const LAST_EVENT_ID: &str = "last-event-id";

/// A page of the feed
#[derive(Serialize, ToSchema)]
#[schema(as = FeedPage)]
pub struct PageBody {
    data: Vec<EventBody>,
    /// The place after this page: `after` of the next request. Always present, because there will
    /// be more events
    next_cursor: String,
}

/// An event with its deliveries
#[derive(Serialize, ToSchema)]
#[schema(as = EventDetail)]
pub struct EventDetailBody {
    #[serde(flatten)]
    event: EventBody,
    /// To the webhooks that exist now
    deliveries: Vec<DeliveryBody>,
}

/// A delivery of an event to one webhook
#[derive(Serialize, ToSchema)]
#[schema(as = EventDelivery)]
pub struct DeliveryBody {
    id: Uuid,
    webhook_id: Uuid,
    /// `ended` if the delivery log does not say how it has ended
    #[schema(value_type = DeliveryStateName)]
    state: &'static str,
    /// Attempts so far, of all rounds
    attempts: i64,
    /// Null while an attempt is in flight, and after the last one
    #[schema(required = true, format = DateTime)]
    next_attempt_at: Option<String>,
}

impl From<EventDelivery> for DeliveryBody {
    fn from(delivery: EventDelivery) -> Self {
        let due_at = delivery.due_at.filter(|_| !delivery.leased);
        DeliveryBody {
            id: delivery.id,
            webhook_id: delivery.webhook,
            state: DeliveryState::of(delivery.is_pending, delivery.outcome.as_deref()).as_str(),
            attempts: delivery.attempts,
            next_attempt_at: due_at.map(millis),
        }
    }
}

/// Parses where to start. None is after the last event.
fn start_at(text: &str) -> Result<Option<FeedPosition>, &'static str> {
    match text {
        "earliest" => Ok(Some(FeedPosition::EARLIEST)),
        "latest" => Ok(None),
        cursor => cursor.parse().map(Some).or(Err(
            "expected `earliest`, `latest` or the `next_cursor` of an earlier response",
        )),
    }
}

/// Read events
///
/// Returns the account's events in the order of their commits, each exactly once, as far back as
/// events are kept. Pass `next_cursor` as `after` to continue: a cursor stays valid for ever; if
/// the events after it have expired, reading continues with the oldest event. With `event` or
/// `label_id`, each request examines a bounded number of events: a page may be empty although there
/// are more. Tests are not in the feed.
///
/// With `wait`, an empty page is held back until there is an event.
///
/// With `Accept: text/event-stream`, the response is a stream of Server-Sent Events that does not
/// end: `id` is the cursor after the event, `event` its type, `data` the same object as in a page.
/// Repeat the last `id` in `Last-Event-ID` to resume. A comment is sent every 15 seconds. `limit`
/// and `wait` do not apply.
#[utoipa::path(
    get, path = "/events", tag = "events", operation_id = "listEvents",
    params(
        ("after" = Option<String>, Query, description = "A `next_cursor`, `earliest` (the default) or `latest`",
         pattern = "^(earliest|latest|[A-Za-f][A-Za-z0-9_-]{9}[AEIMQUYcgkosw048])$"),
        ("limit" = Option<u8>, Query, description = "The number of events; 50 by default", minimum = 1, maximum = 100),
        ("event" = Option<Vec<EventName>>, Query, description = "Only these events; separated by commas, or repeated", explode = false),
        ("label_id" = Option<i64>, Query, description = "Only events of this label"),
        ("wait" = Option<u8>, Query, description = "How many seconds to hold back an empty page; 0 by default", minimum = 0, maximum = 30),
        ("Last-Event-ID" = Option<String>, Header, description = "For streams: the last `id` that was received. Replaces `after`"),
    ),
    responses(
        (status = 200, description = "A page of the feed, or a stream",
         content((PageBody = "application/json"), (String = "text/event-stream"))),
        (status = 429, description = "Too many requests, or too many open streams and long polls; Retry-After is the number of seconds to wait",
         headers(("Retry-After" = u64, description = "Seconds to wait"))),
    )
)]
pub async fn list(
    State(state): State<ApiState>,
    reader: Reader,
    headers: HeaderMap,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let mut kinds = parameters.all("event", EventKind::from_str);
    kinds.sort_unstable();
    kinds.dedup();

    let label = |text: &str| text.parse().or(Err("expected a label's id, a number"));

    let filter = FeedFilter {
        kinds,
        label: parameters.optional("label_id", label),
    };

    let limit = parameters.limit();
    let wait = parameters.optional("wait", seconds);
    let mut start = parameters.position("after", start_at);
    let is_stream = accepts_stream(&headers);

    if let Some(last) = headers
        .get(LAST_EVENT_ID)
        .filter(|last| is_stream && !last.is_empty())
    {
        match last.to_str().ok().and_then(|last| last.parse().ok()) {
            Some(position) => start = Some(Some(position)),
            None => parameters.reject_position(
                "/Last-Event-ID",
                "expected the last `id` of an earlier stream",
            ),
        }
    }

    parameters.finish()?;
    let position = match start {
        None => FeedPosition::EARLIEST,
        Some(Some(position)) => position,
        Some(None) => state.manage().feed_latest().await?,
    };

    let mut response = match is_stream {
        true => stream::respond(state, reader, filter, position)?,
        false => {
            let wait = Duration::from_secs(wait.unwrap_or(0));
            let page = read_page(&state, &reader, &filter, position, limit, wait).await?;
            let data = page
                .events
                .into_iter()
                .map(EventBody::try_from)
                .collect::<Result<_, _>>()?;

            Json(PageBody {
                data,
                next_cursor: page.next.to_string(),
            })
            .into_response()
        }
    };

    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

fn seconds(text: &str) -> Result<u64, String> {
    let wait = text.parse().ok().filter(|wait| *wait <= LONGEST_WAIT);
    wait.ok_or_else(|| format!("expected a number of seconds from 0 to {LONGEST_WAIT}"))
}

/// Whether the client prefers a stream: browsers and libraries for Server-Sent Events accept
/// nothing else.
pub fn accepts_stream(headers: &HeaderMap) -> bool {
    let names_it = |accepted: &HeaderValue| {
        let accepted = accepted.to_str().unwrap_or_default();
        accepted.to_ascii_lowercase().contains(EVENT_STREAM)
    };
    headers.get_all(header::ACCEPT).iter().any(names_it)
}

/// Reads a page. If it is empty, waits for an event.
async fn read_page(
    state: &ApiState,
    reader: &Reader,
    filter: &FeedFilter,
    start: FeedPosition,
    limit: usize,
    wait: Duration,
) -> Result<FeedPage, Problem> {
    let manage = state.manage();
    let size = FeedPageSize {
        events: limit,
        bytes: MAX_PAGE_BYTES,
    };

    let until = Instant::now() + wait;
    let mut position = start;

    // Before the feed is read: an event after that wakes it.
    let follower = match wait.is_zero() {
        true => None,
        false => Some(manage.follow_feed(&reader.user, reader.access)?),
    };

    loop {
        let page = match manage.feed_page(&reader.user, filter, position, size).await {
            // A client that continues at the same place would not get further next time either.
            Err(Fault::RateLimit { .. }) if position != start => {
                return Ok(FeedPage {
                    events: Vec::new(),
                    next: position,
                    more: true,
                });
            }
            page => page?,
        };

        let Some(follower) = follower.as_ref().filter(|_| page.events.is_empty()) else {
            return Ok(page);
        };

        if Instant::now() >= until || state.closed().is_cancelled() {
            return Ok(page);
        }

        position = page.next;

        if !page.more {
            let _parked = reader.occupied.as_ref().map(Occupied::park);
            tokio::select! {
                () = follower.woken() => {}
                () = tokio::time::sleep_until(until) => return Ok(page),
                () = state.closed().cancelled() => return Ok(page),
            }
        }

        if follower.is_revoked() {
            return Err(Problem::unauthorized());
        }
    }
}

/// Read an event
///
/// Returns an event and its deliveries. A delivery whose first attempt is not among the 5,000
/// entries of the webhook's delivery log after the event is not listed.
#[utoipa::path(
    get, path = "/events/{id}", tag = "events", operation_id = "readEvent",
    responses(
        (status = 200, description = "The event with its deliveries", body = EventDetailBody),
        (status = 404, description = "The user has no such event, or it has expired"),
    )
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    EventId(id): EventId,
) -> Result<Json<EventDetailBody>, Problem> {
    let (event, deliveries) = state.manage().event(&user, id).await?;
    let deliveries = deliveries.into_iter().map(DeliveryBody::from).collect();
    Ok(Json(EventDetailBody {
        event: event.try_into()?,
        deliveries,
    }))
}
