//! A new secret's page. Its address is another than the form's, so that loading the page again shows the same secret and makes
//! no new one. The secret is read from the webhook, for a while and in the session that asked for it only.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, secret_page};
use super::edit::webhook_id;
use super::failure::Failure;
use super::flash::Flash;
use super::session::Visitor;
use crate::api::Problem;
use crate::store::sessions;

#[derive(Template)]
#[template(path = "ui/secret.html")]
struct Page {
    frame: Frame,
    id: Uuid,
    name: String,
    secret: String,
}

pub async fn regenerate(
    State(state): State<UiState>,
    visitor: Visitor,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    state.api.regenerate_secret(&visitor.actor, id).await?;
    go_to(&state, &headers, id, Flash::good("The old secret no longer works.")).await
}

/// Lets the session show the webhook's new secret, and leads there.
pub async fn go_to(state: &UiState, headers: &HeaderMap, webhook: Uuid, flash: Flash) -> Result<Response, Failure> {
    let session = state.api.session_id(headers).ok_or_else(Problem::unauthorized)?;
    sessions::reveal(state.api.store(), session, Some(webhook)).await?;
    Ok(go(&format!("/ui/webhooks/{webhook}/new-secret"), flash))
}

pub async fn show(
    State(state): State<UiState>,
    visitor: Visitor,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let webhook = state.api.webhook(&visitor.actor.user, webhook_id(&id)?).await?;
    let session = state.api.session_id(&headers).ok_or_else(Problem::unauthorized)?;
    let Some(secret) = state.api.revealed_secret(session, webhook.id).await? else {
        let told = "The secret is no longer shown. If you have not copied it, regenerate it.";
        return Ok(go(&format!("/ui/webhooks/{}", webhook.id), Flash::bad(told)));
    };
    let frame = Frame::of(&state, visitor, Section::Webhooks);
    let secret = secret.expose_secret().to_owned();
    Ok(secret_page(&Page { frame, id: webhook.id, name: webhook.settings.name, secret }))
}

/// The visitor has copied it.
pub async fn conceal(
    State(state): State<UiState>,
    _: Visitor,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let session = state.api.session_id(&headers).ok_or_else(Problem::unauthorized)?;
    sessions::reveal(state.api.store(), session, None).await?;
    Ok(go(&format!("/ui/webhooks/{id}"), Flash::good("The secret is not shown again.")))
}
