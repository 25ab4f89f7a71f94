//! API tokens. Each stands for one user. The store has their SHA-256 only: tokens have 256 random
//! bits and need no slow hash.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::Result;
use crate::domain::event::UserId;
use crate::store::{Store, access};
use crate::vault::random_bytes;

const PREFIX: &str = "whk_";
/// 32 bytes in base64 without padding follow the prefix.
pub(super) const TOKEN_LENGTH: usize = PREFIX.len() + 43;

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
