//! Activating, deactivating and deleting a webhook, and the pages that ask for confirmation before
//! a webhook is deleted or its secret replaced.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::flash::Flash;
use super::page::{Frame, Section, page, redirect};
use super::state::HOME;
use super::visit::{Ids, Visit};
use crate::manage::Webhook;

#[derive(Template)]
#[template(path = "ui/confirm.html")]
struct ConfirmPage {
    frame: Frame,
    webhook: Webhook,
    question: Question,
}

/// What a page asks before an action that cannot be undone.
pub struct Question {
    title: &'static str,
    text: &'static str,
    /// The label of the button, and the path below the webhook that it posts to.
    verb: &'static str,
    action: &'static str,
    /// Whether to ask how long the old secret stays valid.
    has_overlap: bool,
}

/// The overlaps to choose from, the preset one first: the value of the field, and its label.
pub const OVERLAPS: [(&str, &str); 4] = [
    ("24h", "24 hours"),
    ("1h", "1 hour"),
    ("168h", "7 days"),
    ("0s", "Not at all"),
];

pub const DELETE: Question = Question {
    title: "Delete webhook",
    text: "Pending deliveries are cancelled, and the delivery log can no longer be read. This cannot be undone.",
    verb: "Delete",
    action: "delete",
    has_overlap: false,
};
pub const REGENERATE: Question = Question {
    title: "Regenerate secret",
    text: "The old secret can stay valid for some time, so that you can replace it in your receiver without losing a delivery. The new one is shown once.",
    verb: "Regenerate",
    action: "secret",
    has_overlap: true,
};

/// Shows the page that asks for confirmation.
pub async fn ask(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    question: Question,
) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    Ok(page(&ConfirmPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        question,
    }))
}

pub async fn delete(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    visit
        .manage()
        .delete_webhook(&visit.actor, id, &|_| true)
        .await?;

    Ok(redirect(
        HOME,
        Flash::good(format!("Webhook “{}” deleted.", webhook.settings.name)),
    ))
}

pub async fn set_active(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    fields: Fields,
) -> Result<Response, PageError> {
    visit.webhook(id).await?;
    let active: bool = fields.chosen("active", |text| text.parse().ok())?;
    let json = format!("{{\"active\":{active}}}");
    let updated = visit
        .manage()
        .update_webhook(&visit.actor, id, json.as_bytes(), &|_| true)
        .await?;
    let state = if active {
        "active"
    } else {
        "inactive and receives no deliveries"
    };

    let text = format!("“{}” is now {state}.", updated.webhook.settings.name);
    Ok(redirect(
        fields.page("back").unwrap_or(HOME),
        Flash::good(text),
    ))
}
