//! The keys that sign a webhook's deliveries: replacing them, and publishing the public ones.
//!
//! Each webhook has its own ed25519 key pair. With one for all, a receiver that checks nothing but
//! the signature would accept the deliveries of other tenants.

use std::str::FromStr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::signing::Signing;
use crate::store::audit::Actor;
pub use crate::store::keys::PublicKey;
use crate::store::keys::{self, Replaced, SealedKeyPair};
use crate::telemetry::recurring;
use crate::vault::{self, KeyPair};

/// Enough to deploy a new secret to every receiver of a large organisation. A stolen secret can be
/// used until the overlap ends.
const MAX_OVERLAP: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The most public keys that are published: 100,000 take about 30 MB in memory.
const MAX_PUBLIC_KEYS: usize = 100_000;

/// How long the previous keys stay valid after a replacement: at most seven days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap(Duration);

impl Overlap {
    /// The previous keys stop working immediately.
    pub const NONE: Overlap = Overlap(Duration::ZERO);
}

impl FromStr for Overlap {
    /// A predicate of the field.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Overlap, &'static str> {
        let parsed = text
            .parse::<SignedDuration>()
            .ok()
            .and_then(|parsed| Duration::try_from(parsed).ok());
        match parsed {
            None => Err("expected a duration like `30m` or `24h`"),
            Some(overlap) if overlap > MAX_OVERLAP => Err("must be at most `168h` (7 days)"),
            Some(overlap) => Ok(Overlap(overlap)),
        }
    }
}

/// A webhook's new keys. The secret is shown once.
#[derive(Debug)]
pub struct NewKeys {
    pub secret: SecretString,
    /// None unless deliveries are signed with ed25519.
    pub public_key: Option<String>,
    /// None without an overlap.
    pub previous_expires_at: Option<Timestamp>,
}

/// The last key of a page of public keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKeyCursor(Vec<u8>);

impl PublicKeyCursor {
    pub fn parse(text: &str) -> Option<PublicKeyCursor> {
        hex::decode(text)
            .ok()
            .filter(|key| key.len() == 32)
            .map(PublicKeyCursor)
    }
}

impl std::fmt::Display for PublicKeyCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl PublicKey {
    /// A hash of the key.
    pub fn id(&self) -> String {
        hex::encode(&Sha256::digest(&self.key)[..8])
    }

    pub fn text(&self) -> String {
        public_key_text(&self.key)
    }

    /// The cursor after this key.
    pub fn cursor(&self) -> PublicKeyCursor {
        PublicKeyCursor(self.key.clone())
    }
}

/// Formats an ed25519 public key as Standard Webhooks does.
pub fn public_key_text(key: &[u8]) -> String {
    format!("whpk_{}", STANDARD.encode(key))
}

impl Manage {
    /// Replaces the secret, and the key pair if the webhook has one. The old ones stop working
    /// after `overlap`.
    pub async fn regenerate_secret(
        &self,
        actor: &Actor,
        webhook: Uuid,
        overlap: Overlap,
    ) -> Result<NewKeys> {
        let (secret, sealed) = self.new_secret(webhook);
        let pair = self.new_key_pair(webhook);
        let replaced =
            keys::replace(&self.store, actor, webhook, &sealed, &pair, overlap.0).await?;
        let Replaced {
            public_key,
            previous_expires_at,
        } = replaced.ok_or(Fault::NoSuchWebhook)?;

        tracing::info!(%webhook, user = %actor.user, overlap = ?overlap.0, "webhook secret replaced");
        Ok(NewKeys {
            secret,
            public_key: public_key.as_deref().map(public_key_text),
            previous_expires_at,
        })
    }

    /// Returns the public keys of all webhooks, in the order of the keys.
    pub async fn public_keys(&self) -> Result<Vec<PublicKey>> {
        let mut found = keys::public_keys(&self.store, MAX_PUBLIC_KEYS + 1).await?;
        if found.len() > MAX_PUBLIC_KEYS {
            recurring!(
                error,
                "more than {MAX_PUBLIC_KEYS} webhooks sign with ed25519: not all public keys are published"
            );
            found.truncate(MAX_PUBLIC_KEYS);
        }

        Ok(found)
    }

    /// Generates the key pair that deliveries with this signing need.
    pub(super) fn key_pair_for(&self, signing: Signing, webhook: Uuid) -> Option<SealedKeyPair> {
        match signing {
            Signing::Hmac => None,
            Signing::HmacAndEd25519 => Some(self.new_key_pair(webhook)),
        }
    }

    fn new_key_pair(&self, webhook: Uuid) -> SealedKeyPair {
        let KeyPair { private, public } = vault::new_key_pair();
        SealedKeyPair {
            private: self.vault.seal(webhook, &*private),
            public,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlap_is_a_duration_of_at_most_seven_days() {
        assert_eq!("24h".parse(), Ok(Overlap(Duration::from_secs(86_400))));
        assert_eq!("168h".parse(), Ok(Overlap(MAX_OVERLAP)));
        assert_eq!("0s".parse(), Ok(Overlap::NONE));
        assert_eq!(
            "168h 1ms".parse::<Overlap>(),
            Err("must be at most `168h` (7 days)")
        );

        for wrong in ["", "24", "-1h", "a day", "7d"] {
            assert_eq!(
                wrong.parse::<Overlap>(),
                Err("expected a duration like `30m` or `24h`"),
                "{wrong}"
            );
        }
    }
}
