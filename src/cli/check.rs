//! `walhook check`: every precondition on a line of its own.

use std::net::IpAddr;
use std::process::ExitCode;

use super::CommandResult;
use crate::config::{Config, SmtpTls};
use crate::lookup::try_queries;
use crate::notify::Mailer;
use crate::primary::check::{Line, Verdict, check};
use crate::store::{Store, sealed};
use crate::vault::Vault;

#[derive(Debug, clap::Args)]
pub struct Arguments {}

pub async fn execute(_arguments: Arguments, config: Config) -> CommandResult {
    let mut lines = check(&config).await;
    lines.extend(check_keys(&config).await);
    lines.extend(check_lookups(&config).await);
    lines.push(check_mail(&config).await);
    lines.extend(check_mail_login(&config));
    lines.push(check_public_url(&config));
    for line in &lines {
        println!("{line}");
    }
    let failed = lines.iter().any(|line| line.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether all that is encrypted can be read, where the store is there; whether it can be reached is told already.
async fn check_keys(config: &Config) -> Option<Line> {
    let vault = Vault::new(&config.secrets.master_key).ok()?;
    let keys = sealed::keys(&Store::open(config.store_url().ok()?, 1).ok()?).await.ok()?;
    let count =
        |wanted: &dyn Fn(&str) -> bool| keys.iter().filter(|(key, _)| wanted(key)).map(|(_, count)| count).sum();
    let unreadable: i64 = count(&|key| !vault.has_key(key));
    let older: i64 = count(&|key| vault.has_key(key) && key != vault.first_key());
    let line = |verdict, text: String, mend: Option<&str>| Line {
        verdict,
        name: "secrets at rest".to_owned(),
        text,
        mend: mend.map(str::to_owned),
    };
    Some(if unreadable > 0 {
        let mend = "add the key that is missing to secrets.master_key, behind the first";
        line(Verdict::Fail, format!("{unreadable} are encrypted under a key that is not configured"), Some(mend))
    } else if older > 0 {
        let mend = "run `walhook secrets reencrypt` when every process has the first key";
        line(Verdict::Warn, format!("{older} are encrypted under an older key, which must stay"), Some(mend))
    } else {
        line(Verdict::Ok, "all under the first key".to_owned(), None)
    })
}

/// The platform's own SQL, where the primary could be reached.
async fn check_lookups(config: &Config) -> Vec<Line> {
    let Ok(url) = config.source_url() else { return Vec::new() };
    let lines = try_queries(url, &config.source).await.into_iter().map(|(table, result)| {
        let key = match config.source.lookups.contains_key(table.name()) {
            true => format!("source.lookups.{}", table.name()),
            false => format!("source.tables.{}.computed", table.name()),
        };
        let mend = || format!("mend {key}, or grant what it reads to our role");
        let (verdict, text, mend) = match result {
            Ok(()) => (Verdict::Ok, "the primary takes its SQL".to_owned(), None),
            Err(error) => (Verdict::Fail, error.to_string(), Some(mend())),
        };
        Line { verdict, name: key, text, mend }
    });
    lines.collect()
}

/// A password that the network can read.
fn check_mail_login(config: &Config) -> Option<Line> {
    let server = config.mail.outgoing().ok()??.server;
    let text = match server.tls {
        SmtpTls::Plain => format!("user and password are sent to {} unencrypted", server.host),
        SmtpTls::Opportunistic => {
            format!("user and password are sent to {} unencrypted where it does not offer STARTTLS", server.host)
        }
        SmtpTls::Required | SmtpTls::Wrapped => return None,
    };
    let is_loopback = server.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) || server.host == "localhost";
    (server.login.is_some() && !is_loopback).then(|| Line {
        verdict: Verdict::Warn,
        name: "mail login".to_owned(),
        text,
        mend: Some("use smtps:// in mail.smtp_url, or smtp:// with ?tls=required".to_owned()),
    })
}

fn check_public_url(config: &Config) -> Line {
    let (verdict, text, mend) = match config.http.public_url.as_deref() {
        Some(url) if url.starts_with("https://") => (Verdict::Ok, url.to_owned(), None),
        Some(url) => (
            Verdict::Warn,
            format!("{url}: the user interface's session cookie may be sent unencrypted"),
            Some("serve the user interface by https"),
        ),
        None => (
            Verdict::Warn,
            "not set: the user interface's session cookie is not marked Secure".to_owned(),
            Some("set it to where browsers reach the user interface, such as https://hooks.example"),
        ),
    };
    Line { verdict, name: "http.public_url".to_owned(), text, mend: mend.map(str::to_owned) }
}

async fn check_mail(config: &Config) -> Line {
    let line = |verdict, text: String, mend: Option<&str>| Line {
        verdict,
        name: "mail".to_owned(),
        text,
        mend: mend.map(str::to_owned),
    };
    let mailer = match Mailer::new(config) {
        Ok(Some(mailer)) => mailer,
        Ok(None) => {
            let mend = "set mail.smtp_url and mail.from, or owners are not told that a webhook was switched off";
            return line(Verdict::Warn, "not configured".to_owned(), Some(mend));
        }
        Err(error) => return line(Verdict::Fail, format!("{error:#}"), Some("mend the settings of mail")),
    };
    match mailer.test().await {
        Ok(()) => line(Verdict::Ok, format!("{} takes this sender's connections", mailer.server()), None),
        Err(error) => {
            let mend = "see that mail.smtp_url names the mail server, its TLS and its login as they are";
            line(Verdict::Fail, format!("{}: {error:#}", mailer.server()), Some(mend))
        }
    }
}
