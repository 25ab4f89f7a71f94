//! Idempotency keys: responses that are stored, encrypted, for repeated requests.

use std::time::Duration;

use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::event::UserId;
use crate::store::idempotency;
use crate::telemetry::recurring;

/// The state of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyClaim {
    /// The key is new. The caller executes the request and stores the response under this id.
    New(Uuid),
    /// The key was used for another request.
    Reused,
    /// The same request is in progress.
    InProgress,
    /// The key is new, but the user has as many stored keys as allowed.
    TooManyKeys,
    /// The stored response of the same request.
    Answered(Vec<u8>),
}

impl Manage {
    /// Claims a key for a request. If neither a response is stored nor the key released, the claim
    /// expires after `hold`.
    pub async fn claim_idempotency_key(
        &self,
        user: &UserId,
        key_hash: &[u8; 32],
        fingerprint: &[u8; 32],
        hold: Duration,
    ) -> Result<IdempotencyClaim> {
        let id = Uuid::now_v7();
        if idempotency::claim(&self.store, id, user, key_hash, fingerprint, hold).await? {
            return Ok(IdempotencyClaim::New(id));
        }

        let Some(found) = idempotency::find(&self.store, user, key_hash).await? else {
            // Below the limit, another request released the key between the two statements. The
            // client may repeat this one.
            let is_full = idempotency::is_full(&self.store, user).await?;
            return Ok(if is_full {
                IdempotencyClaim::TooManyKeys
            } else {
                IdempotencyClaim::InProgress
            });
        };

        if found.fingerprint != fingerprint {
            return Ok(IdempotencyClaim::Reused);
        }

        let owner = found.id;
        let Some(sealed) = found.response() else {
            return Ok(IdempotencyClaim::InProgress);
        };

        let opened = self
            .vault
            .open(owner, &sealed.key_id, &sealed.bytes)
            .map_err(|error| {
                recurring!(error, %user, %error, "stored responses cannot be decrypted");
                Fault::Internal
            })?;

        Ok(IdempotencyClaim::Answered(opened))
    }

    /// Stores a response for 24 hours.
    pub async fn store_response(&self, id: Uuid, response: &[u8]) -> Result<()> {
        Ok(idempotency::store_response(&self.store, id, &self.vault.seal(id, response)).await?)
    }

    /// Releases a claimed key, so that the next request can claim it.
    pub async fn release_idempotency_key(&self, id: Uuid) -> Result<()> {
        Ok(idempotency::release(&self.store, id).await?)
    }
}
