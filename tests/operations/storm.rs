//! Nothing is lost and nothing is attempted too often, whichever process is killed and however
//! receivers behave.

use std::time::Duration;

use crate::support::storm::{Plan, storm};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_restarts_and_misbehaving_receivers_lose_nothing_and_cause_no_extra_attempts() {
    let plan = Plan {
        length: Duration::from_secs(12),
        payment_interval: Duration::from_millis(250),
        kill_interval: Duration::from_millis(1_200),
        kills_per_restart: 4,
    };

    let report = storm(&plan).await;
    println!("{report:?}");
    assert!(
        report.payments >= 20 && report.kills >= 4 && report.restarts >= 1,
        "{report:?}"
    );
    assert!(report.most_memory_kib < 120 << 10, "{report:?}");
}
