//! One entry of the delivery log: what was sent, what came back, and what is to come.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::Value;
use uuid::Uuid;

use super::UiState;
use super::answer::{Frame, Section, go, page};
use super::edit::webhook_id;
use super::failure::{Failure, sentence};
use super::flash::Flash;
use super::logs::Line;
use super::session::Visitor;
use super::time::Moment;
use super::webhook::failure_name;
use crate::api::Problem;
use crate::store::logs;

/// What is no text is shown as bytes, so many of them.
const SHOWN_BYTES: usize = 512;

#[derive(Template)]
#[template(path = "ui/entry.html")]
struct Page {
    frame: Frame,
    webhook: Uuid,
    name: String,
    active: bool,
    line: Line,
    delivery: Uuid,
    /// The kind of failure, and what exactly.
    error: Option<(&'static str, String)>,
    next: Option<Next>,
    url: Option<String>,
    headers: Vec<(String, String)>,
    body: Option<Body>,
    response: Option<Excerpt>,
}

/// The next attempt.
struct Next {
    attempt: String,
    /// None while it is being made.
    due: Option<Moment>,
}

struct Body {
    pretty: String,
    raw: String,
}

/// The beginning of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    is_binary: bool,
}

impl Excerpt {
    /// Text as it is, but for characters that cannot be seen; anything else as bytes in hexadecimal.
    fn of(bytes: &[u8]) -> Excerpt {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Some(text),
            // The excerpt may end within a character.
            Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
            Err(_) => None,
        };
        match text.filter(|text| !text.contains('\0')) {
            Some(text) => Excerpt { text: text.chars().map(visible).collect(), is_binary: false },
            None => Excerpt { text: hex_dump(&bytes[..bytes.len().min(SHOWN_BYTES)]), is_binary: true },
        }
    }
}

/// Control characters have pictures of their own; those that turn the direction of text around have none.
fn visible(letter: char) -> char {
    match letter {
        '\n' | '\t' => letter,
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + letter as u32).unwrap_or('\u{fffd}'),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{7f}'..='\u{9f}' => '\u{fffd}',
        letter => letter,
    }
}

fn hex_dump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|chunk| {
        let pairs: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        pairs.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub async fn show(
    State(state): State<UiState>,
    visitor: Visitor,
    Path((webhook, log)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let (id, log) = (webhook_id(&webhook)?, log_id(&log)?);
    let user = &visitor.actor.user;
    let webhook = state.api.webhook(user, id).await?;
    let found = state.api.log_entry(user, id, log).await?;
    let pending = logs::pending(state.api.store(), user, id, found.entry.delivery).await?;
    let attempts = state.attempts;
    let next = pending.map(|pending| Next {
        attempt: format!("{} of {attempts}", pending.attempt),
        due: pending.due_at.map(Moment::exact),
    });
    let request = state.api.request_of(&found);
    let (headers, body) = request.map(|request| (request.headers, request.body)).unzip();
    let error = found.entry.error.as_ref().map(|(kind, message)| (failure_name(kind), sentence(message)));
    let shown = Page {
        frame: Frame::of(&state, visitor, Section::Webhooks),
        webhook: id,
        name: webhook.settings.name,
        active: webhook.settings.active,
        delivery: found.entry.delivery,
        error,
        next,
        url: found.url,
        headers: headers.into_iter().flatten().collect(),
        body: body.map(|raw: String| Body { pretty: pretty(&raw), raw }),
        response: found.response_body.as_deref().filter(|bytes| !bytes.is_empty()).map(Excerpt::of),
        line: Line::new(found.entry, attempts),
    };
    Ok(page(&shown))
}

pub async fn redeliver(
    State(state): State<UiState>,
    visitor: Visitor,
    Path((webhook, log)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let (webhook, log) = (webhook_id(&webhook)?, log_id(&log)?);
    let here = format!("/ui/webhooks/{webhook}/logs/{log}");
    match state.api.redeliver(&visitor.actor, webhook, log).await {
        Ok(begun) => {
            let told = format!("Redelivery begun: round {}. Its attempts are in the log.", begun.round);
            Ok(go(&here, Flash::good(told)))
        }
        // Why not is for whoever asked; the entry is still there to look at.
        Err(problem) if ["webhook-inactive", "not-redeliverable", "event-gone"].contains(&problem.slug()) => {
            Ok(go(&here, Flash::bad(sentence(problem.detail()))))
        }
        Err(problem) => Err(problem.into()),
    }
}

fn log_id(text: &str) -> Result<Uuid, Problem> {
    text.parse().map_err(|_| Problem::not_found("the webhook's log has no such entry"))
}

fn pretty(json: &str) -> String {
    let parsed: Result<Value, _> = serde_json::from_str(json);
    parsed.ok().and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_text_or_bytes() {
        let text = |bytes: &[u8]| Excerpt::of(bytes);
        assert_eq!(text(b"ok\r\n\x1b[2J"), Excerpt { text: "ok␍\n␛[2J".into(), is_binary: false });
        assert_eq!(text("é".as_bytes().split_last().unwrap().1).text, "", "cut within a character");
        assert_eq!(text("a\u{202e}b".as_bytes()).text, "a\u{fffd}b");
        assert_eq!(text(b"\x89PNG\0"), Excerpt { text: "89 50 4e 47 00".into(), is_binary: true });
    }
}
