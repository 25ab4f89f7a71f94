//! Signing in and out.

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::cookies::set_cookie;
use super::error::PageError;
use super::fields::Fields;
use super::page::{Frame, Section, is_framed, page, secret_page, with_status};
use super::state::{HOME, UiState};
use crate::domain::event::UserId;
use crate::manage::{SESSION_LIFETIME, SignInLink, Via};

const LINK_REJECTED: &str =
    "This sign-in link is invalid, has expired or was already used. Request a new link.";

#[derive(Template)]
#[template(path = "ui/login.html")]
struct Login {
    frame: Frame,
    /// The page to show after signing in, if it is not the first one.
    next: String,
    error: Option<&'static str>,
    /// Whether the browser sent the cookie of a session that has ended.
    expired: bool,
    accepts_links: bool,
}

impl Login {
    fn new(state: &UiState, headers: &HeaderMap, fields: &Fields) -> Login {
        let frame = Frame::new(state, is_framed(headers), Section::None);
        let next = fields.page("next").unwrap_or_default().to_owned();

        Login {
            frame,
            next,
            error: None,
            expired: false,
            accepts_links: state.api.auth.jwt().is_some(),
        }
    }

    fn reject(self, error: &'static str) -> Response {
        with_status(
            StatusCode::UNAUTHORIZED,
            &Login {
                error: Some(error),
                ..self
            },
        )
    }

    fn target(&self) -> &str {
        if self.next.is_empty() {
            HOME
        } else {
            &self.next
        }
    }
}

/// Signs in by a POST of its form: a GET by a program that looks at links must not use up the link.
#[derive(Template)]
#[template(path = "ui/confirm_sign_in.html")]
struct ConfirmSignIn {
    frame: Frame,
    /// The user whose session would end.
    current: Option<UserId>,
    user: UserId,
    /// Whether the script submits the form.
    is_immediate: bool,
    link: String,
    next: String,
}

/// Returns the sign-in link in the fields: of Walhook's in `link`, or the platform's token in
/// `jwt`. Empty if there is none.
fn link(fields: &Fields) -> &str {
    match fields.one("link") {
        "" => fields.one("jwt"),
        link => link,
    }
}

/// Whether a page of the same site has sent the visitor, as far as the browser says.
fn is_from_same_site(headers: &HeaderMap) -> bool {
    let site = headers
        .get("sec-fetch-site")
        .and_then(|site| site.to_str().ok());
    matches!(site, Some("same-origin" | "same-site"))
}

/// Shows the page of a sign-in link, which signs in at once if a page of the platform has sent the
/// visitor: any other site can redirect a visitor to a link that signs in as its own user.
/// Otherwise it asks, and also if the session of another user would end, except in a frame of the
/// platform's page: no other page may show the web UI in one.
async fn show_link(
    state: &UiState,
    headers: &HeaderMap,
    fields: &Fields,
) -> Result<Response, PageError> {
    let link = link(fields);
    let login = Login::new(state, headers, fields);
    let Some(SignInLink { user, .. }) = state.api.auth.authenticate_link(link).await? else {
        return Ok(login.reject(LINK_REJECTED));
    };

    let current = state.api.auth.session_principal(headers).await?;
    let current = current.map(|found| found.actor.user);
    let keeps_user = current.as_ref() == Some(&user);
    let is_embedded = login.frame.is_framed && state.api.auth.is_embeddable();
    let is_immediate =
        keeps_user || is_embedded || (current.is_none() && is_from_same_site(headers));

    Ok(secret_page(&ConfirmSignIn {
        frame: login.frame,
        current: current.filter(|_| !keeps_user),
        user,
        is_immediate,
        link: link.to_owned(),
        next: login.next,
    }))
}

/// Signs in with the sign-in link in the form, if it was not used before.
async fn use_link(
    state: &UiState,
    headers: &HeaderMap,
    fields: &Fields,
) -> Result<Response, PageError> {
    let link = link(fields);
    let login = Login::new(state, headers, fields);
    let Some(found) = state.api.auth.authenticate_link(link).await? else {
        return Ok(login.reject(LINK_REJECTED));
    };

    // Tokens are compared without the signature: with some algorithms anybody can change its
    // encoding, and the token stays valid.
    let signed = link.rsplit_once('.').map_or(link, |(signed, _)| signed);
    if !state
        .api
        .manage()
        .use_link(signed, found.expires_at)
        .await?
    {
        return Ok(login.reject(LINK_REJECTED));
    }

    sign_in(state, headers, &found.user, found.token, login.target()).await
}

/// Shows the sign-in page, or that of the sign-in link in the query.
pub async fn form(
    State(state): State<UiState>,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, PageError> {
    if !link(&fields).is_empty() {
        return show_link(&state, &headers, &fields).await;
    }

    let login = Login::new(&state, &headers, &fields);

    if state.api.auth.session_principal(&headers).await?.is_some() {
        return Ok(Redirect::to(login.target()).into_response());
    }

    let expired = state.api.auth.session_id(&headers).is_some();
    Ok(page(&Login { expired, ..login }))
}

/// Signs in with the API token or the sign-in link in the form.
pub async fn submit(
    State(state): State<UiState>,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, PageError> {
    if !link(&fields).is_empty() {
        return use_link(&state, &headers, &fields).await;
    }

    let login = Login::new(&state, &headers, &fields);
    let actor = match state
        .api
        .auth
        .authenticate_token(fields.one("token").trim())
        .await
    {
        Ok(actor) => actor,
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => {
            return Ok(login.reject("This token is invalid, has expired or was revoked."));
        }
        Err(problem) => return Err(problem.into()),
    };

    match actor.via {
        Via::Token(token) => {
            sign_in(&state, &headers, &actor.user, Some(token), login.target()).await
        }
        _ => {
            Ok(login
                .reject("Sign in with an API token, or with the sign-in link of your platform."))
        }
    }
}

async fn sign_in(
    state: &UiState,
    headers: &HeaderMap,
    user: &UserId,
    token: Option<Uuid>,
    target: &str,
) -> Result<Response, PageError> {
    let session = state
        .api
        .manage()
        .sign_in(user, token, state.api.auth.session_id(headers))
        .await?;
    state.api.auth.record_session(session.expose_secret(), user);

    Ok(with_session(
        state,
        session.expose_secret(),
        SESSION_LIFETIME.as_secs(),
        target,
    ))
}

pub async fn sign_out(
    State(state): State<UiState>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    if let Some(session) = state.api.auth.session_id(&headers) {
        state.api.manage().sign_out(session).await?;
    }

    Ok(with_session(&state, "", 0, "/ui/login"))
}

/// Sets the session's cookie and redirects.
fn with_session(state: &UiState, session: &str, seconds: u64, target: &str) -> Response {
    let cookie = set_cookie(
        &state.api.auth,
        state.api.auth.session_cookie_name(),
        session,
        seconds,
    );
    ([(header::SET_COOKIE, cookie)], Redirect::to(target)).into_response()
}
