//! Statements of the users who manage webhooks. Each names the user: another user's webhook is not
//! found.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::Json;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::keys::SealedKeyPair;
use super::statement::{Params, Statements, column, from_row};
use super::{Result, Store, StoreError, delivery, sequences};
use crate::domain::disablement::Standing;
use crate::domain::event::UserId;
use crate::domain::ordering::Ordering;
use crate::domain::sequence::Sequences;
use crate::domain::settings::Settings;
use crate::domain::webhook::{BY_OPERATOR, WebhookState};
use crate::sql::store as sql;
use crate::vault::Sealed;

static GET_FOR_UPDATE: LazyLock<String> =
    LazyLock::new(|| format!("{}\nfor update of webhook", sql::webhook::GET));

/// How long an activation waits for the deliveries of before to be cancelled. Shorter than clients
/// wait for a response.
const CANCELLATION_LIMIT: Duration = Duration::from_secs(10);
/// The pause while the rest of these deliveries is locked by other transactions.
const CANCELLATION_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    pub id: Uuid,
    pub settings: Settings,
    /// When a custom header or its value last changed. None if there have never been any.
    pub headers_changed_at: Option<Timestamp>,
    pub success_count: i64,
    pub failure_count: i64,
    pub consecutive_failures: i64,
    /// When the first failure since the last success occurred. None if the last attempt succeeded.
    pub failing_since: Option<Timestamp>,
    pub last_triggered_at: Option<Timestamp>,
    pub disabled_at: Option<Timestamp>,
    pub disabled_reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The ed25519 key. None unless `signing` names it.
    pub public_key: Option<Vec<u8>>,
    /// When the previous secret stops signing. None if it does not sign any more.
    pub previous_secret_expires_at: Option<Timestamp>,
}

from_row!(Webhook {
    id,
    settings,
    headers_changed_at,
    success_count,
    failure_count,
    consecutive_failures,
    failing_since,
    last_triggered_at,
    disabled_at,
    disabled_reason,
    created_at,
    updated_at,
    public_key,
    previous_secret_expires_at
});

impl Webhook {
    /// Returns the counters by which it is disabled, as of `now`.
    pub fn standing(&self, now: Timestamp) -> Standing {
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        Standing {
            active: self.settings.active,
            failures: count(self.failure_count),
            consecutive_failures: count(self.consecutive_failures),
            failing_since: self.failing_since,
            warned_at: None,
            now,
        }
    }

    pub fn is_disabled_by_operator(&self) -> bool {
        let reason = self.disabled_reason.as_deref();
        reason.is_some_and(|reason| reason.starts_with(BY_OPERATOR))
    }

    /// Whether both have the same settings, with the same values of headers.
    pub fn has_settings_of(&self, other: &Webhook) -> bool {
        self.settings == other.settings && self.headers_changed_at == other.headers_changed_at
    }
}

/// The result of an edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Updated {
    Done(Box<Webhook>),
    /// The settings have changed since they were read, or the webhook was deleted.
    ChangedMeanwhile,
    /// The webhook cannot be activated yet: what it had pending when it was switched off is being
    /// cancelled.
    Cancelling,
}

/// A webhook to create, with what is stored encrypted.
#[derive(Debug)]
pub struct NewWebhook {
    pub id: Uuid,
    pub settings: Settings,
    pub secret: Sealed,
    /// The custom headers that `settings` names.
    pub headers: Option<Sealed>,
    pub pair: Option<SealedKeyPair>,
}

/// Whether a new webhook may have the name of another one of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Free,
    Unique,
}

/// Why a webhook was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    LimitReached,
    NameTaken,
}

/// Creates a webhook, unless the user has `limit` of them or its name is taken: a lock makes the
/// creations of one user consecutive.
pub async fn create(
    store: &Store,
    actor: &Actor,
    new: &NewWebhook,
    naming: Naming,
    limit: u32,
) -> Result<Result<Webhook, Refusal>> {
    let id = new.id;
    let user = &actor.user;
    let limit = i64::from(limit);
    let settings = Json(new.settings.columns());
    let headers = sealed_parts(new.headers.as_ref());
    let pair = pair_columns(new.pair.as_ref());
    let Sealed { bytes, key_id } = &new.secret;

    let params: &Params<'_> = &[
        user, &id, &settings, &limit, bytes, key_id, &headers.0, &headers.1, &pair.0, &pair.1,
        &pair.2,
    ];

    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;

    transaction.run(sql::webhook::LOCK_USER, &[user]).await?;

    if naming == Naming::Unique {
        let taken: Vec<Uuid> = transaction
            .fetch_all(sql::webhook::FIND_BY_NAME, &[user, &new.settings.name])
            .await?;

        if !taken.is_empty() {
            return Ok(Err(Refusal::NameTaken));
        }
    }

    let inserted: Option<Uuid> = transaction
        .fetch_optional(sql::webhook::INSERT, params)
        .await?;

    if inserted.is_none() {
        return Ok(Err(Refusal::LimitReached));
    }

    let created = transaction
        .fetch_one(sql::webhook::GET, &[user, &id, &id, &1_i64])
        .await?;
    sequences::start(&transaction, &[id], &mut Sequences::default()).await?;

    let given = new.settings.differences(&Settings::default());
    audit::record(&transaction, actor, Action::WebhookCreated, id, &given).await?;
    transaction.commit().await?;

    Ok(Ok(created))
}

/// Returns the ids of the user's webhooks with this name, the first ten.
pub async fn find_by_name(store: &Store, user: &UserId, name: &str) -> Result<Vec<Uuid>> {
    store
        .fetch_all(sql::webhook::FIND_BY_NAME, &[user, &name])
        .await
}

/// Returns the user's webhooks with ids greater than `after`, by id. That is the order of their
/// creation.
pub async fn list(store: &Store, user: &UserId, after: Uuid, limit: usize) -> Result<Vec<Webhook>> {
    let first = Uuid::from_u128(after.as_u128().saturating_add(1));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: &Params<'_> = &[user, &first, &Uuid::max(), &limit];
    store.fetch_all(sql::webhook::GET, params).await
}

pub async fn get(store: &Store, user: &UserId, id: Uuid) -> Result<Option<Webhook>> {
    let params: &Params<'_> = &[user, &id, &id, &1_i64];
    store.fetch_optional(sql::webhook::GET, params).await
}

/// Returns the owner of a webhook.
pub async fn owner(store: &Store, id: Uuid) -> Result<Option<UserId>> {
    store.fetch_optional(sql::webhook::OWNER, &[&id]).await
}

/// A webhook with its owner and state.
pub struct StateOf {
    pub id: Uuid,
    pub user: UserId,
    pub state: WebhookState,
}

from_row!(StateOf {
    id,
    user = "user_id",
    state: state_of
});

fn state_of(row: &Row) -> Result<WebhookState> {
    let is_active = column(row, "active")?;
    let is_disabled = column(row, "disabled")?;
    let failures = column(row, "consecutive_failures")?;
    Ok(WebhookState::of(is_active, is_disabled, failures))
}

/// Returns the states of the next `limit` webhooks of a user, or of all, by id.
pub async fn list_states(
    store: &Store,
    user: Option<&UserId>,
    after: Uuid,
    limit: i64,
) -> Result<Vec<StateOf>> {
    let params: &Params<'_> = &[&after, &limit, &user];
    store.fetch_all(sql::webhook::LIST_STATES, params).await
}

/// Disables a webhook for a reason that it shows. Cancels pending deliveries: a chunk before this
/// returns, the others later. Returns false if it is inactive or was deleted.
pub async fn disable(store: &Store, actor: &Actor, id: Uuid, reason: &str) -> Result<bool> {
    let user = &actor.user;
    let disabled = store
        .transaction(async |transaction| {
            let params: &Params<'_> = &[user, &id, &reason];
            let disabled: Option<Uuid> = transaction
                .fetch_optional(sql::webhook::DISABLE_BY_OPERATOR, params)
                .await?;

            if disabled.is_some() {
                audit::record(transaction, actor, Action::WebhookDisabled, id, &["active"]).await?;
            }

            Ok::<_, StoreError>(disabled.is_some())
        })
        .await?;

    if disabled {
        store.cancel_some(id).await;
    }

    Ok(disabled)
}

/// What an edit leads to.
#[derive(Debug)]
pub struct Edit {
    pub settings: Settings,
    /// The custom headers, if they are replaced.
    pub headers: Option<Option<Sealed>>,
    /// Stored if the settings need a key pair and the webhook has none.
    pub pair: Option<SealedKeyPair>,
}

/// Changes settings, if those of `found` are still the present ones. Deactivating a webhook cancels
/// its pending deliveries: a chunk before this returns, the others later. Activating one first
/// cancels those that are left, and resets the failures of one that was disabled automatically.
pub async fn update(store: &Store, actor: &Actor, found: &Webhook, edit: &Edit) -> Result<Updated> {
    let began = Instant::now();

    loop {
        let updated = try_update(store, actor, found, edit).await?;
        match updated {
            Updated::Done(_) if !edit.settings.active => store.cancel_some(found.id).await,
            Updated::Cancelling if began.elapsed() < CANCELLATION_LIMIT => {
                if store.cancel_pending(found.id).await? == 0 {
                    tokio::time::sleep(CANCELLATION_PAUSE).await;
                }

                continue;
            }
            _ => {}
        }

        return Ok(updated);
    }
}

async fn try_update(store: &Store, actor: &Actor, found: &Webhook, edit: &Edit) -> Result<Updated> {
    let user = &actor.user;
    let id = found.id;
    let wanted = &edit.settings;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let Some(present) = lock(&transaction, user, found).await? else {
        return Ok(Updated::ChangedMeanwhile);
    };

    let differences = wanted.differences(&present.settings);
    if differences.is_empty() {
        return Ok(Updated::Done(Box::new(present)));
    }

    let activates = wanted.active && !present.settings.active;
    if activates && delivery::has_pending(&transaction, id).await? {
        return Ok(Updated::Cancelling);
    }

    let resets = activates && present.disabled_at.is_some();
    let settings = Json(wanted.columns());
    let replaces = edit.headers.is_some();
    let headers = sealed_parts(edit.headers.as_ref().and_then(Option::as_ref));
    let pair = pair_columns(edit.pair.as_ref());

    let params: &Params<'_> = &[
        user, &id, &settings, &resets, &replaces, &headers.0, &headers.1, &pair.0, &pair.1, &pair.2,
    ];

    transaction.run(sql::webhook::UPDATE, params).await?;
    let changed = transaction
        .fetch_one(sql::webhook::GET, &[user, &id, &id, &1_i64])
        .await?;

    audit::record(
        &transaction,
        actor,
        Action::WebhookUpdated,
        id,
        &differences,
    )
    .await?;
    transaction.commit().await?;

    Ok(Updated::Done(Box::new(changed)))
}

/// Locks the webhook, if its settings are still those that were found.
async fn lock(
    transaction: &super::Transaction<'_>,
    user: &UserId,
    found: &Webhook,
) -> Result<Option<Webhook>> {
    let params: &Params<'_> = &[user, &found.id, &found.id, &1_i64];
    let present: Option<Webhook> = transaction.fetch_optional(&GET_FOR_UPDATE, params).await?;
    Ok(present.filter(|present| present.has_settings_of(found)))
}

/// Deletes a webhook, if its settings are still those that were found, and cancels its pending
/// deliveries: a chunk before this returns, the others later. Its attempt log can no longer be
/// read; the rows are dropped with their partitions. Returns false if they have changed.
pub async fn delete(store: &Store, actor: &Actor, found: &Webhook) -> Result<bool> {
    let user = &actor.user;
    let id = found.id;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    if lock(&transaction, user, found).await?.is_none() {
        return Ok(false);
    }

    transaction.run(sql::webhook::DELETE, &[user, &id]).await?;
    audit::record(&transaction, actor, Action::WebhookDeleted, id, &[]).await?;
    transaction.commit().await?;

    drop(connection);
    store.cancel_some(id).await;
    Ok(true)
}

/// Returns the columns of a key pair: the private key, the id of its master key, and the public
/// key.
fn pair_columns(pair: Option<&SealedKeyPair>) -> (Option<&[u8]>, Option<&str>, Option<&[u8]>) {
    let private = pair.map(|pair| &pair.private);
    (
        private.map(|key| &*key.bytes),
        private.map(|key| &*key.key_id),
        pair.map(|pair| &pair.public[..]),
    )
}

/// The columns of an encrypted value that may be absent.
fn sealed_parts(sealed: Option<&Sealed>) -> (Option<&[u8]>, Option<&str>) {
    sealed
        .map(|Sealed { bytes, key_id }| (&**bytes, &**key_id))
        .unzip()
}

/// Returns the ordering of a webhook's new deliveries.
pub async fn ordering(transaction: &super::Transaction<'_>, webhook: Uuid) -> Result<Ordering> {
    let ordering: Option<Ordering> = transaction
        .fetch_optional(sql::webhook::ORDERING, &[&webhook])
        .await?;
    Ok(ordering.unwrap_or(Ordering::None))
}
