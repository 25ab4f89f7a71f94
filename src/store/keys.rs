//! The keys that sign deliveries: replacing them, removing expired ones, and publishing the public
//! ones.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::statement::{Params, Statements, column, from_row};
use super::{Result, Store};
use crate::domain::signing::{PreviousKeys, SealedKeys};
use crate::sql::store as sql;
use crate::vault::Sealed;

/// An ed25519 key pair to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedKeyPair {
    pub private: Sealed,
    pub public: [u8; 32],
}

/// A webhook's keys after its secret was replaced.
#[derive(Clone, Debug)]
pub struct Replaced {
    pub public_key: Option<Vec<u8>>,
    pub previous_expires_at: Option<Timestamp>,
}

from_row!(Replaced {
    public_key,
    previous_expires_at
});

/// A key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    pub webhook: Uuid,
    pub key: Vec<u8>,
    /// When it stops signing. None for a webhook's present key.
    pub expires_at: Option<Timestamp>,
}

from_row!(PublicKey { webhook = "id", key = "public_key", expires_at });

/// Reads the keys that sign besides the secret.
pub(super) fn sealed_keys(row: &Row) -> Result<SealedKeys> {
    let previous = match (
        sealed(row, "previous_secret", "previous_secret_key_id")?,
        column(row, "previous_expires_at")?,
    ) {
        (Some(secret), Some(expires_at)) => {
            let private = sealed(row, "previous_private_key", "previous_private_key_key_id")?;
            Some(PreviousKeys {
                secret,
                private,
                expires_at,
            })
        }
        _ => None,
    };

    Ok(SealedKeys {
        private: sealed(row, "private_key", "private_key_key_id")?,
        previous,
    })
}

/// Reads an encrypted value from two columns. None if they are null.
pub(super) fn sealed(row: &Row, bytes: &str, key_id: &str) -> Result<Option<Sealed>> {
    let (bytes, key_id): (Option<_>, Option<_>) = (column(row, bytes)?, column(row, key_id)?);
    Ok(bytes
        .zip(key_id)
        .map(|(bytes, key_id)| Sealed { bytes, key_id }))
}

/// Replaces the webhook's secret, and its key pair if it has one. The old ones sign for `overlap`
/// longer, unless it is zero. Returns `None` if there is no such webhook.
pub async fn replace(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    secret: &Sealed,
    pair: &SealedKeyPair,
    overlap: Duration,
) -> Result<Option<Replaced>> {
    let user = &actor.user;
    let public = &pair.public[..];
    let seconds = overlap.as_secs_f64();
    let Sealed { key_id, bytes } = &pair.private;

    let params: &Params<'_> = &[
        user,
        &webhook,
        &secret.bytes,
        &secret.key_id,
        bytes,
        key_id,
        &public,
        &seconds,
    ];

    store
        .transaction(async |transaction| {
            let replaced: Option<Replaced> = transaction
                .fetch_optional(sql::webhook::SET_SECRET, params)
                .await?;

            if let Some(replaced) = &replaced {
                let changed: &[&str] = if replaced.public_key.is_some() {
                    &["secret", "public_key"]
                } else {
                    &["secret"]
                };

                let action = Action::SecretRegenerated;
                audit::record(transaction, actor, action, webhook, changed).await?;
            }

            Ok(replaced)
        })
        .await
}

/// Removes the keys whose overlap has ended, and returns of how many webhooks.
pub async fn remove_expired(store: &Store) -> Result<u64> {
    store.run(sql::webhook::FORGET_PREVIOUS, &[]).await
}

/// Returns at most `limit` public keys of all webhooks, in the order of the keys.
pub async fn public_keys(store: &Store, limit: usize) -> Result<Vec<PublicKey>> {
    store
        .fetch_all(
            sql::webhook::PUBLIC_KEYS,
            &[&i64::try_from(limit).unwrap_or(i64::MAX)],
        )
        .await
}
