//! The optional settings of webhooks in forms, where each is text, and on pages.

use super::fields::Fields;
use super::format::sentence;
use crate::domain::headers::MASK;
use crate::manage::{
    Checked, Description, FilterDraft, HeaderDraft, MAX_FILTER_ENTRIES, MAX_METADATA, Metadata,
    OptionFault, Options, OptionsDraft,
};

/// Metadata may have more pairs than there may be headers.
const MAX_LINES: usize = MAX_METADATA + 1;

/// The contents of the form's fields.
#[derive(Default)]
pub struct OptionFields {
    pub description: String,
    /// A name and a value per line, separated by a colon.
    pub headers: String,
    pub label_ids: String,
    pub outlet_ids: String,
    pub statuses: String,
    /// A key and a value per line, separated by an equals sign.
    pub metadata: String,
    /// Whether the form had these fields. A form of an earlier version keeps the options as they
    /// are.
    is_given: bool,
}

/// Error messages, by field.
#[derive(Default)]
pub struct OptionErrors {
    pub description: Option<String>,
    pub headers: Option<String>,
    pub filter: Option<String>,
    pub metadata: Option<String>,
}

impl OptionErrors {
    pub fn any(&self) -> bool {
        let OptionErrors {
            description,
            headers,
            filter,
            metadata,
        } = self;
        [description, headers, filter, metadata]
            .iter()
            .any(|error| error.is_some())
    }

    fn add(&mut self, faults: &[OptionFault]) {
        for fault in faults {
            let field = match fault.path.first().map(String::as_str) {
                Some("headers") => &mut self.headers,
                Some("filter") => &mut self.filter,
                Some("metadata") => &mut self.metadata,
                _ => &mut self.description,
            };

            // Positions in a list mean nothing in a form; names of headers and keys do.
            let part = fault
                .path
                .get(1)
                .filter(|part| !is_list(part) && !part.is_empty());
            let message = part.map_or_else(
                || sentence(&fault.detail),
                |part| format!("{part}: {}.", fault.detail),
            );
            let messages = field.get_or_insert_default();
            if !messages.is_empty() {
                messages.push(' ');
            }

            messages.push_str(&message);
        }
    }
}

impl From<Vec<OptionFault>> for OptionErrors {
    fn from(faults: Vec<OptionFault>) -> Self {
        let mut errors = OptionErrors::default();
        errors.add(&faults);
        errors
    }
}

fn is_list(part: &str) -> bool {
    matches!(part, "label_ids" | "outlet_ids" | "statuses")
}

impl From<&Options> for OptionFields {
    fn from(options: &Options) -> Self {
        let Options {
            description,
            metadata,
            filter,
            headers,
        } = options;

        let filter = filter.clone().unwrap_or_default();
        let headers: Vec<String> = headers
            .names
            .iter()
            .map(|name| format!("{name}: {MASK}"))
            .collect();
        let metadata: Vec<String> = metadata
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();

        OptionFields {
            description: description.clone().unwrap_or_default(),
            headers: headers.join("\n"),
            label_ids: listed(filter.label_ids.as_deref()),
            outlet_ids: listed(filter.outlet_ids.as_deref()),
            statuses: listed(filter.statuses.as_deref()),
            metadata: metadata.join("\n"),
            is_given: true,
        }
    }
}

/// Returns the items of a list, separated by commas.
pub fn listed<T: ToString>(items: Option<&[T]>) -> String {
    items
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl OptionFields {
    pub fn entered(fields: &Fields) -> OptionFields {
        // Browsers send line breaks as CR LF.
        let text = |name: &str| fields.one(name).replace("\r\n", "\n");
        OptionFields {
            description: text("description").trim().to_owned(),
            headers: text("headers"),
            label_ids: text("label_ids"),
            outlet_ids: text("outlet_ids"),
            statuses: text("statuses"),
            metadata: text("metadata"),
            is_given: fields.all("headers").next().is_some(),
        }
    }

    /// Returns the options that the fields describe, or the errors.
    pub fn draft(&self) -> Result<OptionsDraft, OptionErrors> {
        if !self.is_given {
            return Ok(OptionsDraft::default());
        }

        let description = Description::new(self.description.clone());
        let headers = pairs(&self.headers, "headers", ':').and_then(HeaderDraft::new);
        let metadata = pairs(&self.metadata, "metadata", '=').and_then(Metadata::new);
        match (description, headers, metadata, self.filter()) {
            (Ok(description), Ok(headers), Ok(metadata), Ok(filter)) => Ok(OptionsDraft {
                description: Some(description),
                headers: Some(headers),
                metadata: Some(metadata),
                filter: Some(filter),
            }),
            (description, headers, metadata, filter) => {
                let faults = [
                    description.err(),
                    headers.err(),
                    metadata.err(),
                    filter.err(),
                ];
                Err(faults
                    .into_iter()
                    .flatten()
                    .flatten()
                    .collect::<Vec<_>>()
                    .into())
            }
        }
    }

    fn filter(&self) -> Checked<FilterDraft> {
        let statuses: Vec<String> = items(&self.statuses).map(str::to_owned).collect();
        let statuses = Some(statuses).filter(|statuses| !statuses.is_empty());
        FilterDraft::new(
            ids("label_ids", &self.label_ids)?,
            ids("outlet_ids", &self.outlet_ids)?,
            statuses,
        )
    }
}

/// Returns the items of a list, up to the first that is too many.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '\n'])
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .take(MAX_FILTER_ENTRIES + 1)
}

/// Parses a list of ids. An empty field is no list.
fn ids(name: &str, text: &str) -> Checked<Option<Vec<i64>>> {
    let fault = |_| {
        let label = if name == "label_ids" {
            "label IDs"
        } else {
            "outlet IDs"
        };

        vec![OptionFault::new(
            &["filter", name],
            format!("{label} must be numbers, separated by commas"),
        )]
    };

    let ids: Vec<i64> = items(text)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(fault)?;
    Ok(Some(ids).filter(|ids| !ids.is_empty()))
}

/// Parses a pair per line, up to the first that is too many for every option. Ignores empty lines.
fn pairs(text: &str, field: &str, separator: char) -> Checked<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut faults = Vec::new();

    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .take(MAX_LINES)
    {
        match line.split_once(separator) {
            Some((name, value)) => pairs.push((name.trim().to_owned(), value.trim().to_owned())),
            // Without the line, which may be a secret.
            None if faults.is_empty() => {
                faults.push(OptionFault::new(
                    &[field],
                    format!("each line must contain a `{separator}`"),
                ));
            }
            None => {}
        }
    }

    if faults.is_empty() {
        Ok(pairs)
    } else {
        Err(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(change: impl FnOnce(&mut OptionFields)) -> OptionFields {
        let mut fields = OptionFields {
            is_given: true,
            ..OptionFields::default()
        };

        change(&mut fields);
        fields
    }

    #[test]
    fn fields_are_lines_of_pairs_and_lists() {
        let draft = fields(|fields| {
            fields.headers = "Authorization: Bearer a:b\n\n X-Key :v ".into();
            fields.metadata = "a=b=c\nempty=".into();
            fields.label_ids = "1, 2,\n3".into();
        });

        assert!(draft.draft().is_ok());
        assert_eq!(
            pairs(&draft.headers, "headers", ':').unwrap()[0].1,
            "Bearer a:b"
        );
        assert_eq!(
            pairs(&draft.metadata, "metadata", '=').unwrap()[0],
            ("a".to_owned(), "b=c".to_owned())
        );
        assert_eq!(ids("label_ids", &draft.label_ids), Ok(Some(vec![1, 2, 3])));
    }

    #[test]
    fn fields_with_very_many_lines_have_few_errors() {
        let errors = fields(|fields| {
            fields.headers = ":\n".repeat(100_000);
            fields.metadata = "=\n".repeat(100_000);
            fields.statuses = format!("{},", "x".repeat(65)).repeat(1_000);
        });

        let OptionErrors {
            headers,
            metadata,
            filter,
            ..
        } = errors.draft().err().unwrap();

        let headers = headers.unwrap();
        let metadata = metadata.unwrap();
        let filter = filter.unwrap();

        assert!(
            headers.contains("Must not be more than 10") && headers.len() < 2_000,
            "{headers}"
        );
        assert!(
            metadata.contains("Must not have more than 20 pairs") && metadata.len() < 4_000,
            "{metadata}"
        );
        assert!(
            filter.contains("Must have 1 to 100 entries") && filter.len() < 10_000,
            "{filter}"
        );
    }

    #[test]
    fn errors_name_the_header_but_not_its_value() {
        let errors = fields(|fields| {
            fields.headers = "Host: a\nX-Key: sécret".into();
            fields.outlet_ids = "1 2".into();
        });

        let errors = errors.draft().err().unwrap();
        let headers = errors.headers.unwrap();

        assert!(
            headers.starts_with("Host: is reserved") && headers.contains("X-Key: a value must"),
            "{headers}"
        );
        assert!(!headers.contains("cret"), "{headers}");
        assert_eq!(
            errors.filter.as_deref(),
            Some("Outlet IDs must be numbers, separated by commas.")
        );

        let errors = fields(|fields| fields.headers = "a secret".into())
            .draft()
            .err()
            .unwrap();
        assert_eq!(
            errors.headers.as_deref(),
            Some("Each line must contain a `:`.")
        );
    }

    #[test]
    fn a_form_without_the_fields_changes_no_options() {
        let draft = OptionFields::default().draft().ok().unwrap();
        assert!(draft.headers.is_none() && draft.filter.is_none() && draft.description.is_none());
    }
}
