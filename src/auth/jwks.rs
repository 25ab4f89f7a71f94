//! The platform's public keys (JWKS), which one task reads: regularly, and when a token names a key
//! that is not known. They are used for a limited time when they cannot be read again.
//!
//! `jsonwebtoken` parses the keys. No crate for fetching them bounds size, rate and age as this
//! module does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::http::problem::Problem;
use crate::telemetry::Activity;
use crate::tls;

const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_KEY_SET_BYTES: usize = 256 << 10;
/// A key set is a handful of keys: those in use and the next.
const MAX_KEYS: usize = 100;

/// How old cached keys may be.
#[derive(Clone, Copy)]
struct Ages {
    /// At this age, keys are read again, so that withdrawn keys stop working.
    fresh: Duration,
    /// Minimum time between reads: anyone can send tokens with unknown keys.
    between_reads: Duration,
    /// The same while no keys are known that may be used, and every token is rejected.
    without_keys: Duration,
    /// Maximum age of keys that cannot be read again: a withdrawn key would go unnoticed longer.
    longest: Duration,
}

const FETCHED: Ages = Ages {
    fresh: Duration::from_secs(600),
    between_reads: Duration::from_secs(60),
    without_keys: Duration::from_secs(5),
    longest: Duration::from_secs(3_600),
};
/// Reading a file is cheap.
const READ: Ages = Ages {
    fresh: Duration::from_secs(10),
    between_reads: Duration::from_secs(1),
    without_keys: Duration::from_secs(1),
    ..FETCHED
};

#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    #[error("auth.jwt.jwks_file: cannot read {path}: {source}")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    #[error("auth.jwt.jwks_file: {path}: {detail}")]
    KeySet { path: String, detail: String },
    #[error("auth.jwt.jwks_url: {0}")]
    Client(String),
    #[error("auth.jwt has no keys to verify with: set jwks_url, jwks_file or secret")]
    NoKeys,
}

enum Location {
    Url {
        url: String,
        client: reqwest::Client,
    },
    File(PathBuf),
}

/// A key set that the platform publishes, as it was read last.
pub struct Published {
    cache: watch::Receiver<KeyCache>,
    /// Makes the task read the keys again.
    wanted: Arc<Notify>,
    longest: Duration,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct KeyCache {
    keys: Option<Arc<[Key]>>,
    /// When these keys were read.
    read_at: Instant,
    /// The keys are not read again before.
    next_read: Instant,
}

impl KeyCache {
    /// Returns the keys, unless they are older than `longest`.
    fn keys(&self, longest: Duration) -> Option<&Arc<[Key]>> {
        self.keys
            .as_ref()
            .filter(|_| self.read_at.elapsed() < longest)
    }
}

impl Published {
    /// Keys at a URL, fetched when they are first needed.
    pub fn at_url(url: &str) -> Result<Published, JwtError> {
        Published::at_url_with(url, FETCHED)
    }

    fn at_url_with(url: &str, ages: Ages) -> Result<Published, JwtError> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::client(tls::system_roots()))
            // A proxy named by the environment could replace the keys.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_TIMEOUT)
            .build()
            .map_err(|error| JwtError::Client(error.to_string()))?;

        let location = Location::Url {
            url: url.to_owned(),
            client,
        };

        Ok(Published::start(location, ages, None))
    }

    /// Keys in a file, read now, and again when it may have changed.
    pub fn in_file(path: &Path) -> Result<Published, JwtError> {
        Published::in_file_with(path, READ)
    }

    fn in_file_with(path: &Path, ages: Ages) -> Result<Published, JwtError> {
        let shown = path.display().to_string();
        let text = std::fs::read(path).map_err(|source| JwtError::Unreadable {
            path: shown.clone(),
            source,
        })?;

        let keys = key_set(&text).map_err(|detail| JwtError::KeySet {
            path: shown,
            detail,
        })?;

        Ok(Published::start(
            Location::File(path.to_owned()),
            ages,
            Some(keys),
        ))
    }

    fn start(location: Location, ages: Ages, keys: Option<Arc<[Key]>>) -> Published {
        let now = Instant::now();
        let (sender, cache) = watch::channel(KeyCache {
            keys,
            read_at: now,
            next_read: now,
        });

        let wanted = Arc::new(Notify::new());
        let task = tokio::spawn(refresh(location, ages, sender, wanted.clone()));

        Published {
            cache,
            wanted,
            longest: ages.longest,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Returns the keys. Reads them again first if `suffice` returns false.
    pub async fn keys(&self, suffice: impl Fn(&[Key]) -> bool) -> Result<Arc<[Key]>, Problem> {
        let mut cache = self.cache.clone();
        let present = cache.borrow_and_update().clone();
        let suffices = present.keys(self.longest).is_some_and(|keys| suffice(keys));

        if !suffices && present.next_read <= Instant::now() {
            self.wanted.notify_one();
            let _ = cache.changed().await;
        }

        let keys = cache.borrow().keys(self.longest).cloned();
        keys.ok_or_else(Problem::keys_unavailable)
    }
}

/// Reads the keys again when they are old, and when they are wanted. Without keys, only when they
/// are wanted.
async fn refresh(
    location: Location,
    ages: Ages,
    cache: watch::Sender<KeyCache>,
    wanted: Arc<Notify>,
) {
    let reading = Activity::new("reading the keys of auth.jwt");
    let has_keys = || cache.borrow().keys(ages.longest).is_some();
    let mut refresh_at = Instant::now() + ages.fresh;

    loop {
        if has_keys() {
            let _ = timeout_at(refresh_at, wanted.notified()).await;
        } else {
            wanted.notified().await;
        }

        let read = location.read().await;
        let now = Instant::now();
        let interval = match &read {
            Ok(_) => ages.between_reads,
            Err(_) if has_keys() => ages.between_reads,
            Err(_) => ages.without_keys,
        };

        match &read {
            Ok(_) => reading.succeeded(),
            Err(error) => reading.failed(&format_args!(
                "{}: {error}. The known keys are used until they are {:?} old",
                location.setting(),
                ages.longest
            )),
        }

        refresh_at = now + read.as_ref().map_or(interval, |_| ages.fresh);
        cache.send_modify(|cache| {
            cache.next_read = now + interval;

            if let Ok(keys) = read {
                cache.keys = Some(keys);
                cache.read_at = now;
            }
        });

        sleep_until(now + interval).await;
    }
}

impl Location {
    fn setting(&self) -> &'static str {
        match self {
            Location::Url { .. } => "auth.jwt.jwks_url",
            Location::File(_) => "auth.jwt.jwks_file",
        }
    }

    async fn read(&self) -> Result<Arc<[Key]>, String> {
        match self {
            Location::Url { url, client } => fetch(client, url).await,
            Location::File(path) => {
                let text = tokio::fs::read(path)
                    .await
                    .map_err(|error| error.to_string())?;
                key_set(&text)
            }
        }
    }
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<Arc<[Key]>, String> {
    let answer = client
        .get(url)
        .send()
        .await
        .map_err(|error| error.without_url().to_string())?;
    if !answer.status().is_success() {
        return Err(format!("the response is {}", answer.status()));
    }

    let body = Limited::new(reqwest::Body::from(answer), MAX_KEY_SET_BYTES);
    let text = body.collect().await.map_err(|error| error.to_string())?;
    key_set(&text.to_bytes())
}

/// A key with the one algorithm that it is for: the header of a token cannot choose another.
pub struct Key {
    pub id: Option<String>,
    pub algorithm: Algorithm,
    pub decoding: DecodingKey,
}

impl Key {
    /// Whether this key may have signed a token whose header names the key `named`, or none.
    pub fn may_be(&self, named: Option<&str>) -> bool {
        match (&self.id, named) {
            (Some(id), Some(named)) => id == named,
            _ => true,
        }
    }
}

/// Parses the keys of a JSON Web Key Set (RFC 7517) that can verify signatures. There must be at
/// least one.
fn key_set(text: &[u8]) -> Result<Arc<[Key]>, String> {
    #[derive(Deserialize)]
    struct KeySet {
        keys: Vec<Value>,
    }
    let set: KeySet =
        serde_json::from_slice(text).map_err(|error| format!("not a JSON Web Key Set: {error}"))?;

    // A set may contain keys for other purposes.
    let keys: Arc<[Key]> = set
        .keys
        .into_iter()
        .take(MAX_KEYS)
        .filter_map(key)
        .collect();
    match keys.is_empty() {
        true => Err(
            "the key set contains no key for RS256, ES256, EdDSA or their stronger variants"
                .to_owned(),
        ),
        false => Ok(keys),
    }
}

fn key(value: Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if jwk
        .common
        .public_key_use
        .as_ref()
        .is_some_and(|purpose| *purpose != PublicKeyUse::Signature)
    {
        return None;
    }

    let algorithm = algorithm(&jwk)?;
    let decoding = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key {
        id: jwk.common.key_id,
        algorithm,
        decoding,
    })
}

/// Returns the algorithm of a key, by its type and its `alg`. Shared secrets are ignored: a
/// published set must not contain them.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    let stated = jwk.common.key_algorithm;
    let only = |algorithm: Algorithm, name: KeyAlgorithm| {
        stated
            .is_none_or(|stated| stated == name)
            .then_some(algorithm)
    };

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

    /// Keys that may be fetched again immediately.
    const ALWAYS: Ages = Ages {
        between_reads: Duration::ZERO,
        without_keys: Duration::ZERO,
        ..FETCHED
    };

    async fn serve(
        answer: impl Fn() -> (StatusCode, String) + Clone + Send + Sync + 'static,
    ) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let handler = async move || answer();

        tokio::spawn(
            async move { axum::serve(listener, Router::new().route("/", get(handler))).await },
        );
        url
    }

    #[tokio::test]
    async fn keys_that_cannot_be_fetched_again_expire() {
        let is_up = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let seen = is_up.clone();
        let url = serve(move || match seen.load(Ordering::SeqCst) {
            true => (StatusCode::OK, key_set_of(1)),
            false => (StatusCode::BAD_GATEWAY, String::new()),
        })
        .await;

        for (longest, is_kept) in [(FETCHED.longest, true), (Duration::from_nanos(1), false)] {
            is_up.store(true, Ordering::SeqCst);
            let published = Published::at_url_with(&url, Ages { longest, ..ALWAYS }).unwrap();
            let first = published.keys(|_| true).await;

            assert_eq!(first.is_ok(), is_kept, "keys that were just fetched");
            is_up.store(false, Ordering::SeqCst);
            assert_eq!(published.keys(|keys| keys.len() > 1).await.is_ok(), is_kept);
        }
    }

    #[tokio::test]
    async fn a_key_file_is_read_again_and_known_keys_are_used_while_it_is_malformed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();

        assert!(matches!(
            Published::in_file(Path::new("/nowhere")),
            Err(JwtError::Unreadable { .. })
        ));
        write("no keys");
        assert!(matches!(
            Published::in_file(file.path()),
            Err(JwtError::KeySet { .. })
        ));
        write(&key_set_of(1));

        let ages = Ages {
            fresh: Duration::from_millis(1),
            ..ALWAYS
        };

        let published = Published::in_file_with(file.path(), ages).unwrap();
        assert_eq!(count(&published).await, 1);
        write(&key_set_of(2));
        wait_for(&published, 2).await;

        write("half of it");
        let with_a_third = published.keys(|keys| keys.len() > 2).await;
        assert_eq!(with_a_third.unwrap().len(), 2);
    }

    async fn count(published: &Published) -> usize {
        published.keys(|_| true).await.unwrap().len()
    }

    /// Waits until so many keys are known.
    async fn wait_for(published: &Published, wanted: usize) {
        while count(published).await != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn keys_are_fetched_again_only_if_one_is_missing() {
        static FETCHES: AtomicUsize = AtomicUsize::new(0);

        let url = serve(|| {
            let earlier = FETCHES.fetch_add(1, Ordering::SeqCst);
            (StatusCode::OK, key_set_of(1 + earlier))
        })
        .await;
        let published = Published::at_url_with(&url, ALWAYS).unwrap();

        assert_eq!((count(&published).await, count(&published).await), (1, 1));
        assert_eq!(FETCHES.load(Ordering::SeqCst), 1);

        let keys = published.keys(|keys| keys.len() > 1).await.unwrap();
        assert_eq!((keys.len(), FETCHES.load(Ordering::SeqCst)), (2, 2));
    }

    /// Responds to the first request at once, and to others when `gate` is opened.
    async fn serve_slowly(gate: Arc<tokio::sync::Semaphore>) -> (String, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let handler = async move || {
            if counted.fetch_add(1, Ordering::SeqCst) > 0 {
                gate.acquire().await.unwrap().forget();
            }

            key_set_of(1 + count.fetch_add(1, Ordering::SeqCst))
        };

        tokio::spawn(
            async move { axum::serve(listener, Router::new().route("/", get(handler))).await },
        );
        (url, requests)
    }

    #[tokio::test]
    async fn old_keys_are_used_while_they_are_read_again_and_a_dropped_request_does_not_stop_the_read()
     {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (url, requests) = serve_slowly(gate.clone()).await;
        let ages = Ages {
            fresh: Duration::from_millis(1),
            ..ALWAYS
        };

        let published = Published::at_url_with(&url, ages).unwrap();
        assert_eq!(count(&published).await, 1);

        while requests.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }

        assert_eq!(count(&published).await, 1, "the second read hangs");

        {
            let mut needs_new = std::pin::pin!(published.keys(|keys| keys.len() > 1));
            assert!(
                futures_util::poll!(&mut needs_new).is_pending(),
                "a request that needs a new key waits"
            );
        }

        assert_eq!(requests.load(Ordering::SeqCst), 2, "one read at a time");
        gate.add_permits(1);
        wait_for(&published, 2).await;
    }

    #[test]
    fn a_set_without_a_usable_key_is_rejected() {
        let secret = json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" });
        let rsa = json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" });
        let with = |name: &str, value: &str| {
            let mut key = rsa.clone();
            key[name] = value.into();
            key
        };

        let set = |keys: &[&Value]| {
            key_set(json!({ "keys": keys }).to_string().as_bytes()).map(|keys| keys.len())
        };

        assert_eq!(set(&[&rsa, &secret, &json!({ "kty": "new" })]), Ok(1));

        for unusable in [
            secret.clone(),
            with("use", "enc"),
            with("alg", "HS256"),
            with("alg", "RSA-OAEP"),
            json!(7),
        ] {
            assert!(set(&[&unusable]).is_err(), "{unusable}");
        }

        assert!(key_set(b"[]").is_err() && key_set(b"<html>").is_err());
    }
}
