//! Forwards events to a receiver under development, and prints one line for each. Requests are
//! rendered, signed and sent by the code that makes deliveries, so that the receiver sees what it
//! will see in production.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{Timestamp, Zoned};
use secrecy::SecretString;
use serde::Serialize;
use uuid::Uuid;

use crate::clock::SystemClock;
use crate::config::Config;
use crate::deliver::guard::Guard;
use crate::deliver::request::Notification;
use crate::deliver::{Sender, Settings};
use crate::domain::event::{EventKind, delivery_id};
use crate::domain::headers::CustomHeaders;
use crate::domain::time::{micros, millis};
use crate::domain::webhook::Target;
use crate::tls;

/// What `walhook listen` and `walhook trigger` have in common.
#[derive(Debug, clap::Args)]
pub struct ForwardOptions {
    /// URL of your receiver, such as http://localhost:3000/hooks. `localhost:3000/hooks` is the same;
    /// `9002` is http://localhost:9002/ and `/hooks` is http://localhost/hooks
    #[arg(long, value_name = "URL", value_parser = receiver_url)]
    forward_to: String,
    /// Secret to sign with, instead of a generated one
    #[arg(
        long,
        env = "WALHOOK_RECEIVE_SECRET",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub secret: Option<SecretString>,
    /// PEM file of certificate authorities to trust in addition to the system's
    #[arg(long, value_name = "FILE", value_parser = ca_file)]
    pub ca_file: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

fn receiver_url(text: &str) -> Result<String, String> {
    let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    let is_port = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_digit());

    // A number alone would be an address: `9002` is 0.0.35.42. And `localhost:3000` alone would be
    // a URL whose scheme is `localhost`.
    let url = if is_port {
        format!("http://localhost:{text}")
    } else if host.is_empty() && !path.is_empty() {
        format!("http://localhost{path}")
    } else if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };

    Guard::unrestricted()
        .check_url(&url)
        .map(String::from)
        .map_err(|problem| problem.to_string())
}

/// Parses the path of a PEM file, which must be readable.
pub fn ca_file(text: &str) -> Result<PathBuf, String> {
    tls::certificates(Path::new(text)).map(|_| PathBuf::from(text))
}

/// Parses the name of an event. The error lists all names.
pub fn event_kind() -> impl TypedValueParser<Value = EventKind> {
    let names = EventKind::ALL.iter().map(|kind| kind.as_str());
    PossibleValuesParser::new(names)
        .map(|name| name.parse().expect("only names of events are possible"))
}

/// An event to forward.
pub struct ForwardedEvent {
    pub id: Uuid,
    pub kind: EventKind,
    pub occurred_at: Timestamp,
    pub data: String,
    /// The number of the delivery within its webhook. A test has none.
    pub sequence: Option<i64>,
}

/// Why an event is sent. It is visible in the request or in the printed line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Occurred,
    /// At the developer's request, after it was sent before.
    Again,
    /// An example, not an event of the platform.
    Test,
}

/// Sends events to the receiver, as deliveries of a webhook that exists only here.
pub struct Forwarder {
    sender: Sender,
    target: Target,
    json: bool,
}

impl Forwarder {
    pub fn new(
        options: &ForwardOptions,
        webhook: Uuid,
        secret: SecretString,
    ) -> anyhow::Result<Forwarder> {
        let settings = Settings {
            guard: Guard::unrestricted(),
            extra_ca_file: options.ca_file.clone(),
            ..Settings::from_config(&Config::default())?
        };

        let url = options.forward_to.as_str().into();
        let headers = CustomHeaders::default();

        let target = Target {
            webhook,
            url,
            active: true,
            secret,
            headers,
        };

        Ok(Forwarder {
            sender: Sender::new(&settings, Arc::new(SystemClock))?,
            target,
            json: options.json,
        })
    }

    pub fn url(&self) -> &str {
        &self.target.url
    }

    /// Sends one attempt and prints its line. Returns whether the receiver accepted it.
    pub async fn forward(&self, event: &ForwardedEvent, reason: Reason) -> anyhow::Result<bool> {
        let notification = Notification {
            delivery: delivery_id(event.id, self.target.webhook),
            webhook: self.target.webhook,
            event: event.id,
            kind: event.kind.as_str(),
            occurred_at: event.occurred_at,
            data: &event.data,
            sequence: event.sequence,
            attempt: 1,
            test: reason == Reason::Test,
        };

        let attempt = self.sender.attempt(&self.target, &notification).await;
        let duration = attempt
            .as_ref()
            .ok()
            .and_then(|attempt| Some(attempt.sent.as_ref()?.duration));
        let answer = attempt.as_ref().map(|attempt| &attempt.answer);

        let error = match answer {
            Ok(answer) => answer.error().map(|kind| AttemptError {
                kind: kind.as_str(),
                message: answer.message().unwrap_or_default().to_owned(),
            }),
            // No attempt was made, for example because this process has too many open files.
            Err(fault) => Some(AttemptError {
                kind: fault.cause.as_str(),
                message: fault.to_string(),
            }),
        };

        let line = AttemptLine {
            time: Zoned::now(),
            event: event.kind,
            event_id: event.id,
            delivery_id: notification.delivery,
            occurred_at: micros(event.occurred_at),
            delivered: error.is_none(),
            response_status: answer.ok().and_then(|answer| answer.status()),
            duration_ms: duration.map(|duration| duration.as_millis() as u64),
            error,
            again: reason == Reason::Again,
        };

        let text = if self.json {
            serde_json::to_string(&line)?
        } else {
            line.to_string()
        };

        writeln!(std::io::stdout(), "{text}").context("cannot write to standard output")?;
        Ok(line.delivered)
    }
}

/// The line that is printed for an attempt. The JSON form has the names of the delivery log and of
/// the feed.
#[derive(Serialize)]
struct AttemptLine {
    #[serde(serialize_with = "in_utc")]
    time: Zoned,
    event: EventKind,
    event_id: Uuid,
    delivery_id: Uuid,
    occurred_at: String,
    delivered: bool,
    response_status: Option<u16>,
    duration_ms: Option<u64>,
    error: Option<AttemptError>,
    again: bool,
}

#[derive(Serialize)]
struct AttemptError {
    kind: &'static str,
    message: String,
}

fn in_utc<S: serde::Serializer>(time: &Zoned, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&millis(time.timestamp()))
}

/// Columns: local time, event, event id, status or error kind, milliseconds, and an explanation if
/// there is something to explain.
impl std::fmt::Display for AttemptLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.error.as_ref().map_or("", |error| error.kind);
        let status = self
            .response_status
            .map_or(kind.to_owned(), |status| status.to_string());
        let duration = self.duration_ms.map_or("-".to_owned(), |ms| ms.to_string());
        let time = self.time.strftime("%H:%M:%S");
        let event = self.event.as_str();

        write!(
            f,
            "{time}  {event:<34}  {}  {status:<3}  {duration:>4} ms",
            self.event_id
        )?;

        if self.again {
            write!(f, "  (again)")?;
        }

        self.error
            .as_ref()
            .map_or(Ok(()), |error| write!(f, "  {}", error.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_on_this_machine_need_no_scheme() {
        assert_eq!(
            receiver_url("localhost:3000/hooks").unwrap(),
            "http://localhost:3000/hooks"
        );
        assert_eq!(
            receiver_url("https://127.0.0.1").unwrap(),
            "https://127.0.0.1/"
        );

        for (short, url) in [
            ("9002", "http://localhost:9002/"),
            ("9002/hooks?a=1", "http://localhost:9002/hooks?a=1"),
            ("/hooks", "http://localhost/hooks"),
            ("/", "http://localhost/"),
        ] {
            assert_eq!(receiver_url(short).unwrap(), url);
        }

        for wrong in [
            "",
            "99999",
            "ftp://localhost",
            "http://user@localhost/",
            "localhost:port",
        ] {
            assert!(receiver_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_shows_the_status_or_why_there_is_none() {
        let line = |response_status, error: Option<(&'static str, &str)>, again| AttemptLine {
            time: "2026-03-01T10:05:00[Europe/Paris]".parse().unwrap(),
            event: EventKind::TranscodeFailed,
            event_id: Uuid::nil(),
            delivery_id: Uuid::nil(),
            occurred_at: micros(Timestamp::UNIX_EPOCH),
            delivered: error.is_none(),
            response_status,
            duration_ms: Some(12),
            error: error.map(|(kind, message)| AttemptError {
                kind,
                message: message.to_owned(),
            }),
            again,
        };

        let start =
            "10:05:00  transcode.failed                    00000000-0000-0000-0000-000000000000";
        assert_eq!(
            line(Some(200), None, false).to_string(),
            format!("{start}  200    12 ms")
        );
        assert_eq!(
            line(Some(200), None, true).to_string(),
            format!("{start}  200    12 ms  (again)")
        );

        let refused =
            line(None, Some(("connect_refused", "Connection refused")), false).to_string();
        assert_eq!(
            refused,
            format!("{start}  connect_refused    12 ms  Connection refused")
        );
    }
}
