//! Tokens as a platform issues them, generated without the library that verifies them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

pub fn base64_url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a token with these claims, signed with a shared secret.
pub fn hs256_token(secret: &str, claims: &Value) -> String {
    hs256_token_with(&json!({ "typ": "JWT", "alg": "HS256" }), secret, claims)
}

/// Returns a token with this header, whatever it says, signed by HS256.
pub fn hs256_token_with(header: &Value, secret: &str, claims: &Value) -> String {
    let signed = format!(
        "{}.{}",
        base64_url(header.to_string().as_bytes()),
        base64_url(claims.to_string().as_bytes())
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = base64_url(hmac::sign(&key, signed.as_bytes()).as_ref());

    format!("{signed}.{signature}")
}

/// A platform that issues tokens with an Ed25519 key, and publishes it.
pub struct Issuer(Ed25519KeyPair);

impl Issuer {
    pub fn new() -> Issuer {
        let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Issuer(Ed25519KeyPair::from_pkcs8(private.as_ref()).expect("a key in PKCS #8"))
    }

    /// Returns the key set to publish.
    pub fn key_set(&self) -> Value {
        let key = base64_url(self.0.public_key().as_ref());
        json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": key }] })
    }

    /// Returns a token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": "EdDSA", "kid": "k" });
        let signed = format!(
            "{}.{}",
            base64_url(header.to_string().as_bytes()),
            base64_url(claims.to_string().as_bytes())
        );
        let signature = base64_url(self.0.sign(signed.as_bytes()).as_ref());

        format!("{signed}.{signature}")
    }
}
