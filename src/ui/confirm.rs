//! What is done with a webhook at the press of a button; what cannot be undone asks first.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, page, secret_page};
use super::edit::webhook_id;
use super::failure::{Failure, sentence};
use super::fields::Fields;
use super::flash::Flash;
use super::session::Visitor;
use crate::api::Warning;

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

/// A secret that is shown this once.
#[derive(Template)]
#[template(path = "ui/secret.html")]
pub struct SecretPage {
    frame: Frame,
    id: Uuid,
    name: String,
    secret: String,
    is_new: bool,
    /// About its settings.
    warnings: Vec<String>,
}

impl SecretPage {
    pub fn of_new(frame: Frame, id: Uuid, name: String, secret: &SecretString) -> SecretPage {
        SecretPage { frame, id, name, secret: secret.expose_secret().to_owned(), is_new: true, warnings: Vec::new() }
    }

    pub fn with_warnings(self, warnings: &[Warning]) -> SecretPage {
        SecretPage { warnings: warnings.iter().map(|warning| sentence(&warning.detail)).collect(), ..self }
    }
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

pub async fn regenerate_secret(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let secret = state.api.regenerate_secret(&visitor.actor, id).await?;
    let webhook = state.api.webhook(&visitor.actor.user, id).await?;
    let frame = Frame::of(&state, visitor, Section::Webhooks);
    let shown = SecretPage { is_new: false, ..SecretPage::of_new(frame, id, webhook.settings.name, &secret) };
    Ok(secret_page(&shown))
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
