//! Signals to processes by their working directory. A node's programs run in its directory, and so
//! do the processes that they start.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::eventually;

/// A process, and the letter of its state in `/proc`.
struct Process {
    pid: i32,
    state: char,
}

/// Finds the processes whose working directory is `directory` or below it. Ended processes have
/// none.
fn processes_in(directory: &Path) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten();
    let process = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let works_in: PathBuf = std::fs::read_link(entry.path().join("cwd")).ok()?;
        let status = std::fs::read_to_string(entry.path().join("stat")).ok()?;

        // The name of the program precedes the state, in parentheses.
        let state = status.rsplit_once(") ")?.1.chars().next()?;
        works_in
            .starts_with(directory)
            .then_some(Process { pid, state })
    };

    entries.filter_map(process).collect()
}

/// Sends `signal` to the processes in `directory` until it has affected all of them. A process may
/// start another one meanwhile.
async fn signal_all(directory: &Path, signal: Signal, is_affected: impl Fn(&Process) -> bool) {
    let what = format!(
        "{signal:?} to reach every process in {}",
        directory.display()
    );
    eventually(&what, async || {
        let left: Vec<Process> = processes_in(directory)
            .into_iter()
            .filter(|process| !is_affected(process))
            .collect();
        for pid in left.iter().filter_map(|process| Pid::from_raw(process.pid)) {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }

        left.is_empty().then_some(())
    })
    .await;
}

/// Kills all processes in `directory` (SIGKILL), and waits until they are gone.
pub async fn kill(directory: &Path) {
    signal_all(directory, Signal::KILL, |_| false).await;
}

/// Stops all processes in `directory` (SIGSTOP): connections to them stay open, and nothing
/// answers.
pub async fn freeze(directory: &Path) {
    signal_all(directory, Signal::STOP, |process| process.state == 'T').await;
}

/// Continues all processes in `directory` (SIGCONT).
pub async fn thaw(directory: &Path) {
    signal_all(directory, Signal::CONT, |process| process.state != 'T').await;
}

/// Kills all processes in a directory and removes it, when its standard input ends. Survives the
/// test process, also if that is killed.
pub const JANITOR: &str = r#"
cat >/dev/null
cd /
while :; do
    found=
    for process in /proc/[0-9]*; do
        case $(readlink "$process/cwd" 2>/dev/null) in
        "$1"/*) kill -9 "${process#/proc/}" 2>/dev/null; found=1 ;;
        esac
    done
    [ -n "$found" ] || break
    sleep 0.1
done
rm -rf -- "$1"
"#;
