//! Secrets, tokens, the master key and passwords never leak: not into the store, not into the
//! server log at any level, not into any response except the two that return a secret.

use crate::support::{Api, ApiAnswer, Receiver, TestApp};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

const SOURCE_PASSWORD: &str = "pw-of-the-primary-Zx81";
const STORE_PASSWORD: &str = "pw-of-the-store-Qy72";
const JWT_SECRET: &str = "a shared secret of at least 32 bytes";
/// The master key of the harness: 32 bytes in base64.
const MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// Texts that must not be found, in every encoding that a dump or a log might contain.
#[derive(Default)]
struct Hidden(Vec<(String, String)>);

impl Hidden {
    fn add(&mut self, what: &str, secret: &str) {
        let mut forms = vec![secret.as_bytes().to_vec()];
        let encoded = secret
            .trim_start_matches("whsec_")
            .trim_start_matches("whk_");

        forms.push(encoded.as_bytes().to_vec());
        forms.extend(STANDARD.decode(encoded));

        for form in forms {
            let listed = form
                .iter()
                .map(u8::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            let mut texts = vec![
                hex::encode(&form),
                hex::encode_upper(&form),
                STANDARD.encode(&form),
                listed,
            ];

            texts.extend(String::from_utf8(form));
            self.0
                .extend(texts.into_iter().map(|text| (what.to_owned(), text)));
        }
    }

    #[track_caller]
    fn assert_not_in(&self, location: &str, text: &str) {
        for (what, hidden) in &self.0 {
            if let Some(at) = text.find(hidden) {
                let context: String = text[..at]
                    .chars()
                    .rev()
                    .take(200)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .collect();
                panic!("{what} is in {location}, after: {context}");
            }
        }
    }
}

fn with_password(url: &str, password: &str) -> String {
    url.replacen("postgres@", &format!("postgres:{password}@"), 1)
}

/// Returns responses of the API, successes and errors, except the two that return a secret.
async fn every_other_answer(api: &Api, path: &str, entry: &str) -> Vec<ApiAnswer> {
    let mut answers = Vec::new();

    for below in ["", "/logs", &format!("/logs/{entry}"), "/nothing"] {
        answers.push(api.get(&format!("{path}{below}")).await);
    }

    answers.push(api.get("/webhooks").await);
    answers.push(api.get("/openapi.json").await);
    answers.push(api.get("/webhooks/event-types").await);
    answers.push(
        api.patch(path, json!({ "name": "renamed", "secret": 1 }))
            .await,
    );
    answers.push(api.patch(path, json!({ "name": "renamed" })).await);
    answers.push(api.post(&format!("{path}/test"), json!({})).await);
    answers.push(api.post("/webhooks", json!({ "name": "x" })).await);
    answers.push(
        api.at(&api.url)
            .send("GET", "/webhooks", &[("authorization", "Bearer x")], None)
            .await,
    );

    answers
}

/// Returns all rows of all tables of the store as text. Not by `pg_dump`, which is not installed on
/// every machine with a server.
async fn dump(app: &TestApp) -> String {
    let store = app.store().await;
    let tables = "select oid::regclass::text from pg_class where relnamespace = 'walhook'::regnamespace and relkind = 'r'";
    let mut dump = String::new();

    for table in store.query(tables, &[]).await.unwrap() {
        let table: String = table.get(0);
        for row in store
            .query(&format!("select t::text from {table} as t"), &[])
            .await
            .unwrap()
        {
            dump.push_str(row.get(0));
            dump.push('\n');
        }
    }

    dump
}

#[tokio::test]
async fn only_two_responses_contain_a_secret() {
    let mut app = TestApp::prepare().await;
    let source = with_password(&app.source_url, SOURCE_PASSWORD);
    let store = with_password(&app.store_url, STORE_PASSWORD);

    assert!(source.contains(SOURCE_PASSWORD) && store.contains(STORE_PASSWORD));
    app.set("source.url", &source)
        .set("store.url", &store)
        .set("auth.jwt.issuer", "https://platform.example")
        .set("auth.jwt.audience", "walhook")
        .set("auth.jwt.secret", JWT_SECRET)
        .set_environment("RUST_LOG", "trace");
    app.set_fast_retries();

    let mut hidden = Hidden::default();
    hidden.add("the master key", MASTER_KEY);
    hidden.add("the primary's password", SOURCE_PASSWORD);
    hidden.add("the store's password", STORE_PASSWORD);
    hidden.add("the shared secret", JWT_SECRET);

    let mut printed = app.walhook_ok(&["setup"]).await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;

    hidden.add("a token", &api.token);
    let (webhook, secret) = api
        .create_webhook(
            &receiver.url("/in?key=hunter3"),
            &["payment.statement_ready"],
        )
        .await;

    hidden.add("a secret", &secret);
    platform.payment(user, "ready").await;
    receiver.wait_for(1).await;
    receiver.answer_status(500);
    platform.payment(user, "ready").await;
    receiver.wait_for(4).await;

    let path = format!("/webhooks/{webhook}");
    let answer = api
        .post(&format!("{path}/regenerate-secret"), json!({}))
        .await
        .expect(200)
        .json();
    let new_secret = answer["secret"].as_str().unwrap().to_owned();

    hidden.add("a new secret", &new_secret);
    let logs = api
        .wait_for_logs(&webhook, "the end of both", |logs| logs.len() == 11)
        .await;

    let entry = logs[0]["id"].as_str().unwrap();
    let answers = every_other_answer(&api, &path, entry).await;
    for answer in answers {
        hidden.assert_not_in(
            "an answer",
            &format!("{:?} {}", answer.headers, answer.body),
        );
    }

    for request in receiver.requests() {
        hidden.assert_not_in(
            "a delivery",
            &format!(
                "{:?} {}",
                request.headers,
                String::from_utf8_lossy(&request.body)
            ),
        );
    }

    app.restart().await;
    receiver.answer_status(200);

    let seen = receiver.requests().len();
    platform.payment(user, "ready").await;
    assert!(receiver.wait_for(seen + 1).await[seen].is_signed_with(&new_secret));

    let metrics = crate::support::metrics(&app.sidecar().metrics_url).await;
    hidden.assert_not_in("the metrics", &metrics);

    for arguments in [&["check"][..], &["config"], &["token", "list"]] {
        let output = app.walhook(arguments).await;
        printed.push_str(&String::from_utf8_lossy(
            &[output.stdout, output.stderr].concat(),
        ));
    }

    hidden.assert_not_in("the output of commands", &printed);
    app.stop().await;

    let log = std::fs::read(app.log_file()).unwrap();
    let log = String::from_utf8_lossy(&log);

    assert!(
        log.contains("TRACE") && log.contains(&webhook),
        "the log has every level"
    );
    hidden.assert_not_in("the log", &log);

    for private in ["hunter3", "INV-"] {
        assert!(
            !log.contains(private),
            "queries of URLs and parameters of statements are not logged"
        );
    }

    let dump = dump(&app).await;
    assert!(
        dump.contains(&webhook) && dump.contains("INV-"),
        "it is the store's dump"
    );
    hidden.assert_not_in("the store's dump", &dump);
}

#[tokio::test]
async fn the_values_of_custom_headers_reach_only_the_receiver() {
    const VALUE: &str = "Bearer-of-the-gateway-Wq93";
    let mut app = TestApp::start_with(|app| app.set_environment("RUST_LOG", "trace")).await;

    let mut hidden = Hidden::default();
    hidden.add("a header's value", VALUE);

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let mut body =
        json!({ "name": "x", "url": receiver.url("/in"), "events": ["payment.statement_ready"] });

    body["headers"] = json!({ "Authorization": VALUE });

    let created = api
        .send(
            "POST",
            "/webhooks",
            &[("idempotency-key", "one")],
            Some(&body),
        )
        .await
        .expect(201);

    let webhook = created.json()["id"].as_str().unwrap().to_owned();
    platform.payment(user, "ready").await;
    assert_eq!(receiver.wait_for(1).await[0].header("authorization"), VALUE);

    let logs = api
        .wait_for_logs(&webhook, "an entry", |logs| !logs.is_empty())
        .await;

    let path = format!("/webhooks/{webhook}");
    let mut answers = every_other_answer(&api, &path, logs[0]["id"].as_str().unwrap()).await;

    answers.push(created);

    for (value, status) in [("***", 200), (VALUE, 200)] {
        answers.push(
            api.patch(&path, json!({ "headers": { "Authorization": value } }))
                .await
                .expect(status),
        );
    }

    answers.push(
        api.patch(
            &path,
            json!({ "headers": { "Authorization": format!("{VALUE}\n") } }),
        )
        .await
        .expect(422),
    );

    answers.push(
        api.patch(&path, json!({ "headers": { "Host": VALUE } }))
            .await
            .expect(422),
    );
    assert!(
        answers
            .iter()
            .any(|answer| answer.body.contains(r#""Authorization":"***""#))
    );

    for answer in answers {
        hidden.assert_not_in(
            "an answer",
            &format!("{:?} {}", answer.headers, answer.body),
        );
    }

    app.stop().await;
    let log = std::fs::read(app.log_file()).unwrap();
    let log = String::from_utf8_lossy(&log);

    assert!(
        log.contains("TRACE") && log.contains(&webhook),
        "the log has every level"
    );
    hidden.assert_not_in("the log", &log);

    let dump = dump(&app).await;
    assert!(dump.contains("Authorization"), "the names are in clear");
    hidden.assert_not_in("the store's dump", &dump);
}

#[tokio::test]
async fn errors_of_configuration_and_connection_contain_no_password() {
    let app = TestApp::prepare().await;
    let source = with_password(&app.source_url, SOURCE_PASSWORD);
    let mut hidden = Hidden::default();

    hidden.add("a password", SOURCE_PASSWORD);
    hidden.add("a key", "c2hvcnQga2V5IHRoYXQgaXMgbm9uZQ==");

    let port = app.server.port().to_string();
    let wrong = [
        ("source.url", source.replace(&port, "1")),
        ("source.url", source.replace(&port, "99999")),
        (
            "source.url",
            source.replace("127.0.0.1", "no-such-host.invalid"),
        ),
        (
            "source.url",
            source.replace("postgres://", "postgresql+x://"),
        ),
        ("source.url", format!("{source}?sslmode=nonsense")),
        ("source.url", format!("{source}-absent")),
        ("store.url", source.replace(&port, "1")),
        ("store.url", source.replace(&port, "port")),
        (
            "store.url",
            source.replace("127.0.0.1", "no-such-host.invalid"),
        ),
        ("store.url", source.replace("postgres://", "")),
        ("store.url", format!("{source}?unknown=1")),
        (
            "secrets.master_key",
            "c2hvcnQga2V5IHRoYXQgaXMgbm9uZQ==".into(),
        ),
    ];
    for (key, value) in wrong {
        for arguments in ["check", "run"] {
            let mut command = app.command(&[arguments]);
            command
                .env(
                    format!("WALHOOK_{}", key.replace('.', "__").to_uppercase()),
                    &value,
                )
                .env("RUST_LOG", "trace");

            // Some wait for a server that is down: their output until then is checked.
            command
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut output = child.stdout.take().unwrap();
            let mut errors = child.stderr.take().unwrap();
            let limit = std::time::Duration::from_secs(2);
            let _ = tokio::time::timeout(limit, child.wait()).await;
            let _ = child.kill().await;
            let mut printed = String::new();
            let mut printed_errors = String::new();

            tokio::io::AsyncReadExt::read_to_string(&mut output, &mut printed)
                .await
                .unwrap();
            tokio::io::AsyncReadExt::read_to_string(&mut errors, &mut printed_errors)
                .await
                .unwrap();

            let location = format!("the output of `{arguments}` with {key} = {value}");
            hidden.assert_not_in(&location, &format!("{printed}{printed_errors}"));
        }
    }
}

#[tokio::test]
async fn a_rotated_key_can_be_removed_and_everything_keeps_working() {
    const NEW_KEY: &str = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=";
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let mut body =
        json!({ "name": "x", "url": receiver.url("/in"), "events": ["payment.statement_ready"] });

    body["headers"] = json!({ "Authorization": "Bearer of-the-gateway" });

    let create = async |api: &Api| {
        let answer = api
            .send(
                "POST",
                "/webhooks",
                &[("idempotency-key", "one")],
                Some(&body),
            )
            .await;
        answer.expect(201).json()["secret"]
            .as_str()
            .unwrap()
            .to_owned()
    };

    let secret = create(&api).await;
    keep_answers(&app, 600).await;

    app.set("secrets.master_key", &format!("{NEW_KEY},{MASTER_KEY}"));
    let checked = app.walhook_ok(&["check"]).await;

    assert!(
        checked.contains("warn  secrets at rest: 603 are encrypted with an older key"),
        "{checked}"
    );
    app.restart().await;
    assert!(
        app.walhook_ok(&["secrets", "reencrypt"])
            .await
            .starts_with("603 re-encrypted with key ")
    );
    assert!(
        app.walhook_ok(&["secrets", "reencrypt"])
            .await
            .starts_with("0 re-encrypted")
    );
    assert!(
        app.walhook_ok(&["check"])
            .await
            .contains("ok    secrets at rest: ")
    );

    app.set("secrets.master_key", NEW_KEY);
    app.restart().await;
    platform.payment(user, "ready").await;

    let received = receiver.wait_for(1).await.remove(0);
    assert!(received.is_signed_with(&secret));
    assert_eq!(received.header("authorization"), "Bearer of-the-gateway");

    let api = api.at(&app.sidecar().api_url);
    assert_eq!(
        create(&api).await,
        secret,
        "a stored response is returned unchanged"
    );

    app.set("secrets.master_key", MASTER_KEY);
    let checked = app.walhook(&["check"]).await;

    assert!(
        String::from_utf8_lossy(&checked.stdout).contains("fail  secrets at rest: 603 "),
        "{checked:?}"
    );
    let refused = app.walhook(&["secrets", "reencrypt"]).await;
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stdout).contains("603 encrypted with key "),
        "{refused:?}"
    );
}

/// Stores this many encrypted responses, as of POST requests.
async fn keep_answers(app: &TestApp, count: usize) {
    let vault = walhook::vault::Vault::new(&[MASTER_KEY.to_owned().into()]).unwrap();
    let ids: Vec<uuid::Uuid> = (0..count).map(|_| uuid::Uuid::now_v7()).collect();
    let sealed: Vec<Vec<u8>> = ids.iter().map(|id| vault.seal(*id, b"{}").bytes).collect();
    let insert = "insert into walhook.idempotency (id, user_id, key_hash, fingerprint, held_until, answer, key_id)
        select id, id::text, sha256(id::text::bytea), sha256(id::text::bytea), now(), answer, $3
        from unnest($1::uuid[], $2::bytea[]) as kept (id, answer)";

    app.store()
        .await
        .execute(insert, &[&ids, &sealed, &vault.first_key()])
        .await
        .unwrap();
}
