//! TLS by the URL's `sslmode` and related parameters, named as in libpq. `require` verifies the
//! server as `verify-full` does: encryption to an unverified server does not protect from an
//! attacker between the two.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::parameters::Parameters;
use crate::tls;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(
        "sslmode={0} is not one of disable, prefer, require, verify-ca and verify-full; require verifies as verify-full does"
    )]
    Mode(String),
    #[error("{parameter}: {} cannot be read as PEM: {detail}", .path.display())]
    File {
        parameter: &'static str,
        path: PathBuf,
        detail: String,
    },
    #[error("sslcert and sslkey must be set together")]
    HalfIdentity,
    #[error("sslcert and sslkey do not belong together: {0}")]
    Identity(rustls::Error),
}

/// How the server's certificate is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// No TLS.
    Disable,
    /// TLS if the server offers it, without verification.
    #[default]
    Prefer,
    /// The certificate's authority is verified, but not its name.
    Authority,
    /// The certificate's authority and name are verified.
    Full,
}

impl Verification {
    pub(super) const fn mode(self) -> SslMode {
        match self {
            Verification::Disable => SslMode::Disable,
            Verification::Prefer => SslMode::Prefer,
            Verification::Authority | Verification::Full => SslMode::Require,
        }
    }

    /// Returns libpq's `sslmode`.
    pub const fn word(self) -> &'static str {
        match self {
            Verification::Disable => "disable",
            Verification::Prefer => "prefer",
            Verification::Authority => "verify-ca",
            Verification::Full => "verify-full",
        }
    }
}

/// The TLS parameters of a connection URL.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    pub verification: Verification,
    /// A file of authorities to trust, instead of the system's.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads `sslmode`, `sslrootcert`, `sslcert` and `sslkey`.
    pub(super) fn from_parameters(given: &Parameters) -> Result<Tls, TlsError> {
        let path = |name: &str| {
            given
                .get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };

        let authorities = path("sslrootcert").filter(|path| path.as_os_str() != "system");
        let verification = match given.get("sslmode") {
            // With an authority to verify against, the connection must be verified.
            None if given.get("sslrootcert").is_some() => Verification::Full,
            None => Verification::default(),
            Some("disable") => Verification::Disable,
            Some("prefer" | "allow") => Verification::Prefer,
            Some("verify-ca") => Verification::Authority,
            Some("require" | "verify-full") => Verification::Full,
            Some(other) => return Err(TlsError::Mode(other.to_owned())),
        };

        let identity = match (path("sslcert"), path("sslkey")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(TlsError::HalfIdentity),
        };

        Ok(Tls {
            verification,
            authorities,
            identity,
        })
    }

    /// Returns the TLS connector, or `None` if TLS is disabled.
    pub(super) fn connector(&self) -> Result<Option<MakeRustlsConnect>, TlsError> {
        let verification = match self.verification {
            Verification::Disable => return Ok(None),
            other => other,
        };

        let provider = tls::provider();
        let builder = match verification {
            Verification::Full => tls::builder().with_root_certificates(self.roots()?),
            other => {
                let chain = match other {
                    Verification::Authority => {
                        Some(authority_verifier(self.roots()?, provider.clone())?)
                    }
                    _ => None,
                };

                tls::builder()
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(PartialVerifier { chain, provider }))
            }
        };

        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("sslcert", certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable("sslkey", key))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(TlsError::Identity)?
            }
        };

        Ok(Some(MakeRustlsConnect::new(config)))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let Some(path) = &self.authorities else {
            return Ok(tls::system_roots());
        };

        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("sslrootcert", path)?);

        Ok(roots)
    }
}

fn unreadable<E: std::fmt::Display>(
    parameter: &'static str,
    path: &Path,
) -> impl Fn(E) -> TlsError {
    let path = path.to_owned();
    move |error| TlsError::File {
        parameter,
        path: path.clone(),
        detail: error.to_string(),
    }
}

fn certificates(
    parameter: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    tls::certificates(path).map_err(unreadable(parameter, path))
}

fn authority_verifier(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|error| TlsError::Identity(rustls::Error::General(error.to_string())))
}

/// Accepts any certificate, or with `chain` any certificate of a trusted authority, for any name.
#[derive(Debug)]
struct PartialVerifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PartialVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};

        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };

        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Finds the file of the system's trusted certificates, if there is one.
pub fn system_certificates() -> Option<PathBuf> {
    const USUAL: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];

    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named
        .into_iter()
        .chain(USUAL.map(PathBuf::from))
        .find(|path| path.is_file())
}

/// Returns how to fix a failed handshake, if the text of its error is a known one.
pub(super) fn remedy(text: &str) -> Option<&'static str> {
    let remedies = [
        (
            "UnknownIssuer",
            "name the file of the authority's certificate in sslrootcert",
        ),
        (
            "NotValidForName",
            "connect by a name in the server's certificate, or use sslmode=verify-ca",
        ),
        (
            "not valid for name",
            "connect by a name in the server's certificate, or use sslmode=verify-ca",
        ),
        (
            "CertificateRequired",
            "name the client's certificate and key in sslcert and sslkey",
        ),
    ];
    remedies
        .iter()
        .find(|(word, _)| text.contains(word))
        .map(|(_, remedy)| *remedy)
}
