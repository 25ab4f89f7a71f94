//! Sends tests.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::{Object, OptionalObject};
use super::logs::LogError;
use super::query::WebhookId;
use super::schema::EventName;
use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::event::EventKind;
use crate::domain::members::string;
use crate::domain::settings::UNKNOWN_EVENT;
use crate::http::problem::Problem;
use crate::manage::{LoggedTest, TestReport};

/// The event to send
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body.
pub struct TestWebhook {
    /// By default the first one that the webhook subscribes to
    #[schema(value_type = Option<EventName>, nullable = false)]
    event: Option<EventKind>,
}

/// The receiver to test, and the event to send
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body, in which `url` and `headers` are those of a webhook.
pub struct TestReceiver {
    url: String,
    headers: Option<BTreeMap<String, String>>,
    /// By default the first one of the catalogue
    #[schema(value_type = Option<EventName>, nullable = false)]
    event: Option<EventKind>,
}

/// The result of a test of a receiver
#[derive(Serialize, ToSchema)]
#[schema(as = ReceiverTestReport)]
pub struct ReportBody {
    delivered: bool,
    #[schema(required = true)]
    response_status: Option<u16>,
    #[schema(required = true)]
    duration_ms: Option<u64>,
    #[schema(required = true)]
    error: Option<LogError>,
}

impl From<TestReport> for ReportBody {
    fn from(report: TestReport) -> Self {
        ReportBody {
            delivered: report.is_delivered(),
            response_status: report.response_status,
            duration_ms: report.duration.map(|duration| duration.as_millis() as u64),
            error: report.error.map(|(kind, message)| LogError {
                kind: kind.as_str().to_owned(),
                message,
            }),
        }
    }
}

/// The result of a test
#[derive(Serialize, ToSchema)]
#[schema(as = TestReport)]
pub struct LoggedTestBody {
    #[serde(flatten)]
    report: ReportBody,
    /// The entry of the delivery log
    log_id: Uuid,
}

impl From<LoggedTest> for LoggedTestBody {
    fn from(test: LoggedTest) -> Self {
        LoggedTestBody {
            report: test.report.into(),
            log_id: test.log_id,
        }
    }
}

/// Test a receiver
///
/// Makes one attempt with the event's example data at a URL for which there is no webhook yet, marked
/// `X-Webhook-Test: true`. Nothing is stored. The request is signed with a secret that is used only
/// once, so a receiver that verifies signatures responds with 401, which shows that it is reachable.
/// Counts as a test.
#[utoipa::path(
    post, path = "/webhooks/test", tag = "webhooks", operation_id = "testReceiver",
    request_body = TestReceiver,
    responses((status = 200, description = "The result, whether the test was delivered or not", body = ReportBody))
)]
pub async fn send_unsaved(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    body: Object,
) -> Result<Json<ReportBody>, Problem> {
    let report = state.manage().test_receiver(&actor, body.json()).await?;
    Ok(Json(report.into()))
}

/// Send a test
///
/// Makes one attempt with the event's example data, marked `X-Webhook-Test: true`, also if the
/// webhook is inactive. The attempt is logged, but not counted.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/test", tag = "webhooks", operation_id = "testWebhook",
    request_body(content = Option<TestWebhook>),
    responses((status = 200, description = "The result, whether the test was delivered or not", body = LoggedTestBody))
)]
pub async fn send(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    OptionalObject(body): OptionalObject,
) -> Result<Json<LoggedTestBody>, Problem> {
    // First, so that an unknown webhook is reported before errors of the body.
    state.manage().webhook(&actor.user, id).await?;
    let named = |name: String| name.parse().map_err(|_| UNKNOWN_EVENT);
    let event = body.read(|members| members.optional("event", string(named)))?;
    Ok(Json(
        state.manage().send_test(&actor, id, event).await?.into(),
    ))
}
