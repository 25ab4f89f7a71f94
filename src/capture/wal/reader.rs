//! One stream being read: messages become batches, and what is durable is acknowledged on a timer, whatever else is waited for.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};

use super::super::decode::{Decoded, Decoder, weight};
use super::connection::Connection;
use super::{CaptureError, Companions, Session};
use crate::domain::change::{Batch, Change};
use crate::domain::gap::Gap;
use crate::domain::lsn::{Checkpoint, Lineage, Lsn, Position};
use crate::postgres;
use crate::primary::triggers::catalog::{has_made_triggers, is_running};
use crate::telemetry::recurring;

/// A batch is sent at the latest when it has this many changes, or values of this many bytes.
const MAX_CHANGES: usize = 1_000;
const MAX_WEIGHT: usize = 1 << 20;
/// The server ends a connection that says nothing for wal_sender_timeout, a minute by default.
const FEEDBACK_PERIOD: Duration = Duration::from_secs(1);
/// The shortest silence after which a connection is given up.
const SHORTEST_SILENCE: Duration = Duration::from_secs(60);
/// Messages taken at a stretch before others get the thread, and before the timer is looked at.
const BURST: usize = 1_000;
/// How far behind now a transaction's commit lies while we lag. Then waiting a little lets the server send in bulk, which
/// more than doubles its rate; caught up, it would only add latency. Not by a Unix socket: it holds less than the server sends
/// meanwhile, and is no faster in bulk.
const LAGGING: SignedDuration = SignedDuration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// How long the rest of a transaction is waited for before what there is of it goes out.
const PATIENCE: Duration = Duration::from_millis(10);
/// Between two looks whether the server shows the transaction that made the triggers.
const SWITCH_POLL: Duration = Duration::from_millis(50);
/// Changes wait for more to go with them for this many bursts at most.
const MAX_ROUNDS: u32 = 10;

pub(super) struct Reader<'a> {
    stream: Connection,
    companions: Companions,
    decoder: Decoder,
    batches: &'a mpsc::Sender<Batch>,
    durable: &'a watch::Receiver<Option<Checkpoint>>,
    lineage: Lineage,
    /// Where this stream began: durable, whatever `durable` says yet.
    begin: Lsn,
    outbox: Outbox,
    /// The resume position of the last batch sent.
    sent: Lsn,
    clock_ahead: SignedDuration,
    /// Whether to wait while we lag.
    lets_pile_up: bool,
    last_commit: Timestamp,
    feedback_due: tokio::time::Instant,
    pulse: Pulse,
    url: &'a str,
    /// The open transaction, if it says that it made the triggers.
    hands_over: Option<u32>,
    /// The same when it has ended: if it speaks the truth, the outbox has all that comes after it.
    handed_over: Option<u32>,
}

/// What ended a wait: a message was taken, the time was over, or nobody takes batches any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Taken,
    Elapsed,
    Closed,
}

/// Changes not sent yet, and where they stand.
#[derive(Debug, Default)]
struct Outbox {
    changes: Vec<Change>,
    weight: usize,
    xid: Option<u32>,
    /// The end of the last whole transaction received, and its commit.
    ended: Lsn,
    committed: Lsn,
    /// Part of the open transaction has been sent already.
    partial: bool,
    /// Changes of the open transaction are among ours.
    of_open: bool,
    /// A transaction that was sent in part has ended since: its end must be sent even if nothing else is.
    owed: bool,
}

impl Outbox {
    fn is_clear(&self) -> bool {
        self.changes.is_empty() && !self.owed
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= MAX_CHANGES || self.weight >= MAX_WEIGHT
    }

    fn end_transaction(&mut self, commit: Lsn, end: Lsn) {
        (self.committed, self.ended) = (commit, end);
        self.owed |= self.partial;
        (self.partial, self.of_open) = (false, false);
    }

    /// Everything as one batch. `open` is how far the open transaction was received.
    fn take(&mut self, lineage: Lineage, open: Option<Position>) -> Batch {
        let position = match open {
            Some(open) if self.of_open => open,
            _ => Position::end_of(self.committed),
        };
        self.partial |= self.of_open;
        (self.owed, self.of_open, self.weight) = (false, false, 0);
        Batch {
            changes: std::mem::take(&mut self.changes),
            checkpoint: Checkpoint { lineage, position, resume: self.ended },
            transaction: self.xid,
            window: None,
        }
    }
}

/// When the stream last got anywhere.
struct Pulse {
    received: Lsn,
    moved: bool,
    at: Instant,
    silence: Duration,
}

impl<'a> Reader<'a> {
    pub fn new(
        stream: Connection,
        companions: Companions,
        session: &Session<'a>,
        checkpoint: Checkpoint,
        clock_ahead: SignedDuration,
        by_socket: bool,
        decoder: Decoder,
    ) -> Reader<'a> {
        let silence = (session.context.source.heartbeat.0 * 6).max(SHORTEST_SILENCE);
        let begin = checkpoint.resume;
        Reader {
            stream,
            companions,
            decoder,
            batches: session.context.batches,
            durable: session.context.durable,
            lineage: checkpoint.lineage,
            begin,
            outbox: Outbox { ended: begin, ..Outbox::default() },
            sent: begin,
            clock_ahead,
            lets_pile_up: !by_socket,
            last_commit: Timestamp::MAX,
            feedback_due: tokio::time::Instant::now() + FEEDBACK_PERIOD,
            pulse: Pulse { received: Lsn::ZERO, moved: true, at: Instant::now(), silence },
            url: session.context.url,
            hands_over: None,
            handed_over: None,
        }
    }

    /// Reads until the stream fails or nobody takes batches any more, or to the switch to triggers: then the last batch is the
    /// caller's.
    pub async fn run(&mut self) -> Result<Option<Batch>, CaptureError> {
        let mut rounds = 0;
        loop {
            let taken = self.burst()?;
            if let Some(transaction) = self.handed_over.take() {
                if self.has_made_triggers(transaction).await? {
                    let is_visible = self.await_visibility().await?;
                    return Ok(is_visible.then(|| self.outbox.take(self.lineage, None)));
                }
                let lsn = self.outbox.committed;
                recurring!(warn, transaction, %lsn, "a message asks for the switch to triggers, and its transaction made none: passed over");
            }
            self.feedback_if_due().await?;
            if self.companions.gate.is_full() && !self.await_visibility().await? {
                return Ok(None);
            }
            let full = self.outbox.is_full();
            if !full && rounds < MAX_ROUNDS {
                rounds += 1;
                if taken == BURST || (taken > 0 && self.may_wait() && !self.outbox.is_clear()) {
                    self.pause().await;
                    continue;
                }
                // The rest of a transaction is on its way: in one batch with its end it costs the store half as much.
                if self.decoder.open().is_some() && !self.outbox.is_clear() {
                    match self.wait(Some(PATIENCE)).await? {
                        Waited::Taken => continue,
                        Waited::Elapsed => {}
                        Waited::Closed => return Ok(None),
                    }
                }
            }
            rounds = 0;
            if !self.outbox.is_clear() && !self.send().await? {
                return Ok(None);
            }
            // A full batch or a long stretch ended the burst, not the lack of messages.
            if !full && taken < BURST && self.wait(None).await? == Waited::Closed {
                return Ok(None);
            }
        }
    }

    async fn pause(&mut self) {
        if self.may_wait() {
            tokio::time::sleep(PAUSE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    /// Takes what has arrived, without waiting, until a batch is full. How many messages that were.
    fn burst(&mut self) -> Result<usize, CaptureError> {
        for taken in 0..BURST {
            if self.outbox.is_full() || self.handed_over.is_some() {
                return Ok(taken);
            }
            match self.stream.next().now_or_never() {
                Some(message) => self.take(message?)?,
                None => return Ok(taken),
            }
        }
        Ok(BURST)
    }

    /// Waits for the next message, for at most `limit`, acknowledging meanwhile.
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
                () = self.batches.closed() => return Ok(Waited::Closed),
            };
            self.take(message)?;
            return Ok(Waited::Taken);
        }
    }

    fn take(&mut self, message: Bytes) -> Result<(), CaptureError> {
        let before = self.outbox.changes.len();
        let decoded = self.decoder.decode(message, &mut self.outbox.changes)?;
        self.pulse.moved = true;
        for change in &self.outbox.changes[before..] {
            self.outbox.weight += weight(change);
            self.outbox.of_open = true;
            self.outbox.xid = self.decoder.open().map(|open| open.xid);
        }
        match decoded {
            Decoded::Nothing => {}
            Decoded::Described => self.companions.gate.suspect(),
            Decoded::Began => {
                if let Some(open) = self.decoder.open() {
                    self.last_commit = open.committed_at;
                    self.companions.gate.receive(open.xid);
                }
            }
            Decoded::Committed { commit, end } => {
                self.outbox.end_transaction(commit, end);
                self.handed_over = self.hands_over.take();
            }
            Decoded::Handover => self.hands_over = self.decoder.open().map(|open| open.xid),
            Decoded::IdentityLost { tables } => self.companions.reports.report(Gap::IdentityLost { tables }),
            Decoded::Heartbeat(id) => self.companions.heart.returned(&id),
        }
        Ok(())
    }

    /// Any role may emit the message of a switch. Only who may make our triggers can do it in the transaction that makes them.
    async fn has_made_triggers(&mut self, transaction: u32) -> Result<bool, CaptureError> {
        let client = postgres::connect(self.url).await?;
        // It may be here before the server shows it to anybody.
        while is_running(&client, transaction).await? {
            tokio::time::sleep(SWITCH_POLL).await;
            self.feedback_if_due().await?;
        }
        let tables: Vec<u32> = self.decoder.oids().collect();
        Ok(has_made_triggers(&client, transaction, &tables).await?)
    }

    fn may_wait(&self) -> bool {
        self.lets_pile_up && (Timestamp::now() + self.clock_ahead).duration_since(self.last_commit) > LAGGING
    }

    /// Hands a batch on, acknowledging while there is no room for it; false when nobody takes batches any more.
    async fn send(&mut self) -> Result<bool, CaptureError> {
        let open = self.decoder.open().map(|open| open.position);
        let batch = self.outbox.take(self.lineage, open);
        self.sent = self.sent.max(batch.checkpoint.resume);
        if !self.await_visibility().await? {
            return Ok(false);
        }
        let batches = self.batches;
        let reserve = batches.reserve();
        tokio::pin!(reserve);
        loop {
            let permit = tokio::select! {
                biased;
                permit = &mut reserve => permit,
                () = tokio::time::sleep_until(self.feedback_due) => {
                    // Waiting for the store is no silence of the server's.
                    self.pulse.moved = true;
                    self.feedback_if_due().await?;
                    continue;
                }
            };
            let Ok(permit) = permit else { return Ok(false) };
            permit.send(batch);
            return Ok(true);
        }
    }

    /// Waits until the primary shows everything received, acknowledging meanwhile; false when nobody takes batches any more.
    async fn await_visibility(&mut self) -> Result<bool, CaptureError> {
        while !self.companions.gate.is_open() {
            tokio::select! {
                biased;
                passed = self.companions.gate.passed(self.outbox.ended) => passed?,
                () = tokio::time::sleep_until(self.feedback_due) => {
                    // Waiting for a standby is no silence of the server's.
                    self.pulse.moved = true;
                    self.feedback_if_due().await?;
                }
                () = self.batches.closed() => return Ok(false),
            }
        }
        Ok(true)
    }

    /// How far the store has what was sent.
    fn stored(&self) -> Lsn {
        self.durable.borrow().map_or(self.begin, |durable| self.begin.max(durable.resume))
    }

    /// How far everything is durable or was none of ours.
    fn acknowledgeable(&self) -> Lsn {
        let durable = self.stored();
        if !self.outbox.is_clear() || durable < self.sent {
            return durable;
        }
        // All that was sent is durable. Of the open transaction nothing is, but what ended before it concerns nobody.
        let idle = match self.decoder.open() {
            Some(_) => self.outbox.ended,
            None => self.outbox.ended.max(self.stream.received()),
        };
        durable.max(self.companions.gate.acknowledgeable(idle))
    }

    /// Says on a timer what is durable, changed or not: the server ends connections that it does not hear from.
    async fn feedback_if_due(&mut self) -> Result<(), CaptureError> {
        let now = tokio::time::Instant::now();
        if now < self.feedback_due {
            return Ok(());
        }
        self.feedback_due = now + FEEDBACK_PERIOD;
        if self.outbox.is_clear() {
            self.companions.gate.ask(self.outbox.ended).await?;
        }
        let durable = self.stored();
        let acknowledged = self.companions.limit.grant(durable, self.acknowledgeable());
        let silence = self.pulse.silence;
        let sent = tokio::time::timeout(silence, self.stream.acknowledge(acknowledged)).await;
        sent.map_err(|_| CaptureError::Silent(silence))??;
        self.check_pulse()
    }

    fn check_pulse(&mut self) -> Result<(), CaptureError> {
        let received = self.stream.received();
        let pulse = &mut self.pulse;
        if std::mem::take(&mut pulse.moved) || received > pulse.received {
            (pulse.received, pulse.at) = (received, Instant::now());
        }
        if let Some(fault) = self.companions.heart.fault() {
            return Err(fault);
        }
        if pulse.at.elapsed() > pulse.silence {
            return Err(CaptureError::Silent(pulse.silence));
        }
        if self.companions.heart.is_lost(received, pulse.silence) {
            return Err(CaptureError::HeartbeatLost(pulse.silence));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::change::{Operation, Origin};
    use crate::domain::table::Table;

    const LINEAGE: Lineage = Lineage { system_identifier: 7, timeline: 1 };

    fn add(outbox: &mut Outbox, commit: u64, ordinal: u64) -> Position {
        let position = Position { commit: Lsn(commit), ordinal };
        outbox.changes.push(Change {
            position,
            origin: Origin::Log { timeline: 1 },
            committed_at: Timestamp::UNIX_EPOCH,
            muted: false,
            table: Table::Release,
            operation: Operation::Truncate,
        });
        (outbox.of_open, outbox.xid) = (true, Some(commit as u32));
        position
    }

    #[test]
    fn whole_transactions_go_out_with_their_end() {
        let mut outbox = Outbox { ended: Lsn(5), ..Outbox::default() };
        add(&mut outbox, 10, 1);
        outbox.end_transaction(Lsn(10), Lsn(12));
        let batch = outbox.take(LINEAGE, None);
        assert_eq!((batch.checkpoint.position, batch.checkpoint.resume), (Position::end_of(Lsn(10)), Lsn(12)));
        assert!(outbox.is_clear());
    }

    #[test]
    fn a_part_of_a_transaction_resumes_before_it_and_owes_its_end() {
        let mut outbox = Outbox { ended: Lsn(5), ..Outbox::default() };
        add(&mut outbox, 8, 1);
        outbox.end_transaction(Lsn(8), Lsn(9));
        let at = add(&mut outbox, 10, 1);
        let first = outbox.take(LINEAGE, Some(at));
        assert_eq!((first.checkpoint.position, first.checkpoint.resume), (at, Lsn(9)));
        // Nothing else of it was ours; without its end, a part in flight could not be told from a stored one.
        assert!(outbox.is_clear());
        outbox.end_transaction(Lsn(10), Lsn(12));
        assert!(!outbox.is_clear());
        let last = outbox.take(LINEAGE, None);
        assert_eq!((last.checkpoint.position, last.checkpoint.resume), (Position::end_of(Lsn(10)), Lsn(12)));
        assert_eq!((last.changes.len(), last.transaction), (0, Some(10)));
        assert!(outbox.is_clear());
    }

    #[test]
    fn an_open_transaction_without_changes_of_ours_is_not_begun() {
        let mut outbox = Outbox::default();
        add(&mut outbox, 8, 1);
        outbox.end_transaction(Lsn(8), Lsn(9));
        let batch = outbox.take(LINEAGE, Some(Position { commit: Lsn(10), ordinal: 4 }));
        assert_eq!(batch.checkpoint.position, Position::end_of(Lsn(8)));
        outbox.end_transaction(Lsn(10), Lsn(12));
        assert!(outbox.is_clear(), "nothing was sent of it, nothing is owed");
    }
}
