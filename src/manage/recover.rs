//! Recovery: redelivers everything that failed or was missed in a time range.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::domain::notice::recovery_since;
use crate::store::audit::Actor;
use crate::store::notices;
use crate::store::recovery::{self, Scope};

/// A valid time range: from `since` on and before `until`, or up to now.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    since: Timestamp,
    until: Option<Timestamp>,
}

impl Period {
    pub fn new(since: Timestamp, until: Option<Timestamp>) -> Result<Period, PeriodFault> {
        match until {
            Some(until) if until <= since => Err(PeriodFault::UntilNotAfterSince),
            _ if since > Timestamp::now() => Err(PeriodFault::SinceInFuture),
            _ => Ok(Period { since, until }),
        }
    }

    /// Limits the range to what is stored: from `oldest` to `now`.
    fn limited(self, now: Timestamp, oldest: Timestamp) -> (Timestamp, Timestamp) {
        let since = self.since.clamp(oldest, now);
        (since, self.until.unwrap_or(now).clamp(since, now))
    }
}

/// What to recover: a valid time range.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryDraft {
    period: Period,
    outcome: Option<Outcome>,
}

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

impl RecoveryDraft {
    /// Recovers from `since` on and before `until`, or up to now: deliveries whose last attempt had
    /// `outcome`. Without an outcome, those that failed permanently or were cancelled, and events
    /// that occurred while the webhook was inactive.
    pub fn new(
        since: Timestamp,
        until: Option<Timestamp>,
        outcome: Option<Outcome>,
    ) -> Result<RecoveryDraft, PeriodFault> {
        Ok(RecoveryDraft {
            period: Period::new(since, until)?,
            outcome,
        })
    }

    fn scope(self, since: Timestamp, until: Timestamp) -> Scope {
        let outcomes = self.outcome.map_or_else(
            || vec![Outcome::PermanentlyFailed, Outcome::Cancelled],
            |one| vec![one],
        );
        Scope {
            since,
            until,
            outcomes,
            missed: self.outcome.is_none(),
        }
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
    /// that led to it.
    pub async fn recovery_preset(&self, user: &UserId, webhook: Uuid) -> Result<Option<Timestamp>> {
        let webhook = self.webhook(user, webhook).await?;
        let failing_since = notices::last_failing_since(&self.store, webhook.id).await?;
        Ok(failing_since.map(recovery_since))
    }

    /// Counts what [`Manage::recover`] would redeliver.
    pub async fn preview_recovery(
        &self,
        user: &UserId,
        webhook: Uuid,
        draft: RecoveryDraft,
    ) -> Result<JobScope> {
        self.webhook(user, webhook).await?;
        Ok(self.count_recovery(user, webhook, draft).await?.1)
    }

    /// Starts a recovery of the webhook's deliveries.
    pub async fn recover(
        &self,
        actor: &Actor,
        webhook: Uuid,
        draft: RecoveryDraft,
    ) -> Result<StartedJob> {
        if !self.webhook(&actor.user, webhook).await?.settings.active {
            return Err(Fault::WebhookInactive);
        }

        let (scope, counted) = self.count_recovery(&actor.user, webhook, draft).await?;
        let started = recovery::begin(&self.store, actor, webhook, &scope, counted.count).await?;
        let id = started.ok_or(Fault::TooManyRecoveries)?;

        tracing::info!(%webhook, recovery = %id, count = counted.count, user = %actor.user, "recovery started");
        Ok(StartedJob { id, scope: counted })
    }

    async fn count_recovery(
        &self,
        user: &UserId,
        webhook: Uuid,
        draft: RecoveryDraft,
    ) -> Result<(Scope, JobScope)> {
        let _counting = self.searches.begin_count(user)?;
        let (since, until) = self.stored_period(draft.period);
        let scope = draft.scope(since, until);
        let counted = recovery::count(&self.store, webhook, &scope).await?;

        Ok((
            scope,
            JobScope {
                count: counted.count,
                is_exact: counted.is_exact,
                since,
                until,
            },
        ))
    }

    /// Limits a period to what is stored now.
    pub(super) fn stored_period(&self, period: Period) -> (Timestamp, Timestamp) {
        let now = Timestamp::now();
        let retention = SignedDuration::from_hours(i64::from(self.retention_days) * 24);
        period.limited(
            now,
            now.checked_sub(retention).unwrap_or(Timestamp::UNIX_EPOCH),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn limited(since: &str, until: Option<&str>) -> (Timestamp, Timestamp) {
        let period = Period {
            since: at(since),
            until: until.map(at),
        };
        period.limited(at("2026-03-31T00:00:00Z"), at("2026-03-01T00:00:00Z"))
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
        let until = at("2026-03-03T00:00:00Z");
        let scope = |outcome| {
            RecoveryDraft::new(since, None, outcome)
                .unwrap()
                .scope(since, until)
        };

        assert!(
            scope(None).missed
                && scope(None).outcomes == [Outcome::PermanentlyFailed, Outcome::Cancelled]
        );
        let failed = scope(Some(Outcome::Failed));
        assert!(!failed.missed && failed.outcomes == [Outcome::Failed]);
    }

    #[test]
    fn the_range_must_not_be_empty_or_in_the_future() {
        let since = at("2026-03-02T00:00:00Z");
        assert_eq!(
            RecoveryDraft::new(since, Some(since), None).unwrap_err(),
            PeriodFault::UntilNotAfterSince
        );

        let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
        assert_eq!(
            RecoveryDraft::new(tomorrow, None, None).unwrap_err(),
            PeriodFault::SinceInFuture
        );
    }
}
