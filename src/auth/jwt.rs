//! Verifies the platform's own tokens (JWT), and returns the user that they stand for.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::jwks::{JwtError, Key, Published};
use super::jwt_crypto;
use super::rejection::{Cause, Rejection};
use crate::config::Jwt;
use crate::domain::event::UserId;
use crate::http::problem::Problem;

/// Allowed difference between the platform's clock and this machine's.
const LEEWAY_SECONDS: u64 = 60;
/// From issue to expiry. URLs end up in logs and browser histories, so the token of a sign-in link
/// must be short-lived.
const MAX_LINK_SECONDS: f64 = 300.0;
const MAX_USER_LENGTH: usize = 200;
/// Longer tokens are rejected before they are parsed: header lines may be longer.
pub const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Verifies tokens as configured in `auth.jwt`.
pub struct JwtVerifier {
    keys: Keys,
    issuer: String,
    audience: String,
    sign_in_audience: String,
    user_claim: String,
}

/// What a token may be used for. The audiences exclude each other, so that a token for one purpose
/// never serves the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenPurpose {
    Api,
    SignIn,
}

/// The verified content of a token.
struct VerifiedToken {
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
            (Some(url), ..) => Keys::Published(Published::at_url(url.expose_secret())?),
            (_, Some(path), _) => Keys::Published(Published::in_file(path)?),
            (.., Some(secret)) => {
                let decoding = DecodingKey::from_secret(secret.expose_secret().as_bytes());
                Keys::Fixed(
                    [Key {
                        id: None,
                        algorithm: Algorithm::HS256,
                        decoding,
                    }]
                    .into(),
                )
            }
            (None, None, None) => return Err(JwtError::NoKeys),
        };

        let sign_in_audience = config.sign_in_audience();
        let Jwt {
            issuer,
            audience,
            user_claim,
            ..
        } = config.clone();

        Ok(JwtVerifier {
            keys,
            issuer,
            audience,
            sign_in_audience,
            user_claim,
        })
    }

    /// Verifies a bearer token of the API. Returns its user. The outer error is that the keys are
    /// unavailable.
    pub async fn user(&self, token: &str) -> Result<Result<UserId, Rejection>, Problem> {
        let verified = self.verify(token, TokenPurpose::Api).await?;
        Ok(verified.map(|verified| verified.user))
    }

    /// Verifies the token of a sign-in link. Returns its user, and the time from which the token
    /// would be rejected anyway: until then the caller must prevent a second use. The outer error
    /// is that the keys are unavailable.
    pub async fn link(
        &self,
        token: &str,
    ) -> Result<Result<(UserId, Timestamp), Rejection>, Problem> {
        let verified = self.verify(token, TokenPurpose::SignIn).await?;
        Ok(verified.map(|VerifiedToken { user, expires_at }| {
            let rejected_from = expires_at.saturating_add(2 * LEEWAY_SECONDS as i64);
            (
                user,
                Timestamp::from_second(rejected_from).unwrap_or(Timestamp::MAX),
            )
        }))
    }

    async fn verify(
        &self,
        token: &str,
        purpose: TokenPurpose,
    ) -> Result<Result<VerifiedToken, Rejection>, Problem> {
        let verified = match read_header(token) {
            Ok(header) => self.verify_signed(token, &header, purpose).await?,
            Err(rejection) => Err(rejection),
        };

        Ok(verified.inspect_err(Rejection::log))
    }

    async fn verify_signed(
        &self,
        token: &str,
        header: &Header,
        purpose: TokenPurpose,
    ) -> Result<Result<VerifiedToken, Rejection>, Problem> {
        let matches = |key: &Key| key.algorithm == header.alg && key.may_be(header.kid.as_deref());
        let keys = match &self.keys {
            Keys::Fixed(keys) => keys.clone(),
            Keys::Published(published) => published.keys(|keys| keys.iter().any(matches)).await?,
        };

        let mut rejection = Cause::Key.because(format!(
            "no key is for the algorithm {:?} and the kid {:?}",
            header.alg, header.kid
        ));

        for key in keys.iter().filter(|key| matches(key)) {
            let validation = self.validation(key.algorithm);
            let decoded = decode::<Map<String, Value>>(token, &key.decoding, &validation);
            let verified = decoded
                .map_err(Rejection::from)
                .and_then(|token| self.check_claims(&token.claims, purpose));

            match verified {
                Ok(verified) => return Ok(Ok(verified)),
                Err(error) => rejection = error,
            }
        }

        Ok(Err(rejection))
    }

    /// Checks the claims of a token that the platform has signed.
    fn check_claims(
        &self,
        claims: &Map<String, Value>,
        purpose: TokenPurpose,
    ) -> Result<VerifiedToken, Rejection> {
        let (wanted, other) = match purpose {
            TokenPurpose::Api => (&self.audience, &self.sign_in_audience),
            TokenPurpose::SignIn => (&self.sign_in_audience, &self.audience),
        };

        let is_for = |audience: &str| {
            claims
                .get("aud")
                .is_some_and(|claim| names(claim, audience))
        };

        if !is_for(wanted) || is_for(other) {
            return Err(Cause::Audience.because(format!("aud must name {wanted} and not {other}")));
        }

        let user = claims.get(&self.user_claim).and_then(user);
        let user = user.ok_or_else(|| {
            Cause::User.because(format!(
                "{} must be a text or a whole number",
                self.user_claim
            ))
        })?;
        let expires_at = claims
            .get("exp")
            .and_then(Value::as_f64)
            .ok_or_else(|| Cause::Claim.because("exp must be a number"))?;
        let issued_at = claims
            .get("iat")
            .map(|claim| {
                claim
                    .as_f64()
                    .ok_or_else(|| Cause::Claim.because("iat must be a number"))
            })
            .transpose()?;
        let latest = Timestamp::now().as_second() + LEEWAY_SECONDS as i64;

        if issued_at.is_some_and(|issued_at| issued_at > latest as f64) {
            return Err(Cause::Early.because("iat is in the future: compare the clocks"));
        }

        let lives_long =
            issued_at.is_none_or(|issued_at| expires_at - issued_at > MAX_LINK_SECONDS);
        if purpose == TokenPurpose::SignIn && lives_long {
            return Err(Cause::Claim.because(format!(
                "the exp of a sign-in link must be at most {MAX_LINK_SECONDS} s after its iat"
            )));
        }

        Ok(VerifiedToken {
            user,
            expires_at: expires_at.ceil() as i64,
        })
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);

        // The required audience depends on the purpose: `check_claims` compares it.
        validation.validate_aud = false;
        validation
    }
}

/// Reads the header of a token before its signature is verified.
fn read_header(token: &str) -> Result<Header, Rejection> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(Cause::Form.because(format!("it has more than {MAX_TOKEN_BYTES} bytes")));
    }

    let header = decode_header(token)?;
    check_extensions(&header)?;
    Ok(header)
}

/// Rejects a token that must not be accepted by who does not understand its extensions (RFC 7515,
/// 4.1.11). Walhook implements none, and an empty list is invalid.
fn check_extensions(header: &Header) -> Result<(), Rejection> {
    match header.crit {
        Some(_) => Err(Cause::Form.because("crit requires extensions, and none is supported")),
        None => Ok(()),
    }
}

/// Whether the claim `aud`, a string or an array, contains this audience.
fn names(claim: &Value, audience: &str) -> bool {
    match claim {
        Value::Array(several) => several.iter().any(|one| one == audience),
        one => one == audience,
    }
}

/// Reads the user's id, a string or a whole number.
fn user(claim: &Value) -> Option<UserId> {
    let text = match claim {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        _ => return None,
    };

    let is_plain = (1..=MAX_USER_LENGTH).contains(&text.chars().count())
        && !text.chars().any(char::is_control);
    is_plain.then(|| UserId(text.into()))
}

/// Returns the user that a token names, without a look at its signature.
pub(super) fn claimed_user(token: &str, claim: &str) -> Option<UserId> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }

    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(&payload).ok()?;
    claims.get(claim).and_then(user)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn header(json: Value) -> Header {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_header_with_critical_extensions_is_not_understood() {
        assert!(
            check_extensions(&header(json!({ "alg": "HS256", "policy": "read-only" }))).is_ok()
        );

        for extensions in [json!(["policy"]), json!(["exp", "b64"]), json!([])] {
            let header =
                header(json!({ "alg": "HS256", "crit": extensions, "policy": "read-only" }));
            assert!(check_extensions(&header).is_err(), "{extensions}");
        }
    }

    #[test]
    fn users_are_strings_or_whole_numbers() {
        let named = |claim: Value| user(&claim).map(|user| user.to_string());
        assert_eq!(named(json!("user-7")), Some("user-7".into()));
        assert_eq!(named(json!(42)), Some("42".into()));

        for none in [
            json!(""),
            json!(4.5),
            json!(null),
            json!(["7"]),
            json!("a\u{0}"),
            json!("x".repeat(201)),
        ] {
            assert_eq!(named(none.clone()), None, "{none}");
        }
    }
}
