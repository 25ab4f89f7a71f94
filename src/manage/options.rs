//! The optional settings of a webhook, as types that hold valid values only: description, metadata,
//! custom headers and filter.

use std::collections::{BTreeMap, BTreeSet};

use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::option_fault::{Checked, OptionFault};
use super::reserved::is_reserved;
use super::service::Manage;
use crate::domain::event::EventKind;
use crate::domain::headers::{
    CustomHeader, CustomHeaders, MASK, MAX_NAME_LENGTH, MAX_VALUE_LENGTH, is_name, is_value,
};
use crate::domain::subject::EventFilter;
use crate::domain::text::check_lines;
use crate::events::{Statuses, statuses};
use crate::store::options::{HeaderNames, NewHeaders, OptionChanges, Options, open_headers};
use crate::telemetry::recurring;

/// A few sentences.
pub const MAX_DESCRIPTION_LENGTH: usize = 500;
/// As many pairs as receivers' owners need to find a webhook's counterpart in their own systems.
pub const MAX_METADATA: usize = 20;
pub const MAX_METADATA_KEY_LENGTH: usize = 40;
pub const MAX_METADATA_VALUE_LENGTH: usize = 500;
/// One or two for the receiver's gateway, and the rest for routing behind it.
pub const MAX_HEADERS: usize = 10;
/// Servers accept about 8 KiB of headers, and Walhook sends 1 KiB of its own.
const MAX_HEADER_BYTES: usize = 4 << 10;
/// Each event is compared with each entry when it is stored.
pub const MAX_FILTER_ENTRIES: usize = 100;
pub const MAX_STATUS_LENGTH: usize = 64;

/// Options to set. `None` keeps the present value, or the default of a new webhook.
#[derive(Clone, Debug, Default)]
pub struct OptionsDraft {
    pub description: Option<Description>,
    /// Replaces all pairs.
    pub metadata: Option<Metadata>,
    /// Replaces all headers.
    pub headers: Option<HeaderDraft>,
    pub filter: Option<FilterDraft>,
}

/// Text for people: at most 500 characters. The only invisible character is the line feed. A blank
/// one is none.
#[derive(Clone, Debug, Default)]
pub struct Description(Option<String>);

impl Description {
    pub fn new(text: String) -> Checked<Description> {
        check_lines(&text, MAX_DESCRIPTION_LENGTH)
            .map_err(|fault| vec![OptionFault::new(&["description"], fault.to_string())])?;
        Ok(Description(
            Some(text).filter(|text| !text.trim().is_empty()),
        ))
    }
}

/// The owner's own data.
#[derive(Clone, Debug, Default)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Checked<Metadata> {
        let mut metadata = BTreeMap::new();
        let mut faults = Vec::new();

        for (index, (key, value)) in pairs.into_iter().enumerate() {
            if index == MAX_METADATA {
                faults.push(OptionFault::new(
                    &["metadata"],
                    format!("must not have more than {MAX_METADATA} pairs"),
                ));
                break;
            }

            let mut fault =
                |detail: String| faults.push(OptionFault::new(&["metadata", &key], detail));
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if !(1..=MAX_METADATA_KEY_LENGTH).contains(&key.len()) || !key.bytes().all(is_letter) {
                fault(format!(
                    "a key must have 1 to {MAX_METADATA_KEY_LENGTH} characters: A-Z, a-z, 0-9, _ . and -"
                ));
            }

            if value.chars().count() > MAX_METADATA_VALUE_LENGTH {
                fault(format!(
                    "must not be longer than {MAX_METADATA_VALUE_LENGTH} characters"
                ));
            } else if value.chars().any(char::is_control) {
                fault("must not contain control characters".to_owned());
            }

            if metadata.contains_key(&key) {
                fault("occurs twice".to_owned());
            }

            metadata.insert(key, value);
        }

        if faults.is_empty() {
            Ok(Metadata(metadata))
        } else {
            Err(faults)
        }
    }
}

/// Custom headers to set. The mask keeps the value that a header has.
#[derive(Clone, Debug, Default)]
pub struct HeaderDraft(Vec<(String, HeaderValue)>);

#[derive(Clone, Debug)]
enum HeaderValue {
    New(SecretString),
    Kept,
}

impl HeaderDraft {
    /// `pairs` are names and values. A value may be the mask.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Checked<HeaderDraft> {
        let mut headers = Vec::new();
        let mut faults = Vec::new();
        let mut names = BTreeSet::new();

        for (index, (name, value)) in pairs.into_iter().enumerate() {
            if index == MAX_HEADERS {
                faults.push(OptionFault::new(
                    &["headers"],
                    format!("must not be more than {MAX_HEADERS}"),
                ));
                break;
            }

            let mut fault =
                |detail: String| faults.push(OptionFault::new(&["headers", &name], detail));

            if !is_name(&name) {
                fault(format!(
                    "a name must have 1 to {MAX_NAME_LENGTH} characters: letters, digits and !#$%&'*+-.^_`|~"
                ));
            } else if is_reserved(&name) {
                fault("is reserved: Walhook or the connection sets this header".to_owned());
            } else if !names.insert(name.to_ascii_lowercase()) {
                fault("occurs twice: the case of names does not matter".to_owned());
            } else if !is_value(&value) {
                fault(format!(
                    "a value must have 1 to {MAX_VALUE_LENGTH} printable ASCII characters, without spaces at the ends"
                ));
            }

            let value = if value == MASK {
                HeaderValue::Kept
            } else {
                HeaderValue::New(value.into())
            };

            headers.push((name, value));
        }

        if faults.is_empty() {
            Ok(HeaderDraft(headers))
        } else {
            Err(faults)
        }
    }

    fn keeps_values(&self) -> bool {
        self.kept().next().is_some()
    }

    /// The names of the headers whose values are kept.
    fn kept(&self) -> impl Iterator<Item = &str> {
        let kept = self
            .0
            .iter()
            .filter(|(_, value)| matches!(value, HeaderValue::Kept));
        kept.map(|(name, _)| name.as_str())
    }

    /// Whether these are the present headers with all their values.
    fn is_unchanged(&self, present: &HeaderNames) -> bool {
        let kept = |(name, value): &(String, HeaderValue)| {
            matches!(value, HeaderValue::Kept).then(|| name.clone())
        };

        let kept: Option<Vec<String>> = self.0.iter().map(kept).collect();
        kept.is_some_and(|names| names == present.names)
    }

    /// Returns the headers with their values. Those that are kept are taken from `present`.
    fn resolve(self, present: &CustomHeaders) -> Checked<CustomHeaders> {
        let mut headers = Vec::new();
        let mut faults = Vec::new();

        for (name, value) in self.0 {
            let value = match value {
                HeaderValue::New(value) => Some(value),
                HeaderValue::Kept => present.value(&name).cloned(),
            };

            match value {
                Some(value) => headers.push(CustomHeader { name, value }),
                None => {
                    let detail = format!(
                        "{MASK} keeps the value of a header, but the webhook has no such header"
                    );
                    faults.push(OptionFault::new(&["headers", &name], detail));
                }
            }
        }

        let bytes: usize = headers
            .iter()
            .map(|header| header.name.len() + header.value.expose_secret().len())
            .sum();
        if bytes > MAX_HEADER_BYTES {
            let detail = format!(
                "names and values must not have more than {MAX_HEADER_BYTES} bytes in total"
            );
            faults.push(OptionFault::new(&["headers"], detail));
        }

        if faults.is_empty() {
            Ok(CustomHeaders(headers))
        } else {
            Err(faults)
        }
    }
}

/// A filter to set. None lets every event pass.
#[derive(Clone, Debug, Default)]
pub struct FilterDraft(Option<EventFilter>);

impl FilterDraft {
    /// Each list is a set. A filter without lists is none. `check_filter` compares it with the
    /// webhook's events.
    pub fn new(
        label_ids: Option<Vec<i64>>,
        outlet_ids: Option<Vec<i64>>,
        statuses: Option<Vec<String>>,
    ) -> Checked<FilterDraft> {
        let mut faults = Vec::new();
        let label_ids = label_ids.map(|ids| id_set("label_ids", ids, &mut faults));
        let outlet_ids = outlet_ids.map(|ids| id_set("outlet_ids", ids, &mut faults));

        for (index, status) in statuses.iter().flatten().enumerate() {
            let length = status.chars().count();
            if !(1..=MAX_STATUS_LENGTH).contains(&length) || status.chars().any(char::is_control) {
                let detail = format!(
                    "a status must have 1 to {MAX_STATUS_LENGTH} characters, none of them control"
                );
                faults.push(OptionFault::new(
                    &["filter", "statuses", &index.to_string()],
                    detail,
                ));
            }
        }

        let statuses = statuses.map(|statuses| set("statuses", statuses, &mut faults));
        let filter = EventFilter {
            label_ids,
            outlet_ids,
            statuses,
        };

        if faults.is_empty() {
            Ok(FilterDraft(
                Some(filter).filter(|filter| !filter.is_empty()),
            ))
        } else {
            Err(faults)
        }
    }
}

fn id_set(name: &str, ids: Vec<i64>, faults: &mut Vec<OptionFault>) -> Vec<i64> {
    for (index, _) in ids.iter().enumerate().filter(|(_, id)| **id < 1) {
        faults.push(OptionFault::new(
            &["filter", name, &index.to_string()],
            "must be positive",
        ));
    }

    set(name, ids, faults)
}

fn set<T: Ord>(name: &str, items: Vec<T>, faults: &mut Vec<OptionFault>) -> Vec<T> {
    if !(1..=MAX_FILTER_ENTRIES).contains(&items.len()) {
        faults.push(OptionFault::new(
            &["filter", name],
            format!("must have 1 to {MAX_FILTER_ENTRIES} entries"),
        ));
    }

    items
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Checks that each list of the filter applies to one of the events at least, and that each status
/// is one that such an event can have.
pub(super) fn check_filter(filter: &EventFilter, events: &[EventKind]) -> Vec<OptionFault> {
    let mut faults = Vec::new();
    let mut fault = |path: &[&str], detail: &str| faults.push(OptionFault::new(path, detail));

    if filter.label_ids.is_some() && !events.iter().any(|kind| kind.has_label()) {
        fault(
            &["filter", "label_ids"],
            "none of the webhook's events belongs to a label",
        );
    }

    if filter.outlet_ids.is_some() && !events.iter().any(|kind| kind.has_outlet()) {
        fault(
            &["filter", "outlet_ids"],
            "none of the webhook's events has an outlet",
        );
    }

    let Some(wanted) = &filter.statuses else {
        return faults;
    };

    let possible: Vec<Statuses> = events.iter().map(|kind| statuses(*kind)).collect();
    if possible.iter().all(|statuses| *statuses == Statuses::None) {
        fault(
            &["filter", "statuses"],
            "none of the webhook's events has a status",
        );
    } else {
        let can_be = |statuses: &Statuses, status: &String| match statuses {
            Statuses::None => false,
            Statuses::OneOf(names) => names.contains(status),
            Statuses::Any => true,
        };

        let impossible = wanted
            .iter()
            .filter(|status| !possible.iter().any(|statuses| can_be(statuses, status)));
        let names: Vec<&str> = impossible.map(String::as_str).collect();
        if !names.is_empty() {
            fault(
                &["filter", "statuses"],
                &format!(
                    "none of the webhook's events can have the status {}",
                    names.join(", ")
                ),
            );
        }
    }

    faults
}

/// Checks that no header keeps its value, because another host would get it. Without a draft, all
/// do.
pub(super) fn check_given_again(draft: Option<&HeaderDraft>, present: &HeaderNames) -> Result<()> {
    let kept: Vec<&str> = match draft {
        Some(draft) => draft.kept().collect(),
        None => present.names.iter().map(String::as_str).collect(),
    };

    let detail =
        "give the value again, or remove the header: the new URL has another scheme, host or port";
    let faults: Vec<OptionFault> = kept
        .into_iter()
        .map(|name| OptionFault::new(&["headers", name], detail))
        .collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Fault::InvalidOptions(faults))
    }
}

/// Changes of options, and a condition on the webhook that they depend on.
pub(super) struct PreparedOptions {
    pub changes: OptionChanges,
    /// The headers whose values are kept. If they have changed in the meantime, the change must not
    /// be made.
    pub kept: Option<HeaderNames>,
}

impl Manage {
    /// Checks a draft against the present options of the webhook, and encrypts its headers.
    pub(super) async fn prepare_options(
        &self,
        webhook: Uuid,
        present: &Options,
        draft: OptionsDraft,
    ) -> Result<PreparedOptions> {
        let OptionsDraft {
            description,
            metadata,
            headers,
            filter,
        } = draft;

        let headers = headers.filter(|headers| !headers.is_unchanged(&present.headers));
        let kept = headers
            .as_ref()
            .filter(|headers| headers.keeps_values())
            .map(|_| present.headers.clone());

        let headers = match headers {
            None => None,
            Some(draft) => {
                let stored = if kept.is_some() {
                    self.stored_headers(webhook).await?
                } else {
                    CustomHeaders::default()
                };

                let resolved = draft.resolve(&stored).map_err(Fault::InvalidOptions)?;
                Some(NewHeaders::seal(&self.vault, webhook, &resolved))
            }
        };

        let description = description.map(|Description(text)| text);
        let metadata = metadata.map(|Metadata(pairs)| pairs);
        let filter = filter.map(|FilterDraft(filter)| filter);

        Ok(PreparedOptions {
            changes: OptionChanges {
                description,
                metadata,
                filter,
                headers,
            },
            kept,
        })
    }

    /// Returns the custom headers that the webhook has. None for a webhook that does not exist yet.
    async fn stored_headers(&self, webhook: Uuid) -> Result<CustomHeaders> {
        let sealed = self
            .store
            .targets(&[webhook])
            .await?
            .pop()
            .and_then(|target| target.headers);
        open_headers(&self.vault, webhook, sealed.as_ref()).map_err(|error| {
            recurring!(error, %webhook, %error, "custom headers cannot be decrypted: they can be replaced, but not kept");
            Fault::Internal
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn pointers<T>(checked: Checked<T>) -> Vec<String> {
        checked
            .err()
            .unwrap_or_default()
            .iter()
            .map(OptionFault::pointer)
            .collect()
    }

    #[test]
    fn descriptions_have_500_characters_and_may_have_lines() {
        assert_eq!(
            Description::new("é".repeat(500))
                .unwrap()
                .0
                .unwrap()
                .chars()
                .count(),
            500
        );

        assert_eq!(
            Description::new("a\nb".into()).unwrap().0.as_deref(),
            Some("a\nb")
        );
        assert_eq!(Description::new(" \n".into()).unwrap().0, None);

        for wrong in ["x".repeat(501), "a\rb".into(), "\u{200b}".into()] {
            assert_eq!(pointers(Description::new(wrong)), ["/description"]);
        }
    }

    #[test]
    fn metadata_is_bounded() {
        assert_eq!(
            Metadata::new(pairs(&[("a.b-c_D9", ""), ("k", "ü")]))
                .unwrap()
                .0["k"],
            "ü"
        );

        let long = "x".repeat(501);
        let wrong = [
            ("", "v"),
            ("a b", "v"),
            ("a/~", "v"),
            ("k", &*long),
            ("l", "a\nb"),
        ];

        let expected = [
            "/metadata/",
            "/metadata/a b",
            "/metadata/a~1~0",
            "/metadata/k",
            "/metadata/l",
        ];

        assert_eq!(pointers(Metadata::new(pairs(&wrong))), expected);
        let many =
            |count: usize| Metadata::new((0..count).map(|n| (format!("k{n}"), String::new())));

        assert!(many(20).is_ok());
        assert_eq!(pointers(many(21)), ["/metadata"]);
        assert_eq!(
            pointers(Metadata::new(pairs(&[("k", "1"), ("k", "2")]))),
            ["/metadata/k"]
        );
    }

    #[test]
    fn headers_are_bounded_and_unique_without_regard_to_case() {
        assert!(
            HeaderDraft::new(pairs(&[("Authorization", "Bearer x"), ("X-Api-Key", "k")])).is_ok()
        );

        let wrong = [
            ("X Y", "v"),
            ("Host", "v"),
            ("X-A", "v"),
            ("x-a", "v"),
            ("X-B", "a\nb"),
            ("X-C", ""),
        ];

        let expected = [
            "/headers/X Y",
            "/headers/Host",
            "/headers/x-a",
            "/headers/X-B",
            "/headers/X-C",
        ];

        assert_eq!(pointers(HeaderDraft::new(pairs(&wrong))), expected);
        let many =
            |count: usize| HeaderDraft::new((0..count).map(|n| (format!("X-{n}"), "v".to_owned())));

        assert!(many(10).is_ok());
        assert_eq!(pointers(many(11)), ["/headers"]);

        let long: Vec<_> = (0..5)
            .map(|n| (format!("X-{n}"), "v".repeat(1_000)))
            .collect();
        let in_total = |count: usize| {
            HeaderDraft::new(long[..count].to_vec())
                .unwrap()
                .resolve(&Default::default())
        };

        assert!(in_total(4).is_ok());
        assert_eq!(pointers(in_total(5)), ["/headers"]);
    }

    #[test]
    fn a_mask_keeps_the_value_of_a_present_header() {
        let present = HeaderDraft::new(pairs(&[("X-Old", "secret")]))
            .unwrap()
            .resolve(&Default::default())
            .unwrap();
        let draft = |given: &[(&str, &str)]| HeaderDraft::new(pairs(given)).unwrap();
        let kept = draft(&[("x-old", MASK), ("X-New", "v")])
            .resolve(&present)
            .unwrap();

        assert_eq!(kept.value("X-Old").unwrap().expose_secret(), "secret");
        assert_eq!(
            pointers(draft(&[("X-Other", MASK)]).resolve(&present)),
            ["/headers/X-Other"]
        );

        let names = HeaderNames {
            names: vec!["X-Old".into()],
            changed_at: None,
        };

        assert!(draft(&[("X-Old", MASK)]).is_unchanged(&names));
        assert!(!draft(&[("X-Old", "secret")]).is_unchanged(&names));
        assert!(
            !draft(&[]).is_unchanged(&names) && draft(&[]).is_unchanged(&HeaderNames::default())
        );
    }

    #[test]
    fn a_filter_has_sets_of_valid_values() {
        let filter = FilterDraft::new(
            Some(vec![3, 1, 3]),
            None,
            Some(vec!["b".into(), "a".into()]),
        )
        .unwrap()
        .0
        .unwrap();

        assert_eq!(
            (filter.label_ids, filter.statuses),
            (Some(vec![1, 3]), Some(vec!["a".into(), "b".into()]))
        );
        assert_eq!(FilterDraft::new(None, None, None).unwrap().0, None);

        let wrong = FilterDraft::new(Some(vec![1, 0]), Some(vec![]), Some(vec!["x".repeat(65)]));
        assert_eq!(
            pointers(wrong),
            [
                "/filter/label_ids/1",
                "/filter/outlet_ids",
                "/filter/statuses/0"
            ]
        );

        assert_eq!(
            pointers(FilterDraft::new(Some((1..102).collect()), None, None)),
            ["/filter/label_ids"]
        );
    }

    #[test]
    fn a_filter_must_apply_to_one_of_the_events() {
        use EventKind::{
            DeliveryFailed, DistributionOutletStatusChanged, PaymentStatementReady, TranscodeFailed,
        };

        let check = |filter: &str, events: &[EventKind]| {
            let faults = check_filter(&serde_json::from_str(filter).unwrap(), events);
            faults.iter().map(OptionFault::pointer).collect::<Vec<_>>()
        };

        let all = r#"{"label_ids":[1],"outlet_ids":[1],"statuses":["rejected"]}"#;
        assert_eq!(
            check(all, &[PaymentStatementReady]),
            [
                "/filter/label_ids",
                "/filter/outlet_ids",
                "/filter/statuses"
            ]
        );

        assert!(check(all, &[PaymentStatementReady, DeliveryFailed]).is_empty());
        assert_eq!(
            check(all, &[TranscodeFailed]),
            ["/filter/outlet_ids", "/filter/statuses"]
        );

        let unknown = r#"{"statuses":["limbo"]}"#;
        assert_eq!(check(unknown, &[DeliveryFailed]), ["/filter/statuses"]);
        assert!(check(unknown, &[DeliveryFailed, DistributionOutletStatusChanged]).is_empty());
    }
}
