//! Takes everything of ours off the primary, and gives back what was found there.

use tokio_postgres::Client;

use super::{CaptureError, identity, primary};
use crate::config::Source;
use crate::postgres::{self, quote_identifier};
use crate::store::Store;

const SLOT_DROP: &str = include_str!("../../sql/primary/slot_drop.sql");
const PUBLICATION_DROP: &str = include_str!("../../sql/primary/publication_drop.sql");

/// Drops slot and publication, restores replica identities, forgets the checkpoint, and says what it did. With
/// `drop_store`, the store's schema goes too. Run again, it finds nothing to do.
pub async fn teardown(
    source: &Source,
    url: &str,
    store_url: &str,
    drop_store: bool,
) -> Result<Vec<String>, CaptureError> {
    let client = postgres::connect(url).await?;
    // What setup found is in the store: without it nothing could be put back, so it is asked for first.
    let store = Store::open(store_url, 2)?;
    let has_schema = store.has_schema().await?;
    identity::bound(&client).await?;
    let mut done = Vec::new();
    drop_slot(&client, source, &mut done).await?;
    if primary::publication(&client, &source.publication).await?.is_some() {
        let statement = PUBLICATION_DROP.replace("{publication}", &quote_identifier(&source.publication));
        if let Err(error) = client.batch_execute(&statement).await {
            return Err(identity::busy(&client, error, &[]).await);
        }
        done.push(format!("publication {}: dropped", source.publication));
    }
    if has_schema {
        for found in store.found_identities().await? {
            done.extend(identity::restore(&client, &found).await?);
            store.forget_identity(found.table_oid).await?;
        }
        store.forget_checkpoint(&source.slot).await?;
    }
    done.extend(identity::drop_indexes(&client, source).await?);
    if drop_store && has_schema {
        store.drop_schema().await?;
        done.push("store: schema walhook dropped".into());
    }
    Ok(done)
}

async fn drop_slot(client: &Client, source: &Source, done: &mut Vec<String>) -> Result<(), CaptureError> {
    let Some(slot) = primary::slot(client, &source.slot).await? else { return Ok(()) };
    if let Some(found) = slot.foreign() {
        return Err(CaptureError::ForeignSlot { slot: source.slot.clone(), found });
    }
    if let Some(pid) = slot.active_pid {
        return Err(CaptureError::SlotInUse { slot: source.slot.clone(), pid });
    }
    client.execute(SLOT_DROP, &[&source.slot]).await?;
    done.push(format!("slot {}: dropped", source.slot));
    Ok(())
}
