//! Sessions of the web UI. The store has only the SHA-256 of their ids, as it has of API tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use super::tokens::{LINK_PREFIX, TOKEN_LENGTH, hash, is_api_token, random_text};
use crate::domain::event::UserId;
use crate::domain::scope::Scope;
use crate::store::access::{self, TokenUser};
use crate::store::audit::{Actor, Via};
use crate::telemetry::recurring;
use crate::vault::{Sealed, SealedOwner};

/// A user who was authenticated, and what the request may do.
#[derive(Clone, Debug)]
pub struct Principal {
    pub actor: Actor,
    pub scope: Scope,
}

/// How long a link works: from a click to the page that it opens.
const LINK_LIFETIME: SignedDuration = SignedDuration::from_secs(60);

/// A sign-in link that was made by Walhook or by the platform.
pub struct SignInLink {
    pub user: UserId,
    /// The API token that it was made with: its end is the session's.
    pub token: Option<Uuid>,
    /// Until then, the caller must prevent a second use.
    pub expires_at: Timestamp,
}

impl Manage {
    /// Returns a link that signs in as the user of a request, without its path, and when it
    /// expires. The store has nothing of it: the link is encrypted with the master key.
    pub fn make_link(&self, actor: &Actor) -> (SecretString, Timestamp) {
        let expires_at = Timestamp::now() + LINK_LIFETIME;
        let token = match actor.via {
            Via::Token(token) => Some(token),
            Via::Session(token) => token,
            _ => None,
        };

        let content = serde_json::to_vec(&(&*actor.user.0, token, expires_at.as_millisecond()))
            .expect("a text, a UUID and a number are JSON");
        let Sealed { key_id, bytes } = self.vault.seal(SealedOwner::sign_in_link(), &content);
        let random = random_text(&actor.user);
        let random = random.expose_secret();
        let link = format!(
            "{LINK_PREFIX}{random}~{key_id}~{}",
            URL_SAFE_NO_PAD.encode(bytes)
        );
        (link.into(), expires_at)
    }

    /// Returns the content of a link that [`Manage::make_link`] has made. None if it is another
    /// text, or has expired.
    pub fn read_link(&self, link: &str) -> Option<SignInLink> {
        let (_, sealed) = link.strip_prefix(LINK_PREFIX)?.split_once('~')?;
        let (key_id, bytes) = sealed.split_once('~')?;
        let bytes = URL_SAFE_NO_PAD.decode(bytes).ok()?;
        let owner = SealedOwner::sign_in_link();
        let content = self.vault.open(owner, key_id, &bytes).ok()?;
        let (user, token, expires_at): (String, _, _) = serde_json::from_slice(&content).ok()?;
        let expires_at = Timestamp::from_millisecond(expires_at).ok()?;

        (expires_at > Timestamp::now()).then(|| SignInLink {
            user: UserId(user.into()),
            token,
            expires_at,
        })
    }

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

        let session = random_text(user);
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
