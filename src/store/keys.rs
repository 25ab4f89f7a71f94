//! The secrets of webhooks: the keys that sign deliveries, the webhooks as deliveries need them,
//! public keys, and re-encryption when the master key is replaced.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::audit::{self, Action, Actor};
use super::statement::{Params, Statements, column, from_row};
use super::{Result, Store};
use crate::domain::signing::{PreviousKeys, SealedKeys};
use crate::domain::webhook::SealedTarget;
use crate::failpoint::failpoint;
use crate::sql::store as sql;
use crate::vault::{Sealed, SealedOwner, Vault};

impl Store {
    /// Reads those of `webhooks` that exist.
    pub async fn targets(&self, webhooks: &[Uuid]) -> Result<Vec<SealedTarget>> {
        self.fetch_all(sql::webhook::TARGETS, &[&webhooks]).await
    }
}

from_row!(SealedTarget {
    webhook = "id",
    active,
    url,
    secret,
    secret_key_id,
    headers: |row| sealed(row, "headers", "headers_key_id"),
    keys: sealed_keys,
    activation,
});

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

/// Returns the owner of a row's value by the row's id.
type OwnerOf = fn(Uuid) -> SealedOwner;

/// The encrypted columns of a webhook, for which these statements are repeated with another
/// column's name, and their owners by the webhook's id. Those of previous keys are last: a key that
/// is replaced in the meantime moves to them.
const WEBHOOK_COLUMNS: [(&str, OwnerOf); 5] = [
    ("secret", SealedOwner::from),
    ("headers", SealedOwner::headers),
    ("private_key", SealedOwner::from),
    ("previous_secret", SealedOwner::from),
    ("previous_private_key", SealedOwner::from),
];

/// An encrypted column.
struct SealedColumn {
    /// Finds values under other keys.
    find: String,
    /// Replaces one of them.
    replace: String,
    owner: OwnerOf,
}

static COLUMNS: LazyLock<Vec<SealedColumn>> = LazyLock::new(|| {
    let of_webhook = |(column, owner): (&str, OwnerOf)| {
        let [find, replace] = [sql::webhook::SEALED, sql::webhook::RESEAL]
            .map(|statement| statement.replace("secret", column));
        SealedColumn {
            find,
            replace,
            owner,
        }
    };
    let answers = SealedColumn {
        find: sql::idempotency::SEALED.to_owned(),
        replace: sql::idempotency::RESEAL.to_owned(),
        owner: SealedOwner::from,
    };
    WEBHOOK_COLUMNS
        .into_iter()
        .map(of_webhook)
        .chain([answers])
        .collect()
});
/// The number of values that are read at a time.
const PAGE: i64 = 500;

/// Returns how many values are encrypted under each key, by the key's id.
pub async fn master_keys(store: &Store) -> Result<BTreeMap<String, i64>> {
    Ok(store
        .fetch_all::<(String, i64)>(sql::webhook::MASTER_KEYS, &[])
        .await?
        .into_iter()
        .collect())
}

/// The result of a re-encryption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reencrypted {
    pub done: u64,
    /// How many values cannot be decrypted, by the key's id: the key is not configured, or is a
    /// different one.
    pub unreadable: BTreeMap<String, u64>,
}

/// An encrypted value of a row.
struct Encrypted {
    id: Uuid,
    bytes: Vec<u8>,
    key_id: String,
}

from_row!(Encrypted { id, bytes = "sealed", key_id });

/// Encrypts every value under the vault's first key. Each row is a transaction of its own, so that
/// nothing waits for it; a value that changes in the meantime is left alone. Can be repeated, and
/// must be repeated if it fails midway.
pub async fn reencrypt(store: &Store, vault: &Vault) -> Result<Reencrypted> {
    let connection = store.connection().await?;
    let mut result = Reencrypted::default();

    for SealedColumn {
        find,
        replace,
        owner,
    } in &*COLUMNS
    {
        let mut after = Uuid::nil();

        loop {
            let page: Vec<Encrypted> = connection
                .fetch_all(find, &[&vault.first_key(), &after, &PAGE])
                .await?;
            let Some(last) = page.last() else { break };
            after = last.id;

            for Encrypted { id, bytes, key_id } in page {
                let Ok(opened) = vault.open(owner(id), &key_id, &bytes) else {
                    *result.unreadable.entry(key_id).or_default() += 1;
                    continue;
                };

                let Sealed {
                    bytes: new_bytes,
                    key_id,
                } = vault.seal(owner(id), &Zeroizing::new(opened));
                result.done += connection
                    .run(replace, &[&id, &bytes, &new_bytes, &key_id])
                    .await?;
                failpoint!("value_reencrypted_next_not_read")?;
            }
        }
    }

    Ok(result)
}
