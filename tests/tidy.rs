//! House rules that the compiler does not check: layers, crates, and unused SQL statements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use failpoints::TABLE;

#[path = "reliability/failpoints/table.rs"]
#[allow(dead_code, reason = "only the names are compared")]
mod failpoints;

/// The modules that each module may use. A module is a file or directory in `src/`. Stages never
/// use each other; `app` joins them.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("clock", &[]),
    // Test-only, and empty in shipped builds: any module below `app` that does I/O may have
    // boundaries.
    ("failpoint", &[]),
    ("io", &[]),
    ("retry", &[]),
    ("telemetry", &["config", "domain", "retry", "tls"]),
    ("tls", &[]),
    ("vault", &["domain"]),
    ("postgres", &["sql", "tls"]),
    ("private_postgres", &["postgres", "vault"]),
    ("handoff", &["domain"]),
    ("config", &["domain", "postgres"]),
    ("events", &["domain"]),
    ("sql", &[]),
    ("propose", &["domain", "sql"]),
    (
        "store",
        &[
            "config",
            "domain",
            "failpoint",
            "postgres",
            "telemetry",
            "vault",
            "sql",
        ],
    ),
    // Used by enqueue: reads the primary.
    (
        "lookup",
        &[
            "config",
            "domain",
            "events",
            "postgres",
            "primary",
            "retry",
            "store",
            "telemetry",
            "sql",
        ],
    ),
    // What Walhook does to the primary. Not stages.
    (
        "primary",
        &["config", "domain", "failpoint", "postgres", "store", "sql"],
    ),
    (
        "repair",
        &[
            "config",
            "domain",
            "failpoint",
            "postgres",
            "primary",
            "store",
            "telemetry",
            "sql",
        ],
    ),
    (
        "capture",
        &[
            "config",
            "domain",
            "failpoint",
            "postgres",
            "primary",
            "repair",
            "retry",
            "store",
            "telemetry",
            "sql",
        ],
    ),
    (
        "enqueue",
        &[
            "lookup",
            "clock",
            "config",
            "domain",
            "events",
            "failpoint",
            "handoff",
            "postgres",
            "retry",
            "store",
            "telemetry",
            "vault",
        ],
    ),
    ("deliver", STAGE),
    ("record", STAGE),
    ("jobs", STAGE),
    ("notify", STAGE),
    (
        "http",
        &["config", "domain", "io", "manage", "store", "telemetry"],
    ),
    (
        "auth",
        &["config", "domain", "http", "manage", "telemetry", "tls"],
    ),
    (
        "api",
        &[
            "auth",
            "config",
            "domain",
            "events",
            "http",
            "manage",
            "store",
            "telemetry",
        ],
    ),
    // The use cases that `api`, `ui` and `cli` adapt.
    (
        "manage",
        &[
            "config",
            "domain",
            "events",
            "failpoint",
            "store",
            "telemetry",
            "vault",
        ],
    ),
    (
        "ui",
        &[
            "api", "auth", "config", "domain", "events", "http", "manage",
        ],
    ),
    ("app", ANY),
    ("cli", ANY),
    ("main", &["cli"]),
    ("bin", &["cli"]),
    ("lib", &[]),
];
const STAGE: &[&str] = &[
    "clock",
    "config",
    "domain",
    "events",
    "failpoint",
    "handoff",
    "io",
    "postgres",
    "retry",
    "store",
    "telemetry",
    "tls",
    "vault",
];
const ANY: &[&str] = &["*"];

/// Crates that only some modules may use, so that replacing a crate changes only these modules.
const CRATES: &[(&str, &[&str])] = &[
    // Besides streaming: a slot whose snapshot is exported can be created only over a replication
    // connection.
    ("pg_walstream", &["capture", "primary"]),
    // Receivers are called with hyper: reqwest gives no access to the bytes of its connections. The
    // API's listener and the reference receiver limit connections and idle times, which axum's own
    // listener does not.
    (
        "hyper",
        &[
            "deliver/client",
            "deliver/request.rs",
            "http/serve.rs",
            "http/wire.rs",
            "cli/receive.rs",
        ],
    ),
    ("h2", &["deliver/client"]),
    (
        "hyper_util",
        &["deliver/client", "http/serve.rs", "cli/receive.rs"],
    ),
    ("hyper_rustls", &["deliver/client"]),
    // The demo, `walhook apply` and `walhook listen` call the API, the JWKS client fetches keys, and the exporter
    // posts spans.
    (
        "reqwest",
        &[
            "auth/jwks.rs",
            "cli/demo/client.rs",
            "cli/apply/client.rs",
            "cli/listen/feed.rs",
            "telemetry/traces/export.rs",
        ],
    ),
    ("hickory_resolver", &["deliver/resolver.rs"]),
    ("opentelemetry_proto", &["telemetry/traces"]),
    ("prost", &["telemetry/traces"]),
    (
        "axum",
        &[
            "api",
            "auth",
            "http",
            "ui",
            "cli/receive.rs",
            "cli/demo/receiver.rs",
        ],
    ),
    ("lettre", &["notify"]),
    ("refinery", &["store/migrate.rs"]),
    ("deadpool_postgres", &["store"]),
    // Only these run SQL: the store, what reads or prepares the primary, and the demo's simulated
    // platform.
    (
        "tokio_postgres",
        &[
            "store",
            "lookup",
            "primary",
            "repair",
            "capture",
            "postgres",
            "private_postgres.rs",
            "cli/demo",
        ],
    ),
    (
        "postgres_types",
        &[
            "store",
            "lookup",
            "primary",
            "repair",
            "capture",
            "postgres",
            "private_postgres.rs",
            "cli/demo",
        ],
    ),
    ("fail", &["failpoint.rs"]),
    ("metrics_exporter_prometheus", &["telemetry", "app"]),
];

/// Crates that the pure layers must not use.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio_postgres",
    "postgres_types",
    "reqwest",
    "axum",
    "hyper",
    "tower",
];
const PURE_LAYERS: &[&str] = &["domain", "events", "propose"];

/// A Rust source file of this repository.
struct Source {
    /// The path relative to the repository's root.
    path: String,
    text: String,
}

impl Source {
    /// Returns the path relative to `src/`, or None for a file outside it.
    fn in_src(&self) -> Option<&str> {
        self.path.strip_prefix("src/")
    }

    /// Returns the top-level module: `src/store/logs.rs` and `src/store.rs` belong to `store`.
    fn module(&self) -> Option<&str> {
        let path = self.in_src()?;
        path.split('/').next()?.split('.').next()
    }

    /// Returns the numbered lines that are neither comments nor tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self
            .text
            .find("#[cfg(test)]\nmod tests {")
            .unwrap_or(self.text.len());
        let lines = self.text[..end]
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line));
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
    let paths = directories
        .iter()
        .flat_map(|directory| files_below(directory, "rs"));

    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).expect("a source file is UTF-8"),
        path: path
            .strip_prefix(root())
            .expect("the path is below the root")
            .to_string_lossy()
            .into_owned(),
    };

    paths.map(read).collect()
}

/// Returns the sources of the program itself, without files and directories that are compiled for
/// tests only.
fn program() -> Vec<Source> {
    let all = sources();
    let mut tests_only = BTreeSet::new();

    for source in all.iter().filter(|source| source.in_src().is_some()) {
        let directory = Path::new(&source.path)
            .parent()
            .expect("a file is in a directory");
        let lines: Vec<&str> = source.text.lines().collect();
        for under_test in lines.windows(3).filter(|lines| lines[0] == "#[cfg(test)]") {
            let named_by_path = under_test[1]
                .strip_prefix("#[path = \"")
                .and_then(|rest| rest.strip_suffix("\"]"));
            let named_by_module = under_test[1]
                .strip_prefix("mod ")
                .and_then(|rest| rest.strip_suffix(';'));
            let file = named_by_path
                .map(str::to_owned)
                .or(named_by_module.map(|name| format!("{name}.rs")));
            let names = file
                .into_iter()
                .chain(named_by_module.map(|name| format!("{name}/")));

            tests_only
                .extend(names.map(|name| directory.join(name).to_string_lossy().into_owned()));
        }
    }

    let is_test = |source: &Source| {
        tests_only.iter().any(|name| {
            source.path == *name || name.ends_with('/') && source.path.starts_with(name)
        })
    };

    all.into_iter()
        .filter(|source| source.in_src().is_some() && !is_test(source))
        .collect()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the words directly after `prefix` in `code`. For a list in braces, these are the first
/// words of its members.
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

fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn modules_use_only_the_layers_below_them() {
    let mut violations = Vec::new();

    for source in program() {
        let module = source.module().expect("the program is in src/").to_owned();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == module) else {
            violations.push(format!(
                "{}: module {module} is missing from LAYERS",
                source.path
            ));
            continue;
        };

        // In a file directly below `src/`, `super` is the crate.
        let is_direct = source.path == format!("src/{module}.rs")
            || source.path == format!("src/{module}/mod.rs");
        let prefixes: &[&str] = if is_direct {
            &["crate::", "walhook::", "super::"]
        } else {
            &["crate::", "walhook::"]
        };

        let code: String = source.code().map(|(_, line)| format!("{line}\n")).collect();
        for name in prefixes
            .iter()
            .flat_map(|prefix| named_after(&code, prefix))
        {
            let is_module = LAYERS.iter().any(|(known, _)| *known == name);
            if is_module && name != module && !allowed.contains(&name) && !allowed.contains(&"*") {
                violations.push(format!("{}: {module} must not use {name}", source.path));
            }
        }
    }

    assert_none(&violations);
}

#[test]
fn crates_are_used_only_where_allowed() {
    let mut violations = Vec::new();

    for source in program() {
        let path = source.in_src().expect("the program is in src/").to_owned();
        let is_below = |module: &&str| {
            path == **module
                || path.starts_with(&format!("{module}/"))
                || path == format!("{module}.rs")
        };

        for (number, line) in source.code() {
            let names = |name: &str| {
                let path = format!("{name}::");
                line.match_indices(&path)
                    .any(|(at, _)| !line[..at].ends_with(|letter| is_word(letter) || letter == ':'))
            };

            for (name, modules) in CRATES {
                if names(name) && !modules.iter().any(&is_below) {
                    violations.push(format!(
                        "{}:{number}: {name} may be used in {modules:?} only",
                        source.path
                    ));
                }
            }

            for name in IMPURE {
                if names(name) && PURE_LAYERS.iter().any(&is_below) {
                    violations.push(format!("{}:{number}: {name} in a pure layer", source.path));
                }
            }
        }
    }

    assert_none(&violations);
}

#[test]
fn only_tests_unwrap() {
    let mut violations = Vec::new();

    for source in program() {
        for (number, _) in source.code().filter(|(_, line)| line.contains(".unwrap()")) {
            violations.push(format!(
                "{}:{number}: return an error, or use `expect` with the reason why it cannot fail",
                source.path
            ));
        }
    }

    assert_none(&violations);
}

#[test]
fn every_statement_is_used() {
    let code: String = sources().into_iter().map(|source| source.text).collect();
    let statements = [walhook::sql::store::ALL, walhook::sql::primary::ALL].concat();

    let unused = statements
        .iter()
        .filter(|(name, _)| !code.contains(&format!("sql::{name}")))
        .map(|(name, _)| format!("sql: no source uses {name}"));

    assert_none(&unused.collect::<Vec<_>>());
}

#[test]
fn every_failpoint_is_used_exactly_once() {
    let mut uses: BTreeMap<String, usize> = TABLE
        .iter()
        .map(|point| (point.name.to_owned(), 0))
        .collect();

    for source in program() {
        for (_, line) in source.code() {
            for used in line.split("failpoint!(\"").skip(1) {
                let name = used.split('"').next().expect("a split has a first part");
                *uses.entry(name.to_owned()).or_default() += 1;
            }
        }
    }

    let wrong = uses.iter().filter(|(_, count)| **count != 1);
    assert_none(
        &wrong
            .map(|(name, count)| format!("failpoint {name} is used {count} times"))
            .collect::<Vec<_>>(),
    );
}

/// Words that are hard to understand for readers who learned English from technical texts, and what
/// to write instead.
const PLAIN_WORDS: &[(&str, &str)] = &[
    ("anew", "again, from scratch"),
    ("mend", "fix"),
    ("mended", "fixed"),
    ("whoever", "name the actor"),
    ("whom", "name the actor"),
    ("begun", "started"),
    ("untold", "not reported"),
];

#[test]
fn texts_use_plain_words() {
    let texts = sources()
        .into_iter()
        .map(|source| (source.path, source.text));
    let guides = files_below(&root().join("docs"), "md")
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a guide is UTF-8");
            (path.to_string_lossy().into_owned(), text)
        });

    let mut violations = Vec::new();

    for (path, text) in texts
        .chain(guides)
        .filter(|(path, _)| path != "tests/tidy.rs")
    {
        for (index, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            let mut words = line.split(|letter| !is_word(letter));
            let found =
                words.find_map(|word| PLAIN_WORDS.iter().find(|(unclear, _)| *unclear == word));

            violations.extend(
                found.map(|(word, better)| format!("{path}:{}: \"{word}\": {better}", index + 1)),
            );
        }
    }

    assert_none(&violations);
}
