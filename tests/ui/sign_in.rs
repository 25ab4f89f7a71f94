//! Who gets in, by what, and for how long: over plain HTTP, as a browser would and as an attacker might.

use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, Response};
use serde_json::json;

use crate::fixture::Stage;
use crate::support::{TestApp, hs256_token};

const SECRET: &str = "a secret of at least thirty-two bytes";

struct Visitor {
    stage: Stage,
    client: Client,
}

impl Visitor {
    async fn start(settings: &[(&str, &str)]) -> Visitor {
        let mut app = TestApp::prepare().await;
        for (key, value) in settings {
            app.set(key, value);
        }
        let stage = Stage::start_with(app).await;
        let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Visitor { stage, client }
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], form: &str) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.stage.origin()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.header("content-type", "application/x-www-form-urlencoded").body(form.to_owned()).send().await.unwrap()
    }

    async fn get(&self, path: &str, cookie: &str) -> Response {
        self.send(Method::GET, path, &[(COOKIE.as_str(), cookie)], "").await
    }

    /// The cookie of a new session.
    async fn sign_in(&self, next: &str) -> (Response, String) {
        let form = format!("token={}&next={next}", self.stage.api.token);
        let answer = self.send(Method::POST, "/ui/login", &[], &form).await;
        let cookie = cookie(&answer).expect("a session");
        (answer, cookie)
    }
}

fn cookie(answer: &Response) -> Option<String> {
    let set = answer.headers().get(SET_COOKIE)?.to_str().ok()?;
    Some(set.split(';').next()?.to_owned())
}

fn location(answer: &Response) -> &str {
    assert_eq!(answer.status(), 303, "{answer:?}");
    answer.headers()[LOCATION].to_str().unwrap()
}

#[tokio::test]
async fn a_session_begins_with_a_token_and_ends_with_it() {
    let visitor = Visitor::start(&[]).await;
    assert_eq!(location(&visitor.get("/ui/webhooks/new", "").await), "/ui/login?next=%2Fui%2Fwebhooks%2Fnew");
    let refused = visitor.send(Method::POST, "/ui/login", &[], "token=whk_wrong").await;
    assert_eq!((refused.status().as_u16(), cookie(&refused)), (401, None));
    let (answer, session) = visitor.sign_in("/ui/webhooks/new").await;
    assert_eq!(location(&answer), "/ui/webhooks/new");
    let set = answer.headers()[SET_COOKIE].to_str().unwrap();
    assert!(set.contains("; HttpOnly") && set.contains("; SameSite=Lax") && !set.contains("Secure"), "{set}");
    for elsewhere in ["https://evil.example/", "//evil.example", "/\\evil.example", "/ui/%0d%0aSet-Cookie:x"] {
        assert_eq!(location(&visitor.sign_in(elsewhere).await.0), "/ui", "{elsewhere}");
    }
    let stored: Vec<Vec<u8>> = {
        let rows = visitor.stage.app.store().await.query("select hash from walhook.session", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(stored.len(), 5);
    let id = session.split_once('=').unwrap().1.as_bytes();
    assert!(stored.iter().all(|hash| hash.len() == 32 && hash != id));
    assert_eq!(visitor.get("/ui", &session).await.status(), 200);
    let token = visitor.stage.app.walhook_ok(&["token", "list"]).await;
    let token = token.split_whitespace().find(|word| word.parse::<uuid::Uuid>().is_ok()).expect("the token's id");
    visitor.stage.app.walhook_ok(&["token", "revoke", token]).await;
    assert_eq!(location(&visitor.get("/ui", &session).await), "/ui/login");
}

#[tokio::test]
async fn sessions_end_by_age_by_rest_and_by_signing_out() {
    let visitor = Visitor::start(&[("http.public_url", "https://hooks.example")]).await;
    let store = visitor.stage.app.store().await;
    for statement in ["used_at = now() - interval '121 minutes'", "created_at = now() - interval '721 minutes'"] {
        let (answer, session) = visitor.sign_in("").await;
        assert!(answer.headers()[SET_COOKIE].to_str().unwrap().ends_with("; Secure"), "{answer:?}");
        assert_eq!(visitor.get("/ui", &session).await.status(), 200);
        store.batch_execute(&format!("update walhook.session set {statement}")).await.unwrap();
        let sent_away = visitor.get("/ui", &session).await;
        assert_eq!(location(&sent_away), "/ui/login");
        let told = visitor.get("/ui/login", &session).await.text().await.unwrap();
        assert!(told.contains("Your session is over"), "{told}");
    }
    let own = walhook::store::Store::open(&visitor.stage.app.store_url, 1).unwrap();
    walhook::store::sessions::remove_old(&own).await.unwrap();
    let left: i64 = store.query_one("select count(*) from walhook.session", &[]).await.unwrap().get(0);
    assert_eq!(left, 0);
    let (_, session) = visitor.sign_in("").await;
    let origin = [("cookie", session.as_str()), ("origin", "https://hooks.example")];
    assert_eq!(location(&visitor.send(Method::POST, "/ui/logout", &origin, "").await), "/ui/login");
    assert_eq!(location(&visitor.get("/ui", &session).await), "/ui/login");
}

#[tokio::test]
async fn pages_of_other_sites_cannot_act_for_a_visitor() {
    let visitor = Visitor::start(&[]).await;
    let (id, _) = visitor.stage.api.create_webhook(&visitor.stage.receiver.url("/in"), &["delivery.failed"]).await;
    let (_, session) = visitor.sign_in("").await;
    let api = |rest: &str| format!("/api/public/webhooks/{id}{rest}");
    for (name, value) in
        [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"), ("origin", "https://evil.example")]
    {
        let headers = [("cookie", session.as_str()), (name, value)];
        for path in [format!("/ui/webhooks/{id}/delete"), api("/regenerate-secret"), "/ui/login".into()] {
            let answer = visitor.send(Method::POST, &path, &headers, "").await;
            assert_eq!(answer.status(), 403, "{name}: {value} {path}");
        }
        assert_eq!(visitor.send(Method::DELETE, &api(""), &headers, "").await.status(), 403);
        // Who has the token speaks for themselves, wherever they are.
        let bearer = format!("Bearer {}", visitor.stage.api.token);
        let headers = [("authorization", bearer.as_str()), (name, value)];
        assert_eq!(visitor.send(Method::POST, &api("/regenerate-secret"), &headers, "").await.status(), 200);
    }
    let own = [("cookie", session.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(visitor.send(Method::GET, &api(""), &own, "").await.status(), 200, "the API takes the cookie");
    assert_eq!(visitor.send(Method::POST, &api("/regenerate-secret"), &own, "").await.status(), 200);
    let via = "select via, token_id is not null from walhook.audit order by id desc limit 1";
    let row = visitor.stage.app.store().await.query_one(via, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, bool>(1)), ("session", true));
}

#[tokio::test]
async fn a_link_of_the_platform_signs_in_once() {
    let settings = [
        ("auth.jwt.issuer", "https://platform.example"),
        ("auth.jwt.audience", "walhook"),
        ("auth.jwt.secret", SECRET),
    ];
    let visitor = Visitor::start(&settings).await;
    let link = |seconds: i64| {
        let exp = jiff::Timestamp::now().as_second() + seconds;
        let claims = json!({ "iss": "https://platform.example", "aud": "walhook", "sub": "42", "exp": exp });
        let token = hs256_token(SECRET, &claims);
        format!("/ui/login?next=/ui/events&jwt={token}")
    };
    let good = link(60);
    let looked = visitor.send(Method::HEAD, &good, &[], "").await;
    assert_eq!((looked.status().as_u16(), cookie(&looked)), (200, None), "looking uses nothing up");
    let entered = visitor.get(&good, "").await;
    assert_eq!(location(&entered), "/ui/events");
    assert_eq!(entered.headers()["referrer-policy"], "same-origin");
    let session = cookie(&entered).unwrap();
    let page = visitor.get("/ui/events", &session).await.text().await.unwrap();
    assert!(page.contains("User <bdi>42</bdi>"), "{page}");
    let lasting = link(3_600);
    for refused in [good.as_str(), &lasting, &link(-120), "/ui/login?jwt=nonsense"] {
        let answer = visitor.get(refused, "").await;
        assert_eq!((answer.status().as_u16(), cookie(&answer)), (401, None), "{refused}");
    }
    // What is good for the API for an hour is not good for a session.
    let token = lasting.split("jwt=").nth(1).unwrap();
    assert_eq!(visitor.send(Method::POST, "/ui/login", &[], &format!("token={token}")).await.status(), 401);
}

#[tokio::test]
async fn headers_protect_every_page_and_assets_stay_in_the_browser() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    for path in ["/ui", "/ui/login", "/ui/nothing", "/ui/webhooks/new"] {
        let answer = visitor.get(path, &session).await;
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"), "{path}: {policy}");
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{path}");
        assert!(answer.headers().contains_key("x-request-id"), "{path}");
    }
    let page = visitor.get("/ui/login", "").await.text().await.unwrap();
    for stem in ["ui-", "icon-"] {
        let path = page.split('"').find(|part| part.contains(&format!("/assets/{stem}"))).expect("an asset").to_owned();
        let answer = visitor.get(&path, "").await;
        assert_eq!(answer.headers()["cache-control"], "public, max-age=31536000, immutable", "{path}");
    }
    assert_eq!(visitor.get("/ui/assets/ui-0.css", "").await.status(), 404);
    assert_eq!(visitor.send(Method::DELETE, "/ui", &[("cookie", session.as_str())], "").await.status(), 405);
    // A secret's page is not compressed: its length would tell of what else is on it.
    let events = format!("name=x&url={}&events=delivery.failed", visitor.stage.receiver.url("/in"));
    let headers = [("cookie", session.as_str()), ("accept-encoding", "gzip")];
    let created = visitor.send(Method::POST, "/ui/webhooks", &headers, &events).await;
    assert!(!created.headers().contains_key("content-encoding"), "{created:?}");
    assert!(created.text().await.unwrap().contains("whsec_"));
    let list = visitor.send(Method::GET, "/ui", &headers, "").await;
    assert_eq!(list.headers()["content-encoding"], "gzip");
}
