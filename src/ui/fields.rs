//! What forms send.

use axum::extract::{FromRequest, Request};
use serde_json::{Map, Value};
use url::form_urlencoded;

use super::UiState;
use super::failure::Failure;
use crate::api::read_body;

/// Far more than the longest form.
const LARGEST_FORM: usize = 64 << 10;

/// The fields of a form, in their order.
pub struct Fields(Vec<(String, String)>);

impl FromRequest<UiState> for Fields {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &UiState) -> Result<Self, Failure> {
        let body = read_body(request.into_body(), LARGEST_FORM).await?;
        Ok(Fields::parse(&body))
    }
}

impl Fields {
    pub fn parse(text: &[u8]) -> Fields {
        Fields(form_urlencoded::parse(text).into_owned().collect())
    }

    /// The first field of that name; empty where there is none.
    pub fn one(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The place to go back to, if it is one of ours.
    pub fn back(&self, name: &str) -> Option<String> {
        local(self.one(name)).map(str::to_owned)
    }
}

/// A path of ours, and nothing that a browser could take for another site's.
pub fn local(path: &str) -> Option<&str> {
    let is_ours = path == super::HOME || path.starts_with("/ui/") || path.starts_with("/ui?");
    (is_ours && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')).then_some(path)
}

/// A time as a browser's field for local times writes it, which is taken to be in UTC; anything else stays as it is.
pub fn with_zone(time: &str) -> String {
    let is_local = time.parse::<jiff::civil::DateTime>().is_ok() && time.parse::<jiff::Timestamp>().is_err();
    if is_local { format!("{time}Z") } else { time.to_owned() }
}

/// Members of an object from texts that are not empty.
pub fn members<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Map<String, Value> {
    let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for ours in ["/ui", "/ui/webhooks/new", "/ui?x=1", "/ui/webhooks/1/logs?outcome=failed"] {
            assert_eq!(local(ours), Some(ours));
        }
        for other in ["", "/", "//evil.example", "/uix", "https://evil.example/ui/", "/ui/\\evil", "/ui/\r\nx", "ui/"] {
            assert_eq!(local(other), None, "{other}");
        }
    }

    #[test]
    fn times_without_a_zone_are_in_utc() {
        assert_eq!(with_zone("2026-03-01T09:05"), "2026-03-01T09:05Z");
        assert_eq!(with_zone("2026-03-01T09:05:00+01:00"), "2026-03-01T09:05:00+01:00");
        assert_eq!(with_zone("yesterday"), "yesterday");
    }
}
