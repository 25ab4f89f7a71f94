//! The use cases of operators on webhooks of all users. Changes are audited as those of the owner,
//! made from the command line.

use uuid::Uuid;

use super::fault::{Fault, Result};
use crate::domain::event::UserId;
use crate::domain::webhook::{BY_OPERATOR, WebhookState};
use crate::store::Store;
use crate::store::audit::{Actor, Via};
use crate::store::webhooks::{self, StateOf, Webhook};

/// Webhooks that one statement reads, which takes a few milliseconds.
const AT_ONCE: i64 = 2_000;

/// A webhook with its owner.
#[derive(Clone, Debug)]
pub struct OwnedWebhook {
    pub user: UserId,
    pub webhook: Webhook,
}

impl OwnedWebhook {
    pub fn state(&self) -> WebhookState {
        let Webhook {
            settings,
            disabled_at,
            consecutive_failures,
            ..
        } = &self.webhook;
        WebhookState::of(
            settings.active,
            disabled_at.is_some(),
            *consecutive_failures,
        )
    }

    /// Returns the operator as the audit log names one: by the command line, for the owner.
    pub fn operator(&self) -> Actor {
        Actor {
            user: self.user.clone(),
            via: Via::CommandLine,
        }
    }
}

/// Returns up to `limit` webhooks in one state, or in any, after the id `after`, in the order of
/// their ids. `user`: only of this user.
pub async fn list(
    store: &Store,
    user: Option<&UserId>,
    state: Option<WebhookState>,
    after: Uuid,
    limit: usize,
) -> Result<Vec<OwnedWebhook>> {
    let mut listed = Vec::new();
    let mut after = Some(after);

    while let Some(next) = after {
        let read = webhooks::list_states(store, user, next, AT_ONCE).await?;
        after = read.last().map(|last| last.id);

        let is_meant = |found: &StateOf| state.is_none_or(|state| state == found.state);
        for StateOf { id, user, .. } in read.into_iter().filter(is_meant) {
            if listed.len() == limit {
                return Ok(listed);
            }

            // It may have been deleted meanwhile.
            if let Some(webhook) = webhooks::get(store, &user, id).await? {
                listed.push(OwnedWebhook { user, webhook });
            }
        }
    }

    Ok(listed)
}

/// Returns a webhook of any user.
pub async fn find(store: &Store, id: Uuid) -> Result<OwnedWebhook> {
    let user = webhooks::owner(store, id).await?;
    let user = user.ok_or(Fault::NoSuchWebhook)?;
    let webhook = webhooks::get(store, &user, id).await?;

    Ok(OwnedWebhook {
        user,
        webhook: webhook.ok_or(Fault::NoSuchWebhook)?,
    })
}

/// Disables a webhook for a reason that its owner sees, and who can enable it again. Returns false
/// if it is inactive.
pub async fn disable(store: &Store, found: &OwnedWebhook, reason: &str) -> Result<bool> {
    let id = found.webhook.id;
    let reason = format!("{BY_OPERATOR}{reason}");
    let disabled = webhooks::disable(store, &found.operator(), id, &reason).await?;

    if disabled {
        tracing::info!(webhook = %id, user = %found.user, reason, "webhook disabled by an operator");
    }

    Ok(disabled)
}
