//! Failures of the database servers' disks: counted, and kept for readiness until they have not
//! occurred for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use metrics::counter;
use parking_lot::Mutex;

/// How long a fault is reported after it occurred last. What fails is retried at least every 5 s,
/// so a fault that lasts is reported all the time. One that occurs once, such as in a large query,
/// is reported briefly.
const REPORTED: Duration = Duration::from_secs(8);

/// The time of the last fault, by database and kind.
static RECENT: Mutex<BTreeMap<(&str, &str), Instant>> = Mutex::new(BTreeMap::new());

/// Counts a statement that failed because of the disk of `database`, which is `store` or `primary`.
pub fn count_disk_fault(database: &'static str, fault: &'static str) {
    counter!(super::DISK_FAULTS, "database" => database, "fault" => fault).increment(1);
    RECENT.lock().insert((database, fault), Instant::now());
}

/// Returns the faults that occurred recently, one line each, for readiness.
pub fn recent_disk_faults() -> Vec<String> {
    let mut recent = RECENT.lock();
    recent.retain(|_, at| at.elapsed() < REPORTED);
    recent.keys().map(describe).collect()
}

fn describe((database, fault): &(&str, &str)) -> String {
    let text = match *fault {
        "full" => "the server's disk is full; everything continues when there is free space",
        "io" => "the server reports I/O errors of its disk",
        _ => "the server reports missing or damaged files",
    };
    format!("{database}: {text}")
}
