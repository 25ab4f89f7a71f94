//! The form that creates and edits webhooks.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use uuid::Uuid;

use super::catalogue::{Family, PRESETS, by_family, choose};
use super::error::PageError;
use super::fields::{Fields, LongFields};
use super::flash::Flash;
use super::format::{ordering_label, sentence};
use super::page::{Frame, Section, redirect, with_status};
use super::picker::{Picker, pickers};
use super::secret;
use super::settings::{self, Errors, LISTS};
use super::state::webhook_path;
use super::test;
use super::visit::{Ids, Visit};
use crate::domain::ordering::Ordering;
use crate::domain::settings::Settings;
use crate::events::EventType;
use crate::manage::{Fault, TestReport, Warning, Webhook, version};

#[derive(Template)]
#[template(path = "ui/edit.html")]
struct EditPage<'a> {
    frame: Frame,
    families: [Family<'a>; 5],
    /// The webhook to edit. None for a new one.
    webhook: Option<Uuid>,
    /// How many webhooks the user has, and may have.
    used: usize,
    limit: u32,
    /// The settings, as stored or as submitted, valid or not.
    form: Fields,
    /// The form of the default settings.
    default: Fields,
    pickers: Vec<Picker<'a>>,
    /// The version of the settings that the form was filled from. If it has changed, saving fails
    /// once with a warning.
    version: String,
    /// The result of a test before saving.
    test: Option<Flash>,
    errors: Errors,
}

/// The settings that most webhooks leave as they are.
const ADVANCED: [&str; 6] = [
    "active",
    "ordering",
    "signing",
    "description",
    "headers",
    "metadata",
];

impl EditPage<'_> {
    fn is_chosen(&self, name: &str, value: &str) -> bool {
        self.form.all(name).any(|chosen| chosen == value)
    }

    /// Whether all events of a group are chosen.
    fn is_whole(&self, event_types: &[&EventType]) -> bool {
        let mut names = event_types.iter().map(|one| one.rule.kind.as_str());
        names.all(|name| self.is_chosen("events", name))
    }

    /// Whether the browser should place the cursor in this field: the first with an error.
    fn is_focused(&self, name: &str) -> bool {
        self.errors.first() == Some(name)
    }

    /// Whether to show the filter from the beginning: something is in it, or was searched for it.
    fn has_filter(&self) -> bool {
        let mut lists = LISTS.iter().map(|(list, _)| *list);
        !self.form.one("find").is_empty()
            || lists.any(|list| {
                self.errors.get(list).is_some() || self.form.all(list).any(|text| !text.is_empty())
            })
    }

    fn has_advanced(&self) -> bool {
        ADVANCED.iter().any(|name| {
            self.errors.get(name).is_some() || self.form.one(name) != self.default.one(name)
        })
    }
}

/// What is shown besides the settings.
#[derive(Default)]
struct Remarks {
    errors: Errors,
    test: Option<Flash>,
}

/// Shows the form with these fields.
async fn show(
    visit: &Visit,
    status: StatusCode,
    webhook: Option<Uuid>,
    form: Fields,
    Remarks { errors, test }: Remarks,
) -> Result<Response, PageError> {
    let manage = visit.manage();
    let known = match manage.filter_values(visit.user()).await {
        Ok(known) => known,
        // The values can be given without their names.
        Err(Fault::RateLimit { .. }) => Vec::new(),
        Err(fault) => return Err(fault.into()),
    };

    let used = match webhook {
        Some(_) => 0,
        None => visit.webhooks().await?.len(),
    };

    let page = EditPage {
        frame: visit.frame(Section::Webhooks),
        families: by_family(manage.catalogue()),
        webhook,
        used,
        limit: manage.webhook_limit(),
        pickers: pickers(&form, &known),
        version: form.one("version").to_owned(),
        form,
        default: settings::fields(&Settings::default()),
        test,
        errors,
    };
    Ok(with_status(status, &page))
}

/// Whether the form is submitted to be changed and shown again, not to be saved: by one of its other
/// buttons, or by the Enter key after a search was typed.
fn is_draft(form: &Fields) -> bool {
    let is_search = form.get("enter").is_some() && form.one("find") != form.one("found");
    let buttons = ["choose", "search", "test"];
    is_search || buttons.iter().any(|button| form.get(button).is_some())
}

/// Does what a button of the form asks for, and shows the form again.
async fn redraw(visit: &Visit, webhook: Option<Uuid>, form: Fields) -> Result<Response, PageError> {
    let mut remarks = Remarks::default();
    if form.get("test").is_some() {
        try_receiver(visit, &form, &mut remarks).await?;
    }

    let form = match form.get("choose") {
        Some(button) => {
            let is_chosen = |name: &str| form.all("events").any(|chosen| chosen == name);
            form.with(
                "events",
                choose(visit.manage().catalogue(), button, is_chosen),
            )
        }
        None => form,
    };

    let status = if remarks.errors.any() {
        StatusCode::UNPROCESSABLE_ENTITY
    } else {
        StatusCode::OK
    };
    show(visit, status, webhook, form, remarks).await
}

/// Sends a test to the receiver in the form.
async fn try_receiver(
    visit: &Visit,
    form: &Fields,
    remarks: &mut Remarks,
) -> Result<(), PageError> {
    let settings = settings::json(form, &mut remarks.errors);
    let mut settings: Value = serde_json::from_str(&settings).unwrap_or_default();
    let mut draft = json!({ "url": settings["url"], "headers": settings["headers"].take() });
    if let Some(event) = settings["events"].get(0) {
        draft["event"] = event.clone();
    }

    let draft = draft.to_string();
    let tested = visit.manage().test_receiver(&visit.actor, draft.as_bytes());

    match tested.await {
        Ok(report) => remarks.test = Some(verdict(&report)),
        Err(Fault::InvalidSettings(invalid)) => remarks.errors.add(&invalid),
        Err(fault @ (Fault::TooManyTests | Fault::RateLimit { .. })) => {
            remarks.test = Some(Flash::bad(sentence(&fault.to_string())));
        }
        Err(fault) => return Err(fault.into()),
    }

    Ok(())
}

/// Describes the result of a test whose signature no receiver can verify.
fn verdict(report: &TestReport) -> Flash {
    let outcome = test::outcome(report);
    let text = match report.response_status {
        Some(401 | 403) => {
            "Your receiver can be reached. It rejected the signature, which is right: it does not have the secret yet."
        }
        _ if report.is_delivered() => {
            "Your receiver accepted a request that it cannot have verified: let it verify signatures before you go live."
        }
        _ => return outcome,
    };
    Flash::good(format!("{} {text}", outcome.text))
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

pub async fn new(visit: Visit) -> Result<Response, PageError> {
    let form = settings::fields(&Settings::default());
    show(&visit, StatusCode::OK, None, form, Remarks::default()).await
}

pub async fn create(visit: Visit, LongFields(form): LongFields) -> Result<Response, PageError> {
    if is_draft(&form) {
        return redraw(&visit, None, form).await;
    }

    let mut remarks = Remarks::default();
    let json = settings::json(&form, &mut remarks.errors);
    let created = visit
        .manage()
        .create_webhook(&visit.actor, json.as_bytes())
        .await;

    let status = match created {
        Ok(created) => {
            let flash = with_warnings("Webhook created.", &created.warnings);
            return secret::reveal(&visit, created.webhook.id, flash).await;
        }
        Err(fault) => rejection(fault, &mut remarks.errors)?,
    };

    show(&visit, status, None, form, remarks).await
}

pub async fn form(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let form = settings::fields(&webhook.settings);
    let form = form.with("version", [version(&webhook).as_str()]);
    show(&visit, StatusCode::OK, Some(id), form, Remarks::default()).await
}

pub async fn save(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    LongFields(form): LongFields,
) -> Result<Response, PageError> {
    if is_draft(&form) {
        visit.webhook(id).await?;
        return redraw(&visit, Some(id), form).await;
    }

    let mut remarks = Remarks::default();
    let json = settings::json(&form, &mut remarks.errors);
    let known = form.one("version");
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
        Err(fault) => rejection(fault, &mut remarks.errors)?,
    };

    let form = match status {
        StatusCode::PRECONDITION_FAILED => {
            let present = version(&visit.webhook(id).await?);
            form.with("version", [present.as_str()])
        }
        _ => form,
    };
    show(&visit, status, Some(id), form, remarks).await
}
