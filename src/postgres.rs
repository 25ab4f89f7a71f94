//! Plain connections to Postgres: TLS by the URL, an application name, and errors without passwords.

mod parameters;
pub(crate) mod row;
mod tls;

use std::time::Duration;

use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use parameters::Given;
pub use tls::{Tls, TlsError, Verification, system_certificates};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Without the parser's words: they quote what it stumbled over, which may be the password.
    #[error(
        "not a Postgres URL such as postgres://user:password@host:5432/database?sslmode=verify-full: see to the scheme, the port \
         and the options, and percent-encode special characters in user name and password"
    )]
    Url,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{}", describe(.0))]
    Connect(#[from] tokio_postgres::Error),
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the answer to a short statement is waited for, beyond the 30 s that the server has for it. The kernel's timers end a
/// connection whose peer is gone; a proxy between may answer the kernel and nothing else.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// What a URL says: the one reading of it that every connection is made from.
#[derive(Clone, Debug)]
pub struct Target {
    pub config: Config,
    pub tls: Tls,
}

impl Target {
    /// Connection parameters as libpq knows them, of either form: `postgres://…` or `key=value …`.
    pub fn parse(text: &str) -> Result<Target, ConnectError> {
        let (text, given) = Given::take_from(text).ok_or(ConnectError::Url)?;
        let tls = Tls::from_parameters(&given)?;
        let mut config: Config = text.parse().map_err(|_| ConnectError::Url)?;
        given.bound_silence(&mut config).ok_or(ConnectError::Url)?;
        config.ssl_mode(tls.verification.mode());
        if config.get_application_name().is_none() {
            config.application_name("walhook");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        Ok(Target { config, tls })
    }

    /// What makes TLS connections; nothing where none are wanted.
    pub fn connector(&self) -> Result<Option<MakeRustlsConnect>, TlsError> {
        self.tls.connector()
    }
}

/// One connection, driven by a task of its own that ends with it.
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    let Target { config, tls } = Target::parse(url)?;
    let connector = tls.connector()?;
    let attempt = async {
        let Some(connector) = connector else {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
            tokio::spawn(drive(connection));
            return Ok(client);
        };
        let (client, connection) = config.connect(connector).await?;
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
            Some(source) => {
                let text = format!("{error}: {source}");
                tls::mend(&text).map_or(text.clone(), |mend| format!("{text}; {mend}"))
            }
            None => error.to_string(),
        },
    }
}

/// A statement's template with its names filled in, at one go: a platform's names may look like those of a template.
pub fn fill(template: &str, names: &[(&str, &str)]) -> String {
    let mut parts = template.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        text.push_str(names.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        text.push_str(rest);
    }
    text
}

/// An expression for a column's text as the log has it, where booleans are `t` and `f`. `column` is quoted.
pub fn logged(column: &str) -> String {
    format!("case when pg_typeof({column}) = 'boolean'::regtype then left({column}::text, 1) else {column}::text end")
}

/// A name as Postgres reads it: quoted, so that any name is taken for what it is.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `schema.table`, both quoted.
pub fn quote_qualified(schema: &str, table: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(table))
}
