//! Who changed what, and when: written in the transaction of the change itself.

use deadpool_postgres::Transaction;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::event::UserId;

/// Who makes a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: UserId,
    pub via: Via,
}

/// How they showed who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// An API token, by its id.
    Token(Uuid),
    /// A token of the platform's.
    Jwt,
    /// The user interface, with the API token that its session began with.
    Session(Option<Uuid>),
    CommandLine,
    /// Nobody: Walhook does it by itself.
    Automatic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    WebhookCreated,
    WebhookUpdated,
    WebhookDeleted,
    WebhookDisabled,
    SecretRegenerated,
    TokenCreated,
    TokenRevoked,
    DeliveryRedelivered,
    RecoveryBegun,
    WebhookTested,
    /// To the user interface.
    SignedIn,
    /// Of which only the erasure's own id is kept.
    UserErased,
}

impl Action {
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::WebhookCreated => "webhook.created",
            Action::WebhookUpdated => "webhook.updated",
            Action::WebhookDeleted => "webhook.deleted",
            Action::WebhookDisabled => "webhook.disabled",
            Action::SecretRegenerated => "webhook.secret_regenerated",
            Action::TokenCreated => "token.created",
            Action::TokenRevoked => "token.revoked",
            Action::DeliveryRedelivered => "webhook.redelivered",
            Action::RecoveryBegun => "webhook.recovery_begun",
            Action::WebhookTested => "webhook.tested",
            Action::SignedIn => "user.signed_in",
            Action::UserErased => "user.erased",
        }
    }
}

/// Records what `actor` did to the webhook, token or session `subject`; `changed` names the fields.
pub async fn record(
    transaction: &Transaction<'_>,
    actor: &Actor,
    action: Action,
    subject: Uuid,
    changed: &[&str],
) -> Result<()> {
    let (via, token) = match actor.via {
        Via::Token(token) => ("token", Some(token)),
        Via::Jwt => ("jwt", None),
        Via::Session(token) => ("session", token),
        Via::CommandLine => ("command_line", None),
        Via::Automatic => ("automatic", None),
    };
    let statement = transaction.prepare_cached(include_str!("../../sql/store/audit_insert.sql")).await?;
    let id = Uuid::now_v7();
    transaction
        .execute(&statement, &[&id, &&*actor.user.0, &via, &token, &action.as_str(), &subject, &changed])
        .await?;
    Ok(())
}

/// Forgets what is older than `retention_days`, and says how many records that were.
pub async fn remove_old(store: &Store, retention_days: u32) -> Result<u64> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/audit_remove.sql")).await?;
    let days = i32::try_from(retention_days).unwrap_or(i32::MAX);
    Ok(connection.execute(&statement, &[&days]).await?)
}
