//! The settings of a webhook, as types that hold valid values only.

use std::collections::BTreeSet;
use std::time::Duration;

use super::fault::{Fault, Result};
use super::receivers::Unreachable;
use super::service::Manage;
use crate::domain::event::{EventKind, UserId};

const MAX_NAME_LENGTH: usize = 200;
/// How long a DNS lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a setting is invalid. The text is a predicate of the setting: `must not be empty`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingFault {
    #[error("must not be empty")]
    EmptyName,
    #[error("must not be longer than {MAX_NAME_LENGTH} characters")]
    NameTooLong,
    #[error("must not contain control characters")]
    ControlCharactersInName,
    #[error("must not contain spaces or control characters")]
    SpacesInUrl,
    /// The URL is malformed, or this service does not call such URLs.
    #[error("{0}")]
    Url(String),
    #[error("must name at least one event")]
    NoEvents,
}

/// A webhook's name: 1 to 200 characters without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookName(pub(super) String);

impl WebhookName {
    pub fn new(name: String) -> Result<WebhookName, SettingFault> {
        match name.chars().count() {
            0 => Err(SettingFault::EmptyName),
            1..=MAX_NAME_LENGTH if name.chars().any(char::is_control) => Err(SettingFault::ControlCharactersInName),
            1..=MAX_NAME_LENGTH => Ok(WebhookName(name)),
            _ => Err(SettingFault::NameTooLong),
        }
    }
}

/// A URL that a webhook may have, as given. Created by [`Manage::receiver_url`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverUrl(pub(super) String);

/// The events that a webhook subscribes to: at least one, each once, in the catalogue's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSet(pub(super) Vec<EventKind>);

impl EventSet {
    pub fn new(events: impl IntoIterator<Item = EventKind>) -> Result<EventSet, SettingFault> {
        let events: BTreeSet<EventKind> = events.into_iter().collect();
        if events.is_empty() { Err(SettingFault::NoEvents) } else { Ok(EventSet(events.into_iter().collect())) }
    }
}

/// A URL that is saved although its host could not be checked. The check is repeated for each connection.
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
    /// Checks a URL without a DNS lookup.
    pub fn receiver_url(&self, url: String) -> Result<ReceiverUrl, SettingFault> {
        receiver_url(url, |url| self.receivers.check_url(url))
    }

    /// Resolves the URL's host. A name that does not resolve is a warning only: it may resolve a minute later, and the delivery
    /// log shows receivers that cannot be reached. A name that resolves to a blocked address is rejected.
    pub(super) async fn check_host(&self, user: &UserId, url: &ReceiverUrl) -> Result<Option<UrlWarning>> {
        let Some(_permit) = self.lookups.acquire(user) else { return Ok(Some(UrlWarning::TooManyLookups)) };
        match tokio::time::timeout(LOOKUP_TIMEOUT, self.receivers.look_up(&url.0)).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(Unreachable::Blocked(reason))) => Err(Fault::BlockedHost(reason)),
            Ok(Err(Unreachable::Unresolved(reason))) => Ok(Some(UrlWarning::Unresolved(reason))),
            Err(_) => Ok(Some(UrlWarning::Timeout)),
        }
    }
}

fn receiver_url(url: String, check: impl Fn(&str) -> Result<(), String>) -> Result<ReceiverUrl, SettingFault> {
    // The URL standard drops these silently: the URL that is called would differ from the URL that is shown.
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(SettingFault::SpacesInUrl);
    }
    check(&url).map_err(SettingFault::Url)?;
    Ok(ReceiverUrl(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_200_characters_and_no_control_characters() {
        assert!(WebhookName::new("é".repeat(200)).is_ok());
        for wrong in ["", &"x".repeat(201), "a\u{0}b", "a\nb", "\u{85}"] {
            assert!(WebhookName::new(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_are_a_set_in_the_catalogue_s_order() {
        let given = ["transcode.failed", "delivery.failed", "transcode.failed", "delivery.completed"];
        let expected = [EventKind::DeliveryCompleted, EventKind::DeliveryFailed, EventKind::TranscodeFailed];
        assert_eq!(EventSet::new(given.map(|name| name.parse().unwrap())).unwrap().0, expected);
        assert_eq!(EventSet::new([]), Err(SettingFault::NoEvents));
    }

    #[test]
    fn urls_are_kept_as_given_and_rejected_if_parsing_would_change_them() {
        for good in ["https://a.example/in?x=1", "https://bücher.example/"] {
            assert_eq!(receiver_url(good.to_owned(), |_| Ok(())).unwrap().0, good);
        }
        for wrong in ["https://a.example/\tx", " https://a.example", "https://a.example/\u{85}"] {
            assert_eq!(receiver_url(wrong.to_owned(), |_| Ok(())), Err(SettingFault::SpacesInUrl), "{wrong}");
        }
        let refused = receiver_url("http://a".to_owned(), |_| Err("must begin with https://".to_owned()));
        assert_eq!(refused.unwrap_err().to_string(), "must begin with https://");
    }
}
