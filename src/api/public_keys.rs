//! Publishes the public keys of webhooks. Anybody may read them, so they are served from memory: no
//! number of readers denies them to others or costs the store more than one statement at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::response::Response;
use parking_lot::Mutex;
use serde::Serialize;
use uuid::Uuid;

use super::query::QueryParameters;
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
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    reject_unknown(&query.unwrap_or_default(), &["webhook", "cursor"])?;
    let webhook = parameters.optional("webhook", |text| {
        text.parse::<Uuid>().or(Err("expected a UUID"))
    });
    let after = parameters.position("cursor", |text| {
        PublicKeyCursor::parse(text).ok_or("is not a cursor of this list")
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

/// The keys of one store or several in memory, which one request at a time reads again.
#[derive(Clone)]
pub struct PublishedKeys {
    stores: Arc<Mutex<BTreeMap<String, Published>>>,
    /// Those of all, in the order of the keys. None until they have been read once.
    keys: Arc<Mutex<Option<Arc<[PublicKey]>>>>,
    /// When to read them again. Locked while they are read.
    due_at: Arc<tokio::sync::Mutex<Instant>>,
}

/// The keys of one store.
#[derive(Default)]
struct Published {
    /// None while the store is not to be used.
    manage: Option<Manage>,
    keys: Vec<PublicKey>,
}

impl Default for PublishedKeys {
    fn default() -> Self {
        PublishedKeys {
            stores: Arc::default(),
            keys: Arc::default(),
            due_at: Arc::new(tokio::sync::Mutex::new(Instant::now())),
        }
    }
}

impl PublishedKeys {
    /// Publishes the keys of one store.
    pub fn of(manage: Manage) -> PublishedKeys {
        let published = PublishedKeys::default();
        published.set("", Some(manage));
        published
    }

    /// Reads the keys of a cell from this store from now on, or not again.
    pub fn set(&self, cell: &str, manage: Option<Manage>) {
        let mut stores = self.stores.lock();
        stores.entry(cell.to_owned()).or_default().manage = manage;
    }

    /// Returns the keys, after reading them again if they are old. Those that cannot be read again
    /// are still served.
    async fn current(&self) -> Result<Arc<[PublicKey]>, Problem> {
        let known = self.keys.lock().clone();
        let mut due_at = match (known, self.due_at.try_lock()) {
            (Some(keys), Err(_)) => return Ok(keys),
            (_, Ok(due_at)) => due_at,
            (None, Err(_)) => self.due_at.lock().await,
        };

        if *due_at <= Instant::now() {
            let began_at = Instant::now();

            self.read_again().await;

            *due_at = Instant::now() + REFRESH.max(began_at.elapsed() * READ_SHARE);
        }

        self.keys.lock().clone().ok_or_else(Problem::unavailable)
    }

    async fn read_again(&self) {
        let stores: Vec<(String, Manage)> = self
            .stores
            .lock()
            .iter()
            .filter_map(|(cell, published)| Some((cell.clone(), published.manage.clone()?)))
            .collect();
        let mut is_read = false;

        for (cell, manage) in stores {
            match manage.public_keys().await {
                Ok(keys) => {
                    self.stores.lock().entry(cell).or_default().keys = keys;
                    is_read = true;
                }
                // Logs the error.
                Err(error) => drop(Problem::from(error)),
            }
        }

        if is_read {
            let stores = self.stores.lock();
            let all = stores.values().flat_map(|published| &published.keys);
            let mut keys: Vec<PublicKey> = all.cloned().collect();
            keys.sort_by_key(PublicKey::cursor);
            // While a cell is split, both halves have the same.
            keys.dedup();
            *self.keys.lock() = Some(keys.into());
        }
    }
}
