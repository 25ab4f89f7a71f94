//! What every page has in common: its frame, and headers that tell browsers what it may do.

use std::fmt;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::UiState;
use super::assets;
use super::flash::{self, Flash};
use super::session::Visitor;

/// No inline styles or scripts, nothing from elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The frame of a page.
pub struct Frame {
    pub service: Arc<str>,
    /// Who is signed in.
    pub user: Option<String>,
    /// What happened just before.
    pub flash: Option<Flash>,
    pub section: Section,
    /// Where the API's documentation is.
    pub docs: String,
}

/// What the navigation shows as the present place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Webhooks,
    Events,
    None,
}

impl Frame {
    pub fn of(state: &UiState, visitor: Visitor, section: Section) -> Frame {
        Frame { user: Some(visitor.actor.user.to_string()), flash: visitor.flash, ..Frame::bare(state, section) }
    }

    /// Of a page that anybody may see.
    pub fn bare(state: &UiState, section: Section) -> Frame {
        let docs = format!("{}/docs", state.api.base_path());
        Frame { service: state.service.clone(), user: None, flash: None, section, docs }
    }

    pub fn css(&self) -> &'static str {
        &assets::STYLE.path
    }

    pub fn js(&self) -> &'static str {
        &assets::SCRIPT.path
    }

    pub fn icon(&self) -> &'static str {
        &assets::ICON.path
    }

    pub fn in_webhooks(&self) -> bool {
        self.section == Section::Webhooks
    }

    pub fn in_events(&self) -> bool {
        self.section == Section::Events
    }
}

pub fn page(template: &impl Template) -> Response {
    Html(template.render().expect("writing to memory cannot fail")).into_response()
}

/// A page whose form was not taken.
pub fn page_again(status: StatusCode, template: &impl Template) -> Response {
    (status, page(template)).into_response()
}

/// A page that holds a secret.
pub fn secret_page(template: &impl Template) -> Response {
    let mut response = page(template);
    response.extensions_mut().insert(Secret);
    response
}

/// To another page, which tells what happened.
pub fn go(to: &str, flash: Flash) -> Response {
    let mut response = Redirect::to(to).into_response();
    response.extensions_mut().insert(flash);
    response
}

/// Answers that hold a secret are never compressed: their length would tell of it.
#[derive(Clone, Copy)]
struct Secret;

pub fn may_be_compressed(_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions) -> bool {
    extensions.get::<Secret>().is_none()
}

/// Pages hold what is one user's: nobody keeps, frames, sniffs or names them. What a page told of the past is told once.
pub async fn protect(State(state): State<UiState>, request: Request, next: Next) -> Response {
    let told = flash::is_in(&state.api, request.headers()) && !request.uri().path().starts_with(assets::PLACE);
    let mut response = next.run(request).await;
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Nothing to other sites, a sign-in link least of all. Less would take the origin from our own forms too.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ];
    for (name, value) in headers {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    let cookie = match response.extensions_mut().remove::<Flash>() {
        Some(flash) => Some(flash.cookie(&state.api)),
        None => (told && !response.status().is_redirection()).then(|| flash::forget(&state.api)),
    };
    if let Some(cookie) = cookie {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// A number with its thousands apart.
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        let shown = [0, 999, 1_000, 1_234_567].map(|number| Count(number).to_string());
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
