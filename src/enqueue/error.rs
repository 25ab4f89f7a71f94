//! The errors of storing a batch, and whether a retry can succeed.

use crate::failpoint::Injected;
use crate::lookup::LookupError;
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("another process has moved the checkpoint of slot {0}: it captures now")]
    Superseded(String),
    /// Batches that were read already lack the changes in between: reading starts over from the
    /// store's checkpoint.
    #[error("the store's checkpoint of slot {0} is older than what this process has stored")]
    StoreBehind(String),
    #[error("the store has no checkpoint for slot {0}: run `walhook setup`")]
    NoCheckpoint(String),
}

impl From<Injected> for EnqueueError {
    fn from(error: Injected) -> EnqueueError {
        EnqueueError::Store(error.into())
    }
}

impl EnqueueError {
    /// Returns the reason for readiness, which anyone may read: it contains no details of the
    /// store.
    pub(super) fn public_reason(&self) -> String {
        match self {
            EnqueueError::Lookup(
                error @ (LookupError::ColumnGone { .. }
                | LookupError::TableGone { .. }
                | LookupError::Invisible(_)),
            ) => error.to_string(),
            EnqueueError::Lookup(LookupError::Query { table, source }) => {
                let state = source.code().map_or("no answer", |state| state.code());
                format!(
                    "events cannot be stored now: looking up {table} on the primary fails ({state})"
                )
            }
            EnqueueError::Store(StoreError::Query(source)) => {
                let state = source.code().map_or("no answer", |state| state.code());
                format!("events cannot be stored now: the store rejects a statement ({state})")
            }
            _ => "events cannot be stored now".to_owned(),
        }
    }

    /// Returns whether a retry can succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            EnqueueError::Store(StoreError::Corrupt(_)) => false,
            EnqueueError::Store(_) | EnqueueError::Lookup(_) => true,
            EnqueueError::Superseded(_)
            | EnqueueError::StoreBehind(_)
            | EnqueueError::NoCheckpoint(_) => false,
        }
    }
}
