//! The form that creates and edits webhooks.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use uuid::Uuid;

use super::catalogue::{FAMILIES, addon_name, family};
use super::error::PageError;
use super::fields::{Fields, LongFields};
use super::flash::Flash;
use super::format::{ordering_label, sentence};
use super::options::{OptionErrors, OptionFields};
use super::page::{Frame, Section, page, redirect, with_status};
use super::secret;
use super::state::webhook_path;
use super::visit::{Ids, Visit};
use crate::domain::event::EventKind;
use crate::events::{CATALOGUE, Rule};
use crate::manage::{
    EventSet, Fault, Manage, Options, Ordering, SettingFault, Settings, Signing, UrlWarning,
    WebhookDraft, WebhookName, WebhookPatch, version,
};

#[derive(Template)]
#[template(path = "ui/edit.html")]
struct Page {
    frame: Frame,
    /// The webhook to edit. None for a new one.
    webhook: Option<Uuid>,
    settings: Settings,
    options: OptionFields,
    /// The version of the settings that the form was filled from. If it has changed, saving fails
    /// once with a warning.
    version: String,
    errors: Errors,
}

impl Page {
    fn families(&self) -> [(&'static str, Vec<&'static Rule>); 5] {
        FAMILIES.map(|name| {
            (
                name,
                CATALOGUE
                    .iter()
                    .copied()
                    .filter(|rule| family(rule.kind) == name)
                    .collect(),
            )
        })
    }

    fn orderings(&self) -> [(Ordering, &'static str); 3] {
        [Ordering::None, Ordering::Release, Ordering::Strict]
            .map(|ordering| (ordering, ordering_label(&ordering)))
    }

    fn is_chosen(&self, kind: &EventKind) -> bool {
        self.settings
            .events
            .iter()
            .any(|event| event == kind.as_str())
    }
}

/// Error messages, by field.
#[derive(Default)]
struct Errors {
    name: Option<String>,
    url: Option<String>,
    events: Option<String>,
    options: Box<OptionErrors>,
    /// Concerns the form as a whole.
    form: Option<String>,
}

impl Errors {
    fn any(&self) -> bool {
        let errors = [&self.name, &self.url, &self.events, &self.form];
        errors.iter().any(|error| error.is_some()) || self.options.any()
    }
}

/// Returns the submitted values, valid or not.
fn entered(fields: &Fields) -> Settings {
    Settings {
        name: fields.one("name").to_owned(),
        url: fields.one("url").to_owned(),
        events: fields.all("events").map(str::to_owned).collect(),
        active: !fields.one("active").is_empty(),
        ordering: Ordering::named(fields.one("ordering")).unwrap_or(Ordering::None),
        signing: Signing::named(fields.one("signing")).unwrap_or(Signing::Hmac),
        options: Options::default(),
    }
}

fn draft(
    manage: &Manage,
    settings: &Settings,
    options: &OptionFields,
) -> Result<WebhookDraft, Errors> {
    let name = WebhookName::new(settings.name.clone());
    let url = manage.receiver_url(settings.url.clone());
    let events: Result<Vec<EventKind>, _> =
        settings.events.iter().map(|event| event.parse()).collect();
    let events = events
        .map_err(|_| "Select events from the list.")
        .and_then(|events| EventSet::new(events).map_err(|_| "Select at least one event."));
    let message = |subject: &str, fault: SettingFault| sentence(&format!("{subject} {fault}"));

    match (name, url, events, options.draft()) {
        (Ok(name), Ok(url), Ok(events), Ok(options)) => {
            let Settings {
                active,
                ordering,
                signing,
                ..
            } = *settings;
            Ok(WebhookDraft {
                name,
                url,
                events,
                active,
                ordering,
                signing,
                options,
            })
        }
        (name, url, events, options) => Err(Errors {
            name: name.err().map(|fault| message("The name", fault)),
            url: url.err().map(|fault| message("The URL", fault)),
            events: events.err().map(str::to_owned),
            options: options.err().unwrap_or_default().into(),
            form: None,
        }),
    }
}

/// Returns the status and the messages for a fault that the form can show, or the error page for
/// any other.
fn rejection(fault: Fault) -> Result<(StatusCode, Errors), PageError> {
    let form = |text: String| Errors {
        form: Some(text),
        ..Errors::default()
    };

    match fault {
        Fault::BlockedHost(reason) => Ok((
            StatusCode::UNPROCESSABLE_ENTITY,
            Errors {
                url: Some(sentence(&reason)),
                ..Errors::default()
            },
        )),
        Fault::InvalidOptions(faults) => Ok((
            StatusCode::UNPROCESSABLE_ENTITY,
            Errors {
                options: OptionErrors::from(faults).into(),
                ..Errors::default()
            },
        )),
        fault @ Fault::WebhookLimit { .. } => {
            Ok((StatusCode::CONFLICT, form(sentence(&fault.to_string()))))
        }
        fault @ Fault::Cancelling => Ok((
            StatusCode::SERVICE_UNAVAILABLE,
            form(sentence(&fault.to_string())),
        )),
        Fault::VersionMismatch => {
            let text =
                "This webhook was changed in the meantime. Save again to overwrite those changes.";
            Ok((StatusCode::PRECONDITION_FAILED, form(text.to_owned())))
        }
        fault => Err(fault.into()),
    }
}

fn with_warning(message: &str, warning: Option<UrlWarning>) -> Flash {
    let warning = warning.map(|warning| format!(" {}", sentence(&warning.to_string())));
    Flash::good(format!("{message}{}", warning.unwrap_or_default()))
}

pub async fn new(visit: Visit) -> Response {
    let ordering = Ordering::None;
    let signing = Signing::Hmac;
    let options = Options::default();
    let fields = OptionFields::from(&options);
    let name = String::new();
    let url = String::new();

    let settings = Settings {
        name,
        url,
        events: Vec::new(),
        active: true,
        ordering,
        signing,
        options,
    };

    let frame = visit.frame(Section::Webhooks);
    let errors = Errors::default();

    page(&Page {
        frame,
        webhook: None,
        settings,
        options: fields,
        version: String::new(),
        errors,
    })
}

pub async fn create(visit: Visit, LongFields(fields): LongFields) -> Result<Response, PageError> {
    let settings = entered(&fields);
    let options = OptionFields::entered(&fields);

    drop(fields);

    let (status, errors) = match draft(visit.manage(), &settings, &options) {
        Err(errors) => (StatusCode::UNPROCESSABLE_ENTITY, errors),
        Ok(draft) => match visit.manage().create_webhook(&visit.actor, draft).await {
            Ok(created) => {
                let flash = with_warning("Webhook created.", created.warning);
                return secret::reveal(&visit, created.webhook.id, flash).await;
            }
            Err(fault) => rejection(fault)?,
        },
    };

    let frame = visit.frame(Section::Webhooks);
    Ok(with_status(
        status,
        &Page {
            frame,
            webhook: None,
            settings,
            options,
            version: String::new(),
            errors,
        },
    ))
}

pub async fn form(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let settings = visit.webhook(id).await?.settings;
    let frame = visit.frame(Section::Webhooks);
    let version = version(&settings);
    let options = OptionFields::from(&settings.options);
    let errors = Errors::default();

    Ok(page(&Page {
        frame,
        webhook: Some(id),
        settings,
        options,
        version,
        errors,
    }))
}

pub async fn save(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    LongFields(fields): LongFields,
) -> Result<Response, PageError> {
    let settings = entered(&fields);
    let options = OptionFields::entered(&fields);
    let mut known = fields.one("version").to_owned();

    // A page of an earlier version has no such field.
    let has_ordering = !fields.one("ordering").is_empty();
    drop(fields);

    let found = visit.webhook(id).await?;
    let (status, errors) = match draft(visit.manage(), &settings, &options) {
        Err(errors) => (StatusCode::UNPROCESSABLE_ENTITY, errors),
        Ok(WebhookDraft {
            name,
            url,
            events,
            active,
            ordering,
            signing,
            options,
        }) => {
            let patch = WebhookPatch {
                name: Some(name),
                url: Some(url),
                events: Some(events),
                active: Some(active),
                ordering: has_ordering.then_some(ordering),
                signing: Some(signing),
                options,
            };

            let is_known = |present: &Settings| version(present) == known;
            match visit
                .manage()
                .update_webhook(&visit.actor, &found, patch, &is_known)
                .await
            {
                Ok(updated) => {
                    let flash = with_warning("Changes saved.", updated.warning);
                    return Ok(redirect(&webhook_path(id, ""), flash));
                }
                Err(fault) => rejection(fault)?,
            }
        }
    };

    if status == StatusCode::PRECONDITION_FAILED {
        known = version(&found.settings);
    }

    let frame = visit.frame(Section::Webhooks);
    Ok(with_status(
        status,
        &Page {
            frame,
            webhook: Some(id),
            settings,
            options,
            version: known,
            errors,
        },
    ))
}
