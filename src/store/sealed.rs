//! All that is encrypted under a master key, for the rotation of keys.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Result, Store};
use crate::vault::Vault;

const KEYS: &str = include_str!("../../sql/store/sealed_keys.sql");
/// What is encrypted: how to find what is left to do, and how to put one in its place.
const KINDS: [(&str, &str); 2] = [
    (include_str!("../../sql/store/sealed_webhooks.sql"), include_str!("../../sql/store/sealed_webhook_replace.sql")),
    (include_str!("../../sql/store/sealed_answers.sql"), include_str!("../../sql/store/sealed_answer_replace.sql")),
];
/// Rows that are at hand at once.
const PAGE: i64 = 500;

/// How many secrets and kept answers are encrypted under which key, by the key's id.
pub async fn keys(store: &Store) -> Result<BTreeMap<String, i64>> {
    let connection = store.connection().await?;
    let rows = connection.query(KEYS, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// What came of an encryption anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reencrypted {
    pub done: u64,
    /// What does not open, by the key's id: that key is not configured, or not the one it was.
    pub unreadable: BTreeMap<String, u64>,
}

/// Encrypts everything under the first key that is not yet. One row at a time, each on its own, so that nobody waits; what
/// changes meanwhile is left as it then is. May be repeated, and must be when it fails midway.
pub async fn reencrypt(store: &Store, vault: &Vault) -> Result<Reencrypted> {
    let connection = store.connection().await?;
    let mut result = Reencrypted::default();
    for (find, replace) in KINDS {
        let (find, replace) = (connection.prepare_cached(find).await?, connection.prepare_cached(replace).await?);
        let mut behind = Uuid::nil();
        loop {
            let rows = connection.query(&find, &[&vault.first_key(), &behind, &PAGE]).await?;
            let Some(last) = rows.last() else { break };
            behind = last.get("id");
            for row in &rows {
                let (id, sealed, key_id): (Uuid, &[u8], &str) = (row.get("id"), row.get("sealed"), row.get("key_id"));
                match vault.open(id, key_id, sealed) {
                    Ok(opened) => {
                        let anew = vault.seal(id, &zeroize::Zeroizing::new(opened));
                        result.done += connection.execute(&replace, &[&id, &sealed, &anew.bytes, &anew.key_id]).await?;
                    }
                    Err(_) => {
                        *result.unreadable.entry(key_id.to_owned()).or_default() += 1;
                    }
                }
            }
        }
    }
    Ok(result)
}
