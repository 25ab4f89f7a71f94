//! The stretches that the outbox of the triggers is read in.
//!
//! A window is all that one snapshot sees and the one before did not. A transaction that is open across several windows is in
//! the first whose snapshot sees its commit: nothing is missed, nothing is in two, and nobody waits for it.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// Which transactions were over at one moment, as Postgres writes it: `xmin:xmax:xip,…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(Arc<str>);

impl Snapshot {
    /// Before every transaction.
    pub fn nothing() -> Self {
        Snapshot("1:1:".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first transaction that had not begun; nothing where the text is no snapshot.
    pub fn next_transaction(&self) -> Option<u64> {
        self.0.split(':').nth(1)?.parse().ok()
    }
}

impl From<&str> for Snapshot {
    fn from(text: &str) -> Self {
        Snapshot(text.into())
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a window holds: what `to` sees and `from` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub from: Snapshot,
    pub to: Snapshot,
}

impl Bounds {
    /// A window that holds nothing, before the first.
    pub fn nothing() -> Self {
        Bounds { from: Snapshot::nothing(), to: Snapshot::nothing() }
    }
}

/// The window of the outbox that a batch ends in, and the process that read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// None at the end of the last window before a switch to the WAL: the checkpoint is a position in the WAL then.
    pub bounds: Option<Bounds>,
    /// The claim on the checkpoint under which it was read: two processes give the same number to different windows.
    pub reader: Uuid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_tells_the_next_transaction() {
        assert_eq!(Snapshot::from("10:20:10,14").next_transaction(), Some(20));
        assert_eq!(Snapshot::from("10:20:").next_transaction(), Some(20));
        assert_eq!(Snapshot::from("ten").next_transaction(), None);
        assert_eq!(Snapshot::nothing().next_transaction(), Some(1));
    }
}
