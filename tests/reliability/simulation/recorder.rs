//! The recording stage of a replica. Batches, decisions and waits are the product's; so is the
//! transaction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use walhook::domain::delivery::{Attempted, Lease, lease_length};
use walhook::record::{Batching, Decided, MAX_BATCH, RETRIES, Recorded};
use walhook::retry::Backoff;
use walhook::store::order::PromotionLease;

use super::store::{Operation, RecordBatch};
use super::world::{Event, Process, World};

#[derive(Default)]
pub struct Recorder {
    /// Finished attempts that are in no batch yet.
    pub arrived: VecDeque<Attempted>,
    batching: Batching,
    state: Doing,
    /// When the timer fires.
    timer_at: Option<Duration>,
}

#[derive(Default)]
enum Doing {
    #[default]
    Waiting,
    /// Collects a batch until this time.
    Collecting(Vec<Attempted>, Duration),
    Saving(Arc<Vec<Decided>>, Backoff),
    /// Waits before the batch is saved again.
    Retrying(Arc<Vec<Decided>>, Backoff, Duration),
}

impl Recorder {
    pub fn is_idle(&self) -> bool {
        let keeps_none = self.batching.next_retry_at().is_none();
        self.arrived.is_empty() && keeps_none && matches!(self.state, Doing::Waiting)
    }
}

impl World {
    fn set_timer(&mut self, process: Process, at: Duration) {
        let recorder = &mut self.running(process).recorder;
        if recorder.timer_at.is_none_or(|timer_at| at < timer_at) {
            recorder.timer_at = Some(at);
            self.at(at, Event::Record(process));
        }
    }

    /// Does what is due.
    pub fn record(&mut self, process: Process) {
        let now = self.now;
        let local = self.local(process);
        let recorder = &mut self.running(process).recorder;

        recorder.timer_at = recorder.timer_at.filter(|timer_at| *timer_at > now);

        match std::mem::take(&mut recorder.state) {
            Doing::Waiting => {
                let retry_at = recorder.batching.next_retry_at();
                if recorder.arrived.is_empty() && retry_at.is_none_or(|retry_at| retry_at > local) {
                    if let Some(retry_at) = retry_at {
                        let at = self.global(process, retry_at);
                        self.set_timer(process, at.max(now + Duration::from_micros(1)));
                    }

                    return;
                }

                let capacity = recorder.batching.capacity().min(recorder.arrived.len());
                let fresh: Vec<Attempted> = recorder.arrived.drain(..capacity).collect();
                let until = now
                    + recorder
                        .batching
                        .collection_time(&fresh)
                        .unwrap_or_default();

                recorder.state = Doing::Collecting(fresh, until);

                if until > now {
                    self.set_timer(process, until);
                } else {
                    self.record(process);
                }
            }
            Doing::Collecting(mut fresh, until) if until <= now => {
                let missing = recorder
                    .batching
                    .capacity()
                    .saturating_sub(fresh.len())
                    .min(recorder.arrived.len());
                fresh.extend(recorder.arrived.drain(..missing));
                self.save(process, fresh);
            }
            Doing::Retrying(batch, backoff, at) if at <= now => {
                recorder.state = Doing::Saving(Arc::clone(&batch), backoff);
                self.send(process, RecordBatch { batch, lease: None });
            }
            state => {
                let at = match &state {
                    Doing::Collecting(_, at) | Doing::Retrying(_, _, at) => Some(*at),
                    Doing::Waiting | Doing::Saving(..) => None,
                };

                recorder.state = state;
                at.into_iter().for_each(|at| self.set_timer(process, at));
            }
        }
    }

    fn save(&mut self, process: Process, fresh: Vec<Attempted>) {
        let local = self.local(process);
        let mut batch = self.running(process).recorder.batching.take_due(local);

        for attempted in fresh {
            let millis = u64::try_from(attempted.attempt.started_at.as_millisecond()).unwrap_or(0);
            let tail = self.next_id().as_u128() as u64;
            let mut bytes = [0; 10];

            bytes[2..].copy_from_slice(&tail.to_be_bytes());
            let id = uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid();
            let random = self.random.share();

            batch.push(Decided::with(
                id,
                attempted,
                &self.schedule,
                || random,
                local,
            ));
        }

        assert!(batch.len() <= MAX_BATCH, "a batch is bounded");
        let batch = Arc::new(batch);
        self.running(process).recorder.state = Doing::Saving(Arc::clone(&batch), RETRIES);
        self.send(process, RecordBatch { batch, lease: None });
    }

    /// Sends the transaction, with a lease for what it promotes.
    fn send(&mut self, process: Process, record: RecordBatch) {
        let length = lease_length(self.settings.timeout);
        let token = self.next_id();
        let until = self.local(process) + length;
        let handoff = &self.running(process).handoff;
        let is_open = !handoff.is_closed();
        let max_bytes = handoff.budget.counters().free_bytes();
        let lease = is_open.then_some(PromotionLease {
            lease: Lease { token, until },
            length,
            max_bytes,
        });

        self.submit(process, Operation::Record(RecordBatch { lease, ..record }));
    }

    /// A transaction has ended. `None` if it failed, or if that is unknown.
    pub fn recorded(&mut self, process: Process, recorded: Option<Recorded>) {
        let now = self.now;
        let local = self.local(process);
        let recorder = &mut self.running(process).recorder;
        let Doing::Saving(batch, mut backoff) = std::mem::take(&mut recorder.state) else {
            panic!("an answer to a batch that is not being saved")
        };

        let Some(recorded) = recorded else {
            let at = now + backoff.next_wait();
            recorder.state = Doing::Retrying(batch, backoff, at);
            return self.set_timer(process, at);
        };

        let batch = Arc::into_inner(batch).expect("the transaction has ended");
        recorder
            .batching
            .keep_unmatched(batch, recorded.settled, local);

        if !recorded.promoted.is_empty() {
            let refused = self.running(process).handoff.offer(recorded.promoted);
            if !refused.is_empty() {
                self.cover("promoted deliveries exceeded the budget");
                self.submit(process, Operation::Release(refused));
            }

            self.take_fresh(process);
        }

        self.record(process);
    }
}
