//! The private server of tests and the demo: it keeps its data across restarts and leaves nothing
//! behind.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

async fn start() -> PrivatePostgres {
    PrivatePostgres::start(Options {
        settings: &[("work_mem", "5MB")],
        ..Options::default()
    })
    .await
    .unwrap()
}

async fn setting(server: &PrivatePostgres, name: &str) -> String {
    let client = postgres::connect(&server.url("postgres")).await.unwrap();
    client
        .query_one("select current_setting($1)", &[&name])
        .await
        .unwrap()
        .get(0)
}

/// An ended process may stay listed until its parent waits for it. Then it has no command line.
fn is_running(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test]
async fn a_server_supports_logical_decoding_and_has_the_given_settings() {
    let server = start().await;
    assert_eq!(setting(&server, "wal_level").await, "logical");
    assert_eq!(setting(&server, "work_mem").await, "5MB");
    assert_eq!(setting(&server, "fsync").await, "off");
    assert!(
        server
            .directory()
            .join(format!(".s.PGSQL.{}", server.port()))
            .exists()
    );
}

#[tokio::test]
async fn data_survives_restarts_on_the_same_port() {
    let server = start().await;
    server.create_database("Platform \"1\"").await.unwrap();
    server.create_database("platform").await.unwrap();

    let url = server.url("platform");
    let client = postgres::connect(&url).await.unwrap();

    client
        .batch_execute("create table kept (id int); insert into kept values (7)")
        .await
        .unwrap();
    let before = server.pid().unwrap();

    for mode in [StopMode::Fast, StopMode::Immediate] {
        server.restart(mode).await.unwrap();
        let client = postgres::connect(&url).await.unwrap();
        assert_eq!(
            client
                .query_one("select id from kept", &[])
                .await
                .unwrap()
                .get::<_, i32>(0),
            7
        );
    }

    assert_ne!(server.pid().unwrap(), before);
    server.stop(StopMode::Fast).await.unwrap();
    assert!(postgres::connect(&url).await.is_err());
    assert_eq!(server.pid(), None);
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
