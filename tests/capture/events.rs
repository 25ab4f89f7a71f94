//! Each of the twelve events, from a committed row to the bytes that its owner's receiver gets,
//! field by field. No other user gets them.

use crate::support::{Platform, Received, Receiver, TestApp};
use serde_json::{Value, json};

const ALL_EVENTS: [&str; 12] = [
    "delivery.completed",
    "delivery.failed",
    "takedown.completed",
    "release.review.status_changed",
    "release.preflight.report_ready",
    "stream_radar.flag_created",
    "stream_radar.flag_resolved",
    "release.distributed",
    "payment.statement_ready",
    "transcode.completed",
    "transcode.failed",
    "distribution.outlet.status_changed",
];

/// A user with a label, and a webhook for all events with its own receiver.
struct Tenant {
    user: i64,
    label: i64,
    receiver: Receiver,
    webhook: String,
    secret: String,
}

impl Tenant {
    async fn new(app: &TestApp, platform: &Platform, addons: &[&str]) -> Tenant {
        let user = platform.user(addons).await;
        let label = platform.label(user).await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let (webhook, secret) = api
            .create_webhook(&receiver.url("/hook"), &ALL_EVENTS)
            .await;

        Tenant {
            user,
            label,
            receiver,
            webhook,
            secret,
        }
    }

    /// Waits for `count` deliveries and returns all. Checks the headers and the signature of each.
    async fn received(&self, count: usize) -> Vec<Received> {
        let received = self.receiver.wait_for(count).await;
        for delivery in &received {
            delivery.assert_sound(&self.secret);
            assert_eq!(delivery.header("x-webhook-id"), self.webhook);
            assert_eq!(delivery.header("user-agent"), "Walhook-Webhooks/1.0");
            assert_eq!(delivery.attempt(), 1);
            assert!(delivery.headers.get("x-webhook-test").is_none());
        }

        received
    }
}

struct World {
    /// Runs until the end.
    _app: TestApp,
    platform: Platform,
    tenant: Tenant,
    other: Tenant,
}

impl World {
    async fn new() -> World {
        let app = TestApp::start().await;
        let platform = app.platform().await;
        let tenant = Tenant::new(&app, &platform, &["preflight_qc", "stream_radar"]).await;
        let other = Tenant::new(&app, &platform, &["preflight_qc", "stream_radar"]).await;

        World {
            _app: app,
            platform,
            tenant,
            other,
        }
    }

    /// Asserts that the first tenant received exactly the expected events and the other none. A
    /// last event of each proves that no others arrived before it.
    async fn expect(&self, expected: &[(&str, Value)]) -> Vec<Received> {
        self.platform.payment(self.tenant.user, "ready").await;
        self.platform.payment(self.other.user, "ready").await;

        let is_last = |delivery: &Received| delivery.event() == "payment.statement_ready";
        let received = self.tenant.received(expected.len() + 1).await;
        let others = self.other.received(1).await;

        assert_eq!(
            others.iter().map(Received::event).collect::<Vec<_>>(),
            ["payment.statement_ready"]
        );
        let received: Vec<Received> = received
            .into_iter()
            .filter(|delivery| !is_last(delivery))
            .collect();
        let mut found: Vec<(String, Value)> = received
            .iter()
            .map(|delivery| (delivery.event().to_owned(), delivery.data()))
            .collect();

        for (event, data) in expected {
            let index = found
                .iter()
                .position(|(name, found)| name == event && found == data);
            let index = index.unwrap_or_else(|| panic!("no {event} with {data} among {found:#?}"));
            found.remove(index);
        }

        assert!(found.is_empty(), "unexpected: {found:#?}");
        received
    }
}

/// The keys of `data` in the order in which they were sent.
fn keys(delivery: &Received) -> Vec<String> {
    let body: Value = delivery.json();
    body["data"].as_object().unwrap().keys().cloned().collect()
}

#[tokio::test]
async fn distributions_raise_each_transition_and_their_completion() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Example Music").await;
    let entry = platform.distribution(release, outlet, "scheduled").await;

    for status in ["transcoding", "batched", "complete", "complete"] {
        platform.set_distribution_status(entry, status).await;
    }

    platform
        .rolled_back(&format!(
            "update distro_queue set status = 'error' where id = {entry}"
        ))
        .await;
    platform
        .execute(
            "update distro_queue set message = 'x' where id = $1",
            &[&entry],
        )
        .await;

    let moved = |previous: Value, status: &str| {
        let data = json!({
            "distro_queue_id": entry, "release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
            "outlet_id": outlet, "outlet_name": "Example Music", "previous_status": previous, "status": status,
        });
        ("distribution.outlet.status_changed", data)
    };

    let completed = json!({
        "distro_queue_id": entry, "release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
        "outlet_id": outlet, "outlet_name": "Example Music", "status": "complete",
    });

    let received = world
        .expect(&[
            moved(Value::Null, "scheduled"),
            moved("scheduled".into(), "transcoding"),
            moved("transcoding".into(), "batched"),
            moved("batched".into(), "complete"),
            ("delivery.completed", completed),
        ])
        .await;

    let completed = received
        .iter()
        .find(|delivery| delivery.event() == "delivery.completed")
        .unwrap();
    assert_eq!(
        keys(completed),
        [
            "distro_queue_id",
            "release_id",
            "label_id",
            "release_cat",
            "outlet_id",
            "outlet_name",
            "status"
        ]
    );
}

#[tokio::test]
async fn each_failed_status_raises_a_failure_with_the_message() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;

    platform
        .execute("update release set cat = null where id = $1", &[&release])
        .await;
    let insert = "insert into distro_queue (id, release_id, outlet_id, status, message) values ($1, $2, null, $3, $4)";
    let entry = crate::support::next_id();

    platform
        .execute(
            insert,
            &[&entry, &release, &"invented", &Option::<&str>::None],
        )
        .await;

    let base = json!({
        "distro_queue_id": entry, "release_id": release, "label_id": label, "release_cat": null,
        "outlet_id": null, "outlet_name": null,
    });

    let with = |more: Value| {
        let mut data = base.clone();
        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        data
    };

    let changed = "distribution.outlet.status_changed";
    let mut expected = vec![(
        changed,
        with(json!({"previous_status": null, "status": "invented"})),
    )];

    // An unknown previous status is null. The message is the row's at that change.
    let mut previous = Value::Null;

    for status in ["error", "fault", "rejected", "batch_exception"] {
        let update = "update distro_queue set status = $2, message = $3 where id = $1";
        platform
            .execute(update, &[&entry, &status, &format!("because of {status}")])
            .await;
        expected.push((
            changed,
            with(json!({"previous_status": previous, "status": status})),
        ));

        let message = format!("because of {status}");
        expected.push((
            "delivery.failed",
            with(json!({"status": status, "message": message})),
        ));
        previous = status.into();
    }

    world.expect(&expected).await;
}

#[tokio::test]
async fn takedowns_raise_their_own_completion_and_the_common_failure() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Shop").await;
    let entry = platform.distribution(release, outlet, "scheduled").await;

    platform
        .execute(
            "update distro_queue set takedown = true where id = $1",
            &[&entry],
        )
        .await;

    platform.set_distribution_status(entry, "error").await;
    platform.set_distribution_status(entry, "complete").await;

    let base = |more: Value| {
        let mut data = json!({
            "distro_queue_id": entry, "release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
            "outlet_id": outlet, "outlet_name": "Shop",
        });

        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        data
    };

    let changed = "distribution.outlet.status_changed";
    let received = world
        .expect(&[
            (
                changed,
                base(json!({"previous_status": null, "status": "scheduled"})),
            ),
            (
                changed,
                base(json!({"previous_status": "scheduled", "status": "error"})),
            ),
            (
                "delivery.failed",
                base(json!({"status": "error", "message": null})),
            ),
            (
                changed,
                base(json!({"previous_status": "error", "status": "complete"})),
            ),
            (
                "takedown.completed",
                base(json!({"status": "complete", "takedown": true})),
            ),
        ])
        .await;

    let takedown = received
        .iter()
        .find(|delivery| delivery.event() == "takedown.completed")
        .unwrap();
    assert_eq!(keys(takedown).last().unwrap(), "takedown");
}

#[tokio::test]
async fn review_changes_have_issues_only_if_changes_are_required_or_it_is_rejected() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;

    let moved = |previous: &str, new: &str, issues: Option<Value>| {
        let mut data = json!({
            "release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
            "release_title": format!("Release {release}"), "previous_status": previous, "new_status": new,
        });

        if let Some(issues) = issues {
            data["review_issues"] = issues;
        }

        ("release.review.status_changed", data)
    };

    platform.set_review_status(release, "to_review").await;
    let issues = json!([{"field": "artwork", "text": "too small: <1400 px>"}, {"field": "title"}]);
    let update = "update release set review_status = $2, review_issues = $3 where id = $1";

    platform
        .execute(update, &[&release, &"require_changes", &issues])
        .await;
    platform.set_review_status(release, "audit").await;
    platform
        .execute(update, &[&release, &"rejected", &Option::<Value>::None])
        .await;
    platform.set_review_status(release, "invented").await;
    platform.set_review_status(release, "approved").await;

    let received = world
        .expect(&[
            moved("draft", "to_review", None),
            moved("to_review", "require_changes", Some(issues.clone())),
            moved("require_changes", "audit", None),
            moved("audit", "rejected", Some(json!([]))),
        ])
        .await;
    for delivery in received {
        let wanted = delivery.data()["new_status"] == "require_changes"
            || delivery.data()["new_status"] == "rejected";
        assert_eq!(
            keys(&delivery).contains(&"review_issues".to_owned()),
            wanted
        );
    }
}

#[tokio::test]
async fn a_release_is_distributed_once() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;

    platform.set_delivery_status(release, "distributed").await;
    platform
        .execute(
            "update release set title = 'New' where id = $1",
            &[&release],
        )
        .await;

    platform.set_delivery_status(release, "pending").await;
    platform.set_delivery_status(release, "distributed").await;

    let second = crate::support::next_id();
    let insert = "insert into release (id, label_id, review_status, delivery_status) values ($1, $2, 'draft', 'distributed')";
    platform.execute(insert, &[&second, &label]).await;

    world
        .expect(&[
            (
                "release.distributed",
                json!({"release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
                       "release_title": format!("Release {release}"), "delivery_status": "distributed"}),
            ),
            (
                "release.distributed",
                json!({"release_id": second, "label_id": label, "release_cat": null, "release_title": null,
                       "delivery_status": "distributed"}),
            ),
        ])
        .await;
}

#[tokio::test]
async fn preflight_reports_of_held_releases_are_raised_for_users_with_the_add_on() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let held = platform.release(label).await;

    platform
        .execute(
            "update release set pre_review_hold = true where id = $1",
            &[&held],
        )
        .await;

    let free = platform.release(label).await;
    let insert = "insert into preflight_report (id, release_id, generated_at, profile_name, profile_version, blocking,
        informational, requires_feedback) values ($1, $2, $3::text::timestamptz, 'Strict', 3, 1, 4, 2)";
    let report = crate::support::next_id();
    let other = crate::support::next_id();

    platform
        .execute(insert, &[&report, &held, &Option::<&str>::None])
        .await;
    platform
        .execute(insert, &[&other, &free, &Some("2026-03-01 10:00:00+00")])
        .await;

    let generate = "update preflight_report set generated_at = $2::text::timestamptz where id = $1";
    platform
        .execute(generate, &[&report, &"2026-03-01 12:00:00.5+02"])
        .await;
    platform
        .execute(
            "update preflight_report set blocking = 0 where id = $1",
            &[&report],
        )
        .await;

    platform
        .execute(generate, &[&report, &"2026-03-02 00:00:00.123456+00"])
        .await;

    // Without the add-on, no more events are raised.
    platform
        .execute(
            "delete from user_addon where user_id = $1",
            &[&world.tenant.user],
        )
        .await;

    platform
        .execute(generate, &[&report, &"2026-03-03 00:00:00+00"])
        .await;

    let ready = |at: &str, blocking: i64| {
        let data = json!({
            "release_id": held, "label_id": label, "release_cat": format!("CAT{held}"),
            "release_title": format!("Release {held}"), "generated_at": at,
            "profile": {"name": "Strict", "version": 3},
            "counts": {"blocking": blocking, "informational": 4, "requires_feedback": 2},
        });
        ("release.preflight.report_ready", data)
    };

    world
        .expect(&[
            ready("2026-03-01T10:00:00.500000+00:00", 1),
            ready("2026-03-02T00:00:00.123456+00:00", 0),
        ])
        .await;
}

#[tokio::test]
async fn stream_radar_flags_are_published_resolved_and_reopened() {
    let world = World::new().await;
    let platform = &world.platform;
    let release = platform.release(world.tenant.label).await;
    let track = platform.track(release).await;
    let insert = "insert into stream_radar_flag (id, dsp, isrc, release_id, track_id, severity, status,
        first_detected_at, last_detected_at, estimated_affected_streams, published_at, resolved_at)
        values ($1, 'SpotiFy', 'XXA012600001', $2, $3, 'high', $4, '2026-02-01 00:00:00+00', null, $5,
        '2026-02-02 03:04:05.6+00', null)";
    let flag = crate::support::next_id();
    let resolved = crate::support::next_id();
    let streams = 12_345_678_901_i64;

    platform
        .execute(
            insert,
            &[&flag, &release, &Some(track), &"active", &Some(streams)],
        )
        .await;

    platform
        .execute(
            insert,
            &[
                &resolved,
                &release,
                &Option::<i64>::None,
                &"resolved",
                &Option::<i64>::None,
            ],
        )
        .await;

    let update = "update stream_radar_flag set status = $2, resolved_at = $3::text::timestamptz where id = $1";
    platform
        .execute(
            update,
            &[&flag, &"resolved", &Some("2026-02-03 00:00:00+00")],
        )
        .await;

    platform
        .execute(update, &[&flag, &"active", &Option::<&str>::None])
        .await;

    let data = |status: &str, transition: Option<&str>, resolved_at: Value| {
        let mut data = json!({
            "flag_id": flag, "dsp": "spotify", "isrc": "XXA012600001", "release_id": release, "track_id": track,
            "severity": "high", "status": status, "first_detected_at": "2026-02-01T00:00:00.000000+00:00",
            "last_detected_at": null, "estimated_affected_streams": streams,
            "published_at": "2026-02-02T03:04:05.600000+00:00", "resolved_at": resolved_at,
        });

        if let Some(transition) = transition {
            data["transition"] = transition.into();
        }

        data
    };

    world
        .expect(&[
            (
                "stream_radar.flag_created",
                data("active", Some("published"), Value::Null),
            ),
            (
                "stream_radar.flag_resolved",
                data("resolved", None, "2026-02-03T00:00:00.000000+00:00".into()),
            ),
            (
                "stream_radar.flag_created",
                data("active", Some("reopened"), Value::Null),
            ),
        ])
        .await;
}

#[tokio::test]
async fn a_statement_is_ready_once_and_its_amounts_keep_all_digits() {
    let world = World::new().await;
    let platform = &world.platform;
    let insert =
        "insert into payment (id, user_id, invoice_number, period_end, amount, total_due_usd, currency, status)
        values ($1, $2, 'INV-7', $3::text::date, 123456789012.50, 0.00, $4, 'draft')";
    let first = crate::support::next_id();
    let second = crate::support::next_id();

    platform
        .execute(
            insert,
            &[
                &first,
                &world.tenant.user,
                &Some("2026-01-31"),
                &Some("EUR"),
            ],
        )
        .await;

    platform
        .execute(
            insert,
            &[
                &second,
                &world.tenant.user,
                &Option::<&str>::None,
                &Option::<&str>::None,
            ],
        )
        .await;

    for id in [first, second] {
        platform
            .execute("update payment set status = 'ready' where id = $1", &[&id])
            .await;
        platform
            .execute(
                "update payment set invoice_number = 'INV-8' where id = $1",
                &[&id],
            )
            .await;
    }

    let received = world.tenant.received(2).await;
    let sent = |id: i64| {
        let found = received
            .iter()
            .find(|delivery| delivery.data()["payment_request_id"] == id);
        String::from_utf8(found.expect("one event per payment").body.to_vec()).unwrap()
    };

    // Compared as text: a parser would lose trailing digits.
    assert!(
        sent(first).ends_with(&format!(
            r#""data":{{"payment_request_id":{first},"invoice_number":"INV-7","period":"2026-01-31","amount":123456789012.50,"total_due_usd":0.00,"currency":"EUR"}}}}"#
        )),
        "{}",
        sent(first)
    );

    assert!(
        sent(second).contains(r#""period":null,"#),
        "{}",
        sent(second)
    );
    assert!(
        sent(second).contains(r#""currency":"USD""#),
        "{}",
        sent(second)
    );
}

#[tokio::test]
async fn transcodes_end_complete_failed_or_incomplete_with_their_files() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;
    let track = platform.track(release).await;
    let entry = crate::support::next_id();
    let insert = "insert into transcoder_queue (id, track_id, status) values ($1, $2, 'queued')";

    platform.execute(insert, &[&entry, &track]).await;
    let data = |status: &str, files: Value| {
        json!({
            "release_id": release, "label_id": label, "track_id": track, "transcoder_queue_id": entry,
            "status": status, "status_message": format!("transcode_{status}"), "files": files,
        })
    };

    let set = "update transcoder_queue set status = $2 where id = $1";
    platform.execute(set, &[&entry, &"error"]).await;

    // Files of the same transaction, in the order of their ids.
    let one = crate::support::next_id();
    let two = crate::support::next_id();

    platform
        .transaction(&format!(
            "insert into transcoder_queue_file values ({two}, {entry}, 9, 'error'), ({one}, {entry}, 8, 'complete');
             update transcoder_queue set status = 'incomplete' where id = {entry};
             update transcoder_queue_file set status = 'complete' where id = {two};
             update transcoder_queue set status = 'complete' where id = {entry}"
        ))
        .await;

    let file = |asset: i64, status: &str| json!({"asset_type_id": asset, "status": status});
    world
        .expect(&[
            ("transcode.failed", data("error", json!([]))),
            (
                "transcode.failed",
                data("incomplete", json!([file(8, "complete"), file(9, "error")])),
            ),
            (
                "transcode.completed",
                data(
                    "complete",
                    json!([file(8, "complete"), file(9, "complete")]),
                ),
            ),
        ])
        .await;
}

#[tokio::test]
async fn muted_transactions_raise_nothing_and_count_as_first_distribution() {
    let world = World::new().await;
    let platform = &world.platform;
    let label = world.tenant.label;
    let release = platform.release(label).await;

    platform
        .transaction(&format!(
            "select pg_logical_emit_message(true, 'walhook', 'mute');
             update release set review_status = 'approved', delivery_status = 'distributed', title = 'Imported'
                 where id = {release}"
        ))
        .await;

    platform.set_delivery_status(release, "pending").await;
    platform.set_delivery_status(release, "distributed").await;
    platform.set_review_status(release, "audit").await;

    world
        .expect(&[(
            "release.review.status_changed",
            json!({"release_id": release, "label_id": label, "release_cat": format!("CAT{release}"),
                   "release_title": "Imported", "previous_status": "approved", "new_status": "audit"}),
        )])
        .await;
}
