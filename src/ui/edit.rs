//! The form of a webhook: new ones, and changes.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, page, page_again};
use super::catalogue::{FAMILIES, addon_name, family};
use super::failure::{Failure, sentence};
use super::fields::Fields;
use super::flash::Flash;
use super::secret;
use super::session::Visitor;
use crate::api::{FieldError, NewWebhook, Problem, Warning, etag};
use crate::events::CATALOGUE;
use crate::store::webhooks::Settings;

#[derive(Template)]
#[template(path = "ui/edit.html")]
struct Page {
    frame: Frame,
    /// The webhook to change; none where a new one is made.
    webhook: Option<Uuid>,
    name: String,
    url: String,
    active: bool,
    /// What the form was filled from, so that nobody's change is lost under another's.
    version: String,
    families: Vec<Family>,
    errors: Errors,
}

struct Family {
    name: &'static str,
    events: Vec<Choice>,
}

struct Choice {
    event: &'static str,
    description: &'static str,
    addon: Option<&'static str>,
    checked: bool,
}

/// What is wrong, by field.
#[derive(Default)]
struct Errors {
    name: Vec<String>,
    url: Vec<String>,
    events: Vec<String>,
    /// Of the form as a whole.
    form: Vec<String>,
}

impl Errors {
    fn of(problem: &Problem) -> Errors {
        let mut errors = Errors::default();
        if problem.errors().is_empty() {
            errors.form.push(sentence(problem.detail()));
        }
        for FieldError { pointer, detail } in problem.errors() {
            let (list, field) = match pointer.split('/').nth(1) {
                Some("name") => (&mut errors.name, "The name "),
                Some("url") => (&mut errors.url, "The URL "),
                Some("events") if detail.starts_with("must") => (&mut errors.events, "You "),
                Some("events") => (&mut errors.events, "An event "),
                _ => (&mut errors.form, ""),
            };
            let is_predicate = ["must", "is "].iter().any(|verb| detail.starts_with(verb));
            list.push(if is_predicate { sentence(&format!("{field}{detail}")) } else { sentence(detail) });
        }
        errors
    }

    fn any(&self) -> bool {
        [&self.name, &self.url, &self.events, &self.form].iter().any(|list| !list.is_empty())
    }
}

impl Page {
    fn new(frame: Frame, webhook: Option<Uuid>, settings: Settings, version: String) -> Page {
        let Settings { name, url, events, active } = settings;
        let choices = |wanted: &'static str| {
            let rules = CATALOGUE.iter().filter(|rule| family(rule.kind) == wanted);
            let choice = |rule: &&'static crate::events::Rule| Choice {
                event: rule.kind.as_str(),
                description: rule.description,
                addon: rule.requires_addon.map(addon_name),
                checked: events.iter().any(|event| event == rule.kind.as_str()),
            };
            Family { name: wanted, events: rules.map(choice).collect() }
        };
        let families = FAMILIES.into_iter().map(choices).collect();
        Page { frame, webhook, name, url, active, version, families, errors: Errors::default() }
    }
}

/// What the form says, right or wrong.
fn settings(fields: &Fields) -> Settings {
    Settings {
        name: fields.one("name").trim().to_owned(),
        url: fields.one("url").trim().to_owned(),
        events: fields.all("events").map(str::to_owned).collect(),
        active: !fields.one("active").is_empty(),
    }
}

fn members(settings: &Settings) -> Map<String, Value> {
    let Settings { name, url, events, active } = settings;
    let members = [
        ("name", Value::from(name.as_str())),
        ("url", Value::from(url.as_str())),
        ("events", Value::from(events.clone())),
        ("active", Value::from(*active)),
    ];
    members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// Problems that the form itself can tell of.
/// A message with the warnings about the saved settings behind it.
fn with_warnings(message: &str, warnings: &[Warning]) -> String {
    let warnings = warnings.iter().map(|warning| format!(" {}", sentence(&warning.detail)));
    format!("{message}{}", warnings.collect::<String>())
}

fn belongs_to_form(problem: &Problem) -> bool {
    matches!(problem.slug(), "validation-failed" | "webhook-limit-reached" | "precondition-failed")
}

pub async fn new(State(state): State<UiState>, visitor: Visitor) -> Response {
    let blank = Settings { name: String::new(), url: String::new(), events: Vec::new(), active: true };
    page(&Page::new(Frame::of(&state, visitor, Section::Webhooks), None, blank, String::new()))
}

pub async fn create(
    State(state): State<UiState>,
    visitor: Visitor,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, Failure> {
    let settings = settings(&fields);
    match state.api.create_webhook(&visitor.actor, members(&settings)).await {
        Ok(NewWebhook { webhook, warnings, .. }) => {
            let flash = Flash::good(with_warnings("The webhook was created.", &warnings));
            secret::go_to(&state, &headers, webhook.id, flash).await
        }
        Err(problem) if belongs_to_form(&problem) => {
            let frame = Frame::of(&state, visitor, Section::Webhooks);
            let errors = Errors::of(&problem);
            let page = Page { errors, ..Page::new(frame, None, settings, String::new()) };
            Ok(page_again(problem.status(), &page))
        }
        Err(problem) => Err(problem.into()),
    }
}

pub async fn form(State(state): State<UiState>, visitor: Visitor, Path(id): Path<String>) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let webhook = state.api.webhook(&visitor.actor.user, id).await?;
    let version = etag(&webhook.settings);
    let frame = Frame::of(&state, visitor, Section::Webhooks);
    Ok(page(&Page::new(frame, Some(id), webhook.settings, version)))
}

pub async fn save(
    State(state): State<UiState>,
    visitor: Visitor,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Response, Failure> {
    let id = webhook_id(&id)?;
    let settings = settings(&fields);
    let version = fields.one("version").to_owned();
    let is_known = |found: &Settings| etag(found) == version;
    match state.api.update_webhook(&visitor.actor, id, members(&settings), &is_known).await {
        Ok(saved) => {
            let text = with_warnings("The webhook was saved.", &saved.warnings);
            Ok(go(&format!("/ui/webhooks/{id}"), Flash::good(text)))
        }
        Err(problem) if belongs_to_form(&problem) => {
            let mut errors = Errors::of(&problem);
            let found = state.api.webhook(&visitor.actor.user, id).await?;
            let mut known = version;
            if problem.status() == StatusCode::PRECONDITION_FAILED {
                let told = "Somebody changed this webhook meanwhile. Save again to put what you see here in its place.";
                errors.form = vec![told.to_owned()];
                known = etag(&found.settings);
            }
            let frame = Frame::of(&state, visitor, Section::Webhooks);
            let page = Page { errors, ..Page::new(frame, Some(id), settings, known) };
            Ok(page_again(problem.status(), &page))
        }
        Err(problem) => Err(problem.into()),
    }
}

/// What is no id is no webhook.
pub fn webhook_id(text: &str) -> Result<Uuid, Problem> {
    text.parse().map_err(|_| Problem::not_found("there is no such webhook"))
}
