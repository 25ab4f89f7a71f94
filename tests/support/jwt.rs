//! Tokens as a platform issues them, generated without the library that verifies them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

pub fn base64_url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a token with these claims, signed with a shared secret.
pub fn hs256_token(secret: &str, claims: &Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "HS256" });
    let signed = format!("{}.{}", base64_url(header.to_string().as_bytes()), base64_url(claims.to_string().as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = base64_url(hmac::sign(&key, signed.as_bytes()).as_ref());
    format!("{signed}.{signature}")
}
