//! The log: lines for people or objects for machines, on standard error, so that what a command prints stays clean.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::filter::{FilterFn, LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

const RUST_LOG: &str = "RUST_LOG";

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Begins to log. Once a process. The error names the setting that cannot be understood.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = filter(log)?;
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => {
            builder.with_ansi(std::io::stderr().is_terminal()).finish().with(filter).with(discretion()).init()
        }
        LogFormat::Json => {
            builder.json().flatten_event(true).with_span_list(false).finish().with(filter).with(discretion()).init();
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }
    let _ = FORMAT.set(log.format);
    Ok(())
}

/// A process's last words.
pub fn end_with(error: &anyhow::Error) {
    match FORMAT.get() {
        Some(LogFormat::Json) => tracing::error!("{error:#}"),
        Some(LogFormat::Text) | None => eprintln!("walhook: {error:#}"),
    }
}

/// Libraries that log at DEBUG or TRACE what they carry: statements with their parameters, messages with their content.
const TALKATIVE: [&str; 1] = ["tokio_postgres"];

/// Holds back what may contain secrets or payloads, whatever the filter asks for.
fn discretion() -> FilterFn {
    filter_fn(|line| {
        let is_talkative = || TALKATIVE.iter().any(|library| line.target().starts_with(library));
        *line.level() <= LevelFilter::INFO || !is_talkative()
    })
}

fn filter(log: &Log) -> Result<Targets, String> {
    let variable = std::env::var(RUST_LOG).ok().filter(|text| !text.is_empty());
    let (name, text) = variable.as_deref().map_or(("log.filter", log.filter.as_str()), |text| (RUST_LOG, text));
    text.parse::<Targets>().map_err(|error| format!("{name}: `{text}`: {error}"))
}
