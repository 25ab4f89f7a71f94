//! Delivery logs as a file. The next part is read when the client has taken the one before, so that an
//! export holds one part in memory.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::time::{Instant, sleep};

use super::feed_reader::Reader;
use super::logs::LogEntryBody;
use super::query::one_of;
use super::state::ApiState;
use crate::domain::event::UserId;
use crate::http::problem::Problem;
use crate::manage::{Cursor, Entry, LogFilter, LogScope, OperationPermit};
use crate::store::cancel_on_drop;

/// Longer exports are broken off. The client notices, because the body does not end as it must.
const LONGEST: Duration = Duration::from_secs(600);

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    Csv,
    Ndjson,
}

impl ExportFormat {
    pub const NAMES: [&str; 2] = ["csv", "ndjson"];

    pub fn parse(name: &str) -> Result<ExportFormat, String> {
        match name {
            "csv" => Ok(ExportFormat::Csv),
            "ndjson" => Ok(ExportFormat::Ndjson),
            _ => Err(one_of(&ExportFormat::NAMES)),
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            ExportFormat::Csv => "text/csv; charset=utf-8; header=present",
            ExportFormat::Ndjson => "application/x-ndjson",
        }
    }

    const fn disposition(self) -> &'static str {
        match self {
            ExportFormat::Csv => "attachment; filename=\"deliveries.csv\"",
            ExportFormat::Ndjson => "attachment; filename=\"deliveries.ndjson\"",
        }
    }

    const fn head(self) -> &'static str {
        match self {
            ExportFormat::Csv => {
                "timestamp,webhook_id,event_type,about,outcome,response_status,duration_ms,round,attempt,error_kind,\
                 error_message,test,delivery_id,event_id,id\r\n"
            }
            ExportFormat::Ndjson => "",
        }
    }

    fn render(self, entries: Vec<Entry>) -> String {
        let mut text = String::new();
        for entry in entries {
            let body = LogEntryBody::from(entry);
            match self {
                ExportFormat::Csv => body.write_csv(&mut text),
                ExportFormat::Ndjson => {
                    let line = serde_json::to_string(&body).expect("an entry is representable");
                    let _ = writeln!(text, "{line}");
                }
            }
        }

        text
    }
}

/// An export in progress.
struct Export {
    state: ApiState,
    user: UserId,
    scope: LogScope,
    filter: LogFilter,
    format: ExportFormat,
    cursor: Option<Cursor>,
    is_ended: bool,
    until: Instant,
    _permit: OperationPermit<UserId>,
}

/// Starts an export.
pub fn respond(
    state: ApiState,
    reader: &Reader,
    scope: LogScope,
    filter: LogFilter,
    format: ExportFormat,
) -> Result<Response, Problem> {
    let user = reader.user.clone();
    let export = Export {
        _permit: state.manage().begin_export(&user)?,
        state,
        user,
        scope,
        filter,
        format,
        cursor: None,
        is_ended: false,
        until: Instant::now() + LONGEST,
    };

    let head = Bytes::from_static(format.head().as_bytes());
    let parts = unfold((Some(head), export), async |(head, mut export)| {
        let part = match head {
            Some(head) => Ok(head),
            None => export.next().await?,
        };
        Some((part, (None, export)))
    });

    let headers = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::CONTENT_DISPOSITION, format.disposition()),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}

impl Export {
    /// Reads the next part. None after the last one.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.is_ended {
            return None;
        }

        if self.state.closed().is_cancelled() || Instant::now() >= self.until {
            self.is_ended = true;
            return Some(Err(io::ErrorKind::TimedOut.into()));
        }

        let started = Instant::now();
        let manage = self.state.manage();
        let read = manage.export(&self.user, &self.scope, &self.filter, self.cursor);

        match cancel_on_drop(read).await {
            Ok(page) => {
                self.cursor = page.next;
                self.is_ended = page.next.is_none();
                // An export takes at most half of the time of the processor that executes it.
                sleep(started.elapsed()).await;
                Some(Ok(self.format.render(page.items).into()))
            }
            Err(fault) => {
                // Logs the fault.
                let _ = Problem::from(fault);
                self.is_ended = true;
                Some(Err(io::ErrorKind::Other.into()))
            }
        }
    }
}

/// Writes a field. Spreadsheets take a text that begins like a formula for one.
pub fn csv_field(text: &str, out: &mut String) {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let needs_quotes = is_formula || text.contains(['"', ',', '\n', '\r']);
    let prefix = if is_formula { "'" } else { "" };

    let _ = match needs_quotes {
        true => write!(out, "\"{prefix}{}\"", text.replace('"', "\"\"")),
        false => write!(out, "{text}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_formulas_are_text() {
        let field = |text: &str| {
            let mut out = String::new();
            csv_field(text, &mut out);
            out
        };

        assert_eq!(field("CAT-001 · Example"), "CAT-001 · Example");
        assert_eq!(field("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(field("=1+1"), "\"'=1+1\"");
    }
}
