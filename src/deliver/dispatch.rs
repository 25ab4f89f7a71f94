//! The dispatcher's decisions: which attempts start, which webhooks are read before, and when to
//! claim. No I/O: the caller passes the time, and does what is decided.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::schedule::{Finished, Limits, Schedule};
use super::settings::Settings;
use super::targets::{Destination, Lookup, Targets};
use crate::domain::delivery::{Attempt, Delivery, TIME_TO_RECORD};
use crate::domain::webhook::SealedTarget;
use crate::handoff::{DeliveryBudget, FreshDeliveries, Speed};
use crate::store::delivery::{ClaimRequest, Claimed};
use crate::vault::Vault;

/// The wait before webhooks are read again while the store does not answer.
const READ_RETRY: Duration = Duration::from_millis(250);

/// An attempt that starts now. It has a permit until [`Dispatch::finish`] gets `finished`.
pub struct Start {
    pub delivery: Delivery,
    pub destination: Arc<Destination>,
    pub finished: Finished,
}

impl Finished {
    /// Notes how the attempt ended.
    pub fn note(&mut self, attempt: &Attempt) {
        self.took = attempt.sent.as_ref().map(|sent| sent.duration);
        self.feedback = attempt.answer.feedback();
    }
}

/// What a claim has leased and cannot be dispatched.
pub struct Leftover {
    /// Deliveries that the budget does not admit. The caller releases their leases.
    pub refused: Vec<Delivery>,
    /// Deliveries whose event no longer exists. The caller removes them.
    pub orphans: Vec<Uuid>,
}

/// The deliveries of this process on their way from the hand-off or a claim to their attempts.
pub struct Dispatch {
    schedule: Schedule,
    targets: Targets,
    /// How long a request may take.
    timeout: Duration,
    /// Deliveries whose webhooks the next query reads.
    unread: Vec<(Delivery, Finished)>,
    /// Deliveries whose webhooks the current query reads.
    reading: Vec<(Delivery, Finished)>,
    is_reading: bool,
    retry_read_at: Option<Instant>,
    /// Attempts whose webhooks were read.
    ready: VecDeque<Start>,
    /// Deliveries that have waited too long: too little of their leases is left.
    expiring: Vec<Delivery>,
}

impl Dispatch {
    pub fn new(
        settings: &Settings,
        vault: Arc<Vault>,
        budget: DeliveryBudget,
        now: Instant,
    ) -> Dispatch {
        let limits = Limits {
            total: settings.concurrency,
            per_webhook: settings.per_webhook_concurrency,
            adaptive: settings.adaptive_concurrency,
        };

        Dispatch {
            schedule: Schedule::new(
                limits,
                settings.retries_per_second,
                settings.timeout,
                budget,
                now,
            ),
            targets: Targets::new(vault, settings.guard.clone()),
            timeout: settings.timeout,
            unread: Vec::new(),
            reading: Vec::new(),
            is_reading: false,
            retry_read_at: None,
            ready: VecDeque::new(),
            expiring: Vec::new(),
        }
    }

    /// Takes deliveries from the hand-off. Usually their webhooks were read so recently that they
    /// need not be read again.
    pub fn take(&mut self, fresh: FreshDeliveries, now: Instant) {
        if !fresh.targets.is_empty() {
            self.targets
                .store_handed_off(fresh.read_at, fresh.targets, now);
            self.start_known(now);
        }

        self.schedule.add_fresh(fresh.deliveries, now);
    }

    /// Starts deliveries that wait for the next query although their webhooks were read meanwhile.
    fn start_known(&mut self, now: Instant) {
        for (delivery, finished) in std::mem::take(&mut self.unread) {
            match self.targets.recent(delivery.webhook, now) {
                Some(lookup) => self.start(delivery, finished, lookup, now),
                None => self.unread.push((delivery, finished)),
            }
        }
    }

    /// Returns the permit of an attempt that has ended.
    pub fn finish(&mut self, finished: Finished, now: Instant) {
        self.schedule.finish(finished, now);
    }

    /// Returns the next attempt to start, if there is a permit. Deliveries whose webhook was not
    /// read recently first wait until it is read.
    pub fn next_start(&mut self, now: Instant) -> Option<Start> {
        loop {
            if let Some(start) = self.ready.pop_front() {
                // Checked again: the process may have been suspended since the attempt became
                // ready.
                if !self.is_lease_too_short(&start.delivery, now) {
                    return Some(start);
                }

                self.give_up(start.delivery, start.finished, now);
                continue;
            }

            let delivery = self.schedule.next(now)?;
            let webhook = delivery.webhook;
            let finished = Finished::of(&delivery);

            match self.targets.recent(webhook, now) {
                Some(lookup) => self.start(delivery, finished, lookup, now),
                None if self.is_lease_too_short(&delivery, now) => {
                    self.give_up(delivery, finished, now)
                }
                None => self.unread.push((delivery, finished)),
            }
        }
    }

    /// Whether the lease might end before the answer is recorded. Such a delivery is not started.
    fn is_lease_too_short(&self, delivery: &Delivery, now: Instant) -> bool {
        delivery.lease.until < now + self.timeout + TIME_TO_RECORD
    }

    fn give_up(&mut self, delivery: Delivery, finished: Finished, now: Instant) {
        self.finish(finished, now);

        // Those of slow webhooks are claimed again when their leases end: before, they would only
        // wait here again.
        if self.schedule.speed(delivery.webhook) < Speed::Slow {
            self.expiring.push(delivery);
        }
    }

    /// Removes and returns the deliveries that were not started because too little of their leases
    /// was left. The caller releases the leases, so that the deliveries are claimed again before
    /// the leases end.
    pub fn take_expiring(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.expiring)
    }

    fn start(&mut self, delivery: Delivery, mut finished: Finished, lookup: Lookup, now: Instant) {
        let destination = match lookup {
            Lookup::Found(destination) if !self.is_lease_too_short(&delivery, now) => destination,
            Lookup::Found(_) => return self.give_up(delivery, finished, now),
            Lookup::Deleted | Lookup::Unreadable => return self.finish(finished, now),
        };

        // The webhook was switched off and on since: this delivery was cancelled. If it was stored
        // in between, it is claimed again when its lease ends.
        if delivery.activation != destination.activation {
            return self.finish(finished, now);
        }

        finished.request = Some(
            self.schedule
                .start_request(delivery.webhook, finished.class, now),
        );
        self.ready.push_back(Start {
            delivery,
            destination,
            finished,
        });
    }

    /// Returns the webhooks to read for all waiting deliveries, one query at a time. The caller
    /// must pass the result to [`read`](Self::read) or [`read_failed`](Self::read_failed).
    pub fn next_read(&mut self, now: Instant) -> Option<Vec<Uuid>> {
        if self.is_reading
            || self.unread.is_empty()
            || self.retry_read_at.is_some_and(|retry_at| now < retry_at)
        {
            return None;
        }

        self.retry_read_at = None;
        self.is_reading = true;
        self.reading = std::mem::take(&mut self.unread);

        let mut webhooks: Vec<Uuid> = self
            .reading
            .iter()
            .map(|(delivery, _)| delivery.webhook)
            .collect();
        webhooks.sort_unstable();
        webhooks.dedup();

        Some(webhooks)
    }

    /// Takes the result of a query for `webhooks` that was sent at `queried_at`. Drops the
    /// deliveries of those that no longer exist, which are being cancelled.
    pub fn read(
        &mut self,
        webhooks: &[Uuid],
        queried_at: Instant,
        found: Vec<SealedTarget>,
        now: Instant,
    ) {
        self.is_reading = false;
        self.targets.store_read(queried_at, webhooks, found, now);

        for (delivery, finished) in std::mem::take(&mut self.reading) {
            let lookup = self.targets.last_read(delivery.webhook);
            self.start(delivery, finished, lookup, now);
        }

        self.start_known(now);
    }

    pub fn read_failed(&mut self, now: Instant) {
        self.is_reading = false;
        self.retry_read_at = Some(now + READ_RETRY);
        self.unread.append(&mut self.reading);
    }

    /// Returns the next claim, if one is due. The caller must pass its result to
    /// [`claimed`](Self::claimed) or [`claim_failed`](Self::claim_failed).
    pub fn next_claim(&mut self, now: Instant) -> Option<ClaimRequest> {
        self.schedule.next_claim(now)
    }

    pub fn claimed(
        &mut self,
        request: &ClaimRequest,
        mut claimed: Claimed,
        now: Instant,
    ) -> Leftover {
        let refused = self.schedule.claimed(request, &mut claimed, now);
        Leftover {
            refused,
            orphans: claimed.orphans,
        }
    }

    pub fn claim_failed(&mut self, request: &ClaimRequest, now: Instant) {
        self.schedule.claim_failed(request, now);
    }

    /// When to ask for starts, reads and claims again if nothing happens before.
    pub fn wake_at(&self, now: Instant) -> Instant {
        let wake_at = self.schedule.wake_at(now);
        self.retry_read_at
            .map_or(wake_at, |retry_at| retry_at.min(wake_at))
    }

    /// Removes and returns all deliveries that wait. No attempt of them starts.
    pub fn drain(&mut self) -> Vec<Delivery> {
        let mut waiting = self.schedule.drain();
        waiting.extend(
            self.unread
                .drain(..)
                .chain(self.reading.drain(..))
                .map(|(delivery, _)| delivery),
        );

        waiting.extend(self.ready.drain(..).map(|start| start.delivery));
        waiting.append(&mut self.expiring);

        waiting
    }

    pub fn in_flight(&self) -> usize {
        self.schedule.in_flight()
    }

    /// Returns how many webhooks get fewer requests at once because their receivers are overloaded.
    pub fn limited(&self) -> usize {
        self.schedule.limited()
    }
}
