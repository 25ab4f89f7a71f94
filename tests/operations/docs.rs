//! Runs the shell blocks of the README and the guides in order, as a reader would: with the binary
//! on the path and a platform's Postgres. The host names of the documentation are replaced by the
//! test's addresses.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::{DEADLINE, Receiver, TestApp, are_installed, run_sql, server};
use tempfile::TempDir;
use tokio::process::Command;
use walhook::private_postgres::{Options, PrivatePostgres, free_port};

const REFERENCE_SCHEMA: &str = include_str!("../../sql/primary/reference_schema.sql");

/// A block that begins with ```sh.
struct Block {
    /// The document and the line.
    place: String,
    text: String,
}

fn read(document: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document))
        .expect("a document")
}

fn blocks(document: &str) -> Vec<Block> {
    let text = read(document);
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;

    for (index, line) in text.lines().enumerate() {
        match (&mut open, line) {
            (None, "```sh") => {
                open = Some(Block {
                    place: format!("{document}:{}", index + 1),
                    text: String::new(),
                })
            }
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            _ => {}
        }
    }

    assert!(open.is_none(), "a block has no end");
    blocks
}

/// The environment in which the blocks run: a Postgres with a platform's database, and a receiver.
struct Machine {
    _server: PrivatePostgres,
    receiver: Receiver,
    directory: TempDir,
    environment: Vec<(String, String)>,
    address: String,
    /// The ports of the API, of the metrics and of `walhook receive`.
    ports: [u16; 3],
}

impl Machine {
    async fn start() -> Machine {
        let server = server(Options::default()).await;
        server
            .create_database("platform")
            .await
            .expect("a database");

        let admin = server.url("platform");
        let client = walhook::postgres::connect(&admin)
            .await
            .expect("the platform's database");

        // A separate role owns the platform's tables, as is usual in production.
        let roles = "create role platform; alter database platform owner to platform; grant all on schema public to platform;";
        client
            .batch_execute(&format!(
                "{roles} set role platform; {REFERENCE_SCHEMA};
                 insert into app_user (id, email) values (1, 'one@example.com'), (42, 'label@example.com')"
            ))
            .await
            .expect("a platform");

        let address = admin
            .split_once('@')
            .expect("a URL with a user")
            .1
            .split('/')
            .next()
            .expect("a host")
            .to_owned();

        let directory = tempfile::tempdir().expect("a directory");
        let ports = [(); 3].map(|()| free_port().expect("a port"));
        let bin = Path::new(env!("CARGO_BIN_EXE_walhook"))
            .parent()
            .expect("a directory")
            .display()
            .to_string();
        let path = format!("{bin}:{}", std::env::var("PATH").expect("a path"));

        let environment = [
            ("PATH", path),
            ("HOME", directory.path().display().to_string()),
            ("ADMIN_URL", admin),
            ("WALHOOK_HTTP__LISTEN", format!("127.0.0.1:{}", ports[0])),
            (
                "WALHOOK_HTTP__METRICS_LISTEN",
                format!("127.0.0.1:{}", ports[1]),
            ),
            ("WALHOOK_DELIVERY__ALLOW_HTTP", "true".into()),
            ("WALHOOK_DELIVERY__ALLOW_NETWORKS", "127.0.0.0/8".into()),
        ];

        let environment = environment
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        Machine {
            _server: server,
            receiver: Receiver::start().await,
            directory,
            environment,
            address,
            ports,
        }
    }

    /// Returns the block with this environment's addresses. Commands that do not end run in the
    /// background; commands that build or test the project only run dry, because this test is part
    /// of them.
    fn adapt(&self, text: &str) -> String {
        let lines = text
            .lines()
            .map(|line| match line.split_whitespace().next() {
                Some("make") => {
                    format!("make -n -C '{}' {}", env!("CARGO_MANIFEST_DIR"), &line[4..])
                }
                Some("cargo") => ":".to_owned(),
                Some("walhook")
                    if !line.ends_with('&')
                        && ["receive", "listen", "feed"]
                            .contains(&line.split(' ').nth(1).unwrap_or_default()) =>
                {
                    format!("{line} &")
                }
                _ => line.to_owned(),
            });

        let text: Vec<String> = lines.collect();
        text.join("\n")
            .replace("db.internal", &self.address)
            .replace("walhook:…@", "walhook:a%20long%20random%20one@")
            .replace("https://label.example/hooks", &self.receiver.url("/hooks"))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.ports[0]))
            .replace("127.0.0.1:9464", &format!("127.0.0.1:{}", self.ports[1]))
            .replace("127.0.0.1:9000", &format!("127.0.0.1:{}", self.ports[2]))
            .replace("127.0.0.1/9000", &format!("127.0.0.1/{}", self.ports[2]))
            .replace(
                "whsec_…",
                "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            )
    }

    /// Runs the blocks in one shell, so that later blocks see the variables that earlier ones
    /// exported. Names a block that fails. Returns what they printed.
    async fn run(&self, before: &str, blocks: &[Block]) -> String {
        let mut script = format!(
            "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{before}\n"
        );

        for block in blocks {
            script.push_str(&format!(
                "echo 'BLOCK {}' >&2\n{}\n",
                block.place,
                self.adapt(&block.text)
            ));
        }

        let file: PathBuf = self.directory.path().join("blocks.sh");
        std::fs::write(&file, &script).expect("a script");

        let mut command = Command::new("bash");
        command
            .arg(&file)
            .current_dir(self.directory.path())
            .env_clear()
            .envs(self.environment.clone());
        command.stdin(Stdio::null()).kill_on_drop(true);

        let output = tokio::time::timeout(DEADLINE, command.output())
            .await
            .expect("the blocks end in time")
            .expect("bash");
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);

        assert!(
            output.status.success(),
            "{}\n{errors}\n--- printed:\n{printed}",
            output.status
        );
        printed.into_owned()
    }
}

/// Creates the role and database, for documents that assume them.
const PREPARED: &str = "psql -q \"$ADMIN_URL\" -c \"create role walhook login replication superuser password 'a long random one'\" \
     -c 'create database walhook owner walhook'\n";

const RUNNING: &str = "walhook setup >/dev/null\nwalhook run 2>run.log &\n\
     curl -fsS -o /dev/null --retry 40 --retry-delay 1 --retry-connrefused http://127.0.0.1:9464/readyz\n";

/// The server may not have noticed yet that the reader of the slot has ended.
const GAP: &str = "until psql -q \"$ADMIN_URL\" -c \"select pg_drop_replication_slot('walhook')\" >/dev/null; do sleep 0.1; done\n";

const STOPPED: &str = "kill $(jobs -p); wait || true\n";

const SETTINGS: &str = "export WALHOOK_SOURCE__URL=postgres://walhook:…@db.internal/platform\n\
     export WALHOOK_STORE__URL=postgres://walhook:…@db.internal/walhook\n\
     export WALHOOK_SECRETS__MASTER_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";

/// The tests of the web UI run these snippets.
#[test]
fn the_receivers_guide_contains_the_verification_code_of_the_web_ui() {
    let guide = read("docs/receivers.md");

    for (language, snippet) in [
        ("python", "py"),
        ("js", "mjs"),
        ("go", "go"),
        ("php", "php"),
        ("ruby", "rb"),
    ] {
        let text = read(&format!("templates/ui/verify/verify.{snippet}"));
        assert!(
            guide.contains(&format!("```{language}\n{text}```\n")),
            "{language}"
        );
    }
}

/// The guide to the store names columns by `| `name` | `type` | meaning |`, below the name of their
/// table.
#[tokio::test]
async fn the_guide_to_the_store_matches_its_schema_and_its_queries_run() {
    let app = TestApp::prepare().await;
    app.setup().await;
    let client = app.store().await;
    let guide = read("docs/store.md");

    let code = |cell: &str| Some(cell.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let mut table = String::new();
    let mut columns = 0;

    for line in guide.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').collect();
        let name = code(cells[1]).expect("a name");

        if name.starts_with("walhook.") {
            table = name;
            continue;
        }

        let found = "select format_type(atttypid, atttypmod) from pg_attribute
            where attrelid = to_regclass($1) and attname = $2 and attnum > 0 and not attisdropped";
        let row = client.query_opt(found, &[&table, &name]).await.unwrap();
        let kind: Option<String> = row.map(|row| row.get(0));
        assert_eq!(kind, code(cells[2]), "{table}.{name}");
        columns += 1;
    }

    assert!(columns > 60, "too few columns were found: {columns}");
    let queries: Vec<&str> = guide.split("```sql\n").skip(1).collect();
    assert_eq!(queries.len(), 3);

    for query in queries {
        let query = query.split("```").next().expect("the end of a block");
        run_sql(&client, query).await;
    }
}

/// Only the names of README's machines are replaced: the server, and the ports of this test.
#[tokio::test]
async fn blocks_of_the_readme_run() {
    if !are_installed(&["psql", "curl", "openssl"]) {
        return;
    }

    let mut machine = Machine::start().await;
    let is_given = |name: &str| !name.starts_with("WALHOOK_DELIVERY__") && name != "ADMIN_URL";
    machine.environment.retain(|(name, _)| is_given(name));

    let mut blocks = blocks("README.md");
    let test = blocks
        .iter_mut()
        .find(|block| block.text.contains("/test\""))
        .expect("a block that sends a test");

    // A reader types it later than a script.
    test.text.insert_str(
        0,
        "until (: < /dev/tcp/127.0.0.1/9000) 2>/dev/null; do sleep 0.1; done\n",
    );

    let printed = machine.run("", &blocks).await;
    let is_received = |line: &str| line.contains(r#""verified":true"#);
    assert!(printed.lines().any(is_received), "{printed}");
}

#[tokio::test]
async fn blocks_of_the_operators_guides_run() {
    if !are_installed(&["psql", "curl", "python3"]) {
        return;
    }

    let machine = Machine::start().await;
    let guides = ["docs/install.md", "docs/primary.md", "docs/runbook.md"];
    let mut blocks: Vec<Block> = guides.into_iter().flat_map(blocks).collect();
    let calls_readyz = |block: &Block| block.text.contains("127.0.0.1:9464");
    let first = blocks
        .iter()
        .position(calls_readyz)
        .expect("a block that calls /readyz");

    blocks[first].text.insert_str(0, RUNNING);
    let repair = blocks
        .iter_mut()
        .find(|block| block.text.contains("walhook repair"))
        .expect("a block that repairs");

    repair.text.insert_str(0, &format!("{STOPPED}{GAP}"));
    repair.text.push_str(&machine.adapt(RUNNING));

    let last = blocks
        .iter()
        .position(|block| block.text.contains("teardown"))
        .expect("a block that runs teardown");
    blocks[last].text.insert_str(0, STOPPED);

    // The role has only the privileges that the guides grant.
    machine.run(&machine.adapt(SETTINGS), &blocks).await;
}

#[tokio::test]
async fn blocks_of_the_other_guides_run() {
    if !are_installed(&["psql", "curl", "python3"]) {
        return;
    }

    let machine = Machine::start().await;
    let create = "TOKEN=$(walhook token create --user 1)\nAPI=http://127.0.0.1:8080/api/public\n\
        CREATED=$(curl -fsS $API/webhooks -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \
        -d '{\"name\": \"x\", \"url\": \"https://label.example/hooks\", \"events\": [\"delivery.failed\", \"release.distributed\"]}')\n\
        WEBHOOK=$(echo \"$CREATED\" | python3 -c 'import json,sys; print(json.load(sys.stdin)[\"id\"])')\n\
        SECRET=$(echo \"$CREATED\" | python3 -c 'import json,sys; print(json.load(sys.stdin)[\"secret\"])')\n";
    let before = machine.adapt(&[PREPARED, SETTINGS, RUNNING, create].concat());
    let [receivers, integrators] = ["docs/receivers.md", "docs/integrators.md"].map(blocks);

    assert!(!receivers.is_empty() && !integrators.is_empty());
    machine.run(&before, &receivers).await;

    machine.run(&machine.adapt(SETTINGS), &integrators).await;
}
