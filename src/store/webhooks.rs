//! Webhooks as their owners manage them. Every statement names the user: another user's webhook does not exist.

use deadpool_postgres::Transaction;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::{Result, Store, StoreError, hours};
use crate::domain::event::{EventKind, UserId};
use crate::vault::Sealed;

/// Locks are taken in one order everywhere but for deliveries that come in meanwhile: then two transactions may wait for each
/// other, Postgres ends one, and trying again is all there is to do.
const TRIES_AFTER_DEADLOCK: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: Uuid,
    pub settings: Settings,
    pub success_count: i64,
    pub failure_count: i64,
    pub consecutive_failures: i64,
    pub last_triggered_at: Option<Timestamp>,
    pub disabled_at: Option<Timestamp>,
    pub disabled_reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What the owner sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    pub url: String,
    /// In the catalogue's order, each once.
    pub events: Vec<String>,
    pub active: bool,
}

/// A webhook whose receiver was down for long may have a million deliveries to cancel. More than the API's other statements may take.
const CANCEL_TIMEOUT: &str = "set local statement_timeout = '60s'";

/// The names of the settings.
const FIELDS: [&str; 4] = ["name", "url", "events", "active"];

impl Settings {
    /// The names of the settings in which the two differ.
    fn differences(&self, other: &Settings) -> Vec<&'static str> {
        let Settings { name, url, events, active } = self;
        let differs = [*name != other.name, *url != other.url, *events != other.events, *active != other.active];
        FIELDS.into_iter().zip(differs).filter(|(_, differs)| *differs).map(|(field, _)| field).collect()
    }
}

/// The settings to change; the others stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub name: Option<String>,
    pub url: Option<String>,
    pub events: Option<Vec<EventKind>>,
    pub active: Option<bool>,
}

/// What became of a conditional change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional<T> {
    Done(T),
    NotFound,
    /// The caller's condition does not hold for the webhook as it is.
    Refused,
}

/// A condition on the settings as they are when the change is made.
pub type Condition<'a> = &'a (dyn Fn(&Settings) -> bool + Send + Sync);

/// Creates a webhook, unless the user has `limit` of them: then none. Creations of one user take turns.
pub async fn create(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    settings: &Settings,
    secret: &Sealed,
    limit: u32,
) -> Result<Option<Webhook>> {
    let user = &actor.user;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let lock = transaction.prepare_cached(include_str!("../../sql/store/webhook_lock_user.sql")).await?;
    transaction.execute(&lock, &[&&*user.0]).await?;
    let insert = transaction.prepare_cached(include_str!("../../sql/store/webhook_insert.sql")).await?;
    let Settings { name, url, events, active } = settings;
    let limit = i64::from(limit);
    let row = transaction
        .query_opt(&insert, &[&&*user.0, &id, name, url, events, active, &secret.bytes, &secret.key_id, &limit])
        .await?;
    if row.is_some() {
        audit::record(&transaction, actor, Action::WebhookCreated, id, &FIELDS).await?;
    }
    transaction.commit().await?;
    Ok(row.as_ref().map(webhook))
}

/// The user's webhooks behind the id `after`, in the order of their ids, which is that of their creation.
pub async fn list(store: &Store, user: &UserId, after: Uuid, limit: usize) -> Result<Vec<Webhook>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/webhook_list.sql")).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = connection.query(&statement, &[&&*user.0, &after, &limit]).await?;
    Ok(rows.iter().map(webhook).collect())
}

pub async fn get(store: &Store, user: &UserId, id: Uuid) -> Result<Option<Webhook>> {
    let connection = store.connection().await?;
    let statement = connection.prepare_cached(include_str!("../../sql/store/webhook_get.sql")).await?;
    let row = connection.query_opt(&statement, &[&&*user.0, &id]).await?;
    Ok(row.as_ref().map(webhook))
}

/// Changes settings, if `condition` holds. Switching a webhook off cancels what is pending for it; switching one on that
/// was disabled automatically forgets its failures.
pub async fn update(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    changes: &Changes,
    condition: Condition<'_>,
) -> Result<Conditional<Webhook>> {
    retry_deadlocks(|| try_update(store, actor, id, changes, condition).boxed()).await
}

async fn try_update(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    changes: &Changes,
    condition: Condition<'_>,
) -> Result<Conditional<Webhook>> {
    let user = &actor.user;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    if changes.active == Some(false) {
        lock_deliveries(&transaction, user, id).await?;
    }
    let Some(found) = lock(&transaction, user, id).await? else { return Ok(Conditional::NotFound) };
    if !condition(&found.settings) {
        return Ok(Conditional::Refused);
    }
    let wanted = changes.applied_to(&found.settings);
    if wanted == found.settings {
        return Ok(Conditional::Done(found));
    }
    let forgiven = wanted.active && !found.settings.active && found.disabled_at.is_some();
    let statement = transaction.prepare_cached(include_str!("../../sql/store/webhook_update.sql")).await?;
    let Settings { name, url, events, active } = &wanted;
    let row = transaction.query_one(&statement, &[&&*user.0, &id, name, url, events, active, &forgiven]).await?;
    if found.settings.active && !wanted.active {
        cancel_deliveries(&transaction, id, "the webhook was switched off").await?;
    }
    audit::record(&transaction, actor, Action::WebhookUpdated, id, &wanted.differences(&found.settings)).await?;
    transaction.commit().await?;
    Ok(Conditional::Done(webhook(&row)))
}

/// Deletes a webhook, if `condition` holds, and cancels what is pending for it. Its log can be read no more; the rows go with
/// their day.
pub async fn delete(store: &Store, actor: &Actor, id: Uuid, condition: Condition<'_>) -> Result<Conditional<()>> {
    retry_deadlocks(|| try_delete(store, actor, id, condition).boxed()).await
}

async fn try_delete(store: &Store, actor: &Actor, id: Uuid, condition: Condition<'_>) -> Result<Conditional<()>> {
    let user = &actor.user;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    lock_deliveries(&transaction, user, id).await?;
    let Some(found) = lock(&transaction, user, id).await? else { return Ok(Conditional::NotFound) };
    if !condition(&found.settings) {
        return Ok(Conditional::Refused);
    }
    let statement = transaction.prepare_cached(include_str!("../../sql/store/webhook_delete.sql")).await?;
    transaction.execute(&statement, &[&&*user.0, &id]).await?;
    cancel_deliveries(&transaction, id, "the webhook was deleted").await?;
    audit::record(&transaction, actor, Action::WebhookDeleted, id, &[]).await?;
    transaction.commit().await?;
    Ok(Conditional::Done(()))
}

/// Puts a new secret in the old one's place. False where there is no such webhook.
pub async fn set_secret(store: &Store, actor: &Actor, id: Uuid, secret: &Sealed) -> Result<bool> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/store/webhook_set_secret.sql")).await?;
    let rows = transaction.execute(&statement, &[&&*actor.user.0, &id, &secret.bytes, &secret.key_id]).await?;
    if rows == 0 {
        return Ok(false);
    }
    audit::record(&transaction, actor, Action::SecretRegenerated, id, &["secret"]).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn lock(transaction: &Transaction<'_>, user: &UserId, id: Uuid) -> Result<Option<Webhook>> {
    let statement = transaction.prepare_cached(include_str!("../../sql/store/webhook_get_for_update.sql")).await?;
    let row = transaction.query_opt(&statement, &[&&*user.0, &id]).await?;
    Ok(row.as_ref().map(webhook))
}

async fn lock_deliveries(transaction: &Transaction<'_>, user: &UserId, webhook: Uuid) -> Result<()> {
    transaction.batch_execute(CANCEL_TIMEOUT).await?;
    let statement = transaction.prepare_cached(include_str!("../../sql/store/delivery_lock.sql")).await?;
    transaction.execute(&statement, &[&&*user.0, &webhook]).await?;
    Ok(())
}

pub(super) async fn cancel_deliveries(transaction: &Transaction<'_>, webhook: Uuid, reason: &str) -> Result<u64> {
    let statement = transaction.prepare_cached(include_str!("../../sql/store/delivery_cancel.sql")).await?;
    let cancelled = transaction.execute(&statement, &[&webhook, &reason]).await?;
    hours::add_cancelled(transaction, webhook, cancelled).await?;
    Ok(cancelled)
}

pub(super) async fn retry_deadlocks<'a, T>(attempt: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
    for _ in 1..TRIES_AFTER_DEADLOCK {
        match attempt().await {
            Err(StoreError::Query(error)) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
            result => return result,
        }
    }
    attempt().await
}

impl Changes {
    fn applied_to(&self, settings: &Settings) -> Settings {
        Settings {
            name: self.name.clone().unwrap_or_else(|| settings.name.clone()),
            url: self.url.clone().unwrap_or_else(|| settings.url.clone()),
            events: self.events.as_deref().map_or_else(|| settings.events.clone(), event_names),
            active: self.active.unwrap_or(settings.active),
        }
    }
}

/// As the store and the API write a set of events.
pub fn event_names(events: &[EventKind]) -> Vec<String> {
    events.iter().map(|kind| kind.as_str().to_owned()).collect()
}

fn webhook(row: &Row) -> Webhook {
    Webhook {
        id: row.get("id"),
        settings: Settings {
            name: row.get("name"),
            url: row.get("url"),
            events: row.get("events"),
            active: row.get("active"),
        },
        success_count: row.get("success_count"),
        failure_count: row.get("failure_count"),
        consecutive_failures: row.get("consecutive_failures"),
        last_triggered_at: row.get("last_triggered_at"),
        disabled_at: row.get("disabled_at"),
        disabled_reason: row.get("disabled_reason"),
        created_at: row.get("created_at"),
        updated_at: row.get("updated_at"),
    }
}
