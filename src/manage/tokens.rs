//! API tokens. Each stands for one user. The store has their SHA-256 only: tokens have 256 random
//! bits and need no slow hash.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::Result;
use crate::domain::event::UserId;
pub use crate::store::access::Token;
use crate::store::{Store, access};
use crate::vault::random_bytes;

const PREFIX: &str = "whk_";
/// The length of the base64 of 32 bytes without padding.
const ENCODED_LENGTH: usize = 43;

/// Creates a token, which is shown only this once.
pub async fn create(store: &Store, user: &UserId, name: &str) -> Result<SecretString> {
    let token: SecretString = format!("{PREFIX}{}", random_text().expose_secret()).into();
    access::insert_token(
        store,
        Uuid::now_v7(),
        user,
        name,
        &hash(token.expose_secret()),
    )
    .await?;

    Ok(token)
}

/// Lists one user's tokens or all, oldest first, revoked ones included.
pub async fn list(store: &Store, user: Option<&UserId>) -> Result<Vec<Token>> {
    Ok(access::list_tokens(store, user).await?)
}

/// Revokes a token. False if there is no such token.
pub async fn revoke(store: &Store, id: Uuid) -> Result<bool> {
    Ok(access::revoke_token(store, id).await?)
}

/// Returns the token's id and user. None if it is unknown or revoked.
pub(super) async fn user(store: &Store, token: &str) -> Result<Option<(Uuid, UserId)>> {
    match token.strip_prefix(PREFIX) {
        Some(rest) if rest.len() == ENCODED_LENGTH => {
            Ok(access::token_user(store, &hash(token)).await?)
        }
        _ => Ok(None),
    }
}

/// Whether the text has the prefix of API tokens. Other tokens may be the platform's.
pub fn is_api_token(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// 256 random bits in base64.
pub(super) fn random_text() -> SecretString {
    URL_SAFE_NO_PAD.encode(random_bytes::<32>()).into()
}

/// Returns the form in which the store has tokens, sessions' ids and sign-in links.
pub fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}
