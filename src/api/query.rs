//! Query parameters and paths: pages, filters and ids.

use std::collections::HashMap;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, OriginalUri, Path};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Serialize;
use url::form_urlencoded;
use utoipa::ToSchema;
use uuid::Uuid;

use super::problem::{FieldError, Problem};

const DEFAULT_LIMIT: usize = 50;
const HIGHEST_LIMIT: usize = 100;

/// The `webhook` of the path. What is no id is no webhook.
pub struct WebhookId(pub Uuid);

/// The `webhook` and the `log` of the path.
pub struct LogId {
    pub webhook: Uuid,
    pub log: Uuid,
}

impl<S: Send + Sync> FromRequestParts<S> for WebhookId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        id(&path, "webhook").map(WebhookId).ok_or_else(no_such_webhook)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for LogId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::from_request_parts(parts, state).await;
        let webhook = id(&path, "webhook").ok_or_else(no_such_webhook)?;
        Ok(LogId { webhook, log: id(&path, "log").ok_or_else(no_such_log)? })
    }
}

fn id(path: &Result<Path<HashMap<String, String>>, PathRejection>, name: &str) -> Option<Uuid> {
    path.as_ref().ok()?.get(name)?.parse().ok()
}

pub fn no_such_webhook() -> Problem {
    Problem::not_found("there is no such webhook")
}

pub fn no_such_log() -> Problem {
    Problem::not_found("the webhook's log has no such entry")
}

/// The parameters of a query. Those that nobody asks for are ignored; all that are wrong are told at once.
pub struct Parameters {
    path: String,
    values: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // As the client wrote it: a router below a path sees the rest of it alone.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let path = uri.path().to_owned();
        Ok(Parameters { path, ..Parameters::parse(uri.query().unwrap_or_default()) })
    }
}

impl Parameters {
    pub fn parse(query: &str) -> Parameters {
        let values = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Parameters { path: String::new(), values, errors: Vec::new() }
    }

    /// The parameter `name`, if it is there and `check` takes it.
    pub fn optional<T>(&mut self, name: &str, check: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let mut values = self.values.iter().filter(|(given, _)| given == name);
        let (_, value) = values.next()?;
        let checked = if values.next().is_some() { Err("may be given once".to_owned()) } else { check(value) };
        checked.map_err(|detail| self.errors.push(FieldError::new(format!("/{name}"), detail))).ok()
    }

    pub fn limit(&mut self) -> usize {
        let number = |text: &str| {
            let limit = text.parse().ok().filter(|limit| (1..=HIGHEST_LIMIT).contains(limit));
            limit.ok_or_else(|| format!("expected a number from 1 to {HIGHEST_LIMIT}"))
        };
        self.optional("limit", number).unwrap_or(DEFAULT_LIMIT)
    }

    /// The id behind which the page begins.
    pub fn cursor(&mut self) -> Option<Uuid> {
        self.optional("cursor", |text| {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
            bytes.map(Uuid::from_bytes).ok_or_else(|| "expected a `next_cursor` of an earlier answer".to_owned())
        })
    }

    pub fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.optional(name, |text| {
            // A plus sign that was not encoded arrives as a space.
            let unencoded = || text.rsplit_once(' ').map(|(time, offset)| format!("{time}+{offset}"));
            let parsed = text.parse::<Timestamp>().ok().or_else(|| unencoded()?.parse().ok());
            let parsed = parsed.map(|at| at.max(Timestamp::UNIX_EPOCH));
            parsed.ok_or_else(|| "expected an RFC 3339 time, such as 2026-03-01T09:05:00Z".to_owned())
        })
    }

    pub fn finish(self) -> Result<Target, Problem> {
        match self.errors.is_empty() {
            true => Ok(Target { path: self.path, values: self.values }),
            false => Err(Problem::validation(self.errors)),
        }
    }
}

/// What a list was asked for: the next page is the same but for the cursor.
#[derive(Debug)]
pub struct Target {
    path: String,
    values: Vec<(String, String)>,
}

impl Target {
    /// The next page as a `Link` header tells it (RFC 8288).
    fn next_link(&self, cursor: &str) -> Option<HeaderValue> {
        let kept = self.values.iter().filter(|(name, _)| name != "cursor");
        let mut query = form_urlencoded::Serializer::new(String::new());
        let query = query.extend_pairs(kept).append_pair("cursor", cursor).finish();
        HeaderValue::try_from(format!("<{}?{query}>; rel=\"next\"", self.path)).ok()
    }
}

/// One page of a list.
#[derive(Serialize, ToSchema)]
pub struct Page<T> {
    pub data: Vec<T>,
    /// Where the next page begins; null on the last one
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Of `rows`, which were asked for with one more than `limit`, so that it shows whether there are more.
    pub fn new<R>(mut rows: Vec<R>, limit: usize, id: impl Fn(&R) -> Uuid, show: impl Fn(R) -> T) -> Page<T> {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more);
        let next_cursor = last.map(|row| cursor(id(row)));
        Page { data: rows.into_iter().map(show).collect(), next_cursor }
    }

    /// Of a search that stopped before it had found a whole page: the next page begins below the last row that was looked at.
    pub fn or_continue_at(mut self, horizon: Option<Uuid>) -> Page<T> {
        self.next_cursor = self.next_cursor.or_else(|| horizon.map(cursor));
        self
    }

    pub fn answer(self, target: &Target) -> Response
    where
        T: Serialize,
    {
        let link = self.next_cursor.as_deref().and_then(|cursor| target.next_link(cursor));
        let mut response = Json(self).into_response();
        if let Some(link) = link {
            response.headers_mut().insert(header::LINK, link);
        }
        response
    }
}

fn cursor(id: Uuid) -> String {
    URL_SAFE_NO_PAD.encode(id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_from_1_to_100() {
        assert_eq!(Parameters::parse("").limit(), DEFAULT_LIMIT);
        assert_eq!(Parameters::parse("limit=100").limit(), 100);
        for wrong in ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=", "limit=1&limit=2"] {
            let mut parameters = Parameters::parse(wrong);
            parameters.limit();
            assert!(parameters.finish().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_taken_with_an_unencoded_plus_too() {
        let expected: Timestamp = "2026-03-01T08:05:00.5Z".parse().unwrap();
        for query in
            ["t=2026-03-01T09:05:00.500%2B01:00", "t=2026-03-01T09:05:00.500+01:00", "t=2026-03-01T08:05:00.5Z"]
        {
            assert_eq!(Parameters::parse(query).time("t"), Some(expected), "{query}");
        }
        let mut parameters = Parameters::parse("t=yesterday");
        assert_eq!(parameters.time("t"), None);
        assert!(parameters.finish().is_err());
        assert_eq!(Parameters::parse("t=-000044-03-15T00:00:00Z").time("t"), Some(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn a_cursor_is_where_the_page_ended() {
        let ids: Vec<Uuid> = (1..=3).map(Uuid::from_u128).collect();
        let page = Page::new(ids.clone(), 2, |id| *id, |id| id);
        assert_eq!(page.data, ids[..2]);
        let query = format!("cursor={}", page.next_cursor.unwrap());
        assert_eq!(Parameters::parse(&query).cursor(), Some(ids[1]));
        assert_eq!(Page::new(ids, 3, |id| *id, |id| id).next_cursor, None);
    }

    #[test]
    fn the_next_page_is_asked_for_as_this_one_was() {
        let parameters = Parameters::parse("limit=2&cursor=old&since=2026-03-01T09:05:00%2B01:00&x=%3E");
        let target = Parameters { path: "/base/webhooks".into(), ..parameters }.finish().unwrap();
        let expected =
            "</base/webhooks?limit=2&since=2026-03-01T09%3A05%3A00%2B01%3A00&x=%3E&cursor=new>; rel=\"next\"";
        assert_eq!(target.next_link("new").unwrap(), expected);
    }
}
