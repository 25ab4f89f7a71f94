//! `make bench`: figures of Walhook's shipped build (profile and feature `dist`) on this machine, each beside the reference measured in the same run.

mod bare;
mod figures;
mod measures;
mod platform;
mod processes;
mod receiver;
mod rig;
mod sidecar;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use figures::Figure;
use measures::{Measure, Plan};

#[derive(Debug, Parser)]
#[command(about = "Measures Walhook on a private Postgres, each figure beside its reference")]
struct Arguments {
    /// What to measure; everything unless named
    #[arg(value_enum)]
    measures: Vec<Measure>,
    /// Where the figures are written as JSON
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    json: PathBuf,
    /// The sidecar's binary; the one beside this program unless named
    #[arg(long, value_name = "FILE")]
    walhook: Option<PathBuf>,
    /// How often everything is repeated
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repeats: u8,
    /// Share of the full numbers of rows and seconds: 0.01 for a quick look, whose figures say little
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Print figures that miss their thresholds without failing
    #[arg(long)]
    no_assert: bool,
}

/// The run as a whole.
#[derive(Serialize)]
struct Report {
    walhook: &'static str,
    processors: usize,
    processor: String,
    postgres: String,
    scale: f64,
    repeats: usize,
    /// Tasks that wanted a processor when the run began: on a quiet machine about none.
    load_at_start: f64,
    began_at: jiff::Timestamp,
    took_seconds: f64,
    figures: Vec<Figure>,
}

fn main() -> anyhow::Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some(receiver::COMMAND) {
        return receiver::serve().map(|()| ExitCode::SUCCESS);
    }
    // An error means that there is a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(Arguments::parse()))
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let chosen = if arguments.measures.is_empty() { Measure::ALL.to_vec() } else { arguments.measures };
    let beside = std::env::current_exe()?.with_file_name("walhook");
    let progress = ProgressBar::new(chosen.len() as u64);
    progress.set_style(ProgressStyle::with_template("[{elapsed_precise}] {bar:20} {pos}/{len} {msg}")?);
    progress.enable_steady_tick(Duration::from_millis(250));
    let plan = Plan {
        walhook: arguments.walhook.unwrap_or(beside),
        repeats: usize::from(arguments.repeats),
        scale: arguments.scale,
        progress,
    };
    let (processors, processor) = processes::processor();
    let mut report = Report {
        walhook: env!("CARGO_PKG_VERSION"),
        processors,
        processor,
        postgres: postgres_version().await?,
        scale: plan.scale,
        repeats: plan.repeats,
        load_at_start: processes::load(),
        began_at: jiff::Timestamp::now(),
        took_seconds: 0.0,
        figures: Vec::new(),
    };
    let begun = Instant::now();
    for measure in chosen {
        plan.tell(measure.name());
        let begun = Instant::now();
        let mut figures = measure.run(&plan).await.with_context(|| format!("measuring {}", measure.name()))?;
        figures.add("took", "s", begun.elapsed().as_secs_f64());
        report.figures.extend(figures.into_list());
        plan.progress.inc(1);
    }
    plan.progress.finish_and_clear();
    report.took_seconds = begun.elapsed().as_secs_f64();
    if let Some(directory) = arguments.json.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    std::fs::write(&arguments.json, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("cannot write {}", arguments.json.display()))?;
    show(&report);
    Ok(verdict(&report.figures, arguments.no_assert))
}

fn show(report: &Report) {
    println!("{} × {}, {}", report.processors, report.processor, report.postgres);
    println!("Postgres with fsync and synchronous_commit on, Walhook, load and receiver share these processors.");
    println!(
        "load average at the start: {:.2}, {} repeats, scale {}\n",
        report.load_at_start, report.repeats, report.scale
    );
    print!("{}", figures::table(&report.figures));
    println!("\n{:.0} s", report.took_seconds);
}

fn verdict(figures: &[Figure], no_assert: bool) -> ExitCode {
    let missed: Vec<&Figure> = figures.iter().filter(|figure| !figure.is_met()).collect();
    for figure in &missed {
        let must = figure.must.map(|must| must.to_string()).unwrap_or_default();
        let value = figures::number(figure.median);
        eprintln!("missed: {}: {} is {value} {}, must be {must}", figure.measure, figure.name, figure.unit);
    }
    if missed.is_empty() || no_assert { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn postgres_version() -> anyhow::Result<String> {
    let server = walhook::private_postgres::PrivatePostgres::start(Default::default()).await?;
    let output = server.program("postgres").arg("--version").output().await?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
