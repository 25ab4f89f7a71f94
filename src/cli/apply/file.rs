//! The file of webhooks: YAML, or JSON, which is YAML too. It holds no secrets: the values of custom
//! headers come from the environment.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use url::Url;

use crate::domain::headers::MASK;
use crate::domain::members::FieldError;
use crate::domain::settings::{Base, Settings};

/// A webhook that the file describes.
pub struct Wanted {
    pub name: String,
    /// What is sent, with the values of headers.
    pub body: Value,
    /// What is shown and compared: the mask stands for each value.
    shown: Value,
    /// Where it is in the file.
    place: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    webhooks: Vec<Map<String, Value>>,
}

/// Reads and checks the file. `variable` returns a variable of the environment.
pub fn read(path: &Path, variable: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Vec<Wanted>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let document: Document =
        serde_saphyr::from_str(&text).with_context(|| format!("{shown} is not valid"))?;

    let mut names = BTreeSet::new();
    let mut webhooks = Vec::new();

    for (index, members) in document.webhooks.into_iter().enumerate() {
        let place = format!("{shown}: webhooks[{index}]");
        let wanted = wanted(members, place, variable)?;
        ensure!(
            names.insert(wanted.name.clone()),
            "{}: another webhook of the file has the name {:?}: names identify webhooks",
            wanted.place,
            wanted.name
        );
        webhooks.push(wanted);
    }

    Ok(webhooks)
}

fn wanted(
    mut members: Map<String, Value>,
    place: String,
    variable: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<Wanted> {
    ensure!(
        !members.contains_key("secret"),
        "{place}.secret: secrets are not in the file: Walhook issues them"
    );

    let mut masked = members.clone();

    if let Some(Value::Object(headers)) = members.get_mut("headers") {
        for (name, value) in headers.iter_mut() {
            *value = header_value(value, variable)
                .with_context(|| format!("{place}.headers.{name}"))?
                .into();
        }

        let mask = |name: &String| (name.clone(), json!(MASK));
        masked["headers"] = headers.keys().map(mask).collect::<Map<_, _>>().into();
    }

    let mut wanted = Wanted {
        name: String::new(),
        body: members.into(),
        shown: masked.into(),
        place,
    };
    wanted.name = wanted.settings(Base::New)?.name;
    wanted.body["name"] = wanted.name.clone().into();

    Ok(wanted)
}

/// Returns the value that `${NAME}` stands for. The mask keeps the value that the header has.
fn header_value(
    value: &Value,
    variable: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<String> {
    let text = value.as_str().unwrap_or_default();
    if text == MASK {
        return Ok(text.to_owned());
    }

    let name = text
        .strip_prefix("${")
        .and_then(|rest| rest.strip_suffix('}'));
    let Some(name) = name else {
        bail!(
            "write the value as ${{NAME}}: it is read from the environment, because it may be a secret"
        );
    };
    variable(name).with_context(|| format!("the environment has no variable {name}"))
}

impl Wanted {
    /// Returns the settings that the file gives, with masked headers.
    pub fn settings(&self, base: Base<'_>) -> anyhow::Result<Settings> {
        let check_url = |text: &str| {
            let url: Result<Url, _> = text.parse();
            url.map(String::from).map_err(|error| error.to_string())
        };

        let json = self.shown.to_string();
        Settings::read(json.as_bytes(), base, &check_url).map_err(|errors| {
            let describe = |error: &FieldError| {
                let path = error.path().join(".");
                let dot = if path.is_empty() { "" } else { "." };
                format!("{}{dot}{path}: {}", self.place, error.detail)
            };
            let errors: Vec<String> = errors.iter().map(describe).collect();
            anyhow::anyhow!(errors.join("\n"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Vec<Wanted>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let variable = |name: &str| (name == "GATEWAY").then(|| "Bearer x".to_owned());
        read(file.path(), &variable)
    }

    #[test]
    fn values_of_headers_come_from_the_environment_and_are_not_shown() {
        let webhooks = parse(
            "webhooks:\n- name: ' a '\n  url: https://A.example\n  events: [delivery.failed]\n  headers:\n    Authorization: ${GATEWAY}\n",
        );
        let webhook = webhooks.unwrap().pop().unwrap();
        let settings = webhook.settings(Base::New).unwrap();

        assert_eq!(webhook.name, "a");
        assert_eq!(webhook.body["headers"]["Authorization"], "Bearer x");
        assert_eq!(settings.url, "https://a.example/");
        assert!(!json!(settings).to_string().contains("Bearer"));
    }

    #[test]
    fn errors_say_where_they_are() {
        let webhook = "- name: a\n  url: https://a.example\n  events: [delivery.failed]\n";
        let cases = [
            ("webhooks: 1".to_owned(), "1"),
            ("hooks: []".to_owned(), "hooks"),
            (
                format!("webhooks:\n{webhook}{webhook}"),
                "webhooks[1]: another webhook",
            ),
            (
                "webhooks:\n- name: a\n".to_owned(),
                "webhooks[0].url: is required",
            ),
            (
                format!("webhooks:\n{webhook}  colour: red\n"),
                "webhooks[0].colour: is not",
            ),
            (
                format!("webhooks:\n{webhook}  secret: whsec_x\n"),
                "webhooks[0].secret",
            ),
            (
                format!("webhooks:\n{webhook}  headers: {{ X-A: plain }}\n"),
                "webhooks[0].headers.X-A: write the value as ${NAME}",
            ),
            (
                format!("webhooks:\n{webhook}  headers: {{ X-A: '${{NONE}}' }}\n"),
                "no variable NONE",
            ),
        ];

        for (text, expected) in cases {
            let error = parse(&text).err().map(|error| format!("{error:#}"));
            let error = error.unwrap_or_else(|| panic!("{text}"));
            assert!(error.contains(expected), "{error}");
        }
    }
}
