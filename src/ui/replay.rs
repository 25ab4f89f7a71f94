//! Replay of stored events: first a preview of how many deliveries it makes, then a button to start it.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::{Fields, time};
use super::flash::Flash;
use super::format::{deliveries, sentence};
use super::page::{Frame, Section, redirect, with_status};
use super::recover::period_message;
use super::state::webhook_path;
use super::stats::day_before;
use super::time::{Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::event::EventKind;
use crate::domain::time::millis;
use crate::manage::{EventSet, Fault, JobScope, MAX_LABELS, ReplayDraft, Webhook, replayable};

#[derive(Template)]
#[template(path = "ui/replay.html")]
struct Page {
    frame: Frame,
    webhook: Webhook,
    since: String,
    until: String,
    /// As entered.
    labels: String,
    /// Those that are selected. None for all.
    events: Vec<String>,
    errors: Vec<String>,
    /// Events from before this time are no longer stored.
    oldest: Timestamp,
    preview: Option<JobScope>,
}

impl Page {
    fn is_chosen(&self, event: &String) -> bool {
        self.events.is_empty() || self.events.contains(event)
    }
}

/// Parses a list of ids, separated by commas or spaces.
fn label_ids(text: &str) -> Option<Vec<i64>> {
    let ids = text.split([',', ' ']).filter(|id| !id.is_empty()).map(|id| id.parse().ok());
    ids.collect::<Option<Vec<i64>>>().filter(|ids| (1..=MAX_LABELS).contains(&ids.len()))
}

fn parse(fields: &Fields, webhook: &Webhook) -> Result<ReplayDraft, Vec<String>> {
    let mut errors = Vec::new();
    let since = fields.optional("since", time, "“Since” is not a valid time.", &mut errors);
    let until = fields.optional("until", time, "“Until” is not a valid time.", &mut errors);
    let wrong_labels = "“Label IDs” must be up to 100 whole numbers, separated by commas.";
    let labels = fields.optional("label_ids", label_ids, wrong_labels, &mut errors);
    let events: Result<Vec<EventKind>, _> =
        fields.all("events").map(|name| replayable(&webhook.settings, name)).collect();
    let events = events.map_err(|_| errors.push("Select event types of this webhook.".to_owned())).unwrap_or_default();
    match since {
        _ if !errors.is_empty() => Err(errors),
        None => Err(vec!["“Since” is required.".to_owned()]),
        // Without a selected event type, all are replayed.
        Some(since) => ReplayDraft::new(&webhook.settings, since, until, EventSet::new(events).ok(), labels)
            .map_err(|fault| vec![period_message(fault).to_owned()]),
    }
}

/// A preview, or why the fields are not accepted.
type Shown = Result<Option<JobScope>, (StatusCode, Vec<String>)>;

/// Shows the form, with a preview if `since` is set.
pub async fn form(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let webhook = visit.manage().webhook(visit.user(), id).await?;
    let shown = match parse(&fields, &webhook) {
        _ if fields.one("since").is_empty() => Ok(None),
        Ok(draft) => Ok(Some(visit.manage().preview_replay(visit.user(), id, &draft).await?)),
        Err(errors) => Err((StatusCode::UNPROCESSABLE_ENTITY, errors)),
    };
    Ok(show(&visit, webhook, &fields, shown))
}

pub async fn start(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let webhook = visit.manage().webhook(visit.user(), id).await?;
    let draft = match parse(&fields, &webhook) {
        Ok(draft) => draft,
        Err(errors) => return Ok(show(&visit, webhook, &fields, Err((StatusCode::UNPROCESSABLE_ENTITY, errors)))),
    };
    match visit.manage().replay(&visit.actor, id, &draft).await {
        Ok(job) => {
            let text = format!("Replay of {} started. It runs in the background.", counted(&job.scope));
            Ok(redirect(&webhook_path(id, "/jobs"), Flash::good(text)))
        }
        Err(fault @ (Fault::WebhookInactive | Fault::TooManyRecoveries)) => {
            let errors = vec![sentence(&fault.to_string())];
            Ok(show(&visit, webhook, &fields, Err((StatusCode::CONFLICT, errors))))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Returns "1 delivery", or "about 60,000 deliveries" if there are too many to count.
fn counted(preview: &JobScope) -> String {
    let count = deliveries(preview.count);
    if preview.is_exact { count } else { format!("about {count}") }
}

fn show(visit: &Visit, webhook: Webhook, fields: &Fields, shown: Shown) -> Response {
    let now = Timestamp::now();
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
        labels: fields.one("label_ids").to_owned(),
        events: fields.all("events").map(str::to_owned).collect(),
        errors,
        oldest: now.checked_sub(visit.state.retention).unwrap_or(Timestamp::UNIX_EPOCH),
        preview,
    };
    with_status(status, &template)
}
