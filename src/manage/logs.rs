//! The delivery log of a webhook, and redelivery of its entries.

use jiff::Timestamp;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, ListPage};
use super::receivers::{RenderedRequest, SigningSecret};
use super::service::Manage;
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::store::audit::Actor;
use crate::store::logs::{self, Entry, LogDetail, LogFilter};
use crate::store::recovery;

/// Every outcome of a log entry.
pub const OUTCOMES: [Outcome; 4] = [
    Outcome::Delivered,
    Outcome::Failed,
    Outcome::PermanentlyFailed,
    Outcome::Cancelled,
];

/// Parses an outcome by its name in the API, such as `permanently_failed`.
pub fn outcome(name: &str) -> Option<Outcome> {
    OUTCOMES
        .into_iter()
        .find(|outcome| outcome.as_str() == name)
}

/// A log entry with its request.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub detail: LogDetail,
    /// The request as it was sent. None if none was sent, or if the event has expired.
    pub request: Option<RenderedRequest>,
    /// The secret that verifies the request's signature. None if it has been replaced since, or
    /// without a request.
    pub signed_with: Option<SigningSecret>,
}

/// A round that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redelivery {
    /// The delivery's id, which is the same in each round.
    pub delivery: Uuid,
    pub round: u16,
}

impl Manage {
    /// Lists the webhook's log, newest first. A filtered search examines a bounded number of
    /// entries: its page may have fewer than `limit` entries, or none, and still have a next page.
    pub async fn log(
        &self,
        user: &UserId,
        webhook: Uuid,
        filter: &LogFilter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Entry>> {
        let _search = if filter.is_empty() {
            None
        } else {
            Some(self.searches.begin(user)?)
        };

        let before = before.map(|cursor| cursor.id);
        let found = logs::list(&self.store, user, webhook, filter, before, limit + 1).await?;
        let page = ListPage::new(List::Log(webhook), found.entries, limit, |entry| entry.id);

        Ok(page.or_continue_after(found.horizon))
    }

    /// Returns an entry of the webhook's log with its request.
    pub async fn log_entry(&self, user: &UserId, webhook: Uuid, log: Uuid) -> Result<LogEntry> {
        let found = logs::get(&self.store, user, webhook, log).await?;
        let detail = found.ok_or(Fault::NoSuchLogEntry)?;
        let request = self.receivers.render(&detail);
        let signed_with = match &request {
            Some(request) => self.receivers.signed_with(&detail, request).await?,
            None => None,
        };

        Ok(LogEntry {
            detail,
            request,
            signed_with,
        })
    }

    /// Counts the kinds of failure among the webhook's newest `limit` log entries since a time, the
    /// most frequent first.
    pub async fn failure_kinds(
        &self,
        user: &UserId,
        webhook: Uuid,
        since: Timestamp,
        limit: i64,
    ) -> Result<Vec<(String, i64)>> {
        Ok(logs::errors(&self.store, user, webhook, since, limit).await?)
    }

    /// Starts the next round of the delivery that a log entry belongs to.
    pub async fn redeliver(&self, actor: &Actor, webhook: Uuid, log: Uuid) -> Result<Redelivery> {
        match recovery::redeliver(&self.store, actor, webhook, log).await? {
            recovery::RedeliveryResult::Started { delivery, round } => {
                tracing::info!(%webhook, %delivery, round, user = %actor.user, "redelivery started");
                Ok(Redelivery { delivery, round })
            }
            recovery::RedeliveryResult::NoSuchLog => Err(Fault::NoSuchLogEntry),
            recovery::RedeliveryResult::Inactive => Err(Fault::WebhookInactive),
            recovery::RedeliveryResult::Test => Err(Fault::NotRedeliverable(
                "a test cannot be redelivered: send another test",
            )),
            recovery::RedeliveryResult::TooManyRounds => Err(Fault::NotRedeliverable(
                "the delivery has reached the highest number of rounds",
            )),
            recovery::RedeliveryResult::EventGone => Err(Fault::EventExpired),
        }
    }
}
