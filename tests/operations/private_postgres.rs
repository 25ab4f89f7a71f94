//! The private server of tests and the demo: it keeps its data across restarts and leaves nothing
//! behind.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres};

async fn start() -> PrivatePostgres {
    PrivatePostgres::start(Options {
        settings: &[("work_mem", "5MB")],
        ..Options::default()
    })
    .await
    .unwrap()
}

/// An ended process may stay listed until its parent waits for it. Then it has no command line.
fn is_running(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test]
async fn dropping_a_server_stops_it_and_removes_its_directory() {
    let server = start().await;
    let pid = server.pid().unwrap();
    let directory = server.directory().to_owned();
    let url = server.url("postgres");

    assert!(is_running(pid));
    drop(server);
    assert!(!is_running(pid));
    assert!(!directory.exists());
    assert!(postgres::connect(&url).await.is_err());
}

/// Not a test, but the process that `a_killed_process_leaves_nothing_behind` kills.
#[tokio::test]
#[ignore = "started by another test"]
async fn hold_a_server_until_killed() {
    let server = start().await;
    println!(
        "\nHOLDS {} {}",
        server.pid().unwrap(),
        server.directory().display()
    );
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_process_leaves_nothing_behind() {
    let mut holder = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "private_postgres::hold_a_server_until_killed",
        ])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();

    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let line = loop {
        let line = lines
            .next_line()
            .await
            .unwrap()
            .expect("the holder prints what it holds");
        if let Some(line) = line.strip_prefix("HOLDS ") {
            break line.to_owned();
        }
    };

    let (pid, directory) = line.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();

    assert!(is_running(pid));
    holder.kill().await.unwrap();

    let gone = async {
        while is_running(pid) || Path::new(directory).exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("server and directory are removed");
}
