//! Set-up of logs and metrics, and the name of every metric.

mod condition;
mod logs;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

pub(crate) use condition::recurring;
pub use condition::{Activity, Condition, Recurring};
pub use logs::{log_fatal, start};

pub const EVENTS: &str = "walhook_events_total";
pub const UNROUTED_EVENTS: &str = "walhook_unrouted_events_total";
pub const IGNORED_TRANSITIONS: &str = "walhook_ignored_transitions_total";
pub const ATTEMPTS: &str = "walhook_delivery_attempts_total";
pub const ATTEMPT_DURATION: &str = "walhook_delivery_attempt_duration_seconds";
pub const DISABLED_WEBHOOKS: &str = "walhook_webhooks_disabled_total";
pub const NOTICES_PENDING: &str = "walhook_notices_pending";
pub const NOTICES_SENT: &str = "walhook_notices_sent_total";
pub const NOTICE_FAILURES: &str = "walhook_notice_failures_total";
pub const IN_FLIGHT: &str = "walhook_deliveries_in_flight";
pub const PROXY_FAILURES: &str = "walhook_proxy_failures_total";
pub const OWN_FAULTS: &str = "walhook_own_faults_total";
pub const CAPTURE_LAG: &str = "walhook_capture_lag_seconds";
pub const CAPTURE_CONNECTED: &str = "walhook_capture_connected";
pub const HEARTBEAT_ROUND_TRIP: &str = "walhook_heartbeat_round_trip_seconds";
pub const GAPS: &str = "walhook_gaps_open";
pub const COMMIT_TO_RECEIPT: &str = "walhook_commit_to_receipt_seconds";
pub const PENDING: &str = "walhook_deliveries_pending";
pub const OLDEST_DUE: &str = "walhook_delivery_oldest_due_seconds";
pub const WEBHOOKS: &str = "walhook_webhooks";
pub const CHECKPOINT_AGE: &str = "walhook_checkpoint_age_seconds";
pub const HTTP_REFUSED: &str = "walhook_http_refused_total";
pub const STORE_CONNECTIONS: &str = "walhook_store_connections";
pub const SLOT_RETAINED: &str = "walhook_slot_retained_bytes";
pub const SLOT_UNACKNOWLEDGED: &str = "walhook_slot_unacknowledged_bytes";
pub const SLOT_LEFT: &str = "walhook_slot_left_to_limit_bytes";
pub const SLOT_ACTIVE: &str = "walhook_slot_active";
pub const SLOT_STATUS: &str = "walhook_slot_status";
pub const BUILD_INFO: &str = "walhook_build_info";
pub const OUTBOX_ROWS: &str = "walhook_outbox_rows";
pub const OUTBOX_AGE: &str = "walhook_outbox_age_seconds";
pub const TRIGGER_FAILURES: &str = "walhook_trigger_failures";
pub const SPANS_EXPORTED: &str = "walhook_spans_exported_total";
pub const SPANS_DROPPED: &str = "walhook_spans_dropped_total";

/// Installs the metrics recorder and describes every metric. To be called once per process.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
    let handle = PrometheusBuilder::new().set_buckets(&SECONDS)?.install_recorder()?;
    describe_counter!(EVENTS, "Events derived and stored, by event");
    describe_counter!(UNROUTED_EVENTS, "Events whose owner could not be found");
    describe_counter!(
        IGNORED_TRANSITIONS,
        "Transitions that raise no event because the new value is unknown, by reason"
    );
    describe_counter!(ATTEMPTS, "Delivery attempts, by outcome and error kind");
    describe_histogram!(ATTEMPT_DURATION, Unit::Seconds, "Duration of delivery attempts");
    describe_counter!(DISABLED_WEBHOOKS, "Webhooks disabled automatically, by error kind");
    describe_gauge!(NOTICES_PENDING, "Notices to webhook owners that are not sent yet");
    describe_counter!(NOTICES_SENT, "Notices to webhook owners that the mail server accepted, by kind");
    describe_counter!(NOTICE_FAILURES, "Failed tries to send a notice, by cause");
    describe_gauge!(IN_FLIGHT, "Requests to receivers in flight");
    describe_counter!(PROXY_FAILURES, "Requests that were not sent because the configured proxy failed");
    describe_counter!(OWN_FAULTS, "Attempts that were not made because of a fault on Walhook's side, by cause");
    describe_gauge!(CAPTURE_LAG, Unit::Seconds, "Age of the last change when it was stored; grows while storing fails");
    describe_gauge!(CAPTURE_CONNECTED, "1 while changes are being read");
    describe_histogram!(HEARTBEAT_ROUND_TRIP, Unit::Seconds, "From a heartbeat's commit to its return through the WAL");
    describe_gauge!(GAPS, "Gaps that are not repaired");
    describe_counter!(HTTP_REFUSED, "Connections closed and requests rejected because there were too many, by limit");
    describe_samples();
    describe_gauge!(OUTBOX_ROWS, "Rows waiting in the triggers' outbox, counted to 100,000");
    describe_gauge!(OUTBOX_AGE, Unit::Seconds, "Age of the oldest row in the triggers' outbox");
    describe_gauge!(TRIGGER_FAILURES, "Trigger failures that are not repaired");
    describe_counter!(SPANS_EXPORTED, "Spans that the collector accepted");
    describe_counter!(SPANS_DROPPED, "Spans that were dropped, by reason");
    register_counters();
    Ok(handle)
}

/// Describes the metrics that are sampled at intervals, and the build.
fn describe_samples() {
    describe_histogram!(
        COMMIT_TO_RECEIPT,
        Unit::Seconds,
        "From a transaction's commit to the response to a first attempt"
    );
    describe_gauge!(PENDING, "Pending deliveries, by first attempt or retry; counted up to a million");
    describe_gauge!(OLDEST_DUE, Unit::Seconds, "How long the oldest first attempt or retry has been due");
    describe_gauge!(
        WEBHOOKS,
        "Webhooks, by state: active, inactive (switched off by the owner), disabled (automatically)"
    );
    describe_gauge!(CHECKPOINT_AGE, Unit::Seconds, "Time since the checkpoint last moved; grows where nothing changes");
    describe_gauge!(STORE_CONNECTIONS, "Connections to the store: open, and in use");
    describe_gauge!(SLOT_RETAINED, Unit::Bytes, "WAL that the primary retains for the slot");
    describe_gauge!(SLOT_UNACKNOWLEDGED, Unit::Bytes, "WAL written since the position that the slot has confirmed");
    describe_gauge!(
        SLOT_LEFT,
        Unit::Bytes,
        "WAL that may still be written before the slot is invalidated; absent without a limit"
    );
    describe_gauge!(SLOT_ACTIVE, "1 while a process reads the slot");
    describe_gauge!(SLOT_STATUS, "1 for the slot's state: wal_status of pg_replication_slots, or missing");
    describe_gauge!(BUILD_INFO, "1, with the version as a label");
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Registers the counters that alerts use. A counter that appears with its first count shows no increase.
fn register_counters() {
    counter!(UNROUTED_EVENTS).absolute(0);
    counter!(PROXY_FAILURES).absolute(0);
    for cause in ["proxy", "resolver", "descriptors"] {
        counter!(OWN_FAULTS, "cause" => cause).absolute(0);
    }
}
