//! Jobs: the list of a webhook's recoveries and replays, and replays, which deliver stored events
//! to a webhook that never had them.

use std::collections::BTreeSet;

use jiff::Timestamp;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, Page};
use super::recover::{JobScope, Period, PeriodFault, StartedJob};
use super::service::Manage;
use super::settings::EventSet;
use crate::domain::event::{EventKind, UserId};
use crate::store::audit::Actor;
use crate::store::jobs::{self, Job};
use crate::store::replay::{self, Selection};
use crate::store::webhooks::{Settings, Webhook, event_names};

/// Every kind of job.
pub const JOB_KINDS: [&str; 2] = ["recover", "replay"];
/// The most labels that a replay can be limited to: its statement compares each event with all of
/// them.
pub const MAX_LABELS: usize = 100;

/// What to replay: a valid time range, event types and labels.
#[derive(Clone, Debug)]
pub struct ReplayDraft {
    period: Period,
    events: Vec<String>,
    labels: Option<Vec<i64>>,
}

/// Why an event type cannot be replayed to a webhook. The text is a predicate of the event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayEventFault {
    #[error("is not an event")]
    Unknown,
    #[error("is not one of the webhook's events")]
    NotSubscribed,
}

/// Returns the event type of this name, if the webhook is subscribed to it.
pub fn replayable(settings: &Settings, name: &str) -> Result<EventKind, ReplayEventFault> {
    let event = name.parse().map_err(|_| ReplayEventFault::Unknown)?;
    let is_subscribed = settings.events.iter().any(|subscribed| subscribed == name);
    if is_subscribed {
        Ok(event)
    } else {
        Err(ReplayEventFault::NotSubscribed)
    }
}

impl ReplayDraft {
    /// Replays the events from `since` on and before `until`, or up to now: those of the types
    /// `events`, or all that the webhook is subscribed to, and of these labels, or all.
    pub fn new(
        settings: &Settings,
        since: Timestamp,
        until: Option<Timestamp>,
        events: Option<EventSet>,
        labels: Option<Vec<i64>>,
    ) -> Result<ReplayDraft, PeriodFault> {
        let distinct = |labels: Vec<i64>| BTreeSet::from_iter(labels).into_iter().collect();
        let events =
            events.map_or_else(|| settings.events.clone(), |events| event_names(&events.0));
        Ok(ReplayDraft {
            period: Period::new(since, until)?,
            events,
            labels: labels.map(distinct),
        })
    }

    fn selection(&self, since: Timestamp, until: Timestamp) -> Selection {
        Selection {
            since,
            until,
            events: self.events.clone(),
            labels: self.labels.clone(),
        }
    }
}

impl Manage {
    /// Counts what [`Manage::replay`] would deliver.
    pub async fn preview_replay(
        &self,
        user: &UserId,
        webhook: Uuid,
        draft: &ReplayDraft,
    ) -> Result<JobScope> {
        let webhook = self.webhook(user, webhook).await?;
        Ok(self.count_replay(user, &webhook, draft).await?.1)
    }

    /// Starts a replay of stored events to the webhook.
    pub async fn replay(
        &self,
        actor: &Actor,
        webhook: Uuid,
        draft: &ReplayDraft,
    ) -> Result<StartedJob> {
        let target = self.webhook(&actor.user, webhook).await?;
        if !target.settings.active {
            return Err(Fault::WebhookInactive);
        }

        let (selection, scope) = self.count_replay(&actor.user, &target, draft).await?;
        let started = replay::begin(&self.store, actor, webhook, &selection, scope.count).await?;
        let id = started.ok_or(Fault::TooManyRecoveries)?;

        tracing::info!(%webhook, replay = %id, count = scope.count, user = %actor.user, "replay started");
        Ok(StartedJob { id, scope })
    }

    async fn count_replay(
        &self,
        user: &UserId,
        webhook: &Webhook,
        draft: &ReplayDraft,
    ) -> Result<(Selection, JobScope)> {
        let _counting = self.searches.begin_count(user)?;
        let (since, until) = self.stored_period(draft.period);
        let selection = draft.selection(since, until);
        let filter = webhook.settings.options.filter.as_ref();
        let counted = replay::count(&self.store, user, webhook.id, filter, &selection).await?;

        Ok((
            selection,
            JobScope {
                count: counted.count,
                is_exact: counted.is_exact,
                since,
                until,
            },
        ))
    }

    /// Lists the webhook's jobs, newest first.
    pub async fn jobs(
        &self,
        user: &UserId,
        webhook: Uuid,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Job>> {
        let before = before.map(|cursor| cursor.id);
        let found = jobs::list(&self.store, user, webhook, before, limit + 1).await?;
        Ok(Page::new(List::Jobs(webhook), found, limit, |job| job.id))
    }

    pub async fn job(&self, user: &UserId, webhook: Uuid, job: Uuid) -> Result<Job> {
        jobs::get(&self.store, user, webhook, job)
            .await?
            .ok_or(Fault::NoSuchJob)
    }

    /// Cancels a job, unless it has ended. The deliveries that it has created remain.
    pub async fn cancel_job(&self, actor: &Actor, webhook: Uuid, job: Uuid) -> Result<()> {
        if !jobs::cancel(&self.store, actor, webhook, job).await? {
            return Err(Fault::NoSuchJob);
        }

        tracing::info!(%webhook, %job, user = %actor.user, "job cancelled");
        Ok(())
    }
}
