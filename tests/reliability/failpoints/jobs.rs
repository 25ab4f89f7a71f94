//! Points of recoveries, replays and notices.

use std::collections::BTreeMap;

use serde_json::json;
use walhook::private_postgres::free_port;

use super::Case;
use super::scene::{LIMIT, Scene};
use super::table::Action;
use crate::support::account::{self, Account};
use crate::support::{Api, Sidecar, SmtpSink, eventually_within};

const COMMITS: usize = 3;
/// Each commit raises two events.
const EVENTS: i64 = 2 * COMMITS as i64;
const SINCE: &str = "2026-01-01T00:00:00Z";

/// Starts a process that reaches the failpoint, and commits changes whose deliveries fail.
async fn with_failing_deliveries(
    case: Case,
    timeout: &str,
    retry_schedule: &str,
) -> (Scene, Sidecar) {
    let mut scene = Scene::new(case, true).await;
    scene
        .app
        .set("delivery.timeout", timeout)
        .set("delivery.retry_schedule", retry_schedule);
    scene.add_webhook("/", "none").await;
    scene.receiver.answer_status(500);
    scene.app.setup().await;

    let mut armed = scene.spawn_armed();
    armed.wait_until_ready().await;
    scene.commit_times(COMMITS).await;

    (scene, armed)
}

/// Redelivers what has failed permanently.
pub async fn run_recovery(case: Case) -> Account {
    let (mut scene, armed) = with_failing_deliveries(case, "1s", "50ms").await;
    account::settled(&scene.store, &scene.committed).await;
    scene.receiver.answer_status(200);

    let webhook = scene.webhooks[0].id.clone();
    start_job(&scene, &armed.api_url, &webhook, "recover").await;
    scene.wait_until_reached().await;

    let processes = scene.carry_on(armed).await;
    let mut account = scene.settle(processes).await;
    let rounds =
        "select round, count(*) from walhook.attempt where outcome <> 'failed' group by round";
    let rows = scene.store.query(rounds, &[]).await.expect("rounds");
    let ended: BTreeMap<i16, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();

    if ended != [(1, EVENTS), (2, EVENTS)].into() {
        account
            .faults
            .push(format!("each delivery is recovered once: {ended:?}"));
    }

    check_job(&scene, &mut account).await;
    account
}

/// Cancels what a webhook has pending when it is switched off. Switched on again, it gets that by a
/// recovery.
pub async fn run_cancellation(case: Case) -> Account {
    let (mut scene, armed) = with_failing_deliveries(case, "30s", "1h").await;
    let retries = "select count(*) from walhook.delivery where attempt = 2";

    let all = async || {
        (scene
            .store
            .query_one(retries, &[])
            .await
            .ok()?
            .get::<_, i64>(0)
            == EVENTS)
            .then_some(())
    };

    eventually_within(LIMIT, "retries to be pending", all).await;
    let path = format!("/webhooks/{}", scene.webhooks[0].id);
    let api = Api::new(
        &armed.api_url,
        &scene.app.token(&scene.user.to_string()).await,
    );

    // The process may die before it responds.
    let _ = api
        .try_send("PATCH", &path, &[], Some(&json!({ "active": false })))
        .await;
    scene.wait_until_reached().await;

    let mut processes = scene.carry_on(armed).await;
    account::settled(&scene.store, &scene.committed).await;
    scene.receiver.answer_status(200);

    let last = processes.last_mut().expect("a process runs");
    last.wait_until_ready().await;

    let api = api.at(&last.api_url);
    api.patch(&path, json!({ "active": true }))
        .await
        .expect(200);
    api.post(&format!("{path}/recover"), json!({ "since": SINCE }))
        .await
        .expect(202);

    let mut account = scene.settle(processes).await;
    let ends = "select round, outcome, count(*) from walhook.attempt where outcome <> 'failed' group by 1, 2 order by 1";
    let rows = scene.store.query(ends, &[]).await.expect("ends");
    let ended: Vec<(i16, String, i64)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();

    if ended
        != [
            (1, "cancelled".to_owned(), EVENTS),
            (2, "delivered".to_owned(), EVENTS),
        ]
    {
        account.faults.push(format!(
            "each delivery is cancelled once and recovered once: {ended:?}"
        ));
    }

    check_job(&scene, &mut account).await;
    account
}

/// Delivers stored events to a webhook that never had them.
pub async fn run_replay(case: Case) -> Account {
    let mut scene = Scene::new(case, true).await;
    scene.app.setup().await;

    let mut armed = scene.spawn_armed();
    armed.wait_until_ready().await;
    scene.commit_times(COMMITS).await;
    account::settled(&scene.store, &scene.committed).await;
    scene.add_webhook("/", "none").await;

    let webhook = scene.webhooks[0].id.clone();
    start_job(&scene, &armed.api_url, &webhook, "replay").await;
    scene.wait_until_reached().await;

    let processes = scene.carry_on(armed).await;
    let mut account = scene.settle(processes).await;
    check_job(&scene, &mut account).await;

    account
}

async fn start_job(scene: &Scene, api_url: &str, webhook: &str, kind: &str) {
    let api = Api::new(api_url, &scene.app.token(&scene.user.to_string()).await);
    let path = format!("/webhooks/{webhook}/{kind}");
    match api
        .try_send("POST", &path, &[], Some(&json!({ "since": SINCE })))
        .await
    {
        Ok(answer) => drop(answer.expect(202)),
        // The process may die before it responds.
        Err(error) => assert_eq!(scene.case.action, Action::Kill, "{error}"),
    }
}

/// The job has ended and counts each delivery once.
async fn check_job(scene: &Scene, account: &mut Account) {
    let jobs =
        "select recovered, finished_at is not null, cancelled_at is not null from walhook.recovery";
    let rows = scene.store.query(jobs, &[]).await.expect("jobs");
    let jobs: Vec<(i64, bool, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();

    if jobs != [(EVENTS, true, false)] {
        account.faults.push(format!(
            "one job has finished and has {EVENTS} deliveries: {jobs:?}"
        ));
    }
}

/// Disables a webhook, of which its owner is warned and notified.
pub async fn run_notices(case: Case) -> Account {
    if !SmtpSink::is_available() {
        return Account::default();
    }

    let mut scene = Scene::new(case, true).await;
    let port = free_port().expect("a free port");
    let rejects = if case.point.name.starts_with("mail_rejected") {
        "1"
    } else {
        "0"
    };

    let sink = SmtpSink::start(port, &["--refuse", rejects]).await;
    let url = format!("smtp://127.0.0.1:{port}");

    scene
        .app
        .set("mail.smtp_url", &url)
        .set("mail.from", "Example <webhooks@example.com>");
    scene
        .app
        .set("disable.threshold", "10")
        .set("disable.min_duration", "0s");
    scene.add_webhook("/", "none").await;
    scene.receiver.answer_status(500);
    scene.app.setup().await;

    let armed = scene.spawn_armed();
    scene.commit().await;
    scene.wait_until_reached().await;

    let processes = scene.carry_on(armed).await;
    let ended = "select count(*) from walhook.notice where outcome = 'sent'";

    let both = async || {
        (scene
            .store
            .query_one(ended, &[])
            .await
            .ok()?
            .get::<_, i64>(0)
            == 2)
            .then_some(())
    };

    eventually_within(LIMIT, "a warning and a notice to be sent", both).await;
    let mut account = scene.settle(processes).await;
    let mut mails: BTreeMap<String, usize> = BTreeMap::new();

    for mail in sink.wait_for("taken", 2).await {
        *mails.entry(mail["message_id"].to_string()).or_default() += 1;
    }

    // Whether a mail was accepted before the process died is unknown: SMTP has no way to ask. It is
    // repeated under the same id.
    let may_repeat = case.action == Action::Kill && case.point.name.starts_with("mail_accepted");
    let counts: Vec<usize> = mails.values().copied().collect();
    let is_once = counts == [1, 1];
    if !(is_once || may_repeat && counts.len() == 2 && counts.iter().sum::<usize>() == 3) {
        account
            .faults
            .push(format!("two mails are sent, each once: {mails:?}"));
    }

    account
}
