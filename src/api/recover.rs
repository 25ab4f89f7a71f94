//! Recovers a webhook's failed and missed deliveries.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::{FromMembers, Members, Object, boolean, string};
use super::query::{self, WebhookId};
use super::schema::OutcomeName;
use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::delivery::Outcome;
use crate::domain::time::millis;
use crate::http::problem::{FieldError, Problem, ProblemBody};
use crate::manage::{JobScope, Manage, PeriodFault, RecoveryDraft};

/// What to recover
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverWebhook {
    /// From this time on, or from the start of the retention period if that is later
    #[schema(value_type = String, format = DateTime, example = "2026-03-01T09:00:00Z")]
    since: Timestamp,
    /// Before this time; by default now
    #[schema(value_type = Option<String>, format = DateTime, nullable = false)]
    until: Option<Timestamp>,
    /// Only deliveries whose last attempt had this outcome. By default those that failed
    /// permanently or were cancelled, and events that occurred while the webhook was inactive.
    #[schema(value_type = Option<OutcomeName>, nullable = false)]
    outcome: Option<Outcome>,
    /// Only count the deliveries
    #[schema(default = false, required = false)]
    dry_run: bool,
}

impl FromMembers for RecoverWebhook {
    fn from_members(members: &mut Members, _: &Manage) -> Option<Self> {
        let since = members.required("since", string(time));
        let until = members.optional("until", string(time));
        let outcome = members.optional("outcome", string(|name| query::outcome(&name)));
        let dry_run = members.optional("dry_run", boolean);
        let since = since?;
        let until = until?;

        // Checked even if `outcome` or `dry_run` is invalid, so that all errors are reported at
        // once.
        RecoveryDraft::new(since, until, None)
            .map_err(|fault| report(members, fault))
            .ok()?;
        Some(RecoverWebhook {
            since,
            until,
            outcome: outcome?,
            dry_run: dry_run?.unwrap_or(false),
        })
    }
}

impl RecoverWebhook {
    fn draft(&self) -> Result<RecoveryDraft, PeriodFault> {
        RecoveryDraft::new(self.since, self.until, self.outcome)
    }
}

/// Reports an invalid period.
pub fn report(members: &mut Members, fault: PeriodFault) {
    let detail = fault.to_string();
    members.error(match fault {
        PeriodFault::SinceInFuture => FieldError::new("/since", detail).transient(),
        PeriodFault::UntilNotAfterSince => FieldError::new("/until", detail),
    });
}

pub fn time(text: String) -> Result<Timestamp, &'static str> {
    text.parse().map_err(|_| query::NOT_A_TIME)
}

/// A recovery
#[derive(Serialize, ToSchema)]
#[schema(as = Recovery)]
pub struct RecoveryBody {
    /// Null in a dry run
    #[schema(required = true)]
    job_id: Option<Uuid>,
    /// The number of deliveries
    count: u64,
    /// False if the delivery log is too large to count exactly: there may be more deliveries
    count_is_exact: bool,
    /// As requested, or the start of the retention period
    #[schema(format = DateTime)]
    since: String,
    #[schema(format = DateTime)]
    until: String,
    dry_run: bool,
}

/// Recover deliveries
///
/// Redelivers everything that failed permanently or was cancelled in a time range, each delivery
/// under its own id in its next round, and delivers the events that the webhook missed while it was
/// inactive. Runs in the background in small parts, so that new deliveries do not wait for it.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/recover", tag = "webhooks", operation_id = "recoverWebhook",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    request_body = RecoverWebhook,
    responses(
        (status = 200, description = "A dry run: what would be recovered", body = RecoveryBody),
        (status = 202, description = "Started", body = RecoveryBody),
        (status = 409, description = "The webhook is inactive, or has too many unfinished recoveries and replays",
         body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn recover(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    body: Object,
) -> Result<(StatusCode, Json<RecoveryBody>), Problem> {
    let manage = state.manage();

    // First, so that an unknown webhook is reported before errors of the body.
    manage.webhook(&actor.user, id).await?;
    let body: RecoverWebhook = body.read(manage)?;
    let dry_run = body.dry_run;
    let draft = body.draft().map_err(|_| Problem::internal())?;

    let (status, job_id, scope) = if dry_run {
        (
            StatusCode::OK,
            None,
            manage.preview_recovery(&actor.user, id, draft).await?,
        )
    } else {
        let started = manage.recover(&actor, id, draft).await?;
        (StatusCode::ACCEPTED, Some(started.id), started.scope)
    };

    let JobScope {
        count,
        is_exact: count_is_exact,
        since,
        until,
    } = scope;

    let since = millis(since);
    let until = millis(until);

    let body = RecoveryBody {
        job_id,
        count,
        count_is_exact,
        since,
        until,
        dry_run,
    };

    Ok((status, Json(body)))
}
