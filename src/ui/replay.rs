//! Replay of stored events: the form of its time range, event types and labels.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::deliveries;
use super::page::{Frame, Section, with_status};
use super::period::{self, Parsed, PeriodForm, Shown};
use super::time::Exact;
use super::visit::{Ids, Visit};
use crate::domain::event::EventKind;
use crate::domain::settings::event_set;
use crate::domain::time::millis;
use crate::manage::{JobDraft, JobScope, MAX_LABELS, Webhook, replayable};

#[derive(Template)]
#[template(path = "ui/replay.html")]
struct ReplayPage {
    frame: Frame,
    webhook: Webhook,
    form: PeriodForm,
    /// As entered.
    labels: String,
    /// Those that are selected. None for all.
    events: Vec<String>,
}

impl ReplayPage {
    fn is_chosen(&self, event: &String) -> bool {
        self.events.is_empty() || self.events.contains(event)
    }

    /// The fields of the preview that start the job, besides the time range.
    fn hidden(&self) -> impl Iterator<Item = (&'static str, &String)> {
        [("label_ids", &self.labels)]
            .into_iter()
            .chain(self.events.iter().map(|event| ("events", event)))
    }
}

/// Parses a list of ids, separated by commas or spaces.
fn label_ids(text: &str) -> Option<Vec<i64>> {
    let ids = text
        .split([',', ' '])
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().ok());
    ids.collect::<Option<Vec<i64>>>()
        .filter(|ids| (1..=MAX_LABELS).contains(&ids.len()))
}

fn parse(fields: &Fields, webhook: &Webhook) -> Parsed {
    let mut errors = Vec::new();
    let wrong_labels = "“Label IDs” must be up to 100 whole numbers, separated by commas.";
    let labels = fields.optional("label_ids", label_ids, wrong_labels, &mut errors);
    let events: Result<Vec<EventKind>, _> = fields
        .all("events")
        .map(|name| replayable(&webhook.settings, name))
        .collect();
    let events = events
        .map_err(|_| errors.push("Select event types of this webhook.".to_owned()))
        .unwrap_or_default();

    // Without a selected event type, all are replayed.
    let draft = |since, until| {
        JobDraft::replay(
            &webhook.settings,
            since,
            until,
            event_set(events).ok(),
            labels,
        )
    };

    period::parse(fields, errors, draft)
}

/// Shows the form, with a preview if `since` is set.
pub async fn form(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let shown = period::preview(&visit, id, &fields, parse(&fields, &webhook)).await?;
    Ok(show(&visit, webhook, &fields, shown))
}

pub async fn start(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    fields: Fields,
) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let draft = parse(&fields, &webhook);
    let started = period::start(&visit, id, "Replay", draft, counted).await?;
    Ok(started.unwrap_or_else(|refusal| show(&visit, webhook, &fields, Err(refusal))))
}

/// Returns "1 delivery", or "about 60,000 deliveries" if there are too many to count.
fn counted(scope: &JobScope) -> String {
    let count = deliveries(scope.count);

    if scope.is_exact {
        count
    } else {
        format!("about {count}")
    }
}

fn show(visit: &Visit, webhook: Webhook, fields: &Fields, shown: Shown) -> Response {
    let (status, form) = PeriodForm::new(visit, fields, shown, counted);
    let labels = fields.one("label_ids").to_owned();
    let events = fields.all("events").map(str::to_owned).collect();

    with_status(
        status,
        &ReplayPage {
            frame: visit.frame(Section::Webhooks),
            webhook,
            form,
            labels,
            events,
        },
    )
}
