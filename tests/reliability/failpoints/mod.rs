//! The walk over all failpoints: at each point the process dies, fails or stalls, and afterwards
//! the account must balance.
//!
//! `WALHOOK_FAILPOINT=name` walks the points whose names contain this.

mod commands;
mod jobs;
mod log;
mod scene;
mod stream;
mod switch;
mod table;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::table::{Action, Boundary, Failpoint, TABLE};
use crate::support::account::Account;

/// How many cases run at the same time. They mostly wait for leases to end.
const AT_ONCE: usize = 8;
/// Longer than the lease of a delivery, of the slot and of a claim: `scene` sets the timeouts on
/// which they depend.
const STALL: Duration = Duration::from_millis(12_500);
/// Longer than the lease of a notice.
const STALL_OF_NOTICE: Duration = Duration::from_secs(17);

static TURNS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(AT_ONCE));

/// One point with one action.
#[derive(Clone, Copy, Debug)]
struct Case {
    point: &'static Failpoint,
    action: Action,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {}", self.point.name, self.action.as_str())
    }

    /// The value of `FAILPOINTS`: the action happens once.
    fn armed(&self) -> String {
        let stall = if self.point.boundary == Boundary::Notify {
            STALL_OF_NOTICE
        } else {
            STALL
        };

        let argument = match self.action {
            Action::Stall => format!("stall {}", stall.as_millis()),
            other => other.as_str().to_owned(),
        };

        format!("{}=1*return({argument})", self.point.name)
    }

    /// The line that a process prints when it reaches the point.
    fn report(&self) -> String {
        format!("failpoint {}: {}", self.point.name, self.action.as_str())
    }

    /// The line that a process prints when it has slept at the point.
    fn report_of_waking(&self) -> String {
        format!("failpoint {}: continues", self.point.name)
    }

    /// Runs the workload that reaches the point. Every boundary has one.
    fn run(self) -> BoxFuture<'static, Account> {
        match self.point.boundary {
            Boundary::Capture
            | Boundary::Acknowledge
            | Boundary::Enqueue
            | Boundary::Claim
            | Boundary::Request
            | Boundary::Record => Box::pin(stream::run(self, "wal")),
            Boundary::Outbox => Box::pin(stream::run(self, "trigger")),
            Boundary::Log => Box::pin(log::run(self)),
            Boundary::LogLoss => Box::pin(log::run_loss(self)),
            Boundary::LogExpiry => Box::pin(log::run_expiry(self)),
            Boundary::AcknowledgeIdle => Box::pin(stream::run_idle(self)),
            Boundary::Unpack => Box::pin(stream::run_unpacking(self)),
            Boundary::Shutdown => Box::pin(stream::run_shutdown(self)),
            Boundary::Cancel => Box::pin(jobs::run_cancellation(self)),
            Boundary::Recover => Box::pin(jobs::run_recovery(self)),
            Boundary::Replay => Box::pin(jobs::run_replay(self)),
            Boundary::Notify => Box::pin(jobs::run_notices(self)),
            Boundary::Erase => Box::pin(commands::run_erase(self)),
            Boundary::Repair => Box::pin(commands::run_repair(self)),
            Boundary::RepairOutbox => Box::pin(commands::run_repair_of_outbox(self)),
            Boundary::Setup | Boundary::Migrate => Box::pin(commands::run_setup(self, "wal")),
            Boundary::SetupOutbox => Box::pin(commands::run_setup(self, "trigger")),
            Boundary::MigrateOne => Box::pin(commands::run_migrations(self)),
            Boundary::Reencrypt => Box::pin(commands::run_reencryption(self)),
            Boundary::PrepareTriggers
            | Boundary::SwitchToTriggers
            | Boundary::PrepareWal
            | Boundary::SwitchToWal
            | Boundary::RemoveWalCapture
            | Boundary::RemoveTriggers
            | Boundary::EndSwitch
            | Boundary::Teardown
            | Boundary::Split => unreachable!("a sequence walks its points"),
        }
    }
}

/// Boundaries whose points one scene walks one after the other: what a fault leaves half done is
/// continued up to the next fault.
struct Sequence {
    boundaries: &'static [Boundary],
    run: fn(Vec<Case>) -> BoxFuture<'static, Account>,
}

const SEQUENCES: [Sequence; 3] = [
    Sequence {
        boundaries: &[
            Boundary::PrepareTriggers,
            Boundary::SwitchToTriggers,
            Boundary::RemoveWalCapture,
        ],
        run: |cases| Box::pin(switch::run_to_triggers(cases)),
    },
    Sequence {
        boundaries: &[
            Boundary::PrepareWal,
            Boundary::SwitchToWal,
            Boundary::RemoveTriggers,
            Boundary::EndSwitch,
        ],
        run: |cases| Box::pin(switch::run_to_wal(cases)),
    },
    Sequence {
        boundaries: &[
            Boundary::RemoveWalCapture,
            Boundary::RemoveTriggers,
            Boundary::Teardown,
        ],
        run: |cases| Box::pin(switch::run_teardown(cases)),
    },
];

impl Sequence {
    /// Returns the cases of the points whose names contain `only`, in the order in which they are
    /// passed.
    fn cases(&self, action: Action, only: &str) -> Vec<Case> {
        let of_boundary = |boundary: &'static Boundary| {
            TABLE
                .iter()
                .filter(move |point| point.boundary == *boundary)
        };

        let points = self.boundaries.iter().flat_map(of_boundary);
        let walked =
            points.filter(|point| point.actions.contains(&action) && point.name.contains(only));
        walked.map(|point| Case { point, action }).collect()
    }
}

/// Cases that one scene walks.
type Walk = (Vec<Case>, BoxFuture<'static, Account>);

/// Returns the sequences with each action.
fn sequences(only: &str) -> Vec<Walk> {
    let mut walks = Vec::new();

    for sequence in &SEQUENCES {
        for action in [Action::Kill, Action::Fail, Action::Stall] {
            let cases = sequence.cases(action, only);
            if !cases.is_empty() {
                walks.push((cases.clone(), (sequence.run)(cases)));
            }
        }
    }

    let point = TABLE
        .iter()
        .find(|point| point.name == "triggers_of_table_dropped_outbox_not_dropped");
    let back = Case {
        point: point.expect("it is in the table"),
        action: Action::Fail,
    };

    let meanwhile = Case {
        action: Action::Stall,
        ..back
    };

    if back.point.name.contains(only) {
        walks.push((vec![back], Box::pin(switch::run_back_again(back))));
        walks.push((
            vec![meanwhile],
            Box::pin(switch::run_back_again_meanwhile(meanwhile)),
        ));
    }

    walks
}

/// Returns the points of these boundaries with every action that makes sense at each, each in a
/// scene of its own.
fn alone(only: &str, includes: impl Fn(Boundary) -> bool) -> Vec<Walk> {
    let is_in_sequence = |boundary| {
        SEQUENCES
            .iter()
            .any(|sequence| sequence.boundaries.contains(&boundary))
            || boundary == Boundary::Split
    };

    let points = TABLE
        .iter()
        .filter(|point| includes(point.boundary) && !is_in_sequence(point.boundary));
    let points = points.filter(|point| point.name.contains(only));
    let cases = points.flat_map(|point| {
        point.actions.iter().map(move |action| Case {
            point,
            action: *action,
        })
    });

    cases.map(|case| (vec![case], case.run())).collect()
}

/// Returns what the names of the walked points contain. Panics if no point's name does: a walk of
/// nothing would pass.
fn only() -> String {
    let only = std::env::var("WALHOOK_FAILPOINT").unwrap_or_default();
    assert!(
        TABLE.iter().any(|point| point.name.contains(&only)),
        "WALHOOK_FAILPOINT={only}: no failpoint's name has this"
    );

    only
}

/// Walks the points. A walk fails if one of its points is not reached.
async fn walk(walks: Vec<Walk>) {
    let mut walking = JoinSet::new();
    let started = Instant::now();
    let mut total = 0;

    for (cases, run) in walks {
        total += cases.len();
        walking.spawn(async move {
            let turn = TURNS.acquire().await.expect("it is never closed");
            let started = Instant::now();
            let ended = tokio::spawn(run).await;

            drop(turn);
            (
                cases.iter().map(Case::name).collect::<Vec<_>>().join(", "),
                ended,
                started.elapsed(),
            )
        });
    }

    let mut failed = Vec::new();
    let walks = walking.len();

    while let Some(ended) = walking.join_next().await {
        let (name, ended, took) = ended.expect("a walk runs in a task of its own");
        match ended {
            Ok(account) if account.faults.is_empty() => println!("{name}: {account}, {took:.1?}"),
            Ok(account) => failed.push(format!(
                "{name}: {account}\n    {}",
                account.faults.join("\n    ")
            )),
            // The panic's message is printed already.
            Err(_) => failed.push(format!("{name}: failed after {took:.1?}, see above")),
        }
    }

    println!("{total} cases in {:.1?}", started.elapsed());
    assert!(
        failed.is_empty(),
        "{} of {walks} walks failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

const fn is_job(boundary: Boundary) -> bool {
    matches!(
        boundary,
        Boundary::Cancel | Boundary::Recover | Boundary::Replay | Boundary::Notify
    )
}

const fn is_command(boundary: Boundary) -> bool {
    matches!(
        boundary,
        Boundary::Erase
            | Boundary::Repair
            | Boundary::RepairOutbox
            | Boundary::Setup
            | Boundary::SetupOutbox
            | Boundary::Migrate
            | Boundary::MigrateOne
            | Boundary::Reencrypt
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_at_every_point_from_capture_to_record_lose_and_double_nothing() {
    walk(alone(&only(), |boundary| {
        !is_job(boundary) && !is_command(boundary)
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_at_every_point_of_jobs_and_notices_lose_and_double_nothing() {
    walk(alone(&only(), is_job)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_complete_when_they_are_run_again_after_a_fault_at_any_point() {
    let only = only();
    // They take longest, because one process after the other waits for a lease.
    let mut walks = sequences(&only);
    walks.extend(alone(&only, is_command));
    walk(walks).await;
}
