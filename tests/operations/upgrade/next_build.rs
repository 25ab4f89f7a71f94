//! The build that comes after this one: the same sources under a higher version, with two more migrations.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// By the name that follows the number.
const MIGRATIONS: [(&str, &str); 2] = [
    ("delivery_priority", include_str!("migrations/delivery_priority.sql")),
    ("webhook_description", include_str!("migrations/webhook_description.sql")),
];
/// What differs, or is not source.
const NOT_SHARED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "migrations", "target", ".git"];

pub struct NextBuild {
    pub program: PathBuf,
    pub version: String,
    /// The versions of the schema that it brings, such as `V12`.
    pub migrations: Vec<String>,
}

impl NextBuild {
    /// By the same cargo, with the dependencies that this build is made of: one crate is compiled, once.
    pub fn make() -> NextBuild {
        let below_target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let sources = below_target.join("next-build");
        let newest = lay_out(Path::new(env!("CARGO_MANIFEST_DIR")), &sources);
        let version = format!("0.999.{newest}");
        for manifest in ["Cargo.toml", "Cargo.lock"] {
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest)).expect(manifest);
            let ours = format!("name = \"walhook\"\nversion = \"{}\"", env!("CARGO_PKG_VERSION"));
            assert!(text.contains(&ours), "{manifest} names another version");
            write(
                &sources.join(manifest),
                &text.replacen(&ours, &format!("name = \"walhook\"\nversion = \"{version}\""), 1),
            );
        }
        let output = cargo(&sources, below_target.parent().expect("the target directory")).output().expect("cargo");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let migrations = (newest + 1..).take(MIGRATIONS.len()).map(|version| format!("V{version}")).collect();
        NextBuild { program: sources.join("target/debug/walhook"), version, migrations }
    }
}

/// What our own cargo set for us is not for this one: build scripts look at it, and would be run anew.
const OURS: [&str; 5] = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];

fn cargo(sources: &Path, made: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        if OURS.iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            cargo.env_remove(name);
        }
    }
    cargo.args(["build", "--locked", "--offline"]).current_dir(sources);
    // It is built once and not debugged.
    cargo.env("CARGO_INCREMENTAL", "0").args(["--config", "profile.dev.package.walhook.debug=false"]);
    // The binary apart from ours, which other tests run; what it is made of where ours was found.
    cargo.env("CARGO_TARGET_DIR", sources.join("target")).env("CARGO_BUILD_BUILD_DIR", made);
    cargo
}

/// The sources as links, the migrations as copies beside new ones. Gives the newest version of the schema before those.
fn lay_out(root: &Path, sources: &Path) -> u32 {
    fs::create_dir_all(sources.join("migrations")).expect("a directory");
    for shared in files(root).filter(|path| !NOT_SHARED.contains(&name(path).as_str())) {
        let link = sources.join(name(&shared));
        if fs::symlink_metadata(&link).is_err() {
            symlink(shared, link).expect("a link");
        }
    }
    let mut migrations: BTreeMap<String, String> = files(&root.join("migrations"))
        .map(|path| (name(&path), fs::read_to_string(&path).expect("a migration")))
        .collect();
    let number = |name: &String| name.strip_prefix('V')?.split_once("__")?.0.parse().ok();
    let newest: u32 = migrations.keys().filter_map(number).max().expect("migrations");
    for (version, (name, statements)) in (newest + 1..).zip(MIGRATIONS) {
        migrations.insert(format!("V{version}__{name}.sql"), statements.to_owned());
    }
    for (name, statements) in &migrations {
        write(&sources.join("migrations").join(name), statements);
    }
    for earlier in files(&sources.join("migrations")).filter(|path| !migrations.contains_key(&name(path))) {
        fs::remove_file(earlier).expect("what an earlier run wrote");
    }
    newest
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path())
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file").to_str().expect("a name in UTF-8").to_owned()
}

/// Leaves a file alone that is as wanted: cargo goes by the times of files.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
