//! Keys as receivers see them: overlapping secrets, ed25519 signatures, published keys, and what is
//! stored of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde_json::{Value, json};
use sha2::Sha256;
use walhook::app::retention;
use walhook::store::Store;

use crate::support::{Api, Received, Receiver, TestApp, eventually, fetch, one};

const EVENT: &str = "payment.statement_ready";
const OLD_MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const NEW_MASTER_KEY: &str = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=";

/// Which keys signed `webhook-signature`, in the order of its entries. Panics on an entry of none
/// of them.
fn signers<'a>(received: &Received, keys: &[&'a str]) -> Vec<&'a str> {
    let id = received.header("webhook-id");
    let timestamp = received.header("webhook-timestamp");

    let content = [
        id.as_bytes(),
        b".",
        timestamp.as_bytes(),
        b".",
        &received.body,
    ]
    .concat();

    let signs = |key: &str, entry: &str| {
        let (version, signature) = entry.split_once(',').expect("a version and a signature");
        let (kind, encoded) = key.split_once('_').expect("a prefix");
        let signature = STANDARD.decode(signature).unwrap();
        let key = STANDARD.decode(encoded).unwrap();

        match (version, kind) {
            ("v1", "whsec") => Hmac::<Sha256>::new_from_slice(&key)
                .unwrap()
                .chain_update(&content)
                .verify_slice(&signature)
                .is_ok(),
            ("v1a", "whpk") => UnparsedPublicKey::new(&ED25519, key)
                .verify(&content, &signature)
                .is_ok(),
            _ => false,
        }
    };

    let entries = received.header("webhook-signature").split(' ');
    let signer = |entry| {
        keys.iter()
            .copied()
            .find(|key| signs(key, entry))
            .unwrap_or_else(|| panic!("{entry}"))
    };

    entries.map(signer).collect()
}

struct Scene {
    app: TestApp,
    api: Api,
    receiver: Receiver,
    webhook: String,
    secret: String,
    public_key: String,
}

impl Scene {
    /// Starts with a webhook that has a key pair.
    async fn start() -> Scene {
        let app = TestApp::start().await;
        let receiver = Receiver::start().await;
        let api = app.api("7").await;
        let body = json!({ "name": "x", "url": receiver.url("/in"), "events": [EVENT], "signing": "hmac+ed25519" });
        let created = api.post("/webhooks", body).await.expect(201).json();
        let text = |key: &str| {
            created[key]
                .as_str()
                .unwrap_or_else(|| panic!("no {key} in {created}"))
                .to_owned()
        };

        let webhook = text("id");
        let secret = text("secret");
        let public_key = text("public_key");

        Scene {
            app,
            api,
            receiver,
            webhook,
            secret,
            public_key,
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/webhooks/{}{rest}", self.webhook)
    }

    /// Replaces the keys, and returns the new secret and the new public key.
    async fn regenerate(&self, body: Value) -> (String, String, Value) {
        let mut answer = self
            .api
            .post(&self.path("/regenerate-secret"), body)
            .await
            .expect(200)
            .json();

        let expires_at = answer["previous_secret_expires_at"].take();
        let text = |key: &str| answer[key].as_str().expect("a text").to_owned();
        (text("secret"), text("public_key"), expires_at)
    }

    /// Sends a test and returns the request. Asserts that the log shows the headers that were sent.
    async fn test(&self) -> Received {
        let report = self
            .api
            .post(&self.path("/test"), json!({}))
            .await
            .expect(200)
            .json();

        let received = self.receiver.requests().pop().expect("a request");
        let log = self
            .api
            .get(&self.path(&format!("/logs/{}", report["log_id"].as_str().unwrap())))
            .await
            .expect(200);
        let shown = log.json()["request_headers"].clone();

        for name in [
            "X-Webhook-Signature",
            "webhook-signature",
            "webhook-id",
            "webhook-timestamp",
        ] {
            assert_eq!(shown[name], received.header(name), "{name}");
        }

        received
    }

    /// Returns the published keys of the webhook: each key with its end.
    async fn published(&self) -> Vec<(String, Value)> {
        let origin = self
            .api
            .url
            .strip_suffix("/api/public")
            .expect("the default base path");
        let url = format!(
            "{origin}/.well-known/walhook-keys.json?webhook={}",
            self.webhook
        );
        let (status, body) = fetch(&url).await.expect("an answer");

        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let keys = body["keys"].as_array().unwrap().iter();

        keys.map(|key| {
            (
                key["public_key"].as_str().unwrap().to_owned(),
                key["expires_at"].clone(),
            )
        })
        .collect()
    }

    /// Waits until these keys are published: they are read again once in a second.
    async fn wait_until_published(&self, expected: &[(String, Value)]) {
        let published = || async { (self.published().await == expected).then_some(()) };
        eventually("the published keys", published).await;
    }

    async fn previous_keys(&self) -> i64 {
        let count = "select count(*) from walhook.webhook where previous_secret is not null
                     or previous_private_key is not null or previous_public_key is not null";
        one(&self.app.store().await, count).await
    }
}

#[tokio::test]
async fn during_an_overlap_both_secrets_and_both_key_pairs_sign() {
    let scene = Scene::start().await;
    let secret = scene.secret.as_str();
    let public_key = scene.public_key.as_str();

    assert_eq!(
        signers(&scene.test().await, &[secret, public_key]),
        [secret, public_key]
    );
    assert_eq!(
        scene.api.webhook(&scene.webhook).await["previous_secret_expires_at"],
        Value::Null
    );

    let (new_secret, new_key, expires_at) = scene.regenerate(json!({ "overlap": "24h" })).await;
    assert!(new_secret != secret && new_key != public_key);

    let webhook = scene.api.webhook(&scene.webhook).await;
    assert_eq!(
        (
            &webhook["previous_secret_expires_at"],
            &webhook["public_key"]
        ),
        (&expires_at, &json!(new_key))
    );

    let left = expires_at
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap()
        .duration_since(jiff::Timestamp::now());

    assert!((23..=24).contains(&left.as_hours()), "{expires_at}");
    let during = scene.test().await;
    let expected = [new_secret.as_str(), secret, &new_key, public_key];

    assert_eq!(signers(&during, &expected), expected);
    assert!(
        during.is_signed_with(&new_secret),
        "the new secret alone signs the body"
    );
    scene
        .wait_until_published(&[
            (new_key.clone(), Value::Null),
            (public_key.to_owned(), expires_at),
        ])
        .await;

    // A new secret without an overlap also ends the earlier overlap.
    let (last_secret, last_key, none) = scene.regenerate(json!({})).await;
    assert_eq!(none, Value::Null);

    let expected = [last_secret.as_str(), &last_key];
    assert_eq!(signers(&scene.test().await, &expected), expected);
    scene.wait_until_published(&[(last_key, Value::Null)]).await;
    assert_eq!(scene.previous_keys().await, 0);
}

#[tokio::test]
async fn keys_whose_overlap_has_ended_sign_nothing_and_are_removed() {
    let scene = Scene::start().await;
    let (secret, public_key, _) = scene.regenerate(json!({ "overlap": "168h" })).await;

    assert_eq!(
        scene
            .test()
            .await
            .header("webhook-signature")
            .split(' ')
            .count(),
        4
    );

    let end = "update walhook.webhook set previous_expires_at = now() - interval '1 millisecond'";
    assert_eq!(scene.app.store().await.execute(end, &[]).await.unwrap(), 1);

    let expected = [secret.as_str(), &public_key];
    assert_eq!(signers(&scene.test().await, &expected), expected);
    scene
        .wait_until_published(&[(public_key.clone(), Value::Null)])
        .await;
    assert_eq!(
        scene.api.webhook(&scene.webhook).await["previous_secret_expires_at"],
        Value::Null
    );
    assert_eq!(
        scene.previous_keys().await,
        1,
        "ignored, but not removed yet"
    );
    retention::run_once(&Store::open(&scene.app.store_url, 2).unwrap(), 30)
        .await
        .unwrap();
    assert_eq!(scene.previous_keys().await, 0);
    assert_eq!(signers(&scene.test().await, &expected), expected);
}

#[tokio::test]
async fn real_deliveries_and_their_retries_are_signed_with_all_keys() {
    let app = TestApp::start_with(|app| app.set_fast_retries()).await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, old) = api.create_webhook(&receiver.url("/in"), &[EVENT]).await;
    let path = format!("/webhooks/{webhook}");
    let overlap = json!({ "overlap": "1h" });
    let new = api
        .post(&format!("{path}/regenerate-secret"), overlap)
        .await
        .expect(200)
        .json()["secret"]
        .clone();

    let new = new.as_str().unwrap();
    receiver.answer(|request| {
        crate::support::Answer::Status(if request.attempt() == 1 { 500 } else { 200 })
    });
    platform.payment(user, "ready").await;

    let requests = receiver.wait_for(2).await;
    for request in &requests {
        assert_eq!(signers(request, &[new, &old]), [new, &old]);
    }

    let logs = api
        .wait_for_logs(&webhook, "both attempts", |logs| logs.len() == 2)
        .await;
    for (entry, request) in logs.iter().rev().zip(&requests) {
        let shown = api
            .get(&format!("{path}/logs/{}", entry["id"].as_str().unwrap()))
            .await
            .expect(200)
            .json();
        assert_eq!(
            shown["request_headers"]["webhook-signature"],
            request.header("webhook-signature")
        );
    }
}

#[tokio::test]
async fn all_keys_are_encrypted_and_follow_a_rotation_of_the_master_key() {
    let mut scene = Scene::start().await;
    let (new_secret, new_key, _) = scene.regenerate(json!({ "overlap": "24h" })).await;
    let old_secret = scene.secret.clone();
    let old_key = scene.public_key.clone();

    let rows = scene
        .app
        .store()
        .await
        .query("select row_to_json(w)::text from walhook.webhook w", &[])
        .await
        .unwrap();

    let stored: String = rows.iter().map(|row| row.get::<_, String>(0)).collect();

    for secret in [&new_secret, &old_secret] {
        assert!(!stored.contains(&hex::encode(secret)), "encrypted at rest");
    }

    scene.app.set(
        "secrets.master_key",
        &format!("{NEW_MASTER_KEY},{OLD_MASTER_KEY}"),
    );
    let checked = scene.app.walhook_ok(&["check"]).await;

    assert!(
        checked.contains("warn  secrets at rest: 4 are encrypted with an older key"),
        "{checked}"
    );
    scene.app.restart().await;

    assert!(
        scene
            .app
            .walhook_ok(&["secrets", "reencrypt"])
            .await
            .starts_with("4 re-encrypted with key ")
    );

    scene.app.set("secrets.master_key", NEW_MASTER_KEY);
    scene.app.restart().await;
    scene.api = scene.api.at(&scene.app.sidecar().api_url);

    let expected = [new_secret.as_str(), &old_secret, &new_key, &old_key];
    assert_eq!(signers(&scene.test().await, &expected), expected);
}
