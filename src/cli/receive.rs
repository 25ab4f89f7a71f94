//! `walhook receive`: a reference receiver. It shares no code with the sender, so that developers
//! of receivers in any language can follow it step by step.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::serve::Listener;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::Value;
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower_http::timeout::TimeoutLayer;
use zeroize::Zeroizing;

use super::CommandResult;

/// Deliveries have at most 64 KB by default. A much larger body is not a delivery.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// Longer data is cut, so that a line stays readable.
const MAX_SHOWN_DATA: usize = 500;
/// A client that has not sent its request by then is disconnected.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Four times as many as Walhook opens to one webhook. Further ones wait.
const MAX_CONNECTIONS: usize = 256;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Address to listen on; every path is accepted
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Secret of the webhook, as it was shown when the webhook was created
    #[arg(
        long,
        env = "WALHOOK_RECEIVE_SECRET",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    #[arg(required_unless_present = "secret_file")]
    secret: Option<SecretString>,
    /// File that contains the secret
    #[arg(long, env = "WALHOOK_RECEIVE_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Maximum difference between a delivery's timestamp and this machine's clock
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    tolerance: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|parsed| Duration::try_from(parsed).ok());
    parsed.ok_or_else(|| "expected a duration like `30s` or `5m`".to_owned())
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let secret = match (arguments.secret, arguments.secret_file) {
        (Some(secret), _) => secret,
        (None, Some(path)) => {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            text.trim_end().into()
        }
        (None, None) => {
            anyhow::bail!("no secret: set --secret, --secret-file or WALHOOK_RECEIVE_SECRET")
        }
    };

    let verifier = Arc::new(Verifier::new(secret, arguments.tolerance)?);
    let router = Router::new()
        .fallback(receive)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            REQUEST_TIMEOUT,
        ))
        .with_state(verifier);

    let listener = TcpListener::bind(arguments.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", arguments.listen))?;

    eprintln!("listening on http://{}", listener.local_addr()?);
    serve(listener, router).await;

    Ok(true)
}

/// Serves until the process is asked to stop, then waits for the requests in progress.
/// `axum::serve` has no timeout for a request's head.
async fn serve(mut listener: TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = GracefulShutdown::new();
    let mut stop = pin!(super::stop_signal());
    let mut http = http1::Builder::new();

    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT);

    loop {
        let next = async {
            let permit = free.clone().acquire_owned().await;
            (Listener::accept(&mut listener).await.0, permit)
        };

        let (stream, permit) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };

        let service = TowerToHyperService::new(router.clone());
        let served = connections.watch(http.serve_connection(TokioIo::new(stream), service));

        tokio::spawn(async move {
            // An error is the client's: it sent no valid request, or disconnected.
            let _ = served.await;
            drop(permit);
        });
    }

    connections.shutdown().await;
}

/// Takes the body as raw bytes, because the signature covers these. Parsing and serialising the
/// body again could change an escape or a space, and invalidate the signature.
async fn receive(
    State(verifier): State<Arc<Verifier>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let verdict = verifier.verify(&headers, &body, Timestamp::now());

    // A closed standard output is no reason to reject a delivery.
    let _ = writeln!(
        std::io::stdout(),
        "{}",
        ReceivedLine::new(&headers, &body, verdict.err())
    );

    // The sender considers any 2xx as delivered, and retries after anything else.
    if verdict.is_ok() {
        StatusCode::OK
    } else {
        StatusCode::UNAUTHORIZED
    }
}

/// Decides whether a delivery was signed with the shared secret, and recently.
pub struct Verifier {
    secret: SecretString,
    /// The decoded secret, with which the libraries for Standard Webhooks verify.
    key: Zeroizing<Vec<u8>>,
    tolerance: Duration,
}

/// The secret of a verifier is empty, cut off or another text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret must be whsec_ and the base64 of 24 to 64 bytes, as it was shown when the webhook was created: others could sign with an \
     empty one"
)]
pub struct WeakSecret;

/// Why a delivery is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    #[error("the header X-Webhook-Signature is missing")]
    MissingSignature,
    #[error("the signature does not match the body and the secret")]
    WrongSignature,
    #[error("the header X-Webhook-Timestamp is missing or not ISO 8601")]
    MissingTimestamp,
    #[error("the timestamp header differs from the signed timestamp in the body")]
    UnsignedTimestamp,
    #[error("the timestamp differs too much from the current time")]
    StaleTimestamp,
}

impl Verifier {
    /// Fails without a key of a length that nobody can guess.
    pub fn new(secret: SecretString, tolerance: Duration) -> Result<Verifier, WeakSecret> {
        let encoded = secret
            .expose_secret()
            .strip_prefix("whsec_")
            .ok_or(WeakSecret)?;
        let key = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| WeakSecret)?);
        if !(24..=64).contains(&key.len()) {
            return Err(WeakSecret);
        }

        Ok(Verifier {
            secret,
            key,
            tolerance,
        })
    }

    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), Rejection> {
        // 1. The signature: HMAC-SHA256 of the raw body, in lowercase hexadecimal. The comparison
        //    takes constant time: with `==`, its duration would reveal how much of a guessed
        //    signature is right.
        let claimed = text(headers, "x-webhook-signature").ok_or(Rejection::MissingSignature)?;
        let expected = hex::encode(hmac(self.secret.expose_secret().as_bytes(), &[body]));
        let is_genuine = expected.as_bytes().ct_eq(claimed.as_bytes());
        // While a secret is replaced with an overlap, the old one signs `webhook-signature` only.
        if !bool::from(is_genuine) && !self.is_signed_for_standard_webhooks(headers, body) {
            return Err(Rejection::WrongSignature);
        }

        // 2. The timestamp: an attacker must not replay a recorded delivery later. The header is
        //    not signed, but the body is, and it contains the same timestamp.
        let sent = text(headers, "x-webhook-timestamp").and_then(|header| header.parse().ok());
        let sent: Timestamp = sent.ok_or(Rejection::MissingTimestamp)?;
        if signed_timestamp(body).is_some_and(|signed| signed != sent) {
            return Err(Rejection::UnsignedTimestamp);
        }

        if now.duration_since(sent).unsigned_abs() > self.tolerance {
            return Err(Rejection::StaleTimestamp);
        }

        Ok(())
    }

    /// Verifies `webhook-signature` as the libraries for Standard Webhooks do: one of its `v1`
    /// entries must be the HMAC-SHA256 of id, timestamp and body.
    fn is_signed_for_standard_webhooks(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let (Some(id), Some(timestamp), Some(entries)) = (
            text(headers, "webhook-id"),
            text(headers, "webhook-timestamp"),
            text(headers, "webhook-signature"),
        ) else {
            return false;
        };

        let expected = STANDARD.encode(hmac(
            &self.key,
            &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body],
        ));
        let given = entries
            .split(' ')
            .filter_map(|entry| entry.strip_prefix("v1,"));
        given
            .fold(Choice::from(0), |found, entry| {
                found | expected.as_bytes().ct_eq(entry.as_bytes())
            })
            .into()
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts
        .iter()
        .fold(mac, |mac, part| mac.chain_update(part))
        .finalize()
        .into_bytes()
        .into()
}

fn signed_timestamp(body: &[u8]) -> Option<Timestamp> {
    let envelope: Value = serde_json::from_slice(body).ok()?;
    envelope.get("timestamp")?.as_str()?.parse().ok()
}

/// Returns a header's value.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The line that is printed for a delivery. A real receiver would put the event into a queue here,
/// and drop duplicates: the delivery's id is the same for all attempts.
#[derive(Serialize)]
struct ReceivedLine<'a> {
    verified: bool,
    event: Option<&'a str>,
    webhook_id: Option<&'a str>,
    delivery: Option<&'a str>,
    attempt: Option<u32>,
    timestamp: Option<&'a str>,
    /// Whether the owner has asked for the delivery, to test the receiver.
    #[serde(skip_serializing_if = "is_false")]
    test: bool,
    /// None for a rejected delivery, which may be anybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Rejection>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Returns the event's data, or the beginning of its text if that is long.
fn shown_data(body: &[u8]) -> Option<Value> {
    let envelope: Value = serde_json::from_slice(body).ok()?;
    let data = envelope.get("data")?;
    let text = data.to_string();

    match text.char_indices().nth(MAX_SHOWN_DATA) {
        Some((end, _)) => Some(format!("{}…", &text[..end]).into()),
        None => Some(data.clone()),
    }
}

impl<'a> ReceivedLine<'a> {
    fn new(headers: &'a HeaderMap, body: &[u8], reason: Option<Rejection>) -> ReceivedLine<'a> {
        ReceivedLine {
            verified: reason.is_none(),
            event: text(headers, "x-webhook-event"),
            webhook_id: text(headers, "x-webhook-id"),
            delivery: text(headers, "x-webhook-delivery"),
            attempt: text(headers, "x-webhook-attempt").and_then(|attempt| attempt.parse().ok()),
            timestamp: text(headers, "x-webhook-timestamp"),
            test: text(headers, "x-webhook-test") == Some("true"),
            data: reason.is_none().then(|| shown_data(body)).flatten(),
            reason,
        }
    }
}

impl fmt::Display for ReceivedLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = serde_json::to_string(self).map_err(|_| fmt::Error)?;

        // JSON escapes only some of the characters that a terminal may obey.
        for letter in line.chars() {
            match letter.is_control() {
                true => write!(f, "\\u{:04x}", u32::from(letter))?,
                false => f.write_char(letter)?,
            }
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const SENT: &str = "2026-03-01T09:05:00.000+00:00";
    const BODY: &str =
        r#"{"event":"x","timestamp":"2026-03-01T09:05:00.000+00:00","webhook_id":"1","data":{}}"#;
    /// printf %s "$BODY" | openssl dgst -sha256 -hmac "$SECRET"
    const SIGNATURE: &str = "2c762abc61e4878f1d9dd3315eb87047d2ec24848d085d38baecb945c4dc04b8";

    fn verifier() -> Verifier {
        Verifier::new(SECRET.into(), Duration::from_secs(300)).unwrap()
    }

    fn verify(body: &str, signature: &str, timestamp: &str, now: &str) -> Result<(), Rejection> {
        let verifier = verifier();
        let mut headers = HeaderMap::new();

        headers.insert("x-webhook-signature", signature.parse().unwrap());
        headers.insert("x-webhook-timestamp", timestamp.parse().unwrap());
        verifier.verify(&headers, body.as_bytes(), now.parse().unwrap())
    }

    fn sign(body: &str) -> String {
        let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        hex::encode(mac.chain_update(body).finalize().into_bytes())
    }

    #[test]
    fn a_genuine_delivery_is_accepted_for_five_minutes() {
        for now in [
            "2026-03-01T09:05:00Z",
            "2026-03-01T09:10:00Z",
            "2026-03-01T09:00:00Z",
        ] {
            assert_eq!(verify(BODY, SIGNATURE, SENT, now), Ok(()), "{now}");
        }

        for now in ["2026-03-01T09:10:00.001Z", "2026-03-01T08:59:59.999Z"] {
            assert_eq!(
                verify(BODY, SIGNATURE, SENT, now),
                Err(Rejection::StaleTimestamp),
                "{now}"
            );
        }
    }

    #[test]
    fn any_other_signature_is_rejected() {
        let now = "2026-03-01T09:05:00Z";
        let respaced = BODY.replace(":{}", ": {}");

        assert_eq!(
            verify(&respaced, SIGNATURE, SENT, now),
            Err(Rejection::WrongSignature)
        );
        assert_eq!(
            verify(BODY, &sign("{}"), SENT, now),
            Err(Rejection::WrongSignature)
        );
        assert_eq!(
            verify(BODY, &SIGNATURE[..62], SENT, now),
            Err(Rejection::WrongSignature)
        );

        for malformed in [
            "",
            "00",
            &SIGNATURE.to_uppercase(),
            &format!("sha256={SIGNATURE}"),
        ] {
            assert_eq!(
                verify(BODY, malformed, SENT, now),
                Err(Rejection::WrongSignature),
                "{malformed}"
            );
        }

        let verifier = verifier();
        let unsigned = verifier.verify(&HeaderMap::new(), BODY.as_bytes(), now.parse().unwrap());
        assert_eq!(unsigned, Err(Rejection::MissingSignature));
    }

    #[test]
    fn during_an_overlap_the_old_secret_is_accepted_by_the_standard_signature() {
        let verifier = verifier();
        let verify = |entries: &str| {
            let mut headers = HeaderMap::new();
            let values = [
                ("x-webhook-signature", "00"),
                ("x-webhook-timestamp", SENT),
                ("webhook-id", "d"),
                ("webhook-timestamp", "1"),
            ];
            for (name, value) in values.into_iter().chain([("webhook-signature", entries)]) {
                headers.insert(name, value.parse().unwrap());
            }

            verifier.verify(&headers, BODY.as_bytes(), SENT.parse().unwrap())
        };

        // printf %s "d.1.$BODY" | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        // -binary | base64
        let old = "ouGTpqoyXLxy2JpOMDQ4RqQQvxBesW2mheApsr3Fq80=";
        assert_eq!(verify(&format!("v1,AAAA v1,{old} v1a,BBBB")), Ok(()));

        for wrong in [
            format!("v1a,{old}"),
            old.to_owned(),
            format!("v1,AAAA v1a,{old}"),
            String::new(),
        ] {
            assert_eq!(verify(&wrong), Err(Rejection::WrongSignature), "{wrong}");
        }
    }

    #[test]
    fn the_timestamp_header_must_equal_the_signed_timestamp() {
        let now = "2026-03-01T12:00:00Z";
        assert_eq!(
            verify(BODY, SIGNATURE, now, now),
            Err(Rejection::UnsignedTimestamp)
        );
        assert_eq!(verify("[]", &sign("[]"), now, now), Ok(()));
        assert_eq!(
            verify(BODY, SIGNATURE, "yesterday", now),
            Err(Rejection::MissingTimestamp)
        );
    }

    #[test]
    fn a_line_describes_the_delivery_by_its_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("x-webhook-event", "transcode.failed".parse().unwrap());
        headers.insert("x-webhook-attempt", "2".parse().unwrap());
        let reason = Some(Rejection::StaleTimestamp);
        let line = ReceivedLine::new(&headers, BODY.as_bytes(), reason).to_string();
        let expected = r#"{"verified":false,"event":"transcode.failed","webhook_id":null,"delivery":null,"attempt":2,"timestamp":null,"reason":"stale_timestamp"}"#;
        assert_eq!(line, expected);

        headers.insert("x-webhook-test", "true".parse().unwrap());
        let shown = |data: &str| {
            let body = format!(r#"{{"data":{data}}}"#);
            let line = ReceivedLine::new(&headers, body.as_bytes(), None).to_string();
            line.split_once(r#""test":true,"#).unwrap().1.to_owned()
        };
        let escaped = shown("{\"id\": 1, \"title\": \"\u{9b}31m\"}");
        assert_eq!(escaped, r#""data":{"id":1,"title":"\u009b31m"}}"#);
        let long = shown(&format!("{{\"title\": \"{}\"}}", "é".repeat(600)));
        assert!(
            long.ends_with("é…\"}") && long.chars().count() < 520,
            "{long}"
        );
    }
}
