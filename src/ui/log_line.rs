//! One line of the delivery log.

use super::format::{Millis, failure_label, outcome_label};
use super::state::webhook_path;
use crate::manage::Entry;

/// The label of a failure that is not retried because it was a test, and the class of its badge.
pub const FAILED: (&str, &str) = ("Failed", "bad");

/// An entry with its formatted attempt number.
pub struct LogLine {
    pub entry: Entry,
    /// Such as "3 of 10, round 2".
    pub attempt: String,
    /// The name of the webhook, in the log of the account.
    pub webhook: Option<String>,
}

/// Whether the lines name their webhooks.
pub fn have_webhooks(lines: &[LogLine]) -> bool {
    lines.iter().any(|line| line.webhook.is_some())
}

impl LogLine {
    /// Makes the line of an entry. A round of a delivery has `attempts` attempts.
    pub fn new(entry: Entry, attempts: u16) -> LogLine {
        let of = if entry.test {
            String::new()
        } else {
            format!(" of {attempts}")
        };

        let round = if entry.round > 1 {
            format!(", round {}", entry.round)
        } else {
            String::new()
        };

        let attempt = format!("{}{of}{round}", entry.attempt);
        LogLine {
            entry,
            attempt,
            webhook: None,
        }
    }

    /// Returns the path of the delivery's page with this attempt.
    pub fn path(&self) -> String {
        webhook_path(self.entry.webhook, &format!("/logs/{}", self.entry.id))
    }

    /// What the event is about. None if there is nothing to name.
    pub fn about(&self) -> Option<String> {
        self.entry.about.as_ref()?.text()
    }

    /// Returns the label of the outcome and the class of its badge.
    pub fn outcome(&self) -> (&'static str, &'static str) {
        match &*self.entry.outcome {
            "failed" if self.entry.test => FAILED,
            outcome => outcome_label(outcome),
        }
    }

    pub fn status(&self) -> String {
        self.entry
            .response_status
            .map_or_else(|| "–".to_owned(), |status| status.to_string())
    }

    pub fn duration(&self) -> Millis<Option<u64>> {
        Millis(
            self.entry
                .duration_ms
                .and_then(|millis| u64::try_from(millis).ok()),
        )
    }

    pub fn error(&self) -> Option<&'static str> {
        self.entry
            .error
            .as_ref()
            .map(|(kind, _)| failure_label(kind))
    }
}
