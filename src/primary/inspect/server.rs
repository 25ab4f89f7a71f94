//! Judges the server, its settings, the role's privileges and the slot.

use crate::config::{AwaitVisibility, CaptureMode, Source};
use crate::postgres::quote_identifier;
use crate::primary::catalog::{FAILOVER_VERSION, Server, Slot, SlotState};
use crate::primary::finding::{Finding, Fix, FixKind, PRINT, Remedy};

/// PostgreSQL 14: the first version whose slots report what is needed, and whose publications take
/// partitioned tables.
const MINIMUM_VERSION: i32 = 140_000;

pub(super) fn judge(source: &Source, server: &Server) -> Vec<Finding> {
    let version = format!("PostgreSQL {}", server.version / 10_000);
    let mut findings = vec![match server.version >= MINIMUM_VERSION {
        true => Finding::ok("version", version),
        false => Finding::fail("version", version, "upgrade to version 14 or later").blocking(),
    }];

    if server.in_recovery {
        findings.push(
            Finding::fail("primary role", "a standby", "set source.url to the primary").blocking(),
        );
    }

    if server.encoding == "SQL_ASCII" {
        let remedy = "move the tables to a database with the encoding of their texts, for example with pg_dump and `encoding 'UTF8'`";
        let state =
            "SQL_ASCII: texts may be of any encoding, and those that are not UTF-8 cannot be read";
        findings.push(Finding::fail("primary encoding", state, remedy).blocking());
    }

    if source.capture == CaptureMode::Trigger {
        return findings;
    }

    findings.push(wal_level(server));
    let role = &server.role;

    findings.push(match server.may_replicate {
        true => Finding::ok("replication privilege", format!("{role} may replicate")),
        false => Finding::fail(
            "replication privilege",
            format!("{role} may not replicate"),
            PRINT,
        )
        .blocking()
        .fixed_by([replication(server)]),
    });

    findings.push(retained_wal(server));
    findings.push(sender_timeout(server));
    findings.extend(idle_slot_timeout(server));

    findings
}

pub(crate) fn wal_level(server: &Server) -> Finding {
    match server.wal_level.as_str() {
        "logical" => Finding::ok("wal_level", "logical"),
        other => Finding::fail(
            "wal_level",
            other,
            "set wal_level = logical and restart the server",
        )
        .blocking(),
    }
}

/// Returns the statement that lets the role replicate.
fn replication(server: &Server) -> Fix {
    let role = quote_identifier(&server.role);
    let sql = match server.grants_replication {
        true => format!("grant rds_replication to {role};"),
        false => format!("alter role {role} replication;"),
    };

    Fix::new("the server's administrator", FixKind::Other, sql)
}

fn retained_wal(server: &Server) -> Finding {
    const SETTING: &str = "max_slot_wal_keep_size";

    match server.slot_keep.as_str() {
        "-1" => Finding::warn(
            SETTING,
            "unlimited: while Walhook is stopped, WAL accumulates until the disk is full",
            "set it to what the disk can spare, and watch walhook_slot_retained_bytes",
        ),
        limit => Finding::ok(SETTING, limit),
    }
}

fn sender_timeout(server: &Server) -> Finding {
    const SETTING: &str = "wal_sender_timeout";
    const SHORT_MILLISECONDS: i64 = 5_000;

    match server.sender_timeout {
        0 => Finding::warn(
            SETTING,
            "0: a reader whose machine has failed keeps the slot until TCP times out, and no other can take over",
            "set it to the default, 60s",
        ),
        short @ ..SHORT_MILLISECONDS => Finding::warn(
            SETTING,
            format!(
                "{short} ms: a short stall of this machine or of the network ends the connection"
            ),
            "set it to 10s or more",
        ),
        enough => Finding::ok(SETTING, format!("{} s", enough / 1_000)),
    }
}

fn idle_slot_timeout(server: &Server) -> Option<Finding> {
    const SETTING: &str = "idle_replication_slot_timeout";
    const DAY_SECONDS: i64 = 86_400;

    match server.idle_slot_timeout.filter(|seconds| *seconds > 0)? {
        short @ ..DAY_SECONDS => Some(Finding::warn(
            SETTING,
            format!(
                "{short} s: when Walhook is stopped for longer, its slot is invalidated and changes are lost"
            ),
            "set it to 0, or to more than any downtime can last",
        )),
        enough => Some(Finding::ok(SETTING, format!("{enough} s"))),
    }
}

pub(super) fn judge_slot(source: &Source, server: &Server, slot: Option<&Slot>) -> Vec<Finding> {
    let name = format!("slot {}", source.slot);

    if source.capture == CaptureMode::Trigger {
        let remedy =
            "start `walhook run`: it completes the switch to triggers, then drops the slot";
        return slot
            .map(|_| Finding::warn(name, "exists although triggers capture", remedy))
            .into_iter()
            .collect();
    }

    let mut findings = Vec::new();

    match SlotState::of(slot, &source.slot) {
        SlotState::Missing => {
            findings.push(Finding::fail(name, "missing", Remedy::SETUP));

            if server.slots >= server.max_slots {
                let state = format!("all {} are in use", server.max_slots);
                let remedy = "raise max_replication_slots and restart the server, or drop a slot";
                findings.push(Finding::fail("replication slots", state, remedy).blocking());
            }
        }
        SlotState::Foreign(foreign) => findings.push(foreign),
        SlotState::Invalidated => {
            let state = "invalidated: the WAL it needs was removed";
            findings.push(Finding::fail(name, state, Remedy::REPAIR));
        }
        SlotState::Readable(slot) => findings.extend(readable_slot(source, slot, name)),
    }

    findings.extend(server.own_standby.as_deref().map(own_standby));
    findings.push(await_visibility(source, server));
    findings.extend(slot.and_then(|slot| synchronized_slots(source, server, slot)));

    findings
}

fn readable_slot(source: &Source, slot: &Slot, name: String) -> Vec<Finding> {
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    if status == "unreserved" {
        let state = "about to be invalidated: it retains more WAL than max_slot_wal_keep_size";
        return vec![Finding::warn(
            name,
            state,
            "start `walhook run`, or raise max_slot_wal_keep_size",
        )];
    }

    let mut findings = Vec::new();

    if source.failover && slot.failover == Some(false) {
        let remedy = "with `walhook run` stopped, `ALTER_REPLICATION_SLOT name (FAILOVER true)` over a replication connection";
        let state = "not synchronized to standbys: a failover would lose its position";
        findings.push(Finding::warn(format!("{name} failover"), state, remedy));
    }

    let reader = slot.active_pid.map_or("no reader".to_owned(), |pid| {
        format!("read by process {pid}")
    });

    findings.push(Finding::ok(name, format!("wal_status {status}, {reader}")));
    findings
}

/// A walsender counts as a standby if `synchronous_standby_names` matches the name of its client,
/// also one that decodes a slot.
fn own_standby(name: &str) -> Finding {
    Finding::fail(
        "synchronous_standby_names",
        format!(
            "includes Walhook's own connection, application_name {name}: commits would wait for Walhook, so it does not capture"
        ),
        "name the standbys instead of `*`, then `select pg_reload_conf()`",
    )
}

/// Judges whether events can be sent for transactions that a failover undoes.
fn await_visibility(source: &Source, server: &Server) -> Finding {
    const SETTING: &str = "source.await_visibility";

    match (source.await_visibility, server.synchronous) {
        (AwaitVisibility::Never, true) => Finding::warn(
            SETTING,
            "never, although commits wait for a standby: events are sent before their transactions are visible, and a failover \
             can undo those transactions",
            "set it to auto",
        ),
        (AwaitVisibility::Never, false) => Finding::ok(SETTING, "never"),
        (AwaitVisibility::Always, _) => Finding::ok(
            SETTING,
            "always: events wait until their transactions are visible",
        ),
        (AwaitVisibility::Auto, true) => Finding::ok(
            SETTING,
            "auto: commits wait for a standby, so events wait until their transactions are visible",
        ),
        (AwaitVisibility::Auto, false) => Finding::ok(
            SETTING,
            "auto: synchronous_standby_names is empty, so events do not wait",
        ),
    }
}

/// Judges whether the slot waits for the standbys that may be promoted.
fn synchronized_slots(source: &Source, server: &Server, slot: &Slot) -> Option<Finding> {
    const SETTING: &str = "synchronized_standby_slots";

    if server.version < FAILOVER_VERSION || slot.failover != Some(true) {
        return None;
    }

    if !server.synchronized_slots.is_empty() {
        return Some(Finding::ok(SETTING, &*server.synchronized_slots));
    }

    if server.synchronous && source.await_visibility != AwaitVisibility::Never {
        return Some(Finding::ok(
            SETTING,
            "empty: events wait until a standby has their commits",
        ));
    }

    let physical = match server.physical_slots.is_empty() {
        true => "SLOT OF THE STANDBY".to_owned(),
        false => server.physical_slots.join(", "),
    };

    Some(Finding::warn(
        SETTING,
        format!(
            "empty, although slot {} is synchronized to standbys: events can be sent for commits that a failover undoes",
            source.slot
        ),
        format!(
            "`alter system set synchronized_standby_slots = '{physical}'` with the physical slots of the standbys that may be \
             promoted, then `select pg_reload_conf()`; without standbys, set source.failover to false before the slot is created"
        ),
    ))
}
