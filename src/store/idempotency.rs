//! Statements on idempotency keys and the encrypted responses that are stored for them.

use std::time::Duration;

use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::sql::store as sql;
use crate::vault::Sealed;

/// The most keys of one user within 24 hours: a response is stored for each.
const MOST_OF_A_USER: i64 = 10_000;

/// A key that was claimed before.
#[derive(Clone, Debug)]
pub struct ClaimedKey {
    pub id: Uuid,
    /// Of the request that claimed it.
    pub fingerprint: Vec<u8>,
    answer: Option<Vec<u8>>,
    key_id: Option<String>,
}

from_row! { ClaimedKey { id, fingerprint, answer, key_id } }

impl ClaimedKey {
    /// The stored response, encrypted for `id`. None while the request is in progress.
    pub fn response(self) -> Option<Sealed> {
        let (bytes, key_id) = self.answer.zip(self.key_id)?;
        Some(Sealed { key_id, bytes })
    }
}

/// Claims a key under `id`. False if it is claimed, or if the user has as many keys as allowed.
pub async fn claim(
    store: &Store,
    id: Uuid,
    user: &UserId,
    key_hash: &[u8; 32],
    fingerprint: &[u8; 32],
    hold: Duration,
) -> Result<bool> {
    let key_hash = &key_hash[..];
    let fingerprint = &fingerprint[..];

    let claimed: Option<Uuid> = store
        .fetch_optional(
            sql::idempotency::CLAIM,
            &[
                &id,
                user,
                &key_hash,
                &fingerprint,
                &hold.as_secs_f64(),
                &MOST_OF_A_USER,
            ],
        )
        .await?;

    Ok(claimed.is_some())
}

pub async fn find(store: &Store, user: &UserId, key_hash: &[u8; 32]) -> Result<Option<ClaimedKey>> {
    store
        .fetch_optional(sql::idempotency::FIND, &[user, &&key_hash[..]])
        .await
}

/// Whether the user has as many keys as allowed.
pub async fn is_full(store: &Store, user: &UserId) -> Result<bool> {
    store
        .fetch_one(sql::idempotency::FULL, &[user, &MOST_OF_A_USER])
        .await
}

/// Stores the response of the claim `id`.
pub async fn store_response(store: &Store, id: Uuid, response: &Sealed) -> Result<()> {
    store
        .run(
            sql::idempotency::KEEP,
            &[&id, &response.bytes, &response.key_id],
        )
        .await
        .map(drop)
}

pub async fn release(store: &Store, id: Uuid) -> Result<()> {
    store.run(sql::idempotency::RELEASE, &[&id]).await.map(drop)
}

/// Removes keys that are older than 24 hours, and returns how many they were.
pub async fn remove_old(store: &Store) -> Result<u64> {
    store.run(sql::idempotency::REMOVE, &[]).await
}
