//! Warnings of `walhook check` about settings that work and are unsafe.

use crate::support::{TestApp, run_sql};

async fn line(app: &TestApp, name: &str) -> Option<String> {
    let output = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    let is_of = |line: &&str| {
        line.get(6..)
            .is_some_and(|rest| rest.starts_with(&format!("{name}: ")))
    };

    output.lines().find(is_of).map(str::to_owned)
}

#[tokio::test]
async fn a_web_ui_without_https_is_a_warning() {
    let mut app = TestApp::prepare().await;
    let mut public_url = async |url: Option<&str>| {
        if let Some(url) = url {
            app.set("http.public_url", url);
        }

        line(&app, "http.public_url").await.unwrap()
    };

    let missing = public_url(None).await;
    assert!(
        missing.starts_with("warn  http.public_url: not set"),
        "{missing}"
    );

    let plain = public_url(Some("http://hooks.example")).await;
    assert!(
        plain.starts_with("warn  http.public_url: http://hooks.example"),
        "{plain}"
    );
    assert_eq!(
        public_url(Some("https://hooks.example")).await,
        "ok    http.public_url: https://hooks.example"
    );
}

#[tokio::test]
async fn a_mail_login_without_tls_is_a_warning() {
    let mut app = TestApp::prepare().await;
    app.set("mail.from", "webhooks@example.com");

    let mut login = async |url: &str| {
        app.set("mail.smtp_url", url);
        line(&app, "mail login").await
    };

    // Nothing listens on these ports; the finding about the login does not depend on it.
    let warned = [
        "smtp://user:hunter2@mail.invalid:9",
        "smtp://user:hunter2@192.0.2.1:9?tls=opportunistic",
    ];
    for url in warned {
        let line = login(url)
            .await
            .unwrap_or_else(|| panic!("no line about {url}"));
        assert!(
            line.starts_with("warn  mail login: ") && line.contains("tls=required"),
            "{line}"
        );
        assert!(!line.contains("hunter2"), "{line}");
    }

    let fine = [
        "smtp://mail.invalid:9",
        "smtp://user:hunter2@mail.invalid:9?tls=required",
        "smtps://user:hunter2@mail.invalid:9",
        "smtp://user:hunter2@127.0.0.1:9",
        "smtp://user:hunter2@localhost:9",
    ];
    for url in fine {
        assert_eq!(login(url).await, None, "{url}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_reported_once() {
    let mut app = TestApp::prepare().await;
    app.set("source.url", "postgres://127.0.0.1:9/platform")
        .set("store.url", "postgres://127.0.0.1:9/walhook")
        .set(
            "source.lookups.outlet",
            "select 1 as id, 'x' as name where $1 is null",
        )
        .set("source.tables.payment.computed.currency", "'EUR'");

    let output = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    assert_eq!(output.matches("Connection refused").count(), 1, "{output}");

    let failures: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("fail"))
        .collect();
    assert_eq!(failures.len(), 2, "{output}");
    assert!(
        failures[1].starts_with("fail  store: the same error as the primary's; check that postgres://127.0.0.1:9/walhook"),
        "{output}"
    );
}

#[tokio::test]
async fn a_rejected_statement_is_not_taken_for_an_unreachable_store() {
    let mut app = TestApp::prepare().await;
    app.setup().await;

    let store = app.store().await;
    run_sql(&store, "alter table walhook.gap rename to gap_away").await;

    // Its database is reached before the statement fails.
    let output = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();
    let failed = output
        .lines()
        .find(|line| line.starts_with("fail  store: "))
        .unwrap_or_else(|| panic!("{output}"));

    assert!(
        output.contains("walhook.gap")
            && output.contains("can be reached: fix what the message names"),
        "{output}"
    );
    assert!(
        !failed.contains("credentials") && !output.contains("can be reached from here"),
        "{output}"
    );
    app.set("store.url", "postgres://127.0.0.1:9/none");

    let refused = app.walhook(&["check"]).await.stdout;
    assert!(
        String::from_utf8_lossy(&refused)
            .contains("can be reached from here with these credentials")
    );
}

#[tokio::test]
async fn the_remedies_of_a_lost_slot_agree() {
    let app = TestApp::prepare().await;
    let before = app.walhook(&["check"]).await;
    let before = String::from_utf8(before.stdout).unwrap();
    assert!(before.contains("missing; run `walhook setup`"), "{before}");

    app.setup().await;
    app.drop_slot().await;
    let statement = format!("drop publication {}", app.name);
    run_sql(&app.source().await, &statement).await;

    // Nothing runs that could have recorded the gap.
    let output = app.walhook(&["check"]).await;
    let text = String::from_utf8(output.stdout).unwrap();

    assert_eq!(output.status.code(), Some(1));
    assert!(!text.contains("walhook setup"), "{text}");
    let slot = format!("fail  slot {}: missing; run `walhook repair`", app.name);
    assert!(text.contains(&slot), "{text}");
    assert!(
        text.contains("warn  processes: none is connected"),
        "{text}"
    );

    // Both follow the advice, and agree in numbers.
    app.walhook_ok(&["repair"]).await;
    let replica = app.replica(&[]).await;

    let text = app.walhook_ok(&["check"]).await;
    let json = app.walhook_ok(&["check", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let of = |severity: &str| {
        let findings = json["findings"].as_array().unwrap().iter();
        findings.filter(|one| one["severity"] == severity).count()
    };

    assert_eq!(
        (json["ok"].as_u64(), json["failures"].as_u64()),
        (Some(of("ok") as u64), Some(0))
    );
    assert_eq!(json["warnings"].as_u64(), Some(of("warn") as u64));
    let summary = format!("{} ok, {} warnings, 0 failures", of("ok"), of("warn"));
    assert_eq!(text.lines().last(), Some(&*summary), "{text}");
    assert!(text.contains("ok    processes: 1 connected"), "{text}");
    replica.kill().await;
}

#[tokio::test]
async fn values_that_no_map_names_and_events_that_no_value_raises_are_warnings() {
    let mut app = TestApp::prepare().await;
    let platform = app.platform().await;
    let label = platform.label(platform.user(&[]).await).await;
    let [release, _] = [platform.release(label).await, platform.release(label).await];

    // Codes, a text of its own, an enum without rows, and a text that raises nothing.
    let statuses = format!(
        "alter table distro_queue alter status type smallint using 0, add kind text;
         insert into distro_queue (id, release_id, status, kind) values (1, {release}, 0, 'audio'), (2, {release}, 9, 'video');
         create type payment_state as enum ('draft', 'issued');
         alter table payment alter status type payment_state using status::payment_state;
         insert into track (id, release_id, isrc, title) values (1, {release}, 'i', 't');
         insert into transcoder_queue (id, track_id, status) values (1, 1, 'DONE');
         update release set review_status = 'archived' where id = {release}"
    );
    platform.transaction(&statuses).await;
    app.set("source.tables.distro_queue.only.kind", "audio");
    app.setup().await;

    let json = app.walhook_ok(&["check", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let findings = json["findings"].as_array().unwrap().iter();
    let warned: Vec<(&str, &str)> = findings
        .filter(|finding| finding["severity"] == "warn")
        .filter_map(|finding| Some((finding["subject"].as_str()?, finding["state"].as_str()?)))
        .filter(|(subject, _)| subject.starts_with("source.tables."))
        .collect();

    let expected = [
        (
            "source.tables.release.values.review_status",
            "rows have values that no map names: archived",
        ),
        (
            "source.tables.distro_queue.values.status",
            "rows have values that no map names: 0; no value means complete, so delivery.completed and takedown.completed cannot be raised",
        ),
        (
            "source.tables.transcoder_queue.values.status",
            "no value means complete, so transcode.completed cannot be raised",
        ),
        (
            "source.tables.payment.values.status",
            "no value means ready, so payment.statement_ready cannot be raised",
        ),
    ];
    assert_eq!(warned, expected);

    let text = line(&app, "source.tables.payment.values.status").await;
    assert!(
        text.as_deref()
            .is_some_and(|text| text.starts_with("warn  ") && text.contains("one of ready")),
        "{text:?}"
    );

    // A platform may keep no failures.
    app.set("source.tables.distro_queue.values.status.0", "complete")
        .set(
            "source.tables.transcoder_queue.values.status.DONE",
            "complete",
        )
        .set("source.tables.payment.values.status.issued", "ready");
    platform
        .transaction("update release set review_status = 'draft'")
        .await;
    assert_eq!(
        line(&app, "values").await.as_deref(),
        Some("ok    values: the maps of 9 columns are complete")
    );

    // A map that misses the one value that matters.
    app.set("source.tables.distro_queue.values.status.0", "scheduled");
    let text = line(&app, "source.tables.distro_queue.values.status").await;
    assert!(
        text.as_deref()
            .is_some_and(|text| text.contains("status: no value means complete, so")),
        "{text:?}"
    );
}
