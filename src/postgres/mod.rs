//! Connections to Postgres outside the store's pool: TLS as the URL specifies, an application name,
//! and errors without passwords. Also builds SQL: fills templates and quotes identifiers.

mod disk;
mod hosts;
mod parameters;
pub(crate) mod row;
mod tls;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::Once;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use crate::sql::{quote_identifier, quote_literal, quote_qualified};
pub use disk::DiskFault;
use parameters::Parameters;
pub use tls::{Tls, TlsError, Verification, system_certificates};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Without the parser's message, which quotes the text and may contain the password.
    #[error(
        "not a Postgres URL such as postgres://user:password@host:5432/database?sslmode=verify-full: check the scheme, the host, \
         the port and the options, and percent-encode special characters in the user name and password"
    )]
    Url,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{}", describe(.0))]
    Connect(#[from] tokio_postgres::Error),
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

impl ConnectError {
    /// Returns whether a retry can succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            ConnectError::Url | ConnectError::Tls(_) => false,
            ConnectError::Connect(error) => is_transient(error),
            ConnectError::Timeout(_) => true,
        }
    }

    /// Returns whether the server rejects connections because it starts or stops.
    pub(crate) fn is_starting_or_stopping(&self) -> bool {
        matches!(self, ConnectError::Connect(error) if error.code() == Some(&SqlState::CANNOT_CONNECT_NOW))
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the response to a short statement: longer than the server's own limit of 30
/// s. The kernel closes a connection whose peer is gone, but not if a proxy in between still
/// acknowledges packets.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// A parsed connection URL, from which every connection is opened.
#[derive(Clone, Debug)]
pub struct Target {
    pub config: Config,
    pub tls: Tls,
}

impl Target {
    /// Parses libpq's connection parameters in either form: `postgres://…` or `key=value …`.
    pub fn parse(text: &str) -> Result<Target, ConnectError> {
        let (text, given) = Parameters::take_from(text).ok_or(ConnectError::Url)?;
        let tls = Tls::from_parameters(&given)?;
        let mut config: Config = text.parse().map_err(|_| ConnectError::Url)?;

        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(ConnectError::Url);
        }

        given
            .set_dead_peer_timeouts(&mut config)
            .ok_or(ConnectError::Url)?;
        config.ssl_mode(tls.verification.mode());

        if config.get_application_name().is_none() {
            config.application_name("walhook");
        }

        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }

        Ok(Target { config, tls })
    }

    /// Returns a target for each host that the URL names, whatever the role of its server is.
    pub(crate) fn hosts(&self) -> Vec<Target> {
        let only = |host| {
            let mut config = hosts::only(&self.config, host);
            config.target_session_attrs(TargetSessionAttrs::Any);

            Target {
                config,
                tls: self.tls.clone(),
            }
        };
        (0..hosts::count(&self.config)).map(only).collect()
    }

    /// Formats the first host and port.
    pub(crate) fn address(&self) -> String {
        hosts::address(&self.config)
    }

    /// Opens a connection. A background task drives it until the client is dropped.
    pub(crate) async fn connect(&self) -> Result<Client, ConnectError> {
        Ok(self.connect_to_host().await?.0)
    }

    /// Like [`connect`](Self::connect). Returns also the index of the host.
    async fn connect_to_host(&self) -> Result<(Client, usize), ConnectError> {
        let connector = self.connector()?;
        let settings = SessionSettings::new();
        let attempt = open(&self.config, connector, &settings);
        let opened = tokio::time::timeout(CONNECT_TIMEOUT * 2, attempt).await;
        let (client, _, host) =
            opened.map_err(|_| ConnectError::Timeout(CONNECT_TIMEOUT * 2))??;
        Ok((client, host))
    }

    /// Returns the TLS connector, or `None` with `sslmode=disable`.
    pub fn connector(&self) -> Result<Option<MakeRustlsConnect>, TlsError> {
        self.tls.connector()
    }
}

/// Opens a connection. A background task drives it until the client is dropped.
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    Target::parse(url)?.connect().await
}

/// Opens a connection on which the server reports notifications of a channel. Each one wakes the
/// task that waits for `wake`.
pub(crate) async fn listen(
    url: &str,
    channel: &str,
    wake: Arc<Notify>,
) -> Result<Client, ConnectError> {
    let target = Target::parse(url)?;
    let connect = async {
        let connector = target.connector()?;
        let (client, ..) = open_configured(&target.config, connector, Some(wake)).await?;
        client.batch_execute(&format!("listen {channel}")).await?;
        Ok(client)
    };

    tokio::time::timeout(CONNECT_TIMEOUT * 2, connect)
        .await
        .unwrap_or(Err(ConnectError::Timeout(CONNECT_TIMEOUT * 2)))
}

/// Like [`connect`]. Returns also the target with only the host that was connected to, for further
/// connections to the same server.
pub(crate) async fn connect_to_host(url: &str) -> Result<(Client, Target), ConnectError> {
    let target = Target::parse(url)?;
    let (client, host) = target.connect_to_host().await?;

    Ok((
        client,
        Target {
            config: hosts::only(&target.config, host),
            ..target
        },
    ))
}

/// Settings of a session, by the names of the server's parameters.
pub(crate) type SessionSettings = Vec<(&'static str, String)>;

/// The settings of every session, whatever the defaults of its role and database are.
const SETTINGS: [(&str, &str); 2] = [
    // The server chooses JIT compilation for high estimated costs: of statements that visit many
    // webhooks, and of those that read the catalog of a database with hundreds of tables. It takes
    // a hundred times as long as the statements themselves, and seconds on a busy server.
    ("jit", "off"),
    // Statements that wait for a row continue with its new version. At higher levels they would
    // fail. Transactions that need one snapshot ask for it.
    ("default_transaction_isolation", "read\\ committed"),
];

/// Returns a statement that removes the limit of transactions in a session, or in its transaction.
pub(crate) fn without_transaction_timeout(is_local: bool) -> String {
    set_transaction_timeout("'0'", is_local)
}

/// Returns a statement that restores the limit of transactions in a session.
pub(crate) fn reset_transaction_timeout() -> String {
    set_transaction_timeout("reset_val", false)
}

/// No startup parameter and no `SET`: versions before 17 do not know it.
fn set_transaction_timeout(value: &str, is_local: bool) -> String {
    format!(
        "select set_config(name, {value}, {is_local}) from pg_catalog.pg_settings where name = 'transaction_timeout'"
    )
}

/// Opens a connection to the first of the hosts that accepts, and starts the task that drives it.
/// Returns also the host's index.
///
/// The settings are startup parameters and not a `SET`: behind a pooler in transaction mode, a
/// `SET` would stay with a session that another client gets next.
pub(crate) async fn open(
    config: &Config,
    tls: Option<MakeRustlsConnect>,
    settings: &SessionSettings,
) -> Result<(Client, JoinHandle<()>, usize), tokio_postgres::Error> {
    let given = settings.iter().map(|(name, value)| (*name, value.as_str()));
    let settings: Vec<_> = SETTINGS.into_iter().chain(given).collect();

    static REJECTED: Once = Once::new();
    let mut configured = config.clone();
    configured.options(with_settings(config, &settings));

    match open_configured(&configured, tls.clone(), None).await {
        // A pooler that does not accept these startup parameters.
        Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
            let names: Vec<&str> = settings.iter().map(|(name, _)| *name).collect();
            let settings = names.join(", ");
            REJECTED.call_once(|| {
                tracing::info!(%error, settings, "a pooler does not accept settings: set them for the role");
            });
            open_configured(config, tls, None).await
        }
        result => result,
    }
}

async fn open_configured(
    config: &Config,
    tls: Option<MakeRustlsConnect>,
    wake: Option<Arc<Notify>>,
) -> Result<(Client, JoinHandle<()>, usize), tokio_postgres::Error> {
    match tls {
        None => {
            let (client, connection, host) = hosts::connect(config, NoTls).await?;
            Ok((client, tokio::spawn(drive(connection, wake)), host))
        }
        Some(tls) => {
            let (client, connection, host) = hosts::connect(config, tls).await?;
            Ok((client, tokio::spawn(drive(connection, wake)), host))
        }
    }
}

/// Returns the value of `options` that also sets `settings` in the session. Later settings override
/// earlier ones.
pub(crate) fn with_settings(config: &Config, settings: &[(&'static str, &str)]) -> String {
    let mut options = config.get_options().unwrap_or_default().to_owned();

    for (name, value) in settings {
        options.push_str(&format!(" -c {name}={value}"));
    }

    options
}

/// Returns the least possible difference between a server's clock and this machine's. `theirs` was
/// read after `before`.
pub(crate) fn clock_skew(theirs: Timestamp, before: Timestamp) -> SignedDuration {
    let behind = before.duration_since(theirs);
    let ahead = theirs.duration_since(Timestamp::now());
    behind.max(ahead).max(SignedDuration::ZERO)
}

/// Drives a connection until it ends. Notifications wake the task that waits for `wake`.
async fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, wake: Option<Arc<Notify>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let ended = match wake {
        None => connection.await,
        Some(wake) => loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => wake.notify_one(),
                Some(Ok(_)) => {}
                Some(Err(error)) => break Err(error),
                None => break Ok(()),
            }
        },
    };

    if let Err(error) = ended {
        tracing::debug!(error = %describe(&error), "a Postgres connection ended");
    }
}

/// Returns whether the server accepted the connection and then rejected a statement.
pub fn is_rejection(error: &tokio_postgres::Error) -> bool {
    // Classes of errors that refuse or end a connection: its establishment, authentication, the
    // database's name, too many connections, shutdown.
    const OF_CONNECTIONS: [&str; 5] = ["08", "28", "3D", "53", "57"];
    error.code().is_some_and(|code| {
        !OF_CONNECTIONS
            .iter()
            .any(|class| code.code().starts_with(class))
    })
}

/// Returns whether a retry can succeed. Errors of credentials, names and privileges are permanent;
/// all others of the server may be transient.
pub fn is_transient(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else {
        return true;
    };

    let permanent = [
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::SYNTAX_ERROR,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_COLUMN,
    ];

    !permanent.contains(code)
}

/// Returns whether the role lacks a privilege.
pub fn is_denied(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// Describes an error and its causes, each once: the text of an error of Postgres includes its
/// causes, and that of many others its first.
pub fn describe_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();

    for cause in error.chain().skip(1) {
        let of_postgres = cause.downcast_ref::<tokio_postgres::Error>();
        let cause = of_postgres.map_or_else(|| cause.to_string(), describe);

        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }

        if of_postgres.is_some() {
            break;
        }
    }

    text
}

/// Describes an error with the server's message: the crate's own text is just "db error".
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
                tls::remedy(&text).map_or(text.clone(), |remedy| format!("{text}; {remedy}"))
            }
            None => error.to_string(),
        },
    }
}

/// Replaces `{name}` in a statement's template. In one pass, because the platform's names may
/// contain braces.
pub fn fill(template: &str, names: &[(&str, &str)]) -> String {
    let mut parts = template.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();

    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        text.push_str(
            names
                .iter()
                .find(|(known, _)| *known == name)
                .map_or("", |(_, value)| value),
        );

        text.push_str(rest);
    }

    text
}

/// Returns an SQL expression for the text of a column as logical replication writes it: booleans
/// are `t` and `f`. `column` must be quoted already.
pub fn logged(column: &str) -> String {
    // Beside another argument, a domain counts as its base type.
    format!(
        "case when pg_typeof(coalesce({column}, null)) = 'boolean'::regtype then left({column}::text, 1) else {column}::text end"
    )
}

/// Returns an SQL expression for at most so many characters of a text.
pub fn limited(text: String, most: Option<usize>) -> String {
    match most {
        Some(most) => format!("left({text}, {most})"),
        None => text,
    }
}
