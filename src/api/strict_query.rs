//! Rejects query parameters that the OpenAPI document does not describe: a filter with a misspelt
//! name would return everything.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::state::ApiState;
use crate::http::Pairs;
use crate::http::problem::{FieldError, Problem};

/// An error repeats a name up to this length.
const MAX_SHOWN_CHARS: usize = 100;

/// The names of the query parameters of each operation, by its method and path.
type Names = HashMap<(Method, String), Vec<String>>;

/// The query parameters of every operation.
#[derive(Clone)]
pub struct StrictQuery {
    state: ApiState,
    names: Arc<Names>,
}

impl StrictQuery {
    pub fn new(state: ApiState, document: &OpenApi) -> StrictQuery {
        let mut names = Names::new();

        for (path, item) in &document.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::HEAD, &item.get),
                (Method::POST, &item.post),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];

            for (method, operation) in operations {
                if let Some(operation) = operation {
                    names.insert((method, path.clone()), query_parameters(operation));
                }
            }
        }

        StrictQuery {
            state,
            names: Arc::new(names),
        }
    }

    /// Returns the names that an operation knows. None if there is no such operation.
    fn known(&self, path: &str, method: &Method) -> Option<&[String]> {
        let path = path.strip_prefix(self.state.base_path()).unwrap_or(path);
        let operation = (method.clone(), path.to_owned());
        self.names.get(&operation).map(Vec::as_slice)
    }
}

fn query_parameters(operation: &Operation) -> Vec<String> {
    let parameters = operation.parameters.iter().flatten();
    parameters
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => {
                Some(parameter.name.clone())
            }
            _ => None,
        })
        .collect()
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
    let checked = known.map_or(Ok(()), |known| reject_unknown(query, known));
    let Err(problem) = checked else {
        return next.run(request).await;
    };

    let (mut parts, _) = request.into_parts();
    let authenticated = strict.state.auth.authenticate(&mut parts).await;
    authenticated.err().unwrap_or(problem).into_response()
}

/// Returns an error for each parameter of the query whose name is not known.
pub fn reject_unknown(query: &str, known: &[impl AsRef<str>]) -> Result<(), Problem> {
    let pairs = Pairs::parse(query.as_bytes())?;
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    let mut unknown: Vec<&str> = Vec::new();

    for name in pairs.names().filter(|name| !known.contains(name)) {
        if !unknown.contains(&name) {
            unknown.push(name);
        }
    }

    if unknown.is_empty() {
        return Ok(());
    }

    let detail = match known.as_slice() {
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
