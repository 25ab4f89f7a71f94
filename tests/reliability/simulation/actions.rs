//! Faults and the actions of owners, as they happen.

use std::time::Duration;

use jiff::SignedDuration;
use uuid::Uuid;
use walhook::domain::delivery::Outcome;
use walhook::domain::ordering::Ordering;
use walhook::store::recovery::Criteria;
use walhook::store::replay::Selection;

use super::invariants::{self, Broken};
use super::plan::{Fault, UserAction};
use super::receivers::{Mode, Receiver};
use super::world::{Event, World, trace};
use crate::support::memory::{Redelivered, Switching};

impl World {
    pub fn fault(&mut self, fault: Fault) {
        trace!(self, "fault: {fault:?}");
        let now = self.now;

        match fault {
            Fault::Crash(replica, wait) => {
                self.cover("a process crashed");
                self.crash(replica);
                self.after(wait, Event::Start(replica));
            }
            Fault::Pause(replica, time) => {
                self.cover("a process was paused");
                let replica = &mut self.replicas[replica];
                replica.paused_until = replica.paused_until.max(now + time);
            }
            Fault::Suspend(replica, time) => {
                self.cover("a machine was suspended");
                let replica = &mut self.replicas[replica];

                // A pause that is already under way counts for the clock only beyond its end.
                let until = replica.paused_until.max(now + time);
                replica.lag += until - replica.paused_until.max(now);
                replica.paused_until = until;
            }
            Fault::StepClock(replica, step) => {
                self.cover("a clock was set");
                self.replicas[replica].clock_offset = step;
            }
            Fault::StepStoreClock(step) => {
                let is_forward = step.is_positive();
                self.cover(if is_forward {
                    "the store's clock was set forward"
                } else {
                    "the store's clock was set back"
                });
                self.store_steps.push((now, step));
            }
            Fault::Drain(replica) => self.drain(replica),
            Fault::StoreDown(time) => {
                self.cover("the store was down");
                self.store_down_until = self.store_down_until.max(now + time);
            }
            Fault::Receiver(webhook, mode) => self.set_mode(webhook, mode),
            Fault::End => self.end_faults(),
        }
    }

    fn set_mode(&mut self, webhook: usize, mode: Mode) {
        let id = self.webhooks[webhook];
        self.receivers.insert(
            id,
            Receiver {
                mode,
                was_always_fast: false,
            },
        );
    }

    /// From here on, the store answers, processes run, and receivers answer at once, though perhaps
    /// with an error.
    fn end_faults(&mut self) {
        self.plan = super::plan::Plan {
            slow_store: 0.0,
            slow_commits: 0.0,
            lost_requests: 0.0,
            lost_answers: 0.0,
            own_faults: 0.0,
            ..self.plan
        };

        self.store_down_until = Duration::ZERO;

        for replica in 0..self.replicas.len() {
            if !self.replicas[replica].is_running() {
                self.after(Duration::ZERO, Event::Start(replica));
            }
        }

        for webhook in 0..self.webhooks.len() {
            let was = self.receivers[&self.webhooks[webhook]];
            if !matches!(was.mode, Mode::Fast | Mode::Failing(_)) {
                self.set_mode(webhook, Mode::Fast);
            }
        }
    }

    pub fn act(&mut self, action: UserAction) -> Result<(), Broken> {
        trace!(self, "owner: {action:?}");
        let store_down = self.store_down_until > self.now;
        if store_down {
            return Ok(());
        }

        let id = self.next_id();

        match action {
            UserAction::SetActive(webhook, active) => return self.set_active(webhook, active),
            UserAction::SetOrdering(webhook, ordering) => {
                let url = format!(
                    "https://receiver-{}.example.com/{}",
                    webhook + 1,
                    id.as_u128()
                );
                self.edit(self.webhooks[webhook], &url, ordering);
                self.cover("an ordering was changed");
            }
            UserAction::SetUrl(webhook) => {
                let webhook = self.webhooks[webhook];
                let Some(found) = self.store.state().webhooks.get(&webhook) else {
                    return Ok(());
                };

                let ordering = found.ordering;
                let url = format!("https://moved.example.com/{}", id.as_u128());
                self.edit(webhook, &url, ordering);
            }
            UserAction::Delete(webhook) => {
                let transaction = self.store.begin();
                transaction.delete_webhook(self.webhooks[webhook]);
                transaction.commit();
                self.cancel_chunk(self.webhooks[webhook]);
                self.cover("a webhook was deleted");
            }
            UserAction::Redeliver(webhook) => self.redeliver(self.webhooks[webhook]),
            UserAction::Recover(webhook) => self.recover(id, self.webhooks[webhook]),
            UserAction::Replay(webhook) => self.replay(id, self.webhooks[webhook]),
        }

        Ok(())
    }

    /// Switches a webhook on or off, and cancels a chunk of what it has pending. Tries again later
    /// if it cannot be switched on yet.
    fn set_active(&mut self, webhook: usize, active: bool) -> Result<(), Broken> {
        let id = self.webhooks[webhook];
        let was_active = self.store.state().is_active(id);
        let transaction = self.store.begin();
        let done = transaction.set_active(id, active);

        transaction.commit();

        match done {
            Switching::Done if active && !was_active => invariants::after_activation(self, id)?,
            Switching::Done | Switching::NotFound => {}
            Switching::Cancelling => {
                self.cover("an activation waited for a cancellation");
                let wait = self.random.millis(1, 200);
                self.after(wait, Event::User(UserAction::SetActive(webhook, true)));
            }
        }

        self.cancel_chunk(id);

        if done == Switching::Done {
            self.cover(if active {
                "a webhook was switched on"
            } else {
                "a webhook was switched off"
            });
        }

        Ok(())
    }

    fn edit(&mut self, webhook: Uuid, url: &str, ordering: Ordering) {
        let transaction = self.store.begin();
        transaction.set_url_and_ordering(webhook, url, ordering);
        transaction.commit();
        self.edited.insert(webhook, self.now);
    }

    fn redeliver(&mut self, webhook: Uuid) {
        let of_webhook = self
            .store
            .state()
            .log
            .iter()
            .filter(|line| line.webhook == webhook);

        let logged: Vec<Uuid> = of_webhook.map(|line| line.delivery).collect();
        if logged.is_empty() {
            return;
        }

        let delivery = *self.random.pick(&logged);
        let transaction = self.store.begin();
        let done = transaction.redeliver(webhook, delivery);

        transaction.commit();

        if let Redelivered::Started(round) = done {
            trace!(
                self,
                "redelivers {:08x}: round {round}",
                delivery.as_u128() & 0xFFFF_FFFF
            );
            self.cover("a delivery was redelivered");
        }
    }

    fn recover(&mut self, id: Uuid, webhook: Uuid) {
        let outcomes = [Outcome::PermanentlyFailed, Outcome::Cancelled]
            .map(|outcome| outcome.as_str().to_owned());
        let criteria = Criteria {
            webhook,
            since: self.began_at - SignedDuration::from_hours(24),
            until: self.store_clock() + SignedDuration::from_hours(2),
            outcomes: outcomes.to_vec(),
            missed: true,
        };

        let transaction = self.store.begin();
        transaction.begin_recovery(id, criteria);
        transaction.commit();
        self.cover("a recovery was started");
    }

    fn replay(&mut self, id: Uuid, webhook: Uuid) {
        let Some(found) = self.store.state().webhooks.get(&webhook) else {
            return;
        };

        let selection = Selection {
            since: self.began_at - SignedDuration::from_hours(24),
            until: self.began_at + SignedDuration::from_hours(24),
            events: found
                .events
                .iter()
                .map(|kind| kind.as_str().to_owned())
                .collect(),
            labels: None,
        };

        let transaction = self.store.begin();
        transaction.begin_replay(id, webhook, selection);
        transaction.commit();
        self.cover("a replay was started");
    }
}
