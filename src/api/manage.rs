//! What can be done with webhooks, without HTTP: the same for the API and the user interface.

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::ApiState;
use super::problem::Problem;
use super::query::no_such_webhook;
use super::settings;
use super::url_check::Warning;
use crate::domain::event::UserId;
use crate::store::audit::Actor;
use crate::store::webhooks::{self, Condition, Conditional, Settings, Webhook};
use crate::vault::new_webhook_secret;

/// A webhook with its secret, which is known now and never again.
pub struct NewWebhook {
    pub webhook: Webhook,
    pub secret: SecretString,
    pub warnings: Vec<Warning>,
}

/// A webhook as it is after a change.
pub struct UpdatedWebhook {
    pub webhook: Webhook,
    pub warnings: Vec<Warning>,
}

impl ApiState {
    /// How many webhooks a user may have.
    pub fn webhook_limit(&self) -> u32 {
        self.webhooks_per_user
    }

    /// The user's webhooks behind the id `after`, in the order of their creation.
    pub async fn webhooks(&self, user: &UserId, after: Uuid, limit: usize) -> Result<Vec<Webhook>, Problem> {
        Ok(webhooks::list(&self.store, user, after, limit).await?)
    }

    pub async fn webhook(&self, user: &UserId, id: Uuid) -> Result<Webhook, Problem> {
        webhooks::get(&self.store, user, id).await?.ok_or_else(no_such_webhook)
    }

    /// Creates a webhook from the members of its description.
    pub async fn create_webhook(&self, actor: &Actor, members: Map<String, Value>) -> Result<NewWebhook, Problem> {
        let (settings, warnings) = settings::new_settings(self, &actor.user, members).await?;
        let id = Uuid::now_v7();
        let secret = new_webhook_secret();
        let sealed = self.vault.seal(id, secret.expose_secret().as_bytes());
        let limit = self.webhooks_per_user;
        let created = webhooks::create(&self.store, actor, id, &settings, &sealed, limit).await?;
        let webhook = created.ok_or_else(|| Problem::webhook_limit_reached(limit))?;
        tracing::info!(webhook = %id, user = %actor.user, "webhook created");
        Ok(NewWebhook { webhook, secret, warnings })
    }

    /// Changes the settings that are among `members`, if `condition` holds.
    pub async fn update_webhook(
        &self,
        actor: &Actor,
        id: Uuid,
        members: Map<String, Value>,
        condition: Condition<'_>,
    ) -> Result<UpdatedWebhook, Problem> {
        // First of all: a host is looked up for those alone who have the webhook.
        let found = self.webhook(&actor.user, id).await?;
        if !condition(&found.settings) {
            return Err(Problem::precondition_failed());
        }
        let (changes, warnings) = settings::changes(self, &actor.user, members).await?;
        let webhook = applied(webhooks::update(&self.store, actor, id, &changes, condition).await?)?;
        Ok(UpdatedWebhook { webhook, warnings })
    }

    pub async fn delete_webhook(&self, actor: &Actor, id: Uuid, condition: Condition<'_>) -> Result<(), Problem> {
        applied(webhooks::delete(&self.store, actor, id, condition).await?)?;
        tracing::info!(webhook = %id, user = %actor.user, "webhook deleted");
        Ok(())
    }

    /// Puts a new secret in the old one's place.
    pub async fn regenerate_secret(&self, actor: &Actor, id: Uuid) -> Result<SecretString, Problem> {
        let secret = new_webhook_secret();
        let sealed = self.vault.seal(id, secret.expose_secret().as_bytes());
        if !webhooks::set_secret(&self.store, actor, id, &sealed).await? {
            return Err(no_such_webhook());
        }
        tracing::info!(webhook = %id, user = %actor.user, "webhook secret replaced");
        Ok(secret)
    }
}

/// The webhook's version: of what its owner sets alone, so that the counters of a busy webhook do not change it.
pub fn etag(settings: &Settings) -> String {
    let Settings { name, url, events, active } = settings;
    let canonical = serde_json::to_vec(&(name, url, events, active)).expect("texts and booleans are representable");
    format!("\"{}\"", hex::encode(&Sha256::digest(canonical)[..16]))
}

fn applied<T>(result: Conditional<T>) -> Result<T, Problem> {
    match result {
        Conditional::Done(value) => Ok(value),
        Conditional::NotFound => Err(no_such_webhook()),
        Conditional::Refused => Err(Problem::precondition_failed()),
    }
}
