//! What must hold between the slot, the primary's history and the stored checkpoint before a single change is read.

use jiff::SignedDuration;
use jiff::Timestamp;
use tokio_postgres::Client;

use super::gaps;
use crate::capture::CaptureError;
use crate::capture::error::Gap;
use crate::capture::replication::ReplicationConnection;
use crate::config::Source;
use crate::domain::lsn::{Lsn, TimelineHistory};
use crate::domain::position::{Checkpoint, Progress};
use crate::health::Health;
use crate::primary::catalog;
use crate::store::Store;
use crate::telemetry::recurring;

/// How often the checkpoint may move while it is compared with a new timeline, before that is begun again.
const MOVES: u32 = 10;

pub(crate) struct Verified {
    /// How far the server's clock is ahead of ours.
    pub clock_ahead: SignedDuration,
}

/// Whether the slot can continue from the stored checkpoint. A gap is recorded in the store before it is returned.
pub(crate) async fn verify(
    client: &Client,
    source: &Source,
    store: &Store,
    health: &Health,
) -> Result<Verified, CaptureError> {
    let checkpoint = store.checkpoint(&source.slot).await?;
    let at = checkpoint.as_ref().and_then(|checkpoint| checkpoint.progress.resume());
    match examine(client, source, store, checkpoint).await {
        Err(CaptureError::Gap(gap)) => Err(gaps::record(source, store, health, gap, at).await),
        other => {
            gaps::tell(source, store, health).await?;
            other
        }
    }
}

async fn examine(
    client: &Client,
    source: &Source,
    store: &Store,
    checkpoint: Option<Checkpoint>,
) -> Result<Verified, CaptureError> {
    if checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.progress.is_outbox()) {
        return Err(CaptureError::OutboxIsRead);
    }
    let server = catalog::server(client).await?;
    let clock_ahead = server.now.duration_since(Timestamp::now());
    if server.in_recovery {
        return Err(CaptureError::Standby);
    }
    if server.wal_level != "logical" {
        return Err(CaptureError::WalLevel(server.wal_level));
    }
    let Some((checkpoint, at)) =
        checkpoint.and_then(|checkpoint| Some((checkpoint.lineage, checkpoint.progress.resume()?)))
    else {
        return Err(match catalog::slot(client, &source.slot).await? {
            Some(_) => CaptureError::SlotWithoutCheckpoint(source.slot.clone()),
            None => CaptureError::NotSetUp { slot: source.slot.clone() },
        });
    };
    let found = server.system_identifier as u64;
    if found != checkpoint.system_identifier {
        return Err(CaptureError::ForeignCluster { known: checkpoint.system_identifier, found });
    }
    let Some(slot) = catalog::slot(client, &source.slot).await? else {
        return Err(CaptureError::Gap(Gap::SlotMissing { slot: source.slot.clone(), at }));
    };
    if let Some(found) = slot.foreign() {
        return Err(CaptureError::ForeignSlot { slot: source.slot.clone(), found });
    }
    if slot.is_lost() {
        return Err(CaptureError::Gap(Gap::SlotInvalidated { slot: source.slot.clone(), at }));
    }
    if let Some(end) = server.flushed.filter(|end| *end < at) {
        return Err(CaptureError::Gap(Gap::LogBehind { end, at }));
    }
    let open = store.open_gaps(&source.slot).await?;
    let unfinished = Gap::RepairUnfinished { slot: source.slot.clone() };
    if open.iter().any(|gap| gap.reason == unfinished.reason()) {
        return Err(CaptureError::Gap(unfinished));
    }
    // Both are read behind the slot itself: whoever moved it rightly had stored them before.
    let limit = store.acknowledgement_limit(&source.slot).await?;
    let resume = store.checkpoint(&source.slot).await?.and_then(|checkpoint| checkpoint.progress.resume());
    let at = limit.max(resume.unwrap_or(Lsn::ZERO));
    if let Some(found) = slot.confirmed.filter(|confirmed| *confirmed > at) {
        return Err(CaptureError::Gap(Gap::SlotAhead { slot: source.slot.clone(), found, at }));
    }
    if catalog::publication(client, &source.publication).await?.is_none() {
        return Err(CaptureError::NoPublication(source.publication.clone()));
    }
    Ok(Verified { clock_ahead })
}

/// The stored checkpoint, on the timeline of the stream's server, and that timeline's history. A gap is recorded in the store
/// before it is returned.
///
/// A timeline that is new to the store is written there first, where the checkpoint still is what was compared with the server's
/// history: a batch of the timeline before is either stored already, and compared too, or never is. Whether it is this process
/// that has it or another makes no difference, nor whether its commit is under way: this one waits for it.
pub(crate) async fn enter_timeline(
    stream: &mut ReplicationConnection,
    source: &Source,
    store: &Store,
    health: &Health,
) -> Result<(Checkpoint, TimelineHistory), CaptureError> {
    let found = stream.lineage();
    let history = stream.timeline_history().await?;
    for _ in 0..MOVES {
        let Some(known) = store.checkpoint(&source.slot).await? else {
            return Err(CaptureError::NotSetUp { slot: source.slot.clone() });
        };
        if found.system_identifier != known.lineage.system_identifier {
            let (known, found) = (known.lineage.system_identifier, found.system_identifier);
            return Err(CaptureError::ForeignCluster { known, found });
        }
        if found == known.lineage {
            // Without the file, what is older than the timeline cannot be told from what is not.
            let history = history.unwrap_or_else(|| TimelineHistory::new(found.timeline, Vec::new()));
            return Ok((known, history));
        }
        let Some(history) = &history else {
            return Err(CaptureError::Protocol(format!(
                "the server has no history of its timeline {}",
                found.timeline
            )));
        };
        if let Err(gap) = descends(&known, history) {
            return Err(gaps::record(source, store, health, gap, known.progress.resume()).await);
        }
        if store.enter_timeline(&source.slot, &known, found.timeline).await? {
            let (from, to) = (known.lineage.timeline, found.timeline);
            recurring!(warn, from, to, "the primary is on a new timeline");
            return Ok((Checkpoint { lineage: found, ..known }, history.clone()));
        }
    }
    Err(CaptureError::CheckpointMoves(source.slot.clone()))
}

/// Whether what the store has is part of the history of the server's timeline.
fn descends(checkpoint: &Checkpoint, history: &TimelineHistory) -> Result<(), Gap> {
    let (known, timeline) = (checkpoint.lineage.timeline, history.current());
    let Some(switch) = history.end_of(known) else {
        return Err(Gap::TimelineUnknown { known, found: timeline });
    };
    let Progress::Wal { commit, resume, .. } = checkpoint.progress else { return Ok(()) };
    // A transaction in part stored must have its commit before the switch too.
    if resume > switch || (commit > resume && commit >= switch) {
        return Err(Gap::TimelineForked { timeline, switch, at: resume.max(commit) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lsn::Lineage;
    use crate::domain::position::Through;

    fn checkpoint(commit: u64, resume: u64) -> Checkpoint {
        Checkpoint {
            lineage: Lineage { system_identifier: 7, timeline: 2 },
            progress: Progress::Wal { commit: Lsn(commit), through: Through::Ordinal(3), resume: Lsn(resume) },
        }
    }

    #[test]
    fn a_checkpoint_before_the_switch_goes_on_and_one_behind_it_is_a_gap() {
        let history = TimelineHistory::new(3, vec![(1, Lsn(50)), (2, Lsn(100))]);
        assert_eq!(descends(&checkpoint(90, 95), &history), Ok(()));
        assert_eq!(descends(&checkpoint(99, 100), &history), Ok(()));
        assert_eq!(descends(&checkpoint(100, 100), &history), Ok(()), "a first checkpoint at the very switch");
        assert_eq!(descends(&checkpoint(101, 102), &history).unwrap_err().reason(), "timeline_forked");
        assert_eq!(
            descends(&checkpoint(100, 95), &history).unwrap_err().reason(),
            "timeline_forked",
            "part of a transaction that did not survive"
        );
    }

    #[test]
    fn an_unrelated_or_earlier_timeline_is_a_gap() {
        for history in [TimelineHistory::new(3, vec![(1, Lsn(50))]), TimelineHistory::new(1, Vec::new())] {
            assert_eq!(descends(&checkpoint(9, 9), &history).unwrap_err().reason(), "timeline_unknown");
        }
    }
}
