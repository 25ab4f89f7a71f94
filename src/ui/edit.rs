//! The form that creates and edits webhooks.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use uuid::Uuid;

use super::catalogue::{Family, addon_name, by_family};
use super::error::PageError;
use super::fields::{Fields, LongFields};
use super::flash::Flash;
use super::format::{ordering_label, sentence};
use super::page::{Frame, Section, page, redirect, with_status};
use super::secret;
use super::settings::{self, Errors};
use super::state::webhook_path;
use super::visit::{Ids, Visit};
use crate::domain::ordering::Ordering;
use crate::domain::settings::Settings;
use crate::manage::{Fault, Warning, Webhook, version};

#[derive(Template)]
#[template(path = "ui/edit.html")]
struct EditPage<'a> {
    frame: Frame,
    families: [Family<'a>; 5],
    /// The webhook to edit. None for a new one.
    webhook: Option<Uuid>,
    /// The settings, as stored or as submitted, valid or not.
    form: Fields,
    /// The version of the settings that the form was filled from. If it has changed, saving fails
    /// once with a warning.
    version: String,
    errors: Errors,
}

impl EditPage<'_> {
    fn is_chosen(&self, name: &str, value: &str) -> bool {
        self.form.all(name).any(|chosen| chosen == value)
    }
}

/// Adds the messages of a fault that the form can show, and returns the status. Fails with the
/// error page for any other.
fn rejection(fault: Fault, errors: &mut Errors) -> Result<StatusCode, PageError> {
    let (status, message) = match fault {
        Fault::BlockedHost(reason) => {
            errors.set("url", sentence(&reason));
            return Ok(StatusCode::UNPROCESSABLE_ENTITY);
        }
        Fault::InvalidSettings(invalid) => {
            errors.add(&invalid);
            return Ok(StatusCode::UNPROCESSABLE_ENTITY);
        }
        Fault::WebhookLimit { .. } => (StatusCode::CONFLICT, sentence(&fault.to_string())),
        Fault::Cancelling => (
            StatusCode::SERVICE_UNAVAILABLE,
            sentence(&fault.to_string()),
        ),
        Fault::VersionMismatch => {
            let text =
                "This webhook was changed in the meantime. Save again to overwrite those changes.";
            (StatusCode::PRECONDITION_FAILED, text.to_owned())
        }
        fault => return Err(fault.into()),
    };

    errors.set("form", message);
    Ok(status)
}

fn with_warnings(message: &str, warnings: &[Warning]) -> Flash {
    let warnings = warnings.iter().map(|warning| sentence(&warning.detail));
    let sentences: Vec<String> = std::iter::once(message.to_owned())
        .chain(warnings)
        .collect();
    Flash::good(sentences.join(" "))
}

pub async fn new(visit: Visit) -> Response {
    page(&EditPage {
        frame: visit.frame(Section::Webhooks),
        families: by_family(visit.manage().catalogue()),
        webhook: None,
        form: settings::fields(&Settings::default()),
        version: String::new(),
        errors: Errors::default(),
    })
}

pub async fn create(visit: Visit, LongFields(form): LongFields) -> Result<Response, PageError> {
    let mut errors = Errors::default();
    let json = settings::json(&form, &mut errors);
    let created = visit
        .manage()
        .create_webhook(&visit.actor, json.as_bytes())
        .await;

    let status = match created {
        Ok(created) => {
            let flash = with_warnings("Webhook created.", &created.warnings);
            return secret::reveal(&visit, created.webhook.id, flash).await;
        }
        Err(fault) => rejection(fault, &mut errors)?,
    };

    let page = EditPage {
        frame: visit.frame(Section::Webhooks),
        families: by_family(visit.manage().catalogue()),
        webhook: None,
        form,
        version: String::new(),
        errors,
    };
    Ok(with_status(status, &page))
}

pub async fn form(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;

    Ok(page(&EditPage {
        frame: visit.frame(Section::Webhooks),
        families: by_family(visit.manage().catalogue()),
        webhook: Some(id),
        form: settings::fields(&webhook.settings),
        version: version(&webhook),
        errors: Errors::default(),
    }))
}

pub async fn save(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    LongFields(form): LongFields,
) -> Result<Response, PageError> {
    let mut errors = Errors::default();
    let json = settings::json(&form, &mut errors);
    let known = form.one("version").to_owned();
    let is_known = |present: &Webhook| version(present) == known;
    let saved = visit
        .manage()
        .update_webhook(&visit.actor, id, json.as_bytes(), &is_known)
        .await;

    let status = match saved {
        Ok(updated) => {
            let flash = with_warnings("Changes saved.", &updated.warnings);
            return Ok(redirect(&webhook_path(id, ""), flash));
        }
        Err(fault) => rejection(fault, &mut errors)?,
    };

    let version = match status {
        StatusCode::PRECONDITION_FAILED => version(&visit.webhook(id).await?),
        _ => known,
    };

    let page = EditPage {
        frame: visit.frame(Section::Webhooks),
        families: by_family(visit.manage().catalogue()),
        webhook: Some(id),
        form,
        version,
        errors,
    };
    Ok(with_status(status, &page))
}
