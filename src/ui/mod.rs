//! The web UI: server-rendered pages below `/ui` for the same operations as the API. The pages work
//! without scripts; one small script adds local times, dialogs and live updates.

mod assets;
mod audit;
mod catalogue;
mod charts;
mod comparison;
mod confirm;
mod cookies;
mod curl;
mod delivery;
mod edit;
mod error;
mod events;
mod excerpt;
mod fields;
mod flash;
mod format;
mod guide;
mod headers;
mod jobs;
mod list;
mod log_line;
mod logs;
mod page;
mod period;
mod picker;
mod reactivate;
mod recover;
mod replay;
mod secret;
mod settings;
mod shortcuts;
mod sign_in;
mod state;
mod stats;
mod test;
mod time;
mod timing;
mod tokens;
mod verify;
mod visit;
mod webhook;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, DefaultPredicate, Predicate};
use tower_http::csrf::ProtectionError;

pub use self::state::UiState;

use self::error::PageError;
use self::state::HOME;
use crate::auth::cross_site_protection;
use crate::http::middleware::request_id;
use crate::http::problem::Problem;

/// Returns the router of all pages below `/ui`.
pub fn router(state: UiState) -> Router {
    let webhook = Router::new()
        .route("/", get(webhook::show))
        .route("/edit", get(edit::form).post(edit::save))
        .route("/active", post(confirm::set_active))
        .route(
            "/delete",
            get(async |visit, id| confirm::ask(visit, id, confirm::DELETE).await)
                .post(confirm::delete),
        )
        .route(
            "/secret",
            get(async |visit, id| confirm::ask(visit, id, confirm::REGENERATE).await)
                .post(secret::regenerate),
        )
        .route("/new-secret", get(secret::show).post(secret::hide))
        .route("/test", get(test::form))
        .route("/reactivate", post(reactivate::reactivate))
        .route("/recover", get(recover::form).post(recover::start))
        .route("/replay", get(replay::form).post(replay::start))
        .route("/jobs", get(jobs::show))
        .route("/jobs/{job}/cancel", get(jobs::ask).post(jobs::cancel))
        .route("/logs", get(logs::show))
        .route("/logs/{log}", get(delivery::show_entry))
        .route("/logs/{log}/redeliver", post(delivery::redeliver))
        .route("/deliveries/{delivery}", get(delivery::show));

    let reject = |_: ProtectionError| PageError(Problem::cross_site()).mark();
    let pages = Router::new()
        .route(HOME, get(list::show))
        .route("/ui/login", get(sign_in::form).post(sign_in::submit))
        .route("/ui/logout", post(sign_in::sign_out))
        .route("/ui/webhooks", get(async || Redirect::to(HOME)))
        .route("/ui/webhooks/new", get(edit::new).post(edit::create))
        .nest("/ui/webhooks/{webhook}", webhook)
        .route("/ui/logs", get(logs::show_all))
        .route("/ui/events", get(events::list))
        .route("/ui/events/{event}", get(events::show))
        .route("/ui/event-types", get(catalogue::show))
        .route("/ui/guide", get(guide::index))
        .route("/ui/guide/{chapter}", get(guide::show))
        .route("/ui/test", post(test::send))
        .route("/ui/tokens", get(tokens::list).post(tokens::create))
        .route(
            "/ui/tokens/{token}/revoke",
            get(tokens::ask).post(tokens::revoke),
        )
        .route("/ui/audit", get(audit::list))
        .route("/ui/shortcuts", get(shortcuts::show))
        .route("/ui/assets/{name}", get(assets::serve))
        .route("/ui/", get(async || Redirect::to(HOME)))
        .route("/ui/{*rest}", any(async || PageError::no_such_page()))
        .method_not_allowed_fallback(async || PageError(Problem::method_not_allowed()));

    pages
        .layer(CatchPanicLayer::custom(error::from_panic))
        .layer(cross_site_protection(&state.api.auth, reject))
        .layer(from_fn_with_state(state.clone(), error::render))
        .layer(
            CompressionLayer::new()
                .compress_when(DefaultPredicate::new().and(headers::may_be_compressed)),
        )
        .layer(map_response(headers::whole))
        .layer(from_fn_with_state(state.clone(), headers::set))
        .layer(from_fn(request_id))
        .with_state(state)
}
