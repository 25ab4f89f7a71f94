//! What is done with a webhook at the press of a button; what cannot be undone asks first.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, page};
use super::edit::webhook_id;
use super::failure::Failure;
use super::fields::Fields;
use super::flash::Flash;
use super::session::Visitor;

#[derive(Template)]
#[template(path = "ui/confirm.html")]
struct Ask {
    frame: Frame,
    id: Uuid,
    name: String,
    title: &'static str,
    text: &'static str,
    /// What the button says and where it leads.
    verb: &'static str,
    action: &'static str,
}

pub async fn ask_delete(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let text =
        "Deliveries still pending are cancelled, and the delivery log can be read no more. This cannot be undone.";
    ask(&state, visitor, &id, ("Delete webhook", text, "Delete", "delete")).await
}

pub async fn ask_secret(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let text =
        "The present secret stops working at once: until your receiver has the new one, it will refuse what we send.";
    ask(&state, visitor, &id, ("Regenerate secret", text, "Regenerate", "secret")).await
}

async fn ask(
    state: &UiState,
    visitor: Visitor,
    id: &str,
    (title, text, verb, action): (&'static str, &'static str, &'static str, &'static str),
) -> Result<Response, Failure> {
    let webhook = state.api.webhook(&visitor.actor.user, webhook_id(id)?).await?;
    let frame = Frame::of(state, visitor, Section::Webhooks);
    Ok(page(&Ask { frame, id: webhook.id, name: webhook.settings.name, title, text, verb, action }))
}

pub async fn delete(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let webhook = state.api.webhook(&visitor.actor.user, id).await?;
    state.api.delete_webhook(&visitor.actor, id, &|_| true).await?;
    Ok(go(super::HOME, Flash::good(format!("The webhook “{}” was deleted.", webhook.settings.name))))
}

pub async fn set_active(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let active = fields.one("active") == "true";
    let members = Map::from_iter([("active".to_owned(), Value::from(active))]);
    let webhook = state.api.update_webhook(&visitor.actor, id, members, &|_| true).await?.webhook;
    let back = fields.back("back").unwrap_or_else(|| super::HOME.to_owned());
    let now = if active { "active" } else { "inactive: nothing is sent to it" };
    Ok(go(&back, Flash::good(format!("“{}” is {now}.", webhook.settings.name))))
}
