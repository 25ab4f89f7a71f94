//! Encryption of secrets at rest: AES-256-GCM, bound to their owner by the associated data, with
//! rotation of keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::domain::headers::CustomHeaders;
pub use crate::domain::sealed::Sealed;

/// The master keys: the first encrypts, all decrypt.
pub struct Vault {
    keys: Vec<(String, LessSafeKey)>,
}

/// What an encrypted value belongs to: a row, and for all but the first value of a row also which
/// value it is. None can take the place of another, because this is the associated data of the
/// encryption.
#[derive(Clone, Copy, Debug)]
pub struct SealedOwner {
    id: Uuid,
    part: &'static str,
}

impl From<Uuid> for SealedOwner {
    fn from(id: Uuid) -> SealedOwner {
        SealedOwner { id, part: "" }
    }
}

impl SealedOwner {
    /// The custom headers of a webhook.
    pub fn headers(webhook: Uuid) -> SealedOwner {
        SealedOwner {
            id: webhook,
            part: "headers",
        }
    }

    /// A link that signs in to the web UI.
    pub fn sign_in_link() -> SealedOwner {
        SealedOwner {
            id: Uuid::nil(),
            part: "sign-in link",
        }
    }

    fn associated_data(self) -> Aad<Vec<u8>> {
        Aad::from([self.id.as_bytes(), self.part.as_bytes()].concat())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error("secrets.master_key: expected base64 of exactly 32 bytes")]
    MalformedKey,
    #[error("secrets.master_key holds no key")]
    NoKey,
    #[error(
        "key {0} is not in secrets.master_key, but secrets are encrypted with it: add it back, and run `walhook secrets reencrypt` before you remove it"
    )]
    UnknownKey(String),
    #[error(
        "a secret cannot be decrypted with its key: it is corrupt, or belongs to another owner"
    )]
    Corrupt,
}

impl Vault {
    pub fn new(master_keys: &[SecretString]) -> Result<Vault, VaultError> {
        let keys = master_keys
            .iter()
            .map(Self::key)
            .collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err(VaultError::NoKey);
        }

        Ok(Vault { keys })
    }

    fn key(encoded: &SecretString) -> Result<(String, LessSafeKey), VaultError> {
        let bytes = STANDARD
            .decode(encoded.expose_secret())
            .map_err(|_| VaultError::MalformedKey)?;
        let bytes = Zeroizing::new(bytes);
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| VaultError::MalformedKey)?;

        // Identifies the key without revealing anything about it.
        let id = hex::encode(&Sha256::digest(Sha256::digest(&*bytes))[..8]);
        Ok((id, LessSafeKey::new(key)))
    }

    /// Encrypts `secret` so that it can be decrypted only for `owner`.
    pub fn seal(&self, owner: impl Into<SealedOwner>, secret: &[u8]) -> Sealed {
        let (id, key) = &self.keys[0];
        let nonce: [u8; NONCE_LEN] = random_bytes();
        let mut encrypted = secret.to_vec();
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            owner.into().associated_data(),
            &mut encrypted,
        )
        .expect("AES-GCM encrypts any message of less than 64 GiB");

        Sealed {
            key_id: id.clone(),
            bytes: [&nonce[..], &encrypted].concat(),
        }
    }

    /// Returns the id of the key that encrypts.
    pub fn first_key(&self) -> &str {
        &self.keys[0].0
    }

    pub fn has_key(&self, key_id: &str) -> bool {
        self.keys.iter().any(|(id, _)| id == key_id)
    }

    /// Decrypts what [`Vault::seal`] encrypted for `owner` with the key `key_id`.
    pub fn open(
        &self,
        owner: impl Into<SealedOwner>,
        key_id: &str,
        sealed: &[u8],
    ) -> Result<Vec<u8>, VaultError> {
        let key = self.keys.iter().find(|(id, _)| id == key_id);
        let (_, key) = key.ok_or_else(|| VaultError::UnknownKey(key_id.to_owned()))?;
        let (nonce, encrypted) = sealed
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(VaultError::Corrupt)?;

        let mut secret = encrypted.to_vec();
        let length = key
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                owner.into().associated_data(),
                &mut secret,
            )
            .map_err(|_| VaultError::Corrupt)?
            .len();
        secret.truncate(length);
        Ok(secret)
    }

    /// Like [`Vault::open`], for a secret that is text.
    pub fn open_text(
        &self,
        owner: impl Into<SealedOwner>,
        key_id: &str,
        sealed: &[u8],
    ) -> Result<SecretString, VaultError> {
        let text = String::from_utf8(self.open(owner, key_id, sealed)?)
            .map_err(|_| VaultError::Corrupt)?;
        Ok(text.into())
    }
}

impl Vault {
    /// Encrypts the custom headers of a webhook. None without headers.
    pub fn seal_headers(&self, webhook: Uuid, headers: &CustomHeaders) -> Option<Sealed> {
        let seal = || self.seal(SealedOwner::headers(webhook), headers.to_text().as_bytes());
        (!headers.0.is_empty()).then(seal)
    }

    /// Decrypts the custom headers of a webhook. Without `sealed`, there are none.
    pub fn open_headers(
        &self,
        webhook: Uuid,
        sealed: Option<&Sealed>,
    ) -> Result<CustomHeaders, VaultError> {
        let Some(Sealed { bytes, key_id }) = sealed else {
            return Ok(CustomHeaders::default());
        };

        let text = self.open_text(SealedOwner::headers(webhook), key_id, bytes)?;
        CustomHeaders::from_text(text.expose_secret()).ok_or(VaultError::Corrupt)
    }
}

/// Returns random bytes from the operating system.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}

/// An ed25519 key pair.
pub struct KeyPair {
    pub private: Zeroizing<[u8; 32]>,
    pub public: [u8; 32],
}

/// Generates an ed25519 key pair.
pub fn new_key_pair() -> KeyPair {
    let private = Zeroizing::new(random_bytes());
    let pair =
        Ed25519KeyPair::from_seed_unchecked(&*private).expect("any 32 bytes are a private key");
    let public = pair
        .public_key()
        .as_ref()
        .try_into()
        .expect("a public key has 32 bytes");

    KeyPair { private, public }
}

/// Generates a webhook secret: `whsec_` and base64 of 32 random bytes. The HMAC key is the whole
/// string.
pub fn new_webhook_secret() -> SecretString {
    format!("whsec_{}", STANDARD.encode(random_bytes::<32>())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master_key(fill: u8) -> SecretString {
        STANDARD.encode([fill; 32]).into()
    }

    #[test]
    fn a_secret_can_be_opened_only_for_its_owner() {
        let vault = Vault::new(&[master_key(1)]).unwrap();
        let owner = Uuid::from_u128(1);
        let sealed = vault.seal(owner, b"whsec_x");

        assert_eq!(
            vault.open(owner, &sealed.key_id, &sealed.bytes).unwrap(),
            b"whsec_x"
        );
        assert!(
            vault
                .open(Uuid::from_u128(2), &sealed.key_id, &sealed.bytes)
                .is_err()
        );
        assert!(
            vault
                .open(owner, &sealed.key_id, &sealed.bytes[..11])
                .is_err()
        );
        assert_ne!(
            sealed.bytes,
            vault.seal(owner, b"whsec_x").bytes,
            "a nonce is never used twice"
        );
    }

    #[test]
    fn the_secret_and_the_headers_of_a_webhook_cannot_be_swapped() {
        let vault = Vault::new(&[master_key(1)]).unwrap();
        let webhook = Uuid::from_u128(1);
        let secret = vault.seal(webhook, b"s");
        let headers = vault.seal(SealedOwner::headers(webhook), b"h");

        assert_eq!(
            vault
                .open(
                    SealedOwner::headers(webhook),
                    &headers.key_id,
                    &headers.bytes
                )
                .unwrap(),
            b"h"
        );

        assert!(
            vault
                .open(webhook, &headers.key_id, &headers.bytes)
                .is_err()
        );
        assert!(
            vault
                .open(SealedOwner::headers(webhook), &secret.key_id, &secret.bytes)
                .is_err()
        );

        assert!(
            vault
                .open(
                    SealedOwner::headers(Uuid::from_u128(2)),
                    &headers.key_id,
                    &headers.bytes
                )
                .is_err()
        );
    }

    #[test]
    fn the_first_key_encrypts_and_all_keys_decrypt() {
        let old = Vault::new(&[master_key(1)]).unwrap();
        let rotated = Vault::new(&[master_key(2), master_key(1)]).unwrap();
        let owner = Uuid::from_u128(1);
        let sealed = old.seal(owner, b"s");

        assert_eq!(
            rotated.open(owner, &sealed.key_id, &sealed.bytes).unwrap(),
            b"s"
        );
        assert!(
            old.open(owner, &rotated.seal(owner, b"s").key_id, &sealed.bytes)
                .is_err()
        );
    }

    #[test]
    fn keys_of_another_length_are_rejected() {
        for key in ["", "c2hvcnQ=", "not base64"] {
            assert!(Vault::new(&[key.to_owned().into()]).is_err());
        }

        assert!(Vault::new(&[]).is_err());
    }
}
