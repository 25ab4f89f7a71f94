//! The operation that makes links which sign in to the web UI.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use secrecy::ExposeSecret;
use serde::Serialize;
use utoipa::ToSchema;

use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::time::millis;
use crate::http::problem::Problem;

/// A link that signs in to the web UI
#[derive(Serialize, ToSchema)]
#[schema(as = SignInLink)]
pub struct SignInLinkBody {
    /// Works once. Without `http.public_url`, it has neither scheme nor host. `&next=/ui/events` opens another page
    /// than the list of webhooks
    url: String,
    #[schema(format = DateTime)]
    expires_at: String,
}

/// Create a sign-in link
///
/// The link signs in to the web UI as the user of the request. It works once, for one minute: create it
/// when your user clicks, or when you render the page that has the web UI in a frame. Opening it signs
/// nobody in; its page has a form that does. A session that was opened with the link of an API token
/// ends with the token.
#[utoipa::path(
    post, path = "/sign-in-links", tag = "tokens", operation_id = "createSignInLink",
    responses((status = 201, description = "Created", body = SignInLinkBody))
)]
pub async fn create(
    State(state): State<ApiState>,
    Changer(actor): Changer,
) -> Result<(StatusCode, Json<SignInLinkBody>), Problem> {
    let (link, expires_at) = state.manage().make_link(&actor);
    let origin = state.auth.public_url().unwrap_or_default();
    let body = SignInLinkBody {
        url: format!("{origin}/ui/login?link={}", link.expose_secret()),
        expires_at: millis(expires_at),
    };

    Ok((StatusCode::CREATED, Json(body)))
}
