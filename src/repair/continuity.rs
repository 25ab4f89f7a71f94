//! Verifies that the slot and the primary's timeline continue from the stored checkpoint, before
//! any change is read.

use jiff::SignedDuration;
use jiff::Timestamp;
use tokio_postgres::Client;

use super::gaps::GapLog;
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn, TimelineHistory};
use crate::domain::position::{Checkpoint, Progress};
use crate::primary::catalog::{self, SlotState};
use crate::primary::error::{PrimaryError, Result};
use crate::primary::finding::Severity;
use crate::primary::inspect::wal_level;
use crate::primary::lineage;
use crate::telemetry::recurring;

/// How often the checkpoint may move while it is compared with a new timeline. Then capture
/// reconnects.
const MOVES: u32 = 10;

pub(crate) struct VerifiedSlot {
    /// How far the server's clock is ahead of this machine's.
    pub clock_ahead: SignedDuration,
}

/// Verifies that the slot can continue from the stored checkpoint. A gap is recorded in the store
/// before it is returned.
pub(crate) async fn verify(client: &Client, gaps: GapLog<'_>) -> Result<VerifiedSlot> {
    let checkpoint = gaps.store.checkpoint(&gaps.source.slot).await?;
    let at = checkpoint
        .as_ref()
        .and_then(|checkpoint| checkpoint.progress.resume());

    match examine(client, gaps, checkpoint).await {
        Err(PrimaryError::Gap(gap)) => Err(gaps.record_and_end(gap, at).await),
        other => {
            gaps.report_open().await?;
            other
        }
    }
}

async fn examine(
    client: &Client,
    gaps: GapLog<'_>,
    checkpoint: Option<Checkpoint>,
) -> Result<VerifiedSlot> {
    if checkpoint
        .as_ref()
        .is_some_and(|checkpoint| checkpoint.progress.is_outbox())
    {
        return Err(PrimaryError::OutboxIsRead);
    }

    let server = catalog::server(client).await?;
    let clock_ahead = server.now.duration_since(Timestamp::now());
    let Some(found) = server.lineage() else {
        return Err(PrimaryError::Standby);
    };

    if let Some(checkpoint) = &checkpoint {
        // Before anything else is compared: on a replaced primary, slot and WAL differ from the
        // checkpoint without a gap.
        lineage::verify(found, checkpoint.lineage)?;
    }

    let wal_level = wal_level(&server);
    if wal_level.severity == Severity::Fail {
        return Err(PrimaryError::Preconditions(vec![wal_level]));
    }

    let Some(at) = checkpoint.and_then(|checkpoint| checkpoint.progress.resume()) else {
        return Err(match catalog::slot(client, &gaps.source.slot).await? {
            Some(_) => PrimaryError::SlotWithoutCheckpoint(gaps.slot()),
            None => PrimaryError::NotSetUp { slot: gaps.slot() },
        });
    };

    let slot = catalog::slot(client, &gaps.source.slot).await?;
    let slot = match SlotState::of(slot.as_ref(), &gaps.source.slot) {
        SlotState::Missing => {
            return Err(PrimaryError::Gap(Gap::SlotMissing {
                slot: gaps.slot(),
                at,
            }));
        }
        SlotState::Foreign(foreign) => return Err(PrimaryError::Preconditions(vec![foreign])),
        SlotState::Invalidated => {
            return Err(PrimaryError::Gap(Gap::SlotInvalidated {
                slot: gaps.slot(),
                at,
            }));
        }
        SlotState::Readable(slot) => slot,
    };

    if let Some(end) = server.flushed().filter(|end| *end < at) {
        return Err(PrimaryError::Gap(Gap::WalBehind { end, at }));
    }

    let open = gaps.store.open_gaps(&gaps.source.slot).await?;
    let unfinished = Gap::RepairUnfinished { slot: gaps.slot() };

    if open.iter().any(|gap| gap.reason == unfinished.reason()) {
        return Err(PrimaryError::Gap(unfinished));
    }

    // These are found while streaming, by what only one process knows or at the cost of a stream
    // that fails.
    for gap in [
        Gap::WalMissing {
            slot: gaps.slot(),
            at,
        },
        Gap::StoreBehind {
            slot: gaps.slot(),
            at,
        },
    ] {
        if open.iter().any(|open| open.reason == gap.reason()) {
            return Err(PrimaryError::Gap(gap));
        }
    }

    // Read after the slot: a process of Walhook stores both before it advances the slot.
    let limit = gaps.store.acknowledgement_limit(&gaps.source.slot).await?;
    let resume = gaps
        .store
        .checkpoint(&gaps.source.slot)
        .await?
        .and_then(|checkpoint| checkpoint.progress.resume());
    let at = limit.max(resume.unwrap_or(Lsn::ZERO));
    if let Some(found) = slot.confirmed().filter(|confirmed| *confirmed > at) {
        return Err(PrimaryError::Gap(Gap::SlotAhead {
            slot: gaps.slot(),
            found,
            at,
        }));
    }

    Ok(VerifiedSlot { clock_ahead })
}

/// Returns whether the store still has what this process committed. It does not if it was restored,
/// or failed over without its last commits. If the slot no longer has their changes either, that is
/// a gap, which is recorded in the store before it is returned.
pub(crate) async fn has_commits(client: &Client, gaps: GapLog<'_>) -> Result<bool> {
    let Some(found) = gaps
        .store
        .checkpoint(&gaps.source.slot)
        .await?
        .filter(|found| gaps.store.has_lost_commits(found))
    else {
        return Ok(true);
    };

    let Some(at) = found.progress.resume() else {
        return Ok(true);
    };

    let confirmed = catalog::slot(client, &gaps.source.slot)
        .await?
        .and_then(|slot| slot.confirmed());
    if confirmed.is_some_and(|confirmed| confirmed > at) {
        let gap = Gap::StoreBehind {
            slot: gaps.slot(),
            at,
        };
        return Err(gaps.record_and_end(gap, Some(at)).await);
    }

    Ok(false)
}

/// Moves the stored checkpoint to the timeline that the stream was opened on, and returns it with
/// that timeline's history. A gap is recorded in the store before it is returned.
///
/// The timeline is stored only if the checkpoint is still the one that was compared with the
/// server's history. A batch of the earlier timeline is therefore either stored and compared, or
/// rejected later, whichever process has read it; the update waits for a concurrent commit.
pub(crate) async fn enter_timeline(
    client: &Client,
    found: Lineage,
    history: Option<TimelineHistory>,
    gaps: GapLog<'_>,
) -> Result<(Checkpoint, TimelineHistory)> {
    // Before the checkpoint: if a replica has moved the slot on the new timeline, the checkpoint
    // that is read is on it too.
    let confirmed = catalog::slot(client, &gaps.source.slot)
        .await?
        .and_then(|slot| slot.confirmed());

    for _ in 0..MOVES {
        let Some(known) = gaps.store.checkpoint(&gaps.source.slot).await? else {
            return Err(PrimaryError::NotSetUp { slot: gaps.slot() });
        };

        // Another replica may have entered a later timeline since the server was verified.
        lineage::verify(found, known.lineage)?;

        if found == known.lineage {
            // Without the history file, earlier timelines are unknown.
            let history =
                history.unwrap_or_else(|| TimelineHistory::new(found.timeline, Vec::new()));
            return Ok((known, history));
        }

        let Some(history) = &history else {
            return Err(PrimaryError::Protocol(format!(
                "the server has no history of its timeline {}",
                found.timeline
            )));
        };

        let descends = descends(&known, history)
            .and_then(|()| continues(&known, confirmed, &gaps.source.slot, history));
        if let Err(gap) = descends {
            return Err(gaps.record_and_end(gap, known.progress.resume()).await);
        }

        if gaps
            .store
            .enter_timeline(&gaps.source.slot, &known, found.timeline)
            .await?
        {
            let from = known.lineage.timeline;
            let to = found.timeline;
            recurring!(warn, from, to, "the primary is on a new timeline");

            return Ok((
                Checkpoint {
                    lineage: found,
                    ..known
                },
                history.clone(),
            ));
        }
    }

    Err(PrimaryError::CheckpointMoves(gaps.slot()))
}

/// Verifies that the checkpoint is part of the history of the server's timeline.
fn descends(checkpoint: &Checkpoint, history: &TimelineHistory) -> Result<(), Gap> {
    let known = checkpoint.lineage.timeline;
    let timeline = history.current();
    let Some(switch) = history.end_of(known) else {
        return Err(Gap::TimelineUnknown {
            known,
            found: timeline,
        });
    };

    let Progress::Wal { commit, resume, .. } = checkpoint.progress else {
        return Ok(());
    };

    // A partly stored transaction must also have committed before the switch.
    if resume > switch || (commit > resume && commit >= switch) {
        return Err(Gap::TimelineForked {
            timeline,
            switch,
            at: resume.max(commit),
        });
    }

    Ok(())
}

/// Verifies that the slot continues from the checkpoint's timeline. A synchronized slot does: it is
/// never beyond the WAL that the standby had received. A slot beyond the end of that timeline was
/// created or advanced on a later one, by something else than Walhook.
fn continues(
    checkpoint: &Checkpoint,
    confirmed: Option<Lsn>,
    slot: &str,
    history: &TimelineHistory,
) -> Result<(), Gap> {
    match (confirmed, history.end_of(checkpoint.lineage.timeline)) {
        (Some(found), Some(at)) if found > at => Err(Gap::SlotAhead {
            slot: slot.to_owned(),
            found,
            at,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lsn::Lineage;
    use crate::domain::position::Through;

    fn checkpoint(commit: u64, resume: u64) -> Checkpoint {
        Checkpoint {
            lineage: Lineage {
                system_identifier: 7,
                timeline: 2,
            },
            progress: Progress::Wal {
                commit: Lsn(commit),
                through: Through::Ordinal(3),
                resume: Lsn(resume),
            },
        }
    }

    #[test]
    fn a_checkpoint_after_the_timeline_switch_is_a_gap() {
        let history = TimelineHistory::new(3, vec![(1, Lsn(50)), (2, Lsn(100))]);
        assert_eq!(descends(&checkpoint(90, 95), &history), Ok(()));
        assert_eq!(descends(&checkpoint(99, 100), &history), Ok(()));
        assert_eq!(
            descends(&checkpoint(100, 100), &history),
            Ok(()),
            "a first checkpoint exactly at the switch"
        );
        assert_eq!(
            descends(&checkpoint(101, 102), &history)
                .unwrap_err()
                .reason(),
            "timeline_forked"
        );

        assert_eq!(
            descends(&checkpoint(100, 95), &history)
                .unwrap_err()
                .reason(),
            "timeline_forked",
            "part of a transaction that is not on the new timeline"
        );
    }

    #[test]
    fn a_slot_beyond_the_end_of_the_checkpoint_s_timeline_is_a_gap() {
        let history = TimelineHistory::new(4, vec![(1, Lsn(50)), (2, Lsn(100)), (3, Lsn(200))]);
        let reason = |confirmed: Option<u64>| {
            continues(&checkpoint(90, 95), confirmed.map(Lsn), "walhook", &history)
                .map_err(|gap| gap.reason())
        };

        assert_eq!(reason(None), Ok(()));
        assert_eq!(
            reason(Some(100)),
            Ok(()),
            "idle WAL was acknowledged up to the switch"
        );
        assert_eq!(reason(Some(101)), Err("slot_ahead"));
        assert_eq!(
            reason(Some(201)),
            Err("slot_ahead"),
            "created after a second failover"
        );
    }

    #[test]
    fn an_unrelated_timeline_is_a_gap() {
        let history = TimelineHistory::new(3, vec![(1, Lsn(50))]);
        assert_eq!(
            descends(&checkpoint(9, 9), &history).unwrap_err().reason(),
            "timeline_unknown"
        );
    }
}
