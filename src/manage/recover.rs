//! Recovery: redelivers everything that failed or was missed in a time range.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::store::audit::Actor;
use crate::store::recovery::{self, Scope};

/// What to recover: a valid time range.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryDraft {
    since: Timestamp,
    until: Option<Timestamp>,
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
    /// Recovers from `since` on and before `until`, or up to now: deliveries whose last attempt had `outcome`. Without an outcome,
    /// those that failed permanently or were cancelled, and events that occurred while the webhook was inactive.
    pub fn new(
        since: Timestamp,
        until: Option<Timestamp>,
        outcome: Option<Outcome>,
    ) -> Result<RecoveryDraft, PeriodFault> {
        match until {
            Some(until) if until <= since => Err(PeriodFault::UntilNotAfterSince),
            _ if since > Timestamp::now() => Err(PeriodFault::SinceInFuture),
            _ => Ok(RecoveryDraft { since, until, outcome }),
        }
    }

    /// Limits the range to what is stored: from `oldest` to `now`.
    fn scope(self, now: Timestamp, oldest: Timestamp) -> Scope {
        let since = self.since.clamp(oldest, now);
        let until = self.until.unwrap_or(now).clamp(since, now);
        let outcomes =
            self.outcome.map_or_else(|| vec![Outcome::PermanentlyFailed, Outcome::Cancelled], |one| vec![one]);
        Scope { since, until, outcomes, missed: self.outcome.is_none() }
    }
}

/// What a recovery covers.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryScope {
    /// The number of deliveries.
    pub count: u64,
    /// False if the log is too large to count exactly: there may be more deliveries.
    pub is_exact: bool,
    pub since: Timestamp,
    pub until: Timestamp,
}

/// A recovery that was started. It runs in the background.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    pub id: Uuid,
    pub scope: RecoveryScope,
}

impl Manage {
    /// Counts what [`Manage::recover`] would redeliver.
    pub async fn preview_recovery(&self, user: &UserId, webhook: Uuid, draft: RecoveryDraft) -> Result<RecoveryScope> {
        self.webhook(user, webhook).await?;
        Ok(self.count_recovery(webhook, draft).await?.1)
    }

    /// Starts a recovery of the webhook's deliveries.
    pub async fn recover(&self, actor: &Actor, webhook: Uuid, draft: RecoveryDraft) -> Result<Recovery> {
        if !self.webhook(&actor.user, webhook).await?.settings.active {
            return Err(Fault::WebhookInactive);
        }
        let (scope, counted) = self.count_recovery(webhook, draft).await?;
        let started = recovery::begin(&self.store, actor, webhook, &scope).await?;
        let id = started.ok_or(Fault::TooManyRecoveries)?;
        tracing::info!(%webhook, recovery = %id, count = counted.count, user = %actor.user, "recovery started");
        Ok(Recovery { id, scope: counted })
    }

    async fn count_recovery(&self, webhook: Uuid, draft: RecoveryDraft) -> Result<(Scope, RecoveryScope)> {
        let now = Timestamp::now();
        let retention = SignedDuration::from_hours(i64::from(self.retention_days) * 24);
        let scope = draft.scope(now, now.checked_sub(retention).unwrap_or(Timestamp::UNIX_EPOCH));
        let counted = recovery::count(&self.store, webhook, &scope).await?;
        let Scope { since, until, .. } = scope;
        Ok((scope, RecoveryScope { count: counted.count, is_exact: counted.is_exact, since, until }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn scope(draft: RecoveryDraft) -> Scope {
        draft.scope(at("2026-03-31T00:00:00Z"), at("2026-03-01T00:00:00Z"))
    }

    #[test]
    fn the_scope_is_limited_to_the_retention_period() {
        let wide = scope(RecoveryDraft::new(at("2020-01-01T00:00:00+02:00"), None, None).unwrap());
        assert_eq!((wide.since, wide.until), (at("2026-03-01T00:00:00Z"), at("2026-03-31T00:00:00Z")));
        assert!(wide.missed && wide.outcomes == [Outcome::PermanentlyFailed, Outcome::Cancelled]);
        let until = Some(at("2027-01-01T00:00:00Z"));
        let narrow = RecoveryDraft { since: at("2026-03-02T00:00:00Z"), until, outcome: Some(Outcome::Failed) };
        let narrow = scope(narrow);
        assert!(!narrow.missed && narrow.outcomes == [Outcome::Failed]);
        assert_eq!(narrow.until, wide.until);
        let until = Some(at("2020-01-02T00:00:00Z"));
        let expired = scope(RecoveryDraft::new(at("2020-01-01T00:00:00Z"), until, None).unwrap());
        assert_eq!(expired.since, expired.until, "no event of this range is stored");
    }

    #[test]
    fn the_range_must_not_be_empty_or_in_the_future() {
        let since = at("2026-03-02T00:00:00Z");
        assert_eq!(RecoveryDraft::new(since, Some(since), None).unwrap_err(), PeriodFault::UntilNotAfterSince);
        let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
        assert_eq!(RecoveryDraft::new(tomorrow, None, None).unwrap_err(), PeriodFault::SinceInFuture);
    }
}
