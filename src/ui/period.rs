//! The form of a job on a time range, which recovery and replay share: first a preview of how many
//! deliveries it covers, then a button to start it.

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::{Fields, time};
use super::flash::Flash;
use super::format::sentence;
use super::page::redirect;
use super::state::webhook_path;
use super::stats::day_before;
use super::time::field;
use super::visit::Visit;
use crate::manage::{Fault, JobDraft, JobScope, PeriodFault};

/// The form as it is shown.
pub struct PeriodForm {
    pub since: String,
    pub until: String,
    pub errors: Vec<String>,
    /// Events from before this time are no longer stored.
    pub oldest: Timestamp,
    pub preview: Option<Preview>,
}

/// What the job would do.
pub struct Preview {
    pub scope: JobScope,
    /// The number of deliveries, as text.
    pub count: String,
}

/// Why the fields are not accepted.
pub type Refusal = (StatusCode, Vec<String>);

/// A preview, if there is one, or a refusal.
pub type Shown = Result<Option<JobScope>, Refusal>;

/// A parsed form, or everything that is wrong with it.
pub type Parsed = Result<JobDraft, Vec<String>>;

/// Parses the time range and makes a draft of it. `errors` are those of the other fields.
pub fn parse(
    fields: &Fields,
    mut errors: Vec<String>,
    draft: impl FnOnce(Timestamp, Option<Timestamp>) -> Result<JobDraft, PeriodFault>,
) -> Parsed {
    let (since, until) = fields.period(&mut errors);

    match since {
        _ if !errors.is_empty() => Err(errors),
        None => Err(vec!["“Since” is required.".to_owned()]),
        Some(since) => draft(since, until).map_err(|fault| vec![message(fault).to_owned()]),
    }
}

fn message(fault: PeriodFault) -> &'static str {
    match fault {
        PeriodFault::SinceInFuture => "“Since” must not be in the future.",
        PeriodFault::UntilNotAfterSince => "“Until” must be after “Since”.",
    }
}

/// Previews a draft. The first visit, without any field, shows an empty form.
pub async fn preview(
    visit: &Visit,
    webhook: Uuid,
    fields: &Fields,
    draft: Parsed,
) -> Result<Shown, PageError> {
    Ok(match draft {
        _ if fields.one("since").is_empty() => Ok(None),
        Ok(draft) => {
            let user = visit.user();
            Ok(Some(
                visit.manage().preview_job(user, webhook, &draft).await?,
            ))
        }
        Err(errors) => Err((StatusCode::UNPROCESSABLE_ENTITY, errors)),
    })
}

/// Starts the job of a draft, which is called `name`, and leads to the list of jobs.
pub async fn start(
    visit: &Visit,
    webhook: Uuid,
    name: &str,
    draft: Parsed,
    counted: fn(&JobScope) -> String,
) -> Result<Result<Response, Refusal>, PageError> {
    let draft = match draft {
        Ok(draft) => draft,
        Err(errors) => return Ok(Err((StatusCode::UNPROCESSABLE_ENTITY, errors))),
    };

    let started = visit
        .manage()
        .start_job(&visit.actor, webhook, &draft)
        .await;

    match started {
        Ok(job) => {
            let text = format!(
                "{name} of {} started. It runs in the background.",
                counted(&job.scope)
            );
            Ok(Ok(redirect(
                &webhook_path(webhook, "/jobs"),
                Flash::good(text),
            )))
        }
        Err(fault @ (Fault::WebhookInactive | Fault::TooManyRecoveries)) => Ok(Err((
            StatusCode::CONFLICT,
            vec![sentence(&fault.to_string())],
        ))),
        Err(fault) => Err(fault.into()),
    }
}

impl PeriodForm {
    /// Returns the form and the status of the page that shows it. The time range of an empty form
    /// starts a day ago.
    pub fn new(
        visit: &Visit,
        fields: &Fields,
        shown: Shown,
        counted: fn(&JobScope) -> String,
    ) -> (StatusCode, PeriodForm) {
        let now = Timestamp::now();
        let value = |name: &str| time(fields.one(name)).map(field);
        let (status, preview, errors) = match shown {
            Ok(preview) => (StatusCode::OK, preview, Vec::new()),
            Err((status, errors)) => (status, None, errors),
        };

        let form = PeriodForm {
            since: value("since").unwrap_or_else(|| field(day_before(now))),
            until: value("until").unwrap_or_default(),
            errors,
            oldest: now
                .checked_sub(visit.state.retention)
                .unwrap_or(Timestamp::UNIX_EPOCH),
            preview: preview.map(|scope| Preview {
                scope,
                count: counted(&scope),
            }),
        };

        (status, form)
    }
}
