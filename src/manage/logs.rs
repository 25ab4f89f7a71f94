//! The delivery log of a webhook, and redelivery of its entries.

use jiff::Timestamp;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::limits::OperationPermit;
use super::page::{Cursor, List, ListPage};
use super::receivers::{RenderedRequest, SigningSecret};
use super::service::Manage;
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::store::audit::Actor;
use crate::store::logs::{self, Entry, LogDetail, LogFilter};
use crate::store::recovery;

/// Webhooks whose logs are listed together. More than a user has, unless an operator sets a very
/// high limit.
const MOST_WEBHOOKS: usize = 200;

/// Entries that an export holds in memory.
const EXPORTED_AT_ONCE: usize = 250;
/// Entries that a client gets at once that follows the logs. If there are more, it gets the newest.
const FOLLOWED_AT_ONCE: usize = 200;

/// Whose log is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogScope {
    Webhook(Uuid),
    /// One webhook, in the list of all.
    WebhookOfAccount(Uuid),
    /// All webhooks of the user.
    Account,
}

impl LogScope {
    /// The list that cursors belong to.
    pub fn list(self) -> List {
        match self {
            LogScope::Webhook(webhook) => List::Log(webhook),
            LogScope::WebhookOfAccount(_) | LogScope::Account => List::AllLogs,
        }
    }
}

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
    /// Lists delivery logs, newest first. A filtered search examines a bounded number of entries:
    /// its page may have fewer than `limit` entries, or none, and still have a next page.
    pub async fn log(
        &self,
        user: &UserId,
        scope: &LogScope,
        filter: &LogFilter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Entry>> {
        let _search = if filter.is_empty() {
            None
        } else {
            Some(self.searches.begin(user)?)
        };

        self.read_logs(user, scope, filter, before, limit).await
    }

    async fn read_logs(
        &self,
        user: &UserId,
        scope: &LogScope,
        filter: &LogFilter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Entry>> {
        let webhooks = self.webhooks_of(user, scope).await?;
        let before = before.map(|cursor| cursor.id);
        let found = logs::list(&self.store, user, &webhooks, filter, before, limit + 1).await?;
        let page = ListPage::new(scope.list(), found.entries, limit, |entry| entry.id);

        Ok(page.or_continue_after(found.horizon))
    }

    /// Begins to export delivery logs, which lasts until the permit is dropped.
    pub fn begin_export(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        self.searches.begin_export(user)
    }

    /// Returns the next part of an export. The caller holds its permit, and pauses between the parts.
    pub async fn export(
        &self,
        user: &UserId,
        scope: &LogScope,
        filter: &LogFilter,
        before: Option<Cursor>,
    ) -> Result<ListPage<Entry>> {
        self.read_logs(user, scope, filter, before, EXPORTED_AT_ONCE)
            .await
    }

    /// Begins to follow the account's delivery logs, which lasts until the permit is dropped.
    pub fn begin_tail(&self, user: &UserId) -> Result<OperationPermit<UserId>> {
        self.searches.begin_tail(user)
    }

    /// Returns the newest entries since a time, and whether there are more.
    pub async fn newest_logs(
        &self,
        user: &UserId,
        scope: &LogScope,
        filter: &LogFilter,
        since: Timestamp,
    ) -> Result<(Vec<Entry>, bool)> {
        let filter = LogFilter {
            since: Some(filter.since.map_or(since, |given| given.max(since))),
            ..filter.clone()
        };
        let page = self
            .read_logs(user, scope, &filter, None, FOLLOWED_AT_ONCE)
            .await?;
        Ok((page.items, page.next.is_some()))
    }

    async fn webhooks_of(&self, user: &UserId, scope: &LogScope) -> Result<Vec<Uuid>> {
        match scope {
            LogScope::Webhook(webhook) | LogScope::WebhookOfAccount(webhook) => Ok(vec![*webhook]),
            LogScope::Account => {
                let all = self.webhooks(user, None, MOST_WEBHOOKS).await?.items;
                Ok(all.into_iter().map(|webhook| webhook.id).collect())
            }
        }
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
