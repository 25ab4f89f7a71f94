//! Sending a test.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, page};
use super::edit::webhook_id;
use super::failure::{Failure, sentence};
use super::fields::{Fields, members};
use super::flash::Flash;
use super::session::Visitor;
use super::stats::duration;
use crate::domain::event::EventKind;

#[derive(Template)]
#[template(path = "ui/test.html")]
struct Page {
    frame: Frame,
    id: Uuid,
    name: String,
    active: bool,
    /// The subscribed ones first: the choice that is made already is the first of them.
    subscribed: Vec<&'static str>,
    others: Vec<&'static str>,
}

pub async fn form(State(state): State<UiState>, visitor: Visitor, Path(id): Path<String>) -> Result<Response, Failure> {
    let webhook = state.api.webhook(&visitor.actor.user, webhook_id(&id)?).await?;
    let is_subscribed = |name: &&'static str| webhook.settings.events.iter().any(|event| event == name);
    let all = EventKind::ALL.iter().map(|kind| kind.as_str());
    let (subscribed, others) = all.partition(is_subscribed);
    let frame = Frame::of(&state, visitor, Section::Webhooks);
    let (name, active) = (webhook.settings.name, webhook.settings.active);
    Ok(page(&Page { frame, id: webhook.id, name, active, subscribed, others }))
}

/// Sends the event of the form to the webhook of the form, and leads to the entry of the log.
pub async fn send(State(state): State<UiState>, visitor: Visitor, fields: Fields) -> Result<Response, Failure> {
    let id = webhook_id(fields.one("webhook"))?;
    let members = members([("event", fields.one("event").to_owned())]);
    let report = match state.api.test_webhook(&visitor.actor, id, members).await {
        Ok(report) => report,
        Err(problem) if problem.status() == StatusCode::TOO_MANY_REQUESTS => {
            return Ok(go(&format!("/ui/webhooks/{id}/test"), Flash::bad(sentence(problem.detail()))));
        }
        Err(problem) => return Err(problem.into()),
    };
    let took = report.duration_ms.map(|_| format!(" in {}", duration(report.duration_ms))).unwrap_or_default();
    let flash = match (&report.error, report.response_status) {
        (None, Some(status)) => Flash::good(format!("The test was delivered: {status}{took}.")),
        (None, None) => Flash::good(format!("The test was delivered{took}.")),
        (Some(error), _) => Flash::bad(format!("The test was not delivered: {}", sentence(&error.message))),
    };
    Ok(go(&format!("/ui/webhooks/{id}/logs/{}", report.log_id), flash))
}
