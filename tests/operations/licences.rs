//! What is shipped may be shipped: the licences of linked crates, and the notices that go with them.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::are_installed;

fn licences(arguments: &[&str]) -> Output {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/licences"));
    command.args(arguments).output().expect("scripts/licences, by python3")
}

#[test]
fn a_licence_that_the_policy_does_not_allow_is_named_with_its_crate() {
    if !are_installed(&["python3"]) {
        return;
    }
    let policy = tempfile::NamedTempFile::new().unwrap();
    let refused = |allowed: &str| -> Vec<String> {
        std::fs::write(policy.path(), format!("[licenses]\nallow = [{allowed}]\n")).unwrap();
        let output = licences(&["check", policy.path().to_str().unwrap()]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{errors}");
        let crates = errors.lines().filter_map(|line| line.strip_prefix("  "));
        crates.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let has = |crates: &[String], name: &str| crates.iter().any(|found| found == name);
    let without_mit = refused(r#""Apache-2.0", "BSD-3-Clause", "ISC", "Unicode-3.0", "Zlib", "PostgreSQL", "0BSD""#);
    assert!(has(&without_mit, "axum"), "{without_mit:?}");
    assert!(!has(&without_mit, "serde"), "it may be had under Apache-2.0: {without_mit:?}");
    let without_isc = refused(r#""Apache-2.0", "MIT", "BSD-3-Clause", "Unicode-3.0", "Zlib", "PostgreSQL", "0BSD""#);
    assert!(has(&without_isc, "ring"), "it wants both of its licences: {without_isc:?}");
}

#[test]
fn the_notices_hold_the_licences_of_all_that_is_linked() {
    if !are_installed(&["python3"]) {
        return;
    }
    let output = licences(&["notices"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let linked = ["tokio ", "rustls ", "pg_walstream ", "OpenSSL, by", "libpq, by", "jemalloc, by"];
    for name in linked {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}");
    }
    for words in
        ["PostgreSQL Global Development Group", "Permission is hereby granted, free of charge", "Apache License"]
    {
        assert!(text.contains(words), "{words}");
    }
    for other in ["serde_derive ", "tempfile ", "proptest "] {
        assert!(!text.lines().any(|line| line.starts_with(other)), "{other} is not linked");
    }
}
