//! An overlay of this machine's file system, in its own mount namespace. A test can change
//! everything in it; this machine stays unchanged, and the overlay ends with the test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Mounts the overlay, prints `mounted`, and keeps the namespace alive until its input ends. The
/// upper directory is on a tmpfs: in a container the file system is itself an overlay, which cannot
/// be the upper layer of another.
const SCRIPT: &str = r#"set -e
cd "$1"
mkdir layers
mount -t tmpfs tmpfs layers
mkdir layers/upper layers/work root
mount -t overlay overlay -o lowerdir=/,upperdir=layers/upper,workdir=layers/work root
mount -t proc proc root/proc 2>/dev/null || mount --rbind /proc root/proc
mount --rbind /dev root/dev
echo mounted
exec cat >/dev/null"#;

/// A running overlay. It shares this machine's network, so that its processes reach servers on
/// loopback.
pub struct Machine {
    keeper: Child,
    directory: TempDir,
}

impl Machine {
    /// Mounts the overlay. Fails with the reason if this machine does not allow it.
    pub fn start() -> Result<Machine, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount an overlay".to_owned());
        }

        let directory = tempfile::tempdir().expect("a directory");
        let mut keeper = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                SCRIPT,
                "walhook-machine",
            ])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;

        let mut printed = [0; 8];
        let mut output = keeper.stdout.take().expect("a pipe");
        if std::io::Read::read_exact(&mut output, &mut printed).is_ok() {
            return Ok(Machine { keeper, directory });
        }

        let output = keeper
            .wait_with_output()
            .expect("a child can be waited for");
        Err(format!(
            "an overlay cannot be mounted: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }

    /// Returns the path by which this process reaches a file inside the overlay.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.outside("root").join(inside.trim_start_matches('/'))
    }

    fn outside(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(
            self.directory
                .path()
                .strip_prefix("/")
                .expect("an absolute path"),
        )
        .join(name)
    }

    /// Builds a command that runs inside the overlay as root, in its root directory.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id()))
            .args(["--", "chroot"]);
        command
            .arg(self.directory.path().join("root"))
            .args(words)
            .stdin(Stdio::null())
            .env("LC_ALL", "C");

        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("nsenter")
    }

    #[track_caller]
    pub fn run_ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);

        assert!(
            output.status.success(),
            "{words:?}: {}\n{printed}\n{errors}",
            output.status
        );
        printed.into_owned()
    }

    #[track_caller]
    pub fn read(&self, inside: &str) -> String {
        std::fs::read_to_string(self.path(inside))
            .unwrap_or_else(|error| panic!("{inside}: {error}"))
    }

    pub fn write(&self, inside: &str, text: &str) {
        std::fs::write(self.path(inside), text).unwrap_or_else(|error| panic!("{inside}: {error}"));
    }

    /// Returns every file that differs from this machine's, without directories.
    pub fn changed(&self) -> BTreeSet<String> {
        let upper = self.outside("layers/upper");
        let mut found = BTreeSet::new();
        let mut directories = vec![upper.clone()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory)
                .expect("the upper layer")
                .map(|entry| entry.expect("an entry"))
            {
                if entry.file_type().expect("a type").is_dir() {
                    directories.push(entry.path());
                } else {
                    found.insert(inside(&upper, &entry.path()));
                }
            }
        }

        found
    }
}

fn inside(upper: &Path, path: &Path) -> String {
    format!(
        "/{}",
        path.strip_prefix(upper).expect("it is below").display()
    )
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The namespace ends with its last process, and the mounts with it.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
