//! Set-Cookie headers. They are written here and not by a crate for cookies: the attributes are the
//! same for all cookies, and a cookie jar would accept a cookie that is sent twice, which
//! `auth::cookie` ignores because another site may have planted one.

use axum::http::HeaderValue;

use crate::auth::Authenticator;

/// Returns a Set-Cookie header. `value` is ASCII without spaces and separators, such as base64url.
///
/// SameSite is Lax and not Strict, so that a link in an e-mail leads to its page. In a frame of
/// another site, browsers accept only SameSite=None. Such a cookie is partitioned: a page of one
/// site cannot use the session that was opened in a frame of another.
///
/// The name of a secure cookie starts with `__Host-`, which requires exactly Secure, no Domain, and
/// the path `/`.
pub fn set_cookie(auth: &Authenticator, name: &str, value: &str, seconds: u64) -> HeaderValue {
    let secure = if auth.is_secure() { "; Secure" } else { "" };
    let site = if auth.is_embeddable() {
        "None; Partitioned"
    } else {
        "Lax"
    };
    let cookie =
        format!("{name}={value}; Path=/; HttpOnly; SameSite={site}; Max-Age={seconds}{secure}");
    HeaderValue::try_from(cookie).expect("the value is ASCII")
}
