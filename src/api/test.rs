//! Tests: one attempt with example data, when the owner asks for it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::{Changer, Throttle};
use super::body::{OptionalObject, Reader};
use super::logs::LogError;
use super::openapi::EventName;
use super::problem::Problem;
use super::query::WebhookId;
use super::settings;
use crate::domain::delivery::ErrorKind;
use crate::domain::event::{EventKind, delivery_id};
use crate::events::CATALOGUE;
use crate::store::audit::Actor;
use crate::store::logs;
use crate::telemetry::recurring;

/// A receiver that does not answer holds no more than this of us.
const MOST_AT_ONCE: usize = 4;

/// One user's tests in a row; then one a minute. Each is stored for as long as events are kept.
const MOST_IN_A_ROW: NonZeroU32 = NonZeroU32::new(100).expect("not zero");
/// Any id that is ours alone: makes users keys.
const TEST_USERS: Uuid = Uuid::from_u128(0x8d3e_5b70_19c4_4f6a_a2d1_6e0b_93f7_45c8);

/// What to send. The event is in the store; the delivery is not.
#[derive(Clone, Debug)]
pub struct TestDelivery {
    pub delivery: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub kind: EventKind,
    pub occurred_at: Timestamp,
    pub data: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct TestResult {
    /// The attempt's id in the log.
    pub log: Uuid,
    pub response_status: Option<u16>,
    /// None where nothing was sent.
    pub duration: Option<Duration>,
    /// None where it was delivered.
    pub error: Option<(ErrorKind, String)>,
}

/// Which event to send
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "documents a body that is read member by member, to tell all its faults")]
pub struct TestWebhook {
    /// The first subscribed one unless told
    #[schema(value_type = Option<EventName>, nullable = false)]
    event: Option<String>,
}

/// What came of a test
#[derive(Serialize, ToSchema)]
pub struct TestReport {
    pub delivered: bool,
    #[schema(required = true)]
    pub response_status: Option<u16>,
    #[schema(required = true)]
    pub duration_ms: Option<u64>,
    #[schema(required = true)]
    pub error: Option<LogError>,
    /// The entry of the delivery log
    pub log_id: Uuid,
}

/// How many tests users may send.
pub fn quota() -> Throttle {
    Throttle::per_minute(MOST_IN_A_ROW)
}

/// The tests whose answer is being waited for, by webhook.
#[derive(Clone, Default)]
pub struct UnderWay(Arc<Mutex<HashMap<Uuid, usize>>>);

/// One place among them, given back when dropped.
struct Place {
    tests: UnderWay,
    webhook: Uuid,
}

impl UnderWay {
    fn take(&self, webhook: Uuid) -> Option<Place> {
        let mut counts = self.0.lock().expect("no holder of this lock panics");
        let count = counts.entry(webhook).or_default();
        if *count == MOST_AT_ONCE {
            return None;
        }
        *count += 1;
        Some(Place { tests: self.clone(), webhook })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.tests.0.lock().expect("no holder of this lock panics");
        if let Some(count) = counts.get_mut(&self.webhook) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.webhook);
            }
        }
    }
}

/// Send a test
///
/// One attempt with the event's example data, marked `X-Webhook-Test: true`; to inactive webhooks too. Logged, never counted.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/test", tag = "webhooks", operation_id = "testWebhook",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    request_body(content = Option<TestWebhook>),
    responses((status = 200, description = "What came of it, success or not", body = TestReport))
)]
pub async fn send(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    OptionalObject(members): OptionalObject,
) -> Result<Json<TestReport>, Problem> {
    state.test_webhook(&actor, id, members).await.map(Json)
}

impl ApiState {
    /// Sends the event that `members` ask for, or the first subscribed one, and waits for what comes of it.
    pub async fn test_webhook(
        &self,
        actor: &Actor,
        id: Uuid,
        members: Map<String, Value>,
    ) -> Result<TestReport, Problem> {
        let webhook = self.webhook(&actor.user, id).await?;
        let mut reader = Reader::new(members);
        let asked = reader.optional("event", settings::event);
        reader.finish()?;
        let first = || webhook.settings.events.iter().find_map(|event| event.parse().ok());
        let kind = asked.or_else(first).ok_or_else(Problem::internal)?;
        let user = Uuid::new_v5(&TEST_USERS, actor.user.0.as_bytes());
        self.test_quota.count(user).map_err(Problem::too_many_tests_of_user)?;
        let place = self.tests.take(id).ok_or_else(Problem::too_many_tests)?;
        // A task of its own: a client that goes away does not keep what was sent out of the log.
        let (state, actor) = (self.clone(), actor.clone());
        let task = tokio::spawn(async move {
            let result = perform(&state, &actor, id, kind).await;
            drop(place);
            result
        });
        task.await.map_err(|_| Problem::internal())?
    }
}

async fn perform(state: &ApiState, actor: &Actor, webhook: Uuid, kind: EventKind) -> Result<TestReport, Problem> {
    let rule = CATALOGUE.iter().find(|rule| rule.kind == kind).ok_or_else(Problem::internal)?;
    let (event, occurred_at, data) = (Uuid::now_v7(), Timestamp::now(), (rule.example)());
    logs::insert_test_event(&state.store, actor, webhook, event, kind, occurred_at, &data).await?;
    let delivery = delivery_id(event, webhook);
    let test = TestDelivery { delivery, webhook, event, kind, occurred_at, data };
    let result = (state.send_test)(test).await.map_err(|error| {
        recurring!(error, %webhook, error = format!("{error:#}"), "tests cannot be sent");
        Problem::internal()
    })?;
    Ok(TestReport {
        delivered: result.error.is_none(),
        response_status: result.response_status,
        duration_ms: result.duration.map(|duration| duration.as_millis() as u64),
        error: result.error.map(|(kind, message)| LogError { kind: kind.as_str().to_owned(), message }),
        log_id: result.log,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_webhook_has_a_few_tests_under_way_and_no_more() {
        let tests = UnderWay::default();
        let (slow, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut places: Vec<Place> = (0..MOST_AT_ONCE).map(|_| tests.take(slow).unwrap()).collect();
        assert!(tests.take(slow).is_none());
        assert!(tests.take(other).is_some());
        places.pop();
        assert!(tests.take(slow).is_some());
        drop(places);
        assert!(tests.0.lock().unwrap().is_empty());
    }
}
