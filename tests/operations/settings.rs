//! `docs/configuration.md` and `deploy/walhook.toml` are generated from the doc comments of the
//! settings and their defaults. `UPDATE_DOCS=1 cargo test --test operations settings` writes them.

use std::fmt::Write;
use std::path::Path;

use schemars::schema_for;
use serde_json::Value;
use toml::Table;
use walhook::config::Config;

/// Maximum width of comment lines in the settings file.
const WIDTH: usize = 120;

const GUIDE: &str = "\
# Configuration

For operators: every setting and its default. This page is generated from the program.

Command-line flags (`--set section.key=value`) take precedence over the environment (`WALHOOK_SECTION__KEY`), which takes precedence over
a TOML file (`--config FILE`, [an annotated example](../deploy/walhook.toml)). An unknown key is an error. In the environment, lists are
separated by commas and an empty value is an empty list. Durations are written `200ms`, `30s` or `5m`, sizes `64KiB`.

Every secret can be read from a file: `WALHOOK_SECRETS__MASTER_KEY_FILE=/run/secrets/master_key`. `walhook config` prints the effective
configuration with secrets redacted.
";

const FILE: &str = "\
# Every setting of Walhook with its default. Settings without a default are commented out.
#
# Flags (--set section.key=value) take precedence over the environment (WALHOOK_SECTION__KEY), which takes precedence over this
# file. An unknown key is an error. Keep secrets out of this file: set them in the environment, or in files that the environment
# names (WALHOOK_SECRETS__MASTER_KEY_FILE=/run/secrets/master_key). `walhook config` prints the effective configuration.
";

#[test]
fn the_guide_and_the_annotated_file_are_up_to_date() {
    let sections = sections();
    assert_up_to_date("docs/configuration.md", &guide(&sections));
    assert_up_to_date("deploy/walhook.toml", &file(&sections));
}

fn assert_up_to_date(name: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);

    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, generated).unwrap();
    }

    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "{name} is out of date: UPDATE_DOCS=1 cargo test --test operations settings"
    );
}

struct Section {
    name: String,
    doc: String,
    /// Not set by default, such as `auth.jwt`.
    optional: bool,
    settings: Vec<Setting>,
}

struct Setting {
    key: String,
    /// The doc comment, and the allowed values of an enumeration.
    doc: String,
    /// An example in TOML, for settings that are tables.
    block: Option<String>,
    default: Option<String>,
    example: Option<String>,
}

fn sections() -> Vec<Section> {
    let schema = schema_for!(Config).to_value();
    let defaults = Table::try_from(Config::default()).unwrap();
    let mut sections = Vec::new();

    for (name, property) in schema["properties"].as_object().unwrap() {
        let section = resolve(&schema, property);
        let defaults = defaults.get(name).and_then(toml::Value::as_table);
        let (nested, settings): (Vec<_>, Vec<_>) = section["properties"]
            .as_object()
            .unwrap()
            .iter()
            .partition(|(_, setting)| setting["anyOf"].is_array());

        if !settings.is_empty() {
            let settings = settings
                .into_iter()
                .map(|(key, value)| setting(&schema, key, value, defaults))
                .collect();
            sections.push(Section {
                name: name.clone(),
                doc: text(section),
                optional: false,
                settings,
            });
        }

        for (key, property) in nested {
            let section = resolve(&schema, &property["anyOf"][0]);
            let properties = section["properties"].as_object().unwrap();
            let settings = properties
                .iter()
                .map(|(key, value)| setting(&schema, key, value, None))
                .collect();

            sections.push(Section {
                name: format!("{name}.{key}"),
                doc: text(section),
                optional: true,
                settings,
            });
        }
    }

    sections
}

/// Resolves a reference to a definition.
fn resolve<'a>(schema: &'a Value, property: &'a Value) -> &'a Value {
    match property["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => property,
    }
}

fn text(schema: &Value) -> String {
    schema["description"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn setting(schema: &Value, key: &str, property: &Value, defaults: Option<&Table>) -> Setting {
    let described = text(property);
    assert!(!described.is_empty(), "{key} has no doc comment");

    let (doc, block) = match described.split_once("```toml\n") {
        Some((doc, block)) => (
            doc.trim().to_owned(),
            Some(block.trim_end_matches("```").trim_end().to_owned()),
        ),
        None => (described, None),
    };

    let doc = format!(
        "{}{}",
        doc.replace('\n', " "),
        choices(resolve(schema, property))
    );
    let default = defaults
        .and_then(|defaults| defaults.get(key))
        .filter(|_| block.is_none())
        .map(toml::Value::to_string);
    let default = default.or_else(|| {
        property["default"]
            .as_str()
            .map(|default| format!("{default:?}"))
    });

    let example = property["examples"][0]
        .as_str()
        .map(|example| format!("{example:?}"));
    Setting {
        key: key.to_owned(),
        doc,
        block,
        default,
        example,
    }
}

/// Lists the values of an enumeration with their meanings.
fn choices(schema: &Value) -> String {
    let Some(choices) = schema["oneOf"].as_array() else {
        return String::new();
    };

    let described = choices.iter().map(|choice| {
        format!(
            " `{}`: {}",
            choice["const"].as_str().unwrap(),
            text(choice).replace('\n', " ")
        )
    });

    described.collect()
}

fn guide(sections: &[Section]) -> String {
    let mut page = GUIDE.to_owned();
    let links = sections
        .iter()
        .map(|Section { name, .. }| format!("[{name}](#{})", name.replace('.', "")));

    write!(page, "\n{}\n", links.collect::<Vec<_>>().join(" · ")).unwrap();

    for section in sections {
        write!(page, "\n## {}\n\n", section.name).unwrap();

        if !section.doc.is_empty() {
            write!(page, "{}\n\n", section.doc.replace('\n', " ")).unwrap();
        }

        page.push_str("| Key | Default | Description |\n|---|---|---|\n");

        for setting in section
            .settings
            .iter()
            .filter(|setting| setting.block.is_none())
        {
            let default = setting
                .default
                .as_ref()
                .map_or("none".to_owned(), |default| format!("`{default}`"));
            writeln!(
                page,
                "| `{}.{}` | {default} | {} |",
                section.name,
                setting.key,
                setting.doc.replace('|', "\\|")
            )
            .unwrap();
        }

        for setting in &section.settings {
            let Some(block) = &setting.block else {
                continue;
            };

            write!(
                page,
                "\n`{}.{}`: {}\n\n```toml\n{block}\n```\n",
                section.name, setting.key, setting.doc
            )
            .unwrap();
        }
    }

    page
}

fn file(sections: &[Section]) -> String {
    let mut page = FILE.to_owned();

    for section in sections {
        page.push('\n');
        comment(&mut page, &section.doc);

        let commented = if section.optional { "# " } else { "" };
        writeln!(page, "{commented}[{}]", section.name).unwrap();

        let (plain, blocks): (Vec<_>, Vec<_>) = section
            .settings
            .iter()
            .partition(|setting| setting.block.is_none());
        for setting in plain {
            comment(&mut page, &setting.doc);
            let value = setting.default.as_ref().or(setting.example.as_ref());
            let value =
                value.unwrap_or_else(|| panic!("{}.{} has no example", section.name, setting.key));
            let commented = if section.optional || setting.default.is_none() {
                "# "
            } else {
                ""
            };

            writeln!(page, "{commented}{} = {value}", setting.key).unwrap();
        }

        for setting in blocks {
            page.push('\n');
            comment(&mut page, &setting.doc);
            setting
                .block
                .iter()
                .flat_map(|block| block.lines())
                .for_each(|line| writeln!(page, "# {line}").unwrap());
        }
    }

    page
}

/// Adds `text` as comment lines, without links and backticks.
fn comment(page: &mut String, text: &str) {
    let plain = text.replace('`', "").replace(
        "the [integrator's guide](integrators.md)",
        "docs/integrators.md",
    );
    let mut line = String::new();

    for word in plain.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() + 3 > WIDTH {
            writeln!(page, "# {line}").unwrap();
            line.clear();
        }

        if !line.is_empty() {
            line.push(' ');
        }

        line.push_str(word);
    }

    if !line.is_empty() {
        writeln!(page, "# {line}").unwrap();
    }
}
