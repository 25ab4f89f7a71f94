//! Sends tests.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::OptionalObject;
use super::logs::LogError;
use super::query::WebhookId;
use super::schema::EventName;
use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::event::EventKind;
use crate::domain::members::string;
use crate::domain::settings::UNKNOWN_EVENT;
use crate::http::problem::Problem;
use crate::manage::TestReport;

/// The event to send
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body.
pub struct TestWebhook {
    /// By default the first one that the webhook subscribes to
    #[schema(value_type = Option<EventName>, nullable = false)]
    event: Option<EventKind>,
}

/// The result of a test
#[derive(Serialize, ToSchema)]
#[schema(as = TestReport)]
pub struct TestReportBody {
    delivered: bool,
    #[schema(required = true)]
    response_status: Option<u16>,
    #[schema(required = true)]
    duration_ms: Option<u64>,
    #[schema(required = true)]
    error: Option<LogError>,
    /// The entry of the delivery log
    log_id: Uuid,
}

impl From<TestReport> for TestReportBody {
    fn from(report: TestReport) -> Self {
        TestReportBody {
            delivered: report.error.is_none(),
            response_status: report.response_status,
            duration_ms: report.duration.map(|duration| duration.as_millis() as u64),
            error: report.error.map(|(kind, message)| LogError {
                kind: kind.as_str().to_owned(),
                message,
            }),
            log_id: report.log_id,
        }
    }
}

/// Send a test
///
/// Makes one attempt with the event's example data, marked `X-Webhook-Test: true`, also if the
/// webhook is inactive. The attempt is logged, but not counted.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/test", tag = "webhooks", operation_id = "testWebhook",
    request_body(content = Option<TestWebhook>),
    responses((status = 200, description = "The result, whether the test was delivered or not", body = TestReportBody))
)]
pub async fn send(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    OptionalObject(body): OptionalObject,
) -> Result<Json<TestReportBody>, Problem> {
    // First, so that an unknown webhook is reported before errors of the body.
    state.manage().webhook(&actor.user, id).await?;
    let named = |name: String| name.parse().map_err(|_| UNKNOWN_EVENT);
    let event = body.read(|members| members.optional("event", string(named)))?;
    Ok(Json(
        state.manage().send_test(&actor, id, event).await?.into(),
    ))
}
