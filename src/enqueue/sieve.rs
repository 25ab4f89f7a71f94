//! Finds what the store refuses in a batch: a value that is too long for an index, or that its
//! encoding lacks. One such event must not hold up the others.

use super::derive::Derivation;
use super::save::subscriptions_of;
use crate::domain::addons::AddonChanges;
use crate::domain::change::{Batch, Change};
use crate::domain::ledger::{LedgerChanges, State};
use crate::domain::table::Table;
use crate::store::enqueue::insert_events;
use crate::store::ledger::change_ledger;
use crate::store::lookup_rows::{change_addons, change_lookup_rows};
use crate::store::unrouted::{Unrouted, insert_unrouted};
use crate::store::{Store, StoreError, Transaction};

type Row = (Table, i64, Option<State>);

/// Replaces events that the store refuses by unrouted events, and removes other rows that it
/// refuses. Each is tried in a transaction that is rolled back. Returns the number of refused rows.
pub(super) async fn sieve(
    store: &Store,
    derivation: Option<&mut Derivation>,
    batch: &Batch,
) -> Result<usize, StoreError> {
    let Some(Derivation { raised, .. }) = derivation else {
        return Ok(0);
    };

    let events = refused(store, &raised.events, async |transaction, events| {
        subscriptions_of(transaction, events, false).await?;
        insert_events(transaction, events).await
    });
    let events = events.await?;
    let mut count = events.len();

    for (index, detail) in events.into_iter().rev() {
        let event = raised.withdraw(index);
        let change = batch
            .changes
            .iter()
            .find(|change| change.position == event.position)
            .and_then(Change::within);

        let unrouted = change.map(|change| {
            Unrouted::new(
                event.kind,
                &change,
                batch.checkpoint.lineage,
                "store_refused",
                detail,
            )
        });

        raised.unrouted.extend(unrouted);
    }

    let unrouted = refused(store, &raised.unrouted, async |transaction, unrouted| {
        insert_unrouted(transaction, unrouted).await
    });
    let unrouted = unrouted.await?;
    count += unrouted.len();

    for (index, _) in unrouted {
        raised.unrouted[index].change = None;
    }

    let rows = rows_of(&raised.ledger);
    let ledger = refused(store, &rows, async |transaction, rows| {
        change_ledger(transaction, &changes_of(rows)).await
    });
    let ledger = ledger.await?;

    count += ledger.len();
    remove(&mut raised.ledger, &rows, &ledger);

    let rows = rows_of(&raised.lookup_rows);
    let looked_up = refused(store, &rows, async |transaction, rows| {
        change_lookup_rows(transaction, &changes_of(rows)).await
    });
    let looked_up = looked_up.await?;

    count += looked_up.len();
    remove(&mut raised.lookup_rows, &rows, &looked_up);

    let owned = |(user, addon, _): (&str, &str, i32)| (user.to_owned(), addon.to_owned());
    let granted: Vec<(String, String)> = raised.addons.rows(true).into_iter().map(owned).collect();
    let addons = refused(store, &granted, async |transaction, granted| {
        let mut changes = AddonChanges::default();

        for (user, addon) in granted {
            changes.grant(user, addon);
        }

        change_addons(transaction, &changes).await
    });
    let addons = addons.await?;
    for (index, _) in &addons {
        let (user, addon) = &granted[*index];
        raised.addons.withdraw(user, addon);
    }

    Ok(count + addons.len())
}

fn rows_of(changes: &LedgerChanges) -> Vec<Row> {
    changes
        .rows()
        .map(|(table, id, state)| (table, id, state.cloned()))
        .collect()
}

fn changes_of(rows: &[Row]) -> LedgerChanges {
    let mut changes = LedgerChanges::default();

    for (table, id, state) in rows {
        match state {
            Some(state) => changes.put(*table, *id, state.clone()),
            None => changes.remove(*table, *id),
        }
    }

    changes
}

/// Removes rows that cannot be stored: their former state would be wrong.
fn remove(changes: &mut LedgerChanges, rows: &[Row], refused: &[(usize, String)]) {
    for (index, _) in refused {
        let (table, id, _) = &rows[*index];
        changes.remove(*table, *id);
    }
}

/// Returns the indexes of the rows that the store refuses, in ascending order, each with its error.
/// Halves what is refused.
async fn refused<T>(
    store: &Store,
    rows: &[T],
    put: impl AsyncFn(&Transaction<'_>, &[T]) -> Result<(), StoreError>,
) -> Result<Vec<(usize, String)>, StoreError> {
    let mut found = Vec::new();
    let whole = 0..rows.len();
    let mut pending = vec![whole];

    while let Some(range) = pending.pop() {
        if range.is_empty() {
            continue;
        }

        let mut connection = store.connection().await?;
        let transaction = connection.transaction().await?;
        let result = put(&transaction, &rows[range.clone()]).await;

        transaction.rollback().await?;

        match result {
            Ok(()) => {}
            Err(error) if error.refuses_data() && range.len() == 1 => {
                found.push((range.start, error.to_string()))
            }
            Err(error) if error.refuses_data() => {
                let middle = range.start + range.len() / 2;
                pending.push(middle..range.end);
                pending.push(range.start..middle);
            }
            Err(error) => return Err(error),
        }
    }

    Ok(found)
}
