//! The user interface: pages below `/ui`, rendered here, that do what the API does by the same functions. They work without
//! scripts; one small module makes them smoother.

mod answer;
mod assets;
mod catalogue;
mod charts;
mod confirm;
mod edit;
mod entry;
mod failure;
mod fields;
mod flash;
mod list;
mod logs;
mod recover;
mod secret;
mod session;
mod stats;
mod test;
mod time;
mod verify;
mod webhook;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use jiff::SignedDuration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, DefaultPredicate, Predicate};
use tower_http::csrf::ProtectionError;

use self::failure::Failure;
use crate::api::{ApiState, Problem, cross_site_protection, request_id};
use crate::config::Config;

/// Where the interface is.
const HOME: &str = "/ui";

/// What the pages work with.
#[derive(Clone)]
pub struct UiState {
    api: ApiState,
    /// The platform's name for this service.
    service: Arc<str>,
    /// Attempts that a delivery has in one round.
    attempts: u16,
    /// How long events and log lines are kept.
    kept: SignedDuration,
}

impl UiState {
    pub fn new(config: &Config, api: ApiState) -> UiState {
        UiState {
            api,
            service: config.service.name.as_str().into(),
            attempts: config.delivery.schedule().attempts(),
            kept: SignedDuration::from_hours(24 * i64::from(config.retention.days)),
        }
    }
}

/// Every page below `/ui`.
pub fn router(state: UiState) -> Router {
    let webhook = Router::new()
        .route("/", get(webhook::show))
        .route("/edit", get(edit::form).post(edit::save))
        .route("/active", post(confirm::set_active))
        .route("/delete", get(confirm::ask_delete).post(confirm::delete))
        .route("/secret", get(confirm::ask_secret).post(secret::regenerate))
        .route("/new-secret", get(secret::show).post(secret::conceal))
        .route("/test", get(test::form))
        .route("/recover", get(recover::form).post(recover::begin))
        .route("/logs", get(logs::show))
        .route("/logs/{log}", get(entry::show))
        .route("/logs/{log}/redeliver", post(entry::redeliver));
    let reject = |_: ProtectionError| Failure(Problem::cross_site()).mark();
    let pages = Router::new()
        .route(HOME, get(list::show))
        .route("/ui/login", get(session::form).post(session::sign_in))
        .route("/ui/logout", post(session::sign_out))
        .route("/ui/webhooks", get(async || Redirect::to(HOME)).post(edit::create))
        .route("/ui/webhooks/new", get(edit::new))
        .nest("/ui/webhooks/{webhook}", webhook)
        .route("/ui/events", get(catalogue::show))
        .route("/ui/test", post(test::send))
        .route("/ui/assets/{name}", get(assets::serve))
        .route("/ui/", get(async || Redirect::to(HOME)))
        .route("/ui/{*rest}", any(async || Failure(Problem::not_found("there is no such page"))))
        .method_not_allowed_fallback(async || Failure(Problem::method_not_allowed()));
    pages
        .layer(CatchPanicLayer::custom(failure::answer_panic))
        .layer(cross_site_protection(&state.api, reject))
        .layer(from_fn_with_state(state.clone(), failure::render))
        .layer(CompressionLayer::new().compress_when(DefaultPredicate::new().and(answer::may_be_compressed)))
        .layer(from_fn_with_state(state.clone(), answer::protect))
        .layer(from_fn(request_id))
        .with_state(state)
}
