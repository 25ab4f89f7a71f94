//! The API under its base path.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;

use super::docs::Docs;
use super::problem::Problem;
use super::state::ApiState;
use super::{asyncapi, browser, idempotency, keys, middleware, openapi, session};

/// Returns the API's router. Its fallback responds to every unknown path, also for the routers that it is merged with.
pub fn router(state: ApiState) -> Router {
    let base_path = state.base_path().to_owned();
    let openapi_document = Bytes::from(openapi::document_text(&base_path));
    let asyncapi_document = Bytes::from(asyncapi::document_text());
    let docs = Docs::new(&base_path);
    let cors = browser::cors(state.cors_origins());
    let (operations, _) = openapi::operations().split_for_parts();
    let operations = operations
        .route_layer(from_fn_with_state(state.clone(), idempotency::replay))
        .route_layer(from_fn_with_state(state.clone(), session::protect))
        .route("/openapi.json", get(async move || json(openapi_document)))
        .route("/asyncapi.json", get(async move || json(asyncapi_document)))
        .route("/docs", get(async move || docs.response()))
        .with_state(state.clone());
    let public = Router::new().route(keys::PUBLIC_KEYS_PATH, get(keys::public_keys)).with_state(state);
    let router = match &*base_path {
        "" => operations,
        path => Router::new().nest(path, operations),
    };
    router
        .merge(public)
        .fallback(async || Problem::not_found("nothing is at this path"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(CatchPanicLayer::custom(middleware::respond_to_panic))
        .layer(option_layer(cors))
        .layer(from_fn(middleware::protect))
        .layer(from_fn(middleware::request_id))
}

fn json(document: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}
