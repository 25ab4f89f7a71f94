//! Reads the outbox window by window, passes the changes on, and deletes rows whose events are
//! stored.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::floor::Floors;
use super::page::{self, Cleared, Clearing, Epoch, OutboxPage, ServerState};
use crate::capture::client::LimitedClient;
use crate::capture::error::CaptureError;
use crate::config::Source;
use crate::domain::change::{Batch, Change};
use crate::domain::gap::Gap;
use crate::domain::lsn::Lineage;
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::read_pages::{ReadPage, ReadPages};
use crate::domain::window::{Snapshot, Window};
use crate::failpoint::failpoint;
use crate::primary::error::PrimaryError;
use crate::primary::lineage;
use crate::primary::triggers::catalog::altered_triggers;
use crate::store::checkpoint::SwitchToWal;

/// How far this process has read the outbox. It outlives connections: what was passed on is not
/// read again.
#[derive(Debug)]
pub(super) struct OutboxCursor {
    lineage: Lineage,
    /// The last window that was started.
    window: Window,
    /// The row after which the window continues. None if it is complete.
    continues_after: Option<u64>,
    /// The highest row that was read.
    last_row: u64,
    /// How far the primary has confirmed to this process that the outbox is cleared.
    cleared: Cleared,
    /// Pages that were passed on and are still in the outbox.
    sent: VecDeque<SentPage>,
    /// The pages that were passed on last, cleared or not, by this process or an earlier one.
    read: Arc<ReadPages>,
    /// Whether the rows that an earlier process has read and left are cleared.
    leftovers_cleared: bool,
    /// The period of the server that the snapshots belong to.
    epoch: Option<Epoch>,
    /// The rows from which windows start.
    floors: Floors,
}

/// A page that was passed on.
#[derive(Debug)]
struct SentPage {
    progress: Progress,
    window: Window,
    /// The rows after this one, up to `last`.
    after: u64,
    last: u64,
}

impl OutboxCursor {
    /// Continues from the stored progress. None if that is not a position in the outbox.
    pub fn new(Checkpoint { lineage, progress }: Checkpoint) -> Option<OutboxCursor> {
        let Progress::Outbox {
            window,
            through,
            last_row,
            read,
        } = progress
        else {
            return None;
        };

        let continues_after = match through {
            Through::Ordinal(row) => Some(row),
            Through::End => None,
        };

        Some(OutboxCursor {
            lineage,
            window,
            continues_after,
            last_row,
            cleared: Cleared::default(),
            sent: VecDeque::new(),
            read,
            leftovers_cleared: false,
            epoch: None,
            floors: Floors::default(),
        })
    }

    /// Returns the cluster and the timeline that were read last.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Forgets the pages that the server has cleared: the answer to their deletion was lost with
    /// the connection.
    fn forget_cleared(&mut self, cleared: Cleared) {
        let is_cleared = |page: &SentPage| {
            Cleared {
                window: page.window.number,
                row: page.last,
            } <= cleared
        };
        while self.sent.pop_front_if(|page| is_cleared(page)).is_some() {}
    }

    /// Forgets the epoch, for a new connection: snapshots are not used until the server's epoch was
    /// compared.
    pub fn disconnected(&mut self) {
        (self.epoch, self.floors) = (None, Floors::default());
    }

    /// Adds a floor, unless row numbers may be assigned out of order: `row` was assigned in this
    /// epoch, or before it, and before `transaction` began.
    fn add_floor(&mut self, row: u64, transaction: u64) {
        if self
            .epoch
            .as_ref()
            .is_some_and(|epoch| epoch.numbering.is_some())
        {
            self.floors.add(row, transaction);
        }
    }

    /// Returns the row after which rows are waiting: none up to it is, except rows of a long
    /// transaction that has just ended.
    pub fn backlog_after(&self) -> u64 {
        self.sent
            .iter()
            .map(|page| page.after)
            .fold(self.floors.highest(), u64::min)
    }
}

/// The pages of one window that are stored and still in the outbox.
#[derive(Debug, Default)]
struct StoredPages {
    last: u64,
    pages: usize,
}

/// The result of one step of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    Read,
    Idle,
    /// Triggers were altered before the page was written: nothing of it was passed on.
    Altered,
    /// Everything before the switch to the WAL is passed on.
    Switched,
    /// Enqueue has stopped.
    Closed,
}

pub(super) struct OutboxReader<'a> {
    pub client: LimitedClient,
    pub source: &'a Source,
    pub batches: &'a mpsc::Sender<Batch>,
    pub durable: watch::Receiver<Option<Checkpoint>>,
    /// The id under which this process has claimed the checkpoint.
    pub reader: Uuid,
    pub switch: Option<&'a SwitchToWal>,
    /// Triggers have failed since failures were last acknowledged.
    pub failed: bool,
    /// The triggers that are known to be altered since.
    pub altered: Vec<String>,
}

impl OutboxReader<'_> {
    /// Clears what is stored, reads a page and passes it on.
    pub async fn step(&mut self, cursor: &mut OutboxCursor) -> Result<ReadStep, CaptureError> {
        if self.batches.is_closed() {
            return Ok(ReadStep::Closed);
        }

        // On a new connection, nothing is deleted before the server's epoch was compared: it may be
        // another server.
        if let Some(timeline) = cursor.epoch.as_ref().map(|epoch| epoch.timeline) {
            self.clear(cursor, timeline).await?;
        }

        self.begin_last_window(cursor);
        let Window { from, to, .. } = &cursor.window;
        let page = match cursor.continues_after {
            Some(after) => {
                self.client
                    .run(|client| page::read(client, from, Some(to), after, Default::default()))
                    .await?
            }
            None => {
                let floors = &cursor.floors;
                let unconfirmed = floors.unconfirmed();
                self.client
                    .run(|client| page::read(client, to, None, floors.confirmed(), unconfirmed))
                    .await?
            }
        };

        self.failed = page.server.failed;
        lineage::verify(
            page.server.lineage().ok_or(PrimaryError::Standby)?,
            cursor.lineage,
        )?;

        if !page.rows.is_empty() && self.find_altered().await? {
            return Ok(ReadStep::Altered);
        }

        if page.server.epoch != cursor.epoch {
            self.enter_epoch(cursor, &page.server).await?;
            return Ok(ReadStep::Read);
        }

        if !self.flush(&page).await? {
            // A crash may have undone the page. The next page enters the new epoch.
            cursor.disconnected();
            return Ok(ReadStep::Read);
        }

        if cursor.continues_after.is_none() {
            // The last window's rows have all been passed on: an error ends the epoch.
            cursor.floors.confirm(&cursor.window.to);

            if page.rows.is_empty() {
                // Nothing lies between the two snapshots. From the later one, higher floors apply.
                cursor.window.to = page.server.snapshot;
                return Ok(ReadStep::Idle);
            }

            cursor.window = cursor.window.next(page.server.snapshot.clone());
        }

        self.pass_on(cursor, page).await
    }

    /// Returns whether triggers were altered that were not known to be. One that was disabled for a
    /// while leaves out rows that are looked up, such as the new owner of a label.
    async fn find_altered(&mut self) -> Result<bool, CaptureError> {
        let altered = self.client.run(altered_triggers).await?;
        let is_new = altered
            .iter()
            .any(|trigger| !self.altered.contains(trigger));
        self.altered = altered;

        Ok(is_new)
    }

    /// Flushes the page's rows, if there are any and a crash could still undo them. Returns false
    /// if the server is no longer in the epoch in which the page was read: a pooler hides its
    /// crashes.
    async fn flush(&self, page: &OutboxPage) -> Result<bool, CaptureError> {
        if page.rows.is_empty() {
            return Ok(true);
        }

        failpoint!("outbox_page_read_rows_not_flushed")?;
        let epoch = page.server.epoch.as_ref().filter(|_| page.server.unflushed);
        let Some(epoch) = epoch else { return Ok(true) };
        self.client.run(|client| page::flush(client, epoch)).await
    }

    /// Begins the last window before the switch to the WAL: it ends at the switch's snapshot.
    fn begin_last_window(&self, cursor: &mut OutboxCursor) {
        let Some(switch) = self.switch else { return };
        if cursor.continues_after.is_none() && cursor.window.to != switch.snapshot {
            cursor.window = cursor.window.next(switch.snapshot.clone());
            cursor.continues_after = Some(0);
        }
    }

    async fn pass_on(
        &self,
        cursor: &mut OutboxCursor,
        page: OutboxPage,
    ) -> Result<ReadStep, CaptureError> {
        let last = page.rows.last().map(|row| row.ordinal);
        let contents = page.contents();
        let window = cursor.window.clone();
        let mappings = &self.source.tables;
        let changes = page
            .rows
            .into_iter()
            .map(|row| page::change(row, window.number, mappings));
        let changes = changes.collect::<Result<Vec<Change>, _>>()?;
        let after = page.after;

        cursor.continues_after = if page.more {
            last.or(cursor.continues_after)
        } else {
            None
        };
        cursor.last_row = cursor.last_row.max(last.unwrap_or(0));

        let read = match last {
            Some(last) => {
                let (window, to) = (window.number, window.to.clone());
                Arc::new(cursor.read.with(ReadPage {
                    window,
                    to,
                    after,
                    last,
                    contents,
                }))
            }
            None => Arc::clone(&cursor.read),
        };

        let switched = self
            .switch
            .filter(|switch| !page.more && switch.snapshot == window.to);
        let progress = match switched {
            // Ordinals in the WAL begin at one: nothing of it is stored.
            Some(SwitchToWal { begins, .. }) => Progress::Wal {
                commit: *begins,
                through: Through::Ordinal(0),
                resume: *begins,
            },
            None => {
                let through = cursor
                    .continues_after
                    .map_or(Through::End, Through::Ordinal);
                let window = window.clone();
                let read = Arc::clone(&read);

                Progress::Outbox {
                    window,
                    through,
                    last_row: cursor.last_row,
                    read,
                }
            }
        };

        let sent = last.map(|last| SentPage {
            progress: progress.clone(),
            window,
            after,
            last,
        });

        let checkpoint = Checkpoint {
            lineage: cursor.lineage,
            progress,
        };

        let batch = Batch {
            changes,
            derived: Vec::new(),
            checkpoint,
            transaction: None,
            reader: Some(self.reader),
        };

        failpoint!("outbox_page_read_batch_not_sent")?;

        if switched.is_some() {
            failpoint!("last_outbox_page_read_batch_not_sent")?;
        }

        if self.batches.send(batch).await.is_err() {
            return Ok(ReadStep::Closed);
        }

        // Not before: until a page that counts as sent is stored, no later connection reads on.
        cursor.sent.extend(sent);
        cursor.read = read;

        Ok(if switched.is_some() {
            ReadStep::Switched
        } else {
            ReadStep::Read
        })
    }

    /// Deletes rows whose events are stored, on a server of this timeline.
    async fn clear(
        &mut self,
        cursor: &mut OutboxCursor,
        timeline: u32,
    ) -> Result<(), CaptureError> {
        while let Some(stored) = self.stored_of_first_window(cursor) {
            let SentPage { window, after, .. } = &cursor.sent[0];
            let reached = Cleared {
                window: window.number,
                row: stored.last,
            };

            failpoint!("outbox_rows_stored_not_deleted")?;
            let cleared = self.delete(timeline, &window.to, *after, reached).await?;

            failpoint!("outbox_rows_deleted_cursor_not_moved")?;
            cursor.add_floor(stored.last, cleared.transaction);
            cursor.cleared = cursor.cleared.max(reached);
            cursor.sent.drain(..stored.pages);
        }

        Ok(())
    }

    /// Returns the stored pages of the first page's window. None if there are none.
    fn stored_of_first_window(&self, cursor: &OutboxCursor) -> Option<StoredPages> {
        let durable = self.durable.borrow();
        let progress = &durable.as_ref()?.progress;
        let number = cursor.sent.front()?.window.number;
        let is_stored =
            |page: &&SentPage| page.window.number == number && progress.has_reached(&page.progress);
        let mut stored = StoredPages::default();

        for page in cursor.sent.iter().take_while(is_stored) {
            stored.last = stored.last.max(page.last);
            stored.pages += 1;
        }

        (stored.pages > 0).then_some(stored)
    }

    /// Enters a new epoch: on a new connection, after a crash of the server, or on a new timeline.
    /// A crash or a failover can undo transactions that a snapshot counts as ended, and assign
    /// their ids again: new rows would look as if they had been read. Therefore every row that was
    /// read is deleted first. All remaining rows are new.
    ///
    /// Rows are also deleted by their sequence number: numbers up to one that was read are never
    /// assigned again.
    async fn enter_epoch(
        &mut self,
        cursor: &mut OutboxCursor,
        server: &ServerState,
    ) -> Result<(), CaptureError> {
        let Some(epoch) = server.epoch.clone() else {
            return Err(PrimaryError::Standby.into());
        };

        let timeline = epoch.timeline;
        let is_new_timeline = timeline != cursor.lineage.timeline;
        if !is_new_timeline && server.cleared < cursor.cleared {
            return Err(PrimaryError::Gap(Gap::OutboxBehind).into());
        }

        if let Some(last) = cursor.sent.back().map(|page| &page.progress) {
            let is_stored = |durable: &Option<Checkpoint>| {
                durable
                    .as_ref()
                    .is_some_and(|durable| durable.progress.has_reached(last))
            };

            if self.durable.wait_for(is_stored).await.is_err() {
                return Ok(());
            }
        }

        if is_new_timeline {
            self.clear_after_failover(cursor, server.cleared, timeline)
                .await?;
        }

        cursor.forget_cleared(server.cleared);
        self.clear(cursor, timeline).await?;

        if !cursor.leftovers_cleared {
            self.clear_leftovers(cursor, timeline).await?;
            cursor.leftovers_cleared = true;
        }

        if is_new_timeline {
            tracing::warn!(
                from = cursor.lineage.timeline,
                to = timeline,
                "the primary is on a new timeline"
            );
            cursor.lineage.timeline = timeline;
        }

        (cursor.window, cursor.continues_after) = (Window::empty(cursor.window.number), None);
        (cursor.epoch, cursor.floors) = (Some(epoch), Floors::default());

        if let Some(assigned) = server.assigned {
            // The last row that was read may be one of an earlier outbox, whose numbers were
            // higher.
            let transaction = self
                .client
                .run(|client| page::begin_transaction(client, timeline))
                .await?;
            cursor.add_floor(cursor.last_row.min(assigned), transaction);
        }

        Ok(())
    }

    /// Deletes the rows that were read before a failover and that the new primary has not deleted:
    /// a deletion does not wait for a standby. Fails if some of them are missing, or if others have
    /// their numbers: then the new primary lacks commits.
    ///
    /// A page that the new primary has deleted was committed before its deletion, and so were all
    /// earlier ones.
    async fn clear_after_failover(
        &mut self,
        cursor: &OutboxCursor,
        cleared: Cleared,
        timeline: u32,
    ) -> Result<(), CaptureError> {
        let forked = || PrimaryError::Gap(Gap::OutboxForked { timeline });
        let pages = cursor
            .read
            .after(cleared.window, cleared.row)
            .ok_or_else(forked)?;

        // All or nothing: if the connection is lost in between, all pages are compared again.
        let transaction = self.client.transaction().await?;

        for page in pages {
            let reached = Cleared {
                window: page.window,
                row: page.last,
            };

            let clear =
                |transaction| page::clear(transaction, timeline, &page.to, page.after, reached);
            let found = transaction.run(clear).await?;
            if found.contents != page.contents {
                return Err(forked().into());
            }
        }

        transaction.commit().await
    }

    /// Deletes rows that an earlier process has read and left.
    async fn clear_leftovers(
        &self,
        cursor: &OutboxCursor,
        timeline: u32,
    ) -> Result<(), CaptureError> {
        let Window { number, from, to } = &cursor.window;
        let Some(row) = cursor.continues_after else {
            let reached = Cleared {
                window: *number,
                row: cursor.last_row,
            };

            self.delete(timeline, to, 0, reached).await?;
            return Ok(());
        };

        let before = Cleared {
            window: number.saturating_sub(1),
            row: cursor.last_row,
        };

        self.delete(timeline, from, 0, before).await?;

        self.delete(
            timeline,
            to,
            0,
            Cleared {
                window: *number,
                row,
            },
        )
        .await?;

        Ok(())
    }

    async fn delete(
        &self,
        timeline: u32,
        snapshot: &Snapshot,
        after: u64,
        reached: Cleared,
    ) -> Result<Clearing, CaptureError> {
        self.client
            .run(|client| page::clear(client, timeline, snapshot, after, reached))
            .await
    }
}
