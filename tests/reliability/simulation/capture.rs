//! Capture and enqueue: one process at a time reads what the platform has committed and stores its
//! events, by the product's own code. Deliveries are handed off before the commit, which may fail,
//! or succeed without an answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use uuid::Uuid;
use walhook::domain::delivery::{Lease, lease_length};
use walhook::domain::event::{Event as Raised, EventKind, UserId};
use walhook::domain::lsn::Lsn;
use walhook::domain::position::Position;
use walhook::domain::sequence::Sequences;
use walhook::enqueue::{HandOffWhen, store_events, subscriptions_of};
use walhook::handoff::HandoffBatch;
use walhook::store::contract::EnqueueStatements;
use walhook::store::enqueue::{NewDelivery, NewLease, Subscription};
use walhook::store::order::OrderedDelivery;
use walhook::store::{Result, StoreError};

use super::invariants::{self, Broken};
use super::store::{Answer, Opened, Operation};
use super::world::{Delays, Event, Process, World, trace};
use crate::support::memory::MemoryTransaction;

/// The most changes of one transaction.
const MAX_BATCH: usize = 8;
/// How often capture looks for changes of which it got no word, because another process was to read
/// them.
const INTERVAL: Duration = Duration::from_millis(250);

/// A change that the platform has committed, with the event that it raises.
#[derive(Clone, Debug)]
pub struct Change {
    pub user: UserId,
    pub kind: EventKind,
    pub release: Option<i64>,
}

/// What a process knows about the stream.
#[derive(Debug, Default)]
pub struct Capture {
    /// The checkpoint that it has stored last.
    pub known: Option<u64>,
}

/// The transaction that stores events, on its way.
pub struct OpenTransaction {
    pub number: u64,
    pub process: Process,
    from: u64,
    to: u64,
    statements: Arc<Statements>,
    future: BoxFuture<'static, Result<()>>,
    delays: Delays,
}

/// What the transaction has sent. The store executes it at the commit, when the results become
/// known.
#[derive(Default)]
pub struct Statements {
    sent: Mutex<VecDeque<Statement>>,
    /// The heads of ordered deliveries, once the statement is executed; and whether the commit
    /// succeeded.
    heads: Mutex<Option<Vec<Uuid>>>,
    committed: Mutex<Option<bool>>,
}

enum Statement {
    Events(Vec<Raised>),
    Deliveries(Vec<NewDelivery>, NewLease),
    Ordered(Vec<OrderedDelivery>, NewLease),
    Missed(Vec<(Uuid, Uuid)>),
    Sequences(Vec<(Uuid, i64)>),
}

/// A result that another part of the simulation sets.
struct Known<'a, T>(&'a Mutex<Option<T>>);

impl<T: Clone> Future for Known<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match &*self.0.lock().expect("no holder of this lock panics") {
            Some(value) => Poll::Ready(value.clone()),
            None => Poll::Pending,
        }
    }
}

impl Statements {
    fn send(&self, statement: Statement) {
        self.sent
            .lock()
            .expect("no holder of this lock panics")
            .push_back(statement);
    }

    async fn commit(&self) -> Result<()> {
        match Known(&self.committed).await {
            true => Ok(()),
            false => Err(StoreError::Silent(Duration::ZERO)),
        }
    }

    /// Executes the statements.
    fn run(&self, transaction: &MemoryTransaction<'_>) {
        let mut heads = Vec::new();

        for statement in self
            .sent
            .lock()
            .expect("no holder of this lock panics")
            .drain(..)
        {
            let done = async {
                match statement {
                    Statement::Events(events) => transaction.insert_events(&events, false).await,
                    Statement::Deliveries(new, lease) => {
                        transaction.insert_deliveries(&new, lease).await
                    }
                    Statement::Ordered(new, lease) => {
                        heads.extend(transaction.insert_ordered(&new, lease).await?);
                        Ok(())
                    }
                    Statement::Missed(missed) => transaction.insert_missed(&missed).await,
                    Statement::Sequences(changed) => transaction.store_sequences(&changed).await,
                }
            };

            done.now_or_never()
                .expect("the store in memory answers at once")
                .expect("nothing fails");
        }

        *self.heads.lock().expect("no holder of this lock panics") = Some(heads);
    }
}

impl EnqueueStatements for Statements {
    async fn plan_by_index(&self) -> Result<()> {
        Ok(())
    }

    async fn subscriptions(&self, _: &[&str], _: &[&str]) -> Result<Vec<Subscription>> {
        unreachable!("they are read when the transaction begins")
    }

    async fn start_sequences(&self, _: &[Uuid], _: &mut Sequences) -> Result<()> {
        unreachable!("they are read when the transaction begins")
    }

    async fn store_sequences(&self, changed: &[(Uuid, i64)]) -> Result<()> {
        self.send(Statement::Sequences(changed.to_vec()));
        Ok(())
    }

    async fn insert_events(&self, events: &[Raised], _: bool) -> Result<()> {
        self.send(Statement::Events(events.to_vec()));
        Ok(())
    }

    async fn insert_deliveries(&self, deliveries: &[NewDelivery], lease: NewLease) -> Result<()> {
        self.send(Statement::Deliveries(deliveries.to_vec(), lease));
        Ok(())
    }

    async fn insert_ordered(
        &self,
        ordered: &[OrderedDelivery],
        lease: NewLease,
    ) -> Result<Vec<Uuid>> {
        if ordered.is_empty() {
            return Ok(Vec::new());
        }

        self.send(Statement::Ordered(ordered.to_vec(), lease));
        Ok(Known(&self.heads).await)
    }

    async fn insert_missed(&self, missed: &[(Uuid, Uuid)]) -> Result<()> {
        self.send(Statement::Missed(missed.to_vec()));
        Ok(())
    }
}

impl World {
    /// The event of a change: the same whenever the change is read.
    fn raised(&self, index: usize) -> Raised {
        let Change {
            user,
            kind,
            release,
        } = &self.stream[index];
        let data = release.map_or("{}".to_owned(), |release| {
            format!("{{\"release_id\":{release}}}")
        });

        let number = index as u64 + 1;
        let millis = u64::try_from(self.began_at.as_millisecond()).expect("after 1970") + number;
        let mut bytes = [0; 10];

        bytes[2..].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());

        Raised {
            id: uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid(),
            kind: *kind,
            user: user.clone(),
            label: Some(1),
            occurred_at: Timestamp::from_millisecond(millis as i64)
                .expect("a time of this century"),
            position: Position::Wal {
                timeline: 1,
                commit: Lsn(number),
                ordinal: 1,
            },
            data: data.into(),
        }
    }

    /// The platform has committed.
    pub fn commit(&mut self, change: Change) {
        self.stream.push(change);
        let leader = self
            .leader()
            .and_then(|leader| self.replicas[leader].process(leader));
        leader
            .into_iter()
            .for_each(|process| self.look_for_changes(process));
    }

    /// Looks for changes, and does so again.
    pub fn capture(&mut self, process: Process) {
        self.after(INTERVAL, Event::Capture(process));
        self.look_for_changes(process);
    }

    /// Stores the next changes, if this process captures.
    fn look_for_changes(&mut self, process: Process) {
        let leader = self.leader();
        let Some(running) = self.replicas[process.replica].running_mut(process) else {
            return;
        };

        // Another process that believes to capture is a paused one, which continues with what it
        // has sent.
        if leader != Some(process.replica) || running.is_storing || running.is_draining {
            return;
        }

        let known = running.capture.known;
        if self.stream.len() as u64 <= known.unwrap_or_else(|| self.store.state().stored_changes())
        {
            return;
        }

        running.is_storing = true;
        self.submit(process, Operation::Begin { known });
    }

    /// The replica that captures: the first one that runs. While it is paused, its lease ends and
    /// another takes over.
    fn leader(&self) -> Option<usize> {
        let is_able = |replica: &super::replica::Replica| {
            replica.is_running() && replica.paused_until <= self.now
        };
        self.replicas.iter().position(is_able)
    }

    pub fn begin_events(
        &mut self,
        process: Process,
        known: Option<u64>,
        delays: Delays,
    ) -> std::result::Result<(), Broken> {
        if self.open.is_some() {
            // It waits for the lock on the checkpoint.
            let wait = self.random.micros(200, 2_000);
            self.after(
                wait,
                Event::Execute(process, Box::new(Operation::Begin { known }), delays),
            );
            return Ok(());
        }

        let from = self.store.state().stored_changes();
        let opened = match known {
            Some(known) if known != from => {
                self.cover("a process took over from a paused one");
                Opened::Superseded
            }
            _ if self.stream.len() as u64 <= from => Opened::Nothing,
            _ => match self.open_transaction(process, known, from, delays) {
                Some(handed_off) => {
                    invariants::handed_off_deliveries_are_current(self, &handed_off)?;
                    Opened::Open
                }
                // The process has ended or is paused: the connection is closed without a commit.
                None => Opened::Failed,
            },
        };

        if !matches!(opened, Opened::Open) {
            self.after(
                delays.back,
                Event::Answered(process, Box::new(Answer::Opened(opened))),
            );
        }

        Ok(())
    }

    /// Reads the webhooks, hands off, and sends the rest of the transaction. Returns the webhooks
    /// of what was handed off, with their activations.
    fn open_transaction(
        &mut self,
        process: Process,
        known: Option<u64>,
        from: u64,
        delays: Delays,
    ) -> Option<Vec<(Uuid, i32)>> {
        let to = (self.stream.len()).min(from as usize + MAX_BATCH) as u64;
        let events: Vec<Raised> = (from..to)
            .map(|index| self.raised(index as usize))
            .collect();
        let transaction = self.store.begin();
        let read = subscriptions_of(&transaction, &events, true)
            .now_or_never()
            .expect("answers at once");
        let (subscriptions, sequences) = read.expect("nothing fails");

        transaction.commit();
        let token = self.next_id();
        let replica = &self.replicas[process.replica];
        if replica.paused_until > self.now {
            return None;
        }

        let local = replica.local(self);
        let length = lease_length(self.settings.timeout);
        let lease = Lease {
            token,
            until: local + length,
        };

        let handoff = replica.running(process)?.handoff.clone();
        let new_lease = NewLease {
            token,
            seconds: length.as_secs_f64(),
        };

        let when = if known.is_none() {
            HandOffWhen::AfterCommit
        } else {
            HandOffWhen::BeforeCommit
        };

        let statements = Arc::new(Statements::default());
        let sent = Arc::clone(&statements);

        let mut future: BoxFuture<'static, Result<()>> = Box::pin(async move {
            let batch = HandoffBatch::new(Some(&handoff), lease, local);
            let commit = sent.commit();

            store_events(
                &*sent,
                &events,
                (subscriptions, sequences),
                new_lease,
                batch,
                when,
                commit,
            )
            .await
        });

        let pending = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(pending.is_pending(), "it waits for the commit");

        let number = self.next_id().as_u128() as u64;
        trace!(
            self,
            "replica {}: stores changes {from}..{to}", process.replica
        );

        self.open = Some(OpenTransaction {
            number,
            process,
            from,
            to,
            statements,
            future,
            delays,
        });

        let wait = if self.random.chance(self.plan.slow_commits) {
            self.random.millis(5, 900)
        } else {
            self.random.micros(300, 4_000)
        };

        self.after(wait, Event::CommitEvents(number));
        Some(self.take_fresh(process))
    }

    /// The store commits the transaction, or the commit is lost.
    pub fn commit_events(&mut self, number: u64) -> std::result::Result<(), Broken> {
        let Some(open) = self.open.take_if(|open| open.number == number) else {
            return Ok(());
        };

        let is_lost = self.random.chance(self.plan.lost_requests);
        if is_lost {
            trace!(self, "replica {}: the commit is lost", open.process.replica);
            self.cover("a transaction with events was lost");
        } else {
            let transaction = self.store.begin();
            assert!(
                transaction.advance_checkpoint(open.from, open.to),
                "it has locked the checkpoint"
            );
            open.statements.run(&transaction);
            transaction.commit();
        }

        let is_known = !is_lost && !open.delays.is_answer_lost;

        if !is_lost && open.delays.is_answer_lost {
            trace!(
                self,
                "replica {}: the commit's answer is lost", open.process.replica
            );
            self.cover("a commit's outcome was unknown");
        }

        let process = open.process;
        let to = open.to;
        let back = open.delays.back;

        if self.replicas[process.replica].running(process).is_some() {
            *open
                .statements
                .committed
                .lock()
                .expect("no holder of this lock panics") = Some(is_known);
            self.after(
                back,
                Event::Answered(process, Box::new(Answer::Stored(is_known.then_some(to)))),
            );
            self.replicas[process.replica].keep_future(open.future);
        }

        Ok(())
    }

    /// The process learns how its transaction has ended.
    pub fn stored(&mut self, process: Process, checkpoint: Option<u64>) {
        let replica = &mut self.replicas[process.replica];
        if let Some(mut future) = replica.take_future() {
            let done = future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(done.is_ready(), "everything has been answered");
        }

        if let Some(running) = replica.running_mut(process) {
            running.capture.known = checkpoint;
            running.is_storing = false;
        }

        self.take_fresh(process);
        self.look_for_changes(process);
    }

    pub fn opened(&mut self, process: Process, opened: Opened) {
        let Some(running) = self.replicas[process.replica].running_mut(process) else {
            return;
        };

        match opened {
            Opened::Open => return,
            Opened::Nothing => {}
            Opened::Superseded | Opened::Failed => running.capture.known = None,
        }

        running.is_storing = false;
    }
}
