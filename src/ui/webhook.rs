//! One webhook: how it is, what its deliveries came to, and how to verify them.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::UiState;
use super::answer::{Count, Frame, Section, page};
use super::edit::webhook_id;
use super::failure::Failure;
use super::list::Status;
use super::logs::Line;
use super::session::Visitor;
use super::stats::{Panel, a_day_before, panels};
use super::time::Moment;
use super::verify::{SNIPPETS, Snippet};
use crate::store::logs::{self, Filter};

const RECENT: usize = 8;
/// Entries that failures are counted among: a read that is short however large the log.
const LOOKED_AT: i64 = 1_000;

#[derive(Template)]
#[template(path = "ui/webhook.html")]
struct Page {
    frame: Frame,
    id: Uuid,
    name: String,
    url: String,
    events: Vec<String>,
    status: Status,
    success: Count,
    failure: Count,
    consecutive: Count,
    last_triggered: Option<Moment>,
    created: Moment,
    panels: [Panel; 2],
    lines: Vec<Line>,
    failures: Vec<(&'static str, Count)>,
    looked_at: Count,
    snippets: &'static [Snippet],
}

pub async fn show(State(state): State<UiState>, visitor: Visitor, Path(id): Path<String>) -> Result<Response, Failure> {
    let now = Timestamp::now();
    let id = webhook_id(&id)?;
    let user = &visitor.actor.user;
    let webhook = state.api.webhook(user, id).await?;
    let hours = state.api.hours(user, id, now).await?;
    let recent = state.api.log(user, id, &Filter::default(), None, RECENT).await?.entries;
    let failures = logs::errors(state.api.store(), user, id, a_day_before(now), LOOKED_AT).await?;
    let count = |number: i64| Count(u64::try_from(number).unwrap_or(0));
    let attempts = state.attempts;
    let shown = Page {
        frame: Frame::of(&state, visitor, Section::Webhooks),
        id,
        status: Status::of(&webhook),
        name: webhook.settings.name,
        url: webhook.settings.url,
        events: webhook.settings.events,
        success: count(webhook.success_count),
        failure: count(webhook.failure_count),
        consecutive: count(webhook.consecutive_failures),
        last_triggered: webhook.last_triggered_at.map(|at| Moment::relative(at, now)),
        created: Moment::exact(webhook.created_at),
        panels: panels(&hours, now),
        lines: recent.into_iter().map(|entry| Line::new(entry, attempts)).collect(),
        failures: failures.into_iter().map(|(kind, number)| (failure_name(&kind), count(number))).collect(),
        looked_at: count(LOOKED_AT),
        snippets: &SNIPPETS,
    };
    Ok(page(&shown))
}

/// What the log's kinds of failure mean to a reader.
pub fn failure_name(kind: &str) -> &'static str {
    match kind {
        "dns" => "Host not found",
        "connect_refused" => "Connection refused",
        "connect_timeout" => "No connection in time",
        "response_timeout" => "No answer in time",
        "tls" => "TLS failed",
        "connection_reset" => "Connection broken off",
        "http_status" => "Answered with an error",
        "blocked_address" => "Address not allowed",
        "payload_too_large" => "Payload too large",
        "webhook_inactive" => "Webhook inactive",
        "event_expired" => "Event no longer kept",
        _ => "Something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::delivery::ErrorKind;

    #[test]
    fn every_kind_of_failure_has_a_name() {
        let names = ErrorKind::ALL.iter().map(|kind| failure_name(kind.as_str()));
        let unnamed: Vec<_> = names.filter(|name| *name == "Something else").collect();
        assert!(unnamed.is_empty());
    }
}
