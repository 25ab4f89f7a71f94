//! The platform's keys where it publishes them: read when they are needed, kept, and kept for a while when the next read fails.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::problem::Problem;
use crate::telemetry::Activity;
use crate::tls;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const LARGEST_KEY_SET: usize = 256 << 10;
/// A key set is a handful of keys: those in use and the next.
const MOST_KEYS: usize = 100;

/// How old keys may be.
#[derive(Clone, Copy)]
struct Ages {
    /// Keys are read again at this age, so that one that was withdrawn ends.
    fresh: Duration,
    /// A token of an unknown key is cheap to make and must not cause more reads than this.
    between_reads: Duration,
    /// Keys that cannot be read again are used until then: one that was withdrawn meanwhile could not be noticed.
    longest: Duration,
}

const FETCHED: Ages = Ages {
    fresh: Duration::from_secs(600),
    between_reads: Duration::from_secs(60),
    longest: Duration::from_secs(3_600),
};
/// A file costs nobody a request.
const READ: Ages = Ages { fresh: Duration::from_secs(10), between_reads: Duration::from_secs(1), ..FETCHED };

#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    #[error("auth.jwt.jwks_file: cannot read {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("auth.jwt.jwks_file: {path}: {detail}")]
    KeySet { path: String, detail: String },
    #[error("auth.jwt.jwks_url: {0}")]
    Client(String),
    #[error("auth.jwt has no keys to verify with: set jwks_url, jwks_file or secret")]
    NoKeys,
}

enum Place {
    Url { url: String, client: reqwest::Client },
    File(PathBuf),
}

pub struct Published {
    place: Place,
    ages: Ages,
    known: RwLock<Option<Known>>,
    /// When a read was last begun. Held by the one who reads.
    begun: Mutex<Option<Instant>>,
    reading: Activity,
}

#[derive(Clone)]
struct Known {
    keys: Arc<[Key]>,
    read: Instant,
}

impl Published {
    /// Fetched from a URL when they are first needed.
    pub fn at_url(url: &str) -> Result<Published, JwtError> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::client(tls::system_roots()))
            // A proxy named by the environment could answer in the key server's place.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_TIMEOUT)
            .build()
            .map_err(|error| JwtError::Client(error.to_string()))?;
        Ok(Published::new(Place::Url { url: url.to_owned(), client }, FETCHED, None))
    }

    /// Read from a file now, and again where it has changed.
    pub fn in_file(path: &Path) -> Result<Published, JwtError> {
        let shown = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| JwtError::Unreadable { path: shown.clone(), source })?;
        let keys = key_set(&text).map_err(|detail| JwtError::KeySet { path: shown, detail })?;
        let known = Known { keys, read: Instant::now() };
        Ok(Published::new(Place::File(path.to_owned()), READ, Some(known)))
    }

    fn new(place: Place, ages: Ages, known: Option<Known>) -> Published {
        Published {
            place,
            ages,
            known: RwLock::new(known),
            begun: Mutex::new(None),
            reading: Activity::new("reading the keys of auth.jwt"),
        }
    }

    fn setting(&self) -> &'static str {
        match self.place {
            Place::Url { .. } => "auth.jwt.jwks_url",
            Place::File(_) => "auth.jwt.jwks_file",
        }
    }

    /// The keys, read again where they are old or `suffice` says that they lack one.
    pub async fn keys(&self, suffice: impl Fn(&[Key]) -> bool) -> Result<Arc<[Key]>, Problem> {
        let Ages { fresh, between_reads, longest } = self.ages;
        let good = |known: &Known| known.read.elapsed() < fresh && suffice(&known.keys);
        if let Some(known) = self.known().filter(good) {
            return Ok(known.keys);
        }
        let mut begun = self.begun.lock().await;
        // Another request may have read them while this one waited.
        let known = self.known();
        let may_read = begun.is_none_or(|begun| begun.elapsed() >= between_reads);
        if may_read && !known.as_ref().is_some_and(good) {
            *begun = Some(Instant::now());
            match self.read().await {
                Ok(keys) => {
                    self.reading.succeeded();
                    let known = Known { keys, read: Instant::now() };
                    *self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(known);
                }
                Err(error) => self.reading.failed(&format_args!(
                    "{}: {error}. The known keys are used until they are {longest:?} old",
                    self.setting()
                )),
            }
        }
        let known = self.known().filter(|known| known.read.elapsed() < longest);
        known.map(|known| known.keys).ok_or_else(Problem::keys_unavailable)
    }

    fn known(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    async fn read(&self) -> Result<Arc<[Key]>, String> {
        match &self.place {
            Place::Url { url, client } => fetch(client, url).await,
            Place::File(path) => key_set(&tokio::fs::read(path).await.map_err(|error| error.to_string())?),
        }
    }
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<Arc<[Key]>, String> {
    let answer = client.get(url).send().await.map_err(|error| error.without_url().to_string())?;
    if !answer.status().is_success() {
        return Err(format!("it answered {}", answer.status()));
    }
    let mut body = answer.bytes_stream();
    let mut text = Vec::new();
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk.map_err(|error| error.without_url().to_string())?);
        if text.len() > LARGEST_KEY_SET {
            return Err(format!("it is larger than {LARGEST_KEY_SET} bytes"));
        }
    }
    key_set(&text)
}

/// A key with the one algorithm that it is for: the header of a token cannot choose another.
pub struct Key {
    pub id: Option<String>,
    pub algorithm: Algorithm,
    pub decoding: DecodingKey,
}

impl Key {
    /// Whether a token that names this key, or none, may be signed by it.
    pub fn may_be(&self, named: Option<&str>) -> bool {
        match (&self.id, named) {
            (Some(id), Some(named)) => id == named,
            _ => true,
        }
    }
}

/// The keys of a JSON Web Key Set (RFC 7517) that can verify; there must be one at least.
fn key_set(text: &[u8]) -> Result<Arc<[Key]>, String> {
    #[derive(Deserialize)]
    struct KeySet {
        keys: Vec<Value>,
    }
    let set: KeySet = serde_json::from_slice(text).map_err(|error| format!("not a JSON Web Key Set: {error}"))?;
    // A set may hold what others are meant to read.
    let keys: Arc<[Key]> = set.keys.into_iter().take(MOST_KEYS).filter_map(key).collect();
    match keys.is_empty() {
        true => Err("no key for RS256, ES256, EdDSA or their stronger forms is in the key set".to_owned()),
        false => Ok(keys),
    }
}

fn key(value: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let algorithm = algorithm(&jwk)?;
    let decoding = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key { id: jwk.common.key_id, algorithm, decoding })
}

/// By the key's kind, and among RSA's by what the key says of itself. A shared secret has no place in a published set.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    let stated = jwk.common.key_algorithm;
    let only =
        |algorithm: Algorithm, name: KeyAlgorithm| stated.is_none_or(|stated| stated == name).then_some(algorithm);
    match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Some(match stated {
            None | Some(KeyAlgorithm::RS256) => Algorithm::RS256,
            Some(KeyAlgorithm::RS384) => Algorithm::RS384,
            Some(KeyAlgorithm::RS512) => Algorithm::RS512,
            Some(KeyAlgorithm::PS256) => Algorithm::PS256,
            Some(KeyAlgorithm::PS384) => Algorithm::PS384,
            Some(KeyAlgorithm::PS512) => Algorithm::PS512,
            Some(_) => return None,
        }),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => only(Algorithm::ES256, KeyAlgorithm::ES256),
            EllipticCurve::P384 => only(Algorithm::ES384, KeyAlgorithm::ES384),
            _ => None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            only(Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::json;

    use super::*;

    fn key_set_of(count: usize) -> String {
        let key = r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#;
        format!(r#"{{"keys":[{}]}}"#, vec![key; count].join(","))
    }

    /// May be fetched again at once.
    fn at(url: &str, longest: Duration) -> Published {
        let ages = Ages { between_reads: Duration::ZERO, longest, ..FETCHED };
        Published { ages, ..Published::at_url(url).unwrap() }
    }

    async fn serve(answer: impl Fn() -> (StatusCode, String) + Clone + Send + Sync + 'static) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let handler = async move || answer();
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(handler))).await });
        url
    }

    #[tokio::test]
    async fn keys_that_cannot_be_fetched_again_end() {
        let works = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let told = works.clone();
        let url = serve(move || match told.load(Ordering::SeqCst) {
            true => (StatusCode::OK, key_set_of(1)),
            false => (StatusCode::BAD_GATEWAY, String::new()),
        })
        .await;
        for (longest, is_kept) in [(FETCHED.longest, true), (Duration::from_nanos(1), false)] {
            works.store(true, Ordering::SeqCst);
            let published = at(&url, longest);
            let first = published.keys(|_| true).await;
            assert_eq!(first.is_ok(), is_kept, "just fetched");
            works.store(false, Ordering::SeqCst);
            assert_eq!(published.keys(|keys| keys.len() > 1).await.is_ok(), is_kept);
        }
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_what_is_wrong_with_it_ends_nothing_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        assert!(matches!(Published::in_file(Path::new("/nowhere")), Err(JwtError::Unreadable { .. })));
        write("no keys");
        assert!(matches!(Published::in_file(file.path()), Err(JwtError::KeySet { .. })));
        write(&key_set_of(1));
        let ages = Ages { fresh: Duration::ZERO, between_reads: Duration::ZERO, ..READ };
        let published = Published { ages, ..Published::in_file(file.path()).unwrap() };
        let count = async || published.keys(|_| true).await.unwrap().len();
        assert_eq!(count().await, 1);
        write(&key_set_of(2));
        assert_eq!(count().await, 2);
        write("half of it");
        assert_eq!(count().await, 2);
    }

    #[tokio::test]
    async fn keys_are_fetched_anew_when_one_is_missing_and_kept_when_that_fails() {
        static FETCHES: AtomicUsize = AtomicUsize::new(0);
        // One key, then a fault, then two keys.
        let handler = || match FETCHES.fetch_add(1, Ordering::SeqCst) {
            0 => (StatusCode::OK, key_set_of(1)),
            1 => (StatusCode::BAD_GATEWAY, String::new()),
            _ => (StatusCode::OK, key_set_of(2)),
        };
        let url = serve(handler).await;
        let published = at(&url, FETCHED.longest);
        let count = async |wanted: usize| published.keys(|keys| keys.len() >= wanted).await.unwrap().len();
        assert_eq!((count(1).await, count(1).await), (1, 1));
        assert_eq!(FETCHES.load(Ordering::SeqCst), 1, "what suffices is not fetched again");
        assert_eq!(count(2).await, 1, "what was known is kept");
        assert_eq!(count(2).await, 2);
        assert_eq!(FETCHES.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn a_set_without_a_key_that_verifies_is_refused() {
        let secret = json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" });
        let rsa = json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" });
        let with = |name: &str, value: &str| {
            let mut key = rsa.clone();
            key[name] = value.into();
            key
        };
        let set = |keys: &[&Value]| key_set(json!({ "keys": keys }).to_string().as_bytes()).map(|keys| keys.len());
        assert_eq!(set(&[&rsa, &secret, &json!({ "kty": "new" })]), Ok(1));
        for unfit in [secret.clone(), with("use", "enc"), with("alg", "HS256"), with("alg", "RSA-OAEP"), json!(7)] {
            assert!(set(&[&unfit]).is_err(), "{unfit}");
        }
        assert!(key_set(b"[]").is_err() && key_set(b"<html>").is_err());
    }
}
