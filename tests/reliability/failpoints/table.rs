//! Every failpoint of the program, with the boundary that it belongs to and the actions that make
//! sense there. Its name says what has happened and what has not.

/// A named point between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failpoint {
    pub name: &'static str,
    pub boundary: Boundary,
    pub actions: &'static [Action],
}

/// The steps between which a point lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Boundary {
    Capture,
    /// Capture by triggers.
    Outbox,
    /// Reading a log.
    Log,
    /// Setup of a store that reads a log, and reading one that has lost events.
    LogLoss,
    /// Reading a log that has dropped events.
    LogExpiry,
    Acknowledge,
    /// The acknowledgement of WAL without events.
    AcknowledgeIdle,
    Enqueue,
    Claim,
    Request,
    Record,
    /// Making rows of deliveries that were handed off and are not recorded for some seconds.
    Unpack,
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
    /// Splitting a cell. Its test walks the points: it needs clones of a server.
    Split,
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

use Action::{Fail, Kill, Stall};
use Boundary::{
    Acknowledge, AcknowledgeIdle, Cancel, Capture, Claim, EndSwitch, Enqueue, Erase, Log,
    LogExpiry, LogLoss, Migrate, MigrateOne, Notify, Outbox, PrepareTriggers, PrepareWal, Record,
    Recover, Reencrypt, RemoveTriggers, RemoveWalCapture, Repair, RepairOutbox, Replay, Request,
    Setup, SetupOutbox, Shutdown, Split, SwitchToTriggers, SwitchToWal, Teardown, Unpack,
};

const ALL: &[Action] = &[Kill, Fail, Stall];
/// For steps that hold no lease, or whose lease is renewed in the background.
const KILL_AND_FAIL: &[Action] = &[Kill, Fail];
const KILL: &[Action] = &[Kill];
/// For steps that cannot fail.
const KILL_AND_STALL: &[Action] = &[Kill, Stall];

/// Declares the points: boundary, name, actions.
macro_rules! table {
    ($($boundary:ident $name:literal $actions:ident;)+) => {
        /// All failpoints, in the order in which they are passed.
        pub const TABLE: &[Failpoint] = &[$(Failpoint {
            name: $name,
            boundary: $boundary,
            actions: $actions,
        }),+];
    };
}

table! {
    Capture "slot_taken_limit_not_claimed" ALL;
    Capture "changes_received_batch_not_sent" ALL;
    Outbox "outbox_lease_taken_checkpoint_not_claimed" KILL_AND_FAIL;
    Outbox "outbox_page_read_rows_not_flushed" KILL_AND_FAIL;
    Outbox "outbox_page_read_batch_not_sent" KILL_AND_FAIL;
    Outbox "outbox_rows_stored_not_deleted" KILL_AND_FAIL;
    Outbox "outbox_rows_deleted_cursor_not_moved" KILL_AND_FAIL;
    Log "log_lease_taken_checkpoint_not_claimed" KILL_AND_FAIL;
    Log "log_checkpoint_claimed_log_not_read" KILL_AND_FAIL;
    Log "log_page_read_batch_not_sent" KILL_AND_FAIL;
    LogLoss "log_compared_checkpoint_not_moved" KILL_AND_FAIL;
    LogExpiry "log_gap_recorded_events_not_sent" KILL_AND_FAIL;
    Acknowledge "events_stored_slot_not_acknowledged" ALL;
    AcknowledgeIdle "idle_wal_read_limit_not_raised" KILL_AND_FAIL;
    Enqueue "batch_received_events_not_derived" ALL;
    Enqueue "checkpoint_advanced_events_not_inserted" ALL;
    Enqueue "events_inserted_commit_not_sent" ALL;
    Enqueue "events_committed_answer_not_received" ALL;
    Enqueue "events_committed_capture_not_notified" KILL_AND_STALL;
    Claim "deliveries_leased_claim_not_committed" ALL;
    Claim "claim_committed_deliveries_not_queued" ALL;
    Request "attempt_started_request_not_sent" ALL;
    Request "request_answered_attempt_not_passed_on" KILL_AND_STALL;
    Record "attempts_received_not_recorded" KILL_AND_STALL;
    Record "attempts_written_record_not_committed" ALL;
    Record "record_committed_answer_not_received" ALL;
    Record "delivery_promoted_not_handed_off" KILL_AND_STALL;
    Unpack "handoff_unpacked_answer_not_received" ALL;
    Cancel "deliveries_cancelled_chunk_not_committed" ALL;
    Recover "recovery_rounds_started_progress_not_stored" KILL_AND_FAIL;
    Recover "job_step_done_not_committed" ALL;
    Replay "replay_deliveries_created_progress_not_stored" KILL_AND_FAIL;
    Replay "job_step_committed_answer_not_received" ALL;
    Notify "notice_claimed_mail_not_sent" ALL;
    Notify "mail_accepted_notice_not_ended" KILL_AND_STALL;
    Notify "mail_rejected_retry_not_stored" KILL_AND_FAIL;
    Shutdown "shutdown_started_limit_not_lowered" KILL_AND_STALL;
    Shutdown "shutdown_started_leases_not_released" ALL;
    Erase "access_removed_webhooks_not_removed" KILL_AND_FAIL;
    Erase "webhooks_removed_traces_not_removed" KILL_AND_FAIL;
    Erase "traces_removed_events_not_removed" KILL_AND_FAIL;
    Erase "events_removed_records_not_removed" KILL_AND_FAIL;
    Erase "rows_removed_erasure_not_ended" KILL_AND_FAIL;
    Repair "repair_noted_old_slot_not_dropped" KILL_AND_FAIL;
    Repair "new_slot_created_snapshot_not_imported" KILL_AND_FAIL;
    Repair "differences_raised_checkpoint_not_stored" KILL_AND_FAIL;
    Repair "repair_complete_not_committed" KILL_AND_FAIL;
    Repair "repair_committed_heads_not_due" KILL_AND_FAIL;
    RepairOutbox "trigger_failures_reset_snapshot_not_taken" KILL_AND_FAIL;
    Setup "store_migrated_primary_not_prepared" KILL_AND_FAIL;
    Setup "identity_remembered_not_set" KILL_AND_FAIL;
    Setup "identities_set_tables_not_published" KILL_AND_FAIL;
    Setup "slot_noted_not_created" KILL_AND_FAIL;
    Setup "slot_created_checkpoint_not_committed" KILL_AND_FAIL;
    Setup "checkpoint_committed_answer_not_received" KILL_AND_FAIL;
    SetupOutbox "triggers_created_checkpoint_not_stored" KILL_AND_FAIL;
    SetupOutbox "outbox_checkpoint_stored_position_not_recorded" KILL_AND_FAIL;
    Migrate "schema_created_tables_not_created" KILL_AND_FAIL;
    Migrate "migrations_applied_not_reported" KILL_AND_FAIL;
    MigrateOne "migration_committed_next_not_started" KILL_AND_FAIL;
    PrepareTriggers "triggers_changed_not_committed" KILL_AND_FAIL;
    PrepareTriggers "triggers_committed_answer_not_received" KILL_AND_FAIL;
    SwitchToTriggers "wal_read_outbox_lease_not_taken" ALL;
    SwitchToTriggers "outbox_claimed_last_batch_not_sent" KILL_AND_FAIL;
    SwitchToTriggers "switch_stored_outbox_not_read" KILL_AND_FAIL;
    PrepareWal "outbox_reading_stopped_tables_not_published" KILL_AND_FAIL;
    PrepareWal "tables_published_slot_not_noted" KILL_AND_FAIL;
    PrepareWal "slot_created_switch_not_committed" KILL_AND_FAIL;
    PrepareWal "switch_committed_answer_not_received" KILL_AND_FAIL;
    SwitchToWal "last_outbox_page_read_batch_not_sent" KILL_AND_FAIL;
    SwitchToWal "outbox_read_wal_not_started" KILL_AND_FAIL;
    RemoveWalCapture "slot_dropped_publication_not_dropped" KILL_AND_FAIL;
    RemoveWalCapture "publication_dropped_identities_not_restored" KILL_AND_FAIL;
    RemoveWalCapture "identity_restored_not_forgotten" KILL_AND_FAIL;
    RemoveTriggers "triggers_of_table_dropped_outbox_not_dropped" KILL_AND_FAIL;
    EndSwitch "outbox_dropped_switch_not_forgotten" KILL_AND_FAIL;
    Teardown "wal_capture_removed_triggers_not_removed" KILL_AND_FAIL;
    Teardown "primary_restored_checkpoint_not_deleted" KILL_AND_FAIL;
    Teardown "checkpoint_deleted_schema_not_dropped" KILL_AND_FAIL;
    Teardown "schema_dropped_answer_not_received" KILL_AND_FAIL;
    Reencrypt "value_reencrypted_next_not_read" KILL_AND_FAIL;
    Split "cell_has_halves_processes_run" KILL;
    Split "cell_is_prepared_clone_does_not_have_it" KILL;
    Split "log_has_halves_stores_have_not" KILL;
    Split "new_half_is_cell_old_is_not" KILL;
}
