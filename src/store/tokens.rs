//! API tokens. The store keeps their SHA-256 alone: 256 random bits need no slow hash.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::vault::random_bytes;

const PREFIX: &str = "whk_";
/// Base64 of 32 bytes, without padding.
const ENCODED_LENGTH: usize = 43;

/// A token as lists show it: without the token.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: Uuid,
    pub user: UserId,
    pub name: String,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// Whom a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    pub token: Uuid,
    pub user: UserId,
}

/// Makes a token for `user`, on the command line. It is shown now and never again.
pub async fn create(store: &Store, user: &UserId, name: &str) -> Result<SecretString> {
    let token: SecretString = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random_bytes::<32>())).into();
    let hash = hash(token.expose_secret());
    let id = Uuid::now_v7();
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/store/token_insert.sql")).await?;
    transaction.execute(&statement, &[&id, &&*user.0, &name, &&hash[..]]).await?;
    let actor = Actor { user: user.clone(), via: Via::CommandLine };
    audit::record(&transaction, &actor, Action::TokenCreated, id, &[]).await?;
    transaction.commit().await?;
    Ok(token)
}

/// Whom the token stands for, if it is one and is not revoked.
pub async fn bearer(store: &Store, token: &str) -> Result<Option<Bearer>> {
    if !is_well_formed(token) {
        return Ok(None);
    }
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/token_user.sql")).await?;
    let row = connection.query_opt(&statement, &[&&hash(token)[..]]).await?;
    Ok(row.map(|row| Bearer { token: row.get("id"), user: UserId(row.get::<_, &str>("user_id").into()) }))
}

/// Everybody's tokens, or one user's, oldest first; revoked ones too.
pub async fn list(store: &Store, user: Option<&UserId>) -> Result<Vec<Token>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/token_list.sql")).await?;
    let rows = connection.query(&statement, &[&user.map(|user| &*user.0)]).await?;
    let token = |row: &tokio_postgres::Row| Token {
        id: row.get("id"),
        user: UserId(row.get::<_, &str>("user_id").into()),
        name: row.get("name"),
        created_at: row.get("created_at"),
        revoked_at: row.get("revoked_at"),
    };
    Ok(rows.iter().map(token).collect())
}

/// Ends a token for good. False where there is no such token.
pub async fn revoke(store: &Store, id: Uuid) -> Result<bool> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/store/token_revoke.sql")).await?;
    let Some(row) = transaction.query_opt(&statement, &[&id]).await? else { return Ok(false) };
    if row.get("ended_now") {
        let user = UserId(row.get::<_, &str>("user_id").into());
        let actor = Actor { user, via: Via::CommandLine };
        audit::record(&transaction, &actor, Action::TokenRevoked, id, &[]).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// Whether it says of itself that it is one of ours.
pub fn is_api_token(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// What cannot be a token is not worth a query.
fn is_well_formed(token: &str) -> bool {
    token.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == ENCODED_LENGTH)
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}
