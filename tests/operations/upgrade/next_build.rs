//! The next build: the same library with two more migrations.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::migrations::LATER;

/// Prefixes of the variables that cargo sets for this test.
const SET_BY_CARGO: [&str; 6] = [
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_BIN_",
    "CARGO_CRATE_NAME",
    "CARGO_PRIMARY_PACKAGE",
    "RUSTC_BOOTSTRAP",
];

pub struct NextBuild {
    pub program: PathBuf,
    /// The versions of its migrations, such as `V12`.
    pub migrations: Vec<String>,
}

impl NextBuild {
    /// Builds it with the same cargo and library: only its `main` must be compiled.
    pub fn make() -> NextBuild {
        let this = Path::new(env!("CARGO_BIN_EXE_walhook"));
        let mut cargo = Command::new(env!("CARGO"));

        cargo.args(["build", "--locked", "--offline", "--example", "next_build"]);

        if cfg!(feature = "failpoints") {
            cargo.args(["--features", "failpoints"]);
        }

        // The profile that this test was built with.
        if this
            .parent()
            .is_some_and(|directory| directory.ends_with("dist"))
        {
            cargo.args(["--profile", "dist", "--features", "dist"]);
        }

        // Build scripts would run again because of the variables that cargo sets for this test.
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| {
            SET_BY_CARGO
                .iter()
                .any(|prefix| name.to_string_lossy().starts_with(prefix))
        }) {
            cargo.env_remove(name);
        }

        let output = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );

        let newest = newest_migration();
        NextBuild {
            program: this.with_file_name("examples").join("next_build"),
            migrations: (newest + 1..)
                .take(LATER.len())
                .map(|version| format!("V{version}"))
                .collect(),
        }
    }
}

fn newest_migration() -> u32 {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let names = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name());
    let version = |name: &str| name.strip_prefix('V')?.split_once("__")?.0.parse().ok();

    names
        .filter_map(|name| version(name.to_str()?))
        .max()
        .expect("migrations")
}
