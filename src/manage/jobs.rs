//! Jobs: recoveries, which redeliver everything that failed or was missed in a time range, and
//! replays, which deliver stored events to a webhook that never had them.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, ListPage};
use super::service::Manage;
use crate::domain::delivery::Outcome;
use crate::domain::event::{EventKind, UserId};
use crate::domain::notice::recovery_since;
use crate::domain::settings::{Settings, UNKNOWN_EVENT};
use crate::store::audit::Actor;
use crate::store::jobs::{self, Job, Order};
use crate::store::recovery::Scope;
use crate::store::replay::Selection;
use crate::store::webhooks::Webhook;
use crate::store::{notices, recovery, replay};

/// Every kind of job.
pub const JOB_KINDS: [&str; 2] = ["recover", "replay"];
/// The most labels that a replay can be limited to: its statement compares each event with all of
/// them.
pub const MAX_LABELS: usize = 100;

/// Why a time range is invalid. The text is a predicate of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeriodFault {
    /// `since` is wrong.
    #[error("is in the future")]
    SinceInFuture,
    /// `until` is wrong.
    #[error("must be after `since`")]
    UntilNotAfterSince,
}

/// What to recover or to replay, in a valid time range.
#[derive(Clone, Debug)]
pub struct JobDraft {
    /// Its time range is limited to what is stored before it is used.
    order: Order,
}

/// Returns the event type of this name, if the webhook is subscribed to it. The error is a predicate
/// of the event type.
pub fn replayable(settings: &Settings, name: &str) -> Result<EventKind, &'static str> {
    let event = name.parse().or(Err(UNKNOWN_EVENT))?;
    let is_subscribed = settings.events.iter().any(|subscribed| subscribed == name);
    is_subscribed
        .then_some(event)
        .ok_or("is not one of the webhook's events")
}

impl JobDraft {
    /// Recovers from `since` on and before `until`, or up to now: deliveries whose last attempt had
    /// `outcome`. Without an outcome, those that failed permanently or were cancelled, and events
    /// that occurred while the webhook was inactive.
    pub fn recovery(
        since: Timestamp,
        until: Option<Timestamp>,
        outcome: Option<Outcome>,
    ) -> Result<JobDraft, PeriodFault> {
        let outcomes = match outcome {
            Some(outcome) => vec![outcome],
            None => vec![Outcome::PermanentlyFailed, Outcome::Cancelled],
        };

        let order = Order::Recovery(Scope {
            since,
            until: checked(since, until)?,
            outcomes: outcomes.iter().map(|one| one.as_str().to_owned()).collect(),
            missed: outcome.is_none(),
        });
        Ok(JobDraft { order })
    }

    /// Replays the events from `since` on and before `until`, or up to now: those of the types
    /// `events`, or all that the webhook is subscribed to, and of these labels, or all.
    pub fn replay(
        settings: &Settings,
        since: Timestamp,
        until: Option<Timestamp>,
        events: Option<Vec<String>>,
        labels: Option<Vec<i64>>,
    ) -> Result<JobDraft, PeriodFault> {
        let distinct = |labels: Vec<i64>| BTreeSet::from_iter(labels).into_iter().collect();
        let order = Order::Replay(Selection {
            since,
            until: checked(since, until)?,
            events: events.unwrap_or_else(|| settings.events.clone()),
            labels: labels.map(distinct),
        });
        Ok(JobDraft { order })
    }

    /// Returns the order with a time range that is limited to what is stored: from `oldest` to
    /// `now`.
    fn limited(&self, now: Timestamp, oldest: Timestamp) -> (Order, Timestamp, Timestamp) {
        let mut order = self.order.clone();
        let (Order::Recovery(Scope { since, until, .. })
        | Order::Replay(Selection { since, until, .. })) = &mut order;

        *since = (*since).clamp(oldest, now);
        *until = (*until).clamp(*since, now);
        let (since, until) = (*since, *until);
        (order, since, until)
    }
}

/// Returns the end of a time range, which is valid and not empty. Without one, it does not end.
fn checked(since: Timestamp, until: Option<Timestamp>) -> Result<Timestamp, PeriodFault> {
    match until {
        Some(until) if until <= since => Err(PeriodFault::UntilNotAfterSince),
        _ if since > Timestamp::now() => Err(PeriodFault::SinceInFuture),
        _ => Ok(until.unwrap_or(Timestamp::MAX)),
    }
}

/// What a job covers.
#[derive(Clone, Copy, Debug)]
pub struct JobScope {
    /// The number of deliveries.
    pub count: u64,
    /// False if there is too much to count exactly. Then the number of a recovery is a lower bound,
    /// and that of a replay an estimate.
    pub is_exact: bool,
    pub since: Timestamp,
    pub until: Timestamp,
}

/// A job that was started. It runs in the background.
#[derive(Clone, Copy, Debug)]
pub struct StartedJob {
    pub id: Uuid,
    pub scope: JobScope,
}

impl Manage {
    /// Returns from when on to recover a webhook that was disabled: from the first of the failures
    /// that led to it. None if it was not disabled, or longer ago than notices are kept.
    pub async fn recovery_preset(&self, user: &UserId, webhook: Uuid) -> Result<Option<Timestamp>> {
        let webhook = self.webhook(user, webhook).await?;
        self.recoverable_since(&webhook).await
    }

    async fn recoverable_since(&self, webhook: &Webhook) -> Result<Option<Timestamp>> {
        let is_by_operator = webhook.is_disabled_by_operator();
        let noticed = match is_by_operator {
            true => None,
            false => notices::last_failing_since(&self.store, webhook.id).await?,
        };

        // An attempt that was in flight may have ended the run of failures after the disablement.
        let since = webhook.disabled_at.map(|disabled_at| {
            let failing_since = webhook.failing_since.unwrap_or(disabled_at);
            failing_since.min(disabled_at)
        });
        Ok(noticed.or(since).map(recovery_since))
    }

    /// Returns the recovery of everything that a disabled webhook has not got since the first of the
    /// failures that led to it. None if it is not disabled.
    pub async fn recovery_of_disabled(&self, webhook: &Webhook) -> Result<Option<JobDraft>> {
        if webhook.disabled_at.is_none() {
            return Ok(None);
        }

        let since = self.recoverable_since(webhook).await?;
        Ok(since.and_then(|since| JobDraft::recovery(since, None, None).ok()))
    }

    /// Counts what [`Manage::start_job`] would deliver.
    pub async fn preview_job(
        &self,
        user: &UserId,
        webhook: Uuid,
        draft: &JobDraft,
    ) -> Result<JobScope> {
        let webhook = self.webhook(user, webhook).await?;
        Ok(self.count_job(user, &webhook, draft).await?.1)
    }

    /// Starts a recovery of the webhook's deliveries, or a replay of stored events to it.
    pub async fn start_job(
        &self,
        actor: &Actor,
        webhook: Uuid,
        draft: &JobDraft,
    ) -> Result<StartedJob> {
        let target = self.webhook(&actor.user, webhook).await?;
        if !target.settings.active {
            return Err(Fault::WebhookInactive);
        }

        let (order, scope) = self.count_job(&actor.user, &target, draft).await?;
        let started = jobs::begin(&self.store, actor, webhook, &order, scope.count).await?;
        let id = started.ok_or(Fault::TooManyRecoveries)?;

        let kind = order.kind();
        tracing::info!(%webhook, job = %id, kind, count = scope.count, user = %actor.user, "job started");
        Ok(StartedJob { id, scope })
    }

    async fn count_job(
        &self,
        user: &UserId,
        webhook: &Webhook,
        draft: &JobDraft,
    ) -> Result<(Order, JobScope)> {
        let _counting = self.searches.begin_count(user)?;
        let now = Timestamp::now();
        let retention = SignedDuration::from_hours(i64::from(self.retention_days) * 24);
        let oldest = now.checked_sub(retention).unwrap_or(Timestamp::UNIX_EPOCH);
        let (order, since, until) = draft.limited(now, oldest);

        let counted = match &order {
            Order::Recovery(scope) => recovery::count(&self.store, webhook.id, scope).await?,
            Order::Replay(selection) => {
                let filter = webhook.settings.filter.as_ref();
                replay::count(&self.store, user, webhook.id, filter, selection).await?
            }
        };

        let scope = JobScope {
            count: counted.count,
            is_exact: counted.is_exact,
            since,
            until,
        };
        Ok((order, scope))
    }

    /// Lists the webhook's jobs, newest first.
    pub async fn jobs(
        &self,
        user: &UserId,
        webhook: Uuid,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Job>> {
        let before = before.map(|cursor| cursor.id);
        let found = jobs::list(&self.store, user, webhook, before, limit + 1).await?;
        Ok(ListPage::new(List::Jobs(webhook), found, limit, |job| {
            job.id
        }))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn limited(since: &str, until: Option<&str>) -> (Timestamp, Timestamp) {
        let draft = JobDraft::recovery(at(since), until.map(at), None).unwrap();
        let (_, since, until) =
            draft.limited(at("2026-03-31T00:00:00Z"), at("2026-03-01T00:00:00Z"));
        (since, until)
    }

    #[test]
    fn the_period_is_limited_to_the_retention_period() {
        let wide = limited("2020-01-01T00:00:00+02:00", None);
        assert_eq!(
            wide,
            (at("2026-03-01T00:00:00Z"), at("2026-03-31T00:00:00Z"))
        );

        let until_later = limited("2026-03-02T00:00:00Z", Some("2027-01-01T00:00:00Z"));
        assert_eq!(until_later, (at("2026-03-02T00:00:00Z"), wide.1));

        let expired = limited("2020-01-01T00:00:00Z", Some("2020-01-02T00:00:00Z"));
        assert_eq!(expired.0, expired.1, "no event of this range is stored");
    }

    #[test]
    fn an_outcome_excludes_missed_events() {
        let since = at("2026-03-02T00:00:00Z");
        let scope = |outcome| {
            let draft = JobDraft::recovery(since, None, outcome).unwrap();
            match draft.order {
                Order::Recovery(scope) => scope,
                Order::Replay(_) => panic!("it is a recovery"),
            }
        };

        assert!(scope(None).missed && scope(None).outcomes == ["permanently_failed", "cancelled"]);
        let failed = scope(Some(Outcome::Failed));
        assert!(!failed.missed && failed.outcomes == ["failed"]);
    }

    #[test]
    fn the_range_must_not_be_empty_or_in_the_future() {
        let since = at("2026-03-02T00:00:00Z");
        assert_eq!(
            JobDraft::recovery(since, Some(since), None).unwrap_err(),
            PeriodFault::UntilNotAfterSince
        );

        let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
        assert_eq!(
            JobDraft::recovery(tomorrow, None, None).unwrap_err(),
            PeriodFault::SinceInFuture
        );
    }
}
