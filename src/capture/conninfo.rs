//! The replication connection's parameters, made from the primary's URL by adding to its text: whatever form of host, socket
//! or TLS the URL has, it keeps.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Values come as text, and decoding must not depend on what the role or the database has set.
const SESSION: &str = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=postgres -c extra_float_digits=1 \
                       -c bytea_output=hex -c statement_timeout=0";
const CONNECT_TIMEOUT_SECONDS: u32 = 10;

/// The URL (or the `key=value` form) for a walsender of the same database. `settings` are for that session, over ours.
pub(super) fn replication(url: &str, settings: &[(&str, &str)]) -> String {
    let mut session = SESSION.to_owned();
    for (name, value) in settings {
        session.push_str(&format!(" -c {name}={value}"));
    }
    match split(url) {
        Some((base, query)) => with_query(base, query, &session, certificates().as_deref()),
        None => with_keys(url, &session),
    }
}

/// The URL before its `?`, and what follows; nothing for the `key=value` form.
fn split(url: &str) -> Option<(&str, &str)> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return None;
    }
    // A password may hold a question mark: parameters begin behind the host.
    let host = url.find('@').unwrap_or(0);
    let query = url[host..].find('?').map(|offset| host + offset);
    Some(query.map_or((url, ""), |at| (&url[..at], &url[at + 1..])))
}

fn with_query(base: &str, query: &str, session: &str, certificates: Option<&Path>) -> String {
    let mut session = session.to_owned();
    let mut parameters = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name, value) {
            // The library that decodes knows this one under another name.
            ("keepalives_retries", count) => parameters.push(format!("keepalives_count={count}")),
            // Later settings win, and ours must.
            ("options", theirs) => session = format!("{} {session}", decode(theirs)),
            ("replication", _) => {}
            // Our other connections verify the server; this one carries the same data.
            ("sslmode", "require") if certificates.is_some() && !query.contains("sslrootcert") => {
                let file = certificates.map(|file| encode(&file.to_string_lossy())).unwrap_or_default();
                parameters.push(format!("sslmode=verify-full&sslrootcert={file}"));
            }
            _ => parameters.push(parameter.to_owned()),
        }
    }
    let has = |name: &str| parameters.iter().any(|parameter| parameter.split('=').next() == Some(name));
    let mut added = vec!["replication=database".to_owned(), format!("options={}", encode(&session))];
    if !has("application_name") {
        added.push("application_name=walhook".to_owned());
    }
    if !has("connect_timeout") {
        added.push(format!("connect_timeout={CONNECT_TIMEOUT_SECONDS}"));
    }
    parameters.extend(added);
    format!("{base}?{}", parameters.join("&"))
}

fn with_keys(keys: &str, session: &str) -> String {
    let mut text = format!("{} replication=database options='{session}'", keys.trim_end());
    if !keys.contains("application_name") {
        text.push_str(" application_name=walhook");
    }
    if !keys.contains("connect_timeout") {
        text.push_str(&format!(" connect_timeout={CONNECT_TIMEOUT_SECONDS}"));
    }
    text
}

/// The system's trusted certificates, where one file holds them.
fn certificates() -> Option<PathBuf> {
    const USUAL: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.into_iter().chain(USUAL.map(PathBuf::from)).find(|path| path.is_file())
}

/// Percent-encoding of all but unreserved characters: a plus sign is no space to libpq.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (byte, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(url: &str) -> Vec<(String, String)> {
        let (_, query) = split(url).unwrap();
        query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), decode(value).into_owned()))
            .collect()
    }

    fn get(url: &str, name: &str) -> String {
        let found: Vec<String> = parameters(url).into_iter().filter(|(n, _)| n == name).map(|(_, v)| v).collect();
        assert_eq!(found.len(), 1, "{name} in {url}");
        found[0].clone()
    }

    #[test]
    fn a_plain_url_gets_its_session_pinned() {
        let made = replication("postgres://walhook@db/platform", &[]);
        assert!(made.starts_with("postgres://walhook@db/platform?"), "{made}");
        assert_eq!(get(&made, "replication"), "database");
        assert_eq!(get(&made, "application_name"), "walhook");
        for setting in ["DateStyle=ISO", "TimeZone=UTC", "extra_float_digits=1", "bytea_output=hex"] {
            assert!(get(&made, "options").contains(&format!("-c {setting}")), "{made}");
        }
        assert!(!made.contains('+') && !made.contains(' '), "{made}");
    }

    #[test]
    fn unix_sockets_keep_either_form() {
        assert!(
            replication("postgres://u@%2Ftmp%2Fsock:5433/db", &[]).starts_with("postgres://u@%2Ftmp%2Fsock:5433/db?")
        );
        let made = replication("postgres:///db?host=/tmp/sock&user=u", &[]);
        assert_eq!((get(&made, "host"), get(&made, "user")), ("/tmp/sock".into(), "u".into()));
    }

    #[test]
    fn the_urls_own_parameters_stay_and_ours_win() {
        let url = "postgres://u:p%3F?@h1,h2/db?application_name=mine&options=-c%20TimeZone%3DCET&replication=off&keepalives_retries=3";
        let made = replication(url, &[("lock_timeout", "60s")]);
        assert!(made.starts_with("postgres://u:p%3F?@h1,h2/db?"), "{made}");
        assert_eq!(get(&made, "application_name"), "mine");
        assert_eq!(get(&made, "replication"), "database");
        assert_eq!(get(&made, "keepalives_count"), "3");
        let options = get(&made, "options");
        assert!(options.find("TimeZone=CET").unwrap() < options.find("TimeZone=UTC").unwrap(), "{options}");
        assert!(options.ends_with("-c lock_timeout=60s"), "{options}");
    }

    #[test]
    fn required_tls_is_verified_like_elsewhere() {
        let made = with_query("postgres://h/db", "sslmode=require", SESSION, Some(Path::new("/etc/ca file.pem")));
        assert_eq!(get(&made, "sslmode"), "verify-full");
        assert_eq!(get(&made, "sslrootcert"), "/etc/ca file.pem");
        let made = with_query("postgres://h/db", "sslmode=disable", SESSION, Some(Path::new("/etc/ca.pem")));
        assert_eq!(get(&made, "sslmode"), "disable");
    }

    #[test]
    fn the_key_value_form_is_extended_too() {
        let made = replication("host=db user=u dbname=d", &[]);
        assert!(made.starts_with("host=db user=u dbname=d replication=database options='-c DateStyle=ISO"), "{made}");
        assert!(made.contains(" application_name=walhook"), "{made}");
    }
}
