//! Programs that only some tests need. If one is missing, the test is skipped and counted; with
//! `CI=true` it fails.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The variable with the file in which `scripts/test` counts skipped tests.
const SKIPS: &str = "WALHOOK_TEST_SKIPS";

/// Whether all programs are in the path or in `/usr/sbin`. If not, reports that the test is
/// skipped.
pub fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .collect();
    let is_installed = |program: &&&str| {
        directories
            .iter()
            .any(|directory| directory.join(program).is_file())
    };

    match programs.iter().find(|program| !is_installed(program)) {
        Some(program) => skip(&format!("{program} is not installed")),
        None => true,
    }
}

/// Runs a program, which must succeed, and returns its standard output.
pub fn run_program(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );

    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Reports that the running test is skipped, and returns false.
pub fn skip(reason: &str) -> bool {
    let remedy = "`scripts/install-dependencies test` installs what tests need";
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{reason}: {remedy}"
    );

    let test = std::thread::current().name().unwrap_or("a test").to_owned();

    // Not by `eprintln!`, whose output the test harness captures.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}; {remedy}");

    if let Some(file) = std::env::var_os(SKIPS) {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(Path::new(&file));

        // One write per line, because other test processes write to the file too.
        let _ = file.and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()));
    }

    false
}
