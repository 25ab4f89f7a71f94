//! The platform's own tokens (JWT): whose they are, if they are signed by a key of the platform's and meant for us.

use std::sync::Arc;

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::jwks::{JwtError, Key, Published};
use super::jwt_crypto;
use super::problem::Problem;
use crate::config::Jwt;
use crate::domain::event::UserId;

/// Clocks differ.
const LEEWAY_SECONDS: u64 = 60;
/// From issue to expiry. URLs end up in logs and browser histories, so the token of a link must be short-lived.
const LONGEST_LINK_SECONDS: f64 = 300.0;
const LONGEST_USER: usize = 200;
/// Ours to refuse before anything is parsed; header lines may be longer.
const LONGEST_TOKEN: usize = 16 << 10;

/// Verifies tokens under what `auth.jwt` says.
pub struct JwtVerifier {
    keys: Keys,
    issuer: String,
    audience: String,
    sign_in_audience: String,
    user_claim: String,
}

/// What a token may be used for. The audiences exclude each other, so that a token for one purpose never serves the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Api,
    SignIn,
}

/// What counts of a token that is right.
struct Verified {
    user: UserId,
    /// In seconds since 1970.
    expires_at: i64,
}

enum Keys {
    Fixed(Arc<[Key]>),
    Published(Published),
}

impl JwtVerifier {
    pub fn new(config: &Jwt) -> Result<JwtVerifier, JwtError> {
        jwt_crypto::install();
        let keys = match (&config.jwks_url, &config.jwks_file, &config.secret) {
            (Some(url), ..) => Keys::Published(Published::at_url(url)?),
            (_, Some(path), _) => Keys::Published(Published::in_file(path)?),
            (.., Some(secret)) => {
                let decoding = DecodingKey::from_secret(secret.expose_secret().as_bytes());
                Keys::Fixed([Key { id: None, algorithm: Algorithm::HS256, decoding }].into())
            }
            (None, None, None) => return Err(JwtError::NoKeys),
        };
        let sign_in_audience = config.sign_in_audience();
        let Jwt { issuer, audience, user_claim, .. } = config.clone();
        Ok(JwtVerifier { keys, issuer, audience, sign_in_audience, user_claim })
    }

    /// The user that a bearer token of the API stands for.
    pub async fn user(&self, token: &str) -> Result<UserId, Problem> {
        self.verify(token, Purpose::Api).await.map(|verified| verified.user)
    }

    /// The user of a sign-in link, and the time from which the token would be rejected anyway. The caller makes sure that it is
    /// used only once.
    pub async fn link(&self, token: &str) -> Result<(UserId, Timestamp), Problem> {
        let Verified { user, expires_at } = self.verify(token, Purpose::SignIn).await?;
        let refused_from = expires_at.saturating_add(2 * LEEWAY_SECONDS as i64);
        Ok((user, Timestamp::from_second(refused_from).unwrap_or(Timestamp::MAX)))
    }

    async fn verify(&self, token: &str, purpose: Purpose) -> Result<Verified, Problem> {
        let refuse = |reason: &str| {
            tracing::debug!(reason, "a token of the platform's is refused");
            Problem::unauthorized()
        };
        if token.len() > LONGEST_TOKEN {
            return Err(refuse("it is too long"));
        }
        let header = decode_header(token).map_err(|error| refuse(&error.to_string()))?;
        let fits = |key: &Key| key.algorithm == header.alg && key.may_be(header.kid.as_deref());
        let keys = match &self.keys {
            Keys::Fixed(keys) => keys.clone(),
            Keys::Published(published) => published.keys(|keys| keys.iter().any(fits)).await?,
        };
        let mut reason = "no key fits its header".to_owned();
        for key in keys.iter().filter(|key| fits(key)) {
            match decode::<Map<String, Value>>(token, &key.decoding, &self.validation(key.algorithm)) {
                Ok(token) => return self.check(&token.claims, purpose).map_err(|reason| refuse(&reason)),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(refuse(&reason))
    }

    /// Checks what depends on the purpose of a token that the platform has signed.
    fn check(&self, claims: &Map<String, Value>, purpose: Purpose) -> Result<Verified, String> {
        let checked = self.check_claims(claims, purpose);
        if let (Err(reason), Purpose::SignIn) = (&checked, purpose) {
            // The platform made the link, so that its engineers look for the reason.
            tracing::info!(reason, "rejected a sign-in link that the platform has signed");
        }
        checked
    }

    fn check_claims(&self, claims: &Map<String, Value>, purpose: Purpose) -> Result<Verified, String> {
        let (wanted, other) = match purpose {
            Purpose::Api => (&self.audience, &self.sign_in_audience),
            Purpose::SignIn => (&self.sign_in_audience, &self.audience),
        };
        let is_for = |audience: &str| claims.get("aud").is_some_and(|claim| names(claim, audience));
        if !is_for(wanted) || is_for(other) {
            return Err(format!("the claim aud must name {wanted} and not {other}"));
        }
        let user = claims.get(&self.user_claim).and_then(user);
        let user = user.ok_or("the claim auth.jwt.user_claim names no user")?;
        let expires_at = claims.get("exp").and_then(Value::as_f64).ok_or("the claim exp is not a number")?;
        let issued_at =
            claims.get("iat").map(|claim| claim.as_f64().ok_or("the claim iat is not a number")).transpose()?;
        let latest = Timestamp::now().as_second() + LEEWAY_SECONDS as i64;
        if issued_at.is_some_and(|issued_at| issued_at > latest as f64) {
            return Err("the claim iat is in the future".to_owned());
        }
        let lives_long = issued_at.is_none_or(|issued_at| expires_at - issued_at > LONGEST_LINK_SECONDS);
        if purpose == Purpose::SignIn && lives_long {
            return Err(format!("the claim exp must be at most {LONGEST_LINK_SECONDS} s after iat"));
        }
        Ok(Verified { user, expires_at: expires_at.ceil() as i64 })
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        // Which audience is right depends on the purpose: `check` compares it.
        validation.validate_aud = false;
        validation
    }
}

/// Whether the claim `aud`, one text or several, names this audience.
fn names(claim: &Value, audience: &str) -> bool {
    match claim {
        Value::Array(several) => several.iter().any(|one| one == audience),
        one => one == audience,
    }
}

/// Platforms write ids as texts or as numbers.
fn user(claim: &Value) -> Option<UserId> {
    let text = match claim {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        _ => return None,
    };
    let is_plain = (1..=LONGEST_USER).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    is_plain.then(|| UserId(text.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn users_are_texts_or_whole_numbers() {
        let named = |claim: Value| user(&claim).map(|user| user.to_string());
        assert_eq!(named(json!("user-7")), Some("user-7".into()));
        assert_eq!(named(json!(42)), Some("42".into()));
        for none in [json!(""), json!(4.5), json!(null), json!(["7"]), json!("a\u{0}"), json!("x".repeat(201))] {
            assert_eq!(named(none.clone()), None, "{none}");
        }
    }
}
