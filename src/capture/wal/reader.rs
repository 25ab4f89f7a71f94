//! Reads one stream: sends changes in batches, and acknowledges stored WAL on a timer, even while
//! it waits for something else.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};

use super::acknowledgement::AcknowledgementLimit;
use super::buffer::BatchBuffer;
use super::decode::{Decoded, Decoder};
use super::heartbeat::Heartbeats;
use super::replication::ReplicationConnection;
use super::silence::SilenceLimit;
use super::switch_check::SwitchCheck;
use super::visibility::{CheckScope, VisibilityGate};
use crate::capture::context::CaptureContext;
use crate::capture::error::CaptureError;
use crate::domain::change::Batch;
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn};
use crate::failpoint::failpoint;
use crate::repair::gaps::Reports;
use crate::telemetry::recurring;

/// The server ends a connection without feedback after `wal_sender_timeout`, a minute by default.
const FEEDBACK_PERIOD: Duration = Duration::from_secs(1);
/// The most messages that are read without yielding to other tasks and to the feedback timer.
const BURST: usize = 1_000;
/// The age of a commit from which the stream counts as lagging. Then short waits let the server
/// send in bulk, which more than doubles its rate; without lag, they would only add latency.
const LAGGING: SignedDuration = SignedDuration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// How long the rest of a transaction is waited for before the part that was received is sent.
const TRANSACTION_WAIT: Duration = Duration::from_millis(10);
/// The most bursts for which changes wait, so that a batch contains more of them.
const MAX_BURSTS: u32 = 10;

/// The background tasks of a stream. They end when this is dropped.
pub(super) struct StreamTasks {
    pub heartbeats: Heartbeats,
    pub gate: VisibilityGate,
    pub limit: AcknowledgementLimit,
    pub gaps: Reports,
}

pub(super) struct WalReader<'a> {
    context: &'a CaptureContext<'a>,
    stream: ReplicationConnection,
    decoder: Decoder,
    tasks: StreamTasks,
    lineage: Lineage,
    /// The LSN at which this stream began. Everything before it is stored, even if `durable` is
    /// older or empty.
    begin: Lsn,
    buffer: BatchBuffer,
    /// Where streaming would resume after the last batch that was sent.
    sent: Lsn,
    /// How far the server's clock is ahead of the local one. None over a Unix socket, where pauses
    /// do not help: its buffer holds less than the server sends during a pause.
    clock_ahead: Option<SignedDuration>,
    last_commit: Timestamp,
    feedback_due: tokio::time::Instant,
    silence_limit: &'a SilenceLimit,
    silence: Silence,
    /// The open transaction, if it requests the switch to triggers.
    open_switch: Option<u32>,
    /// The same transaction after its end, until it is known whether it installed the triggers. If
    /// it did, all later changes are in the outbox.
    ended_switch: Option<u32>,
}

/// Why a wait for the next message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Received,
    Elapsed,
    /// Enqueue has stopped.
    Closed,
}

/// Since when nothing has arrived.
struct Silence {
    since: Instant,
    /// The limit when the stream began.
    limit: Duration,
}

impl<'a> WalReader<'a> {
    pub fn new(
        context: &'a CaptureContext<'a>,
        stream: ReplicationConnection,
        decoder: Decoder,
        tasks: StreamTasks,
        begin: Lsn,
        clock_ahead: Option<SignedDuration>,
        silence_limit: &'a SilenceLimit,
    ) -> WalReader<'a> {
        WalReader {
            context,
            lineage: stream.lineage(),
            stream,
            decoder,
            tasks,
            begin,
            buffer: BatchBuffer::starting_at(begin),
            sent: begin,
            clock_ahead,
            last_commit: Timestamp::MAX,
            feedback_due: tokio::time::Instant::now() + FEEDBACK_PERIOD,
            silence_limit,
            silence: Silence {
                since: Instant::now(),
                limit: silence_limit.current(),
            },
            open_switch: None,
            ended_switch: None,
        }
    }

    /// Reads until the stream fails, enqueue stops, or a switch to triggers. At a switch, returns
    /// the last batch, which is not sent.
    pub async fn run(&mut self) -> Result<Option<Batch>, CaptureError> {
        let mut bursts = 0;
        let mut switches = SwitchCheck::new(self.context.url);

        loop {
            let received = self.burst()?;

            if let Some(transaction) = self.ended_switch {
                let Some(is_switch) = self.installed_triggers(transaction, &mut switches).await?
                else {
                    return Ok(None);
                };

                if is_switch {
                    let is_visible = self.await_visibility().await?;
                    return Ok(is_visible.then(|| self.buffer.take(self.lineage, None)));
                }

                self.ended_switch = None;
                let lsn = self.buffer.commit;
                recurring!(warn, transaction, %lsn, "a message requests the switch to triggers, but its transaction installed no triggers: ignored");
            }

            self.feedback_if_due().await?;

            if self.tasks.gate.is_full() && !self.await_visibility().await? {
                return Ok(None);
            }

            let full = self.buffer.is_full();
            if !full && bursts < MAX_BURSTS {
                bursts += 1;

                if received == BURST
                    || (received > 0 && self.is_lagging() && !self.buffer.is_empty())
                {
                    self.pause().await;
                    continue;
                }

                // The rest of the transaction is about to arrive: one batch with its end costs the
                // store half as much as two.
                if self.decoder.open().is_some() && !self.buffer.is_empty() {
                    match self.wait(Some(TRANSACTION_WAIT)).await? {
                        Waited::Received => continue,
                        Waited::Elapsed => {}
                        Waited::Closed => return Ok(None),
                    }
                }
            }

            bursts = 0;

            if !self.buffer.is_empty() && !self.send().await? {
                return Ok(None);
            }

            // A full batch or a full burst may have left messages that have arrived.
            if !full && received < BURST && self.wait(None).await? == Waited::Closed {
                return Ok(None);
            }
        }
    }

    async fn pause(&mut self) {
        if self.is_lagging() {
            tokio::time::sleep(PAUSE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    /// Reads what has arrived, without waiting, until a batch is full. Returns the number of
    /// messages.
    fn burst(&mut self) -> Result<usize, CaptureError> {
        for received in 0..BURST {
            if self.buffer.is_full() || self.ended_switch.is_some() {
                return Ok(received);
            }

            match self.stream.next().now_or_never() {
                Some(message) => self.receive(message?)?,
                None => return Ok(received),
            }
        }

        Ok(BURST)
    }

    /// Waits for the next message, for at most `limit`. Acknowledges meanwhile.
    async fn wait(&mut self, limit: Option<Duration>) -> Result<Waited, CaptureError> {
        let end = limit.map(|limit| tokio::time::Instant::now() + limit);

        loop {
            let until = end.map_or(self.feedback_due, |end| end.min(self.feedback_due));
            let message = tokio::select! {
                biased;
                message = self.stream.next() => message?,
                () = tokio::time::sleep_until(until) => {
                    self.feedback_if_due().await?;

                    if end.is_some_and(|end| end <= tokio::time::Instant::now()) {
                        return Ok(Waited::Elapsed);
                    }

                    continue;
                }
                () = self.context.batches.closed() => return Ok(Waited::Closed),
            };

            self.receive(message)?;
            return Ok(Waited::Received);
        }
    }

    fn receive(&mut self, message: Bytes) -> Result<(), CaptureError> {
        let before = self.buffer.changes().len();
        let decoded = self.decoder.decode(message, self.buffer.changes())?;

        self.buffer
            .added(before, self.decoder.open().map(|open| open.xid));

        if self.buffer.changes().len() > before {
            self.tasks.gate.require(CheckScope::Publication);
        }

        match decoded {
            Decoded::Nothing => {}
            Decoded::TableDescribed => self.tasks.gate.require(CheckScope::Tables),
            Decoded::UnmappedTable { oid } => self.tasks.gate.add_unmapped(oid),
            Decoded::Began => {
                if let Some(open) = self.decoder.open() {
                    self.last_commit = open.committed_at;
                    self.tasks.gate.add_transaction(open.xid);
                }
            }
            Decoded::Committed { commit, end } => {
                self.buffer.end_transaction(commit, end);
                self.ended_switch = self.open_switch.take();
            }
            Decoded::SwitchRequested => self.open_switch = self.decoder.open().map(|open| open.xid),
            Decoded::IdentityLost { table } => {
                self.tasks.gaps.report(Gap::IdentityLost { tables: table })
            }
            Decoded::Heartbeat(id) => self.tasks.heartbeats.returned(&id),
        }

        Ok(())
    }

    /// Returns whether the transaction that requests the switch installed the triggers.
    /// Acknowledges meanwhile. None if enqueue has stopped.
    async fn installed_triggers(
        &mut self,
        transaction: u32,
        switches: &mut SwitchCheck,
    ) -> Result<Option<bool>, CaptureError> {
        let mut tables: Vec<u32> = self.decoder.oids().collect();
        tables.sort_unstable();

        self.acknowledge_while(switches.has_made_triggers(transaction, &tables))
            .await?
            .transpose()
    }

    /// Waits for `work`, and acknowledges meanwhile. None if enqueue has stopped.
    async fn acknowledge_while<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, CaptureError> {
        let mut work = std::pin::pin!(work);

        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(Some(done)),
                () = tokio::time::sleep_until(self.feedback_due) => {
                    // The stream is idle because of the wait, not because of the server.
                    self.silence.since = Instant::now();
                    self.feedback_if_due().await?;
                }
                () = self.context.batches.closed() => return Ok(None),
            }
        }
    }

    fn is_lagging(&self) -> bool {
        let is_old = |ahead: SignedDuration| {
            (Timestamp::now() + ahead).duration_since(self.last_commit) > LAGGING
        };
        self.clock_ahead.is_some_and(is_old)
    }

    /// Sends a batch. Acknowledges while the channel is full. Returns false if enqueue has stopped.
    async fn send(&mut self) -> Result<bool, CaptureError> {
        let open = self.decoder.open().map(|open| (open.commit, open.ordinal));
        let batch = self.buffer.take(self.lineage, open);

        self.sent = self.sent.max(self.buffer.end);
        failpoint!("changes_received_batch_not_sent")?;

        if !self.await_visibility().await? {
            return Ok(false);
        }

        let sent = self.context.batches.send(batch);
        let sent = self.acknowledge_while(sent).await?;
        Ok(matches!(sent, Some(Ok(()))))
    }

    /// Waits until everything received is visible on the primary. Acknowledges meanwhile. Returns
    /// false if enqueue has stopped.
    async fn await_visibility(&mut self) -> Result<bool, CaptureError> {
        while !self.tasks.gate.is_open() {
            tokio::select! {
                biased;
                passed = self.tasks.gate.wait(self.buffer.end) => passed?,
                () = tokio::time::sleep_until(self.feedback_due) => {
                    // The stream is idle because of a standby, not because of the server.
                    self.silence.since = Instant::now();
                    self.feedback_if_due().await?;
                }
                () = self.context.batches.closed() => return Ok(false),
            }
        }

        Ok(true)
    }

    /// Returns how far the WAL is stored.
    fn stored(&self) -> Lsn {
        let durable = self.context.durable.borrow();
        let resume = durable
            .as_ref()
            .and_then(|durable| durable.progress.resume());
        resume.map_or(self.begin, |resume| self.begin.max(resume))
    }

    /// Returns how far the WAL is stored or contains no captured changes.
    fn acknowledgeable(&self) -> Lsn {
        let stored = self.stored();
        // A switch is stored by the reader of the outbox. If this process ends before, the next one
        // must read the request again.
        if !self.buffer.is_empty() || stored < self.sent || self.ended_switch.is_some() {
            return stored;
        }

        // Everything that was sent is stored. The open transaction is not, but nothing before it is
        // needed.
        let idle = match self.decoder.open() {
            Some(_) => self.buffer.end,
            None => self.buffer.end.max(self.stream.received()),
        };

        stored.max(self.tasks.gate.acknowledgeable(idle))
    }

    /// Sends feedback when it is due, even without progress: the server ends connections without
    /// feedback.
    async fn feedback_if_due(&mut self) -> Result<(), CaptureError> {
        let now = tokio::time::Instant::now();
        if now < self.feedback_due {
            return Ok(());
        }

        self.feedback_due = now + FEEDBACK_PERIOD;

        if self.buffer.is_empty() {
            self.tasks.gate.start_check(self.buffer.end).await?;
        }

        let acknowledged = self
            .tasks
            .limit
            .grant(self.stored(), self.acknowledgeable());

        if self.stored() > self.begin {
            failpoint!("events_stored_slot_not_acknowledged")?;
        }

        let limit = self.silence.limit;
        let sent = tokio::time::timeout(limit, self.stream.acknowledge(acknowledged)).await;
        sent.map_err(|_| CaptureError::Silent(limit))??;

        self.check_silence()
    }

    fn check_silence(&mut self) -> Result<(), CaptureError> {
        let received = self.stream.received();
        let silence = &mut self.silence;

        self.silence_limit.received(received);

        if self.stream.take_has_received() {
            silence.since = Instant::now();
        }

        if let Some(error) = self.tasks.heartbeats.take_error() {
            return Err(error);
        }

        if silence.since.elapsed() > silence.limit {
            self.silence_limit.exceeded();
            return Err(CaptureError::Silent(silence.limit));
        }

        let limit = self.silence_limit.first();
        if self.tasks.heartbeats.are_lost(received, limit) {
            return Err(CaptureError::HeartbeatLost(limit));
        }

        Ok(())
    }
}
