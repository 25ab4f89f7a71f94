//! One mail over one connection to the mail server.

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

use super::message::{self, Letterhead};
use crate::config::{Config, SmtpServer, SmtpTls};
use crate::domain::notice::Notice;

/// For the connection, TLS, the greeting and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// For the mail itself. Long: a mail that is given up while the server still looks at it may arrive twice.
const SEND_TIMEOUT: Duration = Duration::from_secs(300);
const QUIT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("the mail server: {0}")]
    Smtp(#[from] Error),
    #[error("the mail server: no answer within {0:?}")]
    Timeout(Duration),
    #[error("the mail cannot be written: {0}")]
    Message(#[from] lettre::error::Error),
}

impl SendError {
    /// For the metric.
    pub fn cause(&self) -> &'static str {
        match self {
            SendError::Smtp(error) if error.is_permanent() => "refused",
            SendError::Smtp(error) if error.is_transient() => "put_off",
            SendError::Smtp(_) | SendError::Timeout(_) => "connection",
            SendError::Message(_) => "message",
        }
    }
}

/// Knows the way to the mail server.
#[derive(Clone)]
pub struct Mailer {
    server: SmtpServer,
    /// None for plain SMTP.
    tls: Option<TlsParameters>,
    hello: ClientId,
    letterhead: Letterhead,
}

impl Mailer {
    /// None where mail is not configured.
    pub fn new(config: &Config) -> anyhow::Result<Option<Mailer>> {
        let Some(outgoing) = config.mail.outgoing()? else { return Ok(None) };
        let from = message::mailbox(&outgoing.from)
            .with_context(|| format!("mail.from: `{}` is not an address", outgoing.from))?;
        let server = outgoing.server;
        let tls = match server.tls {
            SmtpTls::Plain => None,
            _ => Some(tls(&server.host, config.mail.extra_ca_file.as_deref())?),
        };
        let hello = server.hello.clone().map_or_else(ClientId::default, ClientId::Domain);
        let letterhead = Letterhead {
            from,
            service: config.service.name.clone(),
            base_path: config.http.base_path.clone(),
            public_url: config.http.public_url.clone(),
            retention_days: config.retention.days,
        };
        Ok(Some(Mailer { server, tls, hello, letterhead }))
    }

    /// Returns when the mail server has taken the mail for `to`.
    pub(super) async fn send(&self, notice: &Notice, to: Mailbox) -> Result<(), SendError> {
        let message = message::write(notice, to, &self.letterhead)?;
        let mut connection = self.connect_in_time().await?;
        let bytes = message.formatted();
        let sending = connection.send(message.envelope(), &bytes);
        timeout(SEND_TIMEOUT, sending).await.map_err(|_| SendError::Timeout(SEND_TIMEOUT))??;
        // The mail is taken, whatever the server says to the goodbye, and when.
        tokio::spawn(async move { timeout(QUIT_TIMEOUT, connection.abort()).await });
        Ok(())
    }

    /// Says hello, logs in and says goodbye.
    pub async fn test(&self) -> anyhow::Result<()> {
        let mut connection = self.connect_in_time().await?;
        let _ = timeout(QUIT_TIMEOUT, connection.abort()).await;
        Ok(())
    }

    /// `host:port`
    pub fn server(&self) -> String {
        format!("{}:{}", self.server.host, self.server.port)
    }

    async fn connect_in_time(&self) -> Result<AsyncSmtpConnection, SendError> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        Ok(connected.map_err(|_| SendError::Timeout(CONNECT_TIMEOUT))??)
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, Error> {
        let SmtpServer { host, port, tls: how, login, .. } = &self.server;
        let at_once = self.tls.clone().filter(|_| *how == SmtpTls::Wrapped);
        let address = (host.as_str(), *port);
        let mut connection = AsyncSmtpConnection::connect_tokio1(address, None, &self.hello, at_once, None).await?;
        let upgrade = match how {
            SmtpTls::Plain | SmtpTls::Wrapped => false,
            SmtpTls::Opportunistic => connection.can_starttls(),
            SmtpTls::Required => true,
        };
        if let Some(tls) = self.tls.clone().filter(|_| upgrade) {
            connection.starttls(tls, &self.hello).await?;
        }
        if let Some((user, password)) = login {
            let credentials = Credentials::new(user.clone(), password.expose_secret().to_owned());
            connection.auth(DEFAULT_MECHANISMS, &credentials).await?;
        }
        Ok(connection)
    }
}

/// The system's certificate authorities, and those of `extra`.
fn tls(host: &str, extra: Option<&Path>) -> anyhow::Result<TlsParameters> {
    let mut builder = TlsParameters::builder(host.to_owned());
    if let Some(path) = extra {
        let describe = || format!("mail.extra_ca_file: {} must hold certificates in PEM form", path.display());
        let pem = std::fs::read(path).with_context(describe)?;
        builder = builder.add_root_certificate(Certificate::from_pem(&pem).with_context(describe)?);
    }
    builder.build().context("TLS to the mail server")
}
