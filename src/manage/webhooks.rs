//! Creating, reading, changing and deleting webhooks.

use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, ListPage};
use super::service::Manage;
use crate::domain::event::UserId;
use crate::domain::settings::Settings;
use crate::store::audit::Actor;
use crate::store::webhooks::{self, Edit, NewWebhook, Updated, Webhook};
use crate::vault::{Sealed, new_webhook_secret};

/// How often a change is tried again because another one came first. Each try means that somebody
/// else's change has succeeded.
const MAX_TRIES: u32 = 5;

/// A condition on the version of a webhook.
pub type VersionCondition<'a> = &'a (dyn Fn(&Webhook) -> bool + Send + Sync);

/// A new webhook with its secret, which is shown once.
pub struct WebhookWithSecret {
    pub webhook: Webhook,
    pub secret: SecretString,
    pub warnings: Vec<Warning>,
}

/// A webhook after a change.
pub struct UpdatedWebhook {
    pub webhook: Webhook,
    pub warnings: Vec<Warning>,
}

/// Why a setting that is saved may not work.
#[derive(Debug)]
pub struct Warning {
    /// The setting, as a JSON pointer.
    pub pointer: &'static str,
    pub detail: String,
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
    ) -> Result<ListPage<Webhook>> {
        let after = after.map_or(Uuid::nil(), |cursor| cursor.id);
        let rows = webhooks::list(&self.store, user, after, limit + 1).await?;
        Ok(ListPage::new(List::Webhooks, rows, limit, |webhook| {
            webhook.id
        }))
    }

    /// Returns the user's webhook with this id.
    pub async fn webhook(&self, user: &UserId, id: Uuid) -> Result<Webhook> {
        webhooks::get(&self.store, user, id)
            .await?
            .ok_or(Fault::NoSuchWebhook)
    }

    /// Creates a webhook with a new secret. `json` gives its settings. Fails if its host is blocked,
    /// or if the user has as many webhooks as allowed.
    pub async fn create_webhook(&self, actor: &Actor, json: &[u8]) -> Result<WebhookWithSecret> {
        let id = Uuid::now_v7();
        let settings = self.read_settings(json, None)?;
        let headers = self.seal_headers(id, &settings).await?;
        let host = self.check_host(&actor.user, &settings.url).await?;
        let warnings = self.warnings(&settings, host);
        let pair = self.key_pair_for(settings.signing, id);
        let (secret, sealed) = self.new_secret(id);

        let new = NewWebhook {
            id,
            settings,
            secret: sealed,
            headers,
            pair,
        };

        let limit = self.webhooks_per_user;
        let created = webhooks::create(&self.store, actor, &new, limit).await?;
        let webhook = created.ok_or(Fault::WebhookLimit { limit })?;

        tracing::info!(webhook = %id, user = %actor.user, "webhook created");
        Ok(WebhookWithSecret {
            webhook,
            secret,
            warnings,
        })
    }

    /// Changes the settings that `json` gives, if the webhook meets `condition`. Starts again if its
    /// settings change before the edit is stored.
    pub async fn update_webhook(
        &self,
        actor: &Actor,
        id: Uuid,
        json: &[u8],
        condition: VersionCondition<'_>,
    ) -> Result<UpdatedWebhook> {
        for _ in 0..MAX_TRIES {
            let found = self.webhook_if(&actor.user, id, condition).await?;
            let settings = self.read_settings(json, Some(&found.settings))?;
            let mut edit = Edit {
                settings,
                headers: None,
                pair: None,
            };
            let wanted = &edit.settings;

            if wanted.headers != found.settings.headers {
                edit.headers = Some(self.seal_headers(id, wanted).await?);
            }

            if found.public_key.is_none() {
                edit.pair = self.key_pair_for(wanted.signing, id);
            }

            let mut host = None;

            if wanted.url != found.settings.url {
                host = self.check_host(&actor.user, &wanted.url).await?;
            }

            let warnings = self.warnings(wanted, host);

            match webhooks::update(&self.store, actor, &found, &edit).await? {
                Updated::Done(webhook) => {
                    return Ok(UpdatedWebhook {
                        webhook: *webhook,
                        warnings,
                    });
                }
                Updated::Cancelling => return Err(Fault::Cancelling),
                Updated::ChangedMeanwhile => {}
            }
        }

        Err(Fault::VersionMismatch)
    }

    /// Deletes the webhook and cancels its pending deliveries, if it meets `condition`.
    pub async fn delete_webhook(
        &self,
        actor: &Actor,
        id: Uuid,
        condition: VersionCondition<'_>,
    ) -> Result<()> {
        for _ in 0..MAX_TRIES {
            let found = self.webhook_if(&actor.user, id, condition).await?;

            if webhooks::delete(&self.store, actor, &found).await? {
                tracing::info!(webhook = %id, user = %actor.user, "webhook deleted");
                return Ok(());
            }
        }

        Err(Fault::VersionMismatch)
    }

    /// Returns the webhook if it meets `condition`. This is the first step of a change, so that only
    /// the owner of the version causes DNS lookups and learns of errors.
    async fn webhook_if(
        &self,
        user: &UserId,
        id: Uuid,
        condition: VersionCondition<'_>,
    ) -> Result<Webhook> {
        let found = self.webhook(user, id).await?;

        if condition(&found) {
            Ok(found)
        } else {
            Err(Fault::VersionMismatch)
        }
    }

    /// Returns the events of a webhook that the platform never sends.
    pub fn unavailable(&self, settings: &Settings) -> Vec<&'static str> {
        let event_types = self.catalogue.iter();
        event_types
            .filter(|event_type| !event_type.is_available)
            .map(|event_type| event_type.rule.kind.as_str())
            .filter(|name| settings.events.iter().any(|event| event == name))
            .collect()
    }

    /// Returns what may not work. `host` is why the URL's host was not checked.
    fn warnings(&self, settings: &Settings, host: Option<String>) -> Vec<Warning> {
        let unavailable = self.unavailable(settings);
        let events = (!unavailable.is_empty())
            .then(|| format!("this platform never sends {}", unavailable.join(", ")));

        let warning = |(pointer, detail): (&'static str, Option<String>)| {
            let detail = detail?;
            Some(Warning { pointer, detail })
        };
        [("/url", host), ("/events", events)]
            .into_iter()
            .filter_map(warning)
            .collect()
    }

    pub(super) fn new_secret(&self, webhook: Uuid) -> (SecretString, Sealed) {
        let secret = new_webhook_secret();
        let sealed = self.vault.seal(webhook, secret.expose_secret().as_bytes());
        (secret, sealed)
    }
}

/// Returns the version of a webhook's settings. It does not depend on the counters, so that a busy
/// webhook can be edited.
pub fn version(webhook: &Webhook) -> String {
    // The headers' values are not here, but each change of one changes the time.
    let changed_at = webhook.headers_changed_at.map(|at| at.to_string());
    let canonical = json!([webhook.settings, changed_at]).to_string();
    hex::encode(&Sha256::digest(canonical)[..16])
}
