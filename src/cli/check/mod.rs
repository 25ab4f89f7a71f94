//! `walhook check`: every precondition on its own line, and a summary.

mod log;
mod store;
mod values;

use serde_json::json;

use super::{CommandResult, print_text};
use crate::config::{CaptureMode, Config, SmtpTls, without_password};
use crate::lookup::try_queries;
use crate::notify::Mailer;
use crate::postgres;
use crate::primary::error::PrimaryError;
use crate::primary::finding::{Finding, PRINT, Remedy, Severity};
use crate::primary::inspect::{Database, inspect_primary};
use crate::primary::uninstall::inspect_remains;
use crate::store::{Store, keys as stored_keys};
use crate::vault::Vault;
use std::fmt;
use std::net::IpAddr;

pub(super) use values::unnamed;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let findings = findings(&config).await;
    let count = |severity| {
        let found = findings
            .iter()
            .filter(|finding| finding.severity == severity);
        found.count()
    };

    let [ok, warnings, failures] = [Severity::Ok, Severity::Warn, Severity::Fail].map(count);
    let text = if arguments.json {
        let findings: Vec<_> = findings.iter().map(json_finding).collect();
        let result =
            json!({"ok": ok, "warnings": warnings, "failures": failures, "findings": findings});
        format!("{result}\n")
    } else {
        let lines: String = findings
            .iter()
            .map(|finding| format!("{finding}\n"))
            .collect();
        let plural = |count, word| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let (warnings, failed) = (plural(warnings, "warning"), plural(failures, "failure"));
        format!("{lines}\n{ok} ok, {warnings}, {failed}\n")
    };

    print_text(&text)?;
    Ok(failures == 0)
}

fn json_finding(finding: &Finding) -> serde_json::Value {
    json!({
        "severity": finding.severity.to_string(),
        "subject": finding.subject,
        "state": finding.state,
        "remedy": finding.remedy.as_ref().map(Remedy::to_string),
    })
}

async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = vec![master_key(config)];
    let primary = match config.source.capture {
        CaptureMode::Wal | CaptureMode::Trigger => primary(config, &mut findings).await,
        CaptureMode::Log => {
            log::inspect(config, &mut findings).await;
            None
        }
    };

    if let Ok(url) = config.store_url() {
        match store::inspect(&config.source, url, primary.as_ref(), &mut findings).await {
            Ok(position) => prefer_repair(&config.source.slot, position, &mut findings),
            Err(error) => {
                let failure = failed("store", &error, error.is_rejection(), url);
                findings.push(without_repetition(failure, &findings));
            }
        }
    }

    findings.extend(remains_of_wal_capture(config).await);
    findings.extend(secrets_at_rest(config).await);

    if primary.is_some() {
        findings.extend(lookups(config).await);
        findings.extend(values::inspect(config).await);
    }

    findings.push(mail(config).await);
    findings.extend(mail_login(config));
    findings.push(public_url(config));

    findings
}

/// Makes the remedies agree after a gap, also one that no process has recorded: setup refuses then,
/// or restores settings without the missed events. A repair does both.
fn prefer_repair(slot: &str, position: store::Position, findings: &mut [Finding]) {
    let subject = format!("slot {slot}");
    let has_no_slot = findings
        .iter()
        .any(|finding| finding.subject == subject && finding.severity == Severity::Fail);

    if position.has_gap || position.is_stored && has_no_slot {
        let remedies = findings
            .iter_mut()
            .filter_map(|finding| finding.remedy.as_mut());

        for remedy in remedies {
            if let Remedy::Setup { first } = remedy {
                *remedy = Remedy::Repair {
                    first: first.take(),
                };
            }
        }
    }
}

fn master_key(config: &Config) -> Finding {
    match config.secrets.master_key.is_empty() {
        false => Finding::ok("master key", "set"),
        true => Finding::fail(
            "master key",
            "not set",
            "set WALHOOK_SECRETS__MASTER_KEY to the output of `openssl rand -base64 32`, and keep a copy",
        ),
    }
}

/// Inspects the primary. Returns its database, if it answered.
async fn primary(config: &Config, findings: &mut Vec<Finding>) -> Option<Database> {
    let url = match config.source_url() {
        Ok(url) => url,
        Err(error) => {
            findings.push(Finding::fail(
                "primary",
                "not configured",
                error.to_string(),
            ));
            return None;
        }
    };

    match inspect_primary(&config.source, url).await {
        Ok((database, found)) => {
            findings.extend(found);
            Some(database)
        }
        Err(error) => {
            let is_rejection =
                matches!(&error, PrimaryError::Query(error) if postgres::is_rejection(error));
            findings.push(failed("primary", &error, is_rejection, url));
            None
        }
    }
}

/// The finding about a database that could not be inspected. `is_rejection`: it can be reached, and
/// rejected a statement.
fn failed(subject: &str, error: &dyn fmt::Display, is_rejection: bool, url: &str) -> Finding {
    let url = without_password(url);
    let remedy = match is_rejection {
        true => format!(
            "{url} can be reached: fix what the message names, such as a missing privilege or table"
        ),
        false => format!("check that {url} can be reached from here with these credentials"),
    };

    Finding::fail(subject, error.to_string(), remedy)
}

/// Shortens the failure of the store if the primary has failed with the same error, as one server
/// for both does.
fn without_repetition(failure: Finding, findings: &[Finding]) -> Finding {
    let cause = |finding: &Finding| {
        let (_, cause) = finding.state.split_once(": ")?;
        Some(cause.to_owned())
    };

    let is_repeated = findings
        .iter()
        .any(|other| other.subject == "primary" && cause(other) == cause(&failure));

    match is_repeated {
        true => Finding {
            state: "the same error as the primary's".to_owned(),
            ..failure
        },
        false => failure,
    }
}

/// Inspects what a switch to triggers has left. Empty if the primary or the store does not answer.
async fn remains_of_wal_capture(config: &Config) -> Vec<Finding> {
    let (Ok(url), Ok(store_url)) = (config.source_url(), config.store_url()) else {
        return Vec::new();
    };

    match Store::open(store_url, 1) {
        Ok(store) if config.source.capture == CaptureMode::Trigger => {
            inspect_remains(&config.source, url, &store)
                .await
                .unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Checks whether every secret in the store can be decrypted. None if the store does not answer.
async fn secrets_at_rest(config: &Config) -> Option<Finding> {
    const SUBJECT: &str = "secrets at rest";
    let vault = Vault::new(&config.secrets.master_key).ok()?;
    let keys = stored_keys::master_keys(&Store::open(config.store_url().ok()?, 1).ok()?)
        .await
        .ok()?;
    let count = |wanted: &dyn Fn(&str) -> bool| {
        keys.iter()
            .filter(|(key, _)| wanted(key))
            .map(|(_, count)| count)
            .sum()
    };

    let unreadable: i64 = count(&|key| !vault.has_key(key));
    let older: i64 = count(&|key| vault.has_key(key) && key != vault.first_key());

    Some(if unreadable > 0 {
        let state = format!("{unreadable} are encrypted with a key that is not configured");
        Finding::fail(
            SUBJECT,
            state,
            "add the missing key to secrets.master_key, after the first",
        )
    } else if older > 0 {
        let state = format!("{older} are encrypted with an older key, which must stay configured");
        Finding::warn(
            SUBJECT,
            state,
            "run `walhook secrets reencrypt` when every process has the first key",
        )
    } else {
        Finding::ok(SUBJECT, "all encrypted with the first key")
    })
}

/// Checks whether the primary accepts the configured lookup SQL.
async fn lookups(config: &Config) -> Vec<Finding> {
    let Ok(url) = config.source_url() else {
        return Vec::new();
    };

    let results = try_queries(url, &config.source).await.into_iter();
    let findings = results.map(|(table, result)| {
        let key = match config.source.lookups.contains_key(table.name()) {
            true => format!("source.lookups.{}", table.name()),
            false => format!("source.tables.{}.computed", table.name()),
        };

        let remedy = format!("fix {key}, or {PRINT}");

        match result {
            Ok(()) => Finding::ok(key, "the primary accepts its SQL"),
            Err(error) => Finding::fail(key, error.to_string(), remedy),
        }
    });

    findings.collect()
}

/// Warns of a mail password that is sent unencrypted.
fn mail_login(config: &Config) -> Option<Finding> {
    let server = config.mail.outgoing().ok()??.server;
    let state = match server.tls {
        SmtpTls::Plain => format!("user and password are sent to {} unencrypted", server.host),
        SmtpTls::Opportunistic => {
            format!(
                "user and password are sent to {} unencrypted if it does not offer STARTTLS",
                server.host
            )
        }
        SmtpTls::Required | SmtpTls::Wrapped => return None,
    };

    let is_loopback =
        server.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) || server.host == "localhost";
    let remedy = "use smtps:// in mail.smtp_url, or smtp:// with ?tls=required";
    (server.login.is_some() && !is_loopback).then(|| Finding::warn("mail login", state, remedy))
}

fn public_url(config: &Config) -> Finding {
    const SUBJECT: &str = "http.public_url";

    match config.http.public_url.as_deref() {
        Some(url) if url.starts_with("https://") => Finding::ok(SUBJECT, url),
        Some(url) => Finding::warn(
            SUBJECT,
            format!("{url}: the web UI's session cookie may be sent unencrypted"),
            "serve the web UI over https",
        ),
        None => Finding::warn(
            SUBJECT,
            "not set: the web UI's session cookie is not marked Secure",
            "set it to the address at which browsers reach the web UI, such as https://hooks.example",
        ),
    }
}

async fn mail(config: &Config) -> Finding {
    const SUBJECT: &str = "mail";

    let mailer = match Mailer::new(config) {
        Ok(Some(mailer)) => mailer,
        Ok(None) => {
            let remedy = "set mail.smtp_url and mail.from, or owners are not notified when a webhook is disabled";
            return Finding::warn(SUBJECT, "not configured", remedy);
        }
        Err(error) => {
            return Finding::fail(SUBJECT, format!("{error:#}"), "fix the settings of mail");
        }
    };

    match mailer.test().await {
        Ok(()) => Finding::ok(
            SUBJECT,
            format!("{} accepts this sender's connections", mailer.server()),
        ),
        Err(error) => {
            let remedy = "check the mail server, TLS and login in mail.smtp_url";
            Finding::fail(SUBJECT, format!("{}: {error:#}", mailer.server()), remedy)
        }
    }
}
