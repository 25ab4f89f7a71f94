//! Loads the configuration: flags override the environment, which overrides the file. The file is
//! validated separately first, so that errors can name its lines.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;
use toml::{Table, Value};

use super::{CaptureMode, Config, access, ui};
use crate::domain::text::MAX_BODY;
use crate::postgres::Target;

const PREFIX: &str = "WALHOOK_";
/// Keys whose value may be read from a file, named by `WALHOOK_…_FILE`.
const SECRET_KEYS: [&str; 10] = [
    "source.url",
    "source.log_url",
    "store.url",
    "secrets.master_key",
    "mail.smtp_url",
    "operator.secret",
    "delivery.proxy",
    "auth.jwt.jwks_url",
    "auth.jwt.secret",
    "tracing.headers",
];

/// The same for the URLs of cells, whose names are the operator's.
const STORES_OF_CELLS: &str = "cells.stores.";

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: {detail}")]
    File { path: PathBuf, detail: String },
    #[error("{variable} is not a setting: `walhook config` prints all settings")]
    UnknownVariable { variable: String },
    #[error("--set {argument}: expected KEY=VALUE, such as delivery.timeout=5s")]
    MalformedFlag { argument: String },
    #[error("{0}")]
    Invalid(String),
}

/// The sources of settings, in order of precedence.
#[derive(Debug, Default)]
pub struct Sources {
    /// `section.key=value` from the command line.
    pub flags: Vec<String>,
    pub environment: Vec<(OsString, OsString)>,
    pub file: Option<PathBuf>,
}

/// Merges the sources and validates the result.
pub fn load(sources: Sources) -> Result<Config, ConfigError> {
    let mut settings = match &sources.file {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };

    for (key, value) in environment(&sources.environment)? {
        set(&mut settings, &key, &value)?;
    }

    for argument in &sources.flags {
        let malformed = || ConfigError::MalformedFlag {
            argument: argument.clone(),
        };

        let (key, value) = argument.split_once('=').ok_or_else(malformed)?;
        if key.split('.').count() < 2 {
            return Err(malformed());
        }

        set(&mut settings, key, value)?;
    }

    // The file alone was valid, so an error here is due to the environment or the flags.
    let config: Config = serde_path_to_error::deserialize(settings).map_err(|error| {
        ConfigError::Invalid(format!(
            "environment or flags: {}: {}",
            error.path(),
            error.inner().message()
        ))
    })?;

    validate(&config)?;
    Ok(config)
}

/// Validates the text of a file by itself.
pub fn validate_text(text: &str) -> Result<Config, ConfigError> {
    let config: Config =
        toml::from_str(text).map_err(|error| ConfigError::Invalid(error.to_string()))?;
    validate(&config)?;
    Ok(config)
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;

    let invalid = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| {
            text[..span.start.min(text.len())].lines().count().max(1)
        });

        // An offset directly after a line break belongs to the next line.
        let line = line
            + usize::from(
                error
                    .span()
                    .is_some_and(|span| text[..span.start].ends_with('\n')),
            );

        ConfigError::File {
            path: path.to_owned(),
            detail: format!("line {line}: {}", error.message()),
        }
    };

    toml::from_str::<Config>(&text).map_err(invalid)?;
    toml::from_str(&text).map_err(invalid)
}

fn environment(
    variables: &[(OsString, OsString)],
) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut settings = BTreeMap::new();

    for (name, value) in variables {
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };

        // Variables without a section, such as one naming the configuration file, are not settings.
        if !rest.contains("__") {
            continue;
        }

        let variable = format!("{PREFIX}{rest}");
        let key = rest.to_lowercase().replace("__", ".");
        let value = value
            .to_str()
            .ok_or_else(|| ConfigError::Invalid(format!("{variable} is not valid UTF-8")))?;
        let secret_file = key
            .strip_suffix("_file")
            .filter(|key| SECRET_KEYS.contains(key) || key.starts_with(STORES_OF_CELLS));

        match secret_file {
            Some(secret) => {
                let path = PathBuf::from(value);
                let text = std::fs::read_to_string(&path)
                    .map_err(|source| ConfigError::Unreadable { path, source })?;
                settings.insert(
                    secret.to_owned(),
                    text.trim_end_matches(['\r', '\n']).to_owned(),
                );
            }
            None if type_of(&key).is_some() => {
                settings.insert(key, value.to_owned());
            }
            None => return Err(ConfigError::UnknownVariable { variable }),
        }
    }

    Ok(settings)
}

/// Returns the JSON type of the setting `key`, or `None` if there is no such setting.
fn type_of(key: &str) -> Option<&'static str> {
    static SCHEMA: LazyLock<Json> = LazyLock::new(|| schemars::schema_for!(Config).to_value());

    let resolve = |schema: &'static Json| {
        // An optional section is a reference or null.
        let reference = schema["$ref"]
            .as_str()
            .or_else(|| schema["anyOf"][0]["$ref"].as_str());
        reference
            .and_then(|path| SCHEMA.pointer(path.trim_start_matches('#')))
            .unwrap_or(schema)
    };

    let mut schema: &'static Json = &SCHEMA;

    for part in key.split('.') {
        // The keys of a map are the platform's names.
        let inner = schema["properties"]
            .get(part)
            .or_else(|| schema.get("additionalProperties"))?;
        schema = resolve(inner.is_object().then_some(inner)?);
    }

    match &schema["type"] {
        Json::Array(with_null) => with_null[0].as_str(),
        Json::String(name) if name == "object" => None,
        // An enumeration of documented values is a list of alternatives.
        other => Some(other.as_str().unwrap_or("string")),
    }
}

/// Sets one setting from its text in the environment or on the command line.
fn set(settings: &mut Table, key: &str, text: &str) -> Result<(), ConfigError> {
    let not = |what: &str| ConfigError::Invalid(format!("{key}: `{text}` is not {what}"));
    let value = match type_of(key) {
        Some("array") => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
        Some("boolean") => Value::Boolean(text.parse().map_err(|_| not("true or false"))?),
        Some("number") => Value::Float(text.parse().map_err(|_| not("a number"))?),
        Some("integer") => Value::Integer(text.parse().map_err(|_| not("a whole number"))?),
        _ => Value::String(text.to_owned()),
    };

    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().expect("splitting gives at least one part");
    let mut table = settings;

    for part in parts {
        let entry = table
            .entry(part)
            .or_insert_with(|| Value::Table(Table::new()));
        table = entry
            .as_table_mut()
            .ok_or_else(|| ConfigError::Invalid(format!("{key}: `{part}` is not a section")))?;
    }

    table.insert(last.to_owned(), value);
    Ok(())
}

fn validate(config: &Config) -> Result<(), ConfigError> {
    let fail = |detail: String| Err(ConfigError::Invalid(detail));

    if let Some(problem) = config.source.problems().next() {
        return fail(problem);
    }

    config.check_log().map_err(ConfigError::Invalid)?;
    let cells = &config.cells;
    cells
        .check(config.source.capture)
        .map_err(ConfigError::Invalid)?;

    for (key, url) in config.database_urls() {
        Target::parse(url.expose_secret())
            .map_err(|error| ConfigError::Invalid(format!("{key}: {error}")))?;
    }

    if !config.http.base_path.is_empty() && !config.http.base_path.starts_with('/') {
        return fail(format!(
            "http.base_path: `{}` must begin with a slash",
            config.http.base_path
        ));
    }

    let positive = [
        ("delivery.concurrency", config.delivery.concurrency),
        (
            "delivery.per_webhook_concurrency",
            config.delivery.per_webhook_concurrency,
        ),
        (
            "delivery.retries_per_second",
            config.delivery.retries_per_second as usize,
        ),
        (
            "delivery.max_payload_bytes",
            config.delivery.max_payload_bytes,
        ),
        ("disable.threshold", config.disable.threshold as usize),
        ("retention.days", config.retention.days as usize),
    ];
    if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
        return fail(format!("{key} must be at least 1"));
    }

    // A century: dates that are further away do not exist everywhere.
    if config.retention.days > 36_525 {
        return fail("retention.days must be at most 36525".into());
    }

    if config.delivery.max_payload_bytes > MAX_BODY {
        return fail(format!(
            "delivery.max_payload_bytes must be at most {MAX_BODY}"
        ));
    }

    if config.delivery.timeout.0.is_zero() {
        return fail("delivery.timeout must be longer than 0s".into());
    }

    if config.delivery.retry_schedule.len() > 99 {
        return fail("delivery.retry_schedule: at most 99 waits".into());
    }

    access::check(config).map_err(ConfigError::Invalid)?;
    ui::check(config).map_err(ConfigError::Invalid)?;
    config.operator.check().map_err(ConfigError::Invalid)?;
    config.mail.check().map_err(ConfigError::Invalid)?;
    config.delivery.proxy().map_err(ConfigError::Invalid)?;
    config.tracing.check().map_err(ConfigError::Invalid)?;

    for key in &config.secrets.master_key {
        let length = base64::engine::general_purpose::STANDARD
            .decode(key.expose_secret())
            .map(|key| key.len());
        if length != Ok(32) {
            return fail(
                "secrets.master_key: expected base64 of exactly 32 bytes: generate a key with `openssl rand -base64 32`".into(),
            );
        }
    }

    Ok(())
}

impl Config {
    /// Returns the URLs of databases that are set, and their settings.
    fn database_urls(&self) -> impl Iterator<Item = (String, &SecretString)> {
        let single = [
            ("source.url", &self.source.url),
            ("source.log_url", &self.source.log_url),
            ("store.url", &self.store.url),
        ];
        let single = single
            .into_iter()
            .filter_map(|(key, url)| Some((key.to_owned(), url.as_ref()?)));
        let of_cells = self.cells.stores.iter();

        single.chain(of_cells.map(|(name, url)| (format!("{STORES_OF_CELLS}{name}"), url)))
    }

    /// Returns the primary's URL. The error says how to set it.
    pub fn source_url(&self) -> Result<&str, ConfigError> {
        self.source.url.as_ref().map(|url| url.expose_secret()).ok_or_else(|| {
            ConfigError::Invalid(
                "source.url is not set: set WALHOOK_SOURCE__URL to the primary, such as postgres://walhook@db/platform"
                    .into(),
            )
        })
    }

    /// Returns the URL from which changes or events are read. The error says how to set it.
    pub fn capture_url(&self) -> Result<&str, ConfigError> {
        match (self.source.capture, &self.source.log_url) {
            (CaptureMode::Wal | CaptureMode::Trigger, _) => self.source_url(),
            (CaptureMode::Log, Some(url)) => Ok(url.expose_secret()),
            (CaptureMode::Log, None) => Err(ConfigError::Invalid(
                "source.capture is \"log\" and source.log_url is not set: set WALHOOK_SOURCE__LOG_URL to the store whose events are \
                 read, such as postgres://walhook@log1,log2/walhook?target_session_attrs=read-write"
                    .into(),
            )),
        }
    }

    /// Checks the settings that must agree if a log is read, or is not.
    fn check_log(&self) -> Result<(), String> {
        let reads_log = self.source.capture == CaptureMode::Log;

        if !reads_log && self.source.log_url.is_some() {
            return Err(
                "source.log_url is set and source.capture is not \"log\": set that, or remove source.log_url".into(),
            );
        }

        if reads_log && self.mail.smtp_url.is_some() && self.source.url.is_none() {
            return Err(
                "mail.smtp_url is set and source.url is not: owners' e-mail addresses are looked up on the primary".into(),
            );
        }

        Ok(())
    }

    /// Returns the store's URL, which is the primary's if it is not set.
    pub fn store_url(&self) -> Result<&str, ConfigError> {
        match &self.store.url {
            Some(url) => Ok(url.expose_secret()),
            None if self.source.capture == CaptureMode::Log => Err(ConfigError::Invalid(
                "store.url is not set: a store that reads a log needs its own database".into(),
            )),
            None => self.source_url(),
        }
    }

    /// Fails if there is no master key. The error says how to set one.
    pub fn require_master_key(&self) -> Result<(), ConfigError> {
        if self.secrets.master_key.is_empty() {
            return Err(ConfigError::Invalid(
                "secrets.master_key is not set: generate a key with `openssl rand -base64 32`, and keep it outside the database"
                    .into(),
            ));
        }

        Ok(())
    }
}
