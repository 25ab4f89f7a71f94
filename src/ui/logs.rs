//! The delivery log: of one webhook, or of all webhooks of the account; filtered, page by page.

use askama::Template;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::{failure_label, outcome_label};
use super::log_line::LogLine;
use super::page::{Frame, Pages, Section, validated};
use super::state::{link, webhook_path};
use super::time::{Ago, Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::time::millis;
use crate::manage::{
    Cursor, Entry, FILTERS, FilterField, FilterKind, LogFilter, LogScope, StatusFilter, Webhook,
};

const PAGE: usize = 40;
/// The path of the log of all webhooks.
const ALL: &str = "/ui/logs";
/// Searches for one page, each of which examines a bounded number of entries. More would keep the
/// visitor waiting.
const MAX_SEARCHES: usize = 5;
/// Time ranges that are one click away: the label and the hours.
const RANGES: [(&str, i64); 3] = [
    ("Last hour", 1),
    ("Last 24 hours", 24),
    ("Last 7 days", 168),
];
/// The formats of the export: the label and the name in the API.
const FORMATS: [(&str, &str); 2] = [("CSV", "csv"), ("NDJSON", "ndjson")];

#[derive(Template)]
#[template(path = "ui/logs.html")]
struct LogsPage {
    frame: Frame,
    /// The webhook whose log this is. None for that of the account.
    webhook: Option<Webhook>,
    /// The webhooks of the account, if this is its log.
    webhooks: Vec<Webhook>,
    /// The webhook that was selected in the log of the account.
    selected: Option<Uuid>,
    inputs: Vec<FilterInput>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    errors: Vec<String>,
    lines: Vec<LogLine>,
    is_filtered: bool,
    /// The time back to which was searched, if the search stopped early.
    searched_to: Option<Timestamp>,
    /// The labels and paths of time ranges, with the other filters.
    ranges: [(&'static str, String); 3],
    /// The path of the log without filters.
    path: String,
    pages: Pages,
    /// The labels and paths of the exports.
    exports: [(&'static str, String); 2],
}

/// A field of the filter's form.
struct FilterInput {
    field: &'static FilterField,
    value: String,
    is_invalid: bool,
    /// Values and labels, if there is a list to choose from.
    options: Vec<(&'static str, &'static str)>,
}

impl FilterInput {
    fn new(field: &'static FilterField, fields: &Fields) -> FilterInput {
        let label = |name: &'static str| match field.name {
            "outcome" => (name, outcome_label(name).0),
            "error" => (name, failure_label(name)),
            _ if name == "none" => (name, "No response"),
            _ => (name, name),
        };
        let options = match field.kind {
            FilterKind::Choice(names) => names().into_iter().map(label).collect(),
            FilterKind::Status => StatusFilter::CLASSES.map(label).to_vec(),
            _ => Vec::new(),
        };

        let value = fields.one(field.name).to_owned();
        let mut unused = LogFilter::default();

        FilterInput {
            is_invalid: !value.is_empty() && (field.set)(&mut unused, &value).is_err(),
            field,
            value,
            options,
        }
    }

    /// Whether the value is none of the options, such as a single status.
    fn is_other(&self) -> bool {
        !self.value.is_empty() && self.options.iter().all(|(name, _)| *name != self.value)
    }
}

impl LogsPage {
    fn is_selected(&self, webhook: &Webhook) -> bool {
        self.selected == Some(webhook.id)
    }

    /// Whether a field of those that are folded away is set.
    fn is_advanced(&self) -> bool {
        self.inputs
            .iter()
            .any(|input| input.field.is_advanced && !input.value.is_empty())
    }
}

/// A parsed query.
struct Query {
    filter: LogFilter,
    scope: LogScope,
    cursor: Option<Cursor>,
    /// Which fields are invalid, and why.
    errors: Vec<String>,
}

fn parse(scope: LogScope, fields: &Fields) -> Query {
    let mut errors = Vec::new();
    let mut filter = LogFilter::default();

    for field in &FILTERS {
        let text = fields.one(field.name);
        if !text.is_empty()
            && let Err(error) = (field.set)(&mut filter, text)
        {
            errors.push(format!("“{}”: {error}.", field.label));
        }
    }

    (filter.since, filter.until) = fields.period(&mut errors);

    if let (Some(since), Some(until)) = (filter.since, filter.until)
        && since > until
    {
        errors.push("“Until” must not be before “Since”.".to_owned());
    }

    let webhook = fields.optional(
        "webhook",
        |text| text.parse().ok(),
        "Select a webhook from the list.",
        &mut errors,
    );
    let scope = match (scope, webhook) {
        (LogScope::Account, Some(webhook)) => LogScope::WebhookOfAccount(webhook),
        (scope, _) => scope,
    };

    let cursor = fields.optional(
        "cursor",
        |text| Cursor::parse(scope.list(), text).ok(),
        "This page does not exist. Start from the newest entries.",
        &mut errors,
    );

    Query {
        filter,
        scope,
        cursor,
        errors,
    }
}

/// Entries, where the next page starts, and whether the search stopped early.
type Found = (Vec<Entry>, Option<Cursor>, bool);

/// Returns a page of entries. Continues searches that find nothing.
async fn search(visit: &Visit, query: &Query) -> Result<Found, PageError> {
    let mut found = (Vec::new(), query.cursor, false);

    for _ in 0..MAX_SEARCHES {
        let page = visit
            .manage()
            .log(visit.user(), &query.scope, &query.filter, found.1, PAGE)
            .await?;
        found = (page.items, page.next, page.is_partial);

        if !found.0.is_empty() || found.1.is_none() {
            break;
        }
    }

    Ok(found)
}

/// Shows the log of one webhook.
pub async fn show(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    render(
        visit,
        LogScope::Webhook(id),
        Some(webhook),
        Vec::new(),
        fields,
    )
    .await
}

/// Shows the log of all webhooks of the account.
pub async fn show_all(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let webhooks = visit.webhooks().await?;
    render(visit, LogScope::Account, None, webhooks, fields).await
}

async fn render(
    visit: Visit,
    scope: LogScope,
    webhook: Option<Webhook>,
    webhooks: Vec<Webhook>,
    fields: Fields,
) -> Result<Response, PageError> {
    let query = parse(scope, &fields);
    let selected = match query.scope {
        LogScope::WebhookOfAccount(id) => Some(visit.webhook(id).await?.id),
        _ => None,
    };

    let is_valid = query.errors.is_empty();
    let (entries, next, is_partial) = if is_valid {
        search(&visit, &query).await?
    } else {
        (Vec::new(), None, false)
    };

    let path = match &webhook {
        Some(webhook) => webhook_path(webhook.id, "/logs"),
        None => ALL.to_owned(),
    };

    let names = FILTERS.iter().map(|field| field.name).chain(["webhook"]);
    let others: Vec<(&str, &str)> = names.map(|name| (name, fields.one(name))).collect();
    let times = ["since", "until"].map(|name| (name, fields.one(name)));
    let at = |cursor: &str| link(&path, [&*others, &times, &[("cursor", cursor)]].concat());

    let ranges = RANGES.map(|(label, hours)| {
        let since = field(Timestamp::now() - SignedDuration::from_hours(hours));
        (
            label,
            link(&path, [&*others, &[("since", &since)]].concat()),
        )
    });

    let line = |entry: Entry| LogLine {
        webhook: webhooks
            .iter()
            .find(|webhook| webhook.id == entry.webhook)
            .map(|webhook| webhook.settings.name.clone()),
        ..LogLine::new(entry, visit.state.attempts)
    };
    let section = match &webhook {
        Some(_) => Section::Webhooks,
        None => Section::Logs,
    };
    let only = selected.or(webhook.as_ref().map(|webhook| webhook.id));
    let exports = exports(&visit, &query.filter, only, &fields);

    let template = LogsPage {
        frame: visit.frame(section),
        lines: entries.into_iter().map(line).collect(),
        inputs: FILTERS
            .iter()
            .map(|field| FilterInput::new(field, &fields))
            .collect(),
        since: query.filter.since,
        until: query.filter.until,
        errors: query.errors,
        is_filtered: at("") != path,
        searched_to: next.filter(|_| is_partial).map(Cursor::time),
        pages: Pages::new(fields.one("cursor"), next, at),
        exports,
        ranges,
        path,
        webhook,
        webhooks,
        selected,
    };

    Ok(validated(is_valid, &template))
}

/// Returns the labels and the paths of what exports the page's list in the API.
fn exports(
    visit: &Visit,
    filter: &LogFilter,
    webhook: Option<Uuid>,
    fields: &Fields,
) -> [(&'static str, String); 2] {
    let path = format!("{}/logs", visit.state.api.base_path());
    let filters = FILTERS
        .iter()
        .map(|field| (field.name, fields.one(field.name)));
    let webhook = webhook.map(|id| id.to_string()).unwrap_or_default();
    // The API expects a time zone.
    let [since, until] = [filter.since, filter.until].map(|at| at.map(millis).unwrap_or_default());

    FORMATS.map(|(label, format)| {
        let others = [
            ("since", &*since),
            ("until", &*until),
            ("webhook", &*webhook),
            ("format", format),
        ];
        (label, link(&path, filters.clone().chain(others)))
    })
}
