//! `walhook repair`: finds and raises the events that were missed in a gap, and resumes capture.

use super::{CommandResult, print_steps};
use crate::app::open_store;
use crate::app::repair::{Report, repair};
use crate::capture;
use crate::config::{CaptureMode, Config};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Report what would be raised and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Repair although no gap is recorded, on another cluster (for example after pg_upgrade), or on
    /// an earlier timeline
    #[arg(long)]
    force: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    if config.source.capture == CaptureMode::Log {
        let store = open_store(config.store_url()?, 1).await?;
        let Arguments { dry_run, force } = arguments;
        let url = config.capture_url()?;
        let done = capture::log::repair(&config.source, url, &store, force, dry_run).await?;

        return print_steps(&done, "nothing was changed");
    }

    let report = repair(&config, arguments.dry_run, arguments.force).await?;
    print!("{}", text(&report));
    Ok(true)
}

fn text(report: &Report) -> String {
    let mut lines: Vec<String> = report
        .gaps
        .iter()
        .map(|gap| format!("gap {}: {}", gap.reason, gap.detail))
        .collect();
    lines.extend(report.done.iter().cloned());
    lines.push(format!(
        "\n{:<20}{:>12}{:>12}{:>12}{:>12}",
        "table", "rows", "changed", "new", "gone"
    ));

    for (table, rows) in &report.tables {
        let unknown = if rows.unknown {
            "  (the ledger was incomplete: new rows raise nothing)"
        } else {
            ""
        };

        lines.push(format!(
            "{:<20}{:>12}{:>12}{:>12}{:>12}{unknown}",
            table.name(),
            rows.compared,
            rows.changed,
            rows.new,
            rows.gone
        ));
    }

    lines.push(format!("\n{:<40}{:>12}", "event", "missed"));
    lines.extend(
        report
            .events
            .iter()
            .map(|(kind, count)| format!("{:<40}{count:>12}", kind.as_str())),
    );

    if report.tables.values().any(|rows| rows.unknown) {
        lines.push(
            "\nThe ledger (source.ledger) did not have every row. Transitions of the missing rows during the gap cannot be \
             determined, except distributions of releases, which are counted."
                .into(),
        );
    }

    if !report.examples.is_empty() {
        lines.push("\nexamples".into());
        lines.extend(report.examples.iter().map(|example| format!("  {example}")));
    }

    let deliveries = report.deliveries;
    let missed = report.missed;
    let unrouted = report.unrouted;

    lines.push(match report.begins {
        None => format!(
            "\nwould create {deliveries} deliveries; {missed} are for inactive webhooks, {unrouted} events have no owner. \
             Nothing was changed."
        ),
        Some(begins) => format!(
            "\n{deliveries} deliveries created; {missed} kept for inactive webhooks, {unrouted} events have no owner. \
             Changes are read from {begins}."
        ),
    });

    lines.push(String::new());
    lines.join("\n")
}
