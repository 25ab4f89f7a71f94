//! API tokens, sessions of the web UI, and used sign-in links. The store has their hashes only.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::statement::{Params, Statements, from_row};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::domain::scope::Scope;
use crate::sql::store as sql;
use crate::vault::Sealed;

/// An API token without the token itself.
#[derive(Clone, Debug)]
pub struct Token {
    pub id: Uuid,
    pub user: UserId,
    pub name: String,
    pub scope: Scope,
    pub created_at: Timestamp,
    /// None if it does not expire.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

from_row! { Token { id, user = "user_id", name, scope, created_at, expires_at, used_at, revoked_at } }

/// A token to create.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: String,
    pub scope: Scope,
    pub expires_at: Option<Timestamp>,
}

impl NewToken {
    /// A token for everything, which does not expire.
    pub fn named(name: &str) -> NewToken {
        NewToken {
            name: name.to_owned(),
            scope: Scope::Full,
            expires_at: None,
        }
    }
}

/// How many revoked and expired tokens of a user are kept: more than a list is read for, so that
/// creating and revoking tokens does not fill the disk.
const MOST_ENDED: i64 = 100;

/// Inserts a token by its hash. Returns `None` if the user has `most` valid ones.
pub async fn insert_token(
    store: &Store,
    actor: &Actor,
    new: &NewToken,
    hash: &[u8; 32],
    most: i64,
) -> Result<Option<Token>> {
    let id = Uuid::now_v7();
    let user = &actor.user;
    let scope = new.scope.as_str();
    let params: &Params<'_> = &[
        &id,
        user,
        &new.name,
        &scope,
        &&hash[..],
        &new.expires_at,
        &most,
    ];

    store
        .transaction(async |transaction| {
            transaction.run(sql::webhook::LOCK_USER, &[user]).await?;
            if transaction.run(sql::api_token::INSERT, params).await? == 0 {
                return Ok(None);
            }

            let keep: &Params<'_> = &[user, &MOST_ENDED];
            transaction.run(sql::api_token::LIMIT, keep).await?;
            audit::record(transaction, actor, Action::TokenCreated, id, &[]).await?;

            let inserted: &Params<'_> = &[user, &id, &id, &1_i64];
            transaction
                .fetch_optional(sql::api_token::OF_USER, inserted)
                .await
        })
        .await
}

/// The user of a valid token.
#[derive(Clone, Debug)]
pub struct TokenUser {
    pub id: Uuid,
    pub user: UserId,
    pub scope: Scope,
    /// Whether the time of the last use is out of date.
    stale: bool,
}

from_row! { TokenUser { id, user = "user_id", scope, stale } }

/// Returns the user of the token with this hash. None if there is no such token, or if it is
/// revoked or expired. Records the use once a minute.
pub async fn token_user(store: &Store, hash: &[u8; 32]) -> Result<Option<TokenUser>> {
    let found: Option<TokenUser> = store
        .fetch_optional(sql::api_token::FIND_USER, &[&&hash[..]])
        .await?;

    if let Some(TokenUser {
        id, stale: true, ..
    }) = &found
    {
        // A request that reads must not fail because the time cannot be written.
        let _ = store.run(sql::api_token::TOUCH, &[id]).await;
    }

    Ok(found)
}

/// Lists one user's tokens or all, oldest first, with those that are revoked or expired.
pub async fn list_tokens(store: &Store, user: Option<&UserId>) -> Result<Vec<Token>> {
    store
        .fetch_all(sql::api_token::LIST, &[&user.map(|user| &*user.0)])
        .await
}

/// Returns the user's tokens with these ids, newest first.
pub async fn tokens_of(
    store: &Store,
    user: &UserId,
    ids: RangeInclusive<Uuid>,
    limit: usize,
) -> Result<Vec<Token>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: &Params<'_> = &[user, ids.start(), ids.end(), &limit];
    store.fetch_all(sql::api_token::OF_USER, params).await
}

struct Revoked {
    user: UserId,
    /// False if the token was revoked before.
    ended_now: bool,
}

from_row! { Revoked { user = "user_id", ended_now } }

/// Revokes a token: of the actor, or without one of any user, as the operator. False if there is no
/// such token.
pub async fn revoke_token(store: &Store, actor: Option<&Actor>, id: Uuid) -> Result<bool> {
    let owner = actor.map(|actor| &actor.user);

    store
        .transaction(async |transaction| {
            let revoked: Option<Revoked> = transaction
                .fetch_optional(sql::api_token::REVOKE, &[&id, &owner])
                .await?;
            let Some(Revoked { user, ended_now }) = revoked else {
                return Ok(false);
            };

            let via = actor.map_or(Via::CommandLine, |actor| actor.via);
            let actor = Actor { user, via };
            if ended_now {
                audit::record(transaction, &actor, Action::TokenRevoked, id, &[]).await?;
            }

            Ok(true)
        })
        .await
}

/// The longest duration of a session: a working day. Then its user signs in again.
pub const LONGEST_LIFE: Duration = Duration::from_secs(12 * 3_600);
/// A session ends when it has not been used for this long.
const LONGEST_IDLE: Duration = Duration::from_secs(2 * 3_600);
/// Sessions of one user: a new one ends the oldest.
const MOST_OF_A_USER: i64 = 20;
/// How long the page of a new secret can be reloaded.
const LONGEST_REVEAL: Duration = Duration::from_secs(600);

/// The user of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub user: UserId,
    /// The API token that the user signed in with.
    pub token: Option<Uuid>,
    pub scope: Scope,
    /// Whether the time of the last use is out of date.
    stale: bool,
}

from_row! { Session { user = "user_id", token = "token_id", scope, stale } }
from_row! { Sealed { bytes = "secret", key_id = "secret_key_id" } }

/// Inserts a session by the hash of its id, and records the sign-in.
pub async fn insert_session(
    store: &Store,
    hash: &[u8; 32],
    user: &UserId,
    token: Option<Uuid>,
) -> Result<()> {
    let actor = Actor {
        user: user.clone(),
        via: token.map_or(Via::Jwt, Via::Token),
    };

    let subject = Uuid::from_bytes(hash[..16].try_into().expect("the hash has 32 bytes"));

    store
        .transaction(async |transaction| {
            transaction
                .run(sql::session::INSERT, &[&&hash[..], user, &token])
                .await?;
            transaction
                .run(sql::session::LIMIT, &[user, &MOST_OF_A_USER])
                .await?;
            audit::record(transaction, &actor, Action::SignedIn, subject, &[]).await
        })
        .await
}

/// Returns the session with this hash. None if there is none, or if it or its token has ended.
pub async fn find_session(store: &Store, hash: &[u8; 32]) -> Result<Option<Session>> {
    let connection = store.connection().await?;
    let life = LONGEST_LIFE.as_secs_f64();
    let idle = LONGEST_IDLE.as_secs_f64();
    let found: Option<Session> = connection
        .fetch_optional(sql::session::FIND, &[&&hash[..], &life, &idle])
        .await?;

    if found.as_ref().is_some_and(|session| session.stale) {
        connection.run(sql::session::TOUCH, &[&&hash[..]]).await?;
    }

    Ok(found)
}

/// Allows the session to show a webhook's secret for a while, or none.
pub async fn reveal(store: &Store, hash: &[u8; 32], webhook: Option<Uuid>) -> Result<()> {
    store
        .run(
            sql::session::REVEAL,
            &[&&hash[..], &webhook, &LONGEST_REVEAL.as_secs_f64()],
        )
        .await
        .map(drop)
}

/// Returns the webhook's secret if the session may show it.
pub async fn revealed(store: &Store, hash: &[u8; 32], webhook: Uuid) -> Result<Option<Sealed>> {
    store
        .fetch_optional(sql::session::REVEALED, &[&&hash[..], &webhook])
        .await
}

pub async fn end_session(store: &Store, hash: &[u8; 32]) -> Result<()> {
    store.run(sql::session::END, &[&&hash[..]]).await.map(drop)
}

/// Marks a sign-in link as used, by its hash. False if it was used before. The record is kept until
/// `expires_at`.
pub async fn use_link(store: &Store, hash: &[u8; 32], expires_at: Timestamp) -> Result<bool> {
    Ok(store
        .run(sql::session::INSERT_LINK, &[&&hash[..], &expires_at])
        .await?
        == 1)
}

/// Removes sessions and links that have ended.
pub async fn remove_old(store: &Store) -> Result<()> {
    store
        .run(
            sql::session::REMOVE,
            &[&LONGEST_LIFE.as_secs_f64(), &LONGEST_IDLE.as_secs_f64()],
        )
        .await?;
    store.run(sql::session::REMOVE_LINKS, &[]).await.map(drop)
}

/// Returns those of the API tokens that are valid.
pub async fn valid_tokens(store: &Store, ids: &[Uuid]) -> Result<Vec<Uuid>> {
    store.fetch_all(sql::api_token::REVOKED, &[&ids]).await
}

/// Returns those of the sessions, by their hashes, that have not ended.
pub async fn valid_sessions(store: &Store, hashes: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
    let life = LONGEST_LIFE.as_secs_f64();
    let idle = LONGEST_IDLE.as_secs_f64();
    store
        .fetch_all(sql::session::EXPIRED, &[&hashes, &life, &idle])
        .await
}
