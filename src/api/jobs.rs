//! Replays stored events to a webhook, and lists and cancels its jobs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::Object;
use super::query::{JobId, Page, QueryParameters, WebhookId};
use super::recover::Requested;
use super::schema::{EventName, JobKindName, JobStateName};
use super::state::ApiState;
use crate::auth::{Caller, Changer};
use crate::domain::event::EventKind;
use crate::domain::members::{Checked, FieldError, invalid, items};
use crate::domain::settings::{Settings, event_set};
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{Job, JobDraft, List, MAX_LABELS, replayable};

/// What to replay
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body; a `Requested` is what is read from it.
pub struct ReplayWebhook {
    /// From this time on, or from the start of the retention period if that is later
    #[schema(format = DateTime, example = "2026-03-01T09:00:00Z")]
    since: String,
    /// Before this time; by default now
    #[schema(format = DateTime, nullable = false)]
    until: Option<String>,
    /// Only these events, to which the webhook must be subscribed. By default all to which it is
    #[schema(value_type = Option<Vec<EventName>>, min_items = 1, nullable = false)]
    events: Option<Vec<EventKind>>,
    /// Only events of these labels. By default all events, with and without a label
    #[schema(min_items = 1, max_items = 100, nullable = false)]
    label_ids: Option<Vec<i64>>,
    /// Only count the deliveries
    #[schema(default = false, required = false)]
    dry_run: bool,
}

fn events(value: Value, settings: &Settings) -> Checked<Vec<String>> {
    let event = |item: &Value| {
        replayable(settings, item.as_str().unwrap_or_default()).map_err(str::to_owned)
    };

    // The webhook's events can be changed.
    let transient = |errors: Vec<FieldError>| {
        errors
            .into_iter()
            .map(FieldError::transient)
            .collect::<Vec<_>>()
    };

    event_set(items(value, "expected an array of events", event).map_err(transient)?)
        .map_err(invalid)
}

fn labels(value: Value) -> Checked<Vec<i64>> {
    let label = |item: &Value| {
        item.as_i64()
            .ok_or_else(|| "expected the id of a label, a whole number".to_owned())
    };

    let labels = items(value, "expected an array of ids of labels", label)?;
    let is_valid = (1..=MAX_LABELS).contains(&labels.len());
    if is_valid {
        Ok(labels)
    } else {
        Err(invalid(format!("must have 1 to {MAX_LABELS} items")))
    }
}

/// A replay
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub struct ReplayBody {
    /// Null in a dry run
    #[schema(required = true)]
    job_id: Option<Uuid>,
    /// The number of deliveries
    count: u64,
    /// False if there are too many events to count: then the number is an estimate
    exact: bool,
}

/// A recovery or a replay
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub struct JobBody {
    id: Uuid,
    #[schema(value_type = JobKindName)]
    kind: String,
    /// A job of a webhook that is deleted or becomes inactive is cancelled
    #[schema(value_type = JobStateName)]
    state: &'static str,
    /// Deliveries created so far
    done: u64,
    /// Deliveries to create: an estimate until the job has finished, never less than `done`
    total: u64,
    #[schema(format = DateTime)]
    created_at: String,
    /// When it finished or was cancelled
    #[schema(required = true, format = DateTime)]
    finished_at: Option<String>,
}

impl From<Job> for JobBody {
    fn from(job: Job) -> Self {
        JobBody {
            id: job.id,
            kind: job.kind,
            state: job.state.as_str(),
            done: job.done,
            total: job.total,
            created_at: millis(job.created_at),
            finished_at: job.finished_at.map(millis),
        }
    }
}

/// Replay events
///
/// Delivers stored events of a time range to a webhook that never had them, in the order in which
/// they were committed. Events that the webhook has had a delivery of are skipped, whatever its
/// outcome: recover or redeliver those. Runs in the background in small parts, so that new
/// deliveries do not wait for it.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/replay", tag = "jobs", operation_id = "replayEvents",
    request_body = ReplayWebhook,
    responses(
        (status = 200, description = "A dry run: what would be replayed", body = ReplayBody),
        (status = 202, description = "Started", body = ReplayBody),
        (status = 409, description = "The webhook is inactive, or has too many unfinished recoveries and replays"),
    )
)]
pub async fn replay(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    body: Object,
) -> Result<(StatusCode, Json<ReplayBody>), Problem> {
    let manage = state.manage();

    // First, so that an unknown webhook is reported before errors of the body.
    let settings = manage.webhook(&actor.user, id).await?.settings;
    let requested = body.read(|members| {
        Requested::read(members, None, |members| {
            let events = members.optional("events", |value| events(value, &settings));
            let labels = members.optional("label_ids", labels);
            let events = events?;
            let labels = labels?;
            let settings = &settings;
            Some(move |since, until| JobDraft::replay(settings, since, until, events, labels))
        })
    })?;
    let (status, job_id, scope) = requested.start(manage, &actor, id).await?;

    Ok((
        status,
        Json(ReplayBody {
            job_id,
            count: scope.count,
            exact: scope.is_exact,
        }),
    ))
}

/// List jobs
///
/// The webhook's recoveries and replays, newest first. Ended ones are listed for the retention
/// period.
#[utoipa::path(
    get, path = "/webhooks/{webhook}/jobs", tag = "jobs", operation_id = "listJobs",
    params(
        ("limit" = Option<u8>, Query, description = "The number of jobs; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
    ),
    responses((status = 200, description = "A page of jobs", body = Page<JobBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(webhook): WebhookId,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::Jobs(webhook));

    // First, so that an unknown webhook is reported before errors of the query.
    state.manage().webhook(&user, webhook).await?;
    let target = parameters.finish()?;
    let page = state.manage().jobs(&user, webhook, cursor, limit).await?;
    Ok(Page::<JobBody>::from(page).response(&target))
}

/// Read a job
#[utoipa::path(
    get, path = "/webhooks/{webhook}/jobs/{job}", tag = "jobs", operation_id = "readJob",
    responses((status = 200, description = "The job", body = JobBody))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    JobId { webhook, job }: JobId,
) -> Result<Json<JobBody>, Problem> {
    Ok(Json(state.manage().job(&user, webhook, job).await?.into()))
}

/// Cancel a job
///
/// It creates no more deliveries; those that it has created remain. A job that has ended stays as
/// it is, with the same response.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}/jobs/{job}", tag = "jobs", operation_id = "cancelJob",
    responses((status = 204, description = "The job has ended"))
)]
pub async fn cancel(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    JobId { webhook, job }: JobId,
) -> Result<StatusCode, Problem> {
    state.manage().cancel_job(&actor, webhook, job).await?;
    Ok(StatusCode::NO_CONTENT)
}
