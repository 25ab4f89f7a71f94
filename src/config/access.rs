//! Validation of the settings in `auth.jwt` and `http`.

use std::time::Duration;

use secrecy::ExposeSecret;
use url::{Host, Url};

use super::{Config, Http, Jwt};

/// The length of the hash. A shorter key would be easier to guess.
const MIN_SECRET_BYTES: usize = 32;

/// More than the usual limit of open files per process allows.
const MAX_CONNECTIONS: usize = 65_536;
/// The largest body that any request may have: each connection may hold one in memory.
pub const MAX_BODY_BYTES: usize = 256 << 10;
/// A longer timeout would not protect from idle clients.
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Validates the settings. The error names the setting and what it must be.
pub fn check(config: &Config) -> Result<(), String> {
    let Http {
        cors_origins,
        public_url,
        base_path,
        ..
    } = &config.http;

    cors_origins
        .iter()
        .try_for_each(|origin| check_origin("http.cors_origins", origin))?;
    public_url
        .iter()
        .try_for_each(|origin| check_origin("http.public_url", origin))?;

    if base_path.split('/').nth(1) == Some("ui") {
        return Err(
            "http.base_path must not begin with /ui: the web UI is served there".to_owned(),
        );
    }

    check_limits(&config.http)?;
    config.auth.jwt.as_ref().map_or(Ok(()), check_jwt)
}

fn check_limits(http: &Http) -> Result<(), String> {
    let counts = [
        ("max_connections", http.max_connections),
        ("max_requests", http.max_requests),
        ("max_streams", http.max_streams),
    ];
    if let Some((name, _)) = counts
        .iter()
        .find(|(_, count)| !(1..=MAX_CONNECTIONS).contains(count))
    {
        return Err(format!("http.{name} must be from 1 to {MAX_CONNECTIONS}"));
    }

    if http.max_body_bytes.0 > MAX_BODY_BYTES as u64 {
        return Err(format!(
            "http.max_body_bytes must be at most {MAX_BODY_BYTES}"
        ));
    }

    let timeouts = [
        ("header_timeout", http.header_timeout),
        ("idle_timeout", http.idle_timeout),
    ];
    let is_wrong = |timeout: Duration| timeout.is_zero() || timeout > MAX_TIMEOUT;
    match timeouts.iter().find(|(_, timeout)| is_wrong(timeout.0)) {
        Some((name, _)) => Err(format!("http.{name} must be more than zero and at most 1h")),
        None => Ok(()),
    }
}

/// Requires one origin. A pattern such as `https://*.example` is none.
pub(super) fn check_origin(setting: &str, origin: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/.-_[]".contains(&byte);
    let is_origin = origin.bytes().all(is_plain)
        && Url::parse(origin).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.origin().ascii_serialization() == origin
        });

    let wrong = || {
        format!(
            "{setting}: `{origin}` is not an origin as browsers write it, such as https://app.example"
        )
    };

    if is_origin { Ok(()) } else { Err(wrong()) }
}

fn check_jwt(jwt: &Jwt) -> Result<(), String> {
    let sign_in_audience = jwt.sign_in_audience();
    let texts = [
        ("issuer", &jwt.issuer),
        ("audience", &jwt.audience),
        ("sign_in_audience", &sign_in_audience),
        ("user_claim", &jwt.user_claim),
    ];
    if let Some((name, _)) = texts.iter().find(|(_, value)| value.is_empty()) {
        return Err(format!("auth.jwt.{name} must not be empty"));
    }

    if sign_in_audience == jwt.audience {
        return Err(
            "auth.jwt.sign_in_audience must differ from auth.jwt.audience: otherwise an API token would open a \
                    session, and a sign-in link would call the API"
                .to_owned(),
        );
    }

    match (&jwt.jwks_url, &jwt.jwks_file, &jwt.secret) {
        (Some(url), None, None) => check_jwks_url(url.expose_secret()),
        (None, Some(_), None) => Ok(()),
        (None, None, Some(secret)) if secret.expose_secret().len() >= MIN_SECRET_BYTES => Ok(()),
        (None, None, Some(_)) => Err(format!(
            "auth.jwt.secret must have at least {MIN_SECRET_BYTES} bytes"
        )),
        (None, None, None) => {
            Err("auth.jwt has no keys to verify with: set jwks_url, jwks_file or secret".to_owned())
        }
        _ => Err("auth.jwt: set only one of jwks_url, jwks_file and secret".to_owned()),
    }
}

/// Requires https, except on loopback: an attacker who replaces the keys in transit could act as
/// any user.
fn check_jwks_url(url: &str) -> Result<(), String> {
    Url::parse(url).map_err(|error| format!("auth.jwt.jwks_url: {error}"))?;

    if is_https_or_loopback(url) {
        return Ok(());
    }

    Err(
        "auth.jwt.jwks_url must begin with https://; http:// is allowed only on loopback"
            .to_owned(),
    )
}

/// Whether nobody can change in transit what is at the URL.
pub(super) fn is_https_or_loopback(url: &str) -> bool {
    let Ok(parsed) = Url::parse(url) else {
        return false;
    };

    let is_loopback = match parsed.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };

    match parsed.scheme() {
        "https" => true,
        "http" => is_loopback,
        _ => false,
    }
}
