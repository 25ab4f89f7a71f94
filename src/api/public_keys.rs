//! Publishes the public keys of webhooks. Anybody may read them, so they are served from memory: no
//! number of readers denies them to others or costs the store more than one statement at a time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use uuid::Uuid;

use super::query::Parameters;
use super::strict_query::reject_unknown;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::http::{Document, short_json};
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
    headers: HeaderMap,
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
    let published = published.current().await?;
    Ok(match webhook {
        Some(webhook) => short_json(body(published.of(webhook), None)),
        None => published
            .page(&after.unwrap_or_default())
            .response(&headers),
    })
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

/// All public keys, as they were read last.
#[derive(Debug)]
struct Published {
    /// In the order of the keys, which reveals nothing about webhooks.
    keys: Vec<PublicKey>,
    /// Each page with its last key.
    pages: Vec<(PublicKeyCursor, Document)>,
    /// The page after the last one.
    end: Document,
}

impl Published {
    fn new(keys: Vec<PublicKey>) -> Published {
        let count = keys.len().div_ceil(PAGE);
        let page = |(index, keys): (usize, &[PublicKey])| {
            let last = keys.last().map(PublicKey::cursor)?;
            let next = Some(last.clone()).filter(|_| index + 1 < count);
            Some((last, Document::json(body(keys, next))))
        };

        Published {
            pages: keys.chunks(PAGE).enumerate().filter_map(page).collect(),
            keys,
            end: Document::json(body([], None)),
        }
    }

    /// The keys of a webhook: the present one, and the previous one during an overlap. A search of
    /// all keys takes less time than the response.
    fn of(&self, webhook: Uuid) -> Vec<&PublicKey> {
        let keys = self.keys.iter();
        let mut found: Vec<_> = keys.filter(|key| key.webhook == webhook).collect();

        found.sort_by_key(|key| key.expires_at.is_some());
        found
    }

    /// The page with the first key after the cursor. It may begin before the cursor, if keys were
    /// removed since that was made.
    fn page(&self, after: &PublicKeyCursor) -> &Document {
        let index = self.pages.partition_point(|(last, _)| last <= after);
        self.pages.get(index).map_or(&self.end, |(_, page)| page)
    }
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
    /// None until they have been read once.
    keys: Option<Arc<Published>>,
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
        self.last
            .lock()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Returns the keys, after reading them again if they are old. Those that cannot be read again
    /// are still served.
    async fn current(&self) -> Result<Arc<Published>, Problem> {
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

    async fn read(&self, known: Option<Arc<Published>>) {
        let began_at = Instant::now();
        let keys = match self.manage.public_keys().await {
            // On a thread of its own: compressing takes milliseconds for each page.
            Ok(keys) => tokio::task::spawn_blocking(move || Arc::new(Published::new(keys)))
                .await
                .ok()
                .or(known),
            Err(error) => {
                // Logs the error.
                let _ = Problem::from(error);
                known
            }
        };

        let pause = REFRESH.max(began_at.elapsed() * READ_SHARE);
        *self.last.lock().expect("no holder of this lock panics") = Read {
            keys,
            due_at: Instant::now() + pause,
        };
    }
}
