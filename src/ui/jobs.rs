//! The recoveries and replays of a webhook: their progress, and cancelling them.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::flash::Flash;
use super::format::Count;
use super::page::{Frame, Pages, Section, page, redirect};
use super::state::{link, webhook_path};
use super::time::Ago;
use super::visit::{Ids, Visit};
use crate::manage::{Cursor, Job, JobState, List, Webhook};

/// The number of jobs on a page.
const PAGE: usize = 50;

/// A job as it is shown.
pub struct JobLine(pub Job);

impl JobLine {
    pub fn kind(&self) -> &'static str {
        match self.0.kind.as_str() {
            "recover" => "Recovery",
            "replay" => "Replay",
            _ => "Job",
        }
    }

    /// Returns the label of the state and the class of its badge.
    pub fn state(&self) -> (&'static str, &'static str) {
        match self.0.state {
            JobState::Queued => ("Queued", "muted"),
            JobState::Running => ("Running", "warn"),
            JobState::Finished => ("Finished", "good"),
            JobState::Cancelled => ("Cancelled", "muted"),
        }
    }

    /// The end of the progress bar, which must not be 0.
    pub fn max(&self) -> u64 {
        self.0.total.max(1)
    }

    pub fn progress(&self) -> String {
        let Job {
            state, done, total, ..
        } = &self.0;
        match state {
            JobState::Finished => Count(done).to_string(),
            _ => format!("{} of {}", Count(done), Count(total)),
        }
    }
}

#[derive(Template)]
#[template(path = "ui/jobs.html")]
struct JobsPage {
    frame: Frame,
    webhook: Webhook,
    jobs: Vec<JobLine>,
    /// Whether the page offers to refresh itself.
    is_live: bool,
    pages: Pages,
}

pub async fn show(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let webhook = manage.webhook(user, id).await?;
    let cursor = fields.linked("cursor", |text| Cursor::parse(List::Jobs(id), text))?;

    let found = manage.jobs(user, id, cursor, PAGE).await?;
    let is_live = found.items.iter().any(|job| !job.state.has_ended());
    let jobs = found.items.into_iter().map(JobLine).collect();
    let path = |cursor: &str| link(&webhook_path(id, "/jobs"), [("cursor", cursor)]);

    Ok(page(&JobsPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        jobs,
        is_live,
        pages: Pages::new(fields.one("cursor"), found.next, path),
    }))
}

#[derive(Template)]
#[template(path = "ui/cancel_job.html")]
struct CancelJobPage {
    frame: Frame,
    webhook: Webhook,
    job: JobLine,
}

/// Shows the page that asks for confirmation.
pub async fn ask(visit: Visit, Ids((id, job)): Ids<(Uuid, Uuid)>) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let job = JobLine(visit.manage().job(visit.user(), id, job).await?);
    Ok(page(&CancelJobPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        job,
    }))
}

pub async fn cancel(
    visit: Visit,
    Ids((id, job)): Ids<(Uuid, Uuid)>,
) -> Result<Response, PageError> {
    visit.manage().cancel_job(&visit.actor, id, job).await?;
    let ended = JobLine(visit.manage().job(visit.user(), id, job).await?);
    let text = match ended.0.state {
        JobState::Finished => format!("{} had finished already.", ended.kind()),
        _ => format!("{} cancelled.", ended.kind()),
    };

    Ok(redirect(&webhook_path(id, "/jobs"), Flash::good(text)))
}
