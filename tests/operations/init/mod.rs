//! `walhook init`: what it proposes for schemas as frameworks create them leads to the first event.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Receiver, TestApp, run_sql};

/// A platform, and what is done from `walhook init` to its first events.
struct Case {
    name: &'static str,
    schema: &'static str,
    /// Whether the planner has statistics of the tables.
    analyzed: bool,
    /// What only a person can know: lines of the file, and what is written instead.
    answers: &'static [(&'static str, &'static str)],
    user: &'static str,
    /// Statements of the platform, the event of each, and a part of its data.
    steps: Vec<(&'static str, &'static str, Value)>,
}

/// The data of the delivery that every platform completes.
fn delivered(label: i64, outlet: i64, name: &str) -> Value {
    json!({
        "distro_queue_id": 1, "release_id": 100, "label_id": label, "outlet_id": outlet, "outlet_name": name,
        "status": "complete",
    })
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "laravel",
            schema: include_str!("laravel.sql"),
            analyzed: false,
            answers: &[
                ("# status = { 0 = \"\", 3 = \"\" }", "status = { 0 = \"scheduled\", 3 = \"complete\" }"),
                ("# review_status = { 0 = \"\" }", "review_status = { 0 = \"draft\", 1 = \"to_review\" }"),
            ],
            user: "7",
            steps: vec![
                ("update deliveries set status = 3 where id = 1", "delivery.completed", delivered(7, 1, "spotify")),
                // Deleted rows raise nothing: the next event is the second album's.
                (
                    "update albums set deleted_at = now() where id = 100;
                     update albums set distributed_at = now() where id = 100;
                     insert into albums (id, uuid, user_id, title) values (101, gen_random_uuid(), 7, 'Second');
                     update albums set distributed_at = now() where id = 101",
                    "release.distributed",
                    json!({ "release_id": 101, "label_id": 7, "release_title": "Second" }),
                ),
                (
                    "insert into payouts (id, user_id, number, amount_cents) values (61, 7, 'P-61', 12050);
                     update payouts set issued_at = now()",
                    "payment.statement_ready",
                    json!({ "payment_request_id": 61, "amount": 120.5, "total_due_usd": 120.5, "currency": "USD" }),
                ),
            ],
        },
        Case {
            name: "rails",
            schema: include_str!("rails.sql"),
            analyzed: true,
            answers: &[],
            user: "7",
            steps: vec![
                (
                    "update release_stores set state = 'delivered' where id = 1",
                    "delivery.completed",
                    delivered(31, 5, "Example Music"),
                ),
                (
                    "update releases set review_state = 'changes_requested' where id = 100",
                    "release.review.status_changed",
                    json!({ "previous_status": "to_review", "new_status": "require_changes" }),
                ),
            ],
        },
        Case {
            name: "django",
            schema: include_str!("django.sql"),
            analyzed: true,
            answers: &[("# status = { 10 = \"\", 30 = \"\" }", "status = { 10 = \"scheduled\", 30 = \"complete\" }")],
            user: "7",
            steps: vec![
                (
                    "update distribution_distributionjob set state = 30 where id = 1",
                    "delivery.completed",
                    delivered(31, 5, "Example Music"),
                ),
                // No row had this status when `init` ran.
                (
                    "update media_transcodejob set status = 'COMPLETE'",
                    "transcode.completed",
                    json!({ "track_id": 700, "transcoder_queue_id": 900, "release_id": 100 }),
                ),
            ],
        },
        Case {
            name: "prisma",
            schema: include_str!("prisma.sql"),
            analyzed: false,
            answers: &[],
            user: "ckv1a2b3c0000qz",
            steps: vec![(
                "update \"ReleaseDelivery\" set status = 'DELIVERED' where id = 1",
                "delivery.completed",
                delivered(31, 5, "Example Music"),
            )],
        },
        Case {
            name: "hibernate",
            schema: include_str!("hibernate.sql"),
            analyzed: true,
            answers: &[(
                "# status = { 0 = \"\", 1 = \"\", 2 = \"\", 3 = \"\", 4 = \"\" }",
                "status = { 0 = \"scheduled\", 1 = \"transcoding\", 2 = \"batched\", 3 = \"complete\", 4 = \"error\" }",
            )],
            user: "7",
            steps: vec![(
                "update delivery_job set status = 3 where id = 1",
                "delivery.completed",
                delivered(31, 5, "Example Music"),
            )],
        },
        Case {
            name: "legacy",
            schema: include_str!("legacy.sql"),
            analyzed: false,
            answers: &[],
            user: "7",
            steps: vec![
                (
                    "update dist.delivery_job set state = 30 where job_no = 1",
                    "delivery.completed",
                    delivered(31, 5, "Example Music"),
                ),
                (
                    "insert into dist.statement_2025 values (61, 7, 'S-61', '2026-03-31', 12050, 13199, 'EUR');
                     update dist.statement set released = true where statement_no = 61",
                    "payment.statement_ready",
                    json!({ "payment_request_id": 61, "invoice_number": "S-61", "amount": 120.5, "total_due_usd": 131.99 }),
                ),
            ],
        },
    ]
}

/// Creates the platform's database. Walhook has no configuration but URLs and keys.
async fn platform(name: &str, schema: &str) -> TestApp {
    let mut app = TestApp::prepare().await;
    let database = format!("{}_{name}", app.name);
    app.server
        .create_database(&database)
        .await
        .expect("a database");
    app.source_url = app.server.url(&database);

    let url = app.source_url.clone();
    app.set("source.url", &url);
    run_sql(&app.source().await, schema).await;
    app
}

fn file_of(app: &TestApp) -> PathBuf {
    let name = format!("init-{}-{}.toml", std::process::id(), app.name);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&file);
    file
}

#[tokio::test]
async fn six_kinds_of_schemas_reach_their_first_events() {
    for case in cases() {
        reach_first_events(case).await;
    }
}

async fn reach_first_events(case: Case) {
    let mut app = platform(case.name, case.schema).await;
    let name = case.name;
    let source = app.source().await;

    if case.analyzed {
        run_sql(&source, "analyze").await;
    }

    let file = file_of(&app);
    let path = file.display().to_string();
    app.walhook_ok(&["init", "--yes", "--output", &path]).await;
    app.set_environment("WALHOOK_CONFIG", &path);

    let explained = app.walhook_ok(&["init", "--explain"]).await;
    let has_unnamed = explained.contains("values that no map names");
    assert_eq!(has_unnamed, !case.answers.is_empty(), "{name}: {explained}");
    assert!(
        explained.contains("run `walhook setup` first"),
        "{name}: {explained}"
    );

    let mut text = std::fs::read_to_string(&file).expect("the file");
    for (line, answer) in case.answers {
        assert!(text.contains(line), "{name}: no {line} in {text}");
        text = text.replace(line, answer);
    }
    std::fs::write(&file, text).expect("the file");

    app.setup().await;
    app.walhook_ok(&["check"]).await;
    app.run().await;

    let receiver = Receiver::start().await;
    let api = app.api(case.user).await;
    let mut events: Vec<&str> = case.steps.iter().map(|(_, event, _)| *event).collect();
    events.dedup();
    let (_, secret) = api.create_webhook(&receiver.url("/hook"), &events).await;

    for (number, (statements, event, expected)) in case.steps.iter().enumerate() {
        run_sql(&source, statements).await;

        let received = receiver.wait_for(number + 1).await;
        let delivery = &received[number];
        delivery.assert_sound(&secret);
        assert_eq!(delivery.event(), *event, "{name}");

        let data = delivery.data();
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(data[key], *value, "{name}: {key} in {data}");
        }
    }

    let explained = app.walhook_ok(&["init", "--explain", "10"]).await;
    assert!(
        !explained.contains("that no map names"),
        "{name}: {explained}"
    );
    let of_user = format!("delivery.completed for user {}, to test (", case.user);
    assert!(explained.contains(&of_user), "{name}: {explained}");
    app.stop().await;
}

#[tokio::test]
async fn the_reference_schema_maps_to_itself() {
    let app = TestApp::prepare().await;
    let printed = app.walhook_ok(&["init", "--print"]).await;
    let mapped = printed
        .lines()
        .filter(|line| line.starts_with("table = \"public."));

    assert_eq!(mapped.count(), 12, "{printed}");
    assert!(
        !printed.contains("absent = true") && !printed.contains("lookups"),
        "{printed}"
    );
}

#[tokio::test]
async fn nothing_is_replaced_unasked_and_printing_writes_nothing() {
    let app = platform("rails", include_str!("rails.sql")).await;
    let file = file_of(&app);
    let path = file.display().to_string();

    let printed = app
        .walhook_ok(&["init", "--print", "--output", &path])
        .await;
    assert!(
        printed.contains("table = \"public.release_stores\""),
        "{printed}"
    );
    assert!(!file.exists());

    let without_terminal = app.walhook(&["init", "--output", &path]).await;
    assert!(
        !without_terminal.status.success() && !file.exists(),
        "{without_terminal:?}"
    );

    app.walhook_ok(&["init", "--yes", "--output", &path]).await;
    std::fs::write(&file, "# mine\n").unwrap();
    let refused = app.walhook(&["init", "--yes", "--output", &path]).await;
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--force"),
        "{refused:?}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n");

    app.walhook_ok(&["init", "--yes", "--force", "--output", &path])
        .await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
}

#[tokio::test]
async fn outlets_keep_their_ids_and_names() {
    let app = platform("laravel", include_str!("laravel.sql")).await;
    let file = file_of(&app);
    let path = file.display().to_string();
    let init = ["init", "--yes", "--force", "--output", &path];
    app.walhook_ok(&init).await;

    let proposed = std::fs::read_to_string(&file).unwrap();
    assert!(proposed.contains("names that they know"), "{proposed}");
    let edited = proposed
        .replace("spotify = \"1\"", "spotify = \"7\"")
        .replace("(1, 'spotify')", "(7, 'Spotify''s (EU)')");
    assert_ne!(edited, proposed);
    std::fs::write(&file, edited).unwrap();

    let added = "alter table deliveries drop constraint deliveries_store_check,
        add constraint deliveries_store_check check (store in ('apple', 'deezer', 'spotify'))";
    run_sql(&app.source().await, added).await;
    app.walhook_ok(&init).await;

    let kept = std::fs::read_to_string(&file).unwrap();
    for expected in [
        "spotify = \"7\"",
        "apple = \"2\"",
        "deezer = \"8\"",
        "(2, 'apple'), (7, 'Spotify''s (EU)'), (8, 'deezer')",
    ] {
        assert!(kept.contains(expected), "no {expected} in {kept}");
    }

    std::fs::write(&file, "[broken").unwrap();
    let refused = app.walhook(&init).await;
    assert!(!refused.status.success(), "{refused:?}");
}

#[tokio::test]
async fn missing_columns_are_explained_beside_the_other_tables() {
    let mut app = platform("rails", include_str!("rails.sql")).await;
    let file = file_of(&app);
    let path = file.display().to_string();

    // It may be named before it exists.
    app.set_environment("WALHOOK_CONFIG", &path);
    app.walhook_ok(&["init", "--yes", "--output", &path]).await;
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("status = \"state\"", "status = \"stat\""),
    )
    .unwrap();

    let explained = app.walhook(&["init", "--explain"]).await;
    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(!explained.status.success(), "{text}");
    assert!(
        text.contains("table public.release_stores: lacks stat"),
        "{text}"
    );
    assert!(
        text.contains("release.review.status_changed for user 7"),
        "{text}"
    );
}

/// Keys that are no integers, and what Walhook's role may not see.
#[tokio::test]
async fn what_cannot_be_mapped_is_said_with_its_fix() {
    let app = platform(
        "uuid",
        "create table users (id uuid primary key, email text)",
    )
    .await;
    let source = app.source().await;
    let role = format!("{}_reader", app.name);
    run_sql(
        &source,
        &format!(
            "create table labels (id uuid primary key, user_id uuid not null references users);
             create table releases (
                 id uuid primary key, number bigint generated always as identity unique, label_id uuid not null references labels,
                 title text, review_status text not null, delivery_status text not null
             );
             analyze;
             create role {role} login; grant select on users, releases to {role}"
        ),
    )
    .await;

    let url = app.source_url.replacen("postgres@", &format!("{role}@"), 1);
    let argument = format!("source.url={url}");
    let init = ["--set", &argument, "init", "--print"];
    let refused = app.walhook(&init).await;
    let printed = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(!refused.status.success(), "{printed}");
    // Comments are wrapped.
    let one_line = printed.replace("\n#", "");
    assert!(
        one_line.contains("Nothing can be captured yet: public.labels seems to be label, but its key is id (uuid)")
            && one_line.contains("alter table \"public\".\"labels\" add column walhook_id bigint generated always as identity unique"),
        "{printed}"
    );

    run_sql(
        &source,
        "alter table labels add column walhook_id bigint generated always as identity unique",
    )
    .await;
    let printed = app.walhook_ok(&init).await;
    for expected in [
        "id = \"number\"",
        "id = \"walhook_id\"",
        "label_id = '(select found.\"walhook_id\" from \"public\".\"labels\" found where found.\"id\" = this.\"label_id\")'",
        "# Role",
    ] {
        assert!(printed.contains(expected), "no {expected} in {printed}");
    }
}
