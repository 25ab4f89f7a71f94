//! The priorities of a process's threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::TestApp;

/// The nice values of a process's threads, by the threads' names.
fn niceness(pid: u32) -> BTreeMap<String, BTreeSet<i32>> {
    let mut found: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();

    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let read = |name: &str| std::fs::read_to_string(thread.as_ref().unwrap().path().join(name));

        // A thread may have ended meanwhile.
        let (Ok(name), Ok(stat)) = (read("comm"), read("stat")) else {
            continue;
        };

        // The 19th field. The name, which is the second, may contain spaces.
        let value = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .nth(16)
            .unwrap()
            .parse()
            .unwrap();

        found
            .entry(name.trim().to_owned())
            .or_default()
            .insert(value);
    }

    found
}

#[track_caller]
fn assert_niceness(app: &mut TestApp, process: i32, api: i32) {
    let found = niceness(app.sidecar().pid());
    for (name, values) in &found {
        let expected = if name == "api" { api } else { process };
        assert_eq!(values, &BTreeSet::from([expected]), "{found:?}");
    }

    assert!(
        found.contains_key("api") && found.contains_key("capture") && found.len() > 2,
        "{found:?}"
    );
}

/// Otherwise the requests of one user could take processor time from the deliveries of all.
#[tokio::test]
async fn threads_of_the_api_yield_to_those_of_deliveries() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    app.run().await;
    assert_niceness(&mut app, 0, 10);
}

/// The operator may lower the priority of the whole process in favour of other programs.
#[tokio::test]
async fn threads_of_the_api_yield_in_a_process_of_low_priority_too() {
    let mut app = TestApp::start_with(|app| {
        app.set_environment("PROGRAM", env!("CARGO_BIN_EXE_walhook"))
            .set_program(Path::new(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/operations/nice"
            )))
    })
    .await;
    assert_niceness(&mut app, 12, 19);
}
