//! The statements that record attempts.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;
use walhook::domain::delivery::{Delivery, Next, Outcome};
use walhook::domain::disablement::Standing;
use walhook::domain::event::UserId;
use walhook::domain::webhook::Tally;
use walhook::store::Result;
use walhook::store::audit::{Action, Actor};
use walhook::store::contract::RecordStatements;
use walhook::store::disable::Failing;
use walhook::store::order::{Key, PromotionLease};
use walhook::store::record::{AttemptRow, CompletedAttempt, Counters};

use super::{Line, MemoryTransaction, Notice, NoticeKind, Reason, Row, State, later};

impl State {
    /// Returns, for each attempt, whether it was made under its delivery's current lease. Of two
    /// attempts of the same delivery, only the one with the newer lease can be.
    fn fence(&self, attempts: &[CompletedAttempt<'_>]) -> Vec<bool> {
        let mut newest: BTreeMap<Uuid, usize> = BTreeMap::new();

        for (index, attempt) in attempts.iter().enumerate() {
            let Delivery { id, lease, .. } = attempt.delivery();
            let other = newest.entry(*id).or_insert(index);
            if attempts[*other].delivery().lease.token <= lease.token {
                *other = index;
            }
        }

        let holds = |index: usize, attempt: &CompletedAttempt<'_>| {
            let Delivery {
                id,
                lease,
                attempt: number,
                ..
            } = attempt.delivery();

            let holds = |row: &Row| row.lease == Some(lease.token) && row.attempt == *number;
            newest[id] == index && self.deliveries.get(id).is_some_and(holds)
        };

        attempts
            .iter()
            .enumerate()
            .map(|(index, attempt)| holds(index, attempt))
            .collect()
    }

    fn notify(&mut self, kind: NoticeKind, webhook: Uuid) {
        self.notices.push(Notice {
            kind,
            webhook,
            transaction: self.transaction,
        });
    }
}

impl RecordStatements for MemoryTransaction<'_> {
    async fn lock_leased(&self, attempts: &[CompletedAttempt<'_>]) -> Result<Vec<bool>> {
        Ok(self.state().fence(attempts))
    }

    async fn end_leased(&self, attempts: &[CompletedAttempt<'_>]) -> Result<Vec<bool>> {
        let mut state = self.state();
        let held = state.fence(attempts);
        for (attempt, _) in attempts.iter().zip(&held).filter(|(_, held)| **held) {
            state.remove_delivery(attempt.delivery().id);
        }

        Ok(held)
    }

    async fn take_superseded(
        &self,
        deliveries: &[Uuid],
        leases: &[Uuid],
    ) -> Result<Vec<(Uuid, Uuid)>> {
        let mut state = self.state();
        let noted = deliveries.iter().copied().zip(leases.iter().copied());
        let taken: BTreeSet<(Uuid, Uuid)> = noted
            .filter(|pair| state.superseded.remove(pair).is_some())
            .collect();

        self.late
            .lock()
            .expect("no holder of this lock panics")
            .extend(&taken);
        Ok(taken.into_iter().collect())
    }

    async fn hold_webhooks(&self, webhooks: &[Uuid]) -> Result<Vec<Uuid>> {
        let state = self.state();
        Ok(webhooks
            .iter()
            .copied()
            .filter(|id| state.webhooks.contains_key(id))
            .collect())
    }

    async fn end_deliveries(&self, attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        let mut state = self.state();

        for attempt in attempts
            .iter()
            .filter(|attempt| matches!(attempt.next, Next::End(_)))
        {
            state.remove_delivery(attempt.delivery().id);
        }

        Ok(())
    }

    async fn retry_deliveries(&self, attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        let mut state = self.state();
        let now = state.now;

        for completed in attempts {
            if let Next::Retry { after, attempt } = completed.next {
                let id = completed.delivery().id;
                state.deliveries.change(&id, |row| row.attempt = attempt);
                state.grant(id, None, later(now, after));
            }
        }

        Ok(())
    }

    async fn insert_attempts(&self, rows: &[AttemptRow<'_>]) -> Result<()> {
        let late = self.late.lock().expect("no holder of this lock panics");
        let mut state = self.state();
        let at = state.now;
        let transaction = state.transaction;

        for row in rows {
            let delivery = &row.attempted.delivery;
            let answer = &row.attempted.attempt.answer;
            let is_late = late.contains(&(delivery.id, delivery.lease.token));
            let is_failure = answer
                .error()
                .is_some_and(|kind| kind.counts_towards_disablement());

            state.log.push(Line {
                id: row.id,
                webhook: delivery.webhook,
                delivery: delivery.id,
                event: delivery.event,
                round: delivery.round,
                attempt: delivery.attempt,
                outcome: row.outcome,
                started_at: row.attempted.attempt.started_at,
                sequence: delivery.sequence,
                reason: if is_late {
                    Reason::Superseded
                } else {
                    Reason::Counted
                },
                lease: Some(delivery.lease.token),
                is_failure: is_failure && row.outcome != Outcome::Delivered,
                at,
                transaction,
            });
        }

        Ok(())
    }

    async fn count_webhooks(&self, tallies: &BTreeMap<Uuid, Tally>) -> Result<Vec<Counters>> {
        let mut state = self.state();
        let now = state.now;
        let mut counted = Vec::new();

        for (id, tally) in tallies {
            state.webhooks.change(id, |webhook| {
                let recent = tally.trailing_failures;
                webhook.successes += tally.successes;
                webhook.failures += tally.failures;
                webhook.failing_since = match (recent, tally.successes) {
                    (0, 0) => webhook.failing_since,
                    (0, _) => None,
                    (_, 0) => webhook.failing_since.or(Some(now)),
                    _ => Some(now),
                };

                let before = if tally.successes > 0 {
                    0
                } else {
                    webhook.consecutive_failures
                };

                webhook.consecutive_failures = before + recent;
            });

            if let Some(webhook) = state.webhooks.get(id) {
                let standing = Standing {
                    active: webhook.target.active,
                    failures: webhook.failures,
                    consecutive_failures: webhook.consecutive_failures,
                    failing_since: webhook.failing_since,
                    warned_at: webhook.warned_at,
                    now,
                };

                counted.push(Counters {
                    webhook: *id,
                    standing,
                });
            }
        }

        Ok(counted)
    }

    async fn add_hours(&self, _attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        Ok(())
    }

    async fn promote(
        &self,
        keys: &BTreeSet<Key>,
        lease: Option<PromotionLease>,
    ) -> Result<Vec<Delivery>> {
        Ok(self.state().promote(keys, lease))
    }

    async fn warn(&self, failing: &Failing) -> Result<()> {
        let mut state = self.state();
        let now = state.now;

        state
            .webhooks
            .change(&failing.webhook, |webhook| webhook.warned_at = Some(now));
        state.notify(NoticeKind::Warning, failing.webhook);

        Ok(())
    }

    async fn disable(&self, failing: &Failing) -> Result<Option<UserId>> {
        let mut state = self.state();
        let now = state.now;
        let id = failing.webhook;

        let Some(webhook) = state
            .webhooks
            .get(&id)
            .filter(|webhook| webhook.target.active)
        else {
            return Ok(None);
        };

        let user = webhook.user.clone();
        state.webhooks.change(&id, |webhook| {
            webhook.target.active = false;
            webhook.disabled_at = Some(now);
        });
        state.switch(id, false);
        state.notify(NoticeKind::Disabled, id);

        Ok(Some(user))
    }

    async fn audit(
        &self,
        _actor: &Actor,
        _action: Action,
        _subject: Uuid,
        _changed: &[&str],
    ) -> Result<()> {
        Ok(())
    }
}
