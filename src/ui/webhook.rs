//! The page of one webhook: settings, statistics, recent deliveries, and how to verify deliveries.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::{
    Count, Millis, Percent, disabled_by, disabled_reason, events_are, failure_label, failures,
    ordering_label,
};
use super::jobs::JobLine;
use super::log_line::LogLine;
use super::page::{Frame, Section, page};
use super::reactivate;
use super::settings::{self, LISTS};
use super::stats::{Panel, day_before, panels};
use super::time::{Ago, Exact};
use super::verify::{SNIPPETS, Snippet};
use super::visit::{Ids, Visit};
use crate::domain::delivery::Outcome;
use crate::domain::headers::MASK;
use crate::manage::{Countdown, JobScope, LogFilter, LogScope, Webhook, public_key_text};

/// The number of log entries that the page shows.
const RECENT: usize = 8;
/// The number of jobs that the page shows.
const RECENT_JOBS: usize = 3;
/// The number of log entries whose failures are counted. It bounds the duration of the query.
const EXAMINED: i64 = 1_000;

/// What the owner of a webhook that has had no delivery does next.
struct Checklist {
    /// The path of the last test's page.
    test: Option<String>,
    /// Whether the receiver has accepted a test.
    has_arrived: bool,
}

impl Checklist {
    /// None once an attempt was made at a delivery. `lines` are the newest log entries.
    fn of(webhook: &Webhook, lines: &[LogLine]) -> Option<Checklist> {
        let is_new = webhook.success_count == 0 && webhook.failure_count == 0;
        let mut tests = lines.iter().filter(|line| line.entry.test);

        (is_new && webhook.disabled_at.is_none()).then(|| Checklist {
            test: tests.clone().next().map(LogLine::path),
            has_arrived: tests.any(|line| line.entry.outcome == Outcome::Delivered.as_str()),
        })
    }
}

#[derive(Template)]
#[template(path = "ui/webhook.html")]
struct WebhookPage {
    frame: Frame,
    webhook: Webhook,
    /// How far it is from being disabled, if it is active.
    countdown: Option<Countdown>,
    /// What waits for it, if it is disabled and not too much is to be counted.
    waiting: Option<JobScope>,
    /// The number of attempts of a delivery.
    attempts: u16,
    retention_days: i64,
    checklist: Option<Checklist>,
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

impl WebhookPage {
    /// Whether there are attempts in the statistics.
    fn has_attempts(&self) -> bool {
        let mut panels = self.panels.iter();
        panels.any(|panel| panel.total.attempts() > 0)
    }
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
    let lines: Vec<LogLine> = recent
        .into_iter()
        .map(|entry| LogLine::new(entry, visit.state.attempts))
        .collect();
    let frame = visit.frame(Section::Webhooks);
    let panels = panels(&hours, now);
    let countdown = manage.disablement().countdown(&webhook.standing(now));
    let checklist = Checklist::of(&webhook, &lines);
    let waiting = reactivate::waiting(&visit, &webhook).await?;

    Ok(page(&WebhookPage {
        frame,
        form: settings::fields(&webhook.settings),
        unavailable: manage.unavailable(&webhook.settings),
        webhook,
        countdown,
        waiting,
        attempts: visit.state.attempts,
        checklist,
        retention_days: visit.state.retention.as_hours() / 24,
        panels,
        lines,
        jobs,
        failures,
        snippets: SNIPPETS,
    }))
}
