//! Answers that are given again to a request that is made again: for 24 hours, encrypted.

use std::time::Duration;

use uuid::Uuid;

use super::{Result, Store};
use crate::domain::event::UserId;
use crate::vault::Sealed;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: the request is ours to serve, and its answer goes under this id.
    Ours(Uuid),
    /// It was used for another request.
    Reused,
    /// The same request is being served.
    UnderWay,
    /// It is not known, and as many of the user's keys are kept as may be.
    Full,
    /// The same request was served with this answer, encrypted for `id`.
    Answered { id: Uuid, answer: Sealed },
}

/// One user's keys of 24 hours: answers are kept for each.
const MOST_OF_A_USER: i64 = 10_000;

/// Claims a key for a request, or finds what became of it. Unless answered or released, the claim ends after `hold`.
pub async fn claim(
    store: &Store,
    user: &UserId,
    key_hash: &[u8; 32],
    fingerprint: &[u8; 32],
    hold: Duration,
) -> Result<Claim> {
    let connection = store.connection().await?;
    let claim = connection.prepare_cached(include_str!("../../sql/store/idempotency_claim.sql")).await?;
    let id = Uuid::now_v7();
    let (key_hash, wanted) = (&key_hash[..], &fingerprint[..]);
    let hold = hold.as_secs_f64();
    let ours = connection.query_opt(&claim, &[&id, &&*user.0, &key_hash, &wanted, &hold, &MOST_OF_A_USER]).await?;
    if ours.is_some() {
        return Ok(Claim::Ours(id));
    }
    let find = connection.prepare_cached(include_str!("../../sql/store/idempotency_find.sql")).await?;
    let Some(row) = connection.query_opt(&find, &[&&*user.0, &key_hash]).await? else {
        let full = connection.prepare_cached(include_str!("../../sql/store/idempotency_full.sql")).await?;
        let is_full: bool = connection.query_one(&full, &[&&*user.0, &MOST_OF_A_USER]).await?.get(0);
        // Otherwise it was released in between: the client that asks again gets it.
        return Ok(if is_full { Claim::Full } else { Claim::UnderWay });
    };
    if row.get::<_, &[u8]>("fingerprint") != wanted {
        return Ok(Claim::Reused);
    }
    let answer = row.get::<_, Option<Vec<u8>>>("answer").zip(row.get("key_id"));
    Ok(match answer {
        Some((bytes, key_id)) => Claim::Answered { id: row.get("id"), answer: Sealed { key_id, bytes } },
        None => Claim::UnderWay,
    })
}

pub async fn keep(store: &Store, id: Uuid, answer: &Sealed) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/idempotency_keep.sql")).await?;
    connection.execute(&statement, &[&id, &answer.bytes, &answer.key_id]).await?;
    Ok(())
}

pub async fn release(store: &Store, id: Uuid) -> Result<()> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/idempotency_release.sql")).await?;
    connection.execute(&statement, &[&id]).await?;
    Ok(())
}

/// Forgets the answers whose time is over, and says how many they were.
pub async fn remove_old(store: &Store) -> Result<u64> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/idempotency_remove.sql")).await?;
    Ok(connection.execute(&statement, &[]).await?)
}
