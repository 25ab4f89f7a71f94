//! Verifies JWT signatures with ring, which TLS needs anyway. `jsonwebtoken`'s own providers would
//! add a second implementation of RSA and the curves (aws-lc or the RustCrypto crates).

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
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

    let scheme = Scheme::of(*algorithm).ok_or(ErrorKind::InvalidAlgorithm)?;
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        scheme,
        key: key.clone(),
    }))
}

/// How ring verifies one algorithm.
#[derive(Clone, Copy)]
enum Scheme {
    Hmac(hmac::Algorithm),
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl Scheme {
    fn of(algorithm: Algorithm) -> Option<Scheme> {
        Some(match algorithm {
            Algorithm::HS256 => Scheme::Hmac(hmac::HMAC_SHA256),
            Algorithm::HS384 => Scheme::Hmac(hmac::HMAC_SHA384),
            Algorithm::HS512 => Scheme::Hmac(hmac::HMAC_SHA512),
            Algorithm::RS256 => Scheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Scheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Scheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Scheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Scheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Scheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Scheme::Curve(&algorithms::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Scheme::Curve(&algorithms::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Scheme::Curve(&algorithms::ED25519),
            _ => return None,
        })
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.scheme, self.key.kind()) {
            (Scheme::Hmac(algorithm), DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(algorithm, secret), message, signature)
            }
            (Scheme::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Scheme::Curve(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            // Key sets contain RSA keys as modulus and exponent only.
            _ => return Err(Error::new()),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
