//! Points of commands that an operator runs: after a fault, the same command is run again and
//! completes.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use super::Case;
use super::scene::Scene;
use super::table::Action;
use crate::support::account::{self, Account};
use crate::support::{Sidecar, eventually};

pub const COMMITS: usize = 2;

impl Scene {
    /// Runs a command with the point armed. Panics unless it reaches the point and fails there.
    pub async fn fail_command(&mut self, arguments: &[&str]) {
        let reached = self.try_command(arguments).await;
        assert!(reached, "{}: the point was not reached", self.case.name());
    }

    /// Runs a command with the point armed. Returns whether it reached the point and failed there;
    /// it must succeed otherwise.
    async fn try_command(&mut self, arguments: &[&str]) -> bool {
        self.app.set_environment("FAILPOINTS", &self.arms);
        let output = self.app.walhook(arguments).await;

        self.disarm();
        let errors = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        let signal = output.status.signal();
        let reached = errors.contains(&self.case.report());

        match self.case.action {
            _ if !reached => assert_eq!(code, Some(0), "{}: {errors}", self.case.name()),
            Action::Kill => assert_eq!(signal, Some(9), "{}", self.case.name()),
            _ => assert_eq!(code, Some(1), "{}: {errors}", self.case.name()),
        }

        reached
    }

    pub async fn run_process(&self) -> Sidecar {
        self.app.replica(&[]).await
    }

    pub async fn stop(&self, process: Sidecar) {
        assert!(process.stop().await.success());
        let free = "select from pg_replication_slots where slot_name = $1 and active";
        eventually("the slot to be free", async || {
            let active = self
                .platform
                .client
                .query_opt(free, &[&self.app.name])
                .await
                .expect("slots");
            active.is_none().then_some(())
        })
        .await;
    }
}

/// Sets up a store without a schema. Afterwards `check` finds no failure, events are delivered, and
/// teardown restores everything.
pub async fn run_setup(case: Case, capture: &str) -> Account {
    let mut scene = Scene::new(case, false).await;
    scene
        .app
        .set("source.capture", capture)
        .set("source.poll_interval", "50ms");

    let identities =
        "select string_agg(relname || relreplident::text, ' ' order by relname) from pg_class
                      where relnamespace = 'public'::regnamespace and relkind = 'r'";
    let identities = async |scene: &Scene| -> String {
        scene
            .platform
            .client
            .query_one(identities, &[])
            .await
            .expect("identities")
            .get(0)
    };

    let before = identities(&scene).await;
    let traces = scene.traces().await;

    scene.fail_command(&["setup"]).await;

    if case.point.name == "schema_created_tables_not_created" {
        // Setup is given up.
        scene
            .app
            .walhook_ok(&["teardown", "--store", "--yes"])
            .await;
        assert_eq!(
            scene.traces().await,
            traces,
            "{}: teardown leaves nothing",
            case.name()
        );
    }

    scene.app.walhook_ok(&["setup"]).await;
    assert_eq!(
        scene.app.walhook_ok(&["setup"]).await,
        "everything is set up\n",
        "{}",
        case.name()
    );

    scene.add_webhook("/", "none").await;
    let process = scene.run_process().await;

    scene.app.walhook_ok(&["check"]).await;
    scene.commit_times(COMMITS).await;

    let mut account = scene.settle(vec![process]).await;
    scene.app.walhook_ok(&["teardown", "--yes"]).await;

    let after = identities(&scene).await;
    if before != after {
        account.faults.push(format!(
            "teardown restores the replica identities: {before} became {after}"
        ));
    }

    account
}

/// Kills setup after every migration: each run applies the next one.
pub async fn run_migrations(case: Case) -> Account {
    let mut scene = Scene::new(case, false).await;
    let mut faults: i64 = 0;

    while (faults == 0 || case.action == Action::Kill) && scene.try_command(&["setup"]).await {
        faults += 1;
        let applied = "select count(*) from walhook.refinery_schema_history";
        let applied: i64 = scene
            .store
            .query_one(applied, &[])
            .await
            .expect("the history")
            .get(0);

        assert_eq!(applied, faults, "{}", case.name());
    }

    assert!(faults > 0, "{}: the point was not reached", case.name());
    scene.app.setup().await;
    scene.add_webhook("/", "none").await;

    let process = scene.run_process().await;
    scene.app.walhook_ok(&["check"]).await;
    scene.commit_times(COMMITS).await;

    scene.settle(vec![process]).await
}

/// Replaces the master key while a process runs. Afterwards the old key is not needed.
pub async fn run_reencryption(case: Case) -> Account {
    const NEW_KEY: &str = "bmV3OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc=";
    let (mut scene, process) = running(case, "wal").await;

    scene.stop(process).await;
    let both = format!("{NEW_KEY},{}", scene.app.setting("secrets.master_key"));

    scene.app.set("secrets.master_key", &both);
    let process = scene.run_process().await;
    let reencrypt = ["secrets", "reencrypt"];

    scene.fail_command(&reencrypt).await;
    scene.commit_times(COMMITS).await;

    let printed = scene.app.walhook_ok(&reencrypt).await;
    assert!(
        printed.starts_with("1 re-encrypted with key "),
        "{}: {printed}",
        case.name()
    );
    account::settled(&scene.store, &scene.committed).await;
    scene.stop(process).await;
    scene.app.set("secrets.master_key", NEW_KEY);

    let process = scene.run_process().await;
    scene.commit_times(COMMITS).await;

    scene.settle(vec![process]).await
}

/// Prepares a scene with a plain and an ordered webhook, some of whose events are delivered.
async fn running(case: Case, capture: &str) -> (Scene, Sidecar) {
    let mut scene = Scene::new(case, true).await;
    scene
        .app
        .set("source.capture", capture)
        .set("source.poll_interval", "50ms");
    scene.add_webhook("/plain", "none").await;
    scene.add_webhook("/strict", "strict").await;
    scene.app.setup().await;

    let process = scene.run_process().await;
    scene.commit_times(COMMITS).await;
    account::settled(&scene.store, &scene.committed).await;

    (scene, process)
}

/// Repairs after the point until nothing is left to repair, and continues.
async fn repair_and_settle(mut scene: Scene) -> Account {
    scene.fail_command(&["repair"]).await;
    let again: Output = scene.app.walhook(&["repair"]).await;
    let errors = String::from_utf8_lossy(&again.stderr);
    let is_committed = scene.case.point.name.starts_with("repair_committed");

    assert_eq!(
        again.status.success(),
        !is_committed,
        "{}: {errors}",
        scene.case.name()
    );

    assert!(
        !is_committed || errors.contains("nothing to repair"),
        "{errors}"
    );
    let process = scene.run_process().await;
    scene.commit_times(COMMITS).await;

    scene.settle(vec![process]).await
}

/// Drops the slot, so that changes are missed.
pub async fn run_repair(case: Case) -> Account {
    let (mut scene, process) = running(case, "wal").await;
    scene.stop(process).await;
    scene.app.drop_slot().await;
    scene.commit_times(COMMITS).await;
    repair_and_settle(scene).await
}

/// Makes the triggers fail, so that changes are missed.
pub async fn run_repair_of_outbox(case: Case) -> Account {
    // With the server's error code of a full disk.
    const FULL: &str = "create function no_space() returns trigger language plpgsql as $$ begin
            raise exception 'No space left on device' using errcode = 'disk_full'; end $$;
        create trigger no_space before insert on walhook_capture.outbox for each row execute function no_space()";
    let (mut scene, process) = running(case, "trigger").await;

    scene.stop(process).await;
    scene
        .platform
        .client
        .batch_execute(FULL)
        .await
        .expect("a trigger");

    scene.commit_times(COMMITS).await;
    scene
        .platform
        .client
        .batch_execute("drop function no_space() cascade")
        .await
        .expect("space again");

    repair_and_settle(scene).await
}

/// Erases another user while a process runs. Nothing of that user is left, and everything of the
/// first one is.
pub async fn run_erase(case: Case) -> Account {
    let (mut scene, process) = running(case, "wal").await;
    let erased = scene.platform.user(&[]).await;
    let webhook = scene.insert_webhook(erased, "/erased", "none").await;

    scene.app.token(&erased.to_string()).await;
    let before = scene.committed.clone();
    let payment = scene.platform.payment(erased, "ready").await;
    let with_erased = [before.as_slice(), &[account::Transition::payment(payment)]].concat();

    account::settled(&scene.store, &with_erased).await;
    let erase = ["user", "erase", &erased.to_string(), "--yes"];

    scene.fail_command(&erase).await;
    scene.app.walhook_ok(&erase).await;
    scene.commit_times(COMMITS).await;

    let mut account = scene.settle(vec![process]).await;

    for trace in [webhook, format!("\"user_id\":\"{erased}\"")] {
        account.faults.extend(
            rows_with(&scene, &trace)
                .await
                .iter()
                .map(|row| format!("{trace} is left in {row}")),
        );
    }

    if rows_with(&scene, "user.erased").await.is_empty() {
        account
            .faults
            .push("the audit log has no record of the erasure".into());
    }

    account
}

/// Returns all rows of the store that contain `text`, with the names of their tables.
async fn rows_with(scene: &Scene, text: &str) -> Vec<String> {
    let tables = "select oid::regclass::text from pg_class where relnamespace = 'walhook'::regnamespace and relkind = 'r'";
    let mut found = Vec::new();

    for table in scene.store.query(tables, &[]).await.expect("tables") {
        let table: String = table.get(0);
        let select = format!(
            "select row_to_json(t)::text from {table} as t where position($1 in row_to_json(t)::text) > 0"
        );
        let rows = scene.store.query(&select, &[&text]).await.expect("rows");

        found.extend(
            rows.iter()
                .map(|row| format!("{table}: {}", row.get::<_, String>(0))),
        );
    }

    found
}
