//! The page of a new secret. Its path differs from that of the form, so that reloading the page
//! shows the same secret and does not generate another one. The secret is shown for ten minutes, in
//! the session that generated it only.

use askama::Template;
use axum::response::Response;
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::confirm::OVERLAPS;
use super::error::PageError;
use super::fields::Fields;
use super::flash::Flash;
use super::page::{Frame, Section, redirect, secret_page};
use super::state::webhook_path;
use super::visit::{Ids, Visit};
use crate::manage::{Overlap, Webhook};

#[derive(Template)]
#[template(path = "ui/secret.html")]
struct SecretPage {
    frame: Frame,
    webhook: Webhook,
    secret: SecretString,
}

pub async fn regenerate(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    fields: Fields,
) -> Result<Response, PageError> {
    visit.webhook(id).await?;
    let (overlap, label) = fields.chosen("overlap", |text| {
        let (value, label) = OVERLAPS.iter().find(|(value, _)| *value == text)?;
        Some((value.parse().ok()?, label))
    })?;

    visit
        .manage()
        .regenerate_secret(&visit.actor, id, overlap)
        .await?;
    let text = if overlap == Overlap::NONE {
        "The old secret no longer works.".to_owned()
    } else {
        format!("The old secret also signs for {label}.")
    };

    reveal(&visit, id, Flash::good(text)).await
}

/// Allows the session to show the webhook's secret, and redirects to it.
pub async fn reveal(visit: &Visit, webhook: Uuid, flash: Flash) -> Result<Response, PageError> {
    visit
        .manage()
        .reveal_secret(&visit.session, webhook)
        .await?;
    Ok(redirect(&webhook_path(webhook, "/new-secret"), flash))
}

pub async fn show(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let Some(secret) = visit.manage().revealed_secret(&visit.session, id).await? else {
        let text = "The secret can no longer be shown. If you have not copied it, regenerate it.";
        return Ok(redirect(&webhook_path(id, ""), Flash::bad(text)));
    };

    Ok(secret_page(&SecretPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        secret,
    }))
}

/// Stops showing the secret before the ten minutes have passed.
pub async fn hide(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    visit.webhook(id).await?;
    visit.manage().hide_secret(&visit.session).await?;

    Ok(redirect(
        &webhook_path(id, ""),
        Flash::good("The secret is hidden and cannot be shown again."),
    ))
}
