//! The optional settings of webhooks, as they are stored with the others.

use std::collections::BTreeMap;

use jiff::Timestamp;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::Result;
use super::statement::{Column, column, from_row};
use crate::domain::headers::CustomHeaders;
use crate::domain::subject::EventFilter;
use crate::vault::{Owner, Sealed, Vault, VaultError};

/// The settings that a webhook may have besides those that every webhook has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub description: Option<String>,
    /// The owner's own data, by key.
    pub metadata: BTreeMap<String, String>,
    pub filter: Option<EventFilter>,
    pub headers: HeaderNames,
}

/// The custom headers without their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderNames {
    /// As the owner spelled them.
    pub names: Vec<String>,
    /// When a header or a value last changed. None if there have never been any.
    pub changed_at: Option<Timestamp>,
}

from_row!(Options {
    description,
    metadata: metadata,
    filter: filter,
    headers: HeaderNames::from_row
});
from_row!(HeaderNames { names = "header_names", changed_at = "headers_changed_at" });

fn metadata(row: &tokio_postgres::Row) -> Result<BTreeMap<String, String>> {
    column::<Json<_>>(row, "metadata").map(|Json(metadata)| metadata)
}

/// Reads the column `filter`.
pub(super) fn filter(row: &tokio_postgres::Row) -> Result<Option<EventFilter>> {
    Ok(column::<Option<Json<_>>>(row, "filter")?.map(|Json(filter)| filter))
}

/// A value that is stored as JSON and read as text.
struct Json<T>(T);

impl<T: serde::de::DeserializeOwned> Column for Json<T> {
    type Stored = String;

    fn from_stored(stored: String) -> Result<Self, String> {
        serde_json::from_str(&stored)
            .map(Json)
            .map_err(|error| error.to_string())
    }
}

/// New values of options. `None` keeps the old value.
#[derive(Clone, Debug, Default)]
pub struct OptionChanges {
    pub description: Option<Option<String>>,
    pub metadata: Option<BTreeMap<String, String>>,
    pub filter: Option<Option<EventFilter>>,
    pub headers: Option<NewHeaders>,
}

/// The custom headers that replace a webhook's others.
#[derive(Clone, Debug, Default)]
pub struct NewHeaders {
    pub names: Vec<String>,
    /// None without headers.
    pub sealed: Option<Sealed>,
}

impl NewHeaders {
    /// Encrypts the custom headers of a webhook.
    pub fn seal(vault: &Vault, webhook: Uuid, headers: &CustomHeaders) -> NewHeaders {
        let seal = || vault.seal(Owner::headers(webhook), headers.to_text().as_bytes());
        NewHeaders {
            names: headers.names(),
            sealed: (!headers.0.is_empty()).then(seal),
        }
    }
}

/// Decrypts the custom headers of a webhook. Without `sealed`, there are none.
pub fn open_headers(
    vault: &Vault,
    webhook: Uuid,
    sealed: Option<&Sealed>,
) -> Result<CustomHeaders, VaultError> {
    let Some(Sealed { bytes, key_id }) = sealed else {
        return Ok(CustomHeaders::default());
    };

    let text = vault.open_text(Owner::headers(webhook), key_id, bytes)?;
    CustomHeaders::from_text(text.expose_secret()).ok_or(VaultError::Corrupt)
}

impl Options {
    /// Returns the names of the options that differ.
    pub(super) fn differences(&self, other: &Options) -> Vec<&'static str> {
        let Options {
            description,
            metadata,
            filter,
            headers,
        } = self;

        let differs = [
            ("description", *description != other.description),
            ("metadata", *metadata != other.metadata),
            ("filter", *filter != other.filter),
            ("headers", *headers != other.headers),
        ];

        differs
            .into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(name, _)| name)
            .collect()
    }

    /// Returns the metadata and the filter as JSON.
    pub(super) fn json(&self) -> (String, Option<String>) {
        let metadata = serde_json::to_string(&self.metadata).expect("strings can be serialized");
        let filter = self.filter.as_ref();
        (
            metadata,
            filter.map(|filter| serde_json::to_string(filter).expect("lists can be serialized")),
        )
    }
}

impl OptionChanges {
    /// Returns the options after the change. The time of a change of headers is known when it is
    /// stored.
    pub fn applied_to(&self, options: &Options) -> Options {
        let headers = self.headers.as_ref();
        Options {
            description: self
                .description
                .clone()
                .unwrap_or_else(|| options.description.clone()),
            metadata: self
                .metadata
                .clone()
                .unwrap_or_else(|| options.metadata.clone()),
            filter: self
                .filter
                .clone()
                .unwrap_or_else(|| options.filter.clone()),
            headers: headers.map_or_else(
                || options.headers.clone(),
                |new| HeaderNames {
                    names: new.names.clone(),
                    changed_at: None,
                },
            ),
        }
    }
}
