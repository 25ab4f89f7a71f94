//! The wall clock of the servers and of the sidecars, which the test steps. A small library that is
//! preloaded adds a number of seconds to it, so that days change in all processes at the same
//! moment.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use tempfile::TempDir;
use walhook::private_postgres::PrivatePostgres;

use crate::support::eventually;

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/reliability/long_run/clock.c"
);
/// How long before midnight the clock is set. Long enough for rows on both sides of midnight, also
/// of commits that take long.
const BEFORE_MIDNIGHT: SignedDuration = SignedDuration::from_secs(3);

pub struct SharedClock {
    /// Removed when dropped. The servers' user can read it.
    directory: TempDir,
    ahead: AtomicI64,
}

impl SharedClock {
    /// Compiles the library, with a clock that is not ahead.
    pub fn new() -> SharedClock {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))
            .expect("the owner may");

        let clock = SharedClock {
            directory,
            ahead: AtomicI64::new(0),
        };

        std::fs::write(clock.file(), 0_i64.to_ne_bytes()).expect("a file");
        let mut compiler = std::process::Command::new("cc");

        compiler
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(clock.library())
            .arg(SOURCE);
        assert!(
            compiler.status().expect("a C compiler").success(),
            "{SOURCE} does not compile"
        );

        clock
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("ahead")
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("clock.so")
    }

    /// Returns the environment of a process that uses this clock.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.library().display().to_string()),
            ("SHARED_CLOCK", self.file().display().to_string()),
        ]
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(self.ahead.load(Ordering::Relaxed))
    }

    /// Steps the clock to a few seconds before the next midnight, and waits until the day has
    /// changed.
    pub async fn change_day(&self) {
        let now = self.now();
        let tomorrow = now.to_zoned(TimeZone::UTC).date() + 1.day();
        let midnight = tomorrow
            .to_zoned(TimeZone::UTC)
            .expect("a day of this century")
            .timestamp();
        let step = (midnight.duration_since(now) - BEFORE_MIDNIGHT).max(SignedDuration::ZERO);
        let ahead = self.ahead.fetch_add(step.as_secs(), Ordering::Relaxed) + step.as_secs();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.file())
            .expect("the file exists");

        // Not truncated first: readers have mapped it.
        file.write_all_at(&ahead.to_ne_bytes(), 0).expect("a write");
        eventually("midnight", async || (self.now() >= midnight).then_some(())).await;
    }

    /// Asserts that a server uses this clock.
    pub async fn assert_used_by(&self, server: &PrivatePostgres) {
        let client = walhook::postgres::connect(&server.url("postgres"))
            .await
            .expect("the server");
        let theirs: Timestamp = client
            .query_one("select clock_timestamp()", &[])
            .await
            .expect("a time")
            .get(0);
        let apart = self.now().duration_since(theirs).abs();

        assert!(
            apart < SignedDuration::from_hours(1),
            "the server's clock is {apart} apart: is it linked statically?"
        );
    }
}
