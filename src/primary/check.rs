//! The doctor: every precondition on a line of its own, with what to do where it does not hold.

mod primary_side;
mod store_side;
mod triggers;

use std::fmt;

use jiff::Timestamp;

use crate::config::Config;
use crate::postgres;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        })
    }
}

/// One precondition.
#[derive(Clone, Debug)]
pub struct Line {
    pub verdict: Verdict,
    pub name: String,
    pub text: String,
    /// What to do; nothing where all is well.
    pub mend: Option<String>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}: {}", self.verdict, self.name, self.text)?;
        self.mend.as_ref().map_or(Ok(()), |mend| write!(f, "; {mend}"))
    }
}

/// The lines so far.
#[derive(Debug, Default)]
struct Report(Vec<Line>);

impl Report {
    fn ok(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.push(Line { verdict: Verdict::Ok, name: name.into(), text: text.into(), mend: None });
    }

    fn add(&mut self, verdict: Verdict, name: impl Into<String>, text: impl Into<String>, mend: impl Into<String>) {
        self.0.push(Line { verdict, name: name.into(), text: text.into(), mend: Some(mend.into()) });
    }

    fn warn(&mut self, name: impl Into<String>, text: impl Into<String>, mend: impl Into<String>) {
        self.add(Verdict::Warn, name, text, mend);
    }

    fn fail(&mut self, name: impl Into<String>, text: impl Into<String>, mend: impl Into<String>) {
        self.add(Verdict::Fail, name, text, mend);
    }

    /// A server's clock against ours: receivers check the age of deliveries, leases are on the store's clock.
    fn clock(&mut self, name: &str, theirs: Timestamp, before: Timestamp) {
        const TOLERATED_SECONDS: f64 = 1.0;
        let after = Timestamp::now();
        // Its answer is of some moment between question and return.
        let behind = before.duration_since(theirs).as_secs_f64();
        let ahead = theirs.duration_since(after).as_secs_f64();
        let skew = behind.max(ahead).max(0.0);
        if skew > TOLERATED_SECONDS {
            let text = format!("{skew:.1} s away from this machine's");
            self.warn(name, text, "let both follow a time server: receivers refuse deliveries that look old");
        } else {
            self.ok(name, "agrees with this machine's");
        }
    }
}

/// Looks at everything; what cannot be looked at is a line of its own.
pub async fn check(config: &Config) -> Vec<Line> {
    let mut report = Report::default();
    match config.secrets.master_key.is_empty() {
        false => report.ok("master key", "set"),
        true => report.fail(
            "master key",
            "not set",
            "set WALHOOK_SECRETS__MASTER_KEY to what `openssl rand -base64 32` prints, and keep it safe",
        ),
    }
    let server = match config.source_url() {
        Ok(url) => primary_side::check(&mut report, &config.source, url).await,
        Err(error) => {
            report.fail("primary", "not configured", error.to_string());
            None
        }
    };
    if let Ok(url) = config.store_url() {
        store_side::check(&mut report, &config.source, url, server.as_ref()).await;
    }
    report.0
}

/// The start of a line about something that could not be asked.
fn unreachable(report: &mut Report, name: &str, error: impl fmt::Display, url: &str) {
    let url = crate::config::without_password(url);
    report.fail(name, format!("{error}"), format!("see that {url} can be reached from here with these credentials"));
}
