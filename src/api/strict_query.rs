//! Rejects query parameters that the OpenAPI document does not describe: a filter with a misspelt
//! name would return everything.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use utoipa::openapi::OpenApi;

use super::state::ApiState;
use crate::http::Pairs;
use crate::http::problem::{FieldError, Problem};

/// An error repeats a name up to this length.
const MAX_SHOWN_CHARS: usize = 100;

/// The names of the query parameters of each operation, by its path, then by its method in lower
/// case.
type Names = HashMap<String, HashMap<String, Vec<String>>>;

/// The query parameters of every operation.
#[derive(Clone)]
pub struct StrictQuery {
    state: ApiState,
    names: Arc<Names>,
}

impl StrictQuery {
    pub fn new(state: ApiState, document: &OpenApi) -> StrictQuery {
        let document = serde_json::to_value(document).expect("the document is representable");
        let paths = document["paths"].as_object().into_iter().flatten();
        let names = paths
            .map(|(path, item)| (path.clone(), by_method(item)))
            .collect();

        StrictQuery {
            state,
            names: Arc::new(names),
        }
    }

    /// Returns the names that an operation knows. None if there is no such operation.
    fn known(&self, path: &str, method: &Method) -> Option<&[String]> {
        let method = if method == Method::HEAD {
            "get".to_owned()
        } else {
            method.as_str().to_ascii_lowercase()
        };

        let path = path.strip_prefix(self.state.base_path()).unwrap_or(path);
        self.names.get(path)?.get(&method).map(Vec::as_slice)
    }
}

fn by_method(item: &Value) -> HashMap<String, Vec<String>> {
    let names = |operation: &Value| {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let queries = parameters.filter(|parameter| parameter["in"] == "query");
        queries
            .filter_map(|parameter| parameter["name"].as_str().map(str::to_owned))
            .collect()
    };

    let operations = item.as_object().into_iter().flatten();
    operations
        .map(|(method, operation)| (method.clone(), names(operation)))
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
