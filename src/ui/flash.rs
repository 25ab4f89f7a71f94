//! What the last request came to, told by the page behind it: a cookie that lives until it is shown.

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::api::cookie;

const COOKIE: &str = "walhook_flash";
/// Cookies are small; so is what is told.
const LONGEST: usize = 600;

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

    pub fn cookie(&self) -> HeaderValue {
        let text: String = self.text.chars().take(LONGEST).collect();
        let value = URL_SAFE_NO_PAD.encode(format!("{}{text}", if self.good { '+' } else { '-' }));
        let cookie = format!("{COOKIE}={value}; Path=/ui; HttpOnly; SameSite=Lax; Max-Age=60");
        HeaderValue::try_from(cookie).expect("base64 and ASCII")
    }

    pub fn of(headers: &HeaderMap) -> Option<Flash> {
        let decoded = URL_SAFE_NO_PAD.decode(cookie(headers, COOKIE)?).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let kind = text.chars().next()?;
        Some(Flash { good: kind == '+', text: text[kind.len_utf8()..].to_owned() })
    }
}

pub fn is_in(headers: &HeaderMap) -> bool {
    cookie(headers, COOKIE).is_some()
}

pub fn forget() -> HeaderValue {
    HeaderValue::from_static("walhook_flash=; Path=/ui; HttpOnly; SameSite=Lax; Max-Age=0")
}
