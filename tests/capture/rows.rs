//! `source.tables.X.only` and `.extra`: which rows raise events, and which of the platform's own
//! columns they show, in both modes of capture and in a repair.

use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{Platform, TestApp, next_id, one, run_sql};

const MODES: [&str; 2] = ["wal", "trigger"];

/// Columns that the reference schema does not have.
const COLUMNS: &str = "create type kind as enum ('audio', 'video', 'text');
    create domain code as text;
    alter table release add deleted_at timestamptz, add upc text, add explicit boolean, add price numeric;
    alter table distro_queue add deleted_at timestamp, add kind kind not null default 'audio', add public_id uuid;
    alter table label add slug code;
    alter table outlet add slug code, add rank int not null default 7;
    alter table transcoder_queue_file add kind character(8) not null default 'audio';
    alter table user_addon add revoked boolean not null default false";

/// Prepares an app whose platform has [`COLUMNS`], with these settings.
async fn prepare(mode: &str, settings: &[(&str, &str)]) -> (TestApp, Platform) {
    let mut app = TestApp::prepare().await;
    app.set("source.capture", mode)
        .set("source.poll_interval", "20ms");

    for (key, value) in settings {
        app.set(&format!("source.tables.{key}"), value);
    }

    run_sql(&app.source().await, COLUMNS).await;
    let platform = app.platform().await;

    (app, platform)
}

/// Waits until the change of a last row has been processed, and returns the `data` of the events
/// before it, in order.
async fn events(app: &TestApp, platform: &Platform, user: i64) -> Vec<(String, Value)> {
    let last = platform.payment(user, "ready").await;
    let is_last =
        format!("select count(*) from walhook.event where data->>'payment_request_id' = '{last}'");
    app.wait_for_count(&is_last, 1).await;

    let statement = "select kind, data::text from walhook.event
        where kind <> 'payment.statement_ready' order by sequence";
    stored(&app.store().await, statement).await
}

async fn stored(store: &Client, statement: &str) -> Vec<(String, Value)> {
    let rows = store.query(statement, &[]).await.unwrap();
    let event = |row: &tokio_postgres::Row| {
        let data = serde_json::from_str(row.get(1)).unwrap();
        (row.get(0), data)
    };
    rows.iter().map(event).collect()
}

/// The statuses of an entry's events: the one before, and the one after.
fn statuses(events: &[(String, Value)], entry: i64) -> Vec<(Value, Value)> {
    events
        .iter()
        .filter(|(kind, data)| {
            kind == "distribution.outlet.status_changed" && data["distro_queue_id"] == entry
        })
        .map(|(_, data)| (data["previous_status"].clone(), data["status"].clone()))
        .collect()
}

#[tokio::test]
async fn a_row_that_enters_or_leaves_the_condition_is_inserted_or_deleted() {
    for mode in MODES {
        let settings = [
            ("distro_queue.only.deleted_at", "null"),
            ("distro_queue.only.kind", "audio"),
            ("release.only.deleted_at", "null"),
        ];
        let (mut app, platform) = prepare(mode, &settings).await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;
        let outlet = platform.outlet("Example Music").await;
        let [audio, video] = [next_id(), next_id()];

        app.setup().await;
        app.run().await;

        platform
            .transaction(&format!(
                "insert into distro_queue (id, release_id, outlet_id, status, kind)
                 values ({audio}, {release}, {outlet}, 'scheduled', 'audio'), ({video}, {release}, {outlet}, 'scheduled', 'video');
                 update distro_queue set status = 'batched'"
            ))
            .await;

        for change in [
            // Leaves, changes outside, and enters with the same and with another value.
            format!(
                "update distro_queue set deleted_at = now(), status = 'complete' where id = {audio}"
            ),
            format!("update distro_queue set status = 'error' where id = {audio}"),
            format!("update distro_queue set deleted_at = null where id = {audio}"),
            format!("update distro_queue set kind = 'audio' where id = {video}"),
            format!("update distro_queue set status = 'transcoding' where id = {video}"),
            format!("delete from distro_queue where id = {video}"),
            // A deleted release raises nothing, and is still looked up as it is now.
            format!(
                "update release set deleted_at = now(), review_status = 'approved' where id = {release}"
            ),
            format!(
                "update release set review_status = 'rejected', cat = 'NEW' where id = {release}"
            ),
            format!(
                "update distro_queue set status = 'complete', takedown = true where id = {audio}"
            ),
            format!("update release set deleted_at = null where id = {release}"),
            format!("update release set review_status = 'to_review' where id = {release}"),
        ] {
            platform.transaction(&change).await;
        }

        let events = events(&app, &platform, user).await;
        let moved = [
            (Value::Null, "scheduled"),
            ("scheduled".into(), "batched"),
            (Value::Null, "error"),
            ("error".into(), "complete"),
        ];
        let pairs = |pairs: &[(Value, &str)]| -> Vec<(Value, Value)> {
            pairs
                .iter()
                .map(|(from, to)| (from.clone(), (*to).into()))
                .collect()
        };

        assert_eq!(statuses(&events, audio), pairs(&moved), "{mode}");
        let moved = [(Value::Null, "batched"), ("batched".into(), "transcoding")];
        assert_eq!(statuses(&events, video), pairs(&moved), "{mode}");

        let of = |kind: &str| -> Vec<&Value> {
            let of_kind = events.iter().filter(|(found, _)| found == kind);
            of_kind.map(|(_, data)| data).collect()
        };

        assert_eq!(of("takedown.completed")[0]["release_cat"], "NEW", "{mode}");
        let reviews = of("release.review.status_changed");
        assert_eq!(reviews.len(), 1, "{mode}: {reviews:#?}");
        assert_eq!(reviews[0]["previous_status"], "rejected", "{mode}");

        let unrouted = "select count(*) from walhook.unrouted_event";
        assert_eq!(one::<i64>(&app.store().await, unrouted).await, 0, "{mode}");
        app.kill().await;
    }
}

#[tokio::test]
async fn a_repair_compares_the_rows_of_the_condition() {
    for mode in MODES {
        let (app, platform) = prepare(mode, &[("distro_queue.only.deleted_at", "null")]).await;
        let user = platform.user(&[]).await;
        let release = platform.release(platform.label(user).await).await;
        let outlet = platform.outlet("Example Music").await;
        let mut entries = Vec::new();

        for _ in 0..4 {
            entries.push(platform.distribution(release, outlet, "scheduled").await);
        }

        let [stays, leaves, enters, outside] = entries[..] else {
            unreachable!()
        };
        let deleted =
            format!("update distro_queue set deleted_at = now() where id in ({enters}, {outside})");
        platform.transaction(&deleted).await;
        app.setup().await;

        let hidden = format!(
            "update distro_queue set status = 'complete' where id in ({stays}, {leaves}, {outside});
             update distro_queue set deleted_at = now() where id = {leaves};
             update distro_queue set deleted_at = null, status = 'error' where id = {enters}"
        );
        let unseen = match mode {
            "wal" => hidden,
            _ => format!(
                "set local session_replication_role = replica; alter table distro_queue disable trigger all; {hidden}; alter table distro_queue enable trigger all"
            ),
        };
        platform.transaction(&unseen).await;

        if mode == "wal" {
            app.drop_slot().await;
        }

        let report = app.walhook_ok(&["repair", "--force"]).await;
        let statement =
            "select kind, data::text from walhook.event where repaired order by sequence";
        let events = stored(&app.store().await, statement).await;

        assert_eq!(
            statuses(&events, stays),
            [("scheduled".into(), "complete".into())],
            "{report}"
        );
        assert_eq!(
            statuses(&events, enters),
            [(Value::Null, "error".into())],
            "{report}"
        );
        assert_eq!(statuses(&events, leaves), [], "{report}");
        assert_eq!(statuses(&events, outside), [], "{report}");

        let again = app.walhook_ok(&["repair", "--force", "--dry-run"]).await;
        assert!(!again.contains("status_changed"), "{again}");
    }
}

#[tokio::test]
async fn files_and_addons_outside_the_condition_do_not_count() {
    for mode in MODES {
        let settings = [
            ("transcoder_queue_file.only.kind", "audio"),
            ("user_addon.only.revoked", "f"),
        ];
        let (mut app, platform) = prepare(mode, &settings).await;
        let with = platform.user(&["preflight_qc"]).await;
        let without = platform.user(&[]).await;
        let mut releases = Vec::new();

        for user in [with, without] {
            releases.push(platform.release(platform.label(user).await).await);
        }

        let track = platform.track(releases[0]).await;
        let [first, second] = [next_id(), next_id()];

        platform
            .transaction(&format!(
                "update release set pre_review_hold = true;
                 insert into user_addon (user_id, addon, revoked) values ({without}, 'preflight_qc', true);
                 insert into transcoder_queue (id, track_id, status) values ({first}, {track}, 'running');
                 insert into transcoder_queue_file (id, transcoder_queue_id, asset_type_id, status, kind)
                 values (1, {first}, 1, 'done', 'audio'), (2, {first}, 2, 'done', 'video')"
            ))
            .await;
        app.setup().await;
        app.run().await;

        let report = |release: i64| {
            format!(
                "insert into preflight_report (id, release_id, generated_at, profile_name, profile_version, blocking, informational, requires_feedback)
                 values ({}, {release}, now(), 'p', 1, 0, 0, 0)",
                next_id()
            )
        };
        let both = |releases: &[i64]| -> String {
            let reports: Vec<String> = releases.iter().map(|release| report(*release)).collect();
            reports.join(";")
        };

        platform.transaction(&both(&releases)).await;
        platform
            .transaction("update user_addon set revoked = not revoked")
            .await;
        platform.transaction(&both(&releases)).await;
        platform
            .transaction(&format!(
                "update transcoder_queue set status = 'complete' where id = {first};
                 update transcoder_queue_file set kind = case id when 1 then 'video' else 'audio' end;
                 insert into transcoder_queue_file (id, transcoder_queue_id, asset_type_id, status, kind) values (3, {first}, 3, 'done', 'video');
                 insert into transcoder_queue (id, track_id, status) values ({second}, {track}, 'error');
                 update transcoder_queue set status = 'error' where id = {first}"
            ))
            .await;

        let events = events(&app, &platform, with).await;
        let reported: Vec<&Value> = events
            .iter()
            .filter(|(kind, _)| kind == "release.preflight.report_ready")
            .map(|(_, data)| &data["release_id"])
            .collect();
        assert_eq!(
            reported,
            [&json!(releases[0]), &json!(releases[1])],
            "{mode}"
        );

        let files: Vec<&Value> = events
            .iter()
            .filter(|(_, data)| data["transcoder_queue_id"] == first)
            .map(|(_, data)| &data["files"])
            .collect();
        let file = |id: i64| json!([{ "asset_type_id": id, "status": "done" }]);
        assert_eq!(files, [&file(1), &file(2)], "{mode}");
        app.kill().await;
    }
}

#[tokio::test]
async fn events_show_extra_values_of_their_row_and_of_the_rows_that_they_name() {
    for mode in MODES {
        let settings = [
            ("release.extra.upc", "upc"),
            ("release.extra.explicit", "explicit"),
            ("release.extra.price", "price"),
            ("label.extra.label_slug", "slug"),
            ("outlet.extra.outlet_slug", "slug"),
            ("outlet.extra.outlet_rank", "rank"),
            ("distro_queue.extra.job", "public_id"),
        ];
        let (mut app, platform) = prepare(mode, &settings).await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;
        let outlet = platform.outlet("Example Music").await;
        let uuid = "0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11";
        let entry = next_id();

        platform
            .transaction("update release set upc = '0196006123456', price = 9.90; update label set slug = 'north'; update outlet set slug = 'example'")
            .await;
        app.setup().await;
        app.run().await;

        platform
            .transaction(&format!(
                "insert into distro_queue (id, release_id, outlet_id, status, public_id) values ({entry}, {release}, {outlet}, 'scheduled', '{uuid}')"
            ))
            .await;

        // As of each change: the later one shows what the first one has changed.
        platform
            .transaction(&format!(
                "update release set review_status = 'to_review', explicit = true, price = 'NaN', upc = repeat('9', 5000) where id = {release};
                 update outlet set rank = 8;
                 insert into distro_queue (id, release_id, status) values ({}, {release}, 'scheduled')",
                next_id()
            ))
            .await;

        let events = events(&app, &platform, user).await;
        let extra: Vec<&Value> = events.iter().map(|(_, data)| &data["extra"]).collect();
        let long = "9".repeat(1024);
        let expected = [
            json!({
                "upc": "0196006123456", "explicit": null, "price": 9.90, "label_slug": "north", "outlet_slug": "example",
                "outlet_rank": 7, "job": uuid,
            }),
            json!({ "upc": long, "explicit": true, "price": "NaN", "label_slug": "north" }),
            json!({
                "upc": long, "explicit": true, "price": "NaN", "label_slug": "north", "outlet_slug": null,
                "outlet_rank": null, "job": null,
            }),
        ];
        assert_eq!(extra, expected.iter().collect::<Vec<_>>(), "{mode}");

        // Digits are kept, and the keys are described.
        let digits = "select data::text like '%\"price\":9.90%' from walhook.event where kind <> 'payment.statement_ready' order by sequence limit 1";
        assert!(one::<bool>(&app.store().await, digits).await, "{mode}");

        let api = app.api(&user.to_string()).await;
        let types = api.get("/webhooks/event-types").await.expect(200).json();

        for (kind, data) in &events {
            let mut found = types["data"].as_array().unwrap().iter();
            let described = found
                .find(|described| described["event"] == **kind)
                .unwrap();
            let schema = jsonschema::validator_for(&described["schema"]).unwrap();

            assert!(schema.is_valid(data), "{kind}: {data}");
            assert!(schema.is_valid(&described["example"]), "{kind}");

            let keys = |value: &Value| -> Vec<String> {
                value["extra"]
                    .as_object()
                    .unwrap()
                    .keys()
                    .cloned()
                    .collect()
            };
            assert_eq!(
                keys(&described["example"]).len(),
                keys(data).len(),
                "{kind}"
            );
        }

        let openapi = api.get("/openapi.json").await.expect(200).json();
        let schema = openapi.pointer("/webhooks/release.distributed/post/requestBody/content/application~1json/schema/properties/data");
        assert!(schema.unwrap()["properties"]["extra"]["properties"]["upc"].is_object());
        app.kill().await;
    }
}

#[tokio::test]
async fn setup_puts_the_columns_of_a_condition_into_an_index_that_it_has_built() {
    let (mut app, platform) = prepare("wal", &[]).await;
    app.set("source.replica_identity", "index");
    app.setup().await;

    app.set("source.tables.distro_queue.only.kind", "audio");
    let check = app.walhook(&["check"]).await;
    let check = String::from_utf8(check.stdout).unwrap();
    assert!(
        check.contains(
            "fail  replica identity of public.distro_queue: does not cover id, status, kind"
        ),
        "{check}"
    );

    let done = app.walhook_ok(&["setup"]).await;
    assert!(
        done.contains("replica identity index over id, status, kind"),
        "{done}"
    );
    app.run().await;

    let user = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;
    let outlet = platform.outlet("Example Music").await;
    let entry = platform.distribution(release, outlet, "scheduled").await;

    for change in ["kind = 'video'", "status = 'batched'", "kind = 'audio'"] {
        platform
            .transaction(&format!(
                "update distro_queue set {change} where id = {entry}"
            ))
            .await;
    }

    let events = events(&app, &platform, user).await;
    let expected = [
        (Value::Null, "scheduled".into()),
        (Value::Null, "batched".into()),
    ];
    assert_eq!(statuses(&events, entry), expected);
}

const GUIDE: &str = include_str!("../../docs/integrators.md");

/// Returns the first code block of a language below a heading of the integrator's guide.
fn recipe(heading: &str, language: &str) -> &'static str {
    let section = GUIDE
        .split_once(&format!("\n## {heading}\n"))
        .expect(heading)
        .1;
    let section = section.split("\n## ").next().unwrap();
    let opening = format!("```{language}\n");
    let block = section.split_once(&opening).expect(language).1;
    block.split("\n```").next().unwrap()
}

/// Uses the guide's configuration.
fn use_recipe(app: &mut TestApp, heading: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), recipe(heading, "toml")).unwrap();
    app.set_environment("WALHOOK_CONFIG", &file.path().display().to_string());
    file
}

#[tokio::test]
async fn times_can_stand_for_statuses() {
    const HEADING: &str = "Statuses from timestamps";

    for mode in MODES {
        let (mut app, platform) = prepare(mode, &[]).await;
        let _file = use_recipe(&mut app, HEADING);
        let user = platform.user(&[]).await;
        let release = platform.release(platform.label(user).await).await;
        let entry = next_id();

        platform
            .transaction("alter table distro_queue drop status, add delivered_at timestamptz")
            .await;
        app.setup().await;
        app.run().await;

        for change in [
            format!("insert into distro_queue (id, release_id) values ({entry}, {release})"),
            "update distro_queue set delivered_at = now()".to_owned(),
            "update distro_queue set delivered_at = now() + '1 s'".to_owned(),
        ] {
            platform.transaction(&change).await;
        }

        let found = events(&app, &platform, user).await;
        let expected = [
            (Value::Null, "scheduled".into()),
            ("scheduled".into(), "complete".into()),
        ];
        assert_eq!(statuses(&found, entry), expected, "{mode}");

        let completed = found
            .iter()
            .filter(|(kind, _)| kind == "delivery.completed");
        assert_eq!(completed.count(), 1, "{mode}");
        app.kill().await;
    }
}

#[tokio::test]
async fn a_status_can_be_kept_from_several_times() {
    for mode in MODES {
        let (mut app, platform) = prepare(mode, &[]).await;
        let user = platform.user(&[]).await;
        let release = platform.release(platform.label(user).await).await;
        let entry = next_id();

        platform
            .transaction(&format!(
                "alter table distro_queue drop status, add delivered_at timestamptz, add failed_at timestamptz;
                 insert into distro_queue (id, release_id) values ({entry}, {release})"
            ))
            .await;
        let statements = recipe("Statuses from timestamps", "sql").replace("jobs", "distro_queue");
        platform
            .transaction(statements.trim_end().trim_end_matches(';'))
            .await;
        app.setup().await;
        app.run().await;

        platform
            .transaction("update distro_queue set delivered_at = now()")
            .await;
        platform
            .transaction("update distro_queue set failed_at = now()")
            .await;

        let found = events(&app, &platform, user).await;
        let expected = [
            ("scheduled".into(), "complete".into()),
            ("complete".into(), "error".into()),
        ];
        assert_eq!(statuses(&found, entry), expected, "{mode}");
        app.kill().await;
    }
}

#[tokio::test]
async fn an_enum_can_stand_for_a_table() {
    for mode in MODES {
        let (mut app, platform) = prepare(mode, &[]).await;
        let _file = use_recipe(&mut app, "An enum instead of a table");
        let user = platform.user(&[]).await;
        let release = platform.release(platform.label(user).await).await;
        let [first, second] = [next_id(), next_id()];

        platform
            .transaction(
                "create type store as enum ('spotify', 'deezer', 'tidal');
                 alter table distro_queue drop outlet_id, add store store; drop table outlet",
            )
            .await;
        app.setup().await;
        app.run().await;

        let insert = |id: i64, store: &str| {
            format!(
                "insert into distro_queue (id, release_id, store, status) values ({id}, {release}, '{store}', 'scheduled')"
            )
        };
        platform.transaction(&insert(first, "deezer")).await;

        // A label before the others moves the places of all, but no ids.
        run_sql(
            &platform.client,
            "alter type store add value 'amazon' before 'spotify'",
        )
        .await;
        platform.transaction(&insert(second, "deezer")).await;
        platform.transaction(&insert(next_id(), "amazon")).await;

        let found = events(&app, &platform, user).await;
        let outlets: Vec<(&Value, &Value)> = found
            .iter()
            .map(|(_, data)| (&data["outlet_id"], &data["outlet_name"]))
            .collect();
        assert_eq!(outlets, [(&json!(2), &json!("Deezer")); 2], "{mode}");

        let unrouted = "select string_agg(reason, ' ') from walhook.unrouted_event";
        assert_eq!(
            one::<String>(&app.store().await, unrouted).await,
            "malformed_row",
            "{mode}"
        );
        app.kill().await;
    }
}

#[tokio::test]
async fn a_release_that_was_distributed_at_a_time_before_setup_is_not_distributed_again() {
    let settings = [
        ("release.columns.delivery_status", "distributed_at"),
        ("release.values.delivery_status.not null", "distributed"),
    ];
    let (mut app, platform) = prepare("wal", &settings).await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let [before, after] = [platform.release(label).await, platform.release(label).await];

    platform
        .transaction(&format!(
            "alter table release add distributed_at timestamptz; update release set distributed_at = now() where id = {before}"
        ))
        .await;
    app.setup().await;
    app.run().await;

    platform
        .transaction("update release set distributed_at = null")
        .await;
    platform
        .transaction("update release set distributed_at = now()")
        .await;

    let found = events(&app, &platform, user).await;
    let distributed: Vec<&Value> = found
        .iter()
        .filter(|(kind, _)| kind == "release.distributed")
        .map(|(_, data)| &data["release_id"])
        .collect();
    assert_eq!(distributed, [&json!(after)]);
}
