//! API tokens, and the audit log. Each token stands for one user. The store has their SHA-256 only: tokens have 244 random
//! bits and need no slow hash.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::page::{Cursor, List, ListPage};
use super::service::Manage;
use crate::domain::cell::Shard;
use crate::domain::event::UserId;
use crate::store::Store;
use crate::store::access::{self, NewToken, Token};
use crate::store::audit::{self, Actor, Record, RecordFilter, Via};
use crate::vault::random_bytes;

const PREFIX: &str = "whk_";
pub(super) const LINK_PREFIX: &str = "whl_";
/// The length of 32 bytes in base64 without padding.
const RANDOM_LENGTH: usize = 43;
/// They follow the prefix.
pub(super) const TOKEN_LENGTH: usize = PREFIX.len() + RANDOM_LENGTH;

/// Valid tokens that a user may have. Operators may create more.
const MOST_OF_A_USER: u32 = 50;

/// A new token with its text, which is shown once.
pub struct TokenWithText {
    pub token: Token,
    pub text: SecretString,
}

/// Returns the time at which a new token expires. The error is a predicate of the time.
pub fn expiry(at: Timestamp, now: Timestamp) -> Result<Timestamp, &'static str> {
    (at > now).then_some(at).ok_or("must be in the future")
}

/// Creates a token of any user on the operator's request.
pub async fn create(store: &Store, user: &UserId, new: &NewToken) -> Result<SecretString> {
    let actor = Actor {
        user: user.clone(),
        via: Via::CommandLine,
    };
    let created = insert(store, &actor, new, i64::MAX).await?;
    Ok(created.ok_or(Fault::Internal)?.text)
}

async fn insert(
    store: &Store,
    actor: &Actor,
    new: &NewToken,
    most: i64,
) -> Result<Option<TokenWithText>> {
    let random = random_text(&actor.user);
    let text: SecretString = format!("{PREFIX}{}", random.expose_secret()).into();
    let hash = hash(text.expose_secret());
    let token = access::insert_token(store, actor, new, &hash, most).await?;

    Ok(token.map(|token| TokenWithText { token, text }))
}

impl Manage {
    /// Creates a token of the user.
    pub async fn create_token(&self, actor: &Actor, new: &NewToken) -> Result<TokenWithText> {
        let limit = MOST_OF_A_USER;
        let created = insert(&self.store, actor, new, limit.into()).await?;
        let created = created.ok_or(Fault::TokenLimit { limit })?;

        tracing::info!(token = %created.token.id, user = %actor.user, "API token created");
        Ok(created)
    }

    /// Lists the user's tokens, newest first, with those that were revoked or have expired.
    pub async fn tokens(
        &self,
        user: &UserId,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Token>> {
        let last = after.map_or(Uuid::max(), |cursor| cursor.before());
        let rows = access::tokens_of(&self.store, user, Uuid::nil()..=last, limit + 1).await?;
        Ok(ListPage::new(List::Tokens, rows, limit, |token| token.id))
    }

    /// Returns a token of the user.
    pub async fn token(&self, user: &UserId, id: Uuid) -> Result<Token> {
        let mut found = access::tokens_of(&self.store, user, id..=id, 1).await?;
        found.pop().ok_or(Fault::NoSuchToken)
    }

    /// Revokes a token of the user, and ends the sessions that were opened with it.
    pub async fn revoke_token(&self, actor: &Actor, id: Uuid) -> Result<()> {
        if !access::revoke_token(&self.store, Some(actor), id).await? {
            return Err(Fault::NoSuchToken);
        }

        tracing::info!(token = %id, user = %actor.user, "API token revoked");
        Ok(())
    }

    /// Lists the user's records in the audit log, newest first.
    pub async fn audit_records(
        &self,
        user: &UserId,
        filter: RecordFilter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<ListPage<Record>> {
        let before = after.map_or(Uuid::max(), |cursor| cursor.id);
        let rows = audit::list(&self.store, user, filter, before, limit + 1).await?;
        Ok(ListPage::new(List::Audit, rows, limit, |record| record.id))
    }
}

/// Whether the text has the prefix of API tokens. Other tokens may be the platform's.
pub fn is_api_token(token: &str) -> bool {
    token.starts_with(PREFIX)
}

/// Returns 256 bits in base64: the user's shard, by which one address for several cells finds the
/// user's store, then random ones.
pub(super) fn random_text(user: &UserId) -> SecretString {
    let mut bits = random_bytes();
    Shard::of(user).write(&mut bits);
    URL_SAFE_NO_PAD.encode(bits).into()
}

/// Returns the shard of the user of a token, a session or a sign-in link that Walhook has made. None
/// for another text.
pub fn shard(credential: &str) -> Option<Shard> {
    let text = credential.strip_prefix(PREFIX).unwrap_or(credential);
    let text = text.strip_prefix(LINK_PREFIX).unwrap_or(text);
    let bits = URL_SAFE_NO_PAD.decode(text.get(..RANDOM_LENGTH)?).ok()?;
    Some(Shard::read(bits.try_into().ok()?))
}

/// Returns the form in which the store has tokens, sessions' ids and sign-in links.
pub fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}
