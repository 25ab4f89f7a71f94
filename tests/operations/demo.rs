//! `walhook demo` as a black box: it exits after enough verified deliveries, and leaves nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

#[tokio::test]
async fn it_delivers_verifies_and_leaves_nothing() {
    // As root, the server runs as another user, who needs access to the directory.
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_walhook"))
        .args(["demo", "--events", "60", "--rate", "200"])
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(180), run).await.expect("the demo ends by itself").unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}\n{errors}", output.status);
    assert!(told.contains("60  verified") && told.contains(" 0 unverified"), "{told}");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
