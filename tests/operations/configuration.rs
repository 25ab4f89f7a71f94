//! The configuration from files, environment and flags, and the errors when it is wrong.

use std::process::{Command, Output};

struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the binary with only the given environment.
fn walhook(arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_walhook"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("the binary runs");
    Run {
        code: output.status.code().expect("not killed"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn effective(run: &Run) -> toml::Table {
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.stdout.parse().expect("`walhook config` prints TOML")
}

#[test]
fn the_output_of_config_is_a_valid_configuration_file() {
    let printed = walhook(&["config"], &[("WALHOOK_DELIVERY__TIMEOUT", "1500ms")]);
    let again = file(&printed.stdout);
    let config = effective(&walhook(
        &["config", "--config", again.path().to_str().unwrap()],
        &[],
    ));

    assert_eq!(config["delivery"]["timeout"].as_str(), Some("1500ms"));
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let path = file("[delivery]\ntimeout = \"1s\"\nconcurrency = 11\n[service]\nname = \"File\"\n");
    let run = walhook(
        &[
            "--config",
            path.path().to_str().unwrap(),
            "--set",
            "delivery.timeout=3s",
            "config",
        ],
        &[
            ("WALHOOK_DELIVERY__TIMEOUT", "2s"),
            ("WALHOOK_DELIVERY__CONCURRENCY", "22"),
        ],
    );

    let config = effective(&run);
    assert_eq!(config["delivery"]["timeout"].as_str(), Some("3s"));
    assert_eq!(config["delivery"]["concurrency"].as_integer(), Some(22));
    assert_eq!(config["service"]["name"].as_str(), Some("File"));
}

#[test]
fn lists_in_the_environment_are_separated_by_commas_and_may_be_empty() {
    let run = walhook(
        &["config"],
        &[
            ("WALHOOK_DELIVERY__RETRY_SCHEDULE", ""),
            ("WALHOOK_DELIVERY__ALLOW_NETWORKS", "127.0.0.0/8, ::1/128"),
            ("WALHOOK_DELIVERY__ALLOW_HTTP", "true"),
        ],
    );

    let config = effective(&run);
    assert_eq!(
        config["delivery"]["retry_schedule"]
            .as_array()
            .unwrap()
            .len(),
        0
    );

    assert_eq!(
        config["delivery"]["allow_networks"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    assert_eq!(config["delivery"]["allow_http"].as_bool(), Some(true));
}

#[test]
fn a_condition_is_null_not_null_a_value_or_a_list() {
    let path = file(
        "[source.tables.distro_queue]\n\
         only = { deleted_at = \"null\", sent_at = \"not null\", kind = \"a\", level = [1, \"null\"], hidden = false }\n",
    );
    let path = path.path().to_str().unwrap().to_owned();
    let run = walhook(&["--config", &path, "config"], &[]);
    let only = &effective(&run)["source"]["tables"]["distro_queue"]["only"];

    assert_eq!(
        only.to_string(),
        r#"{ deleted_at = "null", hidden = ["f"], kind = ["a"], level = ["1", "null"], sent_at = "not null" }"#
    );

    let path = file("[source.tables.distro_queue]\nonly = { level = 1.5 }\n");
    let path = path.path().to_str().unwrap().to_owned();
    let run = walhook(&["--config", &path, "config"], &[]);
    assert!(
        run.stderr
            .contains("a condition is \"null\", \"not null\", a value or a list of values"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_platforms_own_names_are_mapped_from_file_and_environment() {
    let path = file(
        "[source.tables.distro_queue]\ntable = \"dist.jobs\"\ncolumns = { status = \"state\" }\n\
         values = { status = { 5 = \"complete\" } }\n",
    );
    let run = walhook(
        &["--config", path.path().to_str().unwrap(), "config"],
        &[("WALHOOK_SOURCE__TABLES__RELEASE__TABLE", "catalog.albums")],
    );
    let tables = &effective(&run)["source"]["tables"];

    assert_eq!(
        tables["distro_queue"]["columns"]["status"].as_str(),
        Some("state")
    );
    assert_eq!(
        tables["distro_queue"]["values"]["status"]["5"].as_str(),
        Some("complete")
    );
    assert_eq!(tables["release"]["table"].as_str(), Some("catalog.albums"));
}

#[test]
fn secrets_are_redacted_and_may_be_read_from_files() {
    let secret = file(&format!("{KEY}\n"));
    let run = walhook(
        &["config"],
        &[
            (
                "WALHOOK_SOURCE__URL",
                "postgres://walhook:hunter2@db/platform?password=hunter3",
            ),
            (
                "WALHOOK_SECRETS__MASTER_KEY_FILE",
                secret.path().to_str().unwrap(),
            ),
            ("WALHOOK_MAIL__SMTP_URL", "smtps://user:hunter4@mail:465"),
            (
                "WALHOOK_DELIVERY__PROXY",
                "http://hunter5:hunter6@proxy:3128",
            ),
            (
                "WALHOOK_AUTH__JWT__JWKS_URL",
                "https://hunter7:hunter8@keys.example/jwks.json?key=hunter9",
            ),
            ("WALHOOK_AUTH__JWT__ISSUER", "https://platform.example"),
            ("WALHOOK_AUTH__JWT__AUDIENCE", "walhook"),
        ],
    );

    let config = effective(&run);
    assert_eq!(config["secrets"]["master_key"].as_array().unwrap().len(), 1);
    assert!(
        config["source"]["url"]
            .as_str()
            .unwrap()
            .starts_with("postgres://walhook:redacted@db/platform")
    );

    let jwks_url = config["auth"]["jwt"]["jwks_url"].as_str().unwrap();
    assert_eq!(
        jwks_url,
        "https://redacted:redacted@keys.example/jwks.json?redacted"
    );

    for leaked in ["hunter", KEY] {
        assert!(!run.stdout.contains(leaked), "{}", run.stdout);
    }
}

#[test]
fn each_mistake_is_one_clear_line_and_exit_code_2() {
    let unknown_key = file("[delivery]\ntimeout = \"5s\"\ntimeuot = \"5s\"\n");
    let unknown_section = file("\n\n[deliveries]\nx = 1\n");

    /// Arguments, environment, and texts that the error must contain.
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);

    let cases: [Case<'_>; 38] = [
        (
            &["run"],
            &[("WALHOOK_SECRETS__MASTER_KEY", KEY)],
            &["source.url is not set", "WALHOOK_SOURCE__URL"],
        ),
        (&["setup"], &[], &["source.url is not set"]),
        (
            &["run"],
            &[("WALHOOK_SOURCE__URL", "postgres://x@y/z")],
            &["secrets.master_key is not set"],
        ),
        (
            &["run"],
            &[("WALHOOK_SOURCE__URL", "")],
            &["source.url: not a Postgres URL"],
        ),
        (
            &["check"],
            &[("WALHOOK_STORE__URL", "https://db/walhook")],
            &["store.url: not a Postgres URL"],
        ),
        (
            &["--set", "source.capture=log", "cells", "list"],
            &[("WALHOOK_SOURCE__LOG_URL", "postgres:///walhook")],
            &["source.log_url: not a Postgres URL", "the host"],
        ),
        (
            &["run", "--roles", "api"],
            &[("WALHOOK_CELLS__STORES__A", "postgres://a/w?sslmode=no")],
            &["cells.stores.a: sslmode=no is not one of"],
        ),
        (
            &["--config", unknown_key.path().to_str().unwrap(), "config"],
            &[],
            &["line 3", "timeuot"],
        ),
        (
            &[
                "--config",
                unknown_section.path().to_str().unwrap(),
                "config",
            ],
            &[],
            &["line 3", "deliveries"],
        ),
        (
            &["--config", "/does/not/exist.toml", "config"],
            &[],
            &["cannot read /does/not/exist.toml"],
        ),
        (
            &["config"],
            &[("WALHOOK_DELIVERY__TIMEUOT", "5s")],
            &["WALHOOK_DELIVERY__TIMEUOT is not a setting"],
        ),
        (
            &["config"],
            &[("WALHOOK_DELIVERY__ALLOW_NETWORKS", "10.0.0.0/33")],
            &["delivery.allow_networks"],
        ),
        (
            &["config"],
            &[("WALHOOK_DELIVERY__TIMEOUT", "ten")],
            &["delivery.timeout", "`ten` is not a duration"],
        ),
        (
            &["config"],
            &[("WALHOOK_DELIVERY__CONCURRENCY", "many")],
            &["delivery.concurrency", "whole number"],
        ),
        (
            &["config"],
            &[("WALHOOK_SECRETS__MASTER_KEY", "c2hvcnQ=")],
            &["secrets.master_key", "32 bytes"],
        ),
        (
            &["config"],
            &[("WALHOOK_MAIL__FROM", "nobody")],
            &["mail.from", "`nobody` is not an address"],
        ),
        (
            &["config"],
            &[("WALHOOK_MAIL__SMTP_URL", "http://u:p@mail")],
            &["mail.smtp_url", "smtps://host:port"],
        ),
        (
            &["config"],
            &[("WALHOOK_DISABLE__POLICY", "never")],
            &["disable.policy", "cumulative"],
        ),
        (
            &["config"],
            &[("WALHOOK_DISABLE__THRESHOLD", "0")],
            &["disable.threshold must be at least 1"],
        ),
        (
            &["config"],
            &[("WALHOOK_DELIVERY__RETRIES_PER_SECOND", "0")],
            &["delivery.retries_per_second must be at least 1"],
        ),
        (
            &["config"],
            &[("WALHOOK_RETENTION__DAYS", "4294967295")],
            &["retention.days must be at most 36525"],
        ),
        (&["--set", "nonsense", "config"], &[], &["--set nonsense"]),
        (
            &["--set", "source.tables.releases.table=x", "config"],
            &[],
            &["source.tables.releases"],
        ),
        (
            &["--set", "source.tables.payment.computed.sum=1", "config"],
            &[],
            &["source.tables.payment.computed.sum"],
        ),
        (
            &["--set", "source.tables.payment.computed.status=1", "config"],
            &[],
            &["payment.computed.status", "column"],
        ),
        (
            &[
                "--set",
                "source.tables.user_addon.computed.addon=1",
                "config",
            ],
            &[],
            &["user_addon.computed.addon"],
        ),
        (
            &[
                "--set",
                "source.tables.track.computed.release_id=1",
                "--set",
                "source.tables.track.columns.release_id=r",
                "config",
            ],
            &[],
            &["source.tables.track.computed.release_id", "choose one"],
        ),
        (
            &["--set", "source.tables.label.absent=true", "config"],
            &[],
            &["source.tables.label.absent"],
        ),
        (
            &["--set", "source.tables.payment.absent=yes", "config"],
            &[],
            &["payment.absent", "true or false"],
        ),
        (
            &["--set", "source.lookups.payment=select 1", "config"],
            &[],
            &["source.lookups.payment", "computed"],
        ),
        // The valid names and values are listed.
        (
            &["--set", "source.tables.releases.table=x", "config"],
            &[],
            &["its tables are release, distro_queue, "],
        ),
        (
            &["--set", "source.tables.release.columns.name=x", "config"],
            &[],
            &[
                "source.tables.release.columns.name",
                "release has id, label_id, cat, ",
            ],
        ),
        (
            &[
                "--set",
                "source.tables.release.values.review_status.1=drafft",
                "config",
            ],
            &[],
            &[
                "source.tables.release.values.review_status: `1` is mapped to `drafft`",
                "draft, to_review, approved, rejected, require_changes, audit",
            ],
        ),
        (
            &[
                "--set",
                "source.tables.distro_queue.columns.release_id=outlet_id",
                "config",
            ],
            &[],
            &["release_id and outlet_id are both `outlet_id`"],
        ),
        (
            &["--set", "source.tables.payment.columns.status=id", "config"],
            &[],
            &["id and status are both `id`"],
        ),
        (
            &[
                "--set",
                "source.tables.label.only.deleted_at=null",
                "config",
            ],
            &[],
            &["source.tables.label.only"],
        ),
        (
            &["--set", "source.tables.app_user.extra.name=name", "config"],
            &[],
            &["source.tables.app_user.extra", "no event"],
        ),
        (
            &[
                "--set",
                "source.tables.label.extra.uuid=id",
                "--set",
                "source.tables.release.extra.uuid=id",
                "config",
            ],
            &[],
            &[
                "source.tables.label.extra.uuid",
                "source.tables.release.extra",
            ],
        ),
    ];
    for (arguments, environment, expected) in cases {
        let run = walhook(arguments, environment);
        assert_eq!(run.code, 2, "{arguments:?} {environment:?}: {}", run.stderr);
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{}", run.stderr);

        for part in expected {
            assert!(
                run.stderr.contains(part),
                "expected {part:?} in {}",
                run.stderr
            );
        }
    }
}

#[test]
fn usage_errors_exit_with_2_and_help_covers_every_command() {
    assert_eq!(walhook(&["frobnicate"], &[]).code, 2);
    let help = walhook(&["--help"], &[]);
    assert_eq!(help.code, 0);

    for command in [
        "run", "setup", "check", "status", "teardown", "token", "webhook", "receive", "demo",
        "openapi", "asyncapi", "config",
    ] {
        assert!(help.stdout.contains(command), "{command}");
        assert_eq!(walhook(&[command, "--help"], &[]).code, 0, "{command}");
    }
}

/// The documents are longer than what a pipe holds.
#[test]
fn documents_can_be_piped_into_a_program_that_stops_reading() {
    for command in ["openapi", "asyncapi"] {
        let script = format!(
            "set -o pipefail; '{}' {command} | head -1",
            env!("CARGO_BIN_EXE_walhook")
        );
        let output = Command::new("bash")
            .args(["-c", &script])
            .output()
            .expect("bash");
        assert!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(
            (output.stdout, output.stderr),
            (b"{\n".to_vec(), Vec::new()),
            "{command}"
        );
    }
}

#[test]
fn settings_of_api_access_are_validated() {
    let jwt = |name: &str, value: &str| {
        let settings = [("ISSUER", "i"), ("AUDIENCE", "a")]
            .into_iter()
            .chain([(name, value)]);
        let settings =
            settings.map(|(name, value)| (format!("WALHOOK_AUTH__JWT__{name}"), value.to_owned()));
        let settings: Vec<(String, String)> = settings.collect();
        let settings: Vec<(&str, &str)> = settings
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();

        walhook(&["config"], &settings)
    };

    let secret = "a secret of at least thirty-two bytes";
    let good = jwt("SECRET", secret);

    assert_eq!(good.code, 0, "{}", good.stderr);
    assert!(!good.stdout.contains(secret) && good.stdout.contains("[redacted]"));

    for url in [
        "https://platform.example/keys",
        "http://127.0.0.1:1/keys",
        "http://localhost/keys",
    ] {
        assert_eq!(jwt("JWKS_URL", url).code, 0, "{url}");
    }

    for (name, value, expected) in [
        ("USER_CLAIM", "sub", "set jwks_url, jwks_file or secret"),
        (
            "SECRET",
            "short",
            "auth.jwt.secret must have at least 32 bytes",
        ),
        (
            "JWKS_URL",
            "http://platform.example/keys",
            "auth.jwt.jwks_url must begin with https://",
        ),
        ("JWKS_URL", "keys", "auth.jwt.jwks_url"),
        ("ISSUER", "", "auth.jwt.issuer must not be empty"),
        (
            "SIGN_IN_AUDIENCE",
            "a",
            "auth.jwt.sign_in_audience must differ from auth.jwt.audience",
        ),
    ] {
        let run = jwt(name, value);
        assert_eq!(run.code, 2, "{name}");
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }

    for (name, value) in [
        ("MAX_CONNECTIONS", "0"),
        ("MAX_REQUESTS", "65537"),
        ("HEADER_TIMEOUT", "0s"),
        ("IDLE_TIMEOUT", "61m"),
    ] {
        let run = walhook(&["config"], &[(&format!("WALHOOK_HTTP__{name}"), value)]);
        let expected = format!("http.{} must be ", name.to_lowercase());
        assert!(
            run.code == 2 && run.stderr.contains(&expected),
            "{name}: {} {}",
            run.code,
            run.stderr
        );
    }

    let origins = |value: &str| walhook(&["config"], &[("WALHOOK_HTTP__CORS_ORIGINS", value)]);
    assert_eq!(
        effective(&origins("https://a.example,http://b.example:81"))["http"]["cors_origins"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    for wrong in [
        "*",
        "a.example",
        "https://a.example/",
        "https://A.example",
        "https://a.example:443",
        "null",
    ] {
        let run = origins(wrong);
        assert!(
            run.code == 2 && run.stderr.contains("http.cors_origins"),
            "{wrong}: {}",
            run.stderr
        );
    }
}

#[test]
fn settings_of_the_web_ui_are_validated() {
    let config = |settings: &[(&str, &str)]| {
        let names: Vec<String> = settings
            .iter()
            .map(|(name, _)| format!("WALHOOK_{name}"))
            .collect();
        let settings = names.iter().zip(settings);
        let settings: Vec<(&str, &str)> = settings
            .map(|(name, (_, value))| (name.as_str(), *value))
            .collect();
        walhook(&["config"], &settings)
    };

    let public = ("HTTP__PUBLIC_URL", "https://hooks.example");
    let good = config(&[
        public,
        (
            "UI__FRAME_ANCESTORS",
            "https://app.example,http://localhost:3000",
        ),
        ("UI__BRAND__NAME", "Example"),
        ("UI__BRAND__LOGO", "https://cdn.example/logo.svg"),
        ("UI__BRAND__ACCENT", "#0A7d55"),
        ("UI__BRAND__COLOR_SCHEME", "light"),
    ]);
    assert_eq!(
        effective(&good)["ui"]["brand"]["accent"].as_str(),
        Some("#0a7d55")
    );

    for (name, value, expected) in [
        (
            "UI__FRAME_ANCESTORS",
            "*",
            "ui.frame_ancestors: `*` is not an origin",
        ),
        (
            "UI__FRAME_ANCESTORS",
            "https://*.example",
            "is not an origin",
        ),
        (
            "UI__FRAME_ANCESTORS",
            "https://a.example/",
            "is not an origin",
        ),
        ("UI__FRAME_ANCESTORS", "'self'", "is not an origin"),
        (
            "UI__FRAME_ANCESTORS",
            "https://a.example;script-src",
            "is not an origin",
        ),
        (
            "UI__FRAME_ANCESTORS",
            "http://app.example",
            "must begin with https://",
        ),
        ("UI__BRAND__NAME", " ", "ui.brand.name must not be empty"),
        (
            "UI__BRAND__LOGO",
            "http://cdn.example/logo.svg",
            "ui.brand.logo",
        ),
        ("UI__BRAND__LOGO", "data:image/svg+xml,x", "ui.brand.logo"),
        (
            "UI__BRAND__LOGO",
            "https://a.example;x/logo.svg",
            "ui.brand.logo",
        ),
        (
            "UI__BRAND__ACCENT",
            "green",
            "`green` is not a colour like `#0a7d55`",
        ),
        ("UI__BRAND__ACCENT", "#0a7", "is not a colour"),
        ("UI__BRAND__COLOR_SCHEME", "blue", "ui.brand.color_scheme"),
    ] {
        let run = config(&[public, (name, value)]);
        assert_eq!(run.code, 2, "{name} {value}");
        assert!(
            run.stderr.contains(expected),
            "{name} {value}: {}",
            run.stderr
        );
    }

    let ancestors = ("UI__FRAME_ANCESTORS", "https://app.example");
    for public in [None, Some(("HTTP__PUBLIC_URL", "http://hooks.example"))] {
        let settings: Vec<_> = public.into_iter().chain([ancestors]).collect();
        let run = config(&settings);
        assert_eq!(run.code, 2);
        assert!(
            run.stderr
                .contains("set http.public_url to the https origin"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn tracing_settings_are_validated_and_headers_are_redacted() {
    let secret = file("api-key=hunter2\n");
    let endpoint = ("WALHOOK_TRACING__OTLP_ENDPOINT", "http://127.0.0.1:4318");
    let secret = (
        "WALHOOK_TRACING__HEADERS_FILE",
        secret.path().to_str().unwrap(),
    );
    let run = walhook(
        &["config"],
        &[endpoint, secret, ("WALHOOK_TRACING__SAMPLE_RATIO", "0.25")],
    );

    assert!(!run.stdout.contains("hunter2"), "{}", run.stdout);
    let tracing = effective(&run)["tracing"].as_table().unwrap().clone();

    assert_eq!(tracing["sample_ratio"].as_float(), Some(0.25));
    assert_eq!(tracing["headers"].as_str(), Some("[redacted]"));

    for (arguments, environment, expected) in [
        (
            ["--set", "tracing.sample_ratio=2"],
            vec![],
            "tracing.sample_ratio: 2 is not from 0 to 1",
        ),
        (
            ["--set", "tracing.sample_ratio=all"],
            vec![],
            "tracing.sample_ratio: `all` is not a number",
        ),
        (
            ["--set", "tracing.sample_ratio=nan"],
            vec![],
            "tracing.sample_ratio",
        ),
        (
            ["--set", "tracing.otlp_endpoint=collector:4317"],
            vec![],
            "tracing.otlp_endpoint: expected a URL",
        ),
        (["--set", "log.format=xml"], vec![], "log.format"),
        (
            ["--set", "service.name=X"],
            vec![secret],
            "tracing.headers needs tracing.otlp_endpoint",
        ),
    ] {
        let run = walhook(&[&arguments[..], &["config"]].concat(), &environment);
        assert_eq!(run.code, 2, "{expected}");
        assert!(
            run.stderr.contains(expected) && !run.stderr.contains("hunter2"),
            "{}",
            run.stderr
        );
    }
}
