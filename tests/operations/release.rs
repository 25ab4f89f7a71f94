//! The files of a release, built by `scripts/release` from the binaries of this build.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{are_installed, run_program as run, skip};

/// Returns the only file of the directory whose name ends like this.
fn file(directory: &Path, start: &str, end: &str) -> PathBuf {
    let names = std::fs::read_dir(directory).expect("a directory");
    let mut found = names
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with(start) && name.ends_with(end)
        });

    let first = found
        .next()
        .unwrap_or_else(|| panic!("no {start}…{end} in {}", directory.display()));
    assert_eq!(found.next(), None);
    first
}

/// Unpacks an archive and returns its only directory.
fn unpack(archive: &Path, directory: &Path) -> PathBuf {
    run(Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(directory));
    let name = archive.file_name().expect("a name").to_string_lossy();
    directory.join(name.trim_end_matches(".tar.gz"))
}

#[test]
fn a_release_has_archives_a_package_an_image_checksums_and_a_bill_of_materials() {
    if !are_installed(&["dh", "strip", "umoci"]) {
        return;
    }

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = Path::new(env!("CARGO_BIN_EXE_walhook"))
        .parent()
        .expect("a directory");
    let temporary = tempfile::tempdir().expect("a directory");
    let release = temporary.path().join("release");

    run(Command::new(root.join("scripts/release"))
        .arg(programs)
        .arg(&release)
        .env("PACKAGE_COMPRESSION", "none"));
    run(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(&release));

    let server = unpack(&file(&release, "walhook-0", ".tar.gz"), temporary.path());
    for path in [
        "walhook",
        "LICENSE",
        "man/walhook-run.1",
        "completions/_walhook",
        "docs/install.md",
    ] {
        assert!(server.join(path).is_file(), "{path}");
    }

    let listen = unpack(
        &file(&release, "walhook-listen-", ".tar.gz"),
        temporary.path(),
    );
    let help = run(Command::new(listen.join("walhook-listen")).arg("--help"));
    let commands: BTreeSet<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| line.starts_with(char::is_alphabetic))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let expected = [
        "apply",
        "completions",
        "feed",
        "help",
        "listen",
        "man",
        "receive",
        "trigger",
    ];

    assert_eq!(commands, BTreeSet::from(expected));
    assert!(
        !help.contains("--config"),
        "an option of the server: {help}"
    );
    assert!(listen.join("man/walhook-listen-feed.1").is_file());

    file(&release, "walhook_", ".deb");
    assert_bill_of_materials(&file(&release, "walhook-0", ".cdx.json"));
    assert_image(&file(&release, "walhook-0", "-image.tar"), temporary.path());
}

fn assert_bill_of_materials(path: &Path) {
    let text = std::fs::read_to_string(path).expect("a file");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["bomFormat"], "CycloneDX");
    assert_eq!(document["metadata"]["component"]["name"], "walhook");

    let components = document["components"].as_array().expect("a list");
    let named = |name: &str| {
        components
            .iter()
            .find(|component| component["name"] == name)
            .unwrap_or_else(|| panic!("no {name}"))
    };

    let tokio = named("tokio");
    assert_eq!(tokio["licenses"][0]["expression"], "MIT");
    assert_eq!(
        tokio["hashes"][0]["content"].as_str().map(str::len),
        Some(64)
    );

    // It is linked into the shipped binary, from sources inside the crate.
    let openssl = &named("openssl-src")["components"][0];
    assert_eq!(openssl["name"], "OpenSSL");
    assert!(
        openssl["version"]
            .as_str()
            .is_some_and(|version| version.starts_with('3'))
    );
}

/// Unpacks the image and runs its program in it.
fn assert_image(archive: &Path, directory: &Path) {
    let layout = directory.join("layout");
    std::fs::create_dir(&layout).expect("a directory");
    run(Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(&layout));

    let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    let bundle = directory.join("bundle");
    run(Command::new("umoci")
        .args(["unpack", "--rootless", "--image", &image])
        .arg(&bundle));

    let config = std::fs::read_to_string(bundle.join("config.json")).expect("a configuration");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let process = &config["process"];
    assert_eq!(
        process["args"],
        serde_json::json!(["/usr/bin/walhook", "run"])
    );

    let rootfs = bundle.join("rootfs");
    assert!(rootfs.join("etc/ssl/certs/ca-certificates.crt").is_file());

    if !rustix::process::getuid().is_root() {
        skip("only root can run a program in another root directory");
        return;
    }

    let version = run(Command::new("chroot")
        .args(["--userspec", "65532:65532"])
        .arg(&rootfs)
        .args(["/usr/bin/walhook", "--version"]));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
