//! One entry of the delivery log: request, response, and the next attempt.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::error::PageError;
use super::flash::Flash;
use super::format::{failure_label, pretty, sentence};
use super::log_line::LogLine;
use super::page::{Frame, Section, page, redirect};
use super::state::webhook_path;
use super::time::Exact;
use super::visit::{Ids, Visit};
use crate::manage::{Fault, LogEntry, NextAttempt, RenderedRequest, Webhook};

/// Binary data is shown up to this length.
const MAX_BINARY_BYTES: usize = 512;

#[derive(Template)]
#[template(path = "ui/entry.html")]
struct EntryPage {
    frame: Frame,
    webhook: Webhook,
    attempts: u16,
    event: Uuid,
    line: LogLine,
    /// The next attempt of the delivery.
    next: Option<NextAttempt>,
    url: Option<String>,
    request: Option<RenderedRequest>,
    response: Option<Excerpt>,
}

/// The start of a response body.
#[derive(Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    is_binary: bool,
}

impl Excerpt {
    /// Shows text with visible control characters, and anything else as hexadecimal bytes.
    fn new(bytes: &[u8]) -> Excerpt {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Some(text),
            // The excerpt may end within a character.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };

        match text.filter(|text| !text.contains('\0')) {
            Some(text) => Excerpt {
                text: text.chars().map(visible).collect(),
                is_binary: false,
            },
            None => Excerpt {
                text: hex_dump(&bytes[..bytes.len().min(MAX_BINARY_BYTES)]),
                is_binary: true,
            },
        }
    }
}

/// Replaces control characters by their symbols. Characters that change the direction of text have
/// none.
fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{7f}'..='\u{9f}' => '\u{fffd}',
        c => c,
    }
}

fn hex_dump(bytes: &[u8]) -> String {
    let pairs = |chunk: &[u8]| {
        chunk
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    bytes.chunks(16).map(pairs).collect::<Vec<_>>().join("\n")
}

pub async fn show(visit: Visit, Ids((id, log)): Ids<(Uuid, Uuid)>) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let webhook = manage.webhook(user, id).await?;
    let LogEntry { detail, request } = manage.log_entry(user, id, log).await?;
    let next = manage
        .pending_attempt(user, id, detail.entry.delivery)
        .await?;
    let attempts = visit.state.attempts;

    let template = EntryPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        attempts,
        event: detail.entry.event,
        next,
        url: detail.url,
        request,
        response: detail
            .response_body
            .as_deref()
            .filter(|bytes| !bytes.is_empty())
            .map(Excerpt::new),
        line: LogLine::new(detail.entry, attempts),
    };

    Ok(page(&template))
}

/// Starts the next round of the entry's delivery, and returns to the entry.
pub async fn redeliver(
    visit: Visit,
    Ids((id, log)): Ids<(Uuid, Uuid)>,
) -> Result<Response, PageError> {
    let flash = match visit.manage().redeliver(&visit.actor, id, log).await {
        Ok(started) => {
            let round = started.round;
            Flash::good(format!(
                "Redelivery started (round {round}). Its attempts appear in the delivery log."
            ))
        }
        // The entry can still be viewed.
        Err(
            fault @ (Fault::WebhookInactive | Fault::NotRedeliverable(_) | Fault::EventExpired),
        ) => Flash::bad(sentence(&fault.to_string())),
        Err(fault) => return Err(fault.into()),
    };
    Ok(redirect(&webhook_path(id, &format!("/logs/{log}")), flash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_text_or_bytes() {
        let text = |bytes: &[u8]| Excerpt::new(bytes);
        assert_eq!(
            text(b"ok\r\n\x1b[2J"),
            Excerpt {
                text: "ok␍\n␛[2J".into(),
                is_binary: false
            }
        );

        assert_eq!(
            text("é".as_bytes().split_last().unwrap().1).text,
            "",
            "cut within a character"
        );
        assert_eq!(text("a\u{202e}b".as_bytes()).text, "a\u{fffd}b");

        assert_eq!(
            text(b"\x89PNG\0"),
            Excerpt {
                text: "89 50 4e 47 00".into(),
                is_binary: true
            }
        );
    }
}
