//! Signing in and out.

use askama::Template;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use secrecy::ExposeSecret;
use url::form_urlencoded;
use uuid::Uuid;

use super::answer::{Frame, Section, page, page_again, secret_page};
use super::failure::Failure;
use super::fields::{Fields, local};
use super::flash::Flash;
use super::{HOME, UiState};
use crate::api::{Problem, authenticate_token, session_actor};
use crate::domain::event::UserId;
use crate::store::audit::{Actor, Via};
use crate::store::sessions;

/// Whoever is signed in, and what is to be told them. Others are sent to sign in.
pub struct Visitor {
    pub actor: Actor,
    pub flash: Option<Flash>,
}

impl FromRequestParts<UiState> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &UiState) -> Result<Self, Response> {
        match session_actor(&state.api, &parts.headers).await {
            Ok(Some(actor)) => Ok(Visitor { actor, flash: Flash::of(&state.api, &parts.headers) }),
            Ok(None) => Err(to_login(&parts.method, original(parts)).into_response()),
            Err(problem) => Err(Failure(problem).into_response()),
        }
    }
}

/// As the browser asked for it: a router below a path sees the rest alone.
fn original(parts: &Parts) -> &Uri {
    parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0)
}

/// What was to be read can be read afterwards; what was to be done has to be done anew.
fn to_login(method: &Method, uri: &Uri) -> Redirect {
    let wanted = uri.path_and_query().map_or(HOME, |path| path.as_str());
    match local(wanted).filter(|path| *path != HOME && method == Method::GET) {
        Some(path) => {
            let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", path).finish();
            Redirect::to(&format!("/ui/login?{query}"))
        }
        None => Redirect::to("/ui/login"),
    }
}

#[derive(Template)]
#[template(path = "ui/login.html")]
struct Login {
    frame: Frame,
    next: String,
    /// Why not.
    error: Option<&'static str>,
    /// Whether the browser comes with a session that is over.
    expired: bool,
    takes_links: bool,
}

impl Login {
    fn new(state: &UiState, next: Option<String>) -> Login {
        let frame = Frame::bare(state, Section::None);
        let next = next.unwrap_or_default();
        Login { frame, next, error: None, expired: false, takes_links: state.api.jwt().is_some() }
    }

    fn refused(self, error: &'static str) -> Response {
        page_again(StatusCode::UNAUTHORIZED, &Login { error: Some(error), ..self })
    }
}

/// Asks before a sign-in link replaces the session of another user: any site can send a visitor to a link of its own user.
#[derive(Template)]
#[template(path = "ui/replace.html")]
struct Replace {
    frame: Frame,
    present: UserId,
    user: UserId,
    jwt: String,
    next: String,
}

/// A sign-in link whose token is valid and not used yet.
struct Link<'a> {
    token: &'a str,
    user: UserId,
    refused_from: Timestamp,
}

impl<'a> Link<'a> {
    /// None where the token is not valid, or not for a link.
    async fn verify(state: &UiState, token: &'a str) -> Result<Option<Link<'a>>, Problem> {
        let Some(verifier) = state.api.jwt() else { return Ok(None) };
        match verifier.link(token).await {
            Ok((user, refused_from)) => Ok(Some(Link { token, user, refused_from })),
            Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Signs in, unless the link was used before.
    async fn enter(self, state: &UiState, headers: &HeaderMap, login: Login) -> Result<Response, Failure> {
        // Without the signature, which some algorithms let anybody write in another way.
        let signed = self.token.rsplit_once('.').map_or(self.token, |(signed, _)| signed);
        if !sessions::use_link(state.api.store(), signed, self.refused_from).await? {
            return Ok(login.refused(LINK_REFUSED));
        }
        enter(state, headers, &self.user, None, &login.next).await
    }
}

const LINK_REFUSED: &str = "This sign-in link is not valid, is too old, or has been used. Ask for a new one.";

/// The sign-in page; with `jwt`, a link of the platform's that signs in by itself.
pub async fn form(
    State(state): State<UiState>,
    method: Method,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Failure> {
    let query = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let login = Login::new(&state, query.back("next"));
    let token = query.one("jwt");
    // Whoever only looks at what is behind the link has not used it.
    if !token.is_empty() && method == Method::GET {
        return follow_link(&state, &headers, token, login).await;
    }
    if session_actor(&state.api, &headers).await?.is_some() {
        return Ok(Redirect::to(if login.next.is_empty() { HOME } else { &login.next }).into_response());
    }
    let expired = state.api.session_id(&headers).is_some();
    Ok(page(&Login { expired, ..login }))
}

async fn follow_link(state: &UiState, headers: &HeaderMap, token: &str, login: Login) -> Result<Response, Failure> {
    let Some(link) = Link::verify(state, token).await? else { return Ok(login.refused(LINK_REFUSED)) };
    let present = session_actor(&state.api, headers).await?.map(|actor| actor.user);
    match present.filter(|present| *present != link.user) {
        Some(present) => {
            let (frame, jwt) = (Frame::bare(state, Section::None), token.to_owned());
            Ok(secret_page(&Replace { frame, present, user: link.user, jwt, next: login.next }))
        }
        None => link.enter(state, headers, login).await,
    }
}

/// Takes the API token of the form, or the sign-in link of a visitor who agreed to replace the session.
pub async fn sign_in(State(state): State<UiState>, headers: HeaderMap, fields: Fields) -> Result<Response, Failure> {
    let login = Login::new(&state, fields.back("next"));
    if !fields.one("jwt").is_empty() {
        return match Link::verify(&state, fields.one("jwt")).await? {
            Some(link) => link.enter(&state, &headers, login).await,
            None => Ok(login.refused(LINK_REFUSED)),
        };
    }
    let actor = match authenticate_token(&state.api, fields.one("token").trim()).await {
        Ok(actor) => actor,
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED => {
            return Ok(login.refused("This is not a valid token, or it was revoked."));
        }
        Err(problem) => return Err(problem.into()),
    };
    match actor.via {
        Via::Token(token) => enter(&state, &headers, &actor.user, Some(token), &login.next).await,
        _ => Ok(login.refused("Sign in with an API token, or by the link of your platform.")),
    }
}

async fn enter(
    state: &UiState,
    headers: &HeaderMap,
    user: &UserId,
    token: Option<Uuid>,
    next: &str,
) -> Result<Response, Failure> {
    if let Some(old) = state.api.session_id(headers) {
        sessions::end(state.api.store(), old).await?;
    }
    let id = sessions::begin(state.api.store(), user, token).await?;
    tracing::info!(%user, "signed in");
    let cookie = session_cookie(state, id.expose_secret(), sessions::LONGEST_LIFE.as_secs())?;
    let next = if next.is_empty() { HOME } else { next };
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response())
}

pub async fn sign_out(State(state): State<UiState>, headers: HeaderMap) -> Result<Response, Failure> {
    if let Some(id) = state.api.session_id(&headers) {
        sessions::end(state.api.store(), id).await?;
    }
    Ok(([(header::SET_COOKIE, session_cookie(&state, "", 0)?)], Redirect::to("/ui/login")).into_response())
}

/// Lax and not strict: a link in an e-mail is to lead to the page that it names.
fn session_cookie(state: &UiState, id: &str, seconds: u64) -> Result<HeaderValue, Problem> {
    let (name, secure) = (state.api.session_cookie_name(), if state.api.is_secure() { "; Secure" } else { "" });
    let cookie = format!("{name}={id}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
    HeaderValue::try_from(cookie).map_err(|_| Problem::internal())
}
