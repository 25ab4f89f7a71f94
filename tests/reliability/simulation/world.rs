//! The event loop: one thread, a virtual clock, and a queue of events in order of time. Events of
//! the same time are ordered by chance.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use walhook::deliver::Settings;
use walhook::domain::backoff::RetrySchedule;
use walhook::domain::disablement::Policy;
use walhook::domain::event::UserId;
use walhook::vault::Vault;

use super::capture::{Change, OpenTransaction};
use super::invariants::{self, Broken, Request};
use super::plan::{Fault, Plan, UserAction};
use super::random::Random;
use super::receivers::{Exchange, Receiver};
use super::replica::Replica;
use super::store::{Answer, Operation};
use crate::support::memory::{MemoryStore, later};

/// A run of a replica's process. Events of an earlier run have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub replica: usize,
    pub incarnation: u32,
}

pub enum Event {
    /// The dispatcher's timer.
    Wake(Process),
    /// The recording stage's timer.
    Record(Process),
    /// The job stage's timer.
    Job(Process),
    /// The timer of the search for deliveries of inactive webhooks.
    Cancel(Process),
    /// The timer of the search for stranded deliveries.
    Search(Process),
    /// The timer of capture and enqueue.
    Capture(Process),
    /// A request reaches the store.
    Execute(Process, Box<Operation>, Delays),
    /// An answer of the store reaches its process.
    Answered(Process, Box<Answer>),
    /// The store commits the transaction that stores events, or loses it.
    CommitEvents(u64),
    /// A receiver's answer, or its absence, reaches the process.
    Ended(Process, Box<Exchange>),
    /// A process ends after it has drained.
    Drained(Process),
    Start(usize),
    Fault(Fault),
    User(UserAction),
    /// The platform commits.
    Commit(Change),
}

/// When and whether the answer to a request arrives.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    pub back: Duration,
    /// Whether the connection breaks before the answer: the process does not know what happened.
    pub is_answer_lost: bool,
}

struct Queued {
    at: Duration,
    /// Orders events of the same time.
    tie: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.tie) == (other.at, other.tie)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.tie).cmp(&(other.at, other.tie))
    }
}

/// What will happen.
#[derive(Default)]
pub struct Queue(BinaryHeap<Reverse<Queued>>);

/// Everything.
pub struct World {
    pub settings: Settings,
    pub vault: Arc<Vault>,
    pub plan: Plan,
    pub random: Random,
    /// The instant at which every process's monotonic clock begins.
    pub origin: Instant,
    pub began_at: Timestamp,
    pub now: Duration,
    /// When the store's clock was set, and by how much.
    pub store_steps: Vec<(Duration, SignedDuration)>,
    pub queue: Queue,
    pub store: MemoryStore,
    pub replicas: Vec<Replica>,
    pub receivers: BTreeMap<Uuid, Receiver>,
    pub webhooks: Vec<Uuid>,
    /// Also of webhooks that were deleted.
    pub owners: BTreeMap<Uuid, UserId>,
    /// What the platform has committed.
    pub stream: Vec<Change>,
    /// The transaction that stores events, of which there is one at a time: it locks the
    /// checkpoint.
    pub open: Option<OpenTransaction>,
    pub requests: Vec<Request>,
    pub schedule: RetrySchedule,
    pub policy: Policy,
    /// Until when the store does not answer.
    pub store_down_until: Duration,
    /// When the URL of a webhook was changed last.
    pub edited: BTreeMap<Uuid, Duration>,
    pub last_id: u128,
    /// How many events have happened.
    pub events: u64,
    pub trace: Option<Vec<String>>,
    /// A hash of all events: two runs with the same are the same.
    pub digest: u64,
    /// What has happened how often, for the tests.
    pub coverage: BTreeMap<&'static str, u64>,
}

/// Adds a line to the trace, if there is one.
macro_rules! trace {
    ($world:expr, $($line:tt)*) => {
        if $world.trace.is_some() {
            let line = format!("{:>12.6} {}", $world.now.as_secs_f64(), format_args!($($line)*));
            $world.trace.get_or_insert_default().push(line);
        }
    };
}
pub(super) use trace;

impl World {
    /// The time, as a clock shows it that is right.
    pub fn time(&self) -> Timestamp {
        later(self.began_at, self.now)
    }

    /// The store's clock, on which leases, retries and jobs are due.
    pub fn store_clock(&self) -> Timestamp {
        self.store_steps
            .iter()
            .fold(self.time(), |time, (_, step)| time + *step)
    }

    pub fn at(&mut self, at: Duration, event: Event) {
        let at = at.max(self.now);
        let tie = self.random.next();
        self.queue.0.push(Reverse(Queued { at, tie, event }));
    }

    pub fn after(&mut self, wait: Duration, event: Event) {
        self.at(self.now + wait, event);
    }

    /// An id that is the same in every run of the seed.
    pub fn next_id(&mut self) -> Uuid {
        self.last_id += 1;
        Uuid::from_u128(self.last_id)
    }

    /// Notes that something happened that the tests count.
    pub fn cover(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    fn digest(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01B3);
    }

    /// Runs the next event. Returns false if there is none before `until`.
    pub fn step(&mut self, until: Duration) -> Result<bool, Broken> {
        if self
            .queue
            .0
            .peek()
            .is_none_or(|Reverse(next)| next.at > until)
        {
            self.now = until;
            return Ok(false);
        }

        let Reverse(Queued { at, tie, event }) = self.queue.0.pop().expect("there is one");
        (self.now, self.events) = (at, self.events + 1);

        let now = self.store_clock();
        self.store.set_now(now);
        self.digest(at.as_nanos() as u64 ^ tie);
        invariants::no_process_loops(self)?;
        self.run(event)?;

        Ok(true)
    }

    fn run(&mut self, event: Event) -> Result<(), Broken> {
        if let Some((process, event)) = self.deferred(event) {
            return self.run_process(process, event);
        }

        Ok(())
    }

    /// Returns an event that its process can handle now. Runs those of no process, and postpones
    /// those of a paused one.
    fn deferred(&mut self, event: Event) -> Option<(Process, Event)> {
        let process = match &event {
            Event::Wake(process)
            | Event::Record(process)
            | Event::Job(process)
            | Event::Cancel(process)
            | Event::Search(process)
            | Event::Capture(process)
            | Event::Answered(process, _)
            | Event::Drained(process)
            | Event::Ended(process, _) => *process,
            _ => {
                return Some((
                    Process {
                        replica: 0,
                        incarnation: 0,
                    },
                    event,
                ));
            }
        };

        let replica = &self.replicas[process.replica];
        replica.running(process)?;

        if replica.paused_until > self.now {
            let until = replica.paused_until;
            self.at(until, event);
            return None;
        }

        Some((process, event))
    }

    fn run_process(&mut self, process: Process, event: Event) -> Result<(), Broken> {
        match event {
            Event::Wake(_) => return self.wake(process),
            Event::Record(_) => self.record(process),
            Event::Job(_) => self.submit(process, Operation::Job),
            Event::Cancel(_) => self.submit(process, Operation::Cancel),
            Event::Search(_) => self.submit(process, Operation::Search),
            Event::Capture(_) => self.capture(process),
            Event::Execute(process, operation, delays) => {
                return self.execute(process, *operation, delays);
            }
            Event::Answered(_, answer) => return self.answered(process, *answer),
            Event::CommitEvents(number) => return self.commit_events(number),
            Event::Ended(_, exchange) => return self.ended(process, *exchange),
            Event::Drained(_) => {
                self.crash(process.replica);
                let wait = self.random.millis(100, 3_000);
                self.after(wait, Event::Start(process.replica));
            }
            Event::Start(replica) => self.start(replica),
            Event::Fault(fault) => self.fault(fault),
            Event::User(action) => return self.act(action),
            Event::Commit(change) => self.commit(change),
        }

        Ok(())
    }
}
