//! Sending a test.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::flash::Flash;
use super::format::{Millis, sentence};
use super::page::{Frame, Section, page, redirect};
use super::state::webhook_path;
use super::visit::{Ids, Visit};
use crate::domain::event::EventKind;
use crate::manage::{Fault, TestReport, Webhook};

#[derive(Template)]
#[template(path = "ui/test.html")]
struct TestPage {
    frame: Frame,
    webhook: Webhook,
    /// The events that the webhook does not subscribe to.
    others: Vec<&'static str>,
}

pub async fn form(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let all = EventKind::ALL.iter().map(|kind| kind.as_str());
    let others = all
        .filter(|name| !webhook.settings.events.iter().any(|event| event == name))
        .collect();

    Ok(page(&TestPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        others,
    }))
}

/// Sends a test to the webhook in the form, and redirects to its log entry.
pub async fn send(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let id: Uuid = fields
        .one("webhook")
        .parse()
        .map_err(|_| Fault::NoSuchWebhook)?;
    let event = fields.linked("event", str::parse)?;

    // The receiver may take as long as the time limit of an attempt.
    drop(fields);

    match visit.manage().send_test(&visit.actor, id, event).await {
        Ok(test) => Ok(redirect(
            &webhook_path(id, &format!("/logs/{}", test.log_id)),
            outcome(&test.report),
        )),
        Err(fault @ (Fault::TooManyTests | Fault::RateLimit { .. })) => Ok(redirect(
            &webhook_path(id, "/test"),
            Flash::bad(sentence(&fault.to_string())),
        )),
        Err(fault) => Err(fault.into()),
    }
}

/// Describes the result of a test.
pub fn outcome(report: &TestReport) -> Flash {
    let millis =
        |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let took = report
        .duration
        .map(|duration| format!(" in {}", Millis(Some(millis(duration)))))
        .unwrap_or_default();

    match (&report.error, report.response_status) {
        (None, Some(status)) => Flash::good(format!("Test delivered: {status}{took}.")),
        (None, None) => Flash::good(format!("Test delivered{took}.")),
        (Some((_, message)), _) => Flash::bad(format!("Test failed: {message}.")),
    }
}
