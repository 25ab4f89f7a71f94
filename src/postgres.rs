//! Plain connections to Postgres: TLS by the URL's `sslmode`, an application name, and errors without passwords.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use tokio_postgres::{Client, Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Without the parser's words: they quote what it stumbled over, which may be the password.
    #[error(
        "not a Postgres URL such as postgres://user:password@host:5432/database?sslmode=require: see to the scheme, the port \
         and the options, and percent-encode special characters in user name and password"
    )]
    Url,
    #[error("{}", describe(.0))]
    Connect(#[from] tokio_postgres::Error),
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection parameters of a URL.
pub fn parse(url: &str) -> Result<Config, ConnectError> {
    let mut config: Config = url.parse().map_err(|_| ConnectError::Url)?;
    if config.get_application_name().is_none() {
        config.application_name("walhook");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    Ok(config)
}

pub fn tls() -> MakeRustlsConnect {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    MakeRustlsConnect::new(config)
}

/// One connection, driven by a task of its own that ends with it.
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    let config = parse(url)?;
    let attempt = async {
        if config.get_ssl_mode() == SslMode::Disable {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(drive(connection));
            return Ok(client);
        }
        let (client, connection) = config.connect(tls()).await?;
        tokio::spawn(drive(connection));
        Ok(client)
    };
    tokio::time::timeout(CONNECT_TIMEOUT * 2, attempt).await.map_err(|_| ConnectError::Timeout(CONNECT_TIMEOUT * 2))?
}

async fn drive<S, T>(connection: tokio_postgres::Connection<S, T>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    if let Err(error) = connection.await {
        tracing::debug!(error = %describe(&error), "a Postgres connection ended");
    }
}

/// An error with what the server said: the crate's own text alone is "db error".
pub fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match error.as_db_error() {
        Some(db) => {
            let mut text = format!("{} ({})", db.message(), db.code().code());
            if let Some(detail) = db.detail() {
                text = format!("{text}: {detail}");
            }
            text
        }
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// A name as Postgres reads it: quoted, so that any name is taken for what it is.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `schema.table`, both quoted.
pub fn quote_qualified(schema: &str, table: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(table))
}
