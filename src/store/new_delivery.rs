//! The lease of deliveries that a transaction inserts.

use uuid::Uuid;

/// The lease of all leased deliveries of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct NewLease {
    pub token: Uuid,
    pub seconds: f64,
}

impl NewLease {
    /// For deliveries none of which is leased.
    pub const NONE: NewLease = NewLease {
        token: Uuid::nil(),
        seconds: 0.0,
    };
}
