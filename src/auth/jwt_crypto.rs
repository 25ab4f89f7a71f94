//! Verifies JWT signatures with ring, which TLS needs anyway. `jsonwebtoken`'s own providers would
//! add a second implementation of RSA and the curves (aws-lc or the RustCrypto crates).

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::error::Unspecified;
use ring::hmac;
use ring::signature::{
    self as algorithms, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
    VerificationAlgorithm,
};
use signature::{Error, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` verify with ring. Must be called before the first token is verified;
/// further calls change nothing.
pub fn install() {
    // Fails if a provider is installed already, which can only be this one.
    let _ = PROVIDER.install_default();
}

/// Fails: tokens are only verified, never issued.
fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }

    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let rsa = |parameters: &RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            // Key sets contain RSA keys as modulus and exponent only.
            DecodingKeyKind::SecretOrDer(_) => Err(Unspecified),
        };

        let bytes = match self.key.kind() {
            DecodingKeyKind::SecretOrDer(bytes) => bytes,
            DecodingKeyKind::RsaModulusExponent { .. } => &[][..],
        };

        let curve = |algorithm: &'static dyn VerificationAlgorithm| {
            UnparsedPublicKey::new(algorithm, bytes).verify(message, signature)
        };

        let verified = match self.algorithm {
            Algorithm::HS256 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
                hmac::verify(&key, message, signature)
            }
            Algorithm::RS256 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&algorithms::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&algorithms::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&algorithms::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&algorithms::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => curve(&algorithms::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => curve(&algorithms::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => curve(&algorithms::ED25519),
            _ => Err(Unspecified),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
