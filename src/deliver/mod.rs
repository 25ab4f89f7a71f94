//! The stage that calls receivers: takes due deliveries, shares permits fairly among webhooks, and
//! signs and sends each attempt.

mod client;
pub mod dispatch;
mod dispatcher;
pub mod guard;
mod lookups;
pub mod request;
pub mod resolver;
mod retry_after;
pub mod schedule;
mod sender;
mod settings;
mod signer;
mod targets;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::client::OwnFault;
pub use self::dispatcher::Context;
pub use self::schedule::MAX_ROWS;
pub use self::sender::Sender;
pub use self::settings::Settings;
use crate::domain::delivery::Attempted;
use crate::handoff::{DeliveryBudget, FreshDeliveries};

/// Delivers until `stop`. Then releases waiting deliveries, and returns when requests in flight
/// have finished or the drain time is over.
///
/// `fresh` brings deliveries from the hand-off, which are leased and admitted by `budget`;
/// everything else is claimed from the store. Attempts go to `attempted`; while that is full, no
/// new ones start.
pub async fn run(
    context: Context,
    fresh: mpsc::UnboundedReceiver<FreshDeliveries>,
    budget: DeliveryBudget,
    attempted: mpsc::Sender<Attempted>,
    stop: CancellationToken,
) {
    dispatcher::Dispatcher::new(context, fresh, budget, attempted)
        .run(stop)
        .await;
}
