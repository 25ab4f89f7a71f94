//! The house rules that a compiler does not hold: sizes, layers, and SQL files that somebody uses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

/// Who may name which module of ours: a file or directory in `src/`, and the modules below it. Stages never name each other;
/// `app` joins them.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("clock", &[]),
    ("health", &["telemetry"]),
    ("retry", &[]),
    ("telemetry", &["config"]),
    ("tls", &[]),
    ("vault", &[]),
    ("postgres", &["tls"]),
    ("private_postgres", &["postgres", "vault"]),
    ("traces", &["config", "domain", "retry", "telemetry", "tls"]),
    ("handoff", &["domain"]),
    ("config", &["domain"]),
    ("events", &["domain"]),
    ("store", &["config", "domain", "postgres", "telemetry", "vault"]),
    // Not a stage of its own: enqueue's eyes on the primary.
    ("lookup", &["config", "domain", "events", "postgres", "store", "telemetry"]),
    ("capture", STAGE),
    (
        "enqueue",
        &[
            "lookup",
            "clock",
            "config",
            "domain",
            "events",
            "handoff",
            "health",
            "postgres",
            "retry",
            "store",
            "telemetry",
            "traces",
            "vault",
        ],
    ),
    ("deliver", STAGE),
    ("record", STAGE),
    ("recover", STAGE),
    ("notify", STAGE),
    ("observe", STAGE),
    ("api", &["config", "domain", "events", "manage", "store", "telemetry", "tls"]),
    // The use cases that `api`, `ui` and `cli` adapt.
    ("manage", &["config", "domain", "events", "store", "telemetry", "vault"]),
    ("ui", &["api", "config", "domain", "events", "manage"]),
    ("app", ANY),
    ("cli", ANY),
    ("main", &["cli"]),
    ("lib", &[]),
];
const STAGE: &[&str] = &[
    "clock",
    "config",
    "domain",
    "events",
    "handoff",
    "health",
    "postgres",
    "retry",
    "store",
    "telemetry",
    "tls",
    "traces",
    "vault",
];
const ANY: &[&str] = &["*"];

/// Crates that only some places may name, so that each can be exchanged there alone.
const CRATES: &[(&str, &[&str])] = &[
    ("pg_walstream", &["capture"]),
    // Receivers are called by reqwest, and by hyper through a proxy: `deliver/client/tunnel.rs` says why.
    // The API's listener bounds connections and their silence, which axum's own does not.
    ("hyper", &["deliver/client", "api/serve.rs"]),
    ("hyper_util", &["deliver/client", "api/serve.rs"]),
    ("hyper_rustls", &["deliver/client"]),
    // The demo plays the user of the API, the platform's keys are fetched from where it publishes them, and spans are posted.
    ("reqwest", &["deliver/client", "api/jwks.rs", "cli/demo/client.rs", "traces/export.rs"]),
    ("hickory_resolver", &["deliver/resolver.rs"]),
    ("opentelemetry_proto", &["traces"]),
    ("prost", &["traces"]),
    ("axum", &["api", "ui", "cli/receive.rs", "cli/demo/receiver.rs"]),
    ("lettre", &["notify"]),
    ("refinery", &["store/migrate.rs"]),
    ("deadpool_postgres", &["store"]),
    // Only these run SQL: the store, what reads or prepares the primary, and the demo's make-believe platform.
    ("tokio_postgres", &["store", "lookup", "capture", "postgres", "private_postgres.rs", "cli/demo"]),
    ("postgres_types", &["store", "lookup", "capture", "postgres", "private_postgres.rs", "cli/demo"]),
    ("metrics_exporter_prometheus", &["telemetry.rs", "app"]),
];

/// What the pure layers may not know at all.
const IMPURE: &[&str] = &["tokio", "tokio_postgres", "postgres_types", "reqwest", "axum", "hyper", "tower"];
const PURE_LAYERS: &[&str] = &["domain", "events"];

/// A Rust file of ours.
struct Source {
    /// From the repository's root.
    path: String,
    text: String,
}

impl Source {
    /// The path below `src/`, where it is there.
    fn in_src(&self) -> Option<&str> {
        self.path.strip_prefix("src/")
    }

    /// The module that it belongs to: `src/store/logs.rs` and `src/store.rs` belong to `store`.
    fn module(&self) -> Option<&str> {
        let path = self.in_src()?;
        path.split('/').next()?.split('.').next()
    }

    /// The lines that are neither comments nor tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let lines = self.text[..end].lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let directories = ["src", "tests", "benches"].map(|name| root().join(name));
    let paths = directories.iter().flat_map(|directory| files_below(directory, "rs"));
    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).expect("a source file is UTF-8"),
        path: path.strip_prefix(root()).expect("it was found below the root").to_string_lossy().into_owned(),
    };
    paths.map(read).collect()
}

/// The sources of the program itself, without files that only tests compile.
fn program() -> Vec<Source> {
    let all = sources();
    let mut tests_only = BTreeSet::new();
    for source in all.iter().filter(|source| source.in_src().is_some()) {
        let directory = Path::new(&source.path).parent().expect("a file is in a directory");
        let lines: Vec<&str> = source.text.lines().collect();
        for under_test in lines.windows(3).filter(|lines| lines[0] == "#[cfg(test)]") {
            let named_by_path = under_test[1].strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
            let named_by_module = under_test[1].strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
            let name = named_by_path.map(str::to_owned).or(named_by_module.map(|name| format!("{name}.rs")));
            tests_only.extend(name.map(|name| directory.join(name).to_string_lossy().into_owned()));
        }
    }
    all.into_iter().filter(|source| source.in_src().is_some() && !tests_only.contains(&source.path)).collect()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The words that stand directly behind `prefix` in `code`; of a list in braces, the first word of each member.
fn named_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let word = |text: &'a str| {
        let text = text.trim_start();
        &text[..text.find(|letter| !is_word(letter)).unwrap_or(text.len())]
    };
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            names.push(word(rest));
            continue;
        };
        let mut depth = 0;
        names.push(word(list));
        for (index, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => names.push(word(&list[index + 1..])),
                _ => {}
            }
        }
    }
    names
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn files_are_short() {
    let too_long = sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > FILE_LINES).then(|| format!("{}: {lines} lines, {FILE_LINES} are allowed", source.path))
    });
    assert_none(&too_long.collect::<Vec<_>>());
}

/// Formatted code is taken for granted: a function ends at the first brace that stands where it began.
fn functions(source: &Source) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let begins = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let qualifiers = ["const", "async", "unsafe", "extern", "\"C\""];
        let is_qualifier = |word: &&&str| word.starts_with("pub") || qualifiers.contains(word);
        words.iter().find(|word| !is_qualifier(word)).is_some_and(|word| *word == "fn")
    };
    let starts = lines.iter().enumerate().filter(|(_, line)| begins(line));
    let with_end = starts.filter_map(|(start, line)| {
        let is_whole = |line: &str| line.ends_with('}') || line.ends_with(';');
        if is_whole(line) {
            return None;
        }
        let body = lines[start + 1..].iter().position(|other| {
            indentation(other) == indentation(line) && (other.trim_start().starts_with('}') || other.ends_with(';'))
        })?;
        Some((start + 1, body + 2))
    });
    with_end.collect()
}

#[test]
fn functions_are_short() {
    let mut complaints = Vec::new();
    let mut seen = 0;
    for source in sources() {
        for (line, length) in functions(&source) {
            seen += 1;
            if length > FUNCTION_LINES {
                complaints.push(format!("{}:{line}: {length} lines, {FUNCTION_LINES} are allowed", source.path));
            }
        }
    }
    assert!(seen > 100, "the search for functions is broken: it finds {seen}");
    assert_none(&complaints);
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let mut complaints = Vec::new();
    for source in program() {
        let module = source.module().expect("the program is in src/").to_owned();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == module) else {
            complaints.push(format!("{}: module {module} has no line in LAYERS", source.path));
            continue;
        };
        // Directly below `src/`, `super` is the crate.
        let is_direct = source.path == format!("src/{module}.rs") || source.path == format!("src/{module}/mod.rs");
        let prefixes: &[&str] =
            if is_direct { &["crate::", "walhook::", "super::"] } else { &["crate::", "walhook::"] };
        let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
        for name in prefixes.iter().flat_map(|prefix| named_after(&code, prefix)) {
            let is_module = LAYERS.iter().any(|(known, _)| *known == name);
            if is_module && name != module && !allowed.contains(&name) && !allowed.contains(&"*") {
                complaints.push(format!("{}: {module} may not name {name}", source.path));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn crates_are_named_only_in_their_places() {
    let mut complaints = Vec::new();
    for source in program() {
        let path = source.in_src().expect("the program is in src/").to_owned();
        let is_below =
            |place: &&str| path == **place || path.starts_with(&format!("{place}/")) || path == format!("{place}.rs");
        for (number, line) in source.code() {
            let names = |name: &str| {
                let path = format!("{name}::");
                line.match_indices(&path)
                    .any(|(at, _)| !line[..at].ends_with(|letter| is_word(letter) || letter == ':'))
            };
            for (name, places) in CRATES {
                if names(name) && !places.iter().any(&is_below) {
                    complaints.push(format!("{}:{number}: {name} may be named in {places:?} only", source.path));
                }
            }
            for name in IMPURE {
                if names(name) && PURE_LAYERS.iter().any(&is_below) {
                    complaints.push(format!("{}:{number}: {name} in a pure layer", source.path));
                }
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn nothing_is_unwrapped_outside_tests() {
    let mut complaints = Vec::new();
    for source in program() {
        for (number, _) in source.code().filter(|(_, line)| line.contains(".unwrap()")) {
            complaints.push(format!("{}:{number}: an error, or `expect` with why it cannot fail", source.path));
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_statement_is_used() {
    let code: String = sources().into_iter().map(|source| source.text).collect();
    let statements = files_below(&root().join("sql"), "sql");
    assert!(!statements.is_empty(), "no SQL is found at all");
    let unused = statements.iter().filter_map(|path| {
        let path = path.strip_prefix(root()).expect("it was found below the root").to_string_lossy().into_owned();
        (!code.contains(&format!("{path}\""))).then(|| format!("{path}: no source includes it"))
    });
    assert_none(&unused.collect::<Vec<_>>());
}

#[test]
fn names_are_found_in_paths_and_lists() {
    assert_eq!(named_after("use crate::store::Store; x(crate::vault::open)", "crate::"), ["store", "vault"]);
    assert_eq!(named_after("use crate::{api, store::{Store, logs}, vault};", "crate::"), ["api", "store", "vault"]);
    assert_eq!(named_after("use mycrate::store;", "crate::"), [""; 0]);
}
