//! The page of one webhook: settings, statistics, recent deliveries, and how to verify deliveries.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::{
    Count, Millis, Percent, disabled_by, disabled_reason, failure_label, ordering_label,
};
use super::jobs::JobLine;
use super::log_line::LogLine;
use super::page::{Frame, Section, page};
use super::settings::{self, LISTS};
use super::stats::{Panel, day_before, panels};
use super::time::{Ago, Exact};
use super::verify::{SNIPPETS, Snippet};
use super::visit::{Ids, Visit};
use crate::domain::headers::MASK;
use crate::manage::{LogFilter, LogScope, Webhook, public_key_text};

/// The number of log entries that the page shows.
const RECENT: usize = 8;
/// The number of jobs that the page shows.
const RECENT_JOBS: usize = 3;
/// The number of log entries whose failures are counted. It bounds the duration of the query.
const EXAMINED: i64 = 1_000;

#[derive(Template)]
#[template(path = "ui/webhook.html")]
struct WebhookPage {
    frame: Frame,
    webhook: Webhook,
    /// Its settings, as the form shows them.
    form: Fields,
    panels: [Panel; 2],
    lines: Vec<LogLine>,
    jobs: Vec<JobLine>,
    failures: Vec<(String, i64)>,
    snippets: &'static [Snippet],
    /// Its events that the platform never sends.
    unavailable: Vec<&'static str>,
}

pub async fn show(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let now = Timestamp::now();
    let manage = visit.manage();
    let user = visit.user();
    let webhook = manage.webhook(user, id).await?;
    let hours = manage.hours(user, id, now).await?;
    let recent = manage
        .log(
            user,
            &LogScope::Webhook(id),
            &LogFilter::default(),
            None,
            RECENT,
        )
        .await?
        .items;

    let jobs = manage
        .jobs(user, id, None, RECENT_JOBS)
        .await?
        .items
        .into_iter()
        .map(JobLine)
        .collect();

    let failures = manage
        .failure_kinds(user, id, day_before(now), EXAMINED)
        .await?;
    let lines = recent
        .into_iter()
        .map(|entry| LogLine::new(entry, visit.state.attempts))
        .collect();
    let frame = visit.frame(Section::Webhooks);
    let panels = panels(&hours, now);

    Ok(page(&WebhookPage {
        frame,
        form: settings::fields(&webhook.settings),
        unavailable: manage.unavailable(&webhook.settings),
        webhook,
        panels,
        lines,
        jobs,
        failures,
        snippets: SNIPPETS,
    }))
}
