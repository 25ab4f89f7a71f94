//! The whole example of the integrator's guide: a platform with its own tables, columns, values and
//! users is mapped by the guide's configuration, with the guide's privileges, in both capture
//! modes.

use std::cell::Cell;
use std::path::Path;

use crate::support::{Api, Platform, Received, Receiver, SmtpSink, TestApp};
use jsonschema::Validator;
use serde_json::{Value, json};
use tokio_postgres::Client;
use walhook::domain::event::EventKind;
use walhook::events::rule;
use walhook::postgres;
use walhook::private_postgres::free_port;

const GUIDE: &str = include_str!("../../docs/integrators.md");
const ANNA: &str = "7f0c1d52-7c1b-4c36-9d0e-0a4b6c1d2e01";
const BEN: &str = "7f0c1d52-7c1b-4c36-9d0e-0a4b6c1d2e02";
const CLEO: &str = "7f0c1d52-7c1b-4c36-9d0e-0a4b6c1d2e03";

/// Returns code block `number` of a language in the guide's example.
fn block(language: &str, number: usize) -> &'static str {
    let example = GUIDE
        .split_once("\n## A complete example\n")
        .expect("the example")
        .1
        .split("\n## ")
        .next();

    let opening = format!("```{language}\n");
    let found = example
        .expect("an end")
        .split(&opening)
        .nth(number)
        .and_then(|rest| rest.split("\n```").next());
    found.unwrap_or_else(|| panic!("no block {number} of {language} in the example"))
}

/// Two accounts: Anna's has Ben as a member and all add-ons; Cleo's has no add-on.
fn people() -> String {
    format!(
        "insert into identity.users values ('{ANNA}', 'anna@example.com'), ('{BEN}', 'ben@example.com'), ('{CLEO}', 'cleo@example.com');
         insert into identity.accounts values (1, 'One Ltd'), (2, 'Two Ltd');
         insert into identity.members values (1, '{ANNA}', 1), (1, '{BEN}', 2), (2, '{CLEO}', 1);
         insert into identity.plan_features values ('pro', 10), ('pro', 20), ('pro', 30);
         insert into identity.subscriptions values (1, 'pro', 1), (2, 'pro', 0), (2, 'basic', 1);
         insert into catalog.imprints values (31, 1), (32, 2);
         insert into dist.stores values (5, 'Example Music'), (6, null);
         insert into catalog.albums values
             (100, 31, 'ONE-1', 'First', 'NEW', 1, null, 1), (200, 32, null, 'Second', 'NEW', 1, null, 1),
             (300, 31, 'ONE-3', 'Old', 'OK', 4, null, 0);
         insert into \"Media\".\"Tracks\" values (700, 100, 'XXA012600001'), (800, 200, 'XXA012600002');"
    )
}

/// A user with a webhook for all events.
struct Tenant {
    receiver: Receiver,
    secret: String,
    api: Api,
    /// How many deliveries were checked.
    seen: Cell<usize>,
}

impl Tenant {
    async fn new(app: &TestApp, user: &str) -> Tenant {
        let receiver = Receiver::start().await;
        let api = app.api(user).await;
        let all: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let (_, secret) = api.create_webhook(&receiver.url("/hook"), &all).await;

        Tenant {
            receiver,
            secret,
            api,
            seen: Cell::new(0),
        }
    }

    /// Asserts that exactly these deliveries arrived since the last call, and that each is signed
    /// and valid by its schema.
    async fn expect(&self, expected: &[(&str, Value)]) {
        let seen_before = self.seen.get();
        let mut received = self
            .receiver
            .wait_for(seen_before + expected.len())
            .await
            .split_off(seen_before);

        for (event, data) in expected {
            let index = received
                .iter()
                .position(|delivery| delivery.event() == *event && delivery.data() == *data);
            let index = index
                .unwrap_or_else(|| panic!("no {event} with {data} among {:#?}", seen(&received)));
            let delivery = received.remove(index);

            delivery.assert_sound(&self.secret);
            assert!(schema(event).is_valid(data), "{event}: {data}");
        }

        assert!(received.is_empty(), "unexpected: {:#?}", seen(&received));
        self.seen.set(seen_before + expected.len());
    }
}

fn seen(received: &[Received]) -> Vec<(String, Value)> {
    received
        .iter()
        .map(|delivery| (delivery.event().to_owned(), delivery.data()))
        .collect()
}

fn schema(event: &str) -> Validator {
    let schema = (rule(event.parse().expect("an event's name")).schema)();
    jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .expect("a schema")
}

/// Creates the platform in its own database with its own owner, and a role for Walhook. Walhook has
/// not run yet.
async fn prepare() -> (TestApp, Platform, String) {
    let mut app = TestApp::prepare().await;
    let database = format!("{}_own", app.name);
    let owner = format!("{}_owner", app.name);
    let role = format!("{}_role", app.name);

    app.server
        .create_database(&database)
        .await
        .expect("a database");
    app.source_url = app.server.url(&database);

    let client = app.source().await;
    let roles = format!(
        "create role {owner}; alter database {database} owner to {owner}; create role {role} login replication password 'secret';
         alter database {}_store owner to {role}",
        app.name
    );

    run(&client, &roles).await;
    run(
        &client,
        &format!("set role {owner}; {}; {}", block("sql", 1), people()),
    )
    .await;
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "mapping-{}-{}.toml",
        std::process::id(),
        app.name
    ));
    std::fs::write(&file, block("toml", 1)).expect("a file");

    let as_role = |url: &str| url.replacen("postgres@", &format!("{role}:secret@"), 1);
    let source = as_role(&app.source_url);
    let store = as_role(&app.store_url);

    app.set("source.url", &source).set("store.url", &store);
    app.set_environment("WALHOOK_CONFIG", &file.display().to_string());

    let granted = grants(&app, &role).await;
    let of_guide = block("sql", 2).replace("\"walhook\"", &format!("\"{role}\""));
    for line in of_guide.lines() {
        assert!(granted.contains(line), "{line} in {granted}");
    }

    run(&client, &granted).await;
    (app, Platform::new(client), owner)
}

/// Returns the grants that `walhook setup --print` prints.
async fn grants(app: &TestApp, role: &str) -> String {
    let printed = app.walhook_ok(&["setup", "--print"]).await;
    let to_role = |line: &&str| line.starts_with("grant ") && line.contains(role);
    let granted: Vec<&str> = printed.lines().filter(to_role).collect();
    granted.join("\n")
}

async fn run(client: &Client, statements: &str) {
    client
        .batch_execute(statements)
        .await
        .unwrap_or_else(|error| panic!("{}", postgres::describe(&error)));
}

/// Drops the slot as soon as the server has noticed that its reader is gone.
async fn drop_slot(client: &Client, name: &str) {
    let drop = || async {
        client
            .execute("select pg_drop_replication_slot($1)", &[&name])
            .await
            .ok()
    };
    crate::support::eventually("the slot to be released", drop).await;
}

#[tokio::test]
async fn a_platform_with_other_names_is_mapped_by_configuration_alone() {
    if !SmtpSink::is_available() {
        return;
    }

    let (app, platform, owner) = prepare().await;
    let role = format!("{}_role", app.name);

    // As in docs/install.md: Walhook's role is a member of the owner only while setup runs.
    let database = format!("{}_own", app.name);
    run(
        &platform.client,
        &format!(
            "reset role; grant {owner} to {role}; grant create on database {database} to {role}"
        ),
    )
    .await;

    app.walhook_ok(&["setup"]).await;
    let revoked = format!(
        "revoke {owner} from {role}; revoke create on database {database} from {role}; set role {owner}"
    );
    run(&platform.client, &revoked).await;
    raises_everything(app, platform).await;
}

#[tokio::test]
async fn the_same_platform_is_captured_by_triggers() {
    if !SmtpSink::is_available() {
        return;
    }

    let (mut app, platform, owner) = prepare().await;
    let role = format!("{}_role", app.name);

    app.set("source.capture", "trigger")
        .set("source.poll_interval", "20ms");
    let granted = grants(&app, &role).await;
    run(
        &platform.client,
        &format!("reset role; alter role {role} noreplication; {granted}; set role {owner}"),
    )
    .await;
    app.walhook_ok(&["setup"]).await;

    // This privilege is only needed for setup.
    let database = format!("{}_own", app.name);
    run(
        &platform.client,
        &format!("reset role; revoke create on database {database} from {role}; set role {owner}"),
    )
    .await;
    raises_everything(app, platform).await;
}

async fn raises_everything(mut app: TestApp, platform: Platform) {
    let port = free_port().expect("a port");
    let mail = SmtpSink::start(port, &[]).await;

    app.set("mail.smtp_url", &format!("smtp://127.0.0.1:{port}"))
        .set("mail.from", "webhooks@example.com");
    app.set_fast_retries()
        .set("disable.threshold", "4")
        .set("disable.min_duration", "0s");

    let checked = app.walhook_ok(&["check"]).await;
    assert!(
        checked.contains("ok    source.lookups.user_addon: the primary accepts its SQL"),
        "{checked}"
    );
    app.run().await;

    let anna = Tenant::new(&app, ANNA).await;
    let ben = Tenant::new(&app, BEN).await;
    let cleo = Tenant::new(&app, CLEO).await;

    distribution(&platform, &anna).await;
    releases(&platform, &anna).await;
    transcodes(&platform, &anna).await;
    payments(&platform, &anna).await;
    with_addons(&platform, &anna).await;
    without_addons(&platform, &cleo).await;
    another_owner(&platform, &anna, &ben).await;

    for tenant in [&anna, &ben, &cleo] {
        tenant.expect(&[]).await;
    }

    owner_is_notified(&platform, &cleo, &mail).await;

    if app
        .walhook_ok(&["config"])
        .await
        .contains("capture = \"wal\"")
    {
        repaired(&mut app, &platform, &anna).await;
    }

    let unrouted = app
        .store()
        .await
        .query_one("select count(*) from walhook.unrouted_event", &[])
        .await
        .unwrap();

    assert_eq!(unrouted.get::<_, i64>(0), 0);
}

async fn distribution(platform: &Platform, anna: &Tenant) {
    let data = |job: i64, store: Option<(i64, Option<&str>)>, more: Value| {
        let mut data = json!({
            "distro_queue_id": job, "release_id": 100, "label_id": 31, "release_cat": "ONE-1",
            "outlet_id": store.map(|(id, _)| id), "outlet_name": store.and_then(|(_, name)| name),
        });

        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        data
    };

    let moved = |job, store, from: Option<&str>, to: &str| {
        (
            "distribution.outlet.status_changed",
            data(job, store, json!({ "previous_status": from, "status": to })),
        )
    };

    platform.transaction("insert into dist.jobs values (1, 100, 5, 10, 'DELIVERY', null), (2, 100, 6, 20, 'TAKEDOWN', null), (3, 100, null, 77, 'DELIVERY', null)").await;
    platform
        .transaction("update dist.jobs set state = 30 where job_no < 3")
        .await;
    platform
        .transaction("update dist.jobs set state = 92, last_error = 'no artwork' where job_no = 3")
        .await;

    let music = Some((5, Some("Example Music")));
    let unnamed = Some((6, None));

    anna.expect(&[
        moved(1, music, None, "scheduled"),
        moved(2, unnamed, None, "transcoding"),
        moved(3, None, None, "77"),
        moved(1, music, Some("scheduled"), "complete"),
        (
            "delivery.completed",
            data(1, music, json!({ "status": "complete" })),
        ),
        moved(2, unnamed, Some("transcoding"), "complete"),
        (
            "takedown.completed",
            data(
                2,
                unnamed,
                json!({ "status": "complete", "takedown": true }),
            ),
        ),
        moved(3, None, None, "rejected"),
        (
            "delivery.failed",
            data(
                3,
                None,
                json!({ "status": "rejected", "message": "no artwork" }),
            ),
        ),
    ])
    .await;
}

async fn releases(platform: &Platform, anna: &Tenant) {
    platform
        .transaction("update catalog.albums set review = 'IN_REVIEW' where album_no = 100")
        .await;
    let changes = "review = 'CHANGES', problems = array['blurred cover', 'title']";

    platform
        .transaction(&format!(
            "update catalog.albums set {changes} where album_no = 100"
        ))
        .await;
    platform
        .transaction("update catalog.albums set shipping = 4")
        .await;

    let data = |more: Value| {
        let mut data = json!({ "release_id": 100, "label_id": 31, "release_cat": "ONE-1", "release_title": "First" });
        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        data
    };

    let issues = json!(["blurred cover", "title"]);
    anna.expect(&[
        ("release.review.status_changed", data(json!({ "previous_status": "draft", "new_status": "to_review" }))),
        (
            "release.review.status_changed",
            data(json!({ "previous_status": "to_review", "new_status": "require_changes", "review_issues": issues })),
        ),
        // The old album was distributed before setup.
        ("release.distributed", data(json!({ "delivery_status": "distributed" }))),
    ])
    .await;
}

async fn transcodes(platform: &Platform, anna: &Tenant) {
    platform
        .transaction(
            "insert into \"Media\".\"EncodeJobs\" values (900, 700, 0), (901, 700, 0);
             insert into \"Media\".\"EncodedFiles\" values (41, 900, 8, 1), (42, 900, 9, 1), (43, 901, 8, 3);
             update \"Media\".\"EncodeJobs\" set \"State\" = 1 where \"JobId\" = 900;
             update \"Media\".\"EncodeJobs\" set \"State\" = 2 where \"JobId\" = 901",
        )
        .await;

    let data = |job: i64, status: &str, files: Value| {
        json!({
            "release_id": 100, "label_id": 31, "track_id": 700, "transcoder_queue_id": job, "status": status,
            "status_message": format!("transcode_{status}"), "files": files,
        })
    };

    let file = |format: i64, status: &str| json!({ "asset_type_id": format, "status": status });
    anna.expect(&[
        (
            "transcode.completed",
            data(
                900,
                "complete",
                json!([file(8, "complete"), file(9, "complete")]),
            ),
        ),
        (
            "transcode.failed",
            data(901, "incomplete", json!([file(8, "error")])),
        ),
    ])
    .await;
}

fn statement(
    id: i64,
    invoice: &str,
    amount: f64,
    usd: f64,
    currency: &str,
) -> (&'static str, Value) {
    let data = json!({
        "payment_request_id": id, "invoice_number": invoice, "period": "2026-03-31", "amount": amount,
        "total_due_usd": usd, "currency": currency,
    });
    ("payment.statement_ready", data)
}

async fn payments(platform: &Platform, anna: &Tenant) {
    let insert = "insert into billing.statements values (61, 1, 'S-61', '2026-03-31', 12050, 13199, 'EUR', false)";
    platform.transaction(insert).await;
    platform
        .transaction("update billing.statements set cents = 12051")
        .await;
    platform
        .transaction("update billing.statements set released = true")
        .await;
    anna.expect(&[statement(61, "S-61", 120.51, 131.99, "EUR")])
        .await;
}

async fn with_addons(platform: &Platform, anna: &Tenant) {
    platform
        .transaction("insert into quality.reports values (71, 100, null, 'strict', 3, 1, 4, 2)")
        .await;
    platform
        .transaction("update quality.reports set finished_at = 1772355900")
        .await;

    let flag = "insert into quality.anomalies values (81, 5, 700, 3, true, 1772355900123, null, 18250, '2026-03-01 10:05:00+01', null)";
    platform.transaction(flag).await;

    let resolve = "update quality.anomalies set open = false, closed_at = '2026-03-02 00:00:00+00'";
    platform.transaction(resolve).await;

    let report = json!({
        "release_id": 100, "label_id": 31, "release_cat": "ONE-1", "release_title": "First",
        "generated_at": "2026-03-01T09:05:00.000000+00:00", "profile": { "name": "strict", "version": 3 },
        "counts": { "blocking": 1, "informational": 4, "requires_feedback": 2 },
    });

    let flag = |more: Value| {
        let mut data = json!({
            "flag_id": 81, "dsp": "example music", "isrc": "XXA012600001", "release_id": 100, "track_id": 700,
            "severity": "high", "first_detected_at": "2026-03-01T09:05:00.123000+00:00", "last_detected_at": null,
            "estimated_affected_streams": 18250, "published_at": "2026-03-01T09:05:00.000000+00:00",
        });

        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        data
    };

    let resolved_at = "2026-03-02T00:00:00.000000+00:00";
    anna.expect(&[
        ("release.preflight.report_ready", report),
        (
            "stream_radar.flag_created",
            flag(json!({ "status": "active", "transition": "published", "resolved_at": null })),
        ),
        (
            "stream_radar.flag_resolved",
            flag(json!({ "status": "resolved", "resolved_at": resolved_at })),
        ),
    ])
    .await;
}

/// The last event proves that no others were raised before it.
async fn without_addons(platform: &Platform, cleo: &Tenant) {
    platform
        .transaction(
            "insert into quality.reports values (72, 200, 1772355900, 'strict', 3, 1, 4, 2)",
        )
        .await;
    let flag =
        "insert into quality.anomalies values (82, 5, 800, 1, true, null, null, null, now(), null)";

    platform.transaction(flag).await;
    let ready =
        "insert into billing.statements values (62, 2, 'S-62', '2026-03-31', 100, 7, null, true)";

    platform.transaction(ready).await;
    let data = json!({
        "release_id": 200, "label_id": 32, "release_cat": null, "release_title": "Second", "delivery_status": "distributed",
    });

    cleo.expect(&[
        ("release.distributed", data),
        statement(62, "S-62", 1.0, 0.07, "USD"),
    ])
    .await;
}

async fn another_owner(platform: &Platform, anna: &Tenant, ben: &Tenant) {
    platform
        .transaction("update identity.members set role = 3 - role where account_no = 1")
        .await;
    platform
        .transaction("update catalog.albums set review = 'OK' where album_no = 100")
        .await;

    let data = json!({
        "release_id": 100, "label_id": 31, "release_cat": "ONE-1", "release_title": "First",
        "previous_status": "require_changes", "new_status": "approved",
    });

    ben.expect(&[("release.review.status_changed", data)]).await;
    platform
        .transaction("update identity.members set role = 3 - role where account_no = 1")
        .await;
    platform
        .transaction("insert into billing.statements values (63, 1, 'S-63', '2026-03-31', 1, 1, 'USD', true)")
        .await;
    anna.expect(&[statement(63, "S-63", 0.01, 0.01, "USD")])
        .await;
}

/// A repair finds the missed transitions and no others: values have the same form in the WAL and in
/// the tables.
async fn repaired(app: &mut TestApp, platform: &Platform, anna: &Tenant) {
    app.stop().await;
    run(&platform.client, "reset role").await;
    drop_slot(&platform.client, &app.name).await;
    platform
        .transaction("insert into dist.jobs values (4, 100, 5, 30, 'TAKEDOWN', null)")
        .await;
    platform
        .transaction("insert into billing.statements values (65, 1, 'S-65', '2026-03-31', 50, 55, 'EUR', true)")
        .await;
    app.walhook_ok(&["repair"]).await;
    app.run().await;

    let job = json!({
        "distro_queue_id": 4, "release_id": 100, "label_id": 31, "release_cat": "ONE-1", "outlet_id": 5,
        "outlet_name": "Example Music", "status": "complete",
    });

    let with = |key: &str, value: Value| {
        let mut job = job.clone();
        job[key] = value;
        job
    };

    anna.expect(&[
        (
            "distribution.outlet.status_changed",
            with("previous_status", Value::Null),
        ),
        ("takedown.completed", with("takedown", json!(true))),
        statement(65, "S-65", 0.5, 0.55, "EUR"),
    ])
    .await;
}

/// A platform without Preflight QC and Stream Radar, where every user has every add-on.
#[tokio::test]
async fn tables_that_a_platform_lacks_can_be_marked_absent() {
    let mut app = TestApp::prepare().await;
    let platform = app.platform().await;

    platform
        .transaction(
            "drop table preflight_report, stream_radar_flag, transcoder_queue_file, user_addon",
        )
        .await;

    for table in [
        "preflight_report",
        "stream_radar_flag",
        "transcoder_queue_file",
    ] {
        app.set(&format!("source.tables.{table}.absent"), "true");
    }

    let everybody = "select u as user_id, a as addon from unnest($1) u, unnest(array['preflight_qc', 'stream_radar']) a";
    app.set("source.lookups.user_addon", everybody);
    app.setup().await;
    app.walhook_ok(&["check"]).await;
    app.run().await;

    let user = platform.client.query_one(
        "insert into app_user values (1, 'x@example.com') returning id::text",
        &[],
    );
    let tenant = Tenant::new(&app, user.await.unwrap().get(0)).await;
    let label = platform.label(1).await;
    let release = platform.release(label).await;
    let track = platform.track(release).await;

    platform
        .transaction(&format!(
            "insert into transcoder_queue values (5, {track}, 'complete')"
        ))
        .await;
    let data = json!({
        "release_id": release, "label_id": label, "track_id": track, "transcoder_queue_id": 5, "status": "complete",
        "status_message": "transcode_complete", "files": [],
    });

    tenant.expect(&[("transcode.completed", data)]).await;
    app.stop().await;
    drop_slot(&platform.client, &app.name).await;
    app.walhook_ok(&["repair"]).await;
    app.walhook_ok(&["teardown", "--yes"]).await;
}

async fn owner_is_notified(platform: &Platform, cleo: &Tenant, mail: &SmtpSink) {
    cleo.receiver.answer_status(500);
    platform
        .transaction(
            "insert into billing.statements values (64, 2, 'S-64', null, 1, 1, null, true)",
        )
        .await;

    let disabled = || async {
        cleo.api
            .webhooks()
            .await
            .into_iter()
            .find(|webhook| webhook["active"] == false)
    };

    crate::support::eventually("the webhook to be disabled", disabled).await;
    let mails = mail.wait_for("taken", 2).await;
    assert!(
        mails
            .iter()
            .all(|mail| mail["recipients"] == json!(["cleo@example.com"])),
        "{mails:?}"
    );

    assert!(
        mails
            .iter()
            .any(|mail| mail["subject"] == "Webhook disabled: test"),
        "{mails:?}"
    );
}
