//! `walhook status` and `walhook webhook`: what an operator sees, and does, across users.

use serde_json::{Value, json};

use crate::support::plan::plans;
use crate::support::{Receiver, TestApp, eventually, one, run_sql};

/// Runs `walhook status --json`. Returns its exit code too.
async fn status(app: &TestApp) -> (Value, i32) {
    let output = app.walhook(&["status", "--json"]).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    let parsed = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}\n{errors}"));
    (parsed, output.status.code().unwrap())
}

fn processes(status: &Value) -> Vec<&Value> {
    let processes = status["store"]["processes"].as_array().unwrap();
    processes.iter().collect()
}

#[tokio::test]
async fn status_names_the_processes_and_the_one_that_captures() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let (before, code) = status(&app).await;
    assert_eq!(code, 0, "both databases answer: {before}");
    assert!(processes(&before).is_empty(), "{before}");
    assert_eq!(before["primary"]["slot"]["active"], false, "{before}");

    let first = app.replica(&[]).await;
    let second = app.replica(&["--roles", "capture,deliver"]).await;

    let shown = eventually("two processes, of which one captures", async || {
        let (shown, _) = status(&app).await;
        let both = processes(&shown).len() == 2;
        let captures = processes(&shown)
            .iter()
            .filter(|process| process["captures"] == true)
            .count();
        (both && captures == 1).then_some(shown)
    })
    .await;

    let [one, other] = processes(&shown)[..] else {
        panic!("{shown}")
    };
    assert_eq!(one["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(one["roles"], json!(["capture", "deliver", "api"]));
    assert_eq!(other["roles"], json!(["capture", "deliver"]));
    assert_eq!(shown["primary"]["slot"]["active"], true, "{shown}");
    assert!(shown["store"]["size_bytes"].as_u64().unwrap() > 100_000);
    assert_eq!(shown["store"]["schema_version"], 1);

    let text = app.walhook_ok(&["status"]).await;
    assert!(
        text.contains(" behind") && text.contains(": stands by"),
        "{text}"
    );
    assert!(text.lines().count() <= 24, "more than a screen:\n{text}");

    // The other one takes over, and the reader that was killed is forgotten.
    let (captures, stands_by) = match one["captures"] == true {
        true => (first, second),
        false => (second, first),
    };
    captures.kill().await;

    eventually("the other process to capture", async || {
        let (shown, _) = status(&app).await;
        let all = processes(&shown);
        (all.len() == 1 && all[0]["captures"] == true).then_some(())
    })
    .await;
    stands_by.kill().await;
}

/// With trigger capture, the lease on the outbox names the process.
#[tokio::test]
async fn status_shows_the_outbox_and_its_reader() {
    let app = TestApp::start_with(|app| app.set("source.capture", "trigger")).await;

    let shown = eventually("a process that captures", async || {
        let (shown, _) = status(&app).await;
        let captures = processes(&shown).first()?["captures"] == true;
        captures.then_some(shown)
    })
    .await;

    assert_eq!(shown["primary"]["slot"], Value::Null);
    assert_eq!(shown["primary"]["outbox"]["rows"], 0, "{shown}");
}

#[tokio::test]
async fn what_is_not_configured_is_said_once() {
    let app = TestApp::prepare().await;
    let mut command = app.command(&["status"]);
    command.env_remove("WALHOOK_SOURCE__URL");
    command.env_remove("WALHOOK_STORE__URL");

    let output = command.output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert_eq!(error.matches("source.url is not set").count(), 1, "{error}");
}

#[tokio::test]
async fn status_shows_the_rest_while_a_database_does_not_answer() {
    let mut app = TestApp::prepare().await;
    app.setup().await;

    let (source, store) = (app.source_url.clone(), app.store_url.clone());
    let unreachable = "postgres://127.0.0.1:9/none";

    app.set("source.url", unreachable);
    let (shown, code) = status(&app).await;
    assert_eq!(code, 1);
    assert_eq!(shown["errors"][0]["database"], "primary", "{shown}");
    assert_eq!(shown["primary"], Value::Null);
    assert_eq!(shown["store"]["gaps"], json!([]), "{shown}");

    app.set("source.url", &source).set("store.url", unreachable);
    let output = app.walhook(&["status"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("store        cannot be read: ") && text.contains("slot         "),
        "{text}"
    );

    // It answers, but has no schema that this build can work on.
    app.set("store.url", &store);
    run_sql(&app.store().await, "drop schema walhook cascade").await;
    let (shown, code) = status(&app).await;
    assert_eq!(code, 1);
    assert!(
        shown["errors"][0]["error"]
            .as_str()
            .unwrap()
            .contains("run `walhook setup`"),
        "{shown}"
    );
}

/// Counts stop, but the oldest delivery is found wherever it is.
#[tokio::test]
async fn status_reads_a_part_of_a_long_backlog() {
    let app = TestApp::prepare().await;
    app.setup().await;
    let client = app.store().await;

    let backlog = "insert into walhook.delivery (id, webhook_id, event_id, due_at)
        select gen_random_uuid(), '00000000-0000-0000-0000-000000000001', gen_random_uuid(), now() - interval '1 minute'
        from generate_series(1, 150000);
        insert into walhook.delivery (id, webhook_id, event_id, due_at)
        select gen_random_uuid(), 'ffffffff-0000-0000-0000-000000000001', gen_random_uuid(), now() - interval '1 hour'";
    run_sql(&client, backlog).await;

    let (shown, code) = status(&app).await;
    let first = &shown["store"]["first_attempts"];
    let counted = first["deliveries"].as_i64().unwrap();

    assert_eq!(code, 0, "{shown}");
    assert!((100_000..110_000).contains(&counted), "{shown}");
    assert!(first["oldest_due_seconds"].as_f64().unwrap() >= 3_600.0);
    assert_eq!(shown["store"]["retries"]["deliveries"], 0);

    let text = app.walhook_ok(&["status"]).await;
    assert!(
        text.contains(&format!("{counted} or more first attempts")),
        "{text}"
    );

    // Each visit of a webhook is one search of the index, by any plan.
    const BY_INDEX: &str = walhook::sql::store::server::PLAN_BY_INDEX;
    const OLDEST: &str = walhook::sql::store::delivery::OLDEST_DUE;

    run_sql(&client, "begin").await;
    run_sql(&client, BY_INDEX).await;

    for plan in plans(&client, OLDEST, "integer", "10000").await {
        assert!(
            !plan.contains("Seq Scan") && !plan.contains("Sort"),
            "{plan}"
        );
        assert!(plan.contains("Index Cond: (webhook_id > visit"), "{plan}");
    }
}

/// Returns what operators did, as the owner and the action.
async fn audited(app: &TestApp, action: &str) -> Vec<String> {
    let query = format!(
        "select coalesce(array_agg(user_id || ' ' || action), '{{}}') from walhook.audit
         where via = 'command_line' and action = '{action}'"
    );
    one(&app.store().await, &query).await
}

#[tokio::test]
async fn operators_find_disable_enable_and_recover_webhooks_of_all_users() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let receiver = Receiver::start().await;
    let mut ids = Vec::new();
    let mut users = Vec::new();

    for _ in 0..2 {
        let user = platform.user(&[]).await;
        let api = app.api(&user.to_string()).await;
        let url = receiver.url("/hook?token=hunter2");
        let (id, _) = api.create_webhook(&url, &["payment.statement_ready"]).await;
        ids.push(id);
        users.push(user);
    }

    let listed = async |arguments: &[&str]| {
        let text = app
            .walhook_ok(&[&["webhook", "list", "--json"], arguments].concat())
            .await;
        let lines = text.lines();
        let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ids = lines.map(|line| line["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<String>>()
    };

    assert_eq!(listed(&[]).await, ids, "of both users, oldest first");
    assert_eq!(listed(&["--user", &users[1].to_string()]).await, ids[1..]);
    assert_eq!(
        listed(&["--limit", "1", "--after", &ids[0]]).await,
        ids[1..]
    );
    assert!(listed(&["--state", "disabled"]).await.is_empty());
    let table = app.walhook_ok(&["webhook", "list"]).await;
    assert!(!table.contains("hunter2"), "{table}");

    let states = table.lines().zip(["STATE", "active", "active"]);
    let starts: Vec<_> = states.map(|(line, state)| line.find(state)).collect();
    assert!(starts[0].is_some() && starts == [starts[0]; 3], "{table}");

    // The owner sees the reason.
    let [id, reason] = [&ids[0], "replies take a minute; fix them, then enable it"];
    let [owner, other] = [0, 1].map(|index: usize| users[index].to_string());

    for change in [
        &["disable", id, "--reason", reason][..],
        &["enable", id],
        &["recover", id],
        &["show", id],
    ] {
        let command = [&["webhook"], change, &["--user", &other]].concat();
        let output = app.walhook(&command).await;
        assert_eq!(output.status.code(), Some(1), "{change:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("no such webhook"));
    }
    app.walhook_ok(&[
        "webhook", "disable", id, "--reason", reason, "--user", &owner,
    ])
    .await;

    let api = app.api(&users[0].to_string()).await;
    let path = format!("/webhooks/{id}");
    let shown = api.get(&path).await.expect(200).json();

    assert_eq!(shown["active"], false);
    assert_eq!(shown["disabled_reason"], format!("operator: {reason}"));
    assert_eq!(listed(&["--state", "disabled"]).await, ids[..1]);
    assert!(listed(&["--state", "inactive"]).await.is_empty());
    let by_owner = format!("{} webhook.disabled", users[0]);
    assert_eq!(audited(&app, "webhook.disabled").await, [by_owner]);

    let again = app
        .walhook(&["webhook", "disable", id, "--reason", reason])
        .await;
    assert_eq!(again.status.code(), Some(1));

    // What it misses is delivered by a recovery.
    platform.payment(users[0], "ready").await;
    app.wait_for_events(1).await;
    app.walhook_ok(&["webhook", "enable", id]).await;

    let shown = app.walhook_ok(&["webhook", "show", id]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["user"], users[0].to_string());
    assert_eq!(
        (&shown["active"], &shown["disabled_at"]),
        (&json!(true), &Value::Null)
    );
    assert!(receiver.requests().is_empty());

    let since = ["--since", "2026-01-01T00:00:00Z"];
    let counted = app
        .walhook_ok(&[&["webhook", "recover", id, "--dry-run"], &since[..]].concat())
        .await;
    assert!(counted.starts_with("1 deliveries"), "{counted}");

    app.walhook_ok(&[&["webhook", "recover", id], &since[..]].concat())
        .await;
    receiver.wait_for(1).await;
    assert_eq!(audited(&app, "webhook.recovery_begun").await.len(), 1);

    // A webhook whose last attempt has failed.
    receiver.answer_status(500);
    platform.payment(users[1], "ready").await;
    eventually("the webhook to fail", async || {
        (listed(&["--state", "failing"]).await == ids[1..]).then_some(())
    })
    .await;

    let unknown = ["webhook", "show", "01900000-0000-7000-8000-000000000000"];
    let output = app.walhook(&unknown).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such webhook"));
}

/// A platform moves a release into a status that no map names, and out of it again.
#[tokio::test]
async fn status_shows_ignored_transitions_and_each_value_is_logged_once() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;

    for (round, status) in ["archived", "approved", "archived", "limbo", "limbo"]
        .iter()
        .enumerate()
    {
        let other = format!("update release set title = '{round}', review_status = '{status}'");
        platform.transaction(&other).await;
    }
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;

    let (shown, _) = status(&app).await;
    let ignored = &shown["store"]["ignored_transitions"];
    assert_eq!(ignored.as_array().unwrap().len(), 1, "{shown}");

    let expected = json!({
        "reason": "unknown_review_status", "transitions": 4, "table": "release", "row": release.to_string(),
        "value": "limbo", "last_at": ignored[0]["last_at"],
    });
    assert_eq!(ignored[0], expected);

    let text = app.walhook_ok(&["status"]).await;
    let line = format!(
        "ignored      4 transitions raised no event: unknown_review_status, the last one release {release} at "
    );
    assert!(text.contains(&line) && text.contains("`limbo`"), "{text}");

    let log = std::fs::read_to_string(app.log_file()).expect("the server log");
    let logged = |value: &str| {
        let lines = log.lines().filter(|line| line.contains("raise no event"));
        lines
            .filter(|line| line.contains(&format!("value=\"{value}\"")))
            .count()
    };
    assert_eq!((logged("archived"), logged("limbo")), (1, 1), "{log}");
}
