//! Recovery: the form of its time range and outcome.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::{Count, deliveries, outcome_label};
use super::page::{Frame, Section, with_status};
use super::period::{self, Parsed, PeriodForm, Shown};
use super::stats::day_before;
use super::time::{Exact, field};
use super::visit::{Ids, Visit};
use crate::domain::time::millis;
use crate::manage::{self, JobDraft, JobScope, OUTCOMES, Webhook};

#[derive(Template)]
#[template(path = "ui/recover.html")]
struct RecoverPage {
    frame: Frame,
    webhook: Webhook,
    form: PeriodForm,
    outcome: String,
}

impl RecoverPage {
    /// The fields of the preview that start the job, besides the time range.
    fn hidden(&self) -> impl Iterator<Item = (&'static str, &String)> {
        [("outcome", &self.outcome)].into_iter()
    }
}

fn parse(fields: &Fields) -> Parsed {
    let mut errors = Vec::new();
    let outcome = fields.optional(
        "outcome",
        manage::outcome,
        "Select an outcome from the list.",
        &mut errors,
    );

    period::parse(fields, errors, |since, until| {
        JobDraft::recovery(since, until, outcome)
    })
}

/// Shows the form with a preview. The first visit previews what failed since the streak of failures
/// began, or in the last day.
pub async fn form(visit: Visit, Ids(id): Ids<Uuid>, fields: Fields) -> Result<Response, PageError> {
    let fields = match fields.get("since") {
        Some(_) => fields,
        None => {
            let preset = visit.manage().recovery_preset(visit.user(), id).await?;
            let since = preset.unwrap_or_else(|| day_before(Timestamp::now()));
            Fields::from(vec![("since".to_owned(), field(since))])
        }
    };

    let shown = period::preview(&visit, id, &fields, parse(&fields)).await?;
    show(&visit, id, &fields, shown).await
}

pub async fn start(
    visit: Visit,
    Ids(id): Ids<Uuid>,
    fields: Fields,
) -> Result<Response, PageError> {
    match period::start(&visit, id, "Recovery", parse(&fields), counted).await? {
        Ok(response) => Ok(response),
        Err(refusal) => show(&visit, id, &fields, Err(refusal)).await,
    }
}

/// Returns "1 delivery", or "1,000 or more deliveries" if the log is too long to count all.
fn counted(scope: &JobScope) -> String {
    let JobScope {
        count, is_exact, ..
    } = *scope;
    if is_exact {
        deliveries(count)
    } else {
        format!("{} or more deliveries", Count(count))
    }
}

async fn show(
    visit: &Visit,
    id: Uuid,
    fields: &Fields,
    shown: Shown,
) -> Result<Response, PageError> {
    let webhook = visit.webhook(id).await?;
    let (status, form) = PeriodForm::new(visit, fields, shown, counted);
    let outcome = fields.one("outcome").to_owned();

    Ok(with_status(
        status,
        &RecoverPage {
            frame: visit.frame(Section::Webhooks),
            webhook,
            form,
            outcome,
        },
    ))
}
