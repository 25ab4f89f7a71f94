//! Certificates of our own, and listeners that speak TLS with them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A certificate authority that nobody knows unless told.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate of its own"))
    }

    /// Its certificate in a file, as `delivery.extra_ca_file` wants it; gone when dropped.
    pub fn file(&self) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), self.0.pem()).expect("a temporary file can be written");
        file
    }

    /// A server's configuration with a certificate for `name`, which offers these protocols.
    pub fn server(&self, name: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        self.server_with(CertificateParams::new(vec![name.to_owned()]).expect("a name"), protocols)
    }

    /// The same with a certificate whose time is over.
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
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Connections whose handshake succeeded.
pub struct TlsListener {
    pub tcp: TcpListener,
    pub config: Arc<ServerConfig>,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let acceptor = TlsAcceptor::from(self.config.clone());
        loop {
            let (stream, address) = self.tcp.accept().await.expect("connections come in");
            if let Ok(stream) = acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
