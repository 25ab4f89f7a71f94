//! Recovering a stretch of time: first how much it would be, then at the press of a button.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::UiState;
use super::answer::{Count, Frame, Section, go, page, page_again};
use super::edit::webhook_id;
use super::failure::{Failure, sentence};
use super::fields::{Fields, members, with_zone};
use super::flash::Flash;
use super::logs::outcome_name;
use super::session::Visitor;
use super::stats::a_day_before;
use super::time::{Moment, field, field_of};
use crate::api::{FieldError, OUTCOMES, Recovery};

#[derive(Template)]
#[template(path = "ui/recover.html")]
struct Page {
    frame: Frame,
    id: Uuid,
    name: String,
    active: bool,
    since: String,
    until: String,
    outcomes: Vec<Choice>,
    errors: Vec<String>,
    /// As far back as there is anything to recover.
    oldest: Moment,
    preview: Option<Preview>,
}

struct Choice {
    value: &'static str,
    label: &'static str,
    chosen: bool,
}

struct Preview {
    count: Count,
    is_exact: bool,
    since: String,
    until: String,
    outcome: String,
}

fn wanted(fields: &Fields) -> [(&'static str, String); 3] {
    let time = |name| with_zone(fields.one(name));
    [("since", time("since")), ("until", time("until")), ("outcome", fields.one("outcome").to_owned())]
}

/// The form; with `since`, and what it would come to.
pub async fn form(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Failure> {
    let fields = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    if fields.one("since").is_empty() {
        return show(&state, visitor, &id, &fields, None).await;
    }
    let mut members = members(wanted(&fields));
    members.insert("dry_run".to_owned(), Value::from(true));
    let counted = state.api.recover(&visitor.actor, webhook_id(&id)?, members).await;
    show(&state, visitor, &id, &fields, Some(counted)).await
}

pub async fn begin(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Response, Failure> {
    let begun = state.api.recover(&visitor.actor, webhook_id(&id)?, members(wanted(&fields))).await;
    match begun {
        Ok(recovery) => {
            let count = Count(recovery.count);
            let told = format!("Recovery begun: {count} deliveries are made again in the background.");
            Ok(go(&format!("/ui/webhooks/{}/logs", webhook_id(&id)?), Flash::good(told)))
        }
        Err(problem) => show(&state, visitor, &id, &fields, Some(Err(problem))).await,
    }
}

async fn show(
    state: &UiState,
    visitor: Visitor,
    id: &str,
    fields: &Fields,
    result: Option<Result<Recovery, crate::api::Problem>>,
) -> Result<Response, Failure> {
    let webhook = state.api.webhook(&visitor.actor.user, webhook_id(id)?).await?;
    let now = Timestamp::now();
    let (preview, problem) = match result {
        None => (None, None),
        Some(Ok(recovery)) => (Some(preview(recovery, fields)), None),
        Some(Err(problem)) if problem.status().is_client_error() && problem.slug() != "not-found" => {
            (None, Some(problem))
        }
        Some(Err(problem)) => return Err(problem.into()),
    };
    let given = |name: &str, default: String| match fields.one(name) {
        "" => default,
        text => field_of(&with_zone(text)),
    };
    let chosen = fields.one("outcome");
    let choice = |value: &'static str| Choice { value, label: outcome_name(value).0, chosen: value == chosen };
    let told = |FieldError { pointer, detail }: &FieldError| sentence(&format!("{}: {detail}", &pointer[1..]));
    let errors = problem.as_ref().map(|problem| match problem.errors() {
        [] => vec![sentence(problem.detail())],
        errors => errors.iter().map(told).collect(),
    });
    let shown = Page {
        frame: Frame::of(state, visitor, Section::Webhooks),
        id: webhook.id,
        name: webhook.settings.name,
        active: webhook.settings.active,
        since: given("since", field(a_day_before(now))),
        until: given("until", String::new()),
        outcomes: OUTCOMES.iter().map(|outcome| choice(outcome.as_str())).collect(),
        errors: errors.unwrap_or_default(),
        oldest: Moment::exact(now.checked_sub(state.kept).unwrap_or(Timestamp::UNIX_EPOCH)),
        preview,
    };
    Ok(match problem {
        Some(problem) => page_again(problem.status(), &shown),
        None => page(&shown),
    })
}

/// The end that was counted to is the end that is asked for: what fails meanwhile is not in it.
fn preview(recovery: Recovery, fields: &Fields) -> Preview {
    Preview {
        count: Count(recovery.count),
        is_exact: recovery.count_is_exact,
        since: recovery.since,
        until: recovery.until,
        outcome: fields.one("outcome").to_owned(),
    }
}
