//! A replica: the product's dispatcher, recording stage and jobs, driven by events. What the
//! product does with tasks and channels is done here with the event loop; every decision is the
//! product's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::mpsc;
use uuid::Uuid;
use walhook::deliver::dispatch::{Dispatch, Start};
use walhook::domain::delivery::{
    Answer as Response, Attempted, Lease, TIME_TO_RECORD, lease_length,
};
use walhook::handoff::{
    CAPACITY, CAPACITY_BYTES, DeliveryBudget, FreshDeliveries, Handoff, Permit, handoff,
};
use walhook::recover::Step;

use super::capture::Capture;
use super::invariants::{self, Broken, Request};
use super::receivers::Exchange;
use super::recorder::Recorder;
use super::store::{Answer, Operation};
use super::world::{Event, Process, World, trace};

/// How long a job's process waits if no job is due.
const JOBS_IDLE: Duration = Duration::from_millis(500);
/// How often deliveries of inactive webhooks are searched for.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);
/// How often stranded deliveries are searched for.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// How long a permit is held after a fault on Walhook's side.
const PAUSE_AFTER_OWN_FAULT: Duration = Duration::from_secs(1);
/// How long a process drains.
const DRAIN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Replica {
    incarnation: u32,
    running: Option<Running>,
    /// While it is paused, it handles nothing.
    pub paused_until: Duration,
    /// How far its monotonic clock is behind, because the machine was suspended.
    pub lag: Duration,
    /// How far its wall clock is wrong.
    pub clock_offset: SignedDuration,
}

/// A running process.
pub struct Running {
    pub dispatch: Dispatch,
    pub handoff: Handoff,
    fresh: mpsc::UnboundedReceiver<FreshDeliveries>,
    /// When the dispatcher's timer fires.
    wake_at: Option<Duration>,
    pub recorder: Recorder,
    pub capture: Capture,
    pub is_storing: bool,
    pub is_draining: bool,
    storing: Option<BoxFuture<'static, walhook::store::Result<()>>>,
    /// Requests in flight.
    pub in_flight: BTreeMap<Uuid, usize>,
    pub retries_in_flight: usize,
    /// Deliveries in memory of which the simulation knows nothing else.
    held_by_others: usize,
}

impl Replica {
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn running(&self, process: Process) -> Option<&Running> {
        self.running
            .as_ref()
            .filter(|_| self.incarnation == process.incarnation)
    }

    pub fn running_mut(&mut self, process: Process) -> Option<&mut Running> {
        self.running
            .as_mut()
            .filter(|_| self.incarnation == process.incarnation)
    }

    pub fn keep_future(&mut self, future: BoxFuture<'static, walhook::store::Result<()>>) {
        if let Some(running) = &mut self.running {
            running.storing = Some(future);
        }
    }

    pub fn take_future(&mut self) -> Option<BoxFuture<'static, walhook::store::Result<()>>> {
        self.running.as_mut()?.storing.take()
    }

    /// Its monotonic clock.
    pub fn local(&self, world: &World) -> Instant {
        world.origin + world.now.saturating_sub(self.lag)
    }

    /// The process that runs on it.
    pub fn process(&self, replica: usize) -> Option<Process> {
        self.running.as_ref().map(|_| Process {
            replica,
            incarnation: self.incarnation,
        })
    }

    pub fn current(&self) -> Option<&Running> {
        self.running.as_ref()
    }
}

impl Running {
    /// Whether it holds no delivery and has nothing to record or store.
    pub fn is_idle(&self) -> bool {
        self.held() == 0 && self.recorder.is_idle() && !self.is_storing
    }

    /// How many deliveries it holds.
    pub fn held(&self) -> usize {
        CAPACITY - self.handoff.budget.counters().free() - self.held_by_others
    }
}

/// Uses up the budget except for this many bytes. What uses it is a webhook whose receiver is
/// responsive.
fn leave_free(budget: &DeliveryBudget, free: usize) {
    let other = Uuid::max();
    assert!(budget.reserve(other, 0));

    let mut counters = budget.counters();
    counters.start(other, Permit::Fresh);
    counters.finish(other, 0, Some(Duration::ZERO), Permit::Fresh);
    drop(counters);
    assert!(
        budget.reserve(other, CAPACITY_BYTES - free),
        "a single delivery may use all of it"
    );
}

impl World {
    /// The monotonic clock of a replica.
    pub fn local(&self, process: Process) -> Instant {
        self.replicas[process.replica].local(self)
    }

    /// The virtual time at which a replica's clock shows this instant, if it is not suspended
    /// before.
    pub fn global(&self, process: Process, local: Instant) -> Duration {
        local.saturating_duration_since(self.origin) + self.replicas[process.replica].lag
    }

    pub fn running(&mut self, process: Process) -> &mut Running {
        self.replicas[process.replica]
            .running_mut(process)
            .expect("events of ended processes are dropped")
    }

    pub fn start(&mut self, replica: usize) {
        if self.replicas[replica].is_running() {
            return;
        }

        trace!(self, "replica {replica}: starts");
        let local = self.replicas[replica].local(self);
        let (handoff, fresh) = handoff();
        let held_by_others = usize::from(self.plan.free_bytes.is_some());

        self.plan
            .free_bytes
            .into_iter()
            .for_each(|free| leave_free(&handoff.budget, free));
        let settings = &self.settings;
        let vault = self.vault.clone();

        let running = Running {
            dispatch: Dispatch::new(settings, vault, handoff.budget.clone(), local),
            handoff,
            fresh,
            wake_at: None,
            recorder: Recorder::default(),
            capture: Capture::default(),
            is_storing: false,
            is_draining: false,
            storing: None,
            in_flight: BTreeMap::new(),
            retries_in_flight: 0,
            held_by_others,
        };

        let slot = &mut self.replicas[replica];
        slot.incarnation += 1;
        slot.running = Some(running);
        slot.paused_until = Duration::ZERO;

        let process = Process {
            replica,
            incarnation: slot.incarnation,
        };

        let cancel = Event::Cancel(process);
        for event in [
            Event::Job(process),
            cancel,
            Event::Search(process),
            Event::Capture(process),
        ] {
            let wait = self.random.millis(0, 400);
            self.after(wait, event);
        }

        self.pump(process);
    }

    /// Ends a process at once.
    pub fn crash(&mut self, replica: usize) {
        let slot = &mut self.replicas[replica];
        if slot.running.take().is_none() {
            return;
        }

        trace!(self, "replica {replica}: ends");

        // What it has sent to the store last may not have arrived.
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.process.replica == replica)
            && self.random.chance(0.5)
        {
            self.open = None;
            self.cover("a process ended before its commit");
        }
    }

    /// Starts no more attempts, releases what waits, and ends when the requests in flight have
    /// ended, or after the drain time.
    pub fn drain(&mut self, replica: usize) {
        let process = Process {
            replica,
            incarnation: self.replicas[replica].incarnation,
        };

        let Some(running) = self.replicas[replica]
            .running_mut(process)
            .filter(|running| !running.is_draining)
        else {
            return;
        };

        running.is_draining = true;
        let mut waiting = running.dispatch.drain();

        running.fresh.close();

        while let Ok(fresh) = running.fresh.try_recv() {
            waiting.extend(fresh.deliveries);
        }

        trace!(
            self,
            "replica {replica}: drains {} deliveries",
            waiting.len()
        );
        self.cover("a process was drained");
        self.submit(process, Operation::Release(waiting));
        self.after(DRAIN, Event::Drained(process));
    }

    /// Takes what was handed off. Returns the webhooks of these deliveries, with their activations.
    pub fn take_fresh(&mut self, process: Process) -> Vec<(Uuid, i32)> {
        let local = self.local(process);
        let Some(running) = self.replicas[process.replica].running_mut(process) else {
            return Vec::new();
        };

        let mut handed_off = Vec::new();

        while let Ok(fresh) = running.fresh.try_recv() {
            handed_off.extend(
                fresh
                    .deliveries
                    .iter()
                    .map(|delivery| (delivery.webhook, delivery.activation)),
            );
            running.dispatch.take(fresh, local);
        }

        if !handed_off.is_empty() {
            self.cover("deliveries were handed off");
            let wait = self.random.micros(1, 50);
            self.wake_after(process, wait);
        }

        handed_off
    }

    /// Sets the dispatcher's timer, unless it fires earlier.
    fn wake_after(&mut self, process: Process, wait: Duration) {
        let at = self.now + wait;
        let running = self.running(process);
        if running.wake_at.is_none_or(|wake_at| at < wake_at) {
            running.wake_at = Some(at);
            self.at(at, Event::Wake(process));
        }
    }

    pub fn wake(&mut self, process: Process) -> Result<(), Broken> {
        let now = self.now;
        let running = self.running(process);
        if running.wake_at.is_none_or(|wake_at| wake_at > now) {
            return Ok(());
        }

        running.wake_at = None;
        self.dispatch(process)
    }

    /// Lets the dispatcher decide soon.
    pub fn pump(&mut self, process: Process) {
        self.wake_after(process, Duration::ZERO);
    }

    /// One iteration of the dispatcher's loop.
    fn dispatch(&mut self, process: Process) -> Result<(), Broken> {
        if self.running(process).is_draining {
            return Ok(());
        }

        let local = self.local(process);
        while let Some(start) = self.running(process).dispatch.next_start(local) {
            self.attempt(process, start)?;
        }

        let expiring = self.running(process).dispatch.take_expiring();
        if !expiring.is_empty() {
            self.cover("deliveries waited for too long");
            self.submit(process, Operation::Release(expiring));
        }

        if let Some(webhooks) = self.running(process).dispatch.next_read(local) {
            self.submit(process, Operation::Targets(webhooks, local));
        }

        if let Some(mut request) = self.running(process).dispatch.next_claim(local) {
            request.max_webhooks = request.max_webhooks.min(self.plan.claims.webhooks);
            request.max_rows = request.max_rows.min(self.plan.claims.rows);
            let lease = Lease {
                token: self.next_id(),
                until: local + lease_length(request.timeout),
            };

            self.submit(process, Operation::Claim(request, lease));
        }

        let wake_at = self.running(process).dispatch.wake_at(local);

        // Timers are no more precise.
        let wait = self
            .global(process, wake_at)
            .saturating_sub(self.now)
            .max(Duration::from_millis(1));
        self.wake_after(process, wait);

        Ok(())
    }

    /// Starts an attempt.
    fn attempt(&mut self, process: Process, start: Start) -> Result<(), Broken> {
        let timeout = self.settings.timeout;
        let local = self.local(process);
        let delivery = &start.delivery;
        let is_sent = start.destination.active;
        let reaction = self.receivers[&delivery.webhook].react(&mut self.random, timeout);
        let is_active = is_sent;
        let is_too_large = is_sent && self.random.chance(self.plan.too_large);
        let is_sent = is_sent && !is_too_large;
        let is_own_fault = is_sent && self.random.chance(self.plan.own_faults);
        let is_late = delivery.lease.until < local + timeout + TIME_TO_RECORD;

        let request = Request {
            at: self.now,
            delivery: delivery.id,
            webhook: delivery.webhook,
            order_key: delivery.order_key,
            sequence: delivery.sequence,
            round: delivery.round,
            attempt: delivery.attempt,
            is_accepted: is_sent && !is_own_fault && reaction.is_accepted,
            lease: delivery.lease.token,
            is_late,
            url: start.destination.endpoint.url(),
            activation: start.destination.activation,
        };

        let id = delivery.id.as_u128() & 0xFFFF_FFFF;
        let webhook = delivery.webhook;
        let round = delivery.round;
        let attempt = delivery.attempt;
        let answer = match (is_active, is_too_large) {
            (false, _) => Response::Inactive,
            (true, true) => Response::TooLarge { bytes: 70_000 },
            (true, false) => reaction.answer,
        };

        let retry_after = reaction.retry_after;
        trace!(
            self,
            "replica {}: sends {id:08x} to webhook {}, round {round} attempt {attempt}: {answer:?} after {:?}",
            process.replica,
            webhook.as_u128(),
            reaction.after
        );

        let running = self.running(process);
        *running.in_flight.entry(webhook).or_default() += 1;
        running.retries_in_flight += usize::from(attempt > 1);

        if is_sent && !is_own_fault {
            invariants::before_request(self, process, &request)?;
            self.requests.push(request);
        }

        let after = match (is_sent, is_own_fault) {
            (_, true) => PAUSE_AFTER_OWN_FAULT,
            (false, _) => Duration::ZERO,
            (true, false) => reaction.after,
        };

        let offset = self.replicas[process.replica].clock_offset;
        let started_at = self.time() + offset;

        let exchange = Exchange {
            start,
            answer,
            retry_after,
            started_at,
            sent_at: local,
            is_sent,
            is_own_fault,
        };

        self.after(after, Event::Ended(process, Box::new(exchange)));
        Ok(())
    }

    /// A request has ended.
    pub fn ended(&mut self, process: Process, exchange: Exchange) -> Result<(), Broken> {
        let local = self.local(process);
        let took = local.saturating_duration_since(exchange.sent_at);
        let attempt = exchange.attempt(took);

        let Exchange {
            start:
                Start {
                    delivery,
                    mut finished,
                    ..
                },
            ..
        } = exchange;

        let running = self.running(process);
        if let Some(count) = running.in_flight.get_mut(&delivery.webhook) {
            *count -= 1;
        }

        running.retries_in_flight -= usize::from(delivery.attempt > 1);

        match attempt {
            Some(attempt) => {
                finished.note(&attempt);
                running.dispatch.finish(finished, local);
                running
                    .recorder
                    .arrived
                    .push_back(Attempted { delivery, attempt });
                self.record(process);
            }
            None => running.dispatch.finish(finished, local),
        }

        self.pump(process);
        Ok(())
    }

    /// An answer of the store has arrived.
    pub fn answered(&mut self, process: Process, answer: Answer) -> Result<(), Broken> {
        let local = self.local(process);

        match answer {
            Answer::Claimed(request, None) => {
                self.running(process).dispatch.claim_failed(&request, local)
            }
            Answer::Claimed(request, Some(claimed)) => {
                let running = self.running(process);
                if running.is_draining {
                    self.submit(process, Operation::Release(claimed.deliveries));
                    return Ok(());
                }

                let left = running.dispatch.claimed(&request, claimed, local);
                if !left.orphans.is_empty() {
                    self.submit(process, Operation::RemoveOrphans(left.orphans));
                }

                if !left.refused.is_empty() {
                    self.cover("claimed deliveries exceeded the budget");
                    self.submit(process, Operation::Release(left.refused));
                }
            }
            Answer::Targets(_, _, None) => self.running(process).dispatch.read_failed(local),
            Answer::Targets(webhooks, queried_at, Some(found)) => {
                self.running(process)
                    .dispatch
                    .read(&webhooks, queried_at, found, local);
            }
            Answer::Recorded(recorded) => self.recorded(process, recorded),
            Answer::Job(step) => {
                let wait = if matches!(step, None | Some(Step::Idle)) {
                    JOBS_IDLE
                } else {
                    Duration::ZERO
                };
                self.after(wait, Event::Job(process));
            }
            Answer::Cancelled(deliveries) => {
                let wait = if deliveries == 0 {
                    CANCEL_INTERVAL
                } else {
                    Duration::ZERO
                };
                self.after(wait, Event::Cancel(process));
            }
            Answer::Search => self.after(SEARCH_INTERVAL, Event::Search(process)),
            Answer::Opened(opened) => self.opened(process, opened),
            Answer::Stored(checkpoint) => self.stored(process, checkpoint),
            Answer::Nothing => {}
        }

        self.pump(process);
        Ok(())
    }
}
