//! Rejects query parameters that the OpenAPI document does not describe: a filter with a misspelt
//! name would return everything.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Parameter, ParameterIn, Paths};

use super::state::ApiState;
use crate::domain::members::FieldError;
use crate::http::Pairs;
use crate::http::problem::Problem;

/// An error repeats a name up to this length.
const MAX_SHOWN_CHARS: usize = 100;

/// The operations with their query parameters.
#[derive(Clone)]
pub struct StrictQuery {
    pub state: ApiState,
    pub operations: Arc<Paths>,
}

impl StrictQuery {
    /// Returns the names that an operation knows. None if there is no such operation.
    fn known(&self, path: &str, method: &Method) -> Option<Vec<&str>> {
        let path = path.strip_prefix(self.state.base_path()).unwrap_or(path);
        let item = self.operations.paths.get(path)?;
        let operation = match *method {
            Method::POST => &item.post,
            Method::PUT => &item.put,
            Method::PATCH => &item.patch,
            Method::DELETE => &item.delete,
            _ => &item.get,
        };

        let name = |parameter| match parameter {
            &RefOr::T(Parameter {
                parameter_in: ParameterIn::Query,
                ref name,
                ..
            }) => Some(name.as_str()),
            _ => None,
        };

        let parameters = operation.as_ref()?.parameters.iter().flatten();
        Some(parameters.filter_map(name).collect())
    }
}

/// Responds with 400 to an authenticated request with a parameter that its operation does not have.
pub async fn check(
    State(strict): State<StrictQuery>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let known = strict.known(path.as_str(), request.method());
    let checked = known.map_or(Ok(()), |known| reject_unknown(query, &known));
    let Err(problem) = checked else {
        return next.run(request).await;
    };

    let (mut parts, _) = request.into_parts();
    let authenticated = strict.state.auth.authenticate(&mut parts).await;
    authenticated.err().unwrap_or(problem).into_response()
}

/// Returns an error for each parameter of the query whose name is not known.
pub fn reject_unknown(query: &str, known: &[&str]) -> Result<(), Problem> {
    let pairs = Pairs::parse(query.as_bytes())?;
    let mut unknown: Vec<&str> = Vec::new();

    for name in pairs.names().filter(|name| !known.contains(name)) {
        if !unknown.contains(&name) {
            unknown.push(name);
        }
    }

    if unknown.is_empty() {
        return Ok(());
    }

    let detail = match known {
        [] => "is not a parameter of this operation, which has none".to_owned(),
        known => format!(
            "is not a parameter of this operation, which has {}",
            known.join(", ")
        ),
    };

    let error = |name: &str| {
        let shown: String = name.chars().take(MAX_SHOWN_CHARS).collect();
        FieldError::member(&shown, detail.clone())
    };

    Err(Problem::unknown_parameters(
        unknown.into_iter().map(error).collect(),
    ))
}
