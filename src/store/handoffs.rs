//! Deliveries that were handed off to the process that stored them, and have no row in `delivery`
//! unless they fail.
//!
//! One row has all of one transaction, and a set bit for each. The transaction that clears a
//! delivery's bit records its attempt, which counts as under a lease in `delivery`. Everything else
//! that is done with a delivery is done with its row. So first the hand-off is unpacked: all that
//! were not recorded become rows, with the same lease. Any replica does that to hand-offs that are
//! some seconds old, so slow receivers, shutdowns and crashes are no special cases. A delivery is in
//! a hand-off or has a row, never both. Hand-offs are locked in order of their leases, before any
//! delivery.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::Result;
use super::attempt::{CompletedAttempt, Effect};
use super::delivery::NewLease;
use super::statement::{Statements, arrays};
use crate::domain::delivery::{Delivery, Place};
use crate::sql::store as sql;

/// The hand-offs that one statement looks for, so that it is short.
const UNPACKED_AT_ONCE: i64 = 32;

static UNPACK_WAITING: LazyLock<String> =
    LazyLock::new(|| sql::handoff::UNPACK.replace(" skip locked", ""));

/// Stores those of `deliveries` that have a place in the hand-off.
pub async fn insert(
    transaction: &impl GenericClient,
    deliveries: &[Delivery],
    NewLease { lease, length }: NewLease,
) -> Result<()> {
    let placed: Vec<&Delivery> = deliveries
        .iter()
        .filter(|delivery| delivery.lease.place.is_some())
        .collect();
    if placed.is_empty() {
        return Ok(());
    }

    let seconds = length.as_secs_f64();
    let rows = arrays!(placed, |delivery| (
        delivery.id,
        delivery.webhook,
        delivery.event,
        delivery.sequence,
    ));
    transaction
        .run(
            sql::handoff::INSERT,
            &rows.followed_by(&[&lease.token, &seconds]),
        )
        .await
        .map(drop)
}

/// Clears the bits of the attempts' deliveries. Those that had them count. The others have no place
/// in a hand-off any more: they may have rows.
pub(super) async fn record(
    transaction: &Transaction<'_>,
    batch: &mut [CompletedAttempt],
) -> Result<()> {
    let mut recorded: BTreeMap<Uuid, String> = BTreeMap::new();

    for attempt in &*batch {
        let lease = attempt.delivery().lease;
        if let Some(Place { index, of }) = lease.place {
            recorded
                .entry(lease.token)
                .or_insert_with(|| "0".repeat(of))
                .replace_range(index..=index, "1");
        }
    }

    if recorded.is_empty() {
        return Ok(());
    }

    let rows = arrays!(recorded, |(lease, bits)| (*lease, bits));
    let rows = rows.params();
    let (held, _) = tokio::try_join!(
        biased;
        transaction.fetch_all::<(Uuid, String)>(sql::handoff::RECORD, &rows),
        transaction.run(sql::handoff::REMOVE_RECORDED, &rows[..1]),
    )?;
    let held: HashMap<Uuid, String> = held.into_iter().collect();

    for attempt in batch {
        let lease = &mut attempt.attempted.delivery.lease;
        let was_set = |place: Place| held.get(&lease.token)?.as_bytes().get(place.index).copied();

        if lease.place.and_then(was_set) == Some(b'1') {
            attempt.effect = Effect::Counted;
        } else {
            lease.place = None;
        }
    }

    Ok(())
}

/// Which hand-offs to unpack.
#[derive(Clone, Copy, Debug)]
pub enum Handoffs<'a> {
    All,
    Older(Duration),
    /// Those with deliveries of a webhook.
    OfWebhook(Uuid),
    Leased(&'a [Uuid]),
}

/// Whether to wait for hand-offs that another transaction has locked. Otherwise they are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    Wait,
    Skip,
}

/// Unpacks hand-offs, and returns how many deliveries have got a row.
pub async fn unpack(
    client: &impl Statements,
    handoffs: Handoffs<'_>,
    locked: Locked,
) -> Result<u64> {
    let (mut age, mut webhook, mut leases, mut limit) = (None, None, None, None);
    match handoffs {
        Handoffs::All => {}
        Handoffs::Older(than) => (age, limit) = (Some(than.as_secs_f64()), Some(UNPACKED_AT_ONCE)),
        Handoffs::OfWebhook(id) => webhook = Some(id),
        Handoffs::Leased([]) => return Ok(0),
        Handoffs::Leased(tokens) => leases = Some(tokens),
    }

    let statement = match locked {
        Locked::Wait => &UNPACK_WAITING,
        Locked::Skip => sql::handoff::UNPACK,
    };
    client
        .run(statement, &[&age, &webhook, &leases, &limit])
        .await
}
