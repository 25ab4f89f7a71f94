//! Quick checks of the files in `deploy/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::are_installed;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn walhook(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_walhook"))
        .args(arguments)
        .env_clear()
        .output()
        .expect("walhook");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );

    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Finds the names of metrics in a rule file, its tests or the dashboard.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_word(c));
    let metrics = words.filter(|word| word.starts_with("walhook_") || word.starts_with("process_"));

    metrics
        .map(|word| {
            ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end))
                .unwrap_or(word)
        })
        .collect()
}

#[test]
fn rules_and_dashboard_name_metrics_that_the_binary_has() {
    let known = read("src/telemetry/mod.rs");

    for file in [
        "deploy/prometheus/walhook.rules.yml",
        "deploy/prometheus/walhook.rules.test.yml",
        "deploy/grafana/walhook.json",
    ] {
        let text = read(file);
        let metrics = metrics_in(&text);
        assert!(
            metrics.len() > 5,
            "too few metrics were found in {file}: {metrics:?}"
        );
        for metric in metrics
            .iter()
            .filter(|metric| metric.starts_with("walhook_"))
        {
            assert!(
                known.contains(&format!("\"{metric}\"")),
                "{file} uses {metric}, which is not exported"
            );
        }
    }
}

#[test]
fn the_dashboard_uses_recorded_names_and_distinct_panels() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("deploy/grafana/walhook.json")).unwrap();
    let rules = read("deploy/prometheus/walhook.rules.yml");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels
        .iter()
        .filter_map(|panel| panel["id"].as_u64())
        .collect();

    assert_eq!(ids.len(), panels.len(), "two panels share an id");
    let queries = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    for query in queries {
        let text = query["expr"].as_str().unwrap();
        for word in text.split(|c: char| c.is_whitespace() || c == '(' || c == ')') {
            if word.starts_with("walhook:") {
                assert!(
                    rules.contains(&format!("record: {word}")),
                    "no rule records {word}"
                );
            }
        }
    }
}

const GUIDE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/runbook.md");

/// Each alert has a section in the runbook.
#[test]
fn every_alert_has_its_runbook() {
    let rules = read("deploy/prometheus/walhook.rules.yml");
    let guide = read("docs/runbook.md");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();

    assert!(alerts.len() >= 10);

    for alert in alerts {
        assert!(
            guide.contains(&format!("### {alert}\n")),
            "docs/runbook.md has no section about {alert}"
        );
        assert!(
            rules.contains(&format!("runbook_url: {GUIDE}#{}\n", alert.to_lowercase())),
            "{alert} has no runbook"
        );
    }
}

#[test]
fn the_rules_pass_their_own_tests() {
    if !are_installed(&["promtool"]) {
        return;
    }

    let run = |arguments: &[&str]| {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(path("deploy/prometheus"))
            .output();
        let output = output.expect("promtool, of Debian's package prometheus");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    };

    run(&["check", "config", "prometheus.yml"]);
    run(&["test", "rules", "walhook.rules.test.yml"]);
}

#[test]
fn the_systemd_unit_is_sandboxed() {
    if !are_installed(&["systemd-analyze"]) {
        return;
    }

    let unit = path("deploy/systemd/walhook.service");
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=19", "--no-pager"])
        .arg(&unit)
        .output()
        .expect("systemd-analyze, of Debian's package systemd");
    let text = String::from_utf8_lossy(&output.stdout);

    assert!(output.status.success(), "{text}");
    let level = text
        .lines()
        .rev()
        .find_map(|line| line.split_once("service: "))
        .expect("a level")
        .1;

    let level: f64 = level.split_whitespace().next().unwrap().parse().unwrap();
    assert!(level < 2.0, "exposure {level}");
}

#[test]
fn completions_and_manual_pages_cover_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            walhook(&["completions", shell]).contains("teardown"),
            "{shell}"
        );
    }

    let directory = tempfile::tempdir().unwrap();
    walhook(&["man", directory.path().to_str().unwrap()]);

    let help = walhook(&["--help"]);
    let commands = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    for command in commands
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
    {
        if command != "help" {
            let page = directory.path().join(format!("walhook-{command}.1"));
            assert!(page.is_file(), "no page of {command}");
        }
    }

    assert!(directory.path().join("walhook.1").is_file());
}
