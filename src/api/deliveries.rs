//! Reads one delivery with its attempts.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::logs::{LogEntryBody, TimingBody};
use super::query::DeliveryId;
use super::schema::{DeliveryStateName, EventName, RoundOriginName};
use super::state::ApiState;
use crate::auth::Caller;
use crate::domain::time::{micros, millis};
use crate::http::problem::Problem;
use crate::manage::{DeliveryDetail, NextAttempt, TimedEntry};

/// A delivery with its attempts and what comes next
#[derive(Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryBody {
    id: Uuid,
    webhook_id: Uuid,
    event_id: Uuid,
    #[schema(value_type = EventName)]
    event_type: String,
    /// What the event is about, such as `CAT-001 · Example Music`; null if the event has
    /// expired or names nothing
    #[schema(required = true)]
    about: Option<String>,
    /// Null if the event has expired
    #[schema(required = true, format = DateTime)]
    occurred_at: Option<String>,
    /// The delivery's number within the webhook; null for tests
    #[schema(required = true)]
    sequence: Option<i64>,
    test: bool,
    /// `ended` if the delivery log does not say how it has ended
    #[schema(value_type = DeliveryStateName)]
    state: &'static str,
    /// Null if the delivery has ended
    #[schema(required = true)]
    next_attempt: Option<NextAttemptBody>,
    /// The rounds of these attempts, the newest first
    rounds: Vec<RoundBody>,
    /// The newest 200 attempts and cancellations, the newest first
    attempts: Vec<AttemptBody>,
}

/// The attempt that is in flight or comes next
#[derive(Serialize, ToSchema)]
#[schema(as = NextAttempt)]
pub struct NextAttemptBody {
    round: i16,
    attempt: i16,
    /// Null while it is in flight, and while the delivery waits for an earlier one
    #[schema(required = true, format = DateTime)]
    due_at: Option<String>,
    in_flight: bool,
}

/// A round of attempts
#[derive(Serialize, ToSchema)]
#[schema(as = Round)]
pub struct RoundBody {
    round: i16,
    #[schema(value_type = RoundOriginName)]
    started_by: &'static str,
}

/// One attempt, and how long its parts took
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptBody {
    #[serde(flatten)]
    entry: LogEntryBody,
    timing: TimingBody,
}

impl From<TimedEntry> for AttemptBody {
    fn from(TimedEntry { entry, timing }: TimedEntry) -> Self {
        AttemptBody {
            entry: entry.into(),
            timing: timing.into(),
        }
    }
}

impl From<NextAttempt> for NextAttemptBody {
    fn from(next: NextAttempt) -> Self {
        NextAttemptBody {
            round: next.round,
            attempt: next.attempt,
            due_at: next.due_at.filter(|_| !next.leased).map(millis),
            in_flight: next.leased,
        }
    }
}

impl From<DeliveryDetail> for DeliveryBody {
    fn from(delivery: DeliveryDetail) -> Self {
        let event = delivery.event_detail.as_ref();
        let rounds = delivery
            .rounds()
            .into_iter()
            .map(|(round, origin)| RoundBody {
                round,
                started_by: origin.as_str(),
            });

        DeliveryBody {
            id: delivery.id,
            webhook_id: delivery.webhook,
            event_id: delivery.event,
            event_type: delivery.kind().to_owned(),
            about: event.and_then(|event| event.about.text()),
            occurred_at: event.map(|event| micros(event.occurred_at)),
            sequence: delivery.sequence,
            test: delivery.is_test(),
            state: delivery.state.as_str(),
            rounds: rounds.collect(),
            next_attempt: delivery.next.map(Into::into),
            attempts: delivery.attempts.into_iter().map(Into::into).collect(),
        }
    }
}

/// Read a delivery
///
/// Returns everything about one delivery: its attempts in all rounds, what started each round, and
/// when the next attempt is due.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/deliveries/{delivery}", tag = "logs", operation_id = "readDelivery",
    responses(
        (status = 200, description = "The delivery with its attempts", body = DeliveryBody),
        (status = 404, description = "The webhook has no such delivery, or it has expired"),
    )
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    DeliveryId { webhook, delivery }: DeliveryId,
) -> Result<Json<DeliveryBody>, Problem> {
    let delivery = state.manage().delivery(&user, webhook, delivery).await?;
    Ok(Json(delivery.into()))
}
