//! The delivery log of a webhook: filtered, page by page.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, page, page_again};
use super::edit::webhook_id;
use super::failure::{Failure, sentence};
use super::fields::{Fields, with_zone};
use super::session::Visitor;
use super::stats::duration;
use super::time::{Moment, field_of};
use super::webhook::failure_name;
use crate::api::{self, FieldError, OUTCOMES, STATUS_CLASSES};
use crate::domain::event::EventKind;
use crate::store::logs::{Entry, Matches};

const PAGE: usize = 50;
/// The fields of the filter; a page's cursor is not among them.
const FILTERS: [&str; 5] = ["event", "outcome", "status", "since", "until"];

#[derive(Template)]
#[template(path = "ui/logs.html")]
struct Page {
    frame: Frame,
    id: Uuid,
    name: String,
    events: Vec<Choice>,
    outcomes: Vec<Choice>,
    statuses: Vec<Choice>,
    since: String,
    until: String,
    errors: Vec<String>,
    lines: Vec<Line>,
    is_filtered: bool,
    is_first: bool,
    /// Where this page's first one is, and the next.
    first: String,
    next: Option<String>,
}

struct Choice {
    value: &'static str,
    label: String,
    chosen: bool,
}

/// One line of the log.
pub struct Line {
    pub id: Uuid,
    pub at: Moment,
    pub event: String,
    pub outcome: &'static str,
    /// How it is coloured.
    pub class: &'static str,
    pub status: String,
    pub duration: String,
    pub attempt: String,
    pub error: Option<&'static str>,
    pub test: bool,
}

impl Line {
    /// Of a delivery that has so many attempts in a round.
    pub fn new(entry: Entry, attempts: u16) -> Line {
        // A test has one attempt: its failure is followed by nothing.
        let ended = if entry.test && entry.outcome == "failed" { "permanently_failed" } else { &*entry.outcome };
        let (outcome, class) = outcome_name(ended);
        let of = if entry.test { String::new() } else { format!(" of {attempts}") };
        let round = if entry.round > 1 { format!(", round {}", entry.round) } else { String::new() };
        Line {
            id: entry.id,
            at: Moment::exact(entry.started_at),
            event: entry.event_kind,
            outcome,
            class,
            status: entry.response_status.map_or_else(|| "–".to_owned(), |status| status.to_string()),
            duration: duration(entry.duration_ms.and_then(|millis| u64::try_from(millis).ok())),
            attempt: format!("{}{of}{round}", entry.attempt),
            error: entry.error.map(|(kind, _)| failure_name(&kind)),
            test: entry.test,
        }
    }
}

/// What an outcome is called, and how it is coloured.
pub fn outcome_name(outcome: &str) -> (&'static str, &'static str) {
    match outcome {
        "delivered" => ("Delivered", "good"),
        "failed" => ("Failed, to be retried", "warn"),
        "permanently_failed" => ("Failed", "bad"),
        _ => ("Cancelled", "quiet"),
    }
}

fn choices(values: &[&'static str], chosen: &str, label: impl Fn(&'static str) -> String) -> Vec<Choice> {
    values.iter().map(|value| Choice { value, label: label(value), chosen: *value == chosen }).collect()
}

fn status_name(class: &'static str) -> String {
    match class {
        "none" => "No answer".to_owned(),
        class => class.to_owned(),
    }
}

pub async fn show(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let webhook = state.api.webhook(&visitor.actor.user, id).await?;
    let fields = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let value = |name: &'static str| match name {
        "since" | "until" => with_zone(fields.one(name)),
        _ => fields.one(name).to_owned(),
    };
    // Forms send what is left empty; the API would take it for a wrong value.
    let given: Vec<(&str, String)> = FILTERS.map(|name| (name, value(name))).into_iter().collect();
    let given: Vec<(&str, String)> = given.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let query = Serializer::new(String::new()).extend_pairs(&given).finish();
    let cursor = fields.one("cursor");
    let with_cursor = if cursor.is_empty() { query.clone() } else { format!("{query}&cursor={cursor}") };
    let mut parameters = api::Parameters::parse(&with_cursor);
    let (filter, before) = (api::log_filter(&mut parameters), parameters.cursor());
    let checked = parameters.finish();
    let Matches { entries, horizon } = match &checked {
        Ok(_) => state.api.log(&visitor.actor.user, id, &filter, before, PAGE + 1).await?,
        Err(_) => Matches::default(),
    };
    let attempts = state.attempts;
    let entries =
        api::Page::new(entries, PAGE, |entry| entry.id, |entry| Line::new(entry, attempts)).or_continue_at(horizon);
    let here = format!("/ui/webhooks/{id}/logs");
    let next = entries.next_cursor.map(|cursor| format!("{here}?{query}&cursor={cursor}"));
    let events: Vec<&'static str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let outcomes: Vec<&'static str> = OUTCOMES.iter().map(|outcome| outcome.as_str()).collect();
    let told = |FieldError { pointer, detail }: &FieldError| sentence(&format!("{}: {detail}", &pointer[1..]));
    let shown = Page {
        frame: Frame::of(&state, visitor, Section::Webhooks),
        id,
        name: webhook.settings.name,
        events: choices(&events, fields.one("event"), str::to_owned),
        outcomes: choices(&outcomes, fields.one("outcome"), |outcome| outcome_name(outcome).0.to_owned()),
        statuses: choices(&STATUS_CLASSES, fields.one("status"), status_name),
        since: field_of(&value("since")),
        until: field_of(&value("until")),
        errors: checked.as_ref().err().map(|problem| problem.errors().iter().map(told).collect()).unwrap_or_default(),
        lines: entries.data,
        is_filtered: !query.is_empty(),
        is_first: cursor.is_empty(),
        first: if query.is_empty() { here } else { format!("{here}?{query}") },
        next,
    };
    Ok(match &checked {
        Ok(_) => page(&shown),
        Err(problem) => page_again(problem.status(), &shown),
    })
}
