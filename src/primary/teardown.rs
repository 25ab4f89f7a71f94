//! Takes everything of ours off the primary, and gives back what was found there.

use super::uninstall;
use crate::capture::CaptureError;
use crate::config::Source;
use crate::postgres;
use crate::store::Store;

/// Drops slot, publication, triggers and their outbox, restores replica identities, forgets the checkpoint, and says what it did. With
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
    let mut done = uninstall::log_objects(&client, source, &store).await?;
    done.extend(uninstall::triggers(&client, source).await?);
    if has_schema {
        store.forget_checkpoint(&source.slot).await?;
    }
    if drop_store && has_schema {
        store.drop_schema().await?;
        done.push("store: schema walhook dropped".into());
    }
    Ok(done)
}
