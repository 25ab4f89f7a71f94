//! Creating, reading, changing and deleting webhooks.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, ListPage};
use super::service::Manage;
use crate::domain::event::UserId;
use crate::domain::members::FieldError;
use crate::domain::settings::{Base, Settings};
use crate::store::audit::Actor;
use crate::store::webhooks::{self, Edit, Naming, NewWebhook, Refusal, Updated, Webhook};
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

/// A webhook after its settings were given as a whole.
pub enum PutWebhook {
    Created(WebhookWithSecret),
    Replaced(UpdatedWebhook),
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
        let created = self.try_create(actor, json, Naming::Free).await?;
        let limit = self.webhooks_per_user;
        created.map_err(|_| Fault::WebhookLimit { limit })
    }

    /// Creates a webhook. The inner error says why the store has refused it.
    async fn try_create(
        &self,
        actor: &Actor,
        json: &[u8],
        naming: Naming,
    ) -> Result<Result<WebhookWithSecret, Refusal>> {
        let id = Uuid::now_v7();
        let settings = self.read_settings(json, Base::New)?;
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
        let created = webhooks::create(&self.store, actor, &new, naming, limit).await?;
        let webhook = match created {
            Ok(webhook) => webhook,
            Err(refusal) => return Ok(Err(refusal)),
        };

        tracing::info!(webhook = %id, user = %actor.user, "webhook created");
        Ok(Ok(WebhookWithSecret {
            webhook,
            secret,
            warnings,
        }))
    }

    /// Returns the user's only webhook with this name. None if there is none.
    pub async fn webhook_by_name(&self, user: &UserId, name: &str) -> Result<Option<Webhook>> {
        let ids = webhooks::find_by_name(&self.store, user, name).await?;

        match ids[..] {
            [] => Ok(None),
            [id] => Ok(webhooks::get(&self.store, user, id).await?),
            _ => Err(Fault::AmbiguousName { ids }),
        }
    }

    /// Creates the webhook with this name, or replaces its settings, if the present one or its
    /// absence meets `condition`. `json` need not give the name. Starts again if somebody else
    /// creates or changes it before the change is stored.
    pub async fn put_webhook(
        &self,
        actor: &Actor,
        name: &str,
        json: &[u8],
        condition: &(dyn Fn(Option<&Webhook>) -> bool + Send + Sync),
    ) -> Result<PutWebhook> {
        let json = with_name(json, name)?;
        let limit = self.webhooks_per_user;

        for _ in 0..MAX_TRIES {
            let found = self.webhook_by_name(&actor.user, name).await?;
            if !condition(found.as_ref()) {
                return Err(Fault::VersionMismatch);
            }

            match found {
                None => match self.try_create(actor, &json, Naming::Unique).await? {
                    Ok(created) => return Ok(PutWebhook::Created(created)),
                    Err(Refusal::LimitReached) => return Err(Fault::WebhookLimit { limit }),
                    Err(Refusal::NameTaken) => {}
                },
                Some(found) => {
                    let base = Base::Replacement(&found.settings);
                    let settings = self.read_settings(&json, base)?;
                    if let Some(replaced) = self.try_update(actor, &found, settings).await? {
                        return Ok(PutWebhook::Replaced(replaced));
                    }
                }
            }
        }

        Err(Fault::VersionMismatch)
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
            let settings = self.read_settings(json, Base::Edit(&found.settings))?;
            if let Some(updated) = self.try_update(actor, &found, settings).await? {
                return Ok(updated);
            }
        }

        Err(Fault::VersionMismatch)
    }

    /// Stores these settings, if the webhook still has those that were found.
    async fn try_update(
        &self,
        actor: &Actor,
        found: &Webhook,
        settings: Settings,
    ) -> Result<Option<UpdatedWebhook>> {
        let id = found.id;
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

        match webhooks::update(&self.store, actor, found, &edit).await? {
            Updated::Done(webhook) => Ok(Some(UpdatedWebhook {
                webhook: *webhook,
                warnings,
            })),
            Updated::Cancelling => Err(Fault::Cancelling),
            Updated::ChangedMeanwhile => Ok(None),
        }
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

/// Adds the name to an object of settings. Another name in it is an error: its webhook is not the
/// one that the request names.
fn with_name(json: &[u8], name: &str) -> Result<Vec<u8>> {
    let invalid = |error: FieldError| Fault::InvalidSettings(vec![error]);
    let mut members: Map<String, Value> = serde_json::from_slice(json)
        .map_err(|error| invalid(FieldError::new("", error.to_string())))?;
    let given = members.entry("name").or_insert_with(|| name.into());

    if given.as_str().map(str::trim) != Some(name) {
        let detail = "must be the name in the path, or absent: PATCH renames a webhook";
        return Err(invalid(FieldError::new("/name", detail)));
    }

    Ok(Value::Object(members).to_string().into_bytes())
}

/// Returns the version of a webhook's settings. It does not depend on the counters, so that a busy
/// webhook can be edited.
pub fn version(webhook: &Webhook) -> String {
    // The headers' values are not here, but each change of one changes the time.
    let changed_at = webhook.headers_changed_at.map(|at| at.to_string());
    let canonical = json!([webhook.settings, changed_at]).to_string();
    hex::encode(&Sha256::digest(canonical)[..16])
}
