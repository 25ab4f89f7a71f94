//! Creating, reading, changing and deleting webhooks.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use url::Url;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::options::{OptionsDraft, PreparedOptions, check_filter, check_given_again};
use super::page::{Cursor, List, Page};
use super::service::Manage;
use super::settings::{EventSet, ReceiverUrl, UrlWarning, WebhookName};
use crate::domain::event::{EventKind, UserId};
use crate::domain::ordering::Ordering;
use crate::domain::signing::Signing;
use crate::store::audit::Actor;
use crate::store::options::Options;
use crate::store::webhooks::{
    self, Changes, Condition, Conditional, NewWebhook, Settings, Webhook, event_names,
};
use crate::vault::{Sealed, new_webhook_secret};

/// A webhook to create.
#[derive(Clone, Debug)]
pub struct WebhookDraft {
    pub name: WebhookName,
    pub url: ReceiverUrl,
    pub events: EventSet,
    pub active: bool,
    pub ordering: Ordering,
    pub signing: Signing,
    pub options: OptionsDraft,
}

/// The settings of a webhook to change. The others stay as they are.
#[derive(Clone, Debug, Default)]
pub struct WebhookPatch {
    pub name: Option<WebhookName>,
    pub url: Option<ReceiverUrl>,
    pub events: Option<EventSet>,
    /// False cancels pending deliveries. True after an automatic disablement resets the failure
    /// counters.
    pub active: Option<bool>,
    /// Applies to deliveries that are made afterwards.
    pub ordering: Option<Ordering>,
    /// With ed25519, a webhook without a key pair gets one. Without it, the webhook's key pair is
    /// removed.
    pub signing: Option<Signing>,
    pub options: OptionsDraft,
}

/// A new webhook with its secret, which is shown once.
pub struct CreatedWebhook {
    pub webhook: Webhook,
    pub secret: SecretString,
    pub warning: Option<UrlWarning>,
}

/// A webhook after a change.
pub struct UpdatedWebhook {
    pub webhook: Webhook,
    pub warning: Option<UrlWarning>,
}

impl Manage {
    /// Returns the number of webhooks that a user may have.
    pub fn webhook_limit(&self) -> u32 {
        self.webhooks_per_user
    }

    /// Lists the user's webhooks in the order of their creation.
    pub async fn webhooks(
        &self,
        user: &UserId,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<Webhook>> {
        let after = after.map_or(Uuid::nil(), |cursor| cursor.id);
        let rows = webhooks::list(&self.store, user, after, limit + 1).await?;
        Ok(Page::new(List::Webhooks, rows, limit, |webhook| webhook.id))
    }

    /// Returns the user's webhook with this id.
    pub async fn webhook(&self, user: &UserId, id: Uuid) -> Result<Webhook> {
        webhooks::get(&self.store, user, id)
            .await?
            .ok_or(Fault::NoSuchWebhook)
    }

    /// Creates a webhook with a new secret. Fails if its host is blocked, or if the user has as
    /// many webhooks as allowed.
    pub async fn create_webhook(
        &self,
        actor: &Actor,
        draft: WebhookDraft,
    ) -> Result<CreatedWebhook> {
        let WebhookDraft {
            name,
            url,
            events,
            active,
            ordering,
            signing,
            options,
        } = draft;

        let id = Uuid::now_v7();
        let PreparedOptions { changes, .. } = self
            .prepare_options(id, &Options::default(), options)
            .await?;
        let options = changes.applied_to(&Options::default());

        check_options(&options, &events.0)?;
        let warning = self.check_host(&actor.user, &url).await?;
        let settings = Settings {
            name: name.0,
            url: url.0,
            events: event_names(&events.0),
            active,
            ordering,
            signing,
            options,
        };

        let (secret, sealed) = self.new_secret(id);
        let headers = changes.headers.and_then(|new| new.sealed);

        let new = NewWebhook {
            id,
            settings,
            secret: sealed,
            headers,
            pair: self.key_pair_for(signing, id),
        };

        let limit = self.webhooks_per_user;
        let created = webhooks::create(&self.store, actor, &new, limit).await?;
        let webhook = created.ok_or(Fault::WebhookLimit { limit })?;

        tracing::info!(webhook = %id, user = %actor.user, "webhook created");
        Ok(CreatedWebhook {
            webhook,
            secret,
            warning,
        })
    }

    /// Changes settings if `condition` holds for those that were found, and for those at the time
    /// of the change.
    pub async fn update_webhook(
        &self,
        actor: &Actor,
        Webhook {
            id,
            settings: found,
            ..
        }: &Webhook,
        patch: WebhookPatch,
        condition: Condition<'_>,
    ) -> Result<UpdatedWebhook> {
        let id = *id;

        // Checked before the change as well, so that only the owner of this version causes DNS
        // lookups and learns of errors.
        if !condition(found) {
            return Err(Fault::VersionMismatch);
        }

        let WebhookPatch {
            name,
            url,
            events,
            active,
            ordering,
            signing,
            options,
        } = patch;

        let moves = |present: &Settings| {
            url.as_ref()
                .is_some_and(|url| !has_same_origin(&url.0, &present.url))
        };

        if moves(found) {
            check_given_again(options.headers.as_ref(), &found.options.headers)?;
        }

        let PreparedOptions {
            changes: options,
            kept,
        } = self.prepare_options(id, &found.options, options).await?;
        let changes = Changes {
            name: name.map(|name| name.0),
            url: url.as_ref().map(|url| url.0.clone()),
            events: events.map(|events| events.0),
            active,
            ordering,
            signing,
            key_pair: signing.and_then(|signing| self.key_pair_for(signing, id)),
            options,
        };

        check_changes(&changes, found)?;
        let warning = match &url {
            Some(url) => self.check_host(&actor.user, url).await?,
            None => None,
        };

        let is_allowed = |present: &Settings| {
            let is_kept = kept
                .as_ref()
                .is_none_or(|kept| present.options.headers == *kept);

            // Another edit may have moved the webhook in the meantime, and given it headers for its
            // new host.
            let has_own_headers =
                changes.options.headers.is_some() || present.options.headers.names.is_empty();
            let may_move = has_own_headers || !moves(present);
            condition(present) && is_kept && may_move && check_changes(&changes, present).is_ok()
        };

        let webhook =
            applied(webhooks::update(&self.store, actor, id, &changes, &is_allowed).await?)?;
        Ok(UpdatedWebhook { webhook, warning })
    }

    /// Deletes the webhook and cancels its pending deliveries, if `condition` holds for its
    /// settings.
    pub async fn delete_webhook(
        &self,
        actor: &Actor,
        id: Uuid,
        condition: Condition<'_>,
    ) -> Result<()> {
        applied(webhooks::delete(&self.store, actor, id, condition).await?)?;
        tracing::info!(webhook = %id, user = %actor.user, "webhook deleted");
        Ok(())
    }

    pub(super) fn new_secret(&self, webhook: Uuid) -> (SecretString, Sealed) {
        let secret = new_webhook_secret();
        let sealed = self.vault.seal(webhook, secret.expose_secret().as_bytes());
        (secret, sealed)
    }
}

/// Returns the version of a webhook's settings. It does not depend on the counters, so that a busy
/// webhook can be edited.
pub fn version(settings: &Settings) -> String {
    let Settings {
        name,
        url,
        events,
        active,
        ordering,
        signing,
        options,
    } = settings;

    let Options {
        description,
        metadata,
        filter,
        headers,
    } = options;

    // The headers' values are not here, but each change of one changes the time.
    let options = (
        description,
        metadata,
        filter,
        &headers.names,
        headers.changed_at,
    );

    let canonical = serde_json::to_vec(&(
        name,
        url,
        events,
        active,
        ordering.as_str(),
        signing.as_str(),
        options,
    ));

    let canonical = canonical.expect("strings, numbers and booleans can be serialized");
    hex::encode(&Sha256::digest(canonical)[..16])
}

/// Whether requests to both URLs go to the same scheme, host and port.
fn has_same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| Url::parse(url).map(|url| url.origin());
    matches!((origin(one), origin(other)), (Ok(one), Ok(other)) if one == other)
}

/// Checks the filter that a change leads to, if the change concerns it.
fn check_changes(changes: &Changes, present: &Settings) -> Result<()> {
    if changes.events.is_none() && changes.options.filter.is_none() {
        return Ok(());
    }

    let stored = || {
        present
            .events
            .iter()
            .filter_map(|event| event.parse().ok())
            .collect()
    };

    check_options(
        &changes.options.applied_to(&present.options),
        &changes.events.clone().unwrap_or_else(stored),
    )
}

fn check_options(options: &Options, events: &[EventKind]) -> Result<()> {
    let faults = options
        .filter
        .as_ref()
        .map(|filter| check_filter(filter, events))
        .unwrap_or_default();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Fault::InvalidOptions(faults))
    }
}

/// Converts the result of a conditional statement.
fn applied<T>(result: Conditional<T>) -> Result<T> {
    match result {
        Conditional::Done(value) => Ok(value),
        Conditional::NotFound => Err(Fault::NoSuchWebhook),
        Conditional::Refused => Err(Fault::VersionMismatch),
        Conditional::Cancelling => Err(Fault::Cancelling),
    }
}
