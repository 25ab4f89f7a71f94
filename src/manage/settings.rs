//! The settings of a webhook, as types that hold valid values only.

use std::collections::BTreeSet;
use std::time::Duration;

use url::Url;

use super::fault::{Fault, Result};
use super::receivers::Unreachable;
use super::service::Manage;
use crate::domain::event::{EventKind, UserId};
use crate::domain::text::{self, TextFault};

/// How long a DNS lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a setting is invalid. The text is a predicate of the setting: `must not be empty`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingFault {
    #[error(transparent)]
    Name(#[from] TextFault),
    #[error("must not contain spaces or control characters")]
    SpacesInUrl,
    /// The URL is malformed, or this service does not call such URLs.
    #[error("{0}")]
    Url(String),
    #[error("must name at least one event")]
    NoEvents,
}

/// A webhook's name: 1 to 200 characters, all visible, without spaces at the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookName(pub(super) String);

impl WebhookName {
    pub fn new(name: String) -> Result<WebhookName, SettingFault> {
        Ok(WebhookName(text::name(&name)?.to_owned()))
    }
}

/// A URL that a webhook may have, as it is called. Created by [`Manage::receiver_url`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl(pub(super) String);

/// The events that a webhook subscribes to: at least one, each once, in the catalogue's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSet(pub(super) Vec<EventKind>);

impl EventSet {
    pub fn new(events: impl IntoIterator<Item = EventKind>) -> Result<EventSet, SettingFault> {
        let events: BTreeSet<EventKind> = events.into_iter().collect();
        if events.is_empty() {
            Err(SettingFault::NoEvents)
        } else {
            Ok(EventSet(events.into_iter().collect()))
        }
    }
}

/// A URL that is saved although its host could not be checked. The check is repeated for each
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlWarning {
    #[error("the host's name was not looked up: other lookups for this account are in progress")]
    TooManyLookups,
    #[error("the host's name could not be looked up in time")]
    Timeout,
    /// The name does not resolve, or the lookup failed.
    #[error("{0}")]
    Unresolved(String),
}

impl Manage {
    /// Parses and checks a URL without a DNS lookup.
    pub fn receiver_url(&self, url: String) -> Result<ReceiverUrl, SettingFault> {
        receiver_url(url, |url| self.receivers.check_url(url))
    }

    /// Resolves the URL's host. A name that does not resolve is a warning only: it may resolve a
    /// minute later, and the delivery log shows receivers that cannot be reached. A name that
    /// resolves to a blocked address is rejected.
    pub(super) async fn check_host(
        &self,
        user: &UserId,
        url: &ReceiverUrl,
    ) -> Result<Option<UrlWarning>> {
        let Some(_permit) = self.lookups.acquire(user) else {
            return Ok(Some(UrlWarning::TooManyLookups));
        };

        match tokio::time::timeout(LOOKUP_TIMEOUT, self.receivers.look_up(&url.0)).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(Unreachable::Blocked(reason))) => Err(Fault::BlockedHost(reason)),
            Ok(Err(Unreachable::Unresolved(reason))) => Ok(Some(UrlWarning::Unresolved(reason))),
            Err(_) => Ok(Some(UrlWarning::Timeout)),
        }
    }
}

/// Keeps the URL that was parsed, not the text: parsing drops and replaces characters, and what is
/// shown must be what is called.
fn receiver_url(
    text: String,
    parse: impl Fn(&str) -> Result<Url, String>,
) -> Result<ReceiverUrl, SettingFault> {
    let text = text.trim();
    // Two URLs that were pasted at once would be parsed as one.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(SettingFault::SpacesInUrl);
    }

    let url = parse(text).map_err(SettingFault::Url)?;
    Ok(ReceiverUrl(url.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_a_set_in_the_catalogue_s_order() {
        let given = [
            "transcode.failed",
            "delivery.failed",
            "transcode.failed",
            "delivery.completed",
        ];

        let expected = [
            EventKind::DeliveryCompleted,
            EventKind::DeliveryFailed,
            EventKind::TranscodeFailed,
        ];
        assert_eq!(
            EventSet::new(given.map(|name| name.parse().unwrap()))
                .unwrap()
                .0,
            expected
        );

        assert_eq!(EventSet::new([]), Err(SettingFault::NoEvents));
    }

    #[test]
    fn urls_are_kept_as_parsed() {
        let parse = |text: &str| {
            text.parse()
                .map_err(|error: url::ParseError| error.to_string())
        };

        for (typed, kept) in [
            ("https://a.example/in?x=1", "https://a.example/in?x=1"),
            (" https://A.example\n", "https://a.example/"),
            ("https:\\\\a.example\\in", "https://a.example/in"),
        ] {
            assert_eq!(receiver_url(typed.to_owned(), parse).unwrap().0, kept);
        }

        for wrong in [
            "https://a.example/\tx",
            "https://a.example https://b.example",
            "https://a.example/\u{85}x",
        ] {
            assert_eq!(
                receiver_url(wrong.to_owned(), parse),
                Err(SettingFault::SpacesInUrl),
                "{wrong}"
            );
        }

        let refused = receiver_url("http://a".to_owned(), |_| {
            Err("must begin with https://".to_owned())
        });

        assert_eq!(refused.unwrap_err().to_string(), "must begin with https://");
    }
}
