//! `make bench`: figures of Walhook's shipped build (profile and feature `dist`) on this machine,
//! each beside the reference measured in the same run.

mod bare;
mod figures;
mod measures;
mod platform;
mod processes;
mod processors;
mod receiver;
mod rig;
mod settings;
mod sidecar;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use figures::Figure;
use measures::{Measure, Plan};
use settings::Setting;

/// The scale of `--quick`: enough to check that every measure works.
const QUICK_SCALE: f64 = 0.01;

#[derive(Debug, Parser)]
#[command(about = "Measures Walhook on a private Postgres, each figure with its reference")]
struct Arguments {
    /// Measures to run; default: all
    #[arg(value_enum)]
    measures: Vec<Measure>,
    /// File to write the figures to, as JSON
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    json: PathBuf,
    /// Binary of the sidecar; default: in the same directory as this program
    #[arg(long, value_name = "FILE")]
    walhook: Option<PathBuf>,
    /// How often a figure and its reference alternate
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repeats: u8,
    /// Share of the full numbers of rows and seconds
    #[arg(long, default_value_t = 1.0, value_parser = share)]
    scale: f64,
    /// Check that every measure works: a hundredth of everything, once. The figures are meaningless
    #[arg(long, conflicts_with_all = ["scale", "assert", "repeats"])]
    quick: bool,
    /// Exit with 1 if a figure misses its threshold
    #[arg(long)]
    assert: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err("must be above 0 and at most 1".to_owned())
    }
}

/// The run as a whole.
#[derive(Serialize)]
struct Report {
    walhook: &'static str,
    processors: usize,
    processor: String,
    postgres: String,
    /// Settings of the measured servers that are not PostgreSQL's defaults.
    postgres_settings: Vec<Setting>,
    scale: f64,
    /// Load average when the run started: about 0 on an idle machine.
    load_at_start: f64,
    began_at: jiff::Timestamp,
    took_seconds: f64,
    figures: Vec<Figure>,
}

fn main() -> anyhow::Result<ExitCode> {
    raise_descriptor_limit();

    if std::env::args().nth(1).as_deref() == Some(receiver::COMMAND) {
        return receiver::serve().map(|()| ExitCode::SUCCESS);
    }

    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(Arguments::parse()))
}

/// Raises the limit of open file descriptors, which is usually 1,024: `hostile` opens more
/// connections than that.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);

    // If it fails, the measure fails that opens too many.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let assert = arguments.assert;
    let chosen = if arguments.measures.is_empty() {
        Measure::ALL.to_vec()
    } else {
        arguments.measures
    };

    let beside = std::env::current_exe()?.with_file_name("walhook");
    let progress = ProgressBar::new(chosen.len() as u64);

    progress.set_style(ProgressStyle::with_template(
        "[{elapsed_precise}] {bar:20} {pos}/{len} {msg}",
    )?);
    progress.enable_steady_tick(Duration::from_millis(250));

    let plan = Plan {
        walhook: arguments.walhook.unwrap_or(beside),
        repeats: if arguments.quick {
            1
        } else {
            arguments.repeats.into()
        },
        scale: if arguments.quick {
            QUICK_SCALE
        } else {
            arguments.scale
        },
        progress,
    };

    let mut report = begin_report(&plan).await?;
    let started = Instant::now();

    for measure in chosen {
        plan.show_step(measure.name());
        let measure_started = Instant::now();
        let mut figures = measure
            .run(&plan)
            .await
            .with_context(|| format!("measuring {}", measure.name()))?;

        figures.add("took", "s", measure_started.elapsed().as_secs_f64());
        report.figures.extend(figures.into_list()?);
        report.took_seconds = started.elapsed().as_secs_f64();

        // After each, so that one that fails does not take the figures of the others with it.
        write_json(&report, &arguments.json)?;
        plan.progress.inc(1);
    }

    plan.progress.finish_and_clear();
    show(&report);

    let missed = report.figures.iter().any(|figure| !figure.is_met());
    Ok(if missed && assert {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn begin_report(plan: &Plan) -> anyhow::Result<Report> {
    let load_at_start = processes::load();
    let (processors, processor) = processes::processor();
    let (postgres, postgres_settings) = settings::read().await?;

    Ok(Report {
        walhook: env!("CARGO_PKG_VERSION"),
        processors,
        processor,
        postgres,
        postgres_settings,
        scale: plan.scale,
        load_at_start,
        began_at: jiff::Timestamp::now(),
        took_seconds: 0.0,
        figures: Vec::new(),
    })
}

fn write_json(report: &Report, path: &Path) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }

    std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

fn show(report: &Report) {
    println!(
        "{} × {}, {}",
        report.processors, report.processor, report.postgres
    );
    println!("Walhook, Postgres, the load and the receiver share these processors.");
    println!(
        "load average at the start: {:.2}, scale {}",
        report.load_at_start, report.scale
    );

    let settings: Vec<String> = report
        .postgres_settings
        .iter()
        .map(Setting::to_string)
        .collect();
    println!(
        "Postgres settings that are not its defaults: {}\n",
        settings.join(", ")
    );
    print!("{}", figures::table(&report.figures));
    println!("\n{:.0} s", report.took_seconds);

    for figure in report.figures.iter().filter(|figure| !figure.is_met()) {
        println!("{}", figure.missed());
    }
}
