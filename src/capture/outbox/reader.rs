//! Reads window after window, hands the changes on, and removes from the outbox what has become durable.

use std::collections::VecDeque;

use tokio::sync::{mpsc, watch};
use tokio_postgres::Client;
use uuid::Uuid;

use super::in_time;
use super::page::{self, Epoch, Page, Server};
use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::change::{Batch, Change};
use crate::domain::gap::Gap;
use crate::domain::lsn::{Checkpoint, Lineage, Lsn, Position};
use crate::domain::window::{Bounds, Snapshot, Window};
use crate::primary::error::PrimaryError;
use crate::primary::triggers::flush;
use crate::store::outbox::Handover;

/// Where this process is in the outbox. It outlives connections: what was handed on is not read again.
#[derive(Debug)]
pub(super) struct Cursor {
    pub lineage: Lineage,
    /// The window last begun, by its number, and whether it goes on behind a row.
    number: u64,
    bounds: Bounds,
    open: Option<u64>,
    /// The last row of all that were read.
    highest: u64,
    /// The position that the primary has confirmed as cleared to this process.
    cleared: Position,
    /// Handed on and still in the outbox.
    sent: VecDeque<Sent>,
    /// What a process before this one may have left is cleared.
    settled: bool,
    /// The stretch of the server's life that the snapshots are of.
    epoch: Option<Epoch>,
}

/// A page that was handed on.
#[derive(Debug)]
struct Sent {
    position: Position,
    number: u64,
    /// Its rows: behind one, up to another.
    after: u64,
    last: u64,
    rows: u64,
    seen: Snapshot,
}

impl Cursor {
    /// Behind what the store has.
    pub fn new(checkpoint: &Checkpoint, bounds: Bounds) -> Cursor {
        let Checkpoint { lineage, position, .. } = *checkpoint;
        let is_whole = position == Position::end_of(position.commit);
        Cursor {
            lineage,
            number: position.commit.0,
            bounds,
            open: (!is_whole).then_some(position.ordinal),
            highest: checkpoint.resume.0,
            cleared: Position::default(),
            sent: VecDeque::new(),
            settled: false,
            epoch: None,
        }
    }

    /// On a new connection, snapshots are not gone on with before it is settled what they may be asked for.
    pub fn disconnected(&mut self) {
        self.epoch = None;
    }
}

/// How much of a window is durable and still in the outbox.
#[derive(Debug, Default)]
struct Durable {
    last: u64,
    rows: u64,
    pages: usize,
}

/// What one look at the outbox came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Idle,
    /// All that the outbox had before the switch is handed on.
    HandedOver,
    /// Nobody takes batches any more.
    Closed,
}

pub(super) struct Reader<'a> {
    pub client: Client,
    pub source: &'a Source,
    pub batches: &'a mpsc::Sender<Batch>,
    pub durable: watch::Receiver<Option<Checkpoint>>,
    /// The id under which this process has claimed the checkpoint.
    pub reader: Uuid,
    pub handover: Option<&'a Handover>,
    /// Triggers have failed since that was last known.
    pub failed: bool,
}

impl Reader<'_> {
    /// Reads a page and hands it on.
    pub async fn step(&mut self, cursor: &mut Cursor) -> Result<Step, CaptureError> {
        if self.batches.is_closed() {
            return Ok(Step::Closed);
        }
        self.clear(cursor).await?;
        self.begin_handover(cursor);
        let to = cursor.open.map(|_| &cursor.bounds.to);
        let from = if to.is_some() { &cursor.bounds.from } else { &cursor.bounds.to };
        let page = in_time(page::read(&self.client, from, to, cursor.open.unwrap_or(0))).await?;
        self.failed = page.server.failed;
        if page.server.system_identifier != cursor.lineage.system_identifier {
            let (known, found) = (cursor.lineage.system_identifier, page.server.system_identifier);
            return Err(PrimaryError::ForeignCluster { known, found }.into());
        }
        if page.server.epoch.is_none() {
            return Err(PrimaryError::Standby.into());
        }
        if page.server.epoch != cursor.epoch {
            self.settle(cursor, &page.server).await?;
            return Ok(Step::Read);
        }
        if cursor.open.is_none() {
            if page.rows.is_empty() {
                return Ok(Step::Idle);
            }
            cursor.number += 1;
            let from = std::mem::replace(&mut cursor.bounds.to, page.server.snapshot.clone());
            cursor.bounds.from = from;
        }
        if page.server.unflushed && !page.rows.is_empty() {
            flush(&self.client).await?;
        }
        self.hand_on(cursor, page).await
    }

    /// The last window is what the switch's snapshot sees.
    fn begin_handover(&self, cursor: &mut Cursor) {
        let Some(handover) = self.handover else { return };
        if cursor.open.is_none() && cursor.bounds.to != handover.snapshot {
            cursor.number += 1;
            let from = std::mem::replace(&mut cursor.bounds.to, handover.snapshot.clone());
            (cursor.bounds.from, cursor.open) = (from, Some(0));
        }
    }

    async fn hand_on(&self, cursor: &mut Cursor, page: Page) -> Result<Step, CaptureError> {
        let last = page.rows.last().map(|row| row.seq);
        let rows = page.rows.len() as u64;
        let mappings = &self.source.tables;
        let changes = page.rows.into_iter().map(|row| page::change(row, cursor.number, mappings));
        let changes = changes.collect::<Result<Vec<Change>, _>>()?;
        let commit = Lsn(cursor.number);
        let after = cursor.open.unwrap_or(0);
        cursor.open = if page.more { last.or(cursor.open) } else { None };
        let ends_here = self.handover.filter(|handover| !page.more && handover.snapshot == cursor.bounds.to);
        cursor.highest = cursor.highest.max(last.unwrap_or(0));
        let (position, resume) = match (ends_here, cursor.open) {
            // Ordinals in the log begin at one.
            (Some(handover), _) => (Position { commit: handover.begins, ordinal: 0 }, handover.begins),
            (None, Some(last)) => (Position { commit, ordinal: last }, Lsn(cursor.highest)),
            (None, None) => (Position::end_of(commit), Lsn(cursor.highest)),
        };
        if let Some(last) = last {
            let seen = cursor.bounds.to.clone();
            cursor.sent.push_back(Sent { position, number: cursor.number, after, last, rows, seen });
        }
        let bounds = ends_here.is_none().then(|| cursor.bounds.clone());
        let checkpoint = Checkpoint { lineage: cursor.lineage, position, resume };
        let batch =
            Batch { changes, checkpoint, transaction: None, window: Some(Window { bounds, reader: self.reader }) };
        if self.batches.send(batch).await.is_err() {
            return Ok(Step::Closed);
        }
        Ok(if ends_here.is_some() { Step::HandedOver } else { Step::Read })
    }

    /// Removes what the store has by now. False when some of it was not there any more.
    pub async fn clear(&mut self, cursor: &mut Cursor) -> Result<bool, CaptureError> {
        let mut complete = true;
        while let Some(durable) = self.durable_of_first_window(cursor) {
            let first = &cursor.sent[0];
            let reached = Position { commit: Lsn(first.number), ordinal: durable.last };
            complete &= in_time(page::clear(&self.client, &first.seen, first.after, reached)).await? >= durable.rows;
            cursor.cleared = cursor.cleared.max(reached);
            cursor.sent.drain(..durable.pages);
        }
        Ok(complete)
    }

    /// Of the pages that are durable, those of the first's window.
    fn durable_of_first_window(&self, cursor: &Cursor) -> Option<Durable> {
        let position = (*self.durable.borrow())?.position;
        let number = cursor.sent.front()?.number;
        let mut durable = Durable::default();
        for sent in cursor.sent.iter().take_while(|sent| sent.position <= position && sent.number == number) {
            durable.last = durable.last.max(sent.last);
            durable.rows += sent.rows;
            durable.pages += 1;
        }
        (durable.pages > 0).then_some(durable)
    }

    /// Begins anew where snapshots of before may not be asked any more: on a new connection, after a crash of the server, on a
    /// new timeline. A crash or a failover may take back numbers of transactions that a snapshot has counted as over, and give
    /// them out again: what is new would look as if it had been read. So all that was read is removed; what is left is new.
    ///
    /// A row is removed by its place too: places up to one that was read are never given out again.
    async fn settle(&mut self, cursor: &mut Cursor, server: &Server) -> Result<(), CaptureError> {
        let Some(epoch) = server.epoch.clone() else { return Err(PrimaryError::Standby.into()) };
        let timeline = epoch.timeline;
        if server.cleared < cursor.cleared {
            return Err(CaptureError::Gap(match timeline == cursor.lineage.timeline {
                true => Gap::OutboxBehind,
                false => Gap::OutboxForked { timeline },
            }));
        }
        // What was cleared after a snapshot was taken stands behind all that the snapshot sees.
        let may_lack = timeline != cursor.lineage.timeline && server.cleared.commit.0 < cursor.number;
        if may_lack && !cursor.settled {
            return Err(CaptureError::Gap(Gap::OutboxForked { timeline }));
        }
        if let Some(wanted) = cursor.sent.back().map(|last| last.position) {
            let is_durable = |durable: &Option<Checkpoint>| durable.is_some_and(|durable| durable.position >= wanted);
            if self.durable.wait_for(is_durable).await.is_err() {
                return Ok(());
            }
        }
        if !self.clear(cursor).await? && may_lack {
            return Err(CaptureError::Gap(Gap::OutboxForked { timeline }));
        }
        if !cursor.settled {
            self.clear_before(cursor).await?;
            cursor.settled = true;
        }
        if timeline != cursor.lineage.timeline {
            tracing::warn!(from = cursor.lineage.timeline, to = timeline, "the primary is on a new timeline");
            cursor.lineage.timeline = timeline;
        }
        (cursor.bounds, cursor.open, cursor.epoch) = (Bounds::nothing(), None, Some(epoch));
        Ok(())
    }

    /// Clears what a process before this one may have left.
    async fn clear_before(&self, cursor: &Cursor) -> Result<(), CaptureError> {
        let reached = |number: u64, ordinal: u64| Position { commit: Lsn(number), ordinal };
        let Bounds { from, to } = &cursor.bounds;
        let Some(last) = cursor.open else {
            in_time(page::clear(&self.client, to, 0, reached(cursor.number, cursor.highest))).await?;
            return Ok(());
        };
        in_time(page::clear(&self.client, from, 0, reached(cursor.number.saturating_sub(1), cursor.highest))).await?;
        in_time(page::clear(&self.client, to, 0, reached(cursor.number, last))).await?;
        Ok(())
    }
}
