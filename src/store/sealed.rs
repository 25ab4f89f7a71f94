//! Re-encrypts secrets and stored responses when the master key is replaced.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use uuid::Uuid;
use zeroize::Zeroizing;

use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::failpoint::failpoint;
use crate::sql::store as sql;
use crate::vault::{Owner, Sealed, Vault};

/// Returns the owner of a row's value by the row's id.
type OwnerOf = fn(Uuid) -> Owner;

/// The encrypted columns of a webhook, for which these statements are repeated with another
/// column's name, and their owners by the webhook's id. Those of previous keys are last: a key that
/// is replaced in the meantime moves to them.
const WEBHOOK_COLUMNS: [(&str, OwnerOf); 5] = [
    ("secret", Owner::from),
    ("headers", Owner::headers),
    ("private_key", Owner::from),
    ("previous_secret", Owner::from),
    ("previous_private_key", Owner::from),
];

/// An encrypted column.
struct Column {
    /// Finds values under other keys.
    find: String,
    /// Replaces one of them.
    replace: String,
    owner: OwnerOf,
}

static COLUMNS: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let of_webhook = |(column, owner): (&str, OwnerOf)| {
        let [find, replace] = [sql::webhook::SEALED, sql::webhook::RESEAL]
            .map(|statement| statement.replace("secret", column));
        Column {
            find,
            replace,
            owner,
        }
    };
    let answers = Column {
        find: sql::idempotency::SEALED.to_owned(),
        replace: sql::idempotency::RESEAL.to_owned(),
        owner: Owner::from,
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
pub async fn keys(store: &Store) -> Result<BTreeMap<String, i64>> {
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

    for Column {
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
