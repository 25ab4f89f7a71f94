//! The management API: JSON over HTTP, every read and write scoped to the user whose token is presented.

mod auth;
mod body;
mod browser;
mod clients;
mod docs;
mod enrich;
mod event_types;
mod idempotency;
mod jwks;
mod jwt;
mod jwt_crypto;
mod logs;
mod manage;
mod middleware;
mod openapi;
mod operations;
mod problem;
mod query;
mod recover;
mod redeliver;
mod serve;
mod session;
mod settings;
mod stats;
mod test;
mod url_check;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;

use self::docs::Docs;
use crate::config::Config;
use crate::manage::limits::RateLimit;
use crate::manage::{Manage, Receivers};
use crate::store::Store;
use crate::vault::Vault;

pub use self::auth::authenticate_token;
pub use self::body::read as read_body;
pub use self::jwt::{JwtError, JwtVerifier};
pub use self::logs::{STATUS_CLASSES, filter as log_filter};
pub use self::manage::{NewWebhook, etag};
pub use self::middleware::request_id;
pub use self::openapi::document_text as openapi_document;
pub use self::operations::{Readiness, RenderMetrics, router as operations_router};
pub use self::problem::{FieldError, Problem};
pub use self::query::{Page, Parameters};
pub use self::recover::Recovery;
pub use self::serve::{Ending, ServeError, ServeLimits, serve};
pub use self::session::{actor as session_actor, cookie, cross_site_protection};
pub use self::stats::Summary;
pub use self::url_check::Warning;
pub use crate::manage::OUTCOMES;

/// What the operations work with.
#[derive(Clone)]
pub struct ApiState {
    store: Store,
    vault: Arc<Vault>,
    /// Where browsers reach us, where that is told.
    public_url: Option<Arc<str>>,
    /// Without a slash at its end.
    base_path: Arc<str>,
    max_body_bytes: usize,
    webhooks_per_user: u32,
    retention_days: u32,
    throttle: Arc<RateLimit>,
    manage: Manage,
    jwt: Option<Arc<JwtVerifier>>,
    /// Whose pages may call the API from a browser.
    cors_origins: Vec<HeaderValue>,
    /// How long a request with an Idempotency-Key is taken to be under way.
    hold: Duration,
}

impl ApiState {
    pub fn new(config: &Config, store: Store, vault: Arc<Vault>, receivers: Arc<dyn Receivers>) -> ApiState {
        let manage = Manage::new(config, store.clone(), vault.clone(), receivers);
        ApiState {
            store,
            vault,
            public_url: config.http.public_url.as_deref().map(Arc::from),
            base_path: config.http.base_path.trim_end_matches('/').into(),
            max_body_bytes: usize::try_from(config.http.max_body_bytes.0).unwrap_or(usize::MAX),
            webhooks_per_user: config.limits.webhooks_per_user,
            retention_days: config.retention.days,
            throttle: Arc::new(RateLimit::per_second(config.limits.requests_per_second, config.limits.burst)),
            manage,
            jwt: None,
            cors_origins: config.http.cors_origins.iter().filter_map(|origin| origin.parse().ok()).collect(),
            hold: idempotency::LONGEST_REQUEST + config.delivery.timeout.0,
        }
    }

    /// No request takes longer: the same as the time for which an idempotency key is held.
    pub fn request_timeout(&self) -> Duration {
        self.hold
    }

    /// The use cases that the API and the web UI offer.
    pub fn manage(&self) -> &Manage {
        &self.manage
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where browsers reach this service, such as `https://hooks.example`.
    pub fn public_url(&self) -> Option<&str> {
        self.public_url.as_deref()
    }

    /// Where the API is.
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    /// Verifies the platform's tokens, where they are taken.
    pub fn jwt(&self) -> Option<&JwtVerifier> {
        self.jwt.as_deref()
    }

    /// Takes the platform's tokens too.
    pub fn with_jwt(self, verifier: Option<JwtVerifier>) -> ApiState {
        ApiState { jwt: verifier.map(Arc::new), ..self }
    }
}

/// The API under its base path. What is nowhere is a problem too, so this router has the fallback of all it is merged with.
pub fn router(state: ApiState) -> Router {
    let base_path = state.base_path.clone();
    let document = Bytes::from(openapi_document(&base_path));
    let serve_document = async || ([(header::CONTENT_TYPE, "application/json")], document).into_response();
    let docs = Docs::new(&base_path);
    let cors = browser::cors(&state.cors_origins);
    let (operations, _) = openapi::operations().split_for_parts();
    let operations = operations
        .route_layer(from_fn_with_state(state.clone(), idempotency::replay))
        .route_layer(from_fn_with_state(state.clone(), session::protect))
        .route("/openapi.json", get(serve_document))
        .route("/docs", get(async move || docs.answer()))
        .with_state(state);
    let router = match &*base_path {
        "" => operations,
        path => Router::new().nest(path, operations),
    };
    router
        .fallback(async || Problem::not_found("there is nothing at this path"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(CatchPanicLayer::custom(middleware::answer_panic))
        .layer(option_layer(cors))
        .layer(from_fn(middleware::protect))
        .layer(from_fn(middleware::request_id))
}
