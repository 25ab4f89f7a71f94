//! Statements of the users who manage webhooks. Each names the user: another user's webhook is not
//! found.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::ToSql;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::keys::SealedKeyPair;
use super::options::{OptionChanges, Options};
use super::statement::{Statements, from_row};
use super::{Result, Store, delivery, sequences};
use crate::domain::event::{EventKind, UserId};
use crate::domain::ordering::Ordering;
use crate::domain::sequence::Sequences;
use crate::domain::signing::Signing;
use crate::sql::store as sql;
use crate::vault::Sealed;

static GET_FOR_UPDATE: LazyLock<String> =
    LazyLock::new(|| format!("{}\nfor update", sql::webhook::GET));

/// How long an activation waits for the deliveries of before to be cancelled. Shorter than clients
/// wait for a response.
const CANCELLATION_LIMIT: Duration = Duration::from_secs(10);
/// The pause while the rest of these deliveries is locked by other transactions.
const CANCELLATION_PAUSE: Duration = Duration::from_millis(50);

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
    /// The ed25519 key. None unless `signing` names it.
    pub public_key: Option<Vec<u8>>,
    /// When the previous secret stops signing. None if it does not sign any more.
    pub previous_secret_expires_at: Option<Timestamp>,
}

/// The settings of a webhook, which its owner can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    pub url: String,
    /// In the catalogue's order, without duplicates.
    pub events: Vec<String>,
    pub active: bool,
    /// Which deliveries wait for each other. A change applies to deliveries that are made
    /// afterwards.
    pub ordering: Ordering,
    pub signing: Signing,
    pub options: Options,
}

from_row!(Webhook {
    id,
    settings: Settings::from_row,
    success_count,
    failure_count,
    consecutive_failures,
    last_triggered_at,
    disabled_at,
    disabled_reason,
    created_at,
    updated_at,
    public_key,
    previous_secret_expires_at
});

from_row!(Settings {
    name,
    url,
    events,
    active,
    ordering,
    signing,
    options: Options::from_row
});

/// The names of the settings that every webhook has.
const FIELDS: [&str; 6] = ["name", "url", "events", "active", "ordering", "signing"];

impl Settings {
    /// Returns the names of the settings that differ.
    fn differences(&self, other: &Settings) -> Vec<&'static str> {
        let Settings {
            name,
            url,
            events,
            active,
            ordering,
            signing,
            options,
        } = self;

        let differs = [
            *name != other.name,
            *url != other.url,
            *events != other.events,
            *active != other.active,
            *ordering != other.ordering,
            *signing != other.signing,
        ];

        let fields = FIELDS
            .into_iter()
            .zip(differs)
            .filter(|(_, differs)| *differs)
            .map(|(field, _)| field);
        fields.chain(options.differences(&other.options)).collect()
    }
}

/// New values of settings. `None` keeps the old value.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub name: Option<String>,
    pub url: Option<String>,
    pub events: Option<Vec<EventKind>>,
    pub active: Option<bool>,
    pub ordering: Option<Ordering>,
    pub signing: Option<Signing>,
    /// Stored if the new settings need a key pair and the webhook has none.
    pub key_pair: Option<SealedKeyPair>,
    pub options: OptionChanges,
}

/// The result of a change with a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional<T> {
    Done(T),
    NotFound,
    /// The webhook does not meet the caller's condition.
    Refused,
    /// The webhook cannot be activated yet: what it had pending when it was switched off is being
    /// cancelled.
    Cancelling,
}

/// A condition on the settings, evaluated in the transaction of the change.
pub type Condition<'a> = &'a (dyn Fn(&Settings) -> bool + Send + Sync);

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

/// Creates a webhook. Returns `None` if the user has `limit` of them: a lock makes the creations of
/// one user consecutive.
pub async fn create(
    store: &Store,
    actor: &Actor,
    new: &NewWebhook,
    limit: u32,
) -> Result<Option<Webhook>> {
    let NewWebhook {
        id,
        settings,
        secret,
        headers,
        pair,
    } = new;

    let id = *id;
    let user = &actor.user;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;

    transaction.run(sql::webhook::LOCK_USER, &[user]).await?;

    let Settings {
        name,
        url,
        events,
        active,
        ordering,
        signing,
        options,
    } = settings;

    let ordering = ordering.as_str();
    let signing = signing.as_str();
    let Sealed { bytes, key_id } = secret;
    let limit = i64::from(limit);
    let (metadata, filter) = options.json();
    let (headers, headers_key) = sealed_parts(headers.as_ref());
    let (private, private_key_id, public) = pair_columns(pair.as_ref());

    let params: [&(dyn ToSql + Sync); 20] = [
        user,
        &id,
        name,
        url,
        events,
        active,
        bytes,
        key_id,
        &limit,
        &options.description,
        &metadata,
        &filter,
        &options.headers.names,
        &headers,
        &headers_key,
        &ordering,
        &signing,
        &private,
        &private_key_id,
        &public,
    ];

    let mut created = None;

    if transaction
        .fetch_optional::<Uuid>(sql::webhook::INSERT, &params)
        .await?
        .is_some()
    {
        created = Some(
            transaction
                .fetch_one(sql::webhook::GET, &[user, &id])
                .await?,
        );
        sequences::start(&transaction, &[id], &mut Sequences::default()).await?;
        let fields = [&FIELDS[..], &options.differences(&Options::default())].concat();
        audit::record(&transaction, actor, Action::WebhookCreated, id, &fields).await?;
    }

    transaction.commit().await?;
    Ok(created)
}

/// Returns the user's webhooks with ids greater than `after`, by id. That is the order of their
/// creation.
pub async fn list(store: &Store, user: &UserId, after: Uuid, limit: usize) -> Result<Vec<Webhook>> {
    store
        .fetch_all(
            sql::webhook::LIST,
            &[user, &after, &i64::try_from(limit).unwrap_or(i64::MAX)],
        )
        .await
}

pub async fn get(store: &Store, user: &UserId, id: Uuid) -> Result<Option<Webhook>> {
    store.fetch_optional(sql::webhook::GET, &[user, &id]).await
}

/// Changes settings, if `condition` holds. Deactivating a webhook cancels its pending deliveries: a
/// chunk before this returns, the others later. Activating one first cancels those that are left,
/// and resets the failures of one that was disabled automatically.
pub async fn update(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    changes: &Changes,
    condition: Condition<'_>,
) -> Result<Conditional<Webhook>> {
    let began = Instant::now();

    loop {
        let updated = try_update(store, actor, id, changes, condition).await?;
        match updated {
            Conditional::Done(_) if changes.active == Some(false) => store.cancel_some(id).await,
            Conditional::Cancelling if began.elapsed() < CANCELLATION_LIMIT => {
                if store.cancel_pending(id).await? == 0 {
                    tokio::time::sleep(CANCELLATION_PAUSE).await;
                }

                continue;
            }
            _ => {}
        }

        return Ok(updated);
    }
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
    let found: Option<Webhook> = transaction
        .fetch_optional(&GET_FOR_UPDATE, &[user, &id])
        .await?;
    let Some(found) = found else {
        return Ok(Conditional::NotFound);
    };

    if !condition(&found.settings) {
        return Ok(Conditional::Refused);
    }

    let wanted = changes.applied_to(&found.settings);
    if wanted == found.settings {
        return Ok(Conditional::Done(found));
    }

    if wanted.active && !found.settings.active && delivery::has_pending(&transaction, id).await? {
        return Ok(Conditional::Cancelling);
    }

    let reset = wanted.active && !found.settings.active && found.disabled_at.is_some();
    let Settings {
        name,
        url,
        events,
        active,
        ordering,
        signing,
        options,
    } = &wanted;

    let ordering = ordering.as_str();
    let signing = signing.as_str();
    let (metadata, filter) = options.json();
    let replaced = changes.options.headers.as_ref();
    let (headers, headers_key) = sealed_parts(replaced.and_then(|new| new.sealed.as_ref()));
    let (private, private_key_id, public) = pair_columns(changes.key_pair.as_ref());

    let params: [&(dyn ToSql + Sync); 19] = [
        user,
        &id,
        name,
        url,
        events,
        active,
        &reset,
        &options.description,
        &metadata,
        &filter,
        &replaced.is_some(),
        &options.headers.names,
        &headers,
        &headers_key,
        &ordering,
        &signing,
        &private,
        &private_key_id,
        &public,
    ];

    transaction.run(sql::webhook::UPDATE, &params).await?;
    let changed = transaction
        .fetch_one(sql::webhook::GET, &[user, &id])
        .await?;

    audit::record(
        &transaction,
        actor,
        Action::WebhookUpdated,
        id,
        &wanted.differences(&found.settings),
    )
    .await?;

    transaction.commit().await?;
    Ok(Conditional::Done(changed))
}

/// Deletes a webhook, if `condition` holds, and cancels its pending deliveries: a chunk before this
/// returns, the others later. Its attempt log can no longer be read; the rows are dropped with
/// their partitions.
pub async fn delete(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    condition: Condition<'_>,
) -> Result<Conditional<()>> {
    let deleted = try_delete(store, actor, id, condition).await?;
    if deleted == Conditional::Done(()) {
        store.cancel_some(id).await;
    }

    Ok(deleted)
}

async fn try_delete(
    store: &Store,
    actor: &Actor,
    id: Uuid,
    condition: Condition<'_>,
) -> Result<Conditional<()>> {
    let user = &actor.user;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let found: Option<Webhook> = transaction
        .fetch_optional(&GET_FOR_UPDATE, &[user, &id])
        .await?;
    let Some(found) = found else {
        return Ok(Conditional::NotFound);
    };

    if !condition(&found.settings) {
        return Ok(Conditional::Refused);
    }

    transaction.run(sql::webhook::DELETE, &[user, &id]).await?;
    audit::record(&transaction, actor, Action::WebhookDeleted, id, &[]).await?;
    transaction.commit().await?;

    Ok(Conditional::Done(()))
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

impl Changes {
    fn applied_to(&self, settings: &Settings) -> Settings {
        Settings {
            name: self.name.clone().unwrap_or_else(|| settings.name.clone()),
            url: self.url.clone().unwrap_or_else(|| settings.url.clone()),
            events: self
                .events
                .as_deref()
                .map_or_else(|| settings.events.clone(), event_names),
            active: self.active.unwrap_or(settings.active),
            ordering: self.ordering.unwrap_or(settings.ordering),
            options: self.options.applied_to(&settings.options),
            signing: self.signing.unwrap_or(settings.signing),
        }
    }
}

/// The names of events, as the store and the API write them.
pub fn event_names(events: &[EventKind]) -> Vec<String> {
    events.iter().map(|kind| kind.as_str().to_owned()).collect()
}

/// Returns the ordering of a webhook's new deliveries.
pub async fn ordering(transaction: &super::Transaction<'_>, webhook: Uuid) -> Result<Ordering> {
    let ordering: Option<Ordering> = transaction
        .fetch_optional(sql::webhook::ORDERING, &[&webhook])
        .await?;
    Ok(ordering.unwrap_or(Ordering::None))
}
