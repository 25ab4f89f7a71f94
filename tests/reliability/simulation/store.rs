//! Requests to the store: they take time, and requests and answers can be lost. A transaction runs
//! at one moment, by the product's own code on the store in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use uuid::Uuid;
use walhook::domain::delivery::{Delivery, Lease, lease_length};
use walhook::domain::disablement::CountedFailures;
use walhook::domain::webhook::SealedTarget;
use walhook::postgres::ANSWER_TIMEOUT;
use walhook::record::{Decided, Recorded, record_in};
use walhook::recover::{Step, Turns, step_in};
use walhook::store::deliver::{ClaimRequest, Claimed};
use walhook::store::order::PromotionLease;
use walhook::store::record::CompletedAttempt;

use super::invariants::{self, Broken};
use super::world::{Delays, Event, Process, World, trace};
use crate::support::memory::Row;

/// The most deliveries that one transaction cancels: so few that a backlog takes several.
const CHUNK: usize = 2;

/// A request to the store.
pub enum Operation {
    Claim(ClaimRequest, Lease),
    Targets(Vec<Uuid>, Instant),
    Release(Vec<Delivery>),
    RemoveOrphans(Vec<Uuid>),
    Record(RecordBatch),
    Job,
    /// Cancels a chunk of what inactive or deleted webhooks have pending.
    Cancel,
    Search,
    /// Reads the checkpoint and begins the transaction that stores the next events.
    Begin {
        known: Option<u64>,
    },
}

/// The transaction that records a batch.
#[derive(Clone)]
pub struct RecordBatch {
    pub batch: Arc<Vec<Decided>>,
    pub lease: Option<PromotionLease>,
}

/// What reaches the process.
pub enum Answer {
    Claimed(ClaimRequest, Option<Claimed>),
    Targets(Vec<Uuid>, Instant, Option<Vec<SealedTarget>>),
    Recorded(Option<Recorded>),
    Job(Option<Step>),
    /// How many deliveries were cancelled.
    Cancelled(usize),
    Search,
    /// The transaction that stores events is open, or the checkpoint is elsewhere, or the store
    /// does not answer.
    Opened(Opened),
    /// How the transaction that stores events has ended: the new checkpoint. None if that is
    /// unknown.
    Stored(Option<u64>),
    Nothing,
}

pub enum Opened {
    /// It is under way.
    Open,
    /// Everything is stored.
    Nothing,
    /// Another process has advanced the checkpoint.
    Superseded,
    Failed,
}

impl Operation {
    fn name(&self) -> &'static str {
        match self {
            Operation::Claim(..) => "claim",
            Operation::Targets(..) => "targets",
            Operation::Release(_) => "release",
            Operation::RemoveOrphans(_) => "remove orphans",
            Operation::Record(_) => "record",
            Operation::Job => "job",
            Operation::Cancel => "cancel",
            Operation::Search => "search",
            Operation::Begin { .. } => "begin",
        }
    }

    /// What the process gets if the request fails.
    fn failed(self) -> Answer {
        match self {
            Operation::Claim(request, _) => Answer::Claimed(request, None),
            Operation::Targets(webhooks, queried_at) => Answer::Targets(webhooks, queried_at, None),
            Operation::Record(_) => Answer::Recorded(None),
            Operation::Job => Answer::Job(None),
            Operation::Cancel => Answer::Cancelled(0),
            Operation::Search => Answer::Search,
            Operation::Begin { .. } => Answer::Opened(Opened::Failed),
            Operation::Release(_) | Operation::RemoveOrphans(_) => Answer::Nothing,
        }
    }
}

impl World {
    /// Draws how long a message between a process and the store takes.
    fn latency(&mut self) -> Duration {
        match self.random.chance(self.plan.slow_store) {
            true => self.random.millis(20, 1_500),
            false => self.random.micros(200, 3_000),
        }
    }

    /// Sends a request to the store.
    pub fn submit(&mut self, process: Process, operation: Operation) {
        let there = self.latency();
        let back = self.latency();
        let lost_request = self.plan.lost_requests;
        let lost_answer = self.plan.lost_answers;

        if self.store_down_until > self.now || self.random.chance(lost_request) {
            trace!(
                self,
                "replica {}: the store does not answer to {}",
                process.replica,
                operation.name()
            );

            self.cover("a request to the store was lost");
            return self.after(
                there + back,
                Event::Answered(process, Box::new(operation.failed())),
            );
        }

        let is_answer_lost = self.random.chance(lost_answer);
        self.after(
            there,
            Event::Execute(
                process,
                Box::new(operation),
                Delays {
                    back,
                    is_answer_lost,
                },
            ),
        );
    }

    /// Sends the store's answer, or the news that the connection broke.
    pub fn answer(&mut self, process: Process, answer: Answer, failed: Answer, delays: Delays) {
        let answer = if delays.is_answer_lost {
            failed
        } else {
            answer
        };

        if delays.is_answer_lost {
            trace!(self, "replica {}: the answer is lost", process.replica);
            self.cover("an answer of the store was lost");
        }

        // A silent connection is noticed only when the time limit is exceeded.
        let is_silent = delays.is_answer_lost && self.random.chance(0.1);
        let wait = if is_silent {
            self.random.millis(5_000, ANSWER_TIMEOUT.as_millis() as u64)
        } else {
            delays.back
        };

        self.after(wait, Event::Answered(process, Box::new(answer)));
    }

    pub fn execute(
        &mut self,
        process: Process,
        operation: Operation,
        delays: Delays,
    ) -> Result<(), Broken> {
        let (answer, failed) = match operation {
            Operation::Claim(request, lease) => {
                let claimed = self.execute_claim(process, &request, lease);
                (
                    Answer::Claimed(request.clone(), Some(claimed)),
                    Answer::Claimed(request, None),
                )
            }
            Operation::Targets(webhooks, queried_at) => {
                let found = self.store.begin().targets(&webhooks);
                (
                    Answer::Targets(webhooks.clone(), queried_at, Some(found)),
                    Answer::Targets(webhooks, queried_at, None),
                )
            }
            Operation::Release(deliveries) => {
                trace!(
                    self,
                    "replica {}: releases {} leases",
                    process.replica,
                    deliveries.len()
                );

                let transaction = self.store.begin();
                transaction.release(&deliveries);
                transaction.commit();

                (Answer::Nothing, Answer::Nothing)
            }
            Operation::RemoveOrphans(deliveries) => {
                let transaction = self.store.begin();
                transaction.remove_orphans(&deliveries);
                transaction.commit();
                (Answer::Nothing, Answer::Nothing)
            }
            Operation::Record(batch) => {
                (self.execute_record(process, batch)?, Answer::Recorded(None))
            }
            // It waits for the numbers of the webhooks.
            Operation::Job if self.open.is_some() => {
                let wait = self.random.micros(100, 1_000);
                self.after(
                    wait,
                    Event::Execute(process, Box::new(Operation::Job), delays),
                );
                return Ok(());
            }
            Operation::Job => (self.execute_job(process), Answer::Job(None)),
            Operation::Cancel => (self.execute_cancel(process), Answer::Cancelled(0)),
            Operation::Search => (self.execute_search()?, Answer::Search),
            Operation::Begin { known } => return self.begin_events(process, known, delays),
        };

        self.answer(process, answer, failed, delays);
        Ok(())
    }

    fn execute_claim(&mut self, process: Process, request: &ClaimRequest, lease: Lease) -> Claimed {
        let transaction = self.store.begin();
        let claimed = transaction.claim(request, lease, lease_length(request.timeout));

        transaction.commit();

        if !claimed.deliveries.is_empty() {
            let count = claimed.deliveries.len();
            trace!(
                self,
                "replica {}: claims {count} deliveries, {:?}", process.replica, request.class
            );
            self.cover("deliveries were claimed");
        }

        if claimed.last_visited.is_some() {
            self.cover("a claim visited a part of the webhooks");
        }

        claimed
    }

    fn execute_record(&mut self, process: Process, record: RecordBatch) -> Result<Answer, Broken> {
        let attempts: Vec<CompletedAttempt<'_>> = record
            .batch
            .iter()
            .map(|decided| decided.completed(true))
            .collect();
        let transaction = self.store.begin();
        let recorded = record_in(&transaction, &attempts, &self.policy, record.lease);
        let recorded = recorded
            .now_or_never()
            .expect("the store in memory answers at once")
            .expect("nothing fails");

        transaction.commit();

        for (decided, counted) in record.batch.iter().zip(&recorded.counted) {
            let delivery = &decided.attempted.delivery;
            let outcome = decided.next.outcome();
            let id = delivery.id.as_u128() & 0xFFFF_FFFF;

            trace!(
                self,
                "replica {}: records {id:08x} round {} attempt {}: {outcome:?}{}",
                process.replica,
                delivery.round,
                delivery.attempt,
                if *counted { "" } else { ", not counted" }
            );

            self.cover(if *counted {
                "an attempt counted"
            } else {
                "an attempt was fenced off"
            });
        }

        for disabled in &recorded.disabled {
            trace!(
                self,
                "webhook {} is disabled: {}",
                disabled.webhook.as_u128(),
                disabled.reason
            );

            self.cover("a webhook was disabled");

            if matches!(self.policy.counted, CountedFailures::Consecutive { min_duration } if !min_duration.is_zero())
            {
                self.cover("a webhook was disabled under a policy with a minimum duration");
            }
        }

        if !recorded.promoted.is_empty() {
            self.cover("deliveries were promoted");
        }

        invariants::after_recording(self, &record.batch, &recorded)?;

        for _ in 0..invariants::waiting_for_the_minimum_duration(self, &record.batch, &recorded) {
            self.cover("a failing webhook stayed active for the minimum duration");
        }

        for is_asked in record.batch.iter().filter_map(invariants::is_postponed) {
            self.cover(if is_asked {
                "a receiver postponed a retry"
            } else {
                "jitter postponed a retry"
            });
        }

        Ok(Answer::Recorded(Some(recorded)))
    }

    fn execute_job(&mut self, process: Process) -> Answer {
        let transaction = self.store.begin();
        let step = step_in(&transaction, &mut Turns::default())
            .now_or_never()
            .expect("the store in memory answers at once");
        let step = step.expect("nothing fails");

        transaction.commit();

        if step != Step::Idle {
            trace!(
                self,
                "replica {}: runs a step of a job: {step:?}", process.replica
            );
            self.cover("a step of a job ran");
        }

        Answer::Job(Some(step))
    }

    /// Each chunk is a transaction: what happens between two chunks happens while a part of the
    /// backlog is pending.
    fn execute_cancel(&mut self, process: Process) -> Answer {
        let webhooks = self.store.begin().cancellable();
        let mut cancelled = 0;

        for webhook in webhooks {
            cancelled += self.cancel_chunk(webhook);
        }

        if cancelled > 0 {
            trace!(
                self,
                "replica {}: cancels {cancelled} deliveries", process.replica
            );
        }

        Answer::Cancelled(cancelled)
    }

    /// Cancels a chunk of what a webhook has pending, if it is inactive or was deleted. Returns how
    /// many deliveries.
    pub fn cancel_chunk(&mut self, webhook: Uuid) -> usize {
        let transaction = self.store.begin();
        let cancelled = transaction.cancel_pending(webhook, CHUNK);

        transaction.commit();
        let is_pending = |row: &Row| row.webhook == webhook;
        if cancelled > 0 && self.store.state().deliveries.values().any(is_pending) {
            self.cover("a chunk left deliveries of an inactive webhook pending");
        }

        cancelled
    }

    fn execute_search(&mut self) -> Result<Answer, Broken> {
        let transaction = self.store.begin();
        let stranded = transaction.promote_stranded();

        transaction.commit();
        invariants::nothing_waits_for_nothing(stranded)?;
        Ok(Answer::Search)
    }
}
