//! How a webhook's deliveries are signed: the choice of its owner, and the keys as they are stored.

use jiff::Timestamp;

use super::named::named;
use super::sealed::Sealed;

named! {
    /// The algorithms of `webhook-signature`. `X-Webhook-Signature` is always an HMAC.
    pub enum Signing {
        Hmac = "hmac",
        /// A second signature that can be verified without the secret.
        HmacAndEd25519 = "hmac+ed25519",
    }
}

/// The keys that sign besides a webhook's secret. Most webhooks have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedKeys {
    /// The ed25519 private key.
    pub private: Option<Sealed>,
    pub previous: Option<PreviousKeys>,
}

/// The keys before the last replacement, which sign until `expires_at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousKeys {
    pub secret: Sealed,
    pub private: Option<Sealed>,
    pub expires_at: Timestamp,
}
