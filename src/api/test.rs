//! Tests: one attempt with example data, when the owner asks for it.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::Changer;
use super::body::{OptionalObject, Reader};
use super::logs::LogError;
use super::openapi::EventName;
use super::problem::Problem;
use super::query::WebhookId;
use super::settings;
use crate::store::audit::Actor;

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
        self.webhook(&actor.user, id).await?;
        let mut reader = Reader::new(members);
        let asked = reader.optional("event", settings::event);
        reader.finish()?;
        let report = self.manage().send_test(actor, id, asked).await?;
        Ok(TestReport {
            delivered: report.error.is_none(),
            response_status: report.response_status,
            duration_ms: report.duration.map(|duration| duration.as_millis() as u64),
            error: report.error.map(|(kind, message)| LogError { kind: kind.as_str().to_owned(), message }),
            log_id: report.log_id,
        })
    }
}
