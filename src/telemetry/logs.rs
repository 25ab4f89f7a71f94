//! The server log: text or JSON lines on standard error. Standard output carries only what a
//! command prints.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::filter::{FilterFn, LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Log, LogFormat};

const RUST_LOG: &str = "RUST_LOG";

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts logging. Must be called once per process. The error names the invalid setting.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = filter(log)?;
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr);

    match log.format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .finish()
            .with(filter)
            .with(without_payloads())
            .init(),
        LogFormat::Json => {
            builder
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .finish()
                .with(filter)
                .with(without_payloads())
                .init();
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }

    let _ = FORMAT.set(log.format);
    Ok(())
}

/// Logs the error that ends the process.
pub fn log_fatal(error: &str) {
    match FORMAT.get() {
        Some(LogFormat::Json) => tracing::error!("{error}"),
        Some(LogFormat::Text) | None => eprintln!("walhook: {error}"),
    }
}

/// Libraries that log payloads at levels below INFO: tokio_postgres logs each statement with its
/// parameters.
const PAYLOAD_LOGGERS: [&str; 1] = ["tokio_postgres"];

/// Rejects lines that may contain secrets or payloads, even if the configured filter allows them.
fn without_payloads() -> FilterFn {
    filter_fn(|line| {
        let is_payload_logger = || {
            PAYLOAD_LOGGERS
                .iter()
                .any(|library| line.target().starts_with(library))
        };
        *line.level() <= LevelFilter::INFO || !is_payload_logger()
    })
}

fn filter(log: &Log) -> Result<Targets, String> {
    let variable = std::env::var(RUST_LOG).ok().filter(|text| !text.is_empty());
    let (name, text) = variable
        .as_deref()
        .map_or(("log.filter", log.filter.as_str()), |text| (RUST_LOG, text));
    text.parse::<Targets>()
        .map_err(|error| format!("{name}: `{text}`: {error}"))
}
