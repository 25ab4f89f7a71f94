//! What a process holds for webhooks of each speed, and the shares of the speeds.

use std::time::Duration;

use crate::domain::delivery::DeliveryClass;

/// A receiver is responsive if its last request took at most this long: a fraction of the default
/// timeout, and longer than most receivers need. While thousands of new ones hang, permits become
/// free after this time.
pub const RESPONSIVE: Duration = Duration::from_millis(500);
/// A receiver hangs if its last request took at least this long. Those that answer sooner, even
/// late, do not wait behind it.
pub const HANGING: Duration = Duration::from_secs(2);

/// Deliveries held, the bytes of their data, how many of them are in flight, how many of these
/// without a permit, and how many permits retries have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub deliveries: usize,
    pub bytes: usize,
    pub in_flight: usize,
    pub detached: usize,
    pub retries: usize,
}

impl Load {
    /// Returns what a request in flight adds.
    pub fn request(class: DeliveryClass, is_detached: bool) -> Load {
        Load {
            in_flight: 1,
            detached: usize::from(is_detached),
            retries: usize::from(class == DeliveryClass::Retry && !is_detached),
            ..Load::default()
        }
    }

    pub fn add(&mut self, other: Load) {
        self.deliveries += other.deliveries;
        self.bytes += other.bytes;
        self.in_flight += other.in_flight;
        self.detached += other.detached;
        self.retries += other.retries;
    }

    pub fn remove(&mut self, other: Load) {
        self.deliveries -= other.deliveries;
        self.bytes -= other.bytes;
        self.in_flight -= other.in_flight;
        self.detached -= other.detached;
        self.retries -= other.retries;
    }

    pub fn permits(&self) -> usize {
        self.in_flight - self.detached
    }
}

/// What the requests to a webhook say about its receiver. The order is that of [`Speed::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speed {
    /// The last request took at most [`RESPONSIVE`], and none has taken longer since.
    Responsive,
    /// There was no request, or it was forgotten.
    #[default]
    Unknown,
    /// The last request took longer than [`RESPONSIVE`], or one does now.
    Slow,
    /// The last request took at least [`HANGING`].
    Hanging,
}

impl Speed {
    pub const ALL: [Speed; 4] = [
        Speed::Responsive,
        Speed::Unknown,
        Speed::Slow,
        Speed::Hanging,
    ];

    /// Returns what a request that took this long says about its receiver.
    pub fn of(took: Duration) -> Speed {
        if took <= RESPONSIVE {
            Speed::Responsive
        } else if took < HANGING {
            Speed::Slow
        } else {
            Speed::Hanging
        }
    }

    /// Returns the part of `total` that webhooks of this speed and of those after it may use
    /// together. At least one. However many receivers hang, a quarter is left to responsive
    /// webhooks alone, another quarter to these and new ones, and an eighth to all that do not hang.
    pub const fn share(self, total: usize) -> usize {
        match self {
            Speed::Responsive => total,
            Speed::Unknown => total - total / 4,
            Speed::Slow => total - total / 2,
            Speed::Hanging => total - total / 2 - total / 8,
        }
    }
}
