//! Starts the installed unit's command with its user and environment, as systemd would. The sandbox
//! is not applied: `deploy.rs` checks its settings.

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use super::machine::Machine;

pub const PATH: &str = "/usr/lib/systemd/system/walhook.service";

/// The settings of `[Service]`. Of several with one name, the last takes effect.
pub struct Unit(BTreeMap<String, String>);

impl Unit {
    pub fn read(machine: &Machine) -> Unit {
        let text = machine.read(PATH);
        let (_, service) = text.split_once("[Service]\n").expect("a service");
        let service = service.split("\n[").next().expect("a section");
        let settings = service
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='));

        Unit(
            settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    pub fn get(&self, name: &str) -> &str {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("the unit has no {name}"))
    }

    /// Returns the command line that the unit starts.
    pub fn start(&self) -> Vec<&str> {
        self.get("ExecStart").split_whitespace().collect()
    }

    /// Builds a command that runs as the unit's user, with its environment and without privileges.
    pub fn command(&self, machine: &Machine, words: &[&str]) -> Command {
        let user = self.get("User");
        let group = self.get("Group");
        let mut all = vec!["env", "-i"];
        let environment = environment(machine, self.get("EnvironmentFile"));

        all.extend(environment.iter().map(String::as_str));

        all.extend([
            "setpriv",
            "--reuid",
            user,
            "--regid",
            group,
            "--init-groups",
            "--no-new-privs",
        ]);

        all.extend(["--bounding-set=-all", "--inh-caps=-all", "--"]);
        let script = format!("umask {}; exec \"$@\"", self.get("UMask"));

        all.extend(["sh", "-c", &script, "sh"]);
        all.extend(words);

        machine.command(&all)
    }
}

/// Returns the `NAME=value` lines. Root reads the file, as systemd does: the service's user cannot.
fn environment(machine: &Machine, setting: &str) -> Vec<String> {
    let file = machine.read(setting.trim_start_matches('-'));
    let lines = file
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains('='));
    lines
        .map(str::to_owned)
        .chain(["PATH=/usr/bin:/bin:/usr/sbin:/sbin".to_owned()])
        .collect()
}

/// The process that the unit starts.
pub struct Service {
    child: Child,
    log: NamedTempFile,
}

impl Service {
    pub fn start(machine: &Machine, unit: &Unit) -> Service {
        let log = NamedTempFile::new().expect("a log file");
        let mut command = unit.command(machine, &unit.start());
        command
            .stdout(Stdio::null())
            .stderr(log.reopen().expect("a log file"));

        Service {
            child: command.spawn().expect("nsenter"),
            log,
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be asked for its end")
            .is_none()
    }

    /// Returns the kernel's status of the process.
    pub fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs")
    }

    /// Returns what it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    pub fn stop(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("a child can be signalled");
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
