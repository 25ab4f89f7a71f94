//! Statements on API tokens. The store has their hashes only.

use jiff::Timestamp;
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::sql::store as sql;

/// An API token without the token itself.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: Uuid,
    pub user: UserId,
    pub name: String,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

from_row! { Token { id, user = "user_id", name, created_at, revoked_at } }

/// Inserts a token by its hash.
pub async fn insert(
    store: &Store,
    id: Uuid,
    user: &UserId,
    name: &str,
    hash: &[u8; 32],
) -> Result<()> {
    let actor = Actor {
        user: user.clone(),
        via: Via::CommandLine,
    };

    store
        .transaction(async |transaction| {
            transaction
                .run(sql::api_token::INSERT, &[&id, user, &name, &&hash[..]])
                .await?;
            audit::record(transaction, &actor, Action::TokenCreated, id, &[]).await
        })
        .await
}

/// Returns the id and the user of the token with this hash. None if there is no such token or it is
/// revoked.
pub async fn user(store: &Store, hash: &[u8; 32]) -> Result<Option<(Uuid, UserId)>> {
    store
        .fetch_optional(sql::api_token::FIND_USER, &[&&hash[..]])
        .await
}

/// Lists one user's tokens or all, oldest first, revoked ones included.
pub async fn list(store: &Store, user: Option<&UserId>) -> Result<Vec<Token>> {
    store
        .fetch_all(sql::api_token::LIST, &[&user.map(|user| &*user.0)])
        .await
}

struct Revoked {
    user: UserId,
    /// False if the token was revoked before.
    ended_now: bool,
}

from_row! { Revoked { user = "user_id", ended_now } }

/// Revokes a token. False if there is no such token.
pub async fn revoke(store: &Store, id: Uuid) -> Result<bool> {
    store
        .transaction(async |transaction| {
            let revoked: Option<Revoked> = transaction
                .fetch_optional(sql::api_token::REVOKE, &[&id])
                .await?;
            let Some(Revoked { user, ended_now }) = revoked else {
                return Ok(false);
            };

            let via = Via::CommandLine;
            let actor = Actor { user, via };
            if ended_now {
                audit::record(transaction, &actor, Action::TokenRevoked, id, &[]).await?;
            }

            Ok(true)
        })
        .await
}
