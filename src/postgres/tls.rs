//! TLS as a URL asks for it, in libpq's words. `require` verifies the server as `verify-full` does: encryption to nobody
//! knows whom protects nothing.

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

use super::parameters::Given;
use crate::tls;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(
        "sslmode={0} is none of disable, prefer, require, verify-ca and verify-full; require verifies as verify-full does"
    )]
    Mode(String),
    #[error("{parameter}: {} cannot be read as PEM: {detail}", .path.display())]
    File { parameter: &'static str, path: PathBuf, detail: String },
    #[error("sslcert and sslkey go together: the one without the other proves nothing")]
    HalfIdentity,
    #[error("sslcert and sslkey do not fit: {0}")]
    Identity(rustls::Error),
}

/// How much of the server's certificate is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// No TLS.
    Disable,
    /// TLS where the server offers it, with whomever it is.
    #[default]
    Prefer,
    /// Its authority.
    Authority,
    /// Its authority and its name.
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

    /// libpq's word for the same.
    pub const fn word(self) -> &'static str {
        match self {
            Verification::Disable => "disable",
            Verification::Prefer => "prefer",
            Verification::Authority => "verify-ca",
            Verification::Full => "verify-full",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tls {
    pub verification: Verification,
    /// The authorities to trust; the system's where none is named.
    pub authorities: Option<PathBuf>,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// What the URL's `sslmode`, `sslrootcert`, `sslcert` and `sslkey` ask for.
    pub(super) fn from_parameters(given: &Given) -> Result<Tls, TlsError> {
        let path = |name: &str| given.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let authorities = path("sslrootcert").filter(|path| path.as_os_str() != "system");
        let verification = match given.get("sslmode") {
            // Who names an authority wants it to be asked.
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
        Ok(Tls { verification, authorities, identity })
    }

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
                    Verification::Authority => Some(authority_verifier(self.roots()?, provider.clone())?),
                    _ => None,
                };
                tls::builder().dangerous().with_custom_certificate_verifier(Arc::new(Lenient { chain, provider }))
            }
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("sslcert", certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable("sslkey", key))?;
                builder.with_client_auth_cert(chain, key).map_err(TlsError::Identity)?
            }
        };
        Ok(Some(MakeRustlsConnect::new(config)))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let Some(path) = &self.authorities else { return Ok(tls::system_roots()) };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("sslrootcert", path)?);
        Ok(roots)
    }
}

fn unreadable<E: std::fmt::Display>(parameter: &'static str, path: &Path) -> impl Fn(E) -> TlsError {
    let path = path.to_owned();
    move |error| TlsError::File { parameter, path: path.clone(), detail: error.to_string() }
}

fn certificates(parameter: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    tls::certificates(path).map_err(unreadable(parameter, path))
}

fn authority_verifier(
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built.map_err(|error| TlsError::Identity(rustls::Error::General(error.to_string())))
}

/// Takes any certificate, or with `chain` any of a known authority, whatever name it is for.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
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
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The system's trusted certificates, where one file holds them.
pub fn system_certificates() -> Option<PathBuf> {
    const USUAL: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.into_iter().chain(USUAL.map(PathBuf::from)).find(|path| path.is_file())
}

/// What to do about a failed handshake, by its words.
pub(super) fn mend(text: &str) -> Option<&'static str> {
    let mends = [
        ("UnknownIssuer", "name the file with the authority's certificate in sslrootcert"),
        ("NotValidForName", "connect by the name that is in the server's certificate, or use sslmode=verify-ca"),
        ("not valid for name", "connect by the name that is in the server's certificate, or use sslmode=verify-ca"),
        ("CertificateRequired", "name our own certificate and key in sslcert and sslkey"),
    ];
    mends.iter().find(|(word, _)| text.contains(word)).map(|(_, mend)| *mend)
}
