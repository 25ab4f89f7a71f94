//! The fields of forms and queries.

use axum::extract::{FromRequest, Request};
use axum::http::Method;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::error::PageError;
use super::state::{HOME, UiState};
use crate::auth::MAX_TOKEN_BYTES;
use crate::config::MAX_BODY_BYTES;
use crate::domain::members::FieldError;
use crate::http::problem::Problem;
use crate::http::{Pairs, read_body};

/// A path of the web UI that is longer is not kept while its visitor signs in.
const MAX_PATH_BYTES: usize = 2 << 10;
/// More than the longest form except that of a webhook: a sign-in link's token and a path, each
/// byte of which is sent as up to three.
const MAX_FORM_BYTES: usize = MAX_TOKEN_BYTES + 4 * MAX_PATH_BYTES;

/// The fields in their order: of the body, or of the query of a GET request.
pub struct Fields(Pairs);

/// The fields of a form that has long texts: that of a webhook has twenty pairs of metadata with
/// 500 characters, each of which is sent as up to twelve bytes.
pub struct LongFields(pub Fields);

impl FromRequest<UiState> for Fields {
    type Rejection = PageError;

    async fn from_request(request: Request, _: &UiState) -> Result<Self, PageError> {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(Fields(Pairs::parse(
                request.uri().query().unwrap_or_default().as_bytes(),
            )?));
        }

        Fields::read(request, MAX_FORM_BYTES).await
    }
}

impl FromRequest<UiState> for LongFields {
    type Rejection = PageError;

    async fn from_request(request: Request, _: &UiState) -> Result<Self, PageError> {
        Fields::read(request, MAX_BODY_BYTES).await.map(LongFields)
    }
}

impl From<Vec<(String, String)>> for Fields {
    fn from(fields: Vec<(String, String)>) -> Fields {
        Fields(fields.into())
    }
}

impl Fields {
    async fn read(request: Request, limit: usize) -> Result<Fields, PageError> {
        Ok(Fields(Pairs::parse(
            &read_body(request.into_body(), limit).await?,
        )?))
    }

    /// Returns the first field of that name, or "".
    pub fn one(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.first(name)
    }

    /// Returns the values of all fields of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.all(name)
    }

    /// Returns the fields with these values of the field `name` instead of the present ones.
    pub fn with<'a>(&self, name: &str, values: impl IntoIterator<Item = &'a str>) -> Fields {
        let others = self.0.except(name).cloned();
        let values = values
            .into_iter()
            .map(|value| (name.to_owned(), value.to_owned()));
        Fields::from(others.chain(values).collect::<Vec<_>>())
    }

    /// Parses a field that may be empty. Adds `error` to `errors` if the value is invalid.
    pub fn optional<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        error: &'static str,
        errors: &mut Vec<String>,
    ) -> Option<T> {
        let text = Some(self.one(name)).filter(|text| !text.is_empty())?;
        let value = parse(text);
        if value.is_none() {
            errors.push(error.to_owned());
        }

        value
    }

    /// Parses a field that links have, if it is not empty. With an invalid one the page does not exist.
    pub fn linked<T, E>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, PageError> {
        let text = Some(self.one(name)).filter(|text| !text.is_empty());
        let value = text.map(parse).transpose();

        value.map_err(|_| PageError::no_such_page())
    }

    /// Returns the choice of a form. Its page offers no other value than those that `find` finds.
    pub fn chosen<T>(
        &self,
        name: &str,
        find: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, PageError> {
        let error = || FieldError::new(format!("/{name}"), "is not a value that the form offers");
        find(self.one(name)).ok_or_else(|| Problem::validation(vec![error()]).into())
    }

    /// Parses the time range of `since` and `until`, either of which may be empty.
    pub fn period(&self, errors: &mut Vec<String>) -> (Option<Timestamp>, Option<Timestamp>) {
        let since = self.optional("since", time, "“Since” is not a valid time.", errors);
        let until = self.optional("until", time, "“Until” is not a valid time.", errors);
        (since, until)
    }

    /// Returns the field's path, if it is a page of the web UI.
    pub fn page(&self, name: &str) -> Option<&str> {
        own_path(self.one(name))
    }
}

/// Returns `path` if it is a path of the web UI that no browser could interpret as another site's,
/// and not too long for a form.
pub fn own_path(path: &str) -> Option<&str> {
    let is_page = path == HOME || path.starts_with("/ui/") || path.starts_with("/ui?");
    let is_short = path.len() <= MAX_PATH_BYTES;
    (is_page
        && is_short
        && path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\'))
    .then_some(path)
}

/// Parses an RFC 3339 time, or the value of a `datetime-local` field, which is taken to be in UTC.
pub fn time(text: &str) -> Option<Timestamp> {
    let utc = |local: DateTime| {
        local
            .to_zoned(TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp())
    };

    text.parse()
        .ok()
        .or_else(|| text.parse().ok().and_then(utc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_web_ui_are_accepted() {
        for page in [
            "/ui",
            "/ui/webhooks/new",
            "/ui?x=1",
            "/ui/webhooks/1/logs?outcome=failed",
        ] {
            assert_eq!(own_path(page), Some(page));
        }

        for other in [
            "",
            "/",
            "//evil.example",
            "/uix",
            "https://evil.example/ui/",
            "/ui/\\evil",
            "/ui/\r\nx",
            "ui/",
        ] {
            assert_eq!(own_path(other), None, "{other}");
        }

        let long = format!("/ui?{}", "x".repeat(MAX_PATH_BYTES));
        assert_eq!(
            own_path(&long[..MAX_PATH_BYTES]),
            Some(&long[..MAX_PATH_BYTES])
        );
        assert_eq!(own_path(&long), None);
    }

    #[test]
    fn times_without_a_zone_are_in_utc() {
        let at = |text| time(text).map(|at| at.to_string());
        assert_eq!(
            at("2026-03-01T09:05").as_deref(),
            Some("2026-03-01T09:05:00Z")
        );
        assert_eq!(
            at("2026-03-01T09:05:00+01:00").as_deref(),
            Some("2026-03-01T08:05:00Z")
        );
        assert_eq!(at("yesterday"), None);
    }
}
