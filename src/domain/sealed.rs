//! Encrypted values, as the store keeps them.

/// A secret, encrypted with one of the master keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub key_id: String,
    /// Nonce, ciphertext and tag.
    pub bytes: Vec<u8>,
}
