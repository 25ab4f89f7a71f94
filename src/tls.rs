//! TLS client configurations (rustls with ring), and the certificate authorities that they trust.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

/// Returns the cryptography of all TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the system's certificate authorities, as they were at the first call: reading their some
/// hundred files takes long. May return none: plain http needs none.
pub fn system_roots() -> RootCertStore {
    static SYSTEM_ROOTS: LazyLock<RootCertStore> = LazyLock::new(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    });

    SYSTEM_ROOTS.clone()
}

/// Reads the certificates of a PEM file. Fails if the file contains none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err("no certificate is in it".to_owned()),
        found => found.map_err(|error| error.to_string()),
    }
}

/// Starts a configuration. The caller chooses how servers are verified.
pub fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
}

/// Returns the configuration of a client that verifies servers by `roots`.
pub fn client(roots: RootCertStore) -> ClientConfig {
    builder()
        .with_root_certificates(roots)
        .with_no_client_auth()
}
