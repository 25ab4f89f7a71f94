//! All deliveries of a stretch of time made again.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::Changer;
use super::body::{Object, Reader};
use super::openapi::OutcomeName;
use super::problem::{FieldError, Problem, ProblemBody};
use super::query::WebhookId;
use super::settings;
use crate::domain::delivery::Outcome;
use crate::domain::time::millis;
use crate::manage::OUTCOMES;
use crate::store::audit::Actor;
use crate::store::recovery::{self, Scope};

/// What to recover
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "documents a body that is read member by member, to tell all its faults")]
pub struct RecoverWebhook {
    /// From this time on; what is older than events are kept is left out
    #[schema(format = DateTime, example = "2026-03-01T09:00:00Z")]
    since: String,
    /// Before this time; now unless told
    #[schema(format = DateTime, nullable = false)]
    until: Option<String>,
    /// Only deliveries whose last attempt ended so. Unless told: those that failed permanently or were cancelled, and events
    /// of the time in which the webhook was inactive.
    #[schema(value_type = Option<OutcomeName>, nullable = false)]
    outcome: Option<String>,
    /// Only tell how many
    #[schema(default = false, required = false)]
    dry_run: bool,
}

/// A recovery
#[derive(Serialize, ToSchema)]
pub struct Recovery {
    /// Null in a dry run
    #[schema(required = true)]
    recovery_id: Option<Uuid>,
    /// How many deliveries are made
    pub count: u64,
    /// False where so much is in the log that not all of it was looked at for the count: there may be more
    pub count_is_exact: bool,
    /// As it was asked for, or as far back as events are kept
    #[schema(format = DateTime)]
    pub since: String,
    #[schema(format = DateTime)]
    pub until: String,
    dry_run: bool,
}

/// Recover deliveries
///
/// Makes again what failed permanently or was cancelled in a stretch of time, each under its own delivery id as its next round,
/// and delivers events that the webhook missed while it was inactive. It is worked off in the background, a part at a time, so
/// that new deliveries need not wait for it.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/recover", tag = "webhooks", operation_id = "recoverWebhook",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    request_body = RecoverWebhook,
    responses(
        (status = 202, description = "PipelinedTransaction; in a dry run, what would be", body = Recovery),
        (status = 409, description = "The webhook is inactive, or too many of its recoveries are under way",
         body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn recover(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    Object(members): Object,
) -> Result<(StatusCode, Json<Recovery>), Problem> {
    state.recover(&actor, id, members).await.map(|recovery| (StatusCode::ACCEPTED, Json(recovery)))
}

impl ApiState {
    /// Begins the recovery that `members` describe, or tells what it would come to.
    pub async fn recover(&self, actor: &Actor, id: Uuid, members: Map<String, Value>) -> Result<Recovery, Problem> {
        let webhook = self.webhook(&actor.user, id).await?;
        let now = Timestamp::now();
        let kept = SignedDuration::from_hours(i64::from(self.retention_days) * 24);
        let oldest = now.checked_sub(kept).unwrap_or(Timestamp::UNIX_EPOCH);
        let (scope, dry_run) = read(members, now, oldest)?;
        if !dry_run && !webhook.settings.active {
            return Err(Problem::webhook_inactive());
        }
        let counted = recovery::count(&self.store, id, &scope).await?;
        let recovery_id = match dry_run {
            true => None,
            false => {
                let begun = recovery::begin(&self.store, actor, id, &scope).await?;
                Some(begun.ok_or_else(Problem::too_many_recoveries)?)
            }
        };
        if let Some(recovery) = recovery_id {
            tracing::info!(webhook = %id, %recovery, count = counted.count, user = %actor.user, "recovery begun");
        }
        Ok(Recovery {
            recovery_id,
            count: counted.count,
            count_is_exact: counted.is_exact,
            since: millis(scope.since),
            until: millis(scope.until),
            dry_run,
        })
    }
}

/// The scope asked for, no wider than from `oldest` to `now`, and whether the run is dry.
fn read(members: Map<String, Value>, now: Timestamp, oldest: Timestamp) -> Result<(Scope, bool), Problem> {
    let mut reader = Reader::new(members);
    let since = reader.required("since", time);
    let until = reader.optional("until", time);
    let asked = reader.optional("outcome", outcome);
    let dry_run = reader.optional("dry_run", settings::boolean).unwrap_or(false);
    match (since, until) {
        (Some(since), Some(until)) if until <= since => reader.fault("/until", "must be after `since`"),
        (Some(since), _) if since > now => reader.fault("/since", "is in the future"),
        _ => {}
    }
    reader.finish()?;
    let since = since.ok_or_else(Problem::internal)?.clamp(oldest, now);
    let until = until.unwrap_or(now).clamp(since, now);
    let unless_told = || vec![Outcome::PermanentlyFailed, Outcome::Cancelled];
    let outcomes = asked.map_or_else(unless_told, |outcome| vec![outcome]);
    Ok((Scope { since, until, outcomes, missed: asked.is_none() }, dry_run))
}

fn time(value: Value) -> Result<Timestamp, Vec<FieldError>> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| vec![FieldError::new("", "expected an RFC 3339 time, such as 2026-03-01T09:05:00Z")])
}

fn outcome(value: Value) -> Result<Outcome, Vec<FieldError>> {
    let known = OUTCOMES.iter().find(|outcome| value.as_str() == Some(outcome.as_str()));
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = OUTCOMES.iter().map(|outcome| outcome.as_str()).collect();
        vec![FieldError::new("", format!("expected one of {}", names.join(", ")))]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope(body: Value) -> Result<(Scope, bool), Problem> {
        let Value::Object(members) = body else { panic!("an object") };
        read(members, "2026-03-31T00:00:00Z".parse().unwrap(), "2026-03-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn the_scope_is_no_wider_than_what_is_kept() {
        let (wide, dry_run) = scope(json!({ "since": "2020-01-01T00:00:00+02:00", "dry_run": true })).unwrap();
        assert_eq!((millis(wide.since).as_str(), dry_run), ("2026-03-01T00:00:00.000+00:00", true));
        assert_eq!(millis(wide.until), "2026-03-31T00:00:00.000+00:00");
        assert!(wide.missed && wide.outcomes == [Outcome::PermanentlyFailed, Outcome::Cancelled]);
        let asked = json!({ "since": "2026-03-02T00:00:00Z", "until": "2027-01-01T00:00:00Z", "outcome": "failed" });
        let (narrow, dry_run) = scope(asked).unwrap();
        assert!(!narrow.missed && !dry_run && narrow.outcomes == [Outcome::Failed]);
        assert_eq!(narrow.until, wide.until);
        let gone = scope(json!({ "since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z" })).unwrap().0;
        assert_eq!(gone.since, gone.until, "nothing of it is kept");
    }

    #[test]
    fn faults_are_told_by_their_place() {
        for (body, pointer) in [
            (json!({}), "/since"),
            (json!({ "since": 1 }), "/since"),
            (json!({ "since": "yesterday" }), "/since"),
            (json!({ "since": "2026-05-01T00:00:00Z" }), "/since"),
            (json!({ "since": "2026-03-02T00:00:00Z", "until": "2026-03-02T00:00:00Z" }), "/until"),
            (json!({ "since": "2026-03-02T00:00:00Z", "until": null }), "/until"),
            (json!({ "since": "2026-03-02T00:00:00Z", "outcome": "lost" }), "/outcome"),
            (json!({ "since": "2026-03-02T00:00:00Z", "dry_run": "yes" }), "/dry_run"),
            (json!({ "since": "2026-03-02T00:00:00Z", "limit": 1 }), "/limit"),
        ] {
            let problem = format!("{:?}", scope(body.clone()).unwrap_err());
            assert!(problem.contains(&format!("pointer: \"{pointer}\"")), "{body}: {problem}");
        }
    }
}
