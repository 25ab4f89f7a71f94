//! `walhook status`: one screen about processes, slot, deliveries and webhooks.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use bytesize::ByteSize;

use super::{CommandResult, stop_signal, write_output};
use crate::app::status::{self, MOST, Primary, Status, Stored};
use crate::config::{CaptureMode, Config};
use crate::domain::time::millis;
use crate::primary::catalog::SlotLag;
use crate::store::observe::Queue;
use crate::store::processes::Process;

const INTERVAL: Duration = Duration::from_secs(5);
/// A process that works runs a statement at least every ten seconds.
const SILENT_SECONDS: f64 = 60.0;
/// Clears the terminal, and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print again every five seconds, until stopped
    #[arg(long)]
    watch: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    // Without either database, nothing can be shown.
    config.store_url()?;
    let mut stop = pin!(stop_signal());

    loop {
        let status = tokio::select! {
            status = status::read(&config) => status,
            () = &mut stop => return Ok(false),
        };
        let is_complete = status.errors.is_empty();

        let text = match arguments.json {
            true => format!("{}\n", serde_json::to_string(&status)?),
            false => text(&status, &config),
        };

        let clears = arguments.watch && !arguments.json && std::io::stdout().is_terminal();
        let start = if clears { CLEAR } else { "" };

        if !write_output(&format!("{start}{text}"))? || !arguments.watch {
            return Ok(is_complete);
        }

        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = &mut stop => return Ok(is_complete),
        }
    }
}

/// Returns a line for each subject, with its name in the first column.
fn text(status: &Status, config: &Config) -> String {
    let mut lines = vec![(
        "walhook",
        format!("{} at {}", status.version, millis(status.at)),
    )];

    let unreadable = status.errors.iter();
    lines.extend(
        unreadable.map(|found| (found.database, format!("cannot be read: {}", found.error))),
    );

    if let Some(store) = &status.store {
        lines.extend(processes(&store.processes, status));
    }

    if let Some(primary) = &status.primary {
        lines.push(capture(primary, config));
    }

    if let Some(log) = &status.log {
        let behind = behind_log(status).map_or_else(String::new, |behind| {
            format!(", {behind} of them not read yet")
        });
        lines.push(("log", format!("{} events{behind}", log.last_event)));
    }

    if let Some(store) = &status.store {
        lines.extend(stored(store));
    }

    let mut text = String::new();
    let mut last = "";

    for (subject, line) in lines {
        let shown = if subject == last { "" } else { subject };
        text.push_str(&format!("{shown:<13}{line}\n"));
        last = subject;
    }

    text
}

/// A line for each process: where it runs, its roles, and how far behind it is if it captures.
fn processes(processes: &[Process], status: &Status) -> Vec<(&'static str, String)> {
    const SUBJECT: &str = "processes";

    if processes.is_empty() {
        let none = "none is connected to the store: nobody reads changes, and nothing is delivered";
        return vec![(SUBJECT, none.to_owned())];
    }

    let line = |process: &Process| {
        let address = process.address.as_deref().unwrap_or("local");
        let roles = process.roles.join(",");
        let mut line = format!("{} ({address}) {} {roles}", process.name, process.version);

        if process.captures {
            line.push_str(&format!(": {}", reading(status)));
        } else if process.has_role("capture") {
            line.push_str(": stands by");
        }

        match process.silent_seconds {
            Some(silent) if silent > SILENT_SECONDS => {
                line.push_str(&format!("; silent for {}", duration(silent)));
            }
            _ => {}
        }

        (SUBJECT, line)
    };

    processes.iter().map(line).collect()
}

/// What the process does that was the last one to claim to read the changes.
fn reading(status: &Status) -> String {
    let primary = status.primary.as_ref();
    let slot = primary.and_then(|primary| primary.slot.as_ref());
    let outbox = primary.and_then(|primary| primary.outbox.as_ref());
    let behind = slot
        .filter(|slot| slot.active)
        .and_then(|slot| slot.unacknowledged);

    if let Some(behind) = behind_log(status) {
        return format!("reads the log, {behind} events behind");
    }

    match (behind, outbox) {
        (Some(behind), _) => format!("captures, {} behind", bytes(behind)),
        (None, Some(outbox)) => format!("captures, {} rows behind", count(outbox.rows)),
        (None, None) => "was the last to capture".to_owned(),
    }
}

/// Returns how many events of the log the store does not have yet. None if no log is read.
fn behind_log(status: &Status) -> Option<u64> {
    let stored = status.store.as_ref()?.checkpoint.as_ref()?.log_event?;
    Some(status.log.as_ref()?.last_event.saturating_sub(stored))
}

fn capture(primary: &Primary, config: &Config) -> (&'static str, String) {
    let name = &config.source.slot;

    match (config.source.capture, &primary.slot, &primary.outbox) {
        (CaptureMode::Wal | CaptureMode::Log, None, _) => {
            ("slot", format!("{name} is missing: see `walhook check`"))
        }
        (CaptureMode::Wal | CaptureMode::Log, Some(slot), _) => {
            ("slot", format!("{name}: {}", slot_text(slot)))
        }
        (CaptureMode::Trigger, _, None) => ("outbox", "missing: see `walhook check`".to_owned()),
        (CaptureMode::Trigger, _, Some(outbox)) => {
            let oldest = duration(outbox.age);
            (
                "outbox",
                format!("{} rows, the oldest {oldest} old", count(outbox.rows)),
            )
        }
    }
}

fn slot_text(slot: &SlotLag) -> String {
    let reader = if slot.active {
        "is read"
    } else {
        "nobody reads it"
    };
    let size = |size: Option<f64>| size.map_or("unknown".to_owned(), bytes);
    let retained = size(slot.retained);

    let limit = match slot.left_to_limit {
        Some(left) => format!(
            "{} left until max_slot_wal_keep_size ({})",
            bytes(left.max(0.0)),
            slot.keep_size
        ),
        None if slot.keep_size == "-1" => "no limit (max_slot_wal_keep_size)".to_owned(),
        None => format!("max_slot_wal_keep_size is {}", slot.keep_size),
    };

    match &*slot.wal_status {
        "lost" => "lost: run `walhook repair`".to_owned(),
        status => format!("{reader}, {status}; retains {retained}, {limit}"),
    }
}

fn stored(store: &Stored) -> Vec<(&'static str, String)> {
    let checkpoint = match &store.checkpoint {
        Some(checkpoint) => format!(
            "{}, moved {} ago",
            checkpoint.position,
            duration(checkpoint.age_seconds)
        ),
        None => "none: run `walhook setup`".to_owned(),
    };

    let mut lines = vec![("checkpoint", checkpoint)];

    if store.gaps.is_empty() {
        lines.push(("gaps", "none".to_owned()));
    }

    let gaps = store.gaps.iter();
    lines.extend(gaps.map(|gap| {
        let text = format!("{}: {}; run `walhook repair`", gap.reason, gap.detail);
        ("gaps", text)
    }));

    let webhooks = &store.webhooks;
    let unrouted = &store.unrouted;
    let unrouted = match (&unrouted.oldest, &unrouted.reason) {
        (Some(oldest), Some(reason)) => format!(
            "{} events since {}, for example {reason}; see `walhook unrouted list`",
            count(unrouted.events),
            millis(*oldest)
        ),
        _ => "none".to_owned(),
    };

    let ignored = store.ignored_transitions.iter();
    let ignored = ignored.map(|found| {
        let text = format!(
            "{} transitions raised no event: {}, the last one {} {} at {} with `{}`",
            found.transitions,
            found.reason,
            found.table,
            found.row,
            millis(found.last_at),
            found.value
        );
        ("ignored", text)
    });

    lines.extend([
        (
            "deliveries",
            format!(
                "{} first attempts pending{}",
                count(store.first_attempts.deliveries),
                due(&store.first_attempts)
            ),
        ),
        (
            "deliveries",
            format!(
                "{} retries pending{}",
                count(store.retries.deliveries),
                due(&store.retries)
            ),
        ),
        (
            "webhooks",
            format!(
                "{}{} active, {} of them failing; {} inactive, {} disabled",
                if webhooks.total() < MOST {
                    ""
                } else {
                    "at least "
                },
                webhooks.active,
                webhooks.failing,
                webhooks.inactive,
                webhooks.disabled
            ),
        ),
        ("unrouted", unrouted),
    ]);

    match store.ignored_transitions.is_empty() {
        true => lines.push(("ignored", "none".to_owned())),
        false => lines.extend(ignored),
    }

    lines.extend([
        ("notices", format!("{} pending", count(store.notices))),
        (
            "store",
            format!(
                "database {}, {}, schema version {}",
                store.database,
                bytes(store.size_bytes as f64),
                store.schema_version
            ),
        ),
    ]);

    lines
}

fn due(queue: &Queue) -> String {
    match queue.oldest_due {
        oldest if oldest >= 1.0 => format!(", the oldest due for {}", duration(oldest)),
        _ => String::new(),
    }
}

fn count(number: i64) -> String {
    match number {
        MOST.. => format!("{number} or more"),
        _ => number.to_string(),
    }
}

fn bytes(bytes: f64) -> String {
    ByteSize(bytes as u64).to_string()
}

/// Formats seconds in the largest unit of which there are two.
fn duration(seconds: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)];

    let unit = UNITS.iter().find(|(_, length)| seconds >= 2.0 * length);
    let (name, length) = unit.copied().unwrap_or(("s", 1.0));
    format!("{:.0} {name}", (seconds / length).floor())
}
