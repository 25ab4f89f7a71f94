//! Extractors for requests of signed-in users.

use axum::extract::{FromRequestParts, OriginalUri, Path};
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::error::PageError;
use super::fields::own_path;
use super::flash::Flash;
use super::page::{Frame, Section, is_framed};
use super::state::{HOME, UiState, link};
use crate::auth::authenticated;
use crate::domain::event::UserId;
use crate::manage::{Actor, Manage, Scope, Webhook};

/// More than a user has, unless an operator sets a very high limit.
const MAX_WEBHOOKS: usize = 200;

/// A request of a signed-in user. All others are redirected to the sign-in page.
pub struct Visit {
    pub state: UiState,
    pub actor: Actor,
    scope: Scope,
    /// The session ID from the cookie.
    pub session: String,
    flash: Option<Flash>,
    is_framed: bool,
}

impl FromRequestParts<UiState> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &UiState) -> Result<Self, Response> {
        let found = state.api.auth.session_principal(&parts.headers).await;
        let found = found.map_err(|problem| PageError(problem).into_response())?;
        let (Some(principal), Some(session)) = (found, state.api.auth.session_id(&parts.headers))
        else {
            return Err(to_sign_in(parts).into_response());
        };

        let session = session.to_owned();
        let flash = Flash::read(&state.api.auth, &parts.headers);
        let scope = principal.scope;
        let actor = authenticated(parts, principal)
            .await
            .map_err(|problem| PageError(problem).into_response())?;

        Ok(Visit {
            state: state.clone(),
            actor,
            scope,
            session,
            flash,
            is_framed: is_framed(&parts.headers),
        })
    }
}

impl Visit {
    pub fn manage(&self) -> &Manage {
        self.state.api.manage()
    }

    pub fn user(&self) -> &UserId {
        &self.actor.user
    }

    /// Returns a webhook of the user.
    pub async fn webhook(&self, id: Uuid) -> Result<Webhook, PageError> {
        Ok(self.manage().webhook(self.user(), id).await?)
    }

    /// Returns the user's webhooks.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, PageError> {
        let found = self.manage().webhooks(self.user(), None, MAX_WEBHOOKS);
        Ok(found.await?.items)
    }

    pub fn frame(&self, section: Section) -> Frame {
        Frame {
            user: Some(self.user().to_string()),
            is_read_only: self.scope == Scope::ReadOnly,
            flash: self.flash.clone(),
            ..Frame::new(&self.state, self.is_framed, section)
        }
    }
}

/// Redirects to the sign-in page, which returns to the requested page. A POST is not repeated.
fn to_sign_in(parts: &Parts) -> Redirect {
    // A nested router sees only the rest of the path.
    let uri = parts
        .extensions
        .get::<OriginalUri>()
        .map_or(&parts.uri, |original| &original.0);
    let next = uri
        .path_and_query()
        .and_then(|path| own_path(path.as_str()));
    let next = next.filter(|path| *path != HOME && parts.method == Method::GET);

    Redirect::to(&link("/ui/login", [("next", next.unwrap_or_default())]))
}

/// The IDs in the path. If the path has other text in their place, the page does not exist.
pub struct Ids<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<UiState> for Ids<T> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &UiState) -> Result<Self, PageError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(ids)| Ids(ids))
            .map_err(|_| PageError::no_such_page())
    }
}
