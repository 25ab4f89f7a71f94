//! Failpoints: named points at which a test makes the process die, fail or stall. Each is a
//! boundary between two steps, and its name says what has happened and what has not.
//!
//! They exist only in builds with the feature `failpoints`, which shipped builds do not have. The
//! environment variable `FAILPOINTS` arms them, in the format of the crate `fail`:
//! `events_stored_slot_not_acknowledged=1*return(kill)`. The actions are `kill`, `stall` with a
//! number of milliseconds, and `fail`. Without the variable they do nothing.
//! `tests/reliability/failpoints` walks all points.

#[cfg(all(feature = "dist", feature = "failpoints"))]
compile_error!("the feature `failpoints` is for tests, and shipped builds (`dist`) do not have it");

/// The error of a point that is armed with `fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failpoint {0}")]
pub struct Injected(&'static str);

/// Reaches a failpoint, and evaluates to `Result<(), Injected>`. To be used in async functions.
macro_rules! failpoint {
    ($name:literal) => {{
        #[cfg(feature = "failpoints")]
        let reached = $crate::failpoint::reach($name).await;
        #[cfg(not(feature = "failpoints"))]
        let reached = Ok::<(), $crate::failpoint::Injected>(());
        reached
    }};
}
pub(crate) use failpoint;

/// Arms the points that `FAILPOINTS` names. Panics if it is malformed. Must be called once per
/// process.
pub fn start() {
    // The scenario's drop would disarm them.
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}

/// Prints the failpoint to stderr for the test, then runs the configured action.
#[cfg(feature = "failpoints")]
pub async fn reach(name: &'static str) -> Result<(), Injected> {
    use rustix::process::{Signal, getpid, kill_process};

    let Some(argument) = argument_of(name) else {
        return Ok(());
    };

    eprintln!("failpoint {name}: {argument}");

    match argument.split_once(' ') {
        Some(("stall", milliseconds)) => {
            let milliseconds = milliseconds
                .parse()
                .expect("FAILPOINTS has a number of milliseconds after `stall`");
            tokio::time::sleep(std::time::Duration::from_millis(milliseconds)).await;

            // Not printed if the sleep was cancelled: a test waits for it before it stops the
            // process.
            eprintln!("failpoint {name}: continues");
            Ok(())
        }
        None if argument == "kill" => {
            let _ = kill_process(getpid(), Signal::KILL);
            std::future::pending().await
        }
        _ => Err(Injected(name)),
    }
}

#[cfg(feature = "failpoints")]
fn argument_of(name: &str) -> Option<String> {
    fail::fail_point!(name, |argument| argument);
    None
}
