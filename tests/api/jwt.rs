//! Tokens of the platform's: whose signature counts, and for what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::traits::PublicKeyParts;
use serde_json::{Value, json};
use walhook::config::Jwt;

use crate::fixture::{Service, serve};
use crate::support::Api;

const SECRET: &str = "a secret of at least thirty-two bytes";

/// A key of the platform's, and what it publishes of it.
struct Pair {
    algorithm: Algorithm,
    private: EncodingKey,
    public: Value,
}

fn base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn ed25519(id: &str) -> Pair {
    let private = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap();
    let public = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": base64(pair.public_key().as_ref()) });
    Pair { algorithm: Algorithm::EdDSA, private: EncodingKey::from_ed_der(private.as_ref()), public }
}

fn p256(id: &str) -> Pair {
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref(), &random).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let public = json!({ "kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": base64(x), "y": base64(y) });
    Pair { algorithm: Algorithm::ES256, private: EncodingKey::from_ec_der(private.as_ref()), public }
}

fn rsa(id: &str) -> Pair {
    let private = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2_048).unwrap();
    let (n, e) = (base64(&private.n().to_bytes_be()), base64(&private.e().to_bytes_be()));
    let public = json!({ "kty": "RSA", "kid": id, "alg": "RS256", "n": n, "e": e });
    let private = EncodingKey::from_rsa_der(private.to_pkcs1_der().unwrap().as_bytes());
    Pair { algorithm: Algorithm::RS256, private, public }
}

fn claims() -> Value {
    let now = jiff::Timestamp::now().as_second();
    json!({ "iss": "https://platform.example", "aud": "walhook", "sub": "user-7", "exp": now + 300, "nbf": now })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn signed(pair: &Pair, id: Option<&str>, claims: &Value) -> String {
    let header = Header { kid: id.map(str::to_owned), ..Header::new(pair.algorithm) };
    encode(&header, claims, &pair.private).unwrap()
}

fn by_secret(secret: &str, claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}

fn config() -> Jwt {
    Jwt {
        issuer: "https://platform.example".into(),
        audience: "walhook".into(),
        user_claim: "sub".into(),
        jwks_url: None,
        jwks_file: None,
        secret: None,
    }
}

async fn service(jwt: Jwt) -> Service {
    Service::start_with(|config| config.auth.jwt = Some(jwt)).await
}

async fn status(service: &Service, token: &str) -> u16 {
    Api::new(&service.url, token).get("/webhooks").await.status
}

#[tokio::test]
async fn a_shared_secret_signs_for_users_and_claims_are_checked() {
    let service = service(Jwt { secret: Some(SECRET.into()), ..config() }).await;
    let now = jiff::Timestamp::now().as_second();
    let good = [
        claims(),
        with("sub", json!(42)),
        with("exp", json!(now - 30)),
        with("nbf", json!(now + 30)),
        with("aud", json!(["other", "walhook"])),
        without("nbf"),
    ];
    for claims in good {
        assert_eq!(status(&service, &by_secret(SECRET, &claims)).await, 200, "{claims}");
    }
    let bad = [
        without("exp"),
        without("iss"),
        without("aud"),
        without("sub"),
        with("exp", json!(now - 90)),
        with("exp", json!("never")),
        with("exp", Value::Null),
        with("nbf", json!(now + 90)),
        with("nbf", json!("soon")),
        with("iss", json!("https://other.example")),
        with("aud", json!("other")),
        with("aud", json!([])),
        with("sub", json!("")),
        with("sub", json!(4.5)),
        with("sub", json!({ "id": 7 })),
    ];
    for claims in bad {
        assert_eq!(status(&service, &by_secret(SECRET, &claims)).await, 401, "{claims}");
    }
    let good = by_secret(SECRET, &claims());
    let (signed_part, _) = good.rsplit_once('.').unwrap();
    let unsigned = format!("{}.{}.", base64(br#"{"alg":"none"}"#), base64(claims().to_string().as_bytes()));
    let other = by_secret("another secret of more than 32 bytes", &claims());
    for token in [&format!("{signed_part}."), signed_part, &unsigned, &other, "a.b.c", "..", "x"] {
        assert_eq!(status(&service, token).await, 401, "{token}");
    }
    let stronger = Header::new(Algorithm::HS512);
    let stronger = encode(&stronger, &claims(), &EncodingKey::from_secret(SECRET.as_bytes())).unwrap();
    assert_eq!(status(&service, &stronger).await, 401, "the algorithm is the key's");
}

#[tokio::test]
async fn a_token_of_the_platform_s_stands_for_the_same_user_as_ours() {
    let jwt = Jwt { secret: Some(SECRET.into()), user_claim: "uid".into(), ..config() };
    let service = service(jwt).await;
    let ours = service.api("7").await;
    let platform = Api::new(&service.url, &by_secret(SECRET, &with("uid", json!(7))));
    let (id, _) = platform.create_webhook("https://receiver.example/in", &["delivery.failed"]).await;
    assert_eq!(ours.webhook(&id).await["id"], id.as_str());
    let stranger = Api::new(&service.url, &by_secret(SECRET, &with("uid", json!("8"))));
    stranger.get(&format!("/webhooks/{id}")).await.expect(404);
    let row = service.sql.query_one("select via, token_id from walhook.audit where action = 'webhook.created'", &[]);
    let row = row.await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, Option<uuid::Uuid>>(1)), ("jwt", None));
}

#[tokio::test]
async fn without_configuration_no_platform_token_counts() {
    let service = Service::start().await;
    assert_eq!(status(&service, &by_secret(SECRET, &claims())).await, 401);
}

#[tokio::test]
async fn published_keys_of_every_kind_verify_what_they_signed_and_nothing_else() {
    let pairs = [rsa("r"), p256("e"), ed25519("d")];
    let mut keys: Vec<Value> = pairs.iter().map(|pair| pair.public.clone()).collect();
    keys.push(json!({ "kty": "oct", "kid": "shared", "k": base64(SECRET.as_bytes()), "alg": "HS256" }));
    keys.push(json!({ "kty": "of the future", "kid": "f" }));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json!({ "keys": keys }).to_string()).unwrap();
    let service = service(Jwt { jwks_file: Some(file.path().to_owned()), ..config() }).await;
    let ids = ["r", "e", "d"];
    for (pair, id) in pairs.iter().zip(ids) {
        assert_eq!(status(&service, &signed(pair, Some(id), &claims())).await, 200, "{id}");
        assert_eq!(status(&service, &signed(pair, None, &claims())).await, 200, "{id} without a name");
        for other in ids.into_iter().filter(|other| *other != id) {
            assert_eq!(status(&service, &signed(pair, Some(other), &claims())).await, 401, "{id} as {other}");
        }
        // What is public cannot be a shared secret.
        let public = pair.public["n"].as_str().or(pair.public["x"].as_str()).unwrap();
        assert_eq!(status(&service, &by_secret(public, &claims())).await, 401);
    }
    assert_eq!(status(&service, &by_secret(SECRET, &claims())).await, 401, "a published secret is none");
    for forged in [rsa("r"), p256("e"), ed25519("d")] {
        let id = forged.public["kid"].as_str().unwrap().to_owned();
        assert_eq!(status(&service, &signed(&forged, Some(&id), &claims())).await, 401, "{id}");
    }
}

/// Publishes what `answer` gives, counting.
async fn publisher(
    answer: impl Fn(u32) -> (StatusCode, String) + Clone + Send + Sync + 'static,
) -> (String, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let handler = async move || answer(counted.fetch_add(1, Ordering::SeqCst));
    let origin = serve(Router::new().route("/keys", get(handler))).await;
    (format!("{origin}/keys"), count)
}

#[tokio::test]
async fn published_keys_are_fetched_once_and_again_at_most_once_a_minute() {
    let (known, unknown) = (ed25519("known"), ed25519("unknown"));
    let set = json!({ "keys": [known.public] }).to_string();
    let (url, fetches) = publisher(move |_| (StatusCode::OK, set.clone())).await;
    let service = service(Jwt { jwks_url: Some(url), ..config() }).await;
    let token = signed(&known, Some("known"), &claims());
    let all = futures_util::future::join_all((0..8).map(|_| status(&service, &token))).await;
    assert_eq!(all, [200; 8]);
    for _ in 0..5 {
        assert_eq!(status(&service, &signed(&unknown, Some("unknown"), &claims())).await, 401);
        assert_eq!(status(&service, &token).await, 200);
    }
    assert_eq!(fetches.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn without_any_key_the_service_is_unavailable_and_api_tokens_still_work() {
    for (code, body) in [(StatusCode::INTERNAL_SERVER_ERROR, "{}"), (StatusCode::OK, "<html>"), (StatusCode::FOUND, "")]
    {
        let (url, fetches) = publisher(move |_| (code, body.to_owned())).await;
        let service = service(Jwt { jwks_url: Some(url), ..config() }).await;
        let token = signed(&ed25519("k"), Some("k"), &claims());
        for _ in 0..3 {
            let answer = Api::new(&service.url, &token).get("/webhooks").await.expect(503);
            assert_eq!(answer.header("retry-after"), Some("60"));
        }
        assert_eq!(fetches.load(Ordering::SeqCst), 1);
        service.api("1").await.get("/webhooks").await.expect(200);
    }
}
