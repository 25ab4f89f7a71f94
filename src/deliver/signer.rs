//! Signs requests with all keys of a webhook. No I/O.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use ring::signature::Ed25519KeyPair;
use secrecy::ExposeSecret;
use sha2::Sha256;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::domain::delivery::Signatures;
use crate::domain::sealed::Sealed;
use crate::domain::signing::PreviousKeys;
use crate::domain::webhook::SealedTarget;
use crate::vault::{Vault, VaultError};

const SECRET_PREFIX: &str = "whsec_";
const ED25519_BYTES: usize = 64;

/// A webhook's keys, prepared for use.
#[derive(Clone)]
pub struct Signer {
    body: Hmac<Sha256>,
    standard: Hmac<Sha256>,
    ed25519: Option<Arc<Ed25519KeyPair>>,
    previous: Option<Previous>,
}

/// The keys before the last replacement.
#[derive(Clone)]
struct Previous {
    standard: Hmac<Sha256>,
    ed25519: Option<Arc<Ed25519KeyPair>>,
    expires_at: Timestamp,
}

impl Signer {
    /// The key of `X-Webhook-Signature` is the whole secret; the key of Standard Webhooks'
    /// signature is the decoded base64.
    pub fn new(secret: &str) -> Signer {
        Signer {
            body: mac(secret.as_bytes()),
            standard: standard(secret),
            ed25519: None,
            previous: None,
        }
    }

    /// Decrypts the webhook's keys. A previous key that cannot be decrypted is left out: deliveries
    /// need not wait for it.
    pub fn open(vault: &Vault, target: &SealedTarget) -> Result<Signer, VaultError> {
        let webhook = target.webhook;
        let secret = vault.open_text(webhook, &target.secret_key_id, &target.secret)?;
        let pair = |sealed: &Option<Sealed>| {
            sealed
                .as_ref()
                .map(|key| key_pair(vault, webhook, key))
                .transpose()
        };

        let previous = |keys: &PreviousKeys| -> Result<Previous, VaultError> {
            let secret = vault.open_text(webhook, &keys.secret.key_id, &keys.secret.bytes)?;
            let standard = standard(secret.expose_secret());
            let ed25519 = pair(&keys.private)?;

            Ok(Previous {
                standard,
                ed25519,
                expires_at: keys.expires_at,
            })
        };

        Ok(Signer {
            ed25519: pair(&target.keys.private)?,
            previous: target
                .keys
                .previous
                .as_ref()
                .and_then(|keys| previous(keys).ok()),
            ..Signer::new(secret.expose_secret())
        })
    }

    pub fn sign(&self, delivery: Uuid, at: Timestamp, body: &[u8]) -> Signatures {
        let mut id = Uuid::encode_buffer();
        let head = format!(
            "{}.{}.",
            delivery.hyphenated().encode_lower(&mut id),
            at.as_second()
        );

        let hmac = |key: &Hmac<Sha256>| {
            key.clone()
                .chain_update(&head)
                .chain_update(body)
                .finalize()
                .into_bytes()
        };

        let previous = self
            .previous
            .as_ref()
            .filter(|previous| at < previous.expires_at);
        let mut more = Vec::new();

        if let Some(previous) = previous {
            more.extend_from_slice(&hmac(&previous.standard));
        }

        let pairs = [
            self.ed25519.as_ref(),
            previous.and_then(|previous| previous.ed25519.as_ref()),
        ];
        let mut pairs = pairs.into_iter().flatten().peekable();
        if pairs.peek().is_some() {
            let content = [head.as_bytes(), body].concat();
            pairs.for_each(|pair| more.extend_from_slice(pair.sign(&content).as_ref()));
        }

        Signatures {
            body: self
                .body
                .clone()
                .chain_update(body)
                .finalize()
                .into_bytes()
                .into(),
            standard: hmac(&self.standard).into(),
            more,
        }
    }
}

/// Renders the header `webhook-signature`: entries of all keys, of each algorithm the newest first.
pub fn standard_header(signatures: &Signatures) -> String {
    let more = &signatures.more;
    let (previous, ed25519) = more.split_at(more.len() % ED25519_BYTES);
    let mut header = format!("v1,{}", STANDARD.encode(signatures.standard));
    let entries = std::iter::once(("v1", previous)).filter(|(_, previous)| !previous.is_empty());

    for (version, signature) in entries.chain(
        ed25519
            .chunks(ED25519_BYTES)
            .map(|signature| ("v1a", signature)),
    ) {
        header.push_str(&format!(" {version},{}", STANDARD.encode(signature)));
    }

    header
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn standard(secret: &str) -> Hmac<Sha256> {
    let encoded = secret.strip_prefix(SECRET_PREFIX).unwrap_or(secret);
    let decoded = STANDARD.decode(encoded).map(Zeroizing::new);
    mac(decoded
        .as_ref()
        .map_or(secret.as_bytes(), |key| key.as_slice()))
}

fn key_pair(
    vault: &Vault,
    webhook: Uuid,
    sealed: &Sealed,
) -> Result<Arc<Ed25519KeyPair>, VaultError> {
    let private = Zeroizing::new(vault.open(webhook, &sealed.key_id, &sealed.bytes)?);
    Ed25519KeyPair::from_seed_unchecked(&private)
        .map(Arc::new)
        .map_err(|_| VaultError::Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::signing::SealedKeys;

    /// RFC 8032, section 7.1, test 1.
    const PRIVATE: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn target(vault: &Vault, previous_expires_at: Timestamp) -> SealedTarget {
        let webhook = Uuid::from_u128(7);
        let seal = |key: &[u8]| vault.seal(webhook, key);
        let secret = seal(b"whsec_bmV3");
        let private = seal(&hex::decode(PRIVATE).unwrap());
        let old = PreviousKeys {
            secret: seal(b"whsec_b2xk"),
            private: Some(seal(&[9; 32])),
            expires_at: previous_expires_at,
        };

        SealedTarget {
            webhook,
            url: String::new(),
            active: true,
            secret: secret.bytes,
            secret_key_id: secret.key_id,
            headers: None,
            keys: SealedKeys {
                private: Some(private),
                previous: Some(old),
            },
            activation: 0,
        }
    }

    /// Verifies by the public key, as receivers do.
    fn is_valid(public: &[u8], content: &[u8], signature: &[u8]) -> bool {
        ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, public)
            .verify(content, signature)
            .is_ok()
    }

    #[test]
    fn previous_keys_sign_until_they_expire_and_the_body_is_signed_by_the_new_secret_alone() {
        let vault = Vault::new(&[STANDARD.encode([1; 32]).into()]).unwrap();
        let expires_at: Timestamp = "2026-03-01T09:05:00Z".parse().unwrap();
        let signer = Signer::open(&vault, &target(&vault, expires_at)).unwrap();
        let before = expires_at - jiff::SignedDuration::from_millis(1);
        let during = signer.sign(Uuid::nil(), before, b"{}");

        assert_eq!(
            during.body,
            Signer::new("whsec_bmV3")
                .sign(Uuid::nil(), before, b"{}")
                .body
        );

        assert_eq!(
            during.standard,
            Signer::new("whsec_bmV3")
                .sign(Uuid::nil(), before, b"{}")
                .standard
        );

        let (old, ed25519) = during.more.split_at(32);
        assert_eq!(
            old,
            Signer::new("whsec_b2xk")
                .sign(Uuid::nil(), before, b"{}")
                .standard
        );

        let content = format!("{}.{}.{{}}", Uuid::nil(), before.as_second());
        let public = hex::decode(PUBLIC).unwrap();

        assert!(is_valid(&public, content.as_bytes(), &ed25519[..64]));
        assert!(
            !is_valid(&public, content.as_bytes(), &ed25519[64..]),
            "it is by the previous key"
        );

        let versions = |signatures: &Signatures| -> Vec<String> {
            let header = standard_header(signatures);
            header
                .split(' ')
                .map(|entry| entry.split(',').next().unwrap().to_owned())
                .collect()
        };

        assert_eq!(versions(&during), ["v1", "v1", "v1a", "v1a"]);
        let after = signer.sign(Uuid::nil(), expires_at, b"{}");

        assert_eq!(versions(&after), ["v1", "v1a"]);
        assert!(is_valid(
            &public,
            format!("{}.{}.{{}}", Uuid::nil(), expires_at.as_second()).as_bytes(),
            &after.more
        ));
        assert!(
            Signer::new("whsec_bmV3")
                .sign(Uuid::nil(), expires_at, b"{}")
                .more
                .is_empty()
        );
    }
}
