//! Sessions of the user interface. As of API tokens, the store keeps the SHA-256 of their ids alone.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::vault::{Sealed, random_bytes};

/// A working day; then whoever still is there signs in again.
pub const LONGEST_LIFE: Duration = Duration::from_secs(12 * 3_600);
/// Unused for so long, a session ends.
pub const LONGEST_REST: Duration = Duration::from_secs(2 * 3_600);
/// One user's sessions at once: a new one ends the oldest.
const MOST_OF_A_USER: i64 = 20;
/// A new secret's page shows it for so long, however often it is loaded.
const LONGEST_REVEAL: Duration = Duration::from_secs(600);
/// Base64 of 32 bytes, without padding.
const ENCODED_LENGTH: usize = 43;

/// Whom a session is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub user: UserId,
    /// The API token it was begun with.
    pub token: Option<Uuid>,
}

/// Begins a session, records the sign-in, and returns the session's id: 256 random bits, shown to the browser alone.
pub async fn begin(store: &Store, user: &UserId, token: Option<Uuid>) -> Result<SecretString> {
    let id: SecretString = URL_SAFE_NO_PAD.encode(random_bytes::<32>()).into();
    let hash = hash(id.expose_secret());
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let insert = transaction.prepare_cached(include_str!("../../sql/store/session_insert.sql")).await?;
    transaction.execute(&insert, &[&&hash[..], &&*user.0, &token]).await?;
    let limit = transaction.prepare_cached(include_str!("../../sql/store/session_limit.sql")).await?;
    transaction.execute(&limit, &[&&*user.0, &MOST_OF_A_USER]).await?;
    let actor = Actor { user: user.clone(), via: token.map_or(Via::Jwt, Via::Token) };
    let subject = Uuid::from_bytes(hash[..16].try_into().expect("half of a hash"));
    audit::record(&transaction, &actor, Action::SignedIn, subject, &[]).await?;
    transaction.commit().await?;
    Ok(id)
}

/// The session of this id, if there is one and neither it nor its token is over.
pub async fn find(store: &Store, id: &str) -> Result<Option<Session>> {
    if id.len() != ENCODED_LENGTH {
        return Ok(None);
    }
    let hash = hash(id);
    let connection = store.connection().await?;
    let find = connection.prepare_cached(include_str!("../../sql/store/session_find.sql")).await?;
    let (life, rest) = (LONGEST_LIFE.as_secs_f64(), LONGEST_REST.as_secs_f64());
    let Some(row) = connection.query_opt(&find, &[&&hash[..], &life, &rest]).await? else { return Ok(None) };
    if row.get("stale") {
        let touch = connection.prepare_cached(include_str!("../../sql/store/session_touch.sql")).await?;
        connection.execute(&touch, &[&&hash[..]]).await?;
    }
    Ok(Some(Session { user: UserId(row.get::<_, &str>("user_id").into()), token: row.get("token_id") }))
}

/// Lets the session show a webhook's secret for a while, or no longer.
pub async fn reveal(store: &Store, id: &str, webhook: Option<Uuid>) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/session_reveal.sql")).await?;
    connection.execute(&statement, &[&&hash(id)[..], &webhook, &LONGEST_REVEAL.as_secs_f64()]).await?;
    Ok(())
}

/// The webhook's secret, if the session may show it.
pub async fn revealed(store: &Store, id: &str, webhook: Uuid) -> Result<Option<Sealed>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/session_revealed.sql")).await?;
    let row = connection.query_opt(&statement, &[&&hash(id)[..], &webhook]).await?;
    Ok(row.map(|row| Sealed { bytes: row.get("secret"), key_id: row.get("secret_key_id") }))
}

pub async fn end(store: &Store, id: &str) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/session_end.sql")).await?;
    connection.execute(&statement, &[&&hash(id)[..]]).await?;
    Ok(())
}

/// Notes that a sign-in link was used, by what identifies it. False where it was used before; after `expires_at` it has to be
/// refused by its age.
pub async fn use_link(store: &Store, link: &str, expires_at: Timestamp) -> Result<bool> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/used_link_insert.sql")).await?;
    Ok(connection.execute(&statement, &[&&hash(link)[..], &expires_at]).await? == 1)
}

/// Forgets sessions and links whose time is over.
pub async fn remove_old(store: &Store) -> Result<()> {
    let connection = store.connection().await?;
    let sessions = connection.prepare_cached(include_str!("../../sql/store/session_remove.sql")).await?;
    connection.execute(&sessions, &[&LONGEST_LIFE.as_secs_f64(), &LONGEST_REST.as_secs_f64()]).await?;
    let links = connection.prepare_cached(include_str!("../../sql/store/used_link_remove.sql")).await?;
    connection.execute(&links, &[]).await?;
    Ok(())
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}
