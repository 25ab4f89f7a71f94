//! Flash messages: the result of a request, shown on the next page. A cookie carries the message.

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::cookies::set_cookie;
use crate::auth::{Authenticator, cookie};

/// Browsers accept the second name only over TLS and from this host, so that a sibling domain
/// cannot plant a message.
const COOKIE: &str = "walhook_flash";
const HOST_COOKIE: &str = "__Host-walhook_flash";
/// Browsers limit a cookie to about 4 kB: 600 characters fit even if each takes four bytes, in
/// base64.
const MAX_CHARS: usize = 600;
/// Long enough for a redirect to a slow page.
const LIFETIME_SECONDS: u64 = 60;

/// A message of success or failure.
#[derive(Clone)]
pub struct Flash {
    pub good: bool,
    pub text: String,
}

impl Flash {
    pub fn good(text: impl Into<String>) -> Flash {
        Flash {
            good: true,
            text: text.into(),
        }
    }

    pub fn bad(text: impl Into<String>) -> Flash {
        Flash {
            good: false,
            text: text.into(),
        }
    }

    /// Returns the Set-Cookie header that carries the message.
    pub fn cookie(&self, auth: &Authenticator) -> HeaderValue {
        let text: String = self.text.chars().take(MAX_CHARS).collect();
        let value = URL_SAFE_NO_PAD.encode(format!("{}{text}", if self.good { '+' } else { '-' }));
        set_cookie(auth, name(auth), &value, LIFETIME_SECONDS)
    }

    /// Returns the message that the browser sends.
    pub fn read(auth: &Authenticator, headers: &HeaderMap) -> Option<Flash> {
        let decoded = URL_SAFE_NO_PAD.decode(cookie(headers, name(auth))?).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let good = text.starts_with('+');

        Some(Flash {
            good,
            text: text.strip_prefix(['+', '-'])?.to_owned(),
        })
    }
}

/// Whether the browser sends a message, valid or not.
pub fn is_in(auth: &Authenticator, headers: &HeaderMap) -> bool {
    cookie(headers, name(auth)).is_some()
}

/// Returns the Set-Cookie header that removes the message.
pub fn removal(auth: &Authenticator) -> HeaderValue {
    set_cookie(auth, name(auth), "", 0)
}

fn name(auth: &Authenticator) -> &'static str {
    if auth.is_secure() {
        HOST_COOKIE
    } else {
        COOKIE
    }
}
