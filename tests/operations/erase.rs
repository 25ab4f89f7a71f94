//! `walhook user erase`: everything of one user is removed, and nothing of other users.

use std::collections::HashSet;

use crate::support::{Answer, Api, Platform, Receiver, TestApp, eventually};
use serde_json::json;

const EVENT: &str = "payment.statement_ready";

/// A user with rows in every table.
struct Tenant {
    user: i64,
    api: Api,
    receiver: Receiver,
    webhook: String,
    gone: String,
    /// Ids that no row may contain after the user is erased.
    traces: HashSet<String>,
}

impl Tenant {
    /// Whether maintenance removes the row after a restart: it belongs to an ended replay or a
    /// deleted webhook.
    fn has_ended(&self, (table, row): &(String, String)) -> bool {
        match table.as_str() {
            "walhook.replay_exclusion" => true,
            "walhook.webhook_sequence" => row.contains(&self.gone),
            _ => false,
        }
    }

    async fn new(app: &TestApp, platform: &Platform) -> Tenant {
        let user = platform.user(&["preflight_qc"]).await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api.create_webhook(&receiver.url("/kept"), &[EVENT]).await;
        let (gone, _) = api.create_webhook(&receiver.url("/gone"), &[EVENT]).await;
        let (quiet, _) = api.create_webhook(&receiver.url("/quiet"), &[EVENT]).await;

        api.patch(&format!("/webhooks/{quiet}"), json!({ "active": false }))
            .await
            .expect(200);
        let path = format!("/webhooks/{webhook}");

        platform.payment(user, "ready").await;
        receiver.wait_for(2).await;

        let logs = api
            .wait_for_logs(&webhook, "an entry", |logs| !logs.is_empty())
            .await;
        let key = [("idempotency-key", "one")];

        api.send("POST", &format!("{path}/test"), &key, Some(&json!({})))
            .await
            .expect(200);
        let log = logs[0]["id"].as_str().unwrap();

        api.post(&format!("{path}/logs/{log}/redeliver"), json!({}))
            .await
            .expect(202);
        api.wait_for_logs(&webhook, "a second round", |logs| {
            logs.iter().any(|entry| entry["round"] == 2)
        })
        .await;
        api.post(
            &format!("{path}/recover"),
            json!({ "since": "2026-01-01T00:00:00Z" }),
        )
        .await
        .expect(202);

        api.post(
            &format!("{path}/replay"),
            json!({ "since": "2026-01-01T00:00:00Z" }),
        )
        .await
        .expect(202);

        let store = app.store().await;
        let open = "select count(*) from walhook.recovery where finished_at is null";
        let none_open = || async {
            (store.query_one(open, &[]).await.ok()?.get::<_, i64>(0) == 0).then_some(())
        };

        eventually("the end of the recovery and the replay", none_open).await;
        api.wait_for_logs(&gone, "an entry", |logs| !logs.is_empty())
            .await;
        api.delete(&format!("/webhooks/{gone}")).await.expect(204);

        // As if the webhook was deleted when changes were not audited yet.
        let forget = "delete from walhook.audit where subject_id = $1::text::uuid";
        store.execute(forget, &[&gone]).await.unwrap();

        let notice = "insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind,
                                                  failures, threshold, ended_at, outcome, is_reported)
                      values (gen_random_uuid(), 'warning', $1::text::uuid, $2, 'n', 'u', 'r', 'dns', 50, 100, now(), 'sent', true)";
        store
            .execute(notice, &[&webhook, &user.to_string()])
            .await
            .unwrap();

        let occurrence = "insert into walhook.occurrence (id, url, kind, data)
                          values (gen_random_uuid(), 'u', 'webhook.failing', json_build_object('count', 2, 'items', json_build_array(
                              json_build_object('user_id', $1::text, 'webhook_id', $2::text), json_build_object('user_id', 'other'))))";
        store
            .execute(occurrence, &[&user.to_string(), &webhook])
            .await
            .unwrap();

        let session =
            "insert into walhook.session (hash, user_id) values (sha256($1::text::bytea), $1)";
        store.execute(session, &[&user.to_string()]).await.unwrap();

        let mut traces: HashSet<String> = [webhook.clone(), gone.clone(), quiet].into();
        traces.insert(copied_release(app, platform, user).await);

        for query in [
            "select id::text from walhook.event where user_id = $1",
            "select id::text from walhook.api_token where user_id = $1",
            "select delivery_id::text from walhook.attempt join walhook.event on event.id = event_id where user_id = $1",
        ] {
            let rows = store.query(query, &[&user.to_string()]).await.unwrap();
            assert!(!rows.is_empty(), "{query}");
            traces.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        }

        Tenant {
            user,
            api,
            receiver,
            webhook,
            gone,
            traces,
        }
    }
}

/// Has the store copy a release of the user that the platform then deletes. Returns what the copy
/// contains.
async fn copied_release(app: &TestApp, platform: &Platform, user: i64) -> String {
    let label = platform.label(user).await;
    let release = platform.release(label).await;

    platform
        .execute("delete from release where id = $1", &[&release])
        .await;
    let copied = format!(
        "select count(*) from walhook.lookup_row where relation = 1 and row_id = {release}"
    );
    app.wait_for_count(&copied, 1).await;

    // With the quotes of JSON, escaped in JSON.
    format!("\\\"Release {release}\\\"")
}

/// Returns every row of every table of the store, with the table's name.
async fn rows(app: &TestApp) -> Vec<(String, String)> {
    let store = app.store().await;
    // Not each partition: rows move from the default one to that of their day.
    let tables = "select oid::regclass::text from pg_class
                  where relnamespace = 'walhook'::regnamespace and relkind in ('r', 'p') and not relispartition";
    let mut rows = Vec::new();

    for table in store.query(tables, &[]).await.unwrap() {
        let table: String = table.get(0);
        let select = format!("select row_to_json(t)::text from {table} as t");

        rows.extend(
            store
                .query(&select, &[])
                .await
                .unwrap()
                .iter()
                .map(|row| (table.clone(), row.get(0))),
        );
    }

    rows
}

/// Returns the rows with the user in a user column, or with one of `traces` anywhere.
async fn named(app: &TestApp, user: i64, traces: &HashSet<String>) -> Vec<(String, String)> {
    let owner = format!("\"user_id\":\"{user}\"");
    let names =
        |row: &str| row.contains(&owner) || traces.iter().any(|trace| row.contains(trace.as_str()));
    let mut named: Vec<(String, String)> = rows(app)
        .await
        .into_iter()
        .filter(|(_, row)| names(row))
        .collect();

    named.sort_unstable();
    named
}

/// Waits until no request to a receiver is in flight.
async fn wait_until_idle(metrics_urls: &[&str]) {
    let idle = || async {
        for url in metrics_urls {
            if !crate::support::metrics(url)
                .await
                .contains("walhook_deliveries_in_flight 0")
            {
                return None;
            }
        }

        Some(())
    };
    eventually("the requests' end", idle).await;
}

/// The first words of the names of tables with rows of a user.
const WITH_TRACES: [&str; 12] = [
    "webhook",
    "api",
    "event",
    "attempt",
    "missed",
    "recovery",
    "replay",
    "delivery",
    "audit",
    "idempotency",
    "notice",
    "lookup",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_erased_while_replicas_deliver() {
    let mut app = TestApp::start_with(|app| {
        app.set("delivery.retry_schedule", "1h")
            .set("delivery.timeout", "60s")
    })
    .await;

    let replica = app.replica(&["--roles", "deliver"]).await;
    let platform = app.platform().await;
    let mut erased = Tenant::new(&app, &platform).await;
    let kept = Tenant::new(&app, &platform).await;
    let kept_before = named(&app, kept.user, &kept.traces).await;

    let tables: HashSet<&str> = kept_before
        .iter()
        .map(|(table, _)| {
            table
                .trim_start_matches("walhook.")
                .split('_')
                .next()
                .unwrap()
        })
        .collect();

    for table in WITH_TRACES {
        assert!(tables.contains(table), "no rows of {table}: {tables:?}");
    }

    // One request hangs while its webhook is removed, and one delivery waits for its retry.
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    erased.receiver.clear();
    erased
        .receiver
        .answer_in_turn(&[Answer::Status(500), Answer::When(gate.clone(), 200)]);
    platform.payment(erased.user, "ready").await;
    erased
        .api
        .wait_for_logs(&erased.webhook, "a failure", |logs| {
            logs[0]["outcome"] == "failed"
        })
        .await;

    platform.payment(erased.user, "ready").await;
    erased.receiver.wait_for(2).await;

    let store = app.store().await;
    let user = erased.user.to_string();
    let refused = app.walhook(&["user", "erase", &user]).await;

    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--yes"),
        "{refused:?}"
    );
    assert_eq!(app.walhook(&["user", "erase"]).await.status.code(), Some(2));

    let events = "select id::text from walhook.event where user_id = $1";
    erased.traces.extend(
        store
            .query(events, &[&user])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get::<_, String>(0)),
    );

    let printed = app.walhook_ok(&["user", "erase", &user, "--yes"]).await;

    for line in [
        "2\twebhooks with their secrets",
        "1\tAPI tokens",
        "2\tpending deliveries",
        "4\tevents",
    ] {
        assert!(printed.contains(line), "{line} is missing:\n{printed}");
    }

    // The request is answered after everything was removed.
    gate.notify_one();
    wait_until_idle(&[&app.sidecar().metrics_url.clone(), &replica.metrics_url]).await;

    // In this order: attempts in flight are recorded, or rejected, when a replica has ended.
    assert!(replica.stop().await.success());
    app.restart().await;

    let left = named(&app, erased.user, &erased.traces).await;
    let [(table, _)] = &left[..] else {
        panic!("{left:#?}")
    };

    assert_eq!(
        table, "walhook.user_addon",
        "it mirrors the platform's table"
    );
    platform
        .execute("delete from user_addon where user_id = $1", &[&erased.user])
        .await;

    eventually("the add-on to be removed too", || async {
        named(&app, erased.user, &erased.traces)
            .await
            .is_empty()
            .then_some(())
    })
    .await;

    let audited = rows(&app)
        .await
        .into_iter()
        .filter(|(_, row)| row.contains("user.erased"))
        .count();
    assert_eq!(audited, 1);

    let kept_now = named(&app, kept.user, &kept.traces).await;
    let changed: Vec<_> = kept_before
        .iter()
        .filter(|row| !kept_now.contains(row) && !kept.has_ended(row))
        .collect();
    let new: Vec<_> = kept_now
        .iter()
        .filter(|row| !kept_before.contains(row))
        .collect();

    assert!(
        changed.is_empty() && new.is_empty(),
        "rows of the other user changed: {changed:#?} are now {new:#?}"
    );
    assert!(!kept.gone.is_empty());
    platform.payment(kept.user, "ready").await;
    kept.receiver
        .wait_until("a delivery", |requests| {
            requests.iter().filter(|r| r.path == "/kept").count() >= 4
        })
        .await;
    erased
        .api
        .at(&app.sidecar().api_url)
        .get("/webhooks")
        .await
        .expect(401);

    let again = app.walhook_ok(&["user", "erase", &user, "--yes"]).await;
    assert_eq!(again, "nothing is stored about this user\n");
}
