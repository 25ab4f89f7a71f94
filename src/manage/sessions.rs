//! Sessions of the web UI. The store has only the SHA-256 of their ids, as it has of API tokens.

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use super::tokens::{TOKEN_LENGTH, hash, is_api_token, random_text};
use crate::domain::event::UserId;
use crate::domain::scope::Scope;
use crate::store::access::{self, TokenUser};
use crate::store::audit::{Actor, Via};
use crate::telemetry::recurring;

/// A user who was authenticated, and what the request may do.
#[derive(Clone, Debug)]
pub struct Principal {
    pub actor: Actor,
    pub scope: Scope,
}

impl Manage {
    /// Returns the user that an API token stands for. None if the token is unknown, revoked or
    /// expired.
    pub async fn token_principal(&self, token: &str) -> Result<Option<Principal>> {
        if !is_api_token(token) || token.len() != TOKEN_LENGTH {
            return Ok(None);
        }

        let found = access::token_user(&self.store, &hash(token)).await?;
        Ok(found.map(
            |TokenUser {
                 id, user, scope, ..
             }| Principal {
                actor: Actor {
                    user,
                    via: Via::Token(id),
                },
                scope,
            },
        ))
    }

    /// Returns the signed-in user of a session. None if the session or its API token has ended.
    pub async fn session_principal(&self, session: &str) -> Result<Option<Principal>> {
        let found = access::find_session(&self.store, &hash(session)).await?;
        Ok(found.map(|found| Principal {
            actor: Actor {
                user: found.user,
                via: Via::Session(found.token),
            },
            scope: found.scope,
        }))
    }

    /// Starts a session, which was opened with an API token or a sign-in link, and ends the session
    /// that it `replaces`. Returns the session's id, which is shown to the browser only.
    pub async fn sign_in(
        &self,
        user: &UserId,
        token: Option<Uuid>,
        replaces: Option<&str>,
    ) -> Result<SecretString> {
        if let Some(old) = replaces {
            self.sign_out(old).await?;
        }

        let session = random_text();
        access::insert_session(&self.store, &hash(session.expose_secret()), user, token).await?;
        tracing::info!(%user, "signed in");

        Ok(session)
    }

    /// Ends a session.
    pub async fn sign_out(&self, session: &str) -> Result<()> {
        Ok(access::end_session(&self.store, &hash(session)).await?)
    }

    /// Marks a sign-in link as used. False if it was used before. The caller must reject the link
    /// after `expires_at`.
    pub async fn use_link(&self, link: &str, expires_at: Timestamp) -> Result<bool> {
        Ok(access::use_link(&self.store, &hash(link), expires_at).await?)
    }

    /// Allows the session to show the webhook's secret for ten minutes.
    pub async fn reveal_secret(&self, session: &str, webhook: Uuid) -> Result<()> {
        Ok(access::reveal(&self.store, &hash(session), Some(webhook)).await?)
    }

    /// Forbids the session to show a secret.
    pub async fn hide_secret(&self, session: &str) -> Result<()> {
        Ok(access::reveal(&self.store, &hash(session), None).await?)
    }

    /// Returns the webhook's secret if the session may show it and the webhook is its user's.
    pub async fn revealed_secret(
        &self,
        session: &str,
        webhook: Uuid,
    ) -> Result<Option<SecretString>> {
        let Some(sealed) = access::revealed(&self.store, &hash(session), webhook).await? else {
            return Ok(None);
        };

        let secret = self
            .vault
            .open_text(webhook, &sealed.key_id, &sealed.bytes)
            .map_err(|error| {
                recurring!(error, %webhook, %error, "a webhook's secret cannot be decrypted");
                Fault::Internal
            })?;

        Ok(Some(secret))
    }
}
