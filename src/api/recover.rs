//! Recovers a webhook's failed and missed deliveries.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::Object;
use super::query::{self, WebhookId};
use super::schema::OutcomeName;
use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::delivery::Outcome;
use crate::domain::members::{FieldError, Members, boolean, string};
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{Actor, JobDraft, JobScope, Manage, PeriodFault, StartedJob};

/// What to recover
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body; a `Requested` is what is read from it.
pub struct RecoverWebhook {
    /// From this time on, or from the start of the retention period if that is later. By default from
    /// the first of the failures that disabled the webhook last; required if it was not disabled
    #[schema(value_type = Option<String>, format = DateTime, nullable = false, example = "2026-03-01T09:00:00Z")]
    since: Option<Timestamp>,
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

/// A valid job to start, or to count.
pub struct Requested {
    draft: JobDraft,
    dry_run: bool,
}

impl Requested {
    /// Reads a job on a time range. `draft` reads the other members, and returns how to make the
    /// draft of the range if they are valid. `since` may be absent if it has a `preset`.
    pub fn read<D>(
        members: &mut Members,
        preset: Option<Timestamp>,
        draft: impl FnOnce(&mut Members) -> Option<D>,
    ) -> Option<Requested>
    where
        D: FnOnce(Timestamp, Option<Timestamp>) -> Result<JobDraft, PeriodFault>,
    {
        if preset.is_none() {
            members.require("since");
        }

        let since = members.optional("since", string(time));
        let until = members.optional("until", string(time));
        let draft = draft(members);
        let dry_run = members.optional("dry_run", boolean);
        let since = since?.or(preset)?;
        let until = until?;

        // Checked even if other members are invalid, so that all errors are reported at once.
        JobDraft::recovery(since, until, None)
            .map_err(|fault| report(members, fault))
            .ok()?;
        Some(Requested {
            draft: draft?(since, until).ok()?,
            dry_run: dry_run?.unwrap_or(false),
        })
    }

    /// Starts the job, or counts its deliveries in a dry run.
    pub async fn start(
        self,
        manage: &Manage,
        actor: &Actor,
        webhook: Uuid,
    ) -> Result<(StatusCode, Option<Uuid>, JobScope), Problem> {
        if self.dry_run {
            let scope = manage
                .preview_job(&actor.user, webhook, &self.draft)
                .await?;
            return Ok((StatusCode::OK, None, scope));
        }

        let StartedJob { id, scope } = manage.start_job(actor, webhook, &self.draft).await?;
        Ok((StatusCode::ACCEPTED, Some(id), scope))
    }
}

/// Reports an invalid period.
fn report(members: &mut Members, fault: PeriodFault) {
    let detail = fault.to_string();
    members.error(match fault {
        PeriodFault::SinceInFuture => FieldError::new("/since", detail).transient(),
        PeriodFault::UntilNotAfterSince => FieldError::new("/until", detail),
    });
}

fn time(text: String) -> Result<Timestamp, &'static str> {
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
    /// As requested or by default, or the start of the retention period
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
/// inactive. With `dry_run`, only counts them: for a disabled webhook, `{"dry_run": true}` counts what
/// waits for it. Runs in the background in small parts, so that new deliveries do not wait for it.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/recover", tag = "webhooks", operation_id = "recoverWebhook",
    request_body = RecoverWebhook,
    responses(
        (status = 200, description = "A dry run: what would be recovered", body = RecoveryBody),
        (status = 202, description = "Started", body = RecoveryBody),
        (status = 409, description = "The webhook is inactive, or has too many unfinished recoveries and replays"),
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
    let preset = manage.recovery_preset(&actor.user, id).await?;
    let requested = body.read(|members| {
        Requested::read(members, preset, |members| {
            let outcome = members.optional("outcome", string(|name| query::outcome(&name)))?;
            Some(move |since, until| JobDraft::recovery(since, until, outcome))
        })
    })?;
    let (status, job_id, scope) = requested.start(manage, &actor, id).await?;

    let body = RecoveryBody {
        job_id,
        count: scope.count,
        count_is_exact: scope.is_exact,
        since: millis(scope.since),
        until: millis(scope.until),
        dry_run: job_id.is_none(),
    };

    Ok((status, Json(body)))
}
