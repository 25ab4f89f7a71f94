//! The platform's keys where it publishes them: fetched when they are needed, kept, and kept on when the next fetch fails.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::Mutex;

use super::jwt::{Key, key_set};
use super::problem::Problem;
use crate::telemetry::Condition;
use crate::tls;

/// Keys are fetched again at this age, so that one that was withdrawn ends.
const FRESH: Duration = Duration::from_secs(600);
/// A token of an unknown key is cheap to make: it shall not make us fetch more often than this.
const BETWEEN_FETCHES: Duration = Duration::from_secs(60);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const LARGEST_KEY_SET: usize = 256 << 10;

pub struct Published {
    url: String,
    client: reqwest::Client,
    known: RwLock<Option<Known>>,
    /// When a fetch was last begun. Held by the one who fetches.
    begun: Mutex<Option<Instant>>,
    between_fetches: Duration,
    failing: Condition,
}

#[derive(Clone)]
struct Known {
    keys: Arc<[Key]>,
    fetched: Instant,
}

impl Published {
    pub fn new(url: &str) -> Result<Published, String> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::client().map_err(|error| error.to_string())?)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(FETCH_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Published {
            url: url.to_owned(),
            client,
            known: RwLock::new(None),
            begun: Mutex::new(None),
            between_fetches: BETWEEN_FETCHES,
            failing: Condition::new(),
        })
    }

    /// The keys, fetched anew where they are old or `suffice` says that they lack one.
    pub async fn keys(&self, suffice: impl Fn(&[Key]) -> bool) -> Result<Arc<[Key]>, Problem> {
        let good = |known: &Known| known.fetched.elapsed() < FRESH && suffice(&known.keys);
        if let Some(known) = self.known().filter(good) {
            return Ok(known.keys);
        }
        let mut begun = self.begun.lock().await;
        // Another request may have fetched them while this one waited.
        let known = self.known();
        let may_fetch = begun.is_none_or(|begun| begun.elapsed() >= self.between_fetches);
        if may_fetch && !known.as_ref().is_some_and(good) {
            *begun = Some(Instant::now());
            match self.fetch().await {
                Ok(keys) => {
                    if self.failing.ends() {
                        tracing::info!("auth.jwt.jwks_url: the keys can be fetched again");
                    }
                    let known = Known { keys, fetched: Instant::now() };
                    *self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(known);
                }
                Err(error) if self.failing.begins() => {
                    tracing::warn!(error, "auth.jwt.jwks_url: the keys cannot be fetched; those known are used");
                }
                Err(_) => {}
            }
        }
        self.known().map(|known| known.keys).ok_or_else(Problem::keys_unavailable)
    }

    fn known(&self) -> Option<Known> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    async fn fetch(&self) -> Result<Arc<[Key]>, String> {
        let answer = self.client.get(&self.url).send().await.map_err(|error| error.without_url().to_string())?;
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;

    fn key_set_of(count: usize) -> String {
        let key = r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#;
        format!(r#"{{"keys":[{}]}}"#, vec![key; count].join(","))
    }

    #[tokio::test]
    async fn keys_are_fetched_anew_when_one_is_missing_and_kept_when_that_fails() {
        static FETCHES: AtomicUsize = AtomicUsize::new(0);
        // One key, then a fault, then two keys.
        let handler = async || match FETCHES.fetch_add(1, Ordering::SeqCst) {
            0 => (StatusCode::OK, key_set_of(1)),
            1 => (StatusCode::BAD_GATEWAY, String::new()),
            _ => (StatusCode::OK, key_set_of(2)),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(handler))).await });
        let published = Published { between_fetches: Duration::ZERO, ..Published::new(&url).unwrap() };
        let count = async |wanted: usize| published.keys(|keys| keys.len() >= wanted).await.unwrap().len();
        assert_eq!((count(1).await, count(1).await), (1, 1));
        assert_eq!(FETCHES.load(Ordering::SeqCst), 1, "what suffices is not fetched again");
        assert_eq!(count(2).await, 1, "what was known is kept");
        assert_eq!(count(2).await, 2);
        assert_eq!(FETCHES.load(Ordering::SeqCst), 3);
    }
}
