//! Deliveries that a transaction inserts.

use uuid::Uuid;

/// A delivery to store. `leased` if it goes to this process's dispatcher.
#[derive(Clone, Copy, Debug)]
pub struct NewDelivery {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    pub leased: bool,
    /// Its number within its webhook.
    pub sequence: Option<i64>,
}

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
