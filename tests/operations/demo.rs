//! `walhook demo` as a black box: it exits after enough verified deliveries, and leaves nothing
//! behind.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

#[tokio::test]
async fn the_demo_delivers_verifies_and_leaves_nothing_behind() {
    // As root, the server runs as another user, who needs access to the directory.
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o755)).unwrap();

    let run = Command::new(env!("CARGO_BIN_EXE_walhook"))
        .args(["demo", "--events", "60", "--rate", "200"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();

    let output = tokio::time::timeout(Duration::from_secs(180), run)
        .await
        .expect("the demo ends in time")
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);

    assert!(
        output.status.success(),
        "{}\n{printed}\n{errors}",
        output.status
    );
    assert!(
        printed.contains("60  verified") && printed.contains(" 0 unverified"),
        "{printed}"
    );

    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
