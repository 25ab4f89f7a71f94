//! What the last request came to, told by the page behind it: a cookie that lives until it is shown.

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::api::{ApiState, cookie};

/// The second where cookies are sent over TLS alone: what a sibling domain plants is not shown.
const COOKIE: &str = "walhook_flash";
const HOST_COOKIE: &str = "__Host-walhook_flash";
/// Cookies are small; so is what is told.
const LONGEST: usize = 600;

#[derive(Clone)]
pub struct Flash {
    pub good: bool,
    pub text: String,
}

impl Flash {
    pub fn good(text: impl Into<String>) -> Flash {
        Flash { good: true, text: text.into() }
    }

    pub fn bad(text: impl Into<String>) -> Flash {
        Flash { good: false, text: text.into() }
    }

    pub fn cookie(&self, state: &ApiState) -> HeaderValue {
        let text: String = self.text.chars().take(LONGEST).collect();
        let value = URL_SAFE_NO_PAD.encode(format!("{}{text}", if self.good { '+' } else { '-' }));
        set(state, &value, 60)
    }

    pub fn of(state: &ApiState, headers: &HeaderMap) -> Option<Flash> {
        let decoded = URL_SAFE_NO_PAD.decode(cookie(headers, name(state))?).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let kind = text.chars().next()?;
        Some(Flash { good: kind == '+', text: text[kind.len_utf8()..].to_owned() })
    }
}

pub fn is_in(state: &ApiState, headers: &HeaderMap) -> bool {
    cookie(headers, name(state)).is_some()
}

pub fn forget(state: &ApiState) -> HeaderValue {
    set(state, "", 0)
}

fn name(state: &ApiState) -> &'static str {
    if state.is_secure() { HOST_COOKIE } else { COOKIE }
}

fn set(state: &ApiState, value: &str, seconds: u32) -> HeaderValue {
    let secure = if state.is_secure() { "; Secure" } else { "" };
    let cookie = format!("{}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}", name(state));
    HeaderValue::try_from(cookie).expect("base64 and ASCII")
}
