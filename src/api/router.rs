//! The API under its base path.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::http::HeaderMap;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;
use axum::routing::get;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;

use super::docs::Docs;
use super::public_keys;
use super::state::ApiState;
use super::strict_query::{self, StrictQuery};
use super::{asyncapi, idempotency, openapi};
use crate::auth;
use crate::http::Document;
use crate::http::problem::{KINDS, Problem};
use crate::http::{self, conditional, middleware};

/// Returns the API's router. Its fallback responds to every unknown path, also for the routers that
/// it is merged with.
pub fn router(state: ApiState) -> Router {
    let base_path = state.base_path().to_owned();
    let published_keys = state.published_keys.clone();
    let documents = Arc::new(LazyLock::new({
        let state = state.clone();
        move || Documents::new(&state)
    }));
    let cors = http::cors(state.cors_origins());
    let (operations, described) = openapi::operations().split_for_parts();
    let strict_query = StrictQuery {
        state: state.clone(),
        operations: Arc::new(described.paths),
    };

    let operations = operations
        .route_layer(from_fn_with_state(state.clone(), idempotency::replay))
        .route_layer(from_fn_with_state(strict_query, strict_query::check))
        .route_layer(from_fn_with_state(state.auth.clone(), auth::protect))
        .route_layer(from_fn_with_state(
            state.auth.clone(),
            auth::show_rate_limit,
        ))
        .route(
            "/openapi.json",
            get({
                let documents = documents.clone();
                async move |headers: HeaderMap| documents.openapi.response(&headers)
            }),
        )
        .route(
            "/asyncapi.json",
            get({
                let documents = documents.clone();
                async move |headers: HeaderMap| documents.asyncapi.response(&headers)
            }),
        )
        .route(
            "/docs",
            get({
                let documents = documents.clone();
                async move |headers: HeaderMap| documents.docs.response("", &headers)
            }),
        )
        .route(
            "/docs/{page}",
            get(async move |Path(page): Path<String>, headers: HeaderMap| {
                documents.docs.response(&page, &headers)
            }),
        )
        .with_state(state);

    let descriptions = format!("{base_path}/docs/problems");
    let public = Router::new()
        .route(
            public_keys::PATH,
            get(public_keys::read).with_state(published_keys),
        )
        .route(
            "/problems/{slug}",
            get(async move |Path(slug): Path<String>| describe_problem(&descriptions, &slug)),
        );

    let router = match &*base_path {
        "" => operations,
        path => Router::new().nest(path, operations),
    };

    router
        .merge(public)
        .fallback(async || Problem::not_found("nothing is at this path"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(CatchPanicLayer::custom(middleware::respond_to_panic))
        .layer(from_fn(conditional::not_modified))
        .layer(option_layer(cors))
        .layer(from_fn(middleware::protect))
        .layer(from_fn(middleware::request_id))
}

/// The descriptions of the API, rendered and compressed at the first request for one: the first
/// changes after a start do not wait for that.
struct Documents {
    openapi: Document,
    asyncapi: Document,
    docs: Docs,
}

impl Documents {
    fn new(state: &ApiState) -> Documents {
        let base_path = state.base_path();
        let catalogue = state.manage().catalogue();

        Documents {
            openapi: Document::json(openapi::document_text(base_path, catalogue)),
            asyncapi: Document::json(asyncapi::document_text(catalogue)),
            docs: Docs::new(base_path, &state.brand, state.ancestors(), catalogue),
        }
    }
}

/// Leads from the type of a problem to its description.
fn describe_problem(descriptions: &str, slug: &str) -> Result<Redirect, Problem> {
    let kind = KINDS
        .iter()
        .find(|kind| kind.slug == slug)
        .ok_or_else(|| Problem::not_found("nothing is at this path"))?;
    Ok(Redirect::permanent(&format!(
        "{descriptions}#{}",
        kind.anchor()
    )))
}
