//! Publishes the public keys of webhooks. Anybody may read them, so they are served from memory: no
//! number of readers denies them to others or costs the store more than one statement at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::response::Response;
use parking_lot::Mutex;
use serde::Serialize;
use uuid::Uuid;

use super::query::Parameters;
use super::strict_query::reject_unknown;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::http::short_json;
use crate::manage::{Manage, PublicKey, PublicKeyCursor};

/// The path of the public keys. Not below the base path, like other well-known documents (RFC
/// 8615).
pub const PATH: &str = "/.well-known/walhook-keys.json";
/// A new key is published this much later, at the latest.
const REFRESH: Duration = Duration::from_secs(1);
/// Reading the keys takes at most one part in so many of the time of one connection.
const READ_SHARE: u32 = 20;
/// The most keys that one page lists: about 150 kB of JSON.
const PAGE: usize = 1_000;

#[derive(Serialize)]
struct Body {
    keys: Vec<KeyBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct KeyBody {
    id: String,
    algorithm: &'static str,
    public_key: String,
    expires_at: Option<String>,
}

impl From<&PublicKey> for KeyBody {
    fn from(key: &PublicKey) -> Self {
        KeyBody {
            id: key.id(),
            algorithm: "ed25519",
            public_key: key.text(),
            expires_at: key.expires_at.map(millis),
        }
    }
}

/// Serves the keys of one webhook, whose id its receiver knows, or those of all, which do not name
/// their webhooks.
pub async fn read(
    State(published): State<PublishedKeys>,
    RawQuery(query): RawQuery,
    mut parameters: Parameters,
) -> Result<Response, Problem> {
    reject_unknown(&query.unwrap_or_default(), &["webhook", "cursor"])?;
    let webhook = parameters.optional("webhook", |text| {
        text.parse::<Uuid>()
            .map_err(|_| "expected a UUID".to_owned())
    });

    let after = parameters.position("cursor", |text| {
        PublicKeyCursor::parse(text).ok_or_else(|| "is not a cursor of this list".to_owned())
    });

    parameters.finish()?;
    let keys = published.current().await?;
    let body = match webhook {
        Some(webhook) => body(of(webhook, &keys), None),
        None => page(&keys, &after.unwrap_or_default()),
    };

    Ok(short_json(body))
}

/// The keys of a webhook: the present one, and the previous one during an overlap.
fn of(webhook: Uuid, keys: &[PublicKey]) -> Vec<&PublicKey> {
    let mut own: Vec<_> = keys.iter().filter(|key| key.webhook == webhook).collect();
    own.sort_by_key(|key| key.expires_at.is_some());
    own
}

/// The page after the cursor. The order of the keys reveals nothing about webhooks.
fn page(keys: &[PublicKey], after: &PublicKeyCursor) -> Vec<u8> {
    let start = keys.partition_point(|key| key.cursor() <= *after);
    let rest = &keys[start..];
    let page = &rest[..rest.len().min(PAGE)];
    let last = page.last().filter(|_| rest.len() > PAGE);

    body(page, last.map(PublicKey::cursor))
}

fn body<'a>(
    keys: impl IntoIterator<Item = &'a PublicKey>,
    next: Option<PublicKeyCursor>,
) -> Vec<u8> {
    let keys = keys.into_iter().map(KeyBody::from).collect();
    let body = Body {
        keys,
        next_cursor: next.map(|cursor| cursor.to_string()),
    };

    serde_json::to_vec(&body).expect("strings can be serialized")
}

/// The keys in memory, which one request at a time reads again.
#[derive(Clone)]
pub struct PublishedKeys {
    manage: Manage,
    last: Arc<Mutex<Read>>,
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Read {
    /// In the order of the keys. None until they have been read once.
    keys: Option<Arc<[PublicKey]>>,
    /// When to read them again.
    due_at: Instant,
}

impl PublishedKeys {
    pub fn new(manage: Manage) -> PublishedKeys {
        let read = Read {
            keys: None,
            due_at: Instant::now(),
        };

        PublishedKeys {
            manage,
            last: Arc::new(Mutex::new(read)),
            reading: Arc::default(),
        }
    }

    fn last(&self) -> Read {
        self.last.lock().clone()
    }

    /// Returns the keys, after reading them again if they are old. Those that cannot be read again
    /// are still served.
    async fn current(&self) -> Result<Arc<[PublicKey]>, Problem> {
        let Read { keys, due_at } = self.last();
        let turn = match &keys {
            Some(keys) if due_at > Instant::now() => return Ok(keys.clone()),
            Some(keys) => match self.reading.try_lock() {
                Ok(turn) => turn,
                Err(_) => return Ok(keys.clone()),
            },
            None => self.reading.lock().await,
        };

        // Another request may have read them in the meantime.
        let Read { keys, due_at } = self.last();
        if due_at <= Instant::now() {
            self.read(keys).await;
        }

        drop(turn);
        self.last().keys.ok_or_else(Problem::unavailable)
    }

    async fn read(&self, known: Option<Arc<[PublicKey]>>) {
        let began_at = Instant::now();
        let keys = match self.manage.public_keys().await {
            Ok(keys) => Some(keys.into()),
            Err(error) => {
                // Logs the error.
                let _ = Problem::from(error);
                known
            }
        };

        let pause = REFRESH.max(began_at.elapsed() * READ_SHARE);
        *self.last.lock() = Read {
            keys,
            due_at: Instant::now() + pause,
        };
    }
}
