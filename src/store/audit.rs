//! The audit log: who changed what, and when. Each record is inserted in the transaction of the
//! change.

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use postgres_types::ToSql;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use super::statement::Statements;
use super::{Result, Store, lowest_id_at, start_of_day};
use crate::domain::event::UserId;
use crate::sql::store as sql;

/// The rows of a user and a day: more changes than people make, and 300 kB. Further changes of one
/// kind are counted in one row.
const MAX_DAILY_ROWS: i64 = 1_000;

/// The user that makes a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: UserId,
    pub via: Via,
}

/// How the user was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// An API token, by its id.
    Token(Uuid),
    /// A token of the platform.
    Jwt,
    /// The web UI, with the API token that the user signed in with.
    Session(Option<Uuid>),
    CommandLine,
    /// Walhook itself, without a user.
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
    ReplayStarted,
    JobCancelled,
    WebhookTested,
    /// To the web UI.
    SignedIn,
    /// The record has the erasure's id only.
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
            Action::ReplayStarted => "webhook.replay_started",
            Action::JobCancelled => "webhook.job_cancelled",
            Action::WebhookTested => "webhook.tested",
            Action::SignedIn => "user.signed_in",
            Action::UserErased => "user.erased",
        }
    }
}

/// Records that `actor` changed the webhook, token or session `subject`; `changed` names the
/// fields.
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

    // Operators and Walhook itself are not limited: one row is shared with no transaction of
    // another user.
    let limit = match actor.via {
        Via::CommandLine | Via::Automatic => i64::MAX,
        Via::Token(_) | Via::Jwt | Via::Session(_) => MAX_DAILY_ROWS,
    };

    let now = Timestamp::now().as_millisecond();
    let id = Uuid::now_v7();
    let action = action.as_str();
    let today = lowest_id_at(start_of_day(now));
    let further = further_changes_id(&actor.user, action, now);

    let params: [&(dyn ToSql + Sync); 10] = [
        &id,
        &actor.user,
        &via,
        &token,
        &action,
        &subject,
        &changed,
        &today,
        &limit,
        &further,
    ];

    transaction.run(sql::audit::INSERT, &params).await.map(drop)
}

/// The id of the row that counts further changes of one kind, of a user and a day: its time is the
/// start of the day.
fn further_changes_id(user: &UserId, action: &str, now: i64) -> Uuid {
    let digest = Sha256::new()
        .chain_update(action)
        .chain_update([0])
        .chain_update(&*user.0)
        .finalize();
    let random = digest.first_chunk().expect("a digest has 32 bytes");
    Builder::from_unix_timestamp_millis(start_of_day(now).unsigned_abs(), random).into_uuid()
}

/// Removes records that are older than `retention_days`, and returns how many they were.
pub async fn remove_old(store: &Store, retention_days: u32) -> Result<u64> {
    store
        .run(
            sql::audit::REMOVE,
            &[&i32::try_from(retention_days).unwrap_or(i32::MAX)],
        )
        .await
}
