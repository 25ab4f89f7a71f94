//! The way out for a disabled webhook: one form tests the receiver, activates the webhook, and
//! recovers everything since the first of the failures.

use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::flash::Flash;
use super::format::{deliveries, sentence};
use super::page::redirect;
use super::state::webhook_path;
use super::test;
use super::visit::{Ids, Visit};
use crate::manage::{Fault, JobScope, Webhook};

/// Returns what waits for a disabled webhook. None if it is not disabled, or if the user has counted
/// too often in the last minutes.
pub async fn waiting(visit: &Visit, webhook: &Webhook) -> Result<Option<JobScope>, PageError> {
    let manage = visit.manage();
    let Some(draft) = manage.recovery_of_disabled(webhook).await? else {
        return Ok(None);
    };

    match manage.preview_job(visit.user(), webhook.id, &draft).await {
        Ok(scope) => Ok(Some(scope)),
        Err(Fault::RateLimit { .. }) => Ok(None),
        Err(fault) => Err(fault.into()),
    }
}

/// Tests a disabled webhook. If its receiver accepts the test, activates it and starts the recovery.
pub async fn reactivate(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let manage = visit.manage();
    let webhook = visit.webhook(id).await?;
    let page = |rest: &str, flash| Ok(redirect(&webhook_path(id, rest), flash));

    // Before the activation, which forgets since when the webhook has failed.
    let Some(recovery) = manage.recovery_of_disabled(&webhook).await? else {
        return page("", Flash::bad("The webhook is not disabled any more."));
    };

    match manage.send_test(&visit.actor, id, None).await {
        Ok(sent) if sent.report.is_delivered() => {}
        Ok(sent) => {
            let outcome = test::outcome(&sent.report).text;
            let text = format!("{outcome} The webhook stays disabled.");
            return page(&format!("/logs/{}", sent.log_id), Flash::bad(text));
        }
        Err(fault @ (Fault::TooManyTests | Fault::RateLimit { .. })) => {
            return page("", Flash::bad(sentence(&fault.to_string())));
        }
        Err(fault) => return Err(fault.into()),
    }

    let activation = br#"{"active":true}"#;
    let activated = manage.update_webhook(&visit.actor, id, activation, &|_| true);

    match activated.await {
        Ok(_) => {}
        Err(fault @ Fault::Cancelling) => {
            return page("", Flash::bad(sentence(&fault.to_string())));
        }
        Err(fault) => return Err(fault.into()),
    }

    match manage.start_job(&visit.actor, id, &recovery).await {
        Ok(job) => {
            let count = deliveries(job.scope.count);
            let least = if job.scope.is_exact { "" } else { "at least " };
            let text = format!(
                "Test delivered. The webhook is active, and the recovery of {least}{count} has started."
            );
            page("/jobs", Flash::good(text))
        }
        Err(fault @ (Fault::TooManyRecoveries | Fault::RateLimit { .. })) => {
            let reason = sentence(&fault.to_string());
            let text = format!("The webhook is active, but the recovery has not started. {reason}");
            page("/recover", Flash::bad(text))
        }
        Err(fault) => Err(fault.into()),
    }
}
