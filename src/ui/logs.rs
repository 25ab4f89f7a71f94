//! The delivery log of a webhook: filtered, page by page.

use askama::Template;
use axum::response::Response;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::outcome_label;
use super::log_line::LogLine;
use super::page::{Frame, Section, validated};
use super::state::webhook_path;
use super::time::{Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::event::EventKind;
use crate::manage::{self, Cursor, Entry, List, LogFilter, OUTCOMES, StatusClass, Webhook};

const PAGE: usize = 50;
/// Searches for one page, each of which examines a bounded number of entries. More would keep the
/// visitor waiting.
const MAX_SEARCHES: usize = 5;
/// The fields of the filter. The links to other pages contain them.
const FILTERS: [&str; 5] = ["event", "outcome", "status", "since", "until"];

#[derive(Template)]
#[template(path = "ui/logs.html")]
struct LogsPage {
    frame: Frame,
    webhook: Webhook,
    fields: Fields,
    filter: LogFilter,
    errors: Vec<String>,
    lines: Vec<LogLine>,
    is_filtered: bool,
    is_first: bool,
    /// The paths of the first page of this list, and of the next.
    first: String,
    next: Option<String>,
}

/// Parses the query. The messages say which fields are invalid.
fn parse(webhook: Uuid, fields: &Fields) -> (LogFilter, Option<Cursor>, Vec<String>) {
    let mut errors = Vec::new();
    let mut filter = LogFilter {
        event: fields.optional(
            "event",
            |text| text.parse().ok(),
            "Select an event type from the list.",
            &mut errors,
        ),
        outcome: fields.optional(
            "outcome",
            manage::outcome,
            "Select an outcome from the list.",
            &mut errors,
        ),
        status: fields.optional(
            "status",
            StatusClass::named,
            "Select a response status from the list.",
            &mut errors,
        ),
        ..LogFilter::default()
    };

    (filter.since, filter.until) = fields.period(&mut errors);

    if let (Some(since), Some(until)) = (filter.since, filter.until)
        && since > until
    {
        errors.push("“Until” must not be before “Since”.".to_owned());
    }

    let cursor = |text: &str| Cursor::parse(List::Log(webhook), text).ok();
    let cursor = fields.optional(
        "cursor",
        cursor,
        "This page does not exist. Start from the newest entries.",
        &mut errors,
    );

    (filter, cursor, errors)
}

/// Returns a page of entries, and where the next one starts. Continues searches that find nothing.
async fn search(
    visit: &Visit,
    webhook: Uuid,
    filter: &LogFilter,
    mut cursor: Option<Cursor>,
) -> Result<(Vec<Entry>, Option<Cursor>), PageError> {
    let mut entries = Vec::new();

    for _ in 0..MAX_SEARCHES {
        let found = visit
            .manage()
            .log(visit.user(), webhook, filter, cursor, PAGE)
            .await?;
        (entries, cursor) = (found.items, found.next);

        if !entries.is_empty() || cursor.is_none() {
            break;
        }
    }

    Ok((entries, cursor))
}

pub async fn show(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let webhook = manage.webhook(user, id).await?;
    let (filter, cursor, errors) = parse(id, &fields);
    let is_valid = errors.is_empty();
    let (entries, next) = match is_valid {
        true => search(&visit, id, &filter, cursor).await?,
        false => (Vec::new(), None),
    };

    let given = FILTERS
        .map(|name| (name, fields.one(name)))
        .into_iter()
        .filter(|(_, value)| !value.is_empty());
    let query = Serializer::new(String::new()).extend_pairs(given).finish();
    let path = webhook_path(id, "/logs");

    let template = LogsPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        filter,
        errors,
        lines: entries
            .into_iter()
            .map(|entry| LogLine::new(entry, visit.state.attempts))
            .collect(),
        is_filtered: !query.is_empty(),
        is_first: fields.one("cursor").is_empty(),
        next: next.map(|cursor| format!("{path}?{query}&cursor={cursor}")),
        first: if query.is_empty() {
            path
        } else {
            format!("{path}?{query}")
        },
        fields,
    };

    Ok(validated(is_valid, &template))
}
