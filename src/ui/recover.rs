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
use super::page::{Frame, Section, page, redirect, rejected};
use super::state::webhook_path;
use super::stats::day_before;
use super::time::{Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::time::millis;
use crate::manage::{self, Fault, OUTCOMES, PeriodFault, RecoveryDraft, RecoveryScope, Webhook};

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
    preview: Option<RecoveryScope>,
}

fn parse(fields: &Fields) -> Result<RecoveryDraft, Vec<String>> {
    let mut errors = Vec::new();
    let since = fields.optional("since", time, "“Since” is not a valid time.", &mut errors);
    let until = fields.optional("until", time, "“Until” is not a valid time.", &mut errors);
    let outcome = fields.optional("outcome", manage::outcome, "Select an outcome from the list.", &mut errors);
    match since {
        _ if !errors.is_empty() => Err(errors),
        None => Err(vec!["“Since” is required.".to_owned()]),
        Some(since) => RecoveryDraft::new(since, until, outcome).map_err(|fault| {
            let text = match fault {
                PeriodFault::SinceInFuture => "“Since” must not be in the future.",
                PeriodFault::UntilNotAfterSince => "“Until” must be after “Since”.",
            };
            vec![text.to_owned()]
        }),
    }
}

/// Shows the form, with a preview if `since` is set.
pub async fn form(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    if fields.one("since").is_empty() {
        return Ok(page(&template(&visit, id, &fields).await?));
    }
    let preview = match parse(&fields) {
        Ok(draft) => visit.manage().preview_recovery(visit.user(), id, draft).await?,
        Err(errors) => return reject(&visit, id, &fields, StatusCode::UNPROCESSABLE_ENTITY, errors).await,
    };
    Ok(page(&Page { preview: Some(preview), ..template(&visit, id, &fields).await? }))
}

pub async fn start(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let draft = match parse(&fields) {
        Ok(draft) => draft,
        Err(errors) => return reject(&visit, id, &fields, StatusCode::UNPROCESSABLE_ENTITY, errors).await,
    };
    match visit.manage().recover(&visit.actor, id, draft).await {
        Ok(recovery) => {
            let count = deliveries(recovery.scope.count);
            let text = format!("Recovery of {count} started. It runs in the background.");
            Ok(redirect(&webhook_path(id, "/logs"), Flash::good(text)))
        }
        Err(fault @ (Fault::WebhookInactive | Fault::TooManyRecoveries)) => {
            reject(&visit, id, &fields, StatusCode::CONFLICT, vec![sentence(&fault.to_string())]).await
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Returns "1 delivery", or "1,000 or more deliveries" if the log is too long to count all.
fn counted(preview: &RecoveryScope) -> String {
    let RecoveryScope { count, is_exact, .. } = *preview;
    if is_exact { deliveries(count) } else { format!("{} or more deliveries", Count(count)) }
}

async fn reject(
    visit: &Visit,
    id: Uuid,
    fields: &Fields,
    status: StatusCode,
    errors: Vec<String>,
) -> Result<Response, PageError> {
    Ok(rejected(status, &Page { errors, ..template(visit, id, fields).await? }))
}

async fn template(visit: &Visit, id: Uuid, fields: &Fields) -> Result<Page, PageError> {
    let now = Timestamp::now();
    let webhook = visit.manage().webhook(visit.user(), id).await?;
    let shown = |name: &str| time(fields.one(name)).map(field);
    Ok(Page {
        frame: visit.frame(Section::Webhooks),
        webhook,
        since: shown("since").unwrap_or_else(|| field(day_before(now))),
        until: shown("until").unwrap_or_default(),
        outcome: fields.one("outcome").to_owned(),
        errors: Vec::new(),
        oldest: now.checked_sub(visit.state.retention).unwrap_or(Timestamp::UNIX_EPOCH),
        preview: None,
    })
}
