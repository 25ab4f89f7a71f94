//! The Debian package from build to purge, with the real debhelper and dpkg on an overlay of this
//! machine. It is installed, configured, set up, started as the unit specifies, upgraded while it
//! runs, removed and purged.

mod machine;
mod unit;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::machine::Machine;
use self::unit::{Service, Unit};
use crate::support::{TestApp, are_installed, eventually, fetch, run_program as run, skip};
use walhook::private_postgres::free_port;

const CONFIGURATION: &str = "/etc/walhook/walhook.toml";
const ENVIRONMENT: &str = "/etc/walhook/environment";
/// A version higher than any release.
const LATER: &str = "999.0.0-1";
/// Paths that dpkg and adduser write for every package.
const BOOKKEEPING: [&str; 6] = [
    "/etc/",
    "/var/lib/dpkg/",
    "/var/log/",
    "/var/cache/",
    "/run/",
    "/var/lib/systemd/deb-systemd-helper",
];

/// Builds the package of this build, as `make deb` does for the shipped build.
fn package(directory: &Path) -> PathBuf {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/package"));
    command
        .arg(env!("CARGO_BIN_EXE_walhook"))
        .arg(directory)
        .env("PACKAGE_COMPRESSION", "none");

    PathBuf::from(run(&mut command).trim())
}

/// Builds the same package with a higher version and a changed settings file.
fn later_package(package: &Path) -> PathBuf {
    let tree = package.with_file_name("later");
    let later = package.with_file_name("walhook-later.deb");

    run(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree));
    let control = std::fs::read_to_string(tree.join("DEBIAN/control")).expect("a control file");
    let lines = control
        .lines()
        .map(|line| match line.starts_with("Version: ") {
            true => format!("Version: {LATER}\n"),
            false => format!("{line}\n"),
        });

    std::fs::write(tree.join("DEBIAN/control"), lines.collect::<String>()).expect("a control file");
    let settings = tree.join(CONFIGURATION.trim_start_matches('/'));
    let text = std::fs::read_to_string(&settings).expect("the settings");

    std::fs::write(
        &settings,
        format!("{text}\n# A comment of a later version.\n"),
    )
    .expect("the settings");
    run(Command::new("dpkg-deb")
        .args(["-Znone", "--root-owner-group", "-b"])
        .arg(&tree)
        .arg(&later));

    later
}

/// Returns mode, owner and path of everything in the package.
fn contents(package: &Path) -> Vec<(String, String, String)> {
    let listing = run(Command::new("dpkg-deb")
        .arg("-c")
        .arg(package)
        .env("LC_ALL", "C"));
    let lines = listing.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let path = words[5].trim_start_matches('.');

        // Older versions of debhelper name the unit's directory by the link in `/`.
        let path = if path.starts_with("/lib/") {
            format!("/usr{path}")
        } else {
            path.to_owned()
        };

        (words[0].to_owned(), words[1].to_owned(), path)
    });

    lines.collect()
}

#[track_caller]
fn assert_contents(package: &Path) {
    let contents = contents(package);
    let expected = [
        ("-rwxr-xr-x", "/usr/bin/walhook"),
        ("-rw-r--r--", unit::PATH),
        ("-rw-r--r--", CONFIGURATION),
        // It contains secrets.
        ("-rw-------", ENVIRONMENT),
        ("-rw-r--r--", "/usr/share/man/man1/walhook.1.gz"),
        ("-rw-r--r--", "/usr/share/man/man1/walhook-run.1.gz"),
        (
            "-rw-r--r--",
            "/usr/share/bash-completion/completions/walhook",
        ),
        ("-rw-r--r--", "/usr/share/zsh/vendor-completions/_walhook"),
        (
            "-rw-r--r--",
            "/usr/share/fish/vendor_completions.d/walhook.fish",
        ),
        ("-rw-r--r--", "/usr/share/doc/walhook/copyright"),
        (
            "-rw-r--r--",
            "/usr/share/doc/walhook/third-party-notices.txt.gz",
        ),
        ("-rw-r--r--", "/usr/share/doc/walhook/changelog.Debian.gz"),
        ("-rw-r--r--", "/usr/share/doc/walhook/docs/install.md"),
        (
            "-rw-r--r--",
            "/usr/share/doc/walhook/prometheus/walhook.rules.yml",
        ),
    ];
    for (mode, path) in expected {
        let found = contents
            .iter()
            .find(|(_, _, found)| found == path)
            .unwrap_or_else(|| panic!("no {path}"));
        assert_eq!(found.0, mode, "{path}");
    }

    for (mode, owner, path) in &contents {
        assert!(
            owner == "0/0" || owner == "root/root",
            "{path} belongs to {owner}"
        );
        assert_eq!(
            (&mode[5..6], &mode[8..9]),
            ("-", "-"),
            "{path} can be written by others: {mode}"
        );
    }

    let field = |name| {
        run(Command::new("dpkg-deb").arg("-f").arg(package).arg(name))
            .trim()
            .to_owned()
    };

    assert_eq!(field("Package"), "walhook");
    assert!(field("Version").starts_with(env!("CARGO_PKG_VERSION")));

    // This build links the system's libpq; the shipped build contains its own.
    let depends = field("Depends");
    assert!(
        depends.contains("libc6") && depends.contains("libpq5") && depends.contains("adduser"),
        "{depends}"
    );
}

/// An installed package on a machine, configured with the databases of a test.
struct Installation {
    machine: Machine,
    unit: Unit,
    metrics_url: String,
    /// walhook.toml as the operator left it.
    settings: String,
}

impl Installation {
    /// Installs the package and writes its secrets.
    fn make(machine: Machine, package: &Path, app: &TestApp) -> Installation {
        install(&machine, package);
        let unit = Unit::read(&machine);
        let key = run(Command::new("openssl").args(["rand", "-base64", "32"]));
        let secrets = format!(
            "{}WALHOOK_SOURCE__URL={}\nWALHOOK_STORE__URL={}\nWALHOOK_SECRETS__MASTER_KEY={key}",
            machine.read(ENVIRONMENT),
            app.source_url,
            app.store_url
        );

        machine.write(ENVIRONMENT, &secrets);
        let settings = machine.read(CONFIGURATION);
        Installation {
            machine,
            unit,
            metrics_url: String::new(),
            settings,
        }
    }

    /// Sets free ports of this machine, shortly before they are used.
    fn configure(&mut self) {
        let [api, metrics] =
            [(); 2].map(|()| format!("127.0.0.1:{}", free_port().expect("a free port")));
        self.settings = self
            .settings
            .replace("127.0.0.1:8080", &api)
            .replace("127.0.0.1:9464", &metrics);
        self.machine.write(CONFIGURATION, &self.settings);
        self.metrics_url = format!("http://{metrics}");
    }

    /// Runs `walhook COMMAND` with the settings that the unit names, as its user.
    #[track_caller]
    fn walhook(&self, command: &str) -> String {
        let mut words = self.unit.start();
        assert_eq!(words.pop(), Some("run"));
        words.push(command);
        run(&mut self.unit.command(&self.machine, &words))
    }

    async fn start(&self) -> Service {
        let mut service = Service::start(&self.machine, &self.unit);
        let ready = || {
            assert!(service.is_running(), "it ended: {}", service.log());
            async { self.is_ready().await.then_some(()) }
        };

        eventually("the service to be ready", ready).await;
        service
    }

    async fn is_ready(&self) -> bool {
        matches!(
            fetch(&format!("{}/readyz", self.metrics_url)).await,
            Some((200, _))
        )
    }

    fn user(&self) -> String {
        self.machine
            .run_ok(&["getent", "passwd", self.unit.get("User")])
    }
}

fn install(machine: &Machine, package: &Path) {
    let name = package
        .file_name()
        .expect("a file")
        .to_str()
        .expect("a name");
    let inside = format!("/var/cache/{name}");

    std::fs::copy(package, machine.path(&inside)).expect("space for the package");

    // Like unattended upgrades, keeps files that the operator has changed.
    machine.run_ok(&["dpkg", "--force-confdef", "--force-confold", "-i", &inside]);
    std::fs::remove_file(machine.path(&inside)).expect("the copy can be removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_package_installs_upgrades_and_purges_without_leftovers() {
    if !are_installed(&[
        "dh",
        "dpkg-shlibdeps",
        "strip",
        "systemd-analyze",
        "openssl",
    ]) {
        return;
    }

    let machine = match Machine::start() {
        Ok(machine) => machine,
        Err(reason) => {
            skip(&reason);
            return;
        }
    };

    let directory = tempfile::tempdir().expect("a directory");
    let package = package(directory.path());

    assert_contents(&package);
    let app = TestApp::prepare().await;
    let passwd = machine.read("/etc/passwd");
    let mut installation = Installation::make(machine, &package, &app);
    let Installation { machine, unit, .. } = &installation;

    machine.run_ok(&["systemd-analyze", "verify", "--man=no", unit::PATH]);
    let user = installation.user();

    assert!(
        user.contains(":/nonexistent:") && user.trim().ends_with("/usr/sbin/nologin"),
        "{user}"
    );

    let stat = machine.run_ok(&[
        "stat",
        "-c",
        "%U:%G %a",
        ENVIRONMENT,
        CONFIGURATION,
        "/usr/bin/walhook",
    ]);

    assert_eq!(
        stat.lines().collect::<Vec<_>>(),
        ["root:root 600", "root:root 644", "root:root 755"]
    );
    let reading = unit
        .command(machine, &["cat", ENVIRONMENT])
        .output()
        .expect("nsenter");

    assert!(
        !reading.status.success(),
        "the service's user can read the file with the secrets"
    );

    installation.walhook("setup");
    let checked = installation.walhook("check");

    assert!(checked.contains("store schema"), "{checked}");
    installation.configure();

    let Installation { machine, .. } = &installation;
    let mut service = installation.start().await;
    let status = service.status();

    let line = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect(name)
            .trim()
            .to_owned()
    };

    let id = user.split(':').nth(2).expect("a user's id");
    assert!(
        line("Uid:").split_whitespace().all(|found| found == id),
        "{status}"
    );
    assert_eq!(
        (line("CapEff:"), line("CapBnd:"), line("NoNewPrivs:")),
        (no_capability(), no_capability(), "1".into())
    );

    // An upgrade does not stop the running process, and does not change the operator's files.
    install(machine, &later_package(&package));
    assert!(
        machine
            .run_ok(&["dpkg-query", "-W", "walhook"])
            .contains(LATER)
    );
    assert!(
        service.is_running() && installation.is_ready().await,
        "the old process keeps running"
    );
    assert_eq!(machine.read(CONFIGURATION), installation.settings);
    assert!(
        machine
            .read(&format!("{CONFIGURATION}.dpkg-dist"))
            .contains("a later version")
    );
    assert_eq!(installation.user(), user);
    installation.walhook("setup");
    assert!(service.stop().success());
    service = installation.start().await;
    installation.walhook("check");
    assert!(service.stop().success());

    machine.run_ok(&["dpkg", "-r", "walhook"]);
    assert!(!machine.path("/usr/bin/walhook").exists() && !machine.path(unit::PATH).exists());
    assert_eq!(machine.read(CONFIGURATION), installation.settings);
    assert!(machine.read(ENVIRONMENT).contains(&app.store_url));

    machine.run_ok(&["dpkg", "-P", "walhook"]);
    assert_gone(machine, &passwd);

    // A purge does not touch the databases.
    let left = "select count(*) from pg_replication_slots where slot_name = 'walhook'";
    let slots: i64 = app
        .source()
        .await
        .query_one(left, &[])
        .await
        .expect("slots")
        .get(0);

    assert_eq!(slots, 1);
    app.store()
        .await
        .execute("select from walhook.webhook", &[])
        .await
        .expect("the store still exists");
}

fn no_capability() -> String {
    "0".repeat(16)
}

fn assert_gone(machine: &Machine, passwd: &str) {
    assert_eq!(machine.read("/etc/passwd"), passwd);
    assert!(
        !machine
            .run(&["getent", "group", "walhook"])
            .status
            .success()
    );

    assert!(!machine.run(&["dpkg", "-s", "walhook"]).status.success());

    for directory in ["/etc/walhook", "/usr/share/doc/walhook", "/var/lib/walhook"] {
        assert!(
            !machine.path(directory).exists(),
            "{directory} still exists"
        );
    }

    let changed = machine.changed();
    let others: BTreeSet<&String> = changed
        .iter()
        .filter(|path| !BOOKKEEPING.iter().any(|prefix| path.starts_with(prefix)))
        .collect();

    assert!(others.is_empty(), "{others:?}");
    let named: BTreeSet<&String> = changed
        .iter()
        .filter(|path| path.contains("walhook"))
        .collect();
    assert!(named.is_empty(), "{named:?}");
}
