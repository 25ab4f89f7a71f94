//! What the audit log records.

use super::named::named;

named! {
    /// What was done.
    pub enum Action {
        WebhookCreated = "webhook.created",
        WebhookUpdated = "webhook.updated",
        WebhookDeleted = "webhook.deleted",
        WebhookDisabled = "webhook.disabled",
        SecretRegenerated = "webhook.secret_regenerated",
        TokenCreated = "token.created",
        TokenRevoked = "token.revoked",
        DeliveryRedelivered = "webhook.redelivered",
        RecoveryBegun = "webhook.recovery_begun",
        ReplayStarted = "webhook.replay_started",
        JobCancelled = "webhook.job_cancelled",
        WebhookTested = "webhook.tested",
        /// To the web UI.
        SignedIn = "user.signed_in",
        /// The record has the erasure's id only.
        UserErased = "user.erased",
    }
}
