//! The optional settings of webhooks in bodies and schemas: description, metadata, custom headers
//! and filter.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, Object, ObjectBuilder, SchemaType, Type,
};

use super::body::{Checked, Members, invalid};
use crate::domain::headers::{MASK, MAX_NAME_LENGTH, MAX_VALUE_LENGTH};
use crate::domain::subject::EventFilter;
use crate::domain::text;
use crate::http::problem::{FieldError, MAX_ERRORS};
use crate::manage::{
    Description, FilterDraft, HeaderDraft, MAX_DESCRIPTION_LENGTH, MAX_FILTER_ENTRIES, MAX_HEADERS,
    MAX_METADATA, MAX_METADATA_KEY_LENGTH, MAX_METADATA_VALUE_LENGTH, MAX_STATUS_LENGTH, Metadata,
    OptionFault, Options, OptionsDraft,
};

/// Reads the options of a webhook to create or edit. Null and an empty value clear an option.
pub fn options(members: &mut Members) -> Option<OptionsDraft> {
    let description = members.optional("description", description);
    let metadata = members.optional("metadata", metadata);
    let headers = members.optional("headers", headers);
    let filter = members.optional("filter", filter);

    Some(OptionsDraft {
        description: description?,
        metadata: metadata?,
        headers: headers?,
        filter: filter?,
    })
}

fn description(value: Value) -> Checked<Description> {
    match value {
        Value::Null => Ok(Description::default()),
        Value::String(text) => Description::new(text).map_err(errors),
        _ => Err(invalid("expected a string or null")),
    }
}

fn metadata(value: Value) -> Checked<Metadata> {
    Metadata::new(strings(value)?).map_err(errors)
}

fn headers(value: Value) -> Checked<HeaderDraft> {
    HeaderDraft::new(strings(value)?).map_err(errors)
}

fn filter(value: Value) -> Checked<FilterDraft> {
    let Some(mut object) = nullable_object(value)? else {
        return Ok(FilterDraft::default());
    };

    let mut faults = Vec::new();
    let mut list = |name: &str| {
        object
            .shift_remove(name)
            .map(|value| (name.to_owned(), value))
    };

    let [labels, outlets, statuses] = ["label_ids", "outlet_ids", "statuses"].map(&mut list);
    let label_ids =
        labels.and_then(|labels| items(labels, "a positive integer", Value::as_i64, &mut faults));
    let outlet_ids = outlets
        .and_then(|outlets| items(outlets, "a positive integer", Value::as_i64, &mut faults));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let statuses = statuses.and_then(|statuses| items(statuses, "a string", text, &mut faults));
    let unknown = object.keys().take(MAX_ERRORS);

    faults.extend(unknown.map(|name| FieldError::new(pointer(&[name]), "is not a known key")));

    if !faults.is_empty() {
        faults.truncate(MAX_ERRORS);
        return Err(faults);
    }

    FilterDraft::new(label_ids, outlet_ids, statuses).map_err(errors)
}

/// Converts the items of an array. Adds an error for each that `convert` refuses.
fn items<T>(
    (name, value): (String, Value),
    expected: &str,
    convert: impl Fn(&Value) -> Option<T>,
    faults: &mut Vec<FieldError>,
) -> Option<Vec<T>> {
    let Value::Array(items) = value else {
        faults.push(FieldError::new(pointer(&[&name]), "expected an array"));
        return None;
    };

    if items.len() > MAX_FILTER_ENTRIES {
        let detail = format!("must have 1 to {MAX_FILTER_ENTRIES} entries");
        faults.push(FieldError::new(pointer(&[&name]), detail));
        return None;
    }

    let mut converted = Vec::new();

    for (index, item) in items.iter().enumerate() {
        match convert(item) {
            Some(item) => converted.push(item),
            None => {
                faults.push(FieldError::new(
                    pointer(&[&name, &index.to_string()]),
                    format!("expected {expected}"),
                ));
            }
        }
    }

    Some(converted)
}

/// Returns the members of an object of strings. Null is an empty object.
fn strings(value: Value) -> Checked<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut faults = Vec::new();

    for (name, value) in nullable_object(value)?.unwrap_or_default() {
        match value {
            Value::String(text) => pairs.push((name, text)),
            _ if faults.len() < MAX_ERRORS => {
                faults.push(FieldError::new(pointer(&[&name]), "expected a string"))
            }
            _ => break,
        }
    }

    if faults.is_empty() {
        Ok(pairs)
    } else {
        Err(faults)
    }
}

fn nullable_object(value: Value) -> Checked<Option<Map<String, Value>>> {
    match value {
        Value::Null => Ok(None),
        Value::Object(object) => Ok(Some(object)),
        _ => Err(invalid("expected an object or null")),
    }
}

fn pointer(path: &[&str]) -> String {
    OptionFault::new(path, "").pointer()
}

/// Converts faults to errors whose pointers are relative to the option.
fn errors(mut faults: Vec<OptionFault>) -> Vec<FieldError> {
    faults.truncate(MAX_ERRORS);
    let error = |mut fault: OptionFault| {
        fault.path.remove(0);
        FieldError::new(fault.pointer(), fault.detail)
    };

    faults.into_iter().map(error).collect()
}

/// The options of a webhook, as responses contain them.
pub struct OptionsBody {
    pub description: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub headers: MaskedHeaders,
    pub filter: Option<EventFilter>,
}

impl From<Options> for OptionsBody {
    fn from(options: Options) -> Self {
        let Options {
            description,
            metadata,
            filter,
            headers,
        } = options;

        let mask = |name: String| (name, MASK.into());
        let headers = MaskedHeaders(headers.names.into_iter().map(mask).collect());
        OptionsBody {
            description,
            metadata,
            headers,
            filter,
        }
    }
}

/// Custom headers with the mask instead of their values, in the owner's order.
#[derive(Serialize)]
#[serde(transparent)]
pub struct MaskedHeaders(Map<String, Value>);

fn text(min: usize, max: usize, pattern: &str) -> ObjectBuilder {
    let object = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(max))
        .pattern(Some(pattern));

    if min > 0 {
        object.min_length(Some(min))
    } else {
        object
    }
}

/// An object of strings.
fn map(names: ObjectBuilder, values: ObjectBuilder, max: usize) -> ObjectBuilder {
    let values = AdditionalProperties::from(values);
    let names = Some(utoipa::openapi::Schema::Object(names.build()));
    ObjectBuilder::new()
        .additional_properties(Some(values))
        .property_names(names)
        .max_properties(Some(max))
}

fn nullable(kind: Type) -> SchemaType {
    SchemaType::from_iter([kind, Type::Null])
}

const DESCRIPTION: &str = "For people. Line feeds are its only control or invisible characters";
const METADATA: &str = "Data of your own, which Walhook stores and returns";
const FILTER: &str = "Which of the subscribed events are delivered: those whose value is in each of the given lists. A list does not apply to events \
                      that have no such value. Null delivers all";

pub fn name_schema() -> Object {
    let pattern = format!("^(?=.*\\S){}*$", visible_class(|_| true));
    let name = text(1, text::MAX_NAME_LENGTH, &pattern);
    name.description(Some(
        "Without control and invisible characters. Spaces at the ends are removed",
    ))
    .build()
}

pub fn description_schema() -> Object {
    let pattern = format!("^{}*$", visible_class(|hidden| !hidden.contains(&'\n')));
    let text = text(0, MAX_DESCRIPTION_LENGTH, &pattern).schema_type(nullable(Type::String));
    text.description(Some(DESCRIPTION)).build()
}

/// Returns the class of a regular expression for the characters that are in none of the listed
/// ranges of hidden ones. Those beyond U+FFFF are left out: each dialect writes them in its own
/// way.
fn visible_class(is_listed: impl Fn(&RangeInclusive<char>) -> bool) -> String {
    let listed = text::HIDDEN
        .iter()
        .filter(|hidden| *hidden.end() <= '\u{ffff}' && is_listed(hidden));
    let ranges = listed.map(|hidden| (u32::from(*hidden.start()), u32::from(*hidden.end())));
    let class: String = ranges
        .map(|(first, last)| format!("\\u{first:04x}-\\u{last:04x}"))
        .collect();

    format!("[^{class}]")
}

fn metadata_object() -> ObjectBuilder {
    let names = text(1, MAX_METADATA_KEY_LENGTH, "^[A-Za-z0-9_.-]+$");
    let values = text(
        0,
        MAX_METADATA_VALUE_LENGTH,
        "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
    );
    map(names, values, MAX_METADATA)
}

pub fn metadata_schema() -> Object {
    metadata_object().description(Some(METADATA)).build()
}

pub fn new_metadata_schema() -> Object {
    let description = format!("{METADATA}. Replaces all pairs; null or {{}} removes them");
    metadata_object()
        .schema_type(nullable(Type::Object))
        .description(Some(description))
        .build()
}

fn headers_object() -> ObjectBuilder {
    let names = text(1, MAX_NAME_LENGTH, "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$");
    map(
        names,
        text(1, MAX_VALUE_LENGTH, "^[!-~]([ -~]*[!-~])?$"),
        MAX_HEADERS,
    )
}

pub fn headers_schema() -> Object {
    let description =
        format!("Headers that are sent with each delivery. Each value is shown as `{MASK}`");
    headers_object().description(Some(description)).build()
}

pub fn new_headers_schema() -> Object {
    let description = format!(
        "Headers to send with each delivery, at most 4,096 bytes in total. Their values are stored encrypted and never returned. Names are \
         compared without regard to case; those that Walhook or the connection sets are reserved. Replaces all headers; null or {{}} removes \
         them. The value `{MASK}` keeps the value that the header has"
    );
    headers_object()
        .schema_type(nullable(Type::Object))
        .description(Some(description))
        .build()
}

fn filter_object(nullable: SchemaType) -> ObjectBuilder {
    let list = |items: ObjectBuilder| {
        ArrayBuilder::new()
            .items(items.build())
            .min_items(Some(1))
            .max_items(Some(MAX_FILTER_ENTRIES))
            .build()
    };

    let id = || {
        ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1))
            .maximum(Some(i64::MAX))
    };

    let status = text(1, MAX_STATUS_LENGTH, "^[^\\u0000-\\u001f\\u007f-\\u009f]*$");
    ObjectBuilder::new()
        .schema_type(nullable)
        .property("label_ids", list(id()))
        .property("outlet_ids", list(id()))
        .property("statuses", list(status))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

pub fn filter_schema() -> Object {
    filter_object(nullable(Type::Object))
        .description(Some(FILTER))
        .build()
}
