//! The SMTP client: one mail per connection. It drives lettre's connection itself and not lettre's
//! transport, which would wait for the answer to QUIT before it reports the mail as sent.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use lettre::message::Mailbox;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use secrecy::ExposeSecret;
use tokio::time::timeout;

use super::message::{self, MailContext};
use crate::config::{Config, SmtpServer, SmtpTls};
use crate::domain::notice::Notice;

/// Covers the connection, TLS, the greeting and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Covers the mail itself. Long: a mail that is abandoned while the server still processes it may
/// arrive twice.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);
const QUIT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("mail server: {0}")]
    Smtp(#[from] Error),
    #[error("mail server: no response within {0:?}")]
    Timeout(Duration),
    #[error("the mail cannot be composed: {0}")]
    Message(#[from] lettre::error::Error),
}

impl SendError {
    /// Returns the `cause` label of the metric.
    pub fn cause(&self) -> &'static str {
        match self {
            SendError::Smtp(error) if error.is_permanent() => "refused",
            SendError::Smtp(error) if error.is_transient() => "put_off",
            SendError::Smtp(_) | SendError::Timeout(_) => "connection",
            SendError::Message(_) => "message",
        }
    }
}

/// Composes mails and sends them to the configured mail server.
#[derive(Clone)]
pub struct Mailer {
    server: SmtpServer,
    /// None for plain SMTP.
    tls: Option<TlsParameters>,
    hello: ClientId,
    context: MailContext,
}

impl Mailer {
    /// Returns None if mail is not configured.
    pub fn new(config: &Config) -> anyhow::Result<Option<Mailer>> {
        let Some(outgoing) = config.mail.outgoing()? else {
            return Ok(None);
        };

        let from = message::mailbox(&outgoing.from)
            .with_context(|| format!("mail.from: `{}` is not an e-mail address", outgoing.from))?;
        let server = outgoing.server;
        let tls = match server.tls {
            SmtpTls::Plain => None,
            _ => Some(tls(&server.host, config.mail.extra_ca_file.as_deref())?),
        };

        let hello = server
            .hello
            .clone()
            .map_or_else(ClientId::default, ClientId::Domain);
        let context = MailContext {
            from,
            service: config.service.name.clone(),
            base_path: config.http.base_path.clone(),
            public_url: config.http.public_url.clone(),
            retention_days: config.retention.days,
        };

        Ok(Some(Mailer {
            server,
            tls,
            hello,
            context,
        }))
    }

    /// Sends a notice to `to`. Returns when the mail server has accepted it.
    pub(super) async fn send(&self, notice: &Notice, to: Mailbox) -> Result<(), SendError> {
        let message = message::compose(notice, to, &self.context)?;
        let mut connection = self.connect_within_timeout().await?;
        let bytes = message.formatted();
        let sending = connection.send(message.envelope(), &bytes);

        timeout(SEND_TIMEOUT, sending)
            .await
            .map_err(|_| SendError::Timeout(SEND_TIMEOUT))??;

        // The mail is accepted, whether or not the server answers QUIT.
        tokio::spawn(async move { timeout(QUIT_TIMEOUT, connection.abort()).await });
        Ok(())
    }

    /// Connects, logs in and disconnects.
    pub async fn test(&self) -> anyhow::Result<()> {
        let mut connection = self.connect_within_timeout().await?;
        let _ = timeout(QUIT_TIMEOUT, connection.abort()).await;
        Ok(())
    }

    /// Returns `host:port` of the mail server.
    pub fn server(&self) -> String {
        format!("{}:{}", self.server.host, self.server.port)
    }

    async fn connect_within_timeout(&self) -> Result<AsyncSmtpConnection, SendError> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        Ok(connected.map_err(|_| SendError::Timeout(CONNECT_TIMEOUT))??)
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, Error> {
        let SmtpServer {
            host,
            port,
            tls,
            login,
            ..
        } = &self.server;

        let wrapped = self.tls.clone().filter(|_| *tls == SmtpTls::Wrapped);
        let address = (host.as_str(), *port);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(address, None, &self.hello, wrapped, None).await?;
        let starttls = match tls {
            SmtpTls::Plain | SmtpTls::Wrapped => false,
            SmtpTls::Opportunistic => connection.can_starttls(),
            SmtpTls::Required => true,
        };

        if let Some(tls) = self.tls.clone().filter(|_| starttls) {
            connection.starttls(tls, &self.hello).await?;
        }

        if let Some((user, password)) = login {
            let credentials = Credentials::new(user.clone(), password.expose_secret().to_owned());
            connection.auth(DEFAULT_MECHANISMS, &credentials).await?;
        }

        Ok(connection)
    }
}

/// Returns TLS parameters that trust the system's certificate authorities and those in the file
/// `extra`.
fn tls(host: &str, extra: Option<&Path>) -> anyhow::Result<TlsParameters> {
    let mut builder = TlsParameters::builder(host.to_owned());

    if let Some(path) = extra {
        let describe = || {
            format!(
                "mail.extra_ca_file: {} must contain PEM certificates",
                path.display()
            )
        };

        let pem = std::fs::read(path).with_context(describe)?;
        builder = builder.add_root_certificate(Certificate::from_pem(&pem).with_context(describe)?);
    }

    builder.build().context("TLS to the mail server")
}
