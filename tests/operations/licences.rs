//! Tests that the licences of linked crates are allowed, and that the shipped notices contain them.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::are_installed;

fn licences(arguments: &[&str]) -> Output {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/licences"));
    command
        .args(arguments)
        .output()
        .expect("scripts/licences runs with python3")
}

#[test]
fn crates_with_a_licence_outside_the_policy_are_reported() {
    if !are_installed(&["python3"]) {
        return;
    }

    let policy = tempfile::NamedTempFile::new().unwrap();
    let rejected = |allowed: &str| -> Vec<String> {
        std::fs::write(policy.path(), format!("[licenses]\nallow = [{allowed}]\n")).unwrap();
        let output = licences(&["check", policy.path().to_str().unwrap()]);
        let errors = String::from_utf8(output.stderr).unwrap();

        assert!(!output.status.success(), "{errors}");
        let crates = errors.lines().filter_map(|line| line.strip_prefix("  "));
        crates
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    };

    let has = |crates: &[String], name: &str| crates.iter().any(|found| found == name);
    let without_mit = rejected(
        r#""Apache-2.0", "BSD-3-Clause", "ISC", "Unicode-3.0", "Zlib", "PostgreSQL", "0BSD""#,
    );

    assert!(has(&without_mit, "axum"), "{without_mit:?}");
    assert!(
        !has(&without_mit, "serde"),
        "serde is also licensed under Apache-2.0: {without_mit:?}"
    );

    let without_isc = rejected(
        r#""Apache-2.0", "MIT", "BSD-3-Clause", "Unicode-3.0", "Zlib", "PostgreSQL", "0BSD""#,
    );
    assert!(
        has(&without_isc, "ring"),
        "ring requires both of its licences: {without_isc:?}"
    );
}

#[test]
fn the_notices_contain_the_licences_of_everything_linked() {
    if !are_installed(&["python3"]) {
        return;
    }

    let output = licences(&["notices"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let text = String::from_utf8(output.stdout).unwrap();
    let linked = [
        "tokio ",
        "rustls ",
        "pg_walstream ",
        "OpenSSL, by",
        "libpq, by",
        "jemalloc, by",
    ];
    for name in linked {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}");
    }

    for phrase in [
        "PostgreSQL Global Development Group",
        "Permission is hereby granted, free of charge",
        "Apache License",
    ] {
        assert!(text.contains(phrase), "{phrase}");
    }

    for other in ["serde_derive ", "tempfile ", "proptest "] {
        assert!(
            !text.lines().any(|line| line.starts_with(other)),
            "{other} is not linked"
        );
    }
}
