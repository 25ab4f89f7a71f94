//! What `walhook apply` has to change, and how it is shown. No I/O.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::client::{Listed, Version};
use super::file::Wanted;
use crate::domain::settings::{Base, Settings};

/// The change of one webhook.
pub enum Change<'a> {
    Create {
        wanted: &'a Wanted,
        settings: Settings,
    },
    Replace {
        wanted: &'a Wanted,
        etag: String,
        present: Box<Settings>,
        settings: Settings,
        /// Whether the values of headers are sent again.
        renews_headers: bool,
    },
    Delete {
        id: Uuid,
        name: String,
        etag: String,
    },
}

/// The changes, in the order in which they are made.
#[derive(Default)]
pub struct Plan<'a> {
    pub changes: Vec<Change<'a>>,
    pub unchanged: usize,
    /// Webhooks that are not in the file, and stay.
    pub unmanaged: usize,
}

/// Fails if several of the user's webhooks have the name of one in the file.
pub fn check_names(wanted: &[Wanted], listed: &[Listed]) -> anyhow::Result<()> {
    for Wanted { name, .. } in wanted {
        let same = listed.iter().filter(|listed| listed.name == *name);
        let ids: Vec<String> = same.map(|listed| listed.id.to_string()).collect();
        ensure!(
            ids.len() < 2,
            "several webhooks have the name {name:?}: rename or delete all but one of {}",
            ids.join(", ")
        );
    }

    Ok(())
}

/// Returns the webhooks that are not in the file.
pub fn others<'a>(wanted: &'a [Wanted], listed: &'a [Listed]) -> impl Iterator<Item = &'a Listed> {
    let names: BTreeSet<&str> = wanted.iter().map(|wanted| &*wanted.name).collect();
    listed
        .iter()
        .filter(move |listed| !names.contains(&*listed.name))
}

/// Returns the change that makes a webhook as wanted. None if it is so already.
pub fn change<'a>(
    wanted: &'a Wanted,
    present: Option<Version>,
    renews_headers: bool,
) -> anyhow::Result<Option<Change<'a>>> {
    let Some(Version { webhook, etag }) = present else {
        let settings = wanted.settings(Base::New)?;
        return Ok(Some(Change::Create { wanted, settings }));
    };

    let present = present_settings(&webhook)
        .with_context(|| format!("the API's settings of webhook {:?}", wanted.name))?;
    let settings = wanted.settings(Base::Replacement(&present))?;
    let renews_headers = renews_headers && settings.headers.names().next().is_some();
    let is_same = settings.differences(&present).is_empty() && !renews_headers;

    Ok((!is_same).then_some(Change::Replace {
        wanted,
        etag,
        present: Box::new(present),
        settings,
        renews_headers,
    }))
}

/// Reads the settings of a webhook as the API shows it.
fn present_settings(webhook: &Value) -> anyhow::Result<Settings> {
    let known = json!(Settings::default());
    let names = known.as_object().into_iter().flat_map(Map::keys);
    let given = names.filter_map(|name| Some((name.clone(), webhook.get(name)?.clone())));
    let json = Value::Object(given.collect()).to_string();

    Settings::read(json.as_bytes(), Base::New, &|url| Ok(url.to_owned())).map_err(|errors| {
        let describe = |error: &crate::domain::members::FieldError| {
            format!("{}: {}", error.pointer, error.detail)
        };
        let errors: Vec<String> = errors.iter().map(describe).collect();
        anyhow::anyhow!(errors.join("; "))
    })
}

impl Change<'_> {
    pub fn name(&self) -> &str {
        match self {
            Change::Create { wanted, .. } | Change::Replace { wanted, .. } => &wanted.name,
            Change::Delete { name, .. } => name,
        }
    }

    /// The past tense of what is done.
    pub const fn done(&self) -> &'static str {
        match self {
            Change::Create { .. } => "added",
            Change::Replace { .. } => "changed",
            Change::Delete { .. } => "deleted",
        }
    }
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Create { wanted, settings } => {
                writeln!(f, "+ {}", wanted.name)?;
                let given = settings.differences(&Settings::default());
                let shown = json!(settings);

                for name in given.into_iter().filter(|name| *name != "name") {
                    writeln!(f, "    + {name}: {}", shown[name])?;
                }
            }
            Change::Replace {
                wanted,
                present,
                settings,
                renews_headers,
                ..
            } => {
                writeln!(f, "~ {}", wanted.name)?;
                let (before, after) = (json!(present), json!(settings));

                for name in settings.differences(present) {
                    writeln!(f, "    ~ {name}: {} -> {}", before[name], after[name])?;
                }

                if *renews_headers {
                    writeln!(f, "    ~ headers: their values are sent again")?;
                }
            }
            Change::Delete { id, name, .. } => writeln!(f, "- {name} ({id})")?,
        }

        Ok(())
    }
}

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.changes {
            writeln!(f, "{change}")?;
        }

        let count = |done| {
            self.changes
                .iter()
                .filter(|change| change.done() == done)
                .count()
        };
        let mut summary = format!(
            "Plan: {} to add, {} to change, {} to delete, {} unchanged",
            count("added"),
            count("changed"),
            count("deleted"),
            self.unchanged
        );

        if self.unmanaged > 0 {
            write!(summary, ", {} not in the file", self.unmanaged)?;
        }

        writeln!(f, "{summary}.")
    }
}
