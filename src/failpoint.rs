//! Failpoints: named points at which a test makes the process die, fail or stall. Each is a
//! boundary between two steps, and its name says what has happened and what has not.
//!
//! They exist only in builds with the feature `failpoints`, which shipped builds do not have. The
//! environment variable `FAILPOINTS` arms them, in the format of the crate `fail`:
//! `events_stored_slot_not_acknowledged=1*return(kill)`. Without the variable they do nothing.
//! `tests/reliability/failpoints` walks [`TABLE`].

use std::fmt;

#[cfg(all(feature = "dist", feature = "failpoints"))]
compile_error!("the feature `failpoints` is for tests, and shipped builds (`dist`) do not have it");

/// A named point between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failpoint {
    pub name: &'static str,
    pub boundary: Boundary,
    /// What has happened when the point is reached.
    pub happened: &'static str,
    /// What has not happened yet.
    pub pending: &'static str,
    /// The actions that make sense there.
    pub actions: &'static [Action],
}

/// The steps between which a point lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Boundary {
    Capture,
    /// Capture by triggers.
    Outbox,
    Acknowledge,
    /// The acknowledgement of WAL without events.
    AcknowledgeIdle,
    Enqueue,
    HandOff,
    Claim,
    Request,
    Record,
    /// The cancellation of what a webhook had pending when it was switched off.
    Cancel,
    Recover,
    Replay,
    Notify,
    Shutdown,
    Erase,
    Repair,
    /// Repair of capture by triggers.
    RepairOutbox,
    Setup,
    /// Setup of capture by triggers.
    SetupOutbox,
    Migrate,
    MigrateOne,
    /// Setup of a switch from the WAL to triggers.
    PrepareTriggers,
    /// The switch itself, in the process that reads the WAL.
    SwitchToTriggers,
    /// Setup of a switch from triggers to the WAL.
    PrepareWal,
    /// The switch itself, in the process that reads the outbox.
    SwitchToWal,
    /// The end of a switch to triggers, and a part of teardown.
    RemoveWalCapture,
    /// The end of a switch to the WAL, and a part of teardown.
    RemoveTriggers,
    /// The end of a switch to the WAL.
    EndSwitch,
    Teardown,
    Reencrypt,
}

/// What happens at a point that is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The process kills itself (SIGKILL).
    Kill,
    /// An error is returned, as if the step before had lost its answer.
    Fail,
    /// The task sleeps for longer than every lease that it holds. The rest of the process
    /// continues.
    Stall,
}

impl Action {
    /// The argument of `return` in `FAILPOINTS`. A number of milliseconds follows `stall`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Kill => "kill",
            Action::Fail => "fail",
            Action::Stall => "stall",
        }
    }
}

/// What a process reports, behind the point's name, when a stall has ended.
pub const CONTINUES: &str = "continues";

/// The error of a point with the action [`Action::Fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected(&'static str);

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failpoint {}", self.0)
    }
}

impl std::error::Error for Injected {}

use Action::{Fail, Kill, Stall};
use Boundary::{
    Acknowledge, AcknowledgeIdle, Cancel, Capture, Claim, EndSwitch, Enqueue, Erase, HandOff,
    Migrate, MigrateOne, Notify, Outbox, PrepareTriggers, PrepareWal, Record, Recover, Reencrypt,
    RemoveTriggers, RemoveWalCapture, Repair, RepairOutbox, Replay, Request, Setup, SetupOutbox,
    Shutdown, SwitchToTriggers, SwitchToWal, Teardown,
};

const ALL: &[Action] = &[Kill, Fail, Stall];
/// For steps that hold no lease, or whose lease is renewed in the background.
const KILL_AND_FAIL: &[Action] = &[Kill, Fail];
/// For steps that cannot fail.
const KILL_AND_STALL: &[Action] = &[Kill, Stall];

/// Declares the points: boundary, name, actions, what has happened, what has not.
macro_rules! table {
    ($($boundary:ident $name:literal $actions:ident: $happened:literal, not $pending:literal;)+) => {
        /// All failpoints. Each is used exactly once (`tests/tidy.rs`).
        pub const TABLE: &[Failpoint] = &[$(Failpoint {
            name: $name,
            boundary: $boundary,
            happened: $happened,
            pending: $pending,
            actions: $actions,
        }),+];
    };
}

table! {
    Capture "slot_taken_limit_not_claimed" ALL:
        "this process streams from the slot", not "it moves the acknowledgement limit";
    Capture "changes_received_batch_not_sent" ALL:
        "changes were received from the slot", not "they were passed to enqueue";
    Outbox "outbox_lease_taken_checkpoint_not_claimed" KILL_AND_FAIL:
        "this process has the lease on the outbox", not "it has claimed the checkpoint";
    Outbox "outbox_page_read_rows_not_flushed" KILL_AND_FAIL:
        "rows of the outbox were read", not "it is certain that a crash of the primary cannot undo them";
    Outbox "outbox_page_read_batch_not_sent" KILL_AND_FAIL:
        "rows of the outbox were read", not "they were passed to enqueue";
    Outbox "outbox_rows_stored_not_deleted" KILL_AND_FAIL:
        "events of rows of the outbox are stored", not "the rows were deleted";
    Outbox "outbox_rows_deleted_cursor_not_moved" KILL_AND_FAIL:
        "stored rows were deleted from the outbox", not "this process knows it";
    Acknowledge "events_stored_slot_not_acknowledged" ALL:
        "events and checkpoint are stored", not "their WAL was acknowledged to the slot";
    AcknowledgeIdle "idle_wal_read_limit_not_raised" KILL_AND_FAIL:
        "WAL without events was read", not "the limit up to which it may be acknowledged was raised";
    Enqueue "batch_received_events_not_derived" ALL:
        "enqueue has a batch of changes", not "their events were derived";
    Enqueue "checkpoint_advanced_events_not_inserted" ALL:
        "the open transaction has advanced the checkpoint", not "it has the events";
    Enqueue "events_inserted_commit_not_sent" ALL:
        "the open transaction has events, ledger and checkpoint", not "the commit was sent";
    Enqueue "events_committed_answer_not_received" ALL:
        "the events are committed", not "enqueue knows it";
    Enqueue "events_committed_capture_not_notified" KILL_AND_STALL:
        "the events are committed and enqueue knows it", not "capture knows how far it may acknowledge";
    HandOff "deliveries_handed_off_events_not_committed" ALL:
        "the dispatcher has fresh deliveries", not "the transaction with them is committed";
    HandOff "events_committed_heads_not_handed_off" ALL:
        "deliveries with an order key are committed under a lease", not "the dispatcher has the first ones";
    Claim "deliveries_leased_claim_not_committed" ALL:
        "the open transaction has leased due deliveries", not "it is committed";
    Claim "claim_committed_deliveries_not_queued" ALL:
        "due deliveries are leased to this process", not "the dispatcher has them";
    Request "attempt_started_request_not_sent" ALL:
        "the lease was checked and an attempt has a permit", not "its request was sent";
    Request "request_answered_attempt_not_passed_on" KILL_AND_STALL:
        "the receiver has answered", not "the recording stage has the answer";
    Record "attempts_received_not_recorded" KILL_AND_STALL:
        "the recording stage has a batch of attempts", not "a transaction records them";
    Record "attempts_written_record_not_committed" ALL:
        "the open transaction has rows of the attempt log, next states and counters", not "it is committed";
    Record "record_committed_answer_not_received" ALL:
        "attempts are recorded and the next deliveries of their keys are leased", not "the recording stage knows it";
    Record "delivery_promoted_not_handed_off" KILL_AND_STALL:
        "the next delivery of a key is leased to this process", not "the dispatcher has it";
    Cancel "deliveries_cancelled_chunk_not_committed" ALL:
        "the open transaction has cancelled deliveries of an inactive webhook", not "it is committed";
    Recover "recovery_rounds_started_progress_not_stored" KILL_AND_FAIL:
        "the open transaction has started rounds of a recovery", not "it has the recovery's progress";
    Recover "job_step_done_not_committed" ALL:
        "the open transaction has a whole step of a job", not "it is committed";
    Replay "replay_deliveries_created_progress_not_stored" KILL_AND_FAIL:
        "the open transaction has deliveries of a replay", not "it has the replay's progress";
    Replay "job_step_committed_answer_not_received" ALL:
        "a step of a job is committed", not "the recovery stage knows it";
    Notify "notice_claimed_mail_not_sent" ALL:
        "a notice is leased to this process", not "the mail was sent";
    Notify "mail_accepted_notice_not_ended" KILL_AND_STALL:
        "the mail server has accepted the mail", not "the store has the notice's end";
    Notify "mail_rejected_retry_not_stored" KILL_AND_FAIL:
        "the mail server has rejected the mail", not "the store has the time of the next try";
    Shutdown "shutdown_started_limit_not_lowered" KILL_AND_STALL:
        "capture has started to shut down", not "the acknowledgement limit was lowered";
    Shutdown "shutdown_started_leases_not_released" ALL:
        "the dispatcher has started to shut down", not "the leases of waiting deliveries were released";
    Erase "access_removed_webhooks_not_removed" KILL_AND_FAIL:
        "a user's tokens and sessions are removed", not "the webhooks are";
    Erase "webhooks_removed_traces_not_removed" KILL_AND_FAIL:
        "a user's webhooks are removed", not "their jobs, deliveries and attempt logs are";
    Erase "traces_removed_events_not_removed" KILL_AND_FAIL:
        "the rows of a user's webhooks are removed", not "the user's events are";
    Erase "events_removed_records_not_removed" KILL_AND_FAIL:
        "a user's events are removed", not "notices and audit records are";
    Erase "rows_removed_erasure_not_ended" KILL_AND_FAIL:
        "nothing of a user is left", not "the command has ended";
    Repair "repair_noted_old_slot_not_dropped" KILL_AND_FAIL:
        "the store notes an unfinished repair", not "the old slot was dropped";
    Repair "new_slot_created_snapshot_not_imported" KILL_AND_FAIL:
        "the new slot exists", not "its snapshot was imported";
    Repair "differences_raised_checkpoint_not_stored" KILL_AND_FAIL:
        "the open transaction has the missed events", not "it has the new checkpoint";
    Repair "repair_complete_not_committed" KILL_AND_FAIL:
        "the open transaction has the whole repair", not "it is committed";
    Repair "repair_committed_heads_not_due" KILL_AND_FAIL:
        "the repair is committed", not "the first deliveries of ordered webhooks are due";
    RepairOutbox "trigger_failures_reset_snapshot_not_taken" KILL_AND_FAIL:
        "the count of failed triggers is reset on the primary", not "the snapshot to compare with was taken";
    Setup "store_migrated_primary_not_prepared" KILL_AND_FAIL:
        "the store's schema is migrated", not "anything on the primary has changed";
    Setup "identity_remembered_not_set" KILL_AND_FAIL:
        "the store has a table's replica identity", not "it was changed";
    Setup "identities_set_tables_not_published" KILL_AND_FAIL:
        "the replica identities are set", not "the publication exists";
    Setup "slot_noted_not_created" KILL_AND_FAIL:
        "the store notes that the slot is being created", not "it exists";
    Setup "slot_created_checkpoint_not_committed" KILL_AND_FAIL:
        "the slot exists and the open transaction has its checkpoint", not "it is committed";
    Setup "checkpoint_committed_answer_not_received" KILL_AND_FAIL:
        "the slot exists and its checkpoint is committed", not "setup knows it";
    SetupOutbox "triggers_created_checkpoint_not_stored" KILL_AND_FAIL:
        "the triggers write to the outbox", not "the store has the position from which it is read";
    SetupOutbox "outbox_checkpoint_stored_position_not_recorded" KILL_AND_FAIL:
        "the store has the position from which the outbox is read", not "the primary has it";
    Migrate "schema_created_tables_not_created" KILL_AND_FAIL:
        "the store has an empty schema", not "any migration was applied";
    Migrate "migrations_applied_not_reported" KILL_AND_FAIL:
        "all migrations are applied", not "setup knows it";
    MigrateOne "migration_committed_next_not_started" KILL_AND_FAIL:
        "a migration is committed", not "the next one was started";
    PrepareTriggers "triggers_changed_not_committed" KILL_AND_FAIL:
        "the open transaction has the triggers and the message in the WAL", not "it is committed";
    PrepareTriggers "triggers_committed_answer_not_received" KILL_AND_FAIL:
        "the triggers and the message are committed", not "setup knows it";
    SwitchToTriggers "wal_read_outbox_lease_not_taken" ALL:
        "the WAL is read up to the switch", not "this process has the lease on the outbox";
    SwitchToTriggers "outbox_claimed_last_batch_not_sent" KILL_AND_FAIL:
        "this process has claimed the checkpoint", not "the last batch of the WAL was passed to enqueue";
    SwitchToTriggers "switch_stored_outbox_not_read" KILL_AND_FAIL:
        "the last batch and the start of the outbox are stored", not "the outbox is read";
    PrepareWal "outbox_reading_stopped_tables_not_published" KILL_AND_FAIL:
        "setup has the lease on the outbox", not "identities and publication are restored";
    PrepareWal "tables_published_slot_not_noted" KILL_AND_FAIL:
        "identities and publication are restored", not "the store notes that the slot is being created";
    PrepareWal "slot_created_switch_not_committed" KILL_AND_FAIL:
        "the slot exists and the open transaction has the switch", not "it is committed";
    PrepareWal "switch_committed_answer_not_received" KILL_AND_FAIL:
        "the slot exists and the switch is committed", not "setup knows it";
    SwitchToWal "last_outbox_page_read_batch_not_sent" KILL_AND_FAIL:
        "the rows of the outbox up to the switch were read", not "they were passed to enqueue";
    SwitchToWal "outbox_read_wal_not_started" KILL_AND_FAIL:
        "the last page of the outbox and the start of the WAL are stored", not "the WAL is read";
    RemoveWalCapture "slot_dropped_publication_not_dropped" KILL_AND_FAIL:
        "the slot is dropped", not "the publication is";
    RemoveWalCapture "publication_dropped_identities_not_restored" KILL_AND_FAIL:
        "the publication is dropped", not "the replica identities are restored";
    RemoveWalCapture "identity_restored_not_forgotten" KILL_AND_FAIL:
        "a table has its earlier replica identity again", not "the store has forgotten it";
    RemoveTriggers "triggers_of_table_dropped_outbox_not_dropped" KILL_AND_FAIL:
        "the triggers of one table are dropped", not "those of the others and the outbox are";
    EndSwitch "outbox_dropped_switch_not_forgotten" KILL_AND_FAIL:
        "the triggers and the outbox are dropped", not "the store has forgotten the switch";
    Teardown "wal_capture_removed_triggers_not_removed" KILL_AND_FAIL:
        "slot, publication, identities and indexes are removed", not "the triggers are";
    Teardown "primary_restored_checkpoint_not_deleted" KILL_AND_FAIL:
        "nothing is left on the primary", not "the store has forgotten the checkpoint";
    Teardown "checkpoint_deleted_schema_not_dropped" KILL_AND_FAIL:
        "the checkpoint is deleted", not "the store's schema is dropped";
    Teardown "schema_dropped_answer_not_received" KILL_AND_FAIL:
        "the store's schema is dropped", not "teardown knows it";
    Reencrypt "value_reencrypted_next_not_read" KILL_AND_FAIL:
        "a value is encrypted with the new master key", not "the next one is";
}

/// Returns the point with this name. For use in constants: an unknown name does not compile.
pub const fn find(name: &str) -> &'static Failpoint {
    let mut index = 0;
    while index < TABLE.len() {
        if is_same(TABLE[index].name.as_bytes(), name.as_bytes()) {
            return &TABLE[index];
        }

        index += 1;
    }

    panic!("the table of failpoints lacks this name");
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }

    index == one.len() && index == other.len()
}

/// Reaches a failpoint, and evaluates to `Result<(), Injected>`. To be used in async functions.
macro_rules! failpoint {
    ($name:literal) => {{
        const POINT: &$crate::failpoint::Failpoint = $crate::failpoint::find($name);
        #[cfg(feature = "failpoints")]
        let reached = $crate::failpoint::reach(POINT).await;
        #[cfg(not(feature = "failpoints"))]
        let reached = $crate::failpoint::nothing(POINT);
        reached
    }};
}
pub(crate) use failpoint;

#[cfg(feature = "failpoints")]
pub use armed::{reach, start};

/// What a point does in a build without failpoints.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) const fn nothing(_: &'static Failpoint) -> Result<(), Injected> {
    Ok(())
}

/// Arms nothing in a build without failpoints.
#[cfg(not(feature = "failpoints"))]
pub const fn start() {}

#[cfg(feature = "failpoints")]
mod armed {
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Action, CONTINUES, Failpoint, Injected};

    /// Arms the points that `FAILPOINTS` names. Panics if it is malformed. Must be called once per
    /// process.
    pub fn start() {
        // Its drop would disarm them.
        std::mem::forget(fail::FailScenario::setup());
    }

    /// Does what the point is armed with. Reports it first, on standard error, so that a test knows
    /// that the point was reached.
    pub async fn reach(point: &'static Failpoint) -> Result<(), Injected> {
        let Some(argument) = argument_of(point.name) else {
            return Ok(());
        };

        eprintln!("failpoint {}: {argument}", point.name);
        let (action, milliseconds) = argument.split_once(' ').unwrap_or((&argument, "0"));
        if action == Action::Kill.as_str() {
            let _ = kill_process(getpid(), Signal::KILL);
            std::future::pending().await
        } else if action == Action::Stall.as_str() {
            let milliseconds = milliseconds
                .parse()
                .expect("FAILPOINTS has a number of milliseconds after `stall`");
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;

            // Not printed if the sleep was cancelled: a test waits for it before it stops the
            // process.
            eprintln!("failpoint {}: {CONTINUES}", point.name);
            Ok(())
        } else {
            Err(Injected(point.name))
        }
    }

    fn argument_of(name: &str) -> Option<String> {
        fail::fail_point!(name, |argument| argument);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_point_has_its_own_name_and_says_what_has_not_happened() {
        let names: BTreeSet<&str> = TABLE.iter().map(|point| point.name).collect();
        assert_eq!(names.len(), TABLE.len());

        for point in TABLE {
            assert!(point.name.contains("_not_"), "{}", point.name);
            assert!(point.actions.contains(&Kill), "{}", point.name);
            assert_eq!(find(point.name), point);
        }
    }
}
