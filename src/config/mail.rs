//! Parses and validates the settings in `mail`.

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::{ConfigError, Mail};

/// A mail server and how to connect to it.
#[derive(Clone, Debug)]
pub struct SmtpServer {
    pub host: String,
    pub port: u16,
    pub tls: SmtpTls,
    /// User and password.
    pub login: Option<(String, SecretString)>,
    /// The name for EHLO. Default: this machine's name.
    pub hello: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    /// No TLS.
    Plain,
    /// STARTTLS if the server offers it. An attacker between the two can suppress the offer.
    Opportunistic,
    /// STARTTLS; without it, nothing is sent.
    Required,
    /// TLS from the first byte.
    Wrapped,
}

/// The mail server and the sender of outgoing mail.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub server: SmtpServer,
    /// The sender, as configured.
    pub from: String,
}

impl Mail {
    /// Validates each setting separately. Errors name the setting and quote no secret.
    pub(super) fn check(&self) -> Result<(), String> {
        self.smtp_url.as_ref().map(parse_url).transpose()?;
        self.from.as_deref().map_or(Ok(()), check_sender)
    }

    /// Returns the configured mail server and sender, or `None` if neither is set.
    pub fn outgoing(&self) -> Result<Option<Outgoing>, ConfigError> {
        let missing = |text: &str| Err(ConfigError::Invalid(text.to_owned()));

        match (&self.smtp_url, &self.from) {
            (None, None) => Ok(None),
            (Some(_), None) => {
                missing("mail.from is not set: set it to the sender, such as webhooks@example.com")
            }
            (None, Some(_)) => missing(
                "mail.smtp_url is not set: set it to the mail server, such as smtps://user:password@mail.example",
            ),
            (Some(url), Some(from)) => {
                let server = parse_url(url).map_err(ConfigError::Invalid)?;
                Ok(Some(Outgoing {
                    server,
                    from: from.clone(),
                }))
            }
        }
    }
}

fn parse_url(url: &SecretString) -> Result<SmtpServer, String> {
    server(url.expose_secret()).map_err(|problem| format!("mail.smtp_url: {problem}"))
}

fn check_sender(from: &str) -> Result<(), String> {
    let wrong = || {
        format!(
            "mail.from: `{from}` is not an address such as webhooks@example.com or Name <webhooks@example.com>"
        )
    };

    if is_mailbox(from) {
        Ok(())
    } else {
        Err(wrong())
    }
}

fn server(url: &str) -> Result<SmtpServer, String> {
    let shape = || {
        "expected smtp://host:port, with ?tls=required for STARTTLS, or smtps://host:port; user and password, percent-encoded, \
         go before the host"
            .to_owned()
    };

    let url = Url::parse(url).map_err(|_| shape())?;
    let host = match url.host().ok_or_else(shape)? {
        Host::Domain(name) => decoded(name)?,
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };

    let parameters: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let requested_tls = match parameters.as_slice() {
        [] => None,
        [(name, value)] if name == "tls" => Some(value.as_str()),
        _ => return Err("its only parameter is tls".to_owned()),
    };

    let (tls, port) = match (url.scheme(), requested_tls) {
        ("smtp", None) => (SmtpTls::Plain, 25),
        ("smtp", Some("required")) => (SmtpTls::Required, 587),
        ("smtp", Some("opportunistic")) => (SmtpTls::Opportunistic, 587),
        ("smtps", None) => (SmtpTls::Wrapped, 465),
        ("smtp", Some(_)) => return Err("tls is required or opportunistic".to_owned()),
        _ => return Err(shape()),
    };

    let login = match (url.username(), url.password()) {
        ("", None) => None,
        ("", Some(_)) => return Err("there is a password but no user".to_owned()),
        (_, None) => return Err("there is a user but no password".to_owned()),
        (user, Some(password)) => Some((decoded(user)?, decoded(password)?.into())),
    };

    let hello = url.path().trim_matches('/');
    let hello = (!hello.is_empty()).then(|| decoded(hello)).transpose()?;

    Ok(SmtpServer {
        host,
        port: url.port().unwrap_or(port),
        tls,
        login,
        hello,
    })
}

/// Decodes percent-encoding. Rejects control characters: a line break would start another SMTP
/// command.
fn decoded(text: &str) -> Result<String, String> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| "it is not UTF-8".to_owned())?;
    if text.chars().any(char::is_control) {
        return Err("it must not contain control characters".to_owned());
    }

    Ok(text.into_owned())
}

/// Whether this looks like `local@domain` or `Name <local@domain>`. The mail library checks the
/// rest.
fn is_mailbox(text: &str) -> bool {
    let address = match text.split_once('<') {
        Some((_, rest)) => match rest.strip_suffix('>') {
            Some(address) => address,
            None => return false,
        },
        None => text,
    };

    let is_plain =
        |part: &str| !part.is_empty() && !part.contains(|letter: char| letter.is_whitespace());
    !text.contains(char::is_control)
        && address
            .rsplit_once('@')
            .is_some_and(|(local, domain)| is_plain(local) && is_plain(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_determine_port_and_tls_mode() {
        let parsed = |url: &str| server(url).map(|server| (server.host, server.port, server.tls));
        assert_eq!(
            parsed("smtp://mail.example").unwrap(),
            ("mail.example".into(), 25, SmtpTls::Plain)
        );
        assert_eq!(
            parsed("smtp://m:2525?tls=required").unwrap(),
            ("m".into(), 2525, SmtpTls::Required)
        );
        assert_eq!(
            parsed("smtp://m?tls=opportunistic").unwrap(),
            ("m".into(), 587, SmtpTls::Opportunistic)
        );
        assert_eq!(
            parsed("smtps://[::1]/").unwrap(),
            ("::1".into(), 465, SmtpTls::Wrapped)
        );

        let server = server("smtps://us%40er:p%2Fw@m/me.example").unwrap();
        assert_eq!(server.hello.as_deref(), Some("me.example"));

        let (user, password) = server.login.unwrap();
        assert_eq!((user.as_str(), password.expose_secret()), ("us@er", "p/w"));
    }

    #[test]
    fn a_malformed_url_is_rejected_without_quoting_its_password() {
        for url in [
            "mail.example",
            "http://u:secret@m",
            "smtp:///x",
            "smtp://m?tls=maybe",
            "smtps://m?tls=required",
            "smtp://m?tls=required&x=secret",
            "smtp://u@m",
            "smtp://:secret@m",
            "smtp://u:secret%0d%0aQUIT@m",
            "smtp://u:secret%ff@m",
        ] {
            let problem = server(url).expect_err(url);
            assert!(!problem.contains("secret"), "{url}: {problem}");
        }
    }

    #[test]
    fn senders_are_addresses() {
        for good in ["a@b.example", "Name <a@b.example>", "\"A, B\" <a@b>"] {
            assert!(is_mailbox(good), "{good}");
        }

        for bad in [
            "",
            "a",
            "a@",
            "@b",
            "Name a@b.example",
            "Name <a@b",
            "a@b\r\nBcc: c@d",
            "a b@c",
        ] {
            assert!(!is_mailbox(bad), "{bad}");
        }
    }
}
