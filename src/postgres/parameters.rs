//! Extracts connection parameters from a URL that the driver does not know, or interprets
//! differently from libpq.

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

/// An idle connection is probed after this time: most NAT gateways drop idle connections after a
/// few minutes.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVES_COUNT: u32 = 3;
/// A connection ends when the peer has not acknowledged data for this time. By default, Linux
/// retransmits for 15 minutes.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// TLS parameters, and those that determine when a dead peer is detected. The driver reads
/// `tcp_user_timeout` as seconds, and has another name for `keepalives_count`.
const EXTRACTED: [&str; 9] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "tcp_user_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "keepalives_retries",
];

/// The extracted parameters. Of several with one name, the last takes effect.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Returns the text without the extracted parameters, and the parameters. `None` if the text is
    /// malformed.
    pub fn take_from(text: &str) -> Option<(String, Parameters)> {
        let mut found = Vec::new();
        let rest = match text.starts_with("postgres://") || text.starts_with("postgresql://") {
            true => take_from_url(text, &mut found)?,
            false => take_from_keys(text, &mut found)?,
        };

        Some((rest, Parameters(found)))
    }

    /// Returns the value that takes effect.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// Sets how soon a dead peer is detected: from the parameters, in libpq's units, or this
    /// module's defaults. Zero selects the system's default. Returns `None` if a value is not a
    /// number.
    pub fn set_dead_peer_timeouts(&self, config: &mut Config) -> Option<()> {
        let number = |names: [&str; 2]| match names.into_iter().find_map(|name| self.get(name)) {
            Some(value) => value.trim().parse::<u32>().ok().map(Some),
            None => Some(None),
        };

        let idle = number(["keepalives_idle"; 2])?;
        let interval = number(["keepalives_interval"; 2])?;
        let count = number(["keepalives_count", "keepalives_retries"])?;
        let unacknowledged = number(["tcp_user_timeout"; 2])?;
        let seconds = |s: u32| Duration::from_secs(s.into());
        let millis = |ms: u32| Duration::from_millis(ms.into());

        // The system's default applies to options that are not set here.
        if idle != Some(0) {
            config.keepalives_idle(idle.map_or(KEEPALIVES_IDLE, seconds));
        }

        if interval != Some(0) {
            config.keepalives_interval(interval.map_or(KEEPALIVES_INTERVAL, seconds));
        }

        if count != Some(0) {
            config.keepalives_retries(count.unwrap_or(KEEPALIVES_COUNT));
        }

        if unacknowledged != Some(0) {
            config.tcp_user_timeout(unacknowledged.map_or(TCP_USER_TIMEOUT, millis));
        }

        Some(())
    }
}

fn take_from_url(text: &str, found: &mut Vec<(String, String)>) -> Option<String> {
    // A password may contain a question mark: parameters follow the host.
    let host = text.find('@').unwrap_or(0);
    let Some(question) = text[host..].find('?').map(|offset| host + offset) else {
        return Some(text.to_owned());
    };

    let mut kept = Vec::new();

    for parameter in text[question + 1..]
        .split('&')
        .filter(|parameter| !parameter.is_empty())
    {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if EXTRACTED.contains(&name) {
            let value: Cow<'_, str> = percent_decode_str(value).decode_utf8().ok()?;
            found.push((name.to_owned(), value.into_owned()));
        } else {
            kept.push(parameter);
        }
    }

    let separator = if kept.is_empty() { "" } else { "?" };
    Some(format!(
        "{}{separator}{}",
        &text[..question],
        kept.join("&")
    ))
}

/// Parses `key=value` pairs: values with spaces are quoted, quotes and backslashes are escaped.
fn take_from_keys(text: &str, found: &mut Vec<(String, String)>) -> Option<String> {
    let mut kept = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, length) = quoted_value(after)?;

        match EXTRACTED.contains(&name.trim()) {
            true => found.push((name.trim().to_owned(), value)),
            false => kept.push(format!("{}={}", name.trim(), &after[..length])),
        }

        rest = after[length..].trim_start();
    }

    Some(kept.join(" "))
}

/// Parses a value. Returns it with the number of bytes of its text.
fn quoted_value(text: &str) -> Option<(String, usize)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut letters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.push(letters.next()?.1),
            '\'' if quoted => return Some((value, at + 1)),
            letter if !quoted && letter.is_whitespace() => return Some((value, at)),
            letter => value.push(letter),
        }
    }

    (!quoted).then_some((value, text.len()))
}
