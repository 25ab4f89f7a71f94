//! Response headers that all pages have in common.

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use url::Url;

use super::assets;
use super::flash::{self, Flash};
use super::page::HoldsSecret;
use super::state::UiState;
use crate::config::Config;
use crate::http::middleware::add_headers;
use crate::http::problem::Problem;
use crate::http::{Brand, style_source};

/// Returns the content security policy. It allows no scripts in pages, no styles in pages except
/// those of the brand, and nothing from other origins except the logo.
pub fn policy(config: &Config, brand: &Brand) -> HeaderValue {
    let style = if brand.style.is_empty() {
        String::new()
    } else {
        format!(" {}", style_source(&brand.style))
    };

    let logo = brand.logo.as_deref().and_then(|url| Url::parse(url).ok());
    let logo = logo
        .map(|url| format!(" {}", url.origin().ascii_serialization()))
        .unwrap_or_default();
    let ancestors = config.ui.ancestors();

    let policy = format!(
        "default-src 'none'; style-src 'self'{style}; script-src 'self'; img-src 'self'{logo}; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
    );
    HeaderValue::try_from(policy).expect("origins and base64 are ASCII")
}

/// Whether the response may be compressed: it holds no secret.
pub fn may_be_compressed(
    _: StatusCode,
    _: Version,
    _: &HeaderMap,
    extensions: &Extensions,
) -> bool {
    extensions.get::<HoldsSecret>().is_none()
}

/// Compresses the whole page before the first byte is sent: a compressor takes more memory than a
/// page, which a slow client would occupy.
pub async fn whole(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    match to_bytes(body, usize::MAX).await {
        Ok(bytes) => Response::from_parts(parts, bytes.into()),
        Err(_) => Problem::internal().into_response(),
    }
}

/// Adds the security headers, sets the cookie of a flash message, and removes the cookie once a
/// page has shown the message.
pub async fn set(State(state): State<UiState>, request: Request, next: Next) -> Response {
    let is_asset = request.uri().path().starts_with(assets::PATH);
    let has_flash = flash::is_in(&state.api.auth, request.headers()) && !is_asset;
    let mut response = next.run(request).await;

    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Other sites must not see the path, which may be a sign-in link. `no-referrer` would also
        // remove the Origin header from forms of the web UI.
        (header::REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        ),
    ];
    add_headers(&mut response, headers);
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, state.policy.clone());

    let cookie = match response.extensions_mut().remove::<Flash>() {
        Some(flash) => Some(flash.cookie(&state.api.auth)),
        None => (has_flash && !response.status().is_redirection())
            .then(|| flash::removal(&state.api.auth)),
    };

    if let Some(cookie) = cookie {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }

    response
}
