//! API tokens. Each stands for one user.

use secrecy::SecretString;
use uuid::Uuid;

use super::fault::Result;
use crate::domain::event::UserId;
use crate::store::audit::{Actor, Via};
pub use crate::store::tokens::{Token, is_api_token};
use crate::store::{Store, tokens};

/// Creates a token, which is shown once.
pub async fn create(store: &Store, user: &UserId, name: &str) -> Result<SecretString> {
    Ok(tokens::create(store, user, name).await?)
}

/// Lists one user's tokens or all, oldest first, revoked ones included.
pub async fn list(store: &Store, user: Option<&UserId>) -> Result<Vec<Token>> {
    Ok(tokens::list(store, user).await?)
}

/// Revokes a token. False where there is no such token.
pub async fn revoke(store: &Store, id: Uuid) -> Result<bool> {
    Ok(tokens::revoke(store, id).await?)
}

pub(super) async fn actor(store: &Store, token: &str) -> Result<Option<Actor>> {
    let bearer = tokens::bearer(store, token).await?;
    Ok(bearer.map(|bearer| Actor { user: bearer.user, via: Via::Token(bearer.token) }))
}
