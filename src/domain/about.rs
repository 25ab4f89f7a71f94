//! What an event is about, in the words of a label: its release, outlet or track.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The keys of `data` that identify what an event is about. Values are as in `data`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub release_id: Option<String>,
    pub release_cat: Option<String>,
    pub release_title: Option<String>,
    pub track_id: Option<String>,
    pub isrc: Option<String>,
    pub outlet_id: Option<String>,
    pub outlet_name: Option<String>,
    pub dsp: Option<String>,
    pub invoice_number: Option<String>,
}

/// The keys in the order of the fields.
const KEYS: [&str; 9] = [
    "release_id",
    "release_cat",
    "release_title",
    "track_id",
    "isrc",
    "outlet_id",
    "outlet_name",
    "dsp",
    "invoice_number",
];

/// What an event can be found by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchKeys {
    pub release: Option<i64>,
    /// See [`catalogue_key`].
    pub catalogue: Option<i64>,
    pub track: Option<i64>,
}

/// The keys of `data` that [`SearchKeys`] are read from.
#[derive(Deserialize)]
struct SearchFields<'a> {
    release_id: Option<i64>,
    track_id: Option<i64>,
    #[serde(borrow)]
    release_cat: Option<&'a RawValue>,
}

impl SearchKeys {
    /// Reads the keys of an event's `data`. An event whose data cannot be read has none.
    pub fn of(data: &str) -> SearchKeys {
        let Ok(fields) = serde_json::from_str::<SearchFields<'_>>(data) else {
            return SearchKeys::default();
        };
        let number = fields
            .release_cat
            .and_then(|number| serde_json::from_str::<String>(number.get()).ok());

        SearchKeys {
            release: fields.release_id,
            catalogue: number.as_deref().map(catalogue_key),
            track: fields.track_id,
        }
    }
}

/// Returns a hash of a catalogue number, without regard to upper and lower case. Stored with events,
/// so it must never change.
pub fn catalogue_key(number: &str) -> i64 {
    let digest = Sha256::digest(number.to_lowercase());
    let first = digest.first_chunk().copied();
    i64::from_be_bytes(first.expect("a digest has 32 bytes"))
}

impl About {
    /// Takes the values in the order of the fields, as the statements select them.
    pub fn new(values: Vec<Option<String>>) -> About {
        let mut values = values.into_iter();
        let mut next = || values.next().flatten();

        About {
            release_id: next(),
            release_cat: next(),
            release_title: next(),
            track_id: next(),
            isrc: next(),
            outlet_id: next(),
            outlet_name: next(),
            dsp: next(),
            invoice_number: next(),
        }
    }

    /// Reads an event's `data`. Empty if it cannot be read.
    pub fn of(data: &str) -> About {
        let data: Value = serde_json::from_str(data).unwrap_or_default();
        let text = |key: &str| match &data[key] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };

        About::new(KEYS.map(text).into())
    }

    /// Returns the text. None if there is nothing to name.
    pub fn text(&self) -> Option<String> {
        Some(self.to_string()).filter(|text| !text.is_empty())
    }
}

/// Such as "CAT-001 · Example Music". Empty if there is nothing to name.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbered = |what, id: &Option<String>| id.as_ref().map(|id| format!("{what} {id}"));
        let release = self
            .release_cat
            .clone()
            .or_else(|| self.release_title.clone())
            .or_else(|| numbered("Release", &self.release_id))
            .or_else(|| numbered("Invoice", &self.invoice_number));
        let part = self
            .outlet_name
            .clone()
            .or_else(|| numbered("Outlet", &self.outlet_id))
            .or_else(|| self.dsp.clone())
            .or_else(|| self.isrc.clone())
            .or_else(|| numbered("Track", &self.track_id));
        let parts: Vec<String> = [release, part].into_iter().flatten().collect();

        f.write_str(&parts.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_named_by_its_release_and_its_outlet_or_track() {
        let about = |values: [&str; 9]| {
            let given = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
            About::new(values.map(given).into()).to_string()
        };

        let completed = ["7", "CAT-001", "", "", "", "12", "Example Music", "", ""];
        assert_eq!(about(completed), "CAT-001 · Example Music");
        assert_eq!(
            about(["7", "", "", "9", "", "", "", "", ""]),
            "Release 7 · Track 9"
        );
        assert_eq!(
            about(["", "", "", "", "", "", "", "", "INV-3"]),
            "Invoice INV-3"
        );
        assert_eq!(about([""; 9]), "");

        let of = |data: &str| About::of(data).text();
        let data = r#"{"release_id":7,"release_cat":"CAT-001","outlet_id":12,"outlet_name":null}"#;
        assert_eq!(of(data).as_deref(), Some("CAT-001 · Outlet 12"));
        assert_eq!(of("cut"), None);
    }

    #[test]
    fn an_event_is_found_by_its_numbers_whatever_else_it_has() {
        let keys = SearchKeys::of(r#"{"release_id":7,"release_cat":"CAT-\u0030\"1","status":"x"}"#);
        assert_eq!((keys.release, keys.track), (Some(7), None));
        assert_eq!(keys.catalogue, Some(catalogue_key("cat-0\"1")));
        assert_ne!(keys.catalogue, Some(catalogue_key("CAT-002")));

        let none = r#"{"release_id":null,"release_cat":null,"track_id":9}"#;
        assert_eq!(SearchKeys::of(none).track, Some(9));
        assert_eq!(SearchKeys::of("[]"), SearchKeys::default());
    }
}
