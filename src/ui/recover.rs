//! Recovery of a time range: first a preview of how many deliveries it covers, then a button to start it.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::{Fields, time};
use super::flash::Flash;
use super::format::{Count, deliveries, outcome_label, sentence};
use super::page::{Frame, Section, redirect, with_status};
use super::state::webhook_path;
use super::stats::day_before;
use super::time::{Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::time::millis;
use crate::manage::{self, Fault, JobScope, OUTCOMES, PeriodFault, RecoveryDraft, Webhook};

#[derive(Template)]
#[template(path = "ui/recover.html")]
struct Page {
    frame: Frame,
    webhook: Webhook,
    since: String,
    until: String,
    outcome: String,
    errors: Vec<String>,
    /// Events from before this time are no longer stored.
    oldest: Timestamp,
    preview: Option<JobScope>,
}

fn parse(fields: &Fields) -> Result<RecoveryDraft, Vec<String>> {
    let mut errors = Vec::new();
    let since = fields.optional("since", time, "“Since” is not a valid time.", &mut errors);
    let until = fields.optional("until", time, "“Until” is not a valid time.", &mut errors);
    let outcome = fields.optional("outcome", manage::outcome, "Select an outcome from the list.", &mut errors);
    match since {
        _ if !errors.is_empty() => Err(errors),
        None => Err(vec!["“Since” is required.".to_owned()]),
        Some(since) => {
            RecoveryDraft::new(since, until, outcome).map_err(|fault| vec![period_message(fault).to_owned()])
        }
    }
}

/// Why a time range is invalid.
pub fn period_message(fault: PeriodFault) -> &'static str {
    match fault {
        PeriodFault::SinceInFuture => "“Since” must not be in the future.",
        PeriodFault::UntilNotAfterSince => "“Until” must be after “Since”.",
    }
}

/// A preview, or why the fields are not accepted.
type Shown = Result<Option<JobScope>, (StatusCode, Vec<String>)>;

/// Shows the form, with a preview if `since` is set.
pub async fn form(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let shown = match parse(&fields) {
        _ if fields.one("since").is_empty() => Ok(None),
        Ok(draft) => Ok(Some(visit.manage().preview_recovery(visit.user(), id, draft).await?)),
        Err(errors) => Err((StatusCode::UNPROCESSABLE_ENTITY, errors)),
    };
    show(&visit, id, &fields, shown).await
}

pub async fn start(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let draft = match parse(&fields) {
        Ok(draft) => draft,
        Err(errors) => return show(&visit, id, &fields, Err((StatusCode::UNPROCESSABLE_ENTITY, errors))).await,
    };
    match visit.manage().recover(&visit.actor, id, draft).await {
        Ok(recovery) => {
            let count = deliveries(recovery.scope.count);
            let text = format!("Recovery of {count} started. It runs in the background.");
            Ok(redirect(&webhook_path(id, "/logs"), Flash::good(text)))
        }
        Err(fault @ (Fault::WebhookInactive | Fault::TooManyRecoveries)) => {
            show(&visit, id, &fields, Err((StatusCode::CONFLICT, vec![sentence(&fault.to_string())]))).await
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Returns "1 delivery", or "1,000 or more deliveries" if the log is too long to count all.
fn counted(preview: &JobScope) -> String {
    let JobScope { count, is_exact, .. } = *preview;
    if is_exact { deliveries(count) } else { format!("{} or more deliveries", Count(count)) }
}

async fn show(visit: &Visit, id: Uuid, fields: &Fields, shown: Shown) -> Result<Response, PageError> {
    let now = Timestamp::now();
    let webhook = visit.manage().webhook(visit.user(), id).await?;
    let value = |name: &str| time(fields.one(name)).map(field);
    let (status, preview, errors) = match shown {
        Ok(preview) => (StatusCode::OK, preview, Vec::new()),
        Err((status, errors)) => (status, None, errors),
    };
    let template = Page {
        frame: visit.frame(Section::Webhooks),
        webhook,
        since: value("since").unwrap_or_else(|| field(day_before(now))),
        until: value("until").unwrap_or_default(),
        outcome: fields.one("outcome").to_owned(),
        errors,
        oldest: now.checked_sub(visit.state.retention).unwrap_or(Timestamp::UNIX_EPOCH),
        preview,
    };
    Ok(with_status(status, &template))
}
