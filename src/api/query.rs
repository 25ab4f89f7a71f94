//! Query parameters and paths: pages, filters and ids.

use std::fmt::Display;

use axum::Json;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, OriginalUri, Path};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use url::form_urlencoded;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::domain::delivery::Outcome;
use crate::domain::members::{FieldError, MAX_ERRORS};
use crate::http::Pairs;
use crate::http::problem::Problem;
use crate::manage::{
    self, Cursor, FILTERS, Fault, FilterKind, List, LogFilter, MAX_TEXT_CHARS, OUTCOMES,
};

/// The error of a text that is not a time.
pub const NOT_A_TIME: &str = "expected an RFC 3339 time, such as 2026-03-01T09:05:00Z";

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 100;

/// The `webhook` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct WebhookId(pub Uuid);

/// The `name` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct WebhookName(pub String);

/// The `id` of an event in the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct EventId(pub Uuid);

/// The `webhook` and the `log` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct LogId {
    pub webhook: Uuid,
    pub log: Uuid,
}

/// The `webhook` and the `delivery` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct DeliveryId {
    pub webhook: Uuid,
    pub delivery: Uuid,
}

/// The `webhook` and the `job` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct JobId {
    pub webhook: Uuid,
    pub job: Uuid,
}

/// The `token` of the path.
#[derive(Deserialize, FromRequestParts)]
#[from_request(via(Path), rejection(Problem))]
pub struct TokenId(pub Uuid);

/// Text that is not an id names something that does not exist.
impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        let key = match rejection {
            PathRejection::FailedToDeserializePathParams(failed) => match failed.into_kind() {
                ErrorKind::DeserializeError { key, .. }
                | ErrorKind::InvalidUtf8InPathParam { key } => key,
                _ => String::new(),
            },
            _ => String::new(),
        };

        let fault = match key.as_str() {
            "log" => Fault::NoSuchLogEntry,
            "delivery" => Fault::NoSuchDelivery,
            "job" => Fault::NoSuchJob,
            "id" => Fault::NoSuchEvent,
            "token" => Fault::NoSuchToken,
            _ => Fault::NoSuchWebhook,
        };

        fault.into()
    }
}

/// Parses an id.
pub fn id(text: &str) -> Result<Uuid, &'static str> {
    text.parse().map_err(|_| "expected an id")
}

/// Parses an outcome by its name.
pub fn outcome(name: &str) -> Result<Outcome, String> {
    manage::outcome(name).ok_or_else(|| one_of(&OUTCOMES.map(Outcome::as_str)))
}

/// The parameters that filter delivery logs.
pub struct LogFilterParameters;

impl IntoParams for LogFilterParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let parameter = |name: &str, description: &str, schema: RefOr<Schema>| {
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Query)
                .description(Some(description))
                .schema(Some(schema))
                .build()
        };
        let filters = FILTERS
            .iter()
            .map(|field| parameter(field.name, field.description, schema_of(&field.kind)));
        let times = [
            ("since", "From this time on (RFC 3339)"),
            ("until", "Before this time (RFC 3339)"),
        ]
        .map(|(name, description)| {
            let time = SchemaFormat::KnownFormat(KnownFormat::DateTime);
            let schema = ObjectBuilder::new()
                .schema_type(Type::String)
                .format(Some(time));
            parameter(name, description, schema.into())
        });

        filters.chain(times).collect()
    }
}

fn schema_of(kind: &FilterKind) -> RefOr<Schema> {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let schema = match kind {
        FilterKind::Choice(names) => text.enum_values(Some(names())),
        FilterKind::Status => text.pattern(Some("^(none|[1-5]xx|[1-5][0-9][0-9])$")),
        FilterKind::Number => ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64))),
        FilterKind::Text => text
            .min_length(Some(1))
            .max_length(Some(MAX_TEXT_CHARS))
            .pattern(Some("[^\\s]")),
        FilterKind::Id => text.format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid))),
    };
    schema.into()
}

/// The error of a text that is none of these names.
pub fn one_of(names: &[&str]) -> String {
    format!("expected one of {}", names.join(", "))
}

/// The parameters of a query. Their errors are reported at once; `strict_query` rejects unknown
/// ones.
pub struct QueryParameters {
    path: String,
    pairs: Pairs,
    errors: Vec<FieldError>,
    has_invalid_cursor: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for QueryParameters {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The URI as the client wrote it: a nested router sees only the rest of the path.
        let uri = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(&parts.uri, |original| &original.0);
        let path = uri.path().to_owned();
        Ok(QueryParameters {
            path,
            ..QueryParameters::parse(uri.query().unwrap_or_default())?
        })
    }
}

impl QueryParameters {
    fn parse(query: &str) -> Result<QueryParameters, Problem> {
        Ok(QueryParameters {
            path: String::new(),
            pairs: Pairs::parse(query.as_bytes())?,
            errors: Vec::new(),
            has_invalid_cursor: false,
        })
    }

    /// Reads the parameter `name`. None if it is absent or invalid.
    pub fn optional<T, E: Display>(
        &mut self,
        name: &str,
        check: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let mut values = self.pairs.all(name);
        let value = values.next()?;
        let checked = match values.next() {
            Some(_) => Err("may occur once".to_owned()),
            None => check(value).map_err(|error| error.to_string()),
        };

        checked
            .map_err(|detail| {
                self.errors
                    .push(FieldError::new(format!("/{name}"), detail))
            })
            .ok()
    }

    /// Reads every parameter `name`. Each may contain several values, separated by commas. Stops
    /// when there are as many errors as a response may have.
    pub fn all<T, E: Display>(
        &mut self,
        name: &str,
        check: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let mut values = Vec::new();

        for value in self.pairs.all(name).flat_map(|value| value.split(',')) {
            match check(value) {
                Ok(value) => values.push(value),
                Err(detail) if self.errors.len() < MAX_ERRORS => {
                    let error = FieldError::new(format!("/{name}"), detail.to_string());
                    self.errors.push(error);
                }
                Err(_) => break,
            }
        }

        values
    }

    fn reject(&mut self, pointer: &str, detail: &str) {
        self.errors.push(FieldError::new(pointer, detail));
    }

    pub fn limit(&mut self) -> usize {
        let number = |text: &str| {
            let limit = text
                .parse()
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit));
            limit.ok_or_else(|| format!("expected a number from 1 to {MAX_LIMIT}"))
        };
        self.optional("limit", number).unwrap_or(DEFAULT_LIMIT)
    }

    /// Reads the end of the previous page of a list.
    pub fn cursor(&mut self, list: List) -> Option<Cursor> {
        self.position("cursor", |text| Cursor::parse(list, text))
    }

    /// Reads where a list continues. An error is reported as that of a cursor, because the client
    /// may have taken it from another list.
    pub fn position<T, E: Display>(
        &mut self,
        name: &str,
        check: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let errors = self.errors.len();
        let position = self.optional(name, check);
        self.has_invalid_cursor |= self.errors.len() > errors;
        position
    }

    /// Adds the error of a cursor that is elsewhere in the request.
    pub fn reject_position(&mut self, pointer: &str, detail: &str) {
        self.reject(pointer, detail);
        self.has_invalid_cursor = true;
    }

    /// Reads a period, from `since` on and before `until`.
    pub fn period(&mut self) -> (Option<Timestamp>, Option<Timestamp>) {
        let since = self.time("since");
        let until = self.time("until");
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            self.reject("/until", "must not be before since");
        }

        (since, until)
    }

    pub fn time(&mut self, name: &str) -> Option<Timestamp> {
        self.optional(name, |text| {
            // A plus sign that was not encoded arrives as a space.
            let unencoded = || {
                text.rsplit_once(' ')
                    .map(|(time, offset)| format!("{time}+{offset}"))
            };

            let parsed = text
                .parse::<Timestamp>()
                .ok()
                .or_else(|| unencoded()?.parse().ok());
            let parsed = parsed.map(|at| at.max(Timestamp::UNIX_EPOCH));
            parsed.ok_or(NOT_A_TIME)
        })
    }

    /// Reads the filter of a delivery log.
    pub fn log_filter(&mut self) -> LogFilter {
        let mut filter = LogFilter::default();
        for field in &FILTERS {
            self.optional(field.name, |text| (field.set)(&mut filter, text));
        }

        (filter.since, filter.until) = self.period();
        filter
    }

    pub fn finish(self) -> Result<ListUri, Problem> {
        if self.errors.is_empty() {
            Ok(ListUri {
                path: self.path,
                pairs: self.pairs,
            })
        } else if self.has_invalid_cursor {
            Err(Problem::invalid_cursor(self.errors))
        } else {
            Err(Problem::validation(self.errors))
        }
    }
}

/// The URI of a list. The next page's differs in the cursor only.
#[derive(Debug)]
pub struct ListUri {
    path: String,
    pairs: Pairs,
}

impl ListUri {
    /// The `Link` header (RFC 8288) of the next page.
    fn next_link(&self, cursor: &str) -> Option<HeaderValue> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let query = query
            .extend_pairs(self.pairs.except("cursor"))
            .append_pair("cursor", cursor)
            .finish();
        HeaderValue::try_from(format!("<{}?{query}>; rel=\"next\"", self.path)).ok()
    }
}

/// One page of a list.
#[derive(Serialize, ToSchema)]
pub struct Page<T> {
    data: Vec<T>,
    /// The cursor of the next page; null on the last one
    #[schema(required = true)]
    next_cursor: Option<String>,
    /// Only of delivery logs: true if the search stopped early, after the bounded number of entries
    /// that one request examines. More entries may match: continue with `next_cursor`
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    partial: bool,
}

impl<R, T: From<R>> From<manage::ListPage<R>> for Page<T> {
    fn from(page: manage::ListPage<R>) -> Self {
        let data = page.items.into_iter().map(T::from).collect();
        Page {
            data,
            next_cursor: page.next.map(|cursor| cursor.to_string()),
            partial: page.is_partial,
        }
    }
}

impl<T: Serialize> Page<T> {
    pub fn response(self, target: &ListUri) -> Response {
        let link = self
            .next_cursor
            .as_deref()
            .and_then(|cursor| target.next_link(cursor));
        let mut response = Json(self).into_response();

        if let Some(link) = link {
            response.headers_mut().insert(header::LINK, link);
        }

        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> QueryParameters {
        QueryParameters::parse(query).unwrap()
    }

    #[test]
    fn limits_are_from_1_to_100() {
        assert_eq!(parse("").limit(), DEFAULT_LIMIT);
        assert_eq!(parse("limit=100").limit(), 100);

        for wrong in [
            "limit=0",
            "limit=101",
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=1&limit=2",
        ] {
            let mut parameters = parse(wrong);
            parameters.limit();
            assert!(parameters.finish().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_may_have_an_unencoded_plus() {
        let expected: Timestamp = "2026-03-01T08:05:00.5Z".parse().unwrap();

        for query in [
            "t=2026-03-01T09:05:00.500%2B01:00",
            "t=2026-03-01T09:05:00.500+01:00",
            "t=2026-03-01T08:05:00.5Z",
        ] {
            assert_eq!(parse(query).time("t"), Some(expected), "{query}");
        }

        let mut parameters = parse("t=yesterday");
        assert_eq!(parameters.time("t"), None);
        assert!(parameters.finish().is_err());
        assert_eq!(
            parse("t=-000044-03-15T00:00:00Z").time("t"),
            Some(Timestamp::UNIX_EPOCH)
        );
    }

    #[test]
    fn the_next_page_has_the_same_parameters() {
        let parameters = parse("limit=2&cursor=old&since=2026-03-01T09:05:00%2B01:00&x=%3E");
        let target = QueryParameters {
            path: "/base/webhooks".into(),
            ..parameters
        }
        .finish()
        .unwrap();

        let expected = "</base/webhooks?limit=2&since=2026-03-01T09%3A05%3A00%2B01%3A00&x=%3E&cursor=new>; rel=\"next\"";
        assert_eq!(target.next_link("new").unwrap(), expected);
    }

    #[test]
    fn no_more_errors_are_collected_than_a_response_may_have() {
        let mut parameters = parse(&format!("limit=0&event={}", ",".repeat(60_000)));
        parameters.limit();
        let found: Vec<()> = parameters.all("event", |_| Err("is wrong".to_owned()));
        assert_eq!((found.len(), parameters.errors.len()), (0, MAX_ERRORS));
    }
}
