//! The section `cells`: the stores that divide a log among them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use super::{CaptureMode, Config, ConfigError, without_password};

section! { Cells:
    /// Name of the cell that the store is, if the events of a log are divided among several stores.
    #[schemars(example = &"a")]
    name: Option<String>,
    /// URLs of the stores of all cells by their names, for `walhook cells` and `walhook run --roles
    /// api`.
    ///
    /// ```toml
    /// [cells.stores]
    /// a = "postgres://walhook@a.internal/walhook?sslmode=verify-full"
    /// b = "postgres://walhook@b.internal/walhook?sslmode=verify-full"
    /// ```
    #[serde(serialize_with = "redact_urls")]
    #[schemars(with = "BTreeMap<String, String>")]
    stores: BTreeMap<String, SecretString>,
}

fn redact_urls<S: Serializer>(
    urls: &BTreeMap<String, SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let shown = |url: &SecretString| without_password(url.expose_secret());
    serializer.collect_map(urls.iter().map(|(name, url)| (name, shown(url))))
}

/// The most characters of a cell's name.
const MAX_NAME: usize = 40;

/// Checks a cell's name.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |character: char| {
        matches!(character, 'a'..='z' | '0'..='9' | '-' | '_') && name.len() <= MAX_NAME
    };

    match !name.is_empty() && name.chars().all(is_allowed) {
        true => Ok(()),
        false => Err(format!(
            "`{name}` is not a cell's name: use up to {MAX_NAME} lower-case letters, digits, hyphens and underscores"
        )),
    }
}

impl Cells {
    pub(super) fn check(&self, capture: CaptureMode) -> Result<(), String> {
        if self.name.is_some() && capture != CaptureMode::Log {
            return Err(
                "cells.name is set and source.capture is not \"log\": set that, or remove cells.name"
                    .into(),
            );
        }

        for name in self.name.iter().chain(self.stores.keys()) {
            check_name(name).map_err(|problem| format!("cells: {problem}"))?;
        }

        Ok(())
    }
}

impl Config {
    /// Returns the URL of a cell's store. The error says how to set it.
    pub fn cell_url(&self, name: &str) -> Result<&str, ConfigError> {
        match self.cells.stores.get(name) {
            Some(url) => Ok(url.expose_secret()),
            None if self.cells.name.as_deref() == Some(name) => self.store_url(),
            None => Err(ConfigError::Invalid(format!(
                "cells.stores.{name} is not set: set it to the URL of the store of cell {name}"
            ))),
        }
    }
}
