//! Certificates for tests, and TLS listeners that use them.

use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A certificate authority that only tests trust.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate of its own"))
    }

    /// Writes its certificate to a temporary file, such as for `delivery.extra_ca_file`.
    pub fn file(&self) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), self.0.pem()).expect("a temporary file can be written");
        file
    }

    /// Returns a server configuration with a certificate for `name` that offers these protocols.
    pub fn server(&self, name: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        self.server_with(
            CertificateParams::new(vec![name.to_owned()]).expect("a name"),
            protocols,
        )
    }

    /// Like [`Authority::server`], with an expired certificate.
    pub fn expired(&self, name: &str) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        self.server_with(params, &[])
    }

    fn server_with(&self, params: CertificateParams, protocols: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key in PKCS #8");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate and its key");

        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        Arc::new(config)
    }
}

/// Serves HTTP/1.1 and HTTP/2 to every client whose handshake succeeds.
pub async fn serve(listener: TcpListener, config: Arc<ServerConfig>, router: Router) {
    let acceptor = TlsAcceptor::from(config);

    loop {
        let (stream, _) = listener.accept().await.expect("connections come in");
        let acceptor = acceptor.clone();
        let service = TowerToHyperService::new(router.clone());

        tokio::spawn(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let server = auto::Builder::new(TokioExecutor::new());
                // A client that disconnects is not an error of this server.
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }
        });
    }
}
