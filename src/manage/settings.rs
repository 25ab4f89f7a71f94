//! What is checked of a webhook's settings besides each by itself: the URL's host, the filter against
//! the events, and the custom headers against those that the webhook has.

use std::time::Duration;

use url::Url;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::receivers::UncallableHost;
use super::service::Manage;
use crate::domain::event::{EventKind, UserId};
use crate::domain::headers::CustomHeaders;
use crate::domain::members::FieldError;
use crate::domain::settings::{Base, Settings};
use crate::events::{Statuses, statuses};
use crate::telemetry::recurring;
use crate::vault::Sealed;

/// How long a DNS lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

impl Manage {
    /// Reads the settings that a JSON object gives to a webhook.
    pub(super) fn read_settings(&self, json: &[u8], base: Base<'_>) -> Result<Settings> {
        let present = base.present();
        let check_url = |url: &str| self.receivers.check_url(url).map(String::from);
        let settings = Settings::read(json, base, &check_url).map_err(Fault::InvalidSettings)?;
        let has_moved =
            present.is_some_and(|present| !has_same_origin(&settings.url, &present.url));
        let mut errors = Vec::new();

        // Somebody who does not know the values could otherwise have them sent to another host.
        if has_moved {
            let detail = "give the value again, or remove the header: the new URL has another scheme, host or port";
            let kept = settings.headers.kept();
            errors.extend(kept.map(|name| FieldError::member(name, detail).below("headers")));
        }

        if present.is_none_or(|present| {
            (&settings.events, &settings.filter) != (&present.events, &present.filter)
        }) {
            errors.extend(check_filter(&settings));
        }

        valid(settings, errors)
    }

    /// Encrypts the headers of these settings. Those that are kept are taken from the webhook.
    pub(super) async fn seal_headers(
        &self,
        webhook: Uuid,
        settings: &Settings,
    ) -> Result<Option<Sealed>> {
        let stored = match settings.headers.kept().next() {
            Some(_) => self.stored_headers(webhook).await?,
            None => CustomHeaders::default(),
        };

        let headers = settings.headers.resolve(&stored).map_err(|errors| {
            let errors = errors.into_iter().map(|error| error.below("headers"));
            Fault::InvalidSettings(errors.collect())
        })?;
        Ok(self.vault.seal_headers(webhook, &headers))
    }

    /// Returns the custom headers that the webhook has. None for a webhook that does not exist yet.
    async fn stored_headers(&self, webhook: Uuid) -> Result<CustomHeaders> {
        let target = self.store.targets(&[webhook]).await?.pop();
        let sealed = target.and_then(|target| target.headers);
        self.vault.open_headers(webhook, sealed.as_ref()).map_err(|error| {
            recurring!(error, %webhook, %error, "custom headers cannot be decrypted: they can be replaced, but not kept");
            Fault::Internal
        })
    }

    /// Resolves the URL's host. A name that does not resolve is a warning only: it may resolve a
    /// minute later, and the delivery log shows receivers that cannot be reached. A name that
    /// resolves to a blocked address is rejected. The check is repeated for each connection.
    pub(super) async fn check_host(&self, user: &UserId, url: &str) -> Result<Option<String>> {
        let Some(_permit) = self.lookups.acquire(user) else {
            let warning =
                "the host's name was not looked up: other lookups for this account are in progress";
            return Ok(Some(warning.to_owned()));
        };

        match tokio::time::timeout(LOOKUP_TIMEOUT, self.receivers.look_up(url)).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(UncallableHost::Blocked(reason))) => Err(Fault::BlockedHost(reason)),
            Ok(Err(UncallableHost::Unresolved(reason))) => Ok(Some(reason)),
            Err(_) => Ok(Some(
                "the host's name could not be looked up in time".to_owned(),
            )),
        }
    }
}

fn valid<T>(value: T, errors: Vec<FieldError>) -> Result<T> {
    if errors.is_empty() {
        Ok(value)
    } else {
        Err(Fault::InvalidSettings(errors))
    }
}

/// Whether requests to both URLs go to the same scheme, host and port.
fn has_same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| Url::parse(url).map(|url| url.origin());
    matches!((origin(one), origin(other)), (Ok(one), Ok(other)) if one == other)
}

/// Checks that each list of the filter applies to one of the events at least, and that each status
/// is one that such an event can have.
fn check_filter(settings: &Settings) -> Vec<FieldError> {
    let Some(filter) = &settings.filter else {
        return Vec::new();
    };

    // A later build may know more events.
    let events = settings
        .events
        .iter()
        .filter_map(|event| event.parse().ok());
    let events: Vec<EventKind> = events.collect();
    let mut errors = Vec::new();
    let mut error = |list: &str, detail: &str| {
        let detail = format!("none of the webhook's events {detail}");
        errors.push(FieldError::new(format!("/filter/{list}"), detail));
    };

    if filter.label_ids.is_some() && !events.iter().any(|kind| kind.has_label()) {
        error("label_ids", "belongs to a label");
    }

    if filter.outlet_ids.is_some() && !events.iter().any(|kind| kind.has_outlet()) {
        error("outlet_ids", "has an outlet");
    }

    let wanted = filter.statuses.as_deref().unwrap_or_default();
    let possible: Vec<Statuses> = events.iter().map(|kind| statuses(*kind)).collect();
    let can_be = |status: &String| {
        possible.iter().any(|statuses| match statuses {
            Statuses::None => false,
            Statuses::OneOf(names) => names.contains(status),
            Statuses::Any => true,
        })
    };
    let impossible: Vec<&str> = wanted
        .iter()
        .filter(|status| !can_be(status))
        .map(String::as_str)
        .collect();

    if impossible.is_empty() {
        return errors;
    }

    if possible.iter().all(|statuses| *statuses == Statuses::None) {
        error("statuses", "has a status");
    } else {
        let detail = format!("can have the status {}", impossible.join(", "));
        error("statuses", &detail);
    }

    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_must_apply_to_one_of_the_events() {
        let check = |filter: &str, events: &[&str]| {
            let settings = Settings {
                events: events.iter().map(|event| (*event).to_owned()).collect(),
                filter: serde_json::from_str(filter).unwrap(),
                ..Settings::default()
            };

            let errors = check_filter(&settings).into_iter();
            errors.map(|error| error.pointer).collect::<Vec<_>>()
        };

        let all = r#"{"label_ids":[1],"outlet_ids":[1],"statuses":["rejected"]}"#;
        let every = [
            "/filter/label_ids",
            "/filter/outlet_ids",
            "/filter/statuses",
        ];

        assert_eq!(check(all, &["payment.statement_ready"]), every);
        assert!(check(all, &["payment.statement_ready", "delivery.failed"]).is_empty());
        assert_eq!(check(all, &["transcode.failed"]), every[1..]);

        let unknown = r#"{"statuses":["limbo"]}"#;
        let open = "distribution.outlet.status_changed";
        assert_eq!(check(unknown, &["delivery.failed"]), ["/filter/statuses"]);
        assert!(check(unknown, &["delivery.failed", open]).is_empty());
    }
}
