//! Logs, metrics, spans and readiness. This file has the name of every metric.

mod activity;
mod disk;
pub mod health;
mod logs;
pub mod traces;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::domain::delivery::{ErrorKind, Outcome};
use crate::domain::event::EventKind;
use crate::domain::notice::NoticeKind;

pub(crate) use activity::recurring;
pub use activity::{Activity, Recurring};
pub use disk::{count_disk_fault, recent_disk_faults};
pub use logs::{log_fatal, start};

/// Declares each metric: a constant for its name, and its description for `/metrics`.
macro_rules! metrics {
    ($($describe:ident $name:ident $text:literal $(in $unit:ident)?: $help:literal;)+) => {
        $(pub const $name: &str = $text;)+

        fn describe() {
            $($describe!($name, $(Unit::$unit,)? $help);)+
        }
    };
}

metrics! {
    describe_counter EVENTS "walhook_events_total": "Events derived and stored, by event";
    describe_counter UNROUTED_EVENTS "walhook_unrouted_events_total": "Events that could not be derived, routed or stored";
    describe_gauge UNROUTED "walhook_unrouted_events": "Events that wait for `walhook unrouted retry` or `discard`, up to 10,000";
    describe_counter IGNORED_TRANSITIONS "walhook_ignored_transitions_total":
        "Transitions that raise no event because the value before or after is unknown, by reason";
    describe_counter ATTEMPTS "walhook_delivery_attempts_total": "Delivery attempts, by outcome and error kind";
    describe_histogram ATTEMPT_DURATION "walhook_delivery_attempt_duration_seconds" in Seconds: "Duration of delivery attempts";
    describe_counter DISABLED_WEBHOOKS "walhook_webhooks_disabled_total": "Webhooks disabled automatically, by the kind of the last error, or gone";
    describe_gauge NOTICES_PENDING "walhook_notices_pending": "Notices to webhook owners that are not sent yet";
    describe_counter NOTICES_SENT "walhook_notices_sent_total":
        "Notices to webhook owners that the mail server accepted, by kind";
    describe_counter NOTICE_FAILURES "walhook_notice_failures_total": "Failed tries to send a notice, by cause";
    describe_gauge IN_FLIGHT "walhook_deliveries_in_flight": "Requests to receivers in flight";
    describe_gauge LIMITED_WEBHOOKS "walhook_webhooks_limited":
        "Webhooks that get fewer requests at once because their receivers are overloaded";
    describe_counter PROXY_FAILURES "walhook_proxy_failures_total":
        "Requests that were not sent because the configured proxy failed";
    describe_counter OWN_FAULTS "walhook_own_faults_total":
        "Attempts that were not made because of a fault on Walhook's side, by cause";
    describe_gauge CAPTURE_LAG "walhook_capture_lag_seconds" in Seconds: "Age of the last change when it was stored; grows while storing fails";
    describe_gauge CAPTURE_CONNECTED "walhook_capture_connected": "1 while changes are being read";
    describe_histogram HEARTBEAT_ROUND_TRIP "walhook_heartbeat_round_trip_seconds" in Seconds: "From a heartbeat's commit to its return through the WAL";
    describe_gauge GAPS "walhook_gaps_open": "Gaps that are not repaired";
    describe_histogram COMMIT_TO_RECEIPT "walhook_commit_to_receipt_seconds" in Seconds: "From a transaction's commit to the response to a first attempt";
    describe_gauge PENDING "walhook_deliveries_pending": "Pending deliveries, by first attempt or retry";
    describe_gauge OLDEST_DUE "walhook_delivery_oldest_due_seconds" in Seconds: "How long the oldest first attempt or retry has been due";
    describe_gauge WEBHOOKS "walhook_webhooks":
        "Webhooks, by state: active, inactive (switched off by the owner), disabled (automatically)";
    describe_gauge CHECKPOINT_AGE "walhook_checkpoint_age_seconds" in Seconds: "Time since the checkpoint last moved; grows while nothing changes";
    describe_counter HTTP_REFUSED "walhook_http_refused_total":
        "Connections closed and requests rejected because there were too many, by limit";
    describe_gauge FEED_STREAMS "walhook_feed_streams": "Open streams and long polls of the feed";
    describe_counter FEED_READS "walhook_feed_reads_total": "Pages that were read from the feed";
    describe_counter DISK_FAULTS "walhook_disk_faults_total":
        "Statements that failed because of a database server's disk, by database and fault";
    describe_gauge STORE_CONNECTIONS "walhook_store_connections": "Connections to the store: open, and in use";
    describe_gauge SLOT_RETAINED "walhook_slot_retained_bytes" in Bytes: "WAL that the primary retains for the slot";
    describe_gauge SLOT_UNACKNOWLEDGED "walhook_slot_unacknowledged_bytes" in Bytes: "WAL written since the position that the slot has confirmed";
    describe_gauge SLOT_LEFT "walhook_slot_left_to_limit_bytes" in Bytes: "WAL that may still be written before the slot is invalidated; absent without a limit";
    describe_gauge SLOT_ACTIVE "walhook_slot_active": "1 while a process reads the slot";
    describe_gauge SLOT_STATUS "walhook_slot_status": "1 for the slot's state: wal_status of pg_replication_slots, or missing";
    describe_gauge BUILD_INFO "walhook_build_info": "1, with the version as a label";
    describe_gauge OUTBOX_ROWS "walhook_outbox_rows": "Rows waiting in the triggers' outbox, counted to 100,000";
    describe_gauge OUTBOX_AGE "walhook_outbox_age_seconds" in Seconds: "Age of the oldest row in the triggers' outbox";
    describe_gauge TRIGGER_FAILURES "walhook_trigger_failures": "Trigger failures that are not repaired";
    describe_gauge LOG_BEHIND "walhook_log_behind_events": "Events of the log that this store does not have yet";
    describe_counter LOG_LOST "walhook_log_lost_events_total":
        "Events of this store that the log lost in a failover";
    describe_counter LOG_REPEATED "walhook_log_repeated_events_total":
        "Events of the log that were skipped because this store had them already";
    describe_gauge CELL_UP "walhook_cell_up": "1 while the API of all cells serves the users of a cell";
    describe_counter SPANS_EXPORTED "walhook_spans_exported_total": "Spans that the collector accepted";
    describe_counter SPANS_DROPPED "walhook_spans_dropped_total": "Spans that were dropped, by reason";
}

/// Installs the metrics recorder and describes every metric. Must be called once per process.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    const SECONDS: [f64; 14] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ];
    let handle = PrometheusBuilder::new()
        .set_buckets(&SECONDS)?
        .install_recorder()?;

    describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    register_counters();

    Ok(handle)
}

/// Registers every counter with its labels: Prometheus sees no increase in a counter that first
/// appears with a value above 0. The values are those of the modules that count.
fn register_counters() {
    for name in [
        UNROUTED_EVENTS,
        PROXY_FAILURES,
        FEED_READS,
        SPANS_EXPORTED,
        LOG_LOST,
        LOG_REPEATED,
    ] {
        counter!(name).absolute(0);
    }

    let kinds = EventKind::ALL.iter().map(|kind| kind.as_str());
    register(EVENTS, "event", kinds);

    let reasons = [
        "unknown_review_status",
        "null_distribution_status",
        "unknown_flag_status",
    ];
    register(IGNORED_TRANSITIONS, "reason", reasons);
    register(OWN_FAULTS, "cause", ["proxy", "resolver", "descriptors"]);

    let errors = ErrorKind::ALL.iter().copied();
    let of_receivers = errors.filter(|kind| kind.counts_towards_disablement());
    let of_receivers = of_receivers.map(ErrorKind::as_str);
    register(
        DISABLED_WEBHOOKS,
        "error_kind",
        of_receivers.clone().chain(["gone"]),
    );

    let kinds = NoticeKind::ALL.iter().map(|kind| kind.as_str());
    register(NOTICES_SENT, "kind", kinds);

    let causes = [
        "lookup",
        "store",
        "no_address",
        "refused",
        "put_off",
        "connection",
        "message",
    ];
    register(NOTICE_FAILURES, "cause", causes);
    register(HTTP_REFUSED, "limit", ["connections", "requests", "unsent"]);
    register(SPANS_DROPPED, "reason", ["queue_full", "refused"]);

    for database in ["store", "primary"] {
        for fault in ["full", "io", "damaged"] {
            counter!(DISK_FAULTS, "database" => database, "fault" => fault).absolute(0);
        }
    }

    let failed =
        of_receivers.flat_map(|kind| [(Outcome::Failed, kind), (Outcome::PermanentlyFailed, kind)]);
    let others = [
        (Outcome::Delivered, "none"),
        (
            Outcome::PermanentlyFailed,
            ErrorKind::PayloadTooLarge.as_str(),
        ),
        (Outcome::Cancelled, ErrorKind::WebhookInactive.as_str()),
    ];

    for (outcome, error) in failed.chain(others) {
        counter!(ATTEMPTS, "outcome" => outcome.as_str(), "error_kind" => error).absolute(0);
    }
}

fn register(
    name: &'static str,
    label: &'static str,
    values: impl IntoIterator<Item = &'static str>,
) {
    for value in values {
        counter!(name, label => value).absolute(0);
    }
}
