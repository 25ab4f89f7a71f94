//! Points of the switches between capture from the WAL and capture by triggers, and of teardown.
//! One scene walks many of them: each fault interrupts what the fault before has left half done.

use std::collections::BTreeSet;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::Case;
use super::commands::COMMITS;
use super::scene::Scene;
use super::table::{Action, Boundary};
use crate::support::account::{self, Account};
use crate::support::{Sidecar, eventually};

const NOTHING_TO_DO: &str = "everything is set up\n";
/// What Walhook may create on the primary, one line each, and the replica identities and indexes of
/// the platform's tables.
const TRACES: &str = "select 'slot ' || slot_name from pg_replication_slots where database = current_database()
    union all select 'publication ' || pubname from pg_publication
    union all select 'schema ' || nspname from pg_namespace where nspname like 'walhook%'
    union all select 'trigger ' || tgname || ' of ' || tgrelid::regclass from pg_trigger where not tgisinternal
    union all select 'table ' || relname || ' ' || relkind::text || relreplident::text from pg_class
        where relnamespace = 'public'::regnamespace";

impl Scene {
    pub async fn traces(&self) -> BTreeSet<String> {
        let rows = self
            .platform
            .client
            .query(TRACES, &[])
            .await
            .expect("the catalog");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until these kinds of traces are as in `wanted`.
    async fn wait_for_traces(&self, kinds: &[&str], wanted: &BTreeSet<String>) {
        let of_kinds = |traces: &BTreeSet<String>| -> Vec<String> {
            traces
                .iter()
                .filter(|trace| kinds.iter().any(|kind| trace.starts_with(kind)))
                .cloned()
                .collect()
        };

        let wanted = of_kinds(wanted);
        let are_reached = async || (of_kinds(&self.traces().await) == wanted).then_some(());
        eventually(
            &format!("{}: {wanted:?} to remain of {kinds:?}", self.case.name()),
            are_reached,
        )
        .await;
    }

    /// Runs `walhook setup` until it succeeds, with each of the points armed once. Commits in
    /// between.
    async fn set_up_with_faults(&mut self, cases: &[Case]) {
        for case in cases {
            self.arm(&[*case]);
            self.fail_command(&["setup"]).await;
            self.commit().await;
        }

        self.app.setup().await;

        // If a process has switched since, setup removes what remains of the other mode.
        let app = &self.app;
        let has_nothing_to_do =
            async || (app.walhook_ok(&["setup"]).await == NOTHING_TO_DO).then_some(());
        eventually(
            &format!("{}: a setup with nothing to do", self.case.name()),
            has_nothing_to_do,
        )
        .await;
    }

    /// Starts a process with the first of the points armed, or with all of them if it is to
    /// survive.
    fn spawn_with(&mut self, cases: &[Case]) -> Sidecar {
        let Some(first) = cases.first() else {
            return self.app.spawn(&[]);
        };

        self.arm(if first.action == Action::Fail {
            cases
        } else {
            &cases[..1]
        });
        self.spawn_armed()
    }

    /// Commits until `armed` has reached the first point, and it or its successors the others.
    /// Returns the processes that run then.
    async fn drive_through(&mut self, mut armed: Sidecar, cases: &[Case]) -> Vec<Sidecar> {
        let Some(last) = cases.last() else {
            return vec![armed];
        };

        for (index, case) in cases.iter().enumerate() {
            self.case = *case;
            self.drive(&mut armed).await;

            if case.action == Action::Kill {
                self.expect_killed(&mut armed).await;

                // The cases of the outbox wait until it ends.
                self.store
                    .execute("delete from walhook.capture_lease", &[])
                    .await
                    .expect("the lease");
                armed = self.spawn_with(&cases[index + 1..]);
            } else if matches!(
                case.point.boundary,
                Boundary::RemoveTriggers | Boundary::EndSwitch
            ) {
                // Tried again after minutes, or with the next start.
                assert!(armed.stop().await.success());
                armed = self.spawn_with(&cases[index + 1..]);
            }
        }

        match last.action {
            Action::Stall => {
                self.sleeping = Some(*last);
                vec![armed, self.app.spawn(&[])]
            }
            Action::Kill | Action::Fail => vec![armed],
        }
    }
}

/// Splits the cases into those of commands and those of processes that run.
fn split(cases: Vec<Case>, of_command: Boundary) -> (Vec<Case>, Vec<Case>) {
    cases
        .into_iter()
        .partition(|case| case.point.boundary == of_command)
}

/// Prepares a scene with a plain and an ordered webhook. Returns also the traces before setup.
async fn scene(cases: &[Case], capture: &str, migrated: bool) -> (Scene, BTreeSet<String>) {
    let mut scene = Scene::new(cases[0], migrated).await;

    // What a running process could not remove is tried again with each heartbeat.
    scene
        .app
        .set("source.capture", capture)
        .set("source.poll_interval", "50ms")
        .set("source.heartbeat", "1s");
    scene.app.set("source.replica_identity", "index");

    let before = scene.traces().await;
    scene.app.setup().await;
    scene.add_webhook("/plain", "none").await;
    scene.add_webhook("/strict", "strict").await;

    (scene, before)
}

/// Switches from the WAL to triggers while a process runs. Afterwards only the triggers are left.
pub async fn run_to_triggers(cases: Vec<Case>) -> Account {
    let (mut scene, before) = scene(&cases, "wal", true).await;
    let (commands, processes) = split(cases, Boundary::PrepareTriggers);
    let mut armed = scene.spawn_with(&processes);

    armed.wait_until_ready().await;
    scene.commit_times(COMMITS).await;
    scene.app.set("source.capture", "trigger");
    scene.set_up_with_faults(&commands).await;

    let running = scene.drive_through(armed, &processes).await;
    scene.commit_times(COMMITS).await;
    scene
        .wait_for_traces(&["slot", "publication", "table"], &before)
        .await;

    let account = scene.settle(running).await;
    scene.app.walhook_ok(&["check"]).await;

    account
}

/// Switches from triggers to the WAL. Afterwards no triggers are left.
pub async fn run_to_wal(cases: Vec<Case>) -> Account {
    let (mut scene, before) = scene(&cases, "trigger", true).await;
    let (commands, processes) = split(cases, Boundary::PrepareWal);
    let reader = scene.app.replica(&[]).await;

    scene.commit_times(COMMITS).await;
    account::settled(&scene.store, &scene.committed).await;
    assert!(reader.stop().await.success());
    scene.commit_times(COMMITS).await;
    scene.app.set("source.capture", "wal");

    for case in &commands {
        scene.arm(&[*case]);
        scene.fail_command(&["setup"]).await;
        scene.commit().await;

        if case.point.name == "tables_published_slot_not_noted" {
            scene.read_outbox_again().await;
        }
    }

    scene.set_up_with_faults(&[]).await;
    let armed = scene.spawn_with(&processes);
    let running = scene.drive_through(armed, &processes).await;

    scene.commit_times(COMMITS).await;
    scene
        .wait_for_traces(&["schema walhook_capture", "trigger"], &before)
        .await;

    let account = scene.settle(running).await;
    scene.app.walhook_ok(&["check"]).await;

    account
}

/// Switches from triggers to the WAL, where the old triggers cannot be dropped, and at once back to
/// triggers.
pub async fn run_back_again(case: Case) -> Account {
    let (mut scene, before) = scene(&[case], "trigger", true).await;
    scene.app.set("source.capture", "wal");
    scene.app.setup().await;

    let mut armed = scene.spawn_with(&[case]);
    scene.drive(&mut armed).await;
    scene.app.set("source.capture", "trigger");
    scene.set_up_with_faults(&[]).await;
    scene.commit_times(COMMITS).await;
    scene
        .wait_for_traces(&["slot", "publication", "table"], &before)
        .await;
    scene.commit_times(COMMITS).await;

    let account = scene.settle(vec![armed]).await;
    scene.app.walhook_ok(&["check"]).await;

    account
}

/// Like [`run_back_again`], while another `walhook setup` that drops the old triggers is stalled
/// after the first table.
pub async fn run_back_again_meanwhile(case: Case) -> Account {
    let (mut scene, before) = scene(&[case], "trigger", true).await;
    scene.app.set("source.capture", "wal");
    scene.app.setup().await;

    // The process completes the switch, but leaves the triggers.
    let failing = Case {
        action: Action::Fail,
        ..case
    };

    scene.arm(&[failing]);
    let mut process = scene.spawn_armed();

    scene.drive(&mut process).await;
    scene.arm(&[case]);

    let stalled = scene.stall_command(&["setup"]).await;
    scene.app.set("source.capture", "trigger");
    scene.set_up_with_faults(&[]).await;
    scene.commit_times(COMMITS).await;

    let output = stalled.wait_with_output().await.expect("the command ends");
    let errors = String::from_utf8_lossy(&output.stderr);

    assert!(
        !output.status.success() && errors.contains("another process has changed"),
        "{errors}"
    );
    scene.commit_times(COMMITS).await;
    scene
        .wait_for_traces(&["slot", "publication", "table"], &before)
        .await;

    let account = scene.settle(vec![process]).await;
    scene.app.walhook_ok(&["check"]).await;

    account
}

impl Scene {
    /// Starts a command with the point armed, and waits until it stalls there.
    async fn stall_command(&mut self, arguments: &[&str]) -> Child {
        self.app.set_environment("FAILPOINTS", &self.arms);
        let command = self.app.command(arguments).stderr(Stdio::piped()).spawn();

        self.disarm();
        let mut child = command.expect("walhook starts");
        let mut errors = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains(&self.case.report()) {
            line.clear();
            let read = errors.read_line(&mut line).await.expect("standard error");
            assert_ne!(read, 0, "{}: the point was not reached", self.case.name());
        }

        child.stderr = Some(errors.into_inner());
        child
    }

    /// Starts the service as it was before setup, which removes again what setup has prepared.
    async fn read_outbox_again(&mut self) {
        self.app.set("source.capture", "trigger");
        let reader = self.app.replica(&[]).await;

        account::settled(&self.store, &self.committed).await;
        assert!(reader.stop().await.success());
        self.app.set("source.capture", "wal");
        self.commit().await;
    }
}

/// Removes everything during a switch: both modes are installed. Afterwards nothing is left, and
/// everything can be set up again.
pub async fn run_teardown(cases: Vec<Case>) -> Account {
    const TEARDOWN: [&str; 3] = ["teardown", "--store", "--yes"];
    let (mut scene, before) = scene(&cases, "wal", false).await;
    let process = scene.run_process().await;

    scene.commit_times(COMMITS).await;
    account::settled(&scene.store, &scene.committed).await;
    scene.stop(process).await;

    let first = scene.account().await;
    scene.app.set("source.capture", "trigger");
    scene.app.setup().await;

    for case in &cases {
        scene.arm(&[*case]);
        scene.fail_command(&TEARDOWN).await;
    }

    scene.app.walhook_ok(&TEARDOWN).await;
    assert_eq!(
        scene.app.walhook_ok(&TEARDOWN).await,
        "nothing is left to remove\n",
        "{}",
        scene.case.name()
    );

    let after = scene.traces().await;
    let left: Vec<&String> = after.symmetric_difference(&before).collect();

    assert!(
        left.is_empty(),
        "{}: teardown leaves {left:?}",
        scene.case.name()
    );
    scene.committed.clear();
    scene.webhooks.clear();
    scene.app.setup().await;
    scene.add_webhook("/again", "strict").await;

    let process = scene.run_process().await;
    scene.commit_times(COMMITS).await;

    let mut account = scene.settle(vec![process]).await;
    account.faults.extend(first.faults);

    account
}
