//! Signing in, sessions, sign-in links and response headers, over plain HTTP.

use futures_util::future::join_all;
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use walhook::private_postgres::{Options, StopMode};

use crate::fixture::Stage;
use crate::support::{Api, TestApp, eventually, hs256_token, hs256_token_with, one, run_sql};

pub const SECRET: &str = "a secret of at least thirty-two bytes";
/// The settings that accept the tokens of the platform.
pub const PLATFORM: [(&str, &str); 3] = [
    ("auth.jwt.issuer", "https://platform.example"),
    ("auth.jwt.audience", "walhook"),
    ("auth.jwt.secret", SECRET),
];
/// The audience of sign-in links if that of the API is `walhook`.
const SIGN_IN: &str = "walhook/sign-in";

/// A client of a running sidecar, without a browser.
pub struct Visitor {
    pub stage: Stage,
    client: Client,
}

impl Visitor {
    pub async fn start(settings: &[(&str, &str)]) -> Visitor {
        let mut app = TestApp::prepare().await;

        for (key, value) in settings {
            app.set(key, value);
        }

        let stage = Stage::start_with(app).await;
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Visitor { stage, client }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        form: &str,
    ) -> Response {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.stage.origin()));

        for (name, value) in headers {
            request = request.header(*name, *value);
        }

        request
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.to_owned())
            .send()
            .await
            .unwrap()
    }

    pub async fn get(&self, path: &str, cookie: &str) -> Response {
        self.send(Method::GET, path, &[(COOKIE.as_str(), cookie)], "")
            .await
    }

    /// Follows a link on a page of the platform.
    pub async fn follow(&self, link: &str, cookie: &str) -> Response {
        self.send(
            Method::GET,
            link,
            &[(COOKIE.as_str(), cookie), ("sec-fetch-site", "same-site")],
            "",
        )
        .await
    }

    /// Follows a link on a page of the platform, and submits the form of its page as the script
    /// does.
    pub async fn enter(&self, link: &str, cookie: &str) -> Response {
        let page = self.follow(link, cookie).await;
        assert_eq!(page.status(), 200);
        assert!(!page.headers().contains_key(SET_COOKIE), "a GET signs in");
        let page = page.text().await.unwrap();
        assert!(page.contains("data-submit"), "{page}");

        let own = [("cookie", cookie), ("sec-fetch-site", "same-origin")];
        let (_, form) = link.split_once('?').unwrap();
        self.send(Method::POST, "/ui/login", &own, form).await
    }

    /// Signs in and returns the response with the session cookie.
    pub async fn sign_in(&self, next: &str) -> (Response, String) {
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
async fn a_session_starts_with_a_token_and_ends_when_it_is_revoked() {
    let visitor = Visitor::start(&[]).await;
    assert_eq!(
        location(&visitor.get("/ui/webhooks/new", "").await),
        "/ui/login?next=%2Fui%2Fwebhooks%2Fnew"
    );

    let rejected = visitor
        .send(Method::POST, "/ui/login", &[], "token=whk_wrong")
        .await;
    assert_eq!((rejected.status().as_u16(), cookie(&rejected)), (401, None));

    let (answer, session) = visitor.sign_in("/ui/webhooks/new").await;
    assert_eq!(location(&answer), "/ui/webhooks/new");

    let set = answer.headers()[SET_COOKIE].to_str().unwrap();
    assert!(
        set.contains("; HttpOnly") && set.contains("; SameSite=Lax") && !set.contains("Secure"),
        "{set}"
    );

    for elsewhere in [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/ui/%0d%0aSet-Cookie:x",
    ] {
        assert_eq!(
            location(&visitor.sign_in(elsewhere).await.0),
            "/ui",
            "{elsewhere}"
        );
    }

    let stored: Vec<Vec<u8>> = {
        let rows = visitor
            .stage
            .app
            .store()
            .await
            .query("select hash from walhook.session", &[])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };

    assert_eq!(stored.len(), 5);
    let id = session.split_once('=').unwrap().1.as_bytes();

    assert!(stored.iter().all(|hash| hash.len() == 32 && hash != id));
    assert_eq!(visitor.get("/ui", &session).await.status(), 200);

    let token = visitor.stage.app.walhook_ok(&["token", "list"]).await;
    let token = token
        .split_whitespace()
        .find(|word| word.parse::<uuid::Uuid>().is_ok())
        .expect("the token's id");
    visitor
        .stage
        .app
        .walhook_ok(&["token", "revoke", token])
        .await;
    assert_eq!(location(&visitor.get("/ui", &session).await), "/ui/login");
}

#[tokio::test]
async fn a_new_session_is_accepted_while_others_guess_tokens() {
    let visitor =
        Visitor::start(&[("limits.requests_per_second", "1"), ("limits.burst", "10")]).await;
    let (_, session) = visitor.sign_in("").await;

    // The responses to rejected guesses wait for half a second, so that a hundred clients always
    // exhaust ten lookups per second.
    let rejected = Semaphore::new(0);
    let guess = async |client: usize| {
        for number in 0.. {
            let form = format!("token=whk_{:043}", client * 1_000_000 + number);
            if visitor
                .send(Method::POST, "/ui/login", &[], &form)
                .await
                .status()
                == 429
            {
                rejected.add_permits(1);
            }
        }
    };

    let page = async {
        let _ = rejected.acquire_many(100).await.unwrap();
        visitor.get("/ui", &session).await
    };

    let page = tokio::select! {
        page = page => page,
        _ = join_all((0..100).map(guess)) => unreachable!("guesses never end"),
    };

    assert_eq!(page.status(), 200);
}

#[tokio::test]
async fn sessions_end_by_age_by_inactivity_and_by_signing_out() {
    let visitor = Visitor::start(&[("http.public_url", "https://hooks.example")]).await;
    let store = visitor.stage.app.store().await;

    for statement in [
        "used_at = now() - interval '121 minutes'",
        "created_at = now() - interval '721 minutes'",
    ] {
        let (answer, session) = visitor.sign_in("").await;
        // With this prefix, browsers accept the cookie from this host only, so that a sibling
        // domain cannot plant one.
        let set = answer.headers()[SET_COOKIE].to_str().unwrap();
        assert!(
            set.starts_with("__Host-walhook_session=") && set.contains("; Path=/;"),
            "{set}"
        );
        assert!(
            set.ends_with("; Secure") && !set.contains("Domain"),
            "{set}"
        );
        let planted = session.replace("__Host-", "");
        assert_eq!(
            location(&visitor.get("/ui", &planted).await),
            "/ui/login",
            "a cookie without the prefix is ignored"
        );
        assert_eq!(visitor.get("/ui", &session).await.status(), 200);
        run_sql(&store, &format!("update walhook.session set {statement}")).await;
        let redirected = visitor.get("/ui", &session).await;
        assert_eq!(location(&redirected), "/ui/login");
        let page = visitor
            .get("/ui/login", &session)
            .await
            .text()
            .await
            .unwrap();
        assert!(page.contains("Your session has expired"), "{page}");
    }

    let own = walhook::store::Store::open(&visitor.stage.app.store_url, 1).unwrap();
    walhook::store::access::remove_old(&own).await.unwrap();

    let remaining: i64 = one(&store, "select count(*) from walhook.session").await;
    assert_eq!(remaining, 0);

    let (_, session) = visitor.sign_in("").await;
    let origin = [
        ("cookie", session.as_str()),
        ("origin", "https://hooks.example"),
    ];
    assert_eq!(
        location(&visitor.send(Method::POST, "/ui/logout", &origin, "").await),
        "/ui/login"
    );
    assert_eq!(location(&visitor.get("/ui", &session).await), "/ui/login");
}

#[tokio::test]
async fn other_sites_cannot_submit_forms_for_a_visitor() {
    let visitor = Visitor::start(&[]).await;
    let (id, _) = visitor
        .stage
        .api
        .create_webhook(&visitor.stage.receiver.url("/in"), &["delivery.failed"])
        .await;
    let (_, session) = visitor.sign_in("").await;
    let api = |rest: &str| format!("/api/public/webhooks/{id}{rest}");

    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
    ] {
        let headers = [("cookie", session.as_str()), (name, value)];
        for path in [
            format!("/ui/webhooks/{id}/delete"),
            api("/regenerate-secret"),
            "/ui/login".into(),
        ] {
            let answer = visitor.send(Method::POST, &path, &headers, "").await;
            assert_eq!(answer.status(), 403, "{name}: {value} {path}");
        }
        assert_eq!(
            visitor
                .send(Method::DELETE, &api(""), &headers, "")
                .await
                .status(),
            403
        );
        // A request with a token is accepted from everywhere.
        let bearer = format!("Bearer {}", visitor.stage.api.token);
        let headers = [("authorization", bearer.as_str()), (name, value)];
        assert_eq!(
            visitor
                .send(Method::POST, &api("/regenerate-secret"), &headers, "")
                .await
                .status(),
            200
        );
    }

    let own = [
        ("cookie", session.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    assert_eq!(
        visitor.send(Method::GET, &api(""), &own, "").await.status(),
        200,
        "the API accepts the cookie"
    );

    assert_eq!(
        visitor
            .send(Method::POST, &api("/regenerate-secret"), &own, "")
            .await
            .status(),
        200
    );

    let via = "select via, token_id is not null from walhook.audit order by id desc limit 1";
    let row = visitor
        .stage
        .app
        .store()
        .await
        .query_one(via, &[])
        .await
        .unwrap();

    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, bool>(1)),
        ("session", true)
    );
}

/// Starts a service that accepts tokens of the platform.
async fn with_platform() -> Visitor {
    Visitor::start(&PLATFORM).await
}

/// Signs a token of the platform. `issued` and `expires` are seconds from now.
fn platform_token(audience: impl Into<Value>, user: &str, issued: i64, expires: i64) -> String {
    hs256_token(SECRET, &claims(audience, user, issued, expires))
}

fn claims(audience: impl Into<Value>, user: &str, issued: i64, expires: i64) -> Value {
    let now = jiff::Timestamp::now().as_second();
    json!({
        "iss": "https://platform.example", "aud": audience.into(), "sub": user, "iat": now + issued, "exp": now + expires,
        "jti": uuid::Uuid::now_v7()
    })
}

fn sign_in_token(user: &str) -> String {
    platform_token(SIGN_IN, user, 0, 60)
}

fn link(token: &str) -> String {
    format!("/ui/login?next=/ui/events&jwt={token}")
}

#[tokio::test]
async fn a_sign_in_link_works_once() {
    let visitor = with_platform().await;
    let good = sign_in_token("42");

    // Neither do programs that look at links use it up.
    for method in [Method::HEAD, Method::GET] {
        let looked = visitor.send(method, &link(&good), &[], "").await;
        assert_eq!((looked.status().as_u16(), cookie(&looked)), (200, None));
    }

    let entered = visitor.enter(&link(&good), "").await;

    assert_eq!(location(&entered), "/ui/events");
    assert_eq!(entered.headers()["referrer-policy"], "same-origin");

    let session = cookie(&entered).unwrap();
    let page = visitor
        .get("/ui/events", &session)
        .await
        .text()
        .await
        .unwrap();

    assert!(page.contains("User <bdi>42</bdi>"), "{page}");
    let mut without_iat = json!({ "iss": "https://platform.example", "aud": SIGN_IN, "sub": "42" });

    without_iat["exp"] = (jiff::Timestamp::now().as_second() + 60).into();

    let rejected = [
        sign_in_token("42").replace('.', "x"),
        "nonsense".to_owned(),
        hs256_token(SECRET, &without_iat),
        platform_token(SIGN_IN, "42", 0, 3_600),
        // Expires soon, but was issued for an hour.
        platform_token(SIGN_IN, "42", -3_500, 100),
        platform_token(SIGN_IN, "42", 120, 180),
        platform_token(SIGN_IN, "42", -180, -120),
    ];
    for rejected in &rejected {
        let answer = visitor.follow(&link(rejected), "").await;
        assert_eq!(
            (answer.status().as_u16(), cookie(&answer)),
            (401, None),
            "{rejected}"
        );
    }

    let again = visitor.enter(&link(&good), "").await;
    assert_eq!((again.status().as_u16(), cookie(&again)), (401, None));
}

#[tokio::test]
async fn the_api_makes_links_that_work_once_and_end_with_their_token() {
    let visitor = Visitor::start(&[]).await;
    let api = &visitor.stage.api;
    let make = async |api: &Api| api.post("/sign-in-links", json!({})).await;
    let created = make(api).await.expect(201).json();
    let link = created["url"].as_str().unwrap();
    assert!(
        link.starts_with("/ui/login?link=whl_") && link.len() < 200,
        "{link}"
    );

    let expires_at: jiff::Timestamp = created["expires_at"].as_str().unwrap().parse().unwrap();
    assert!(expires_at <= jiff::Timestamp::now() + jiff::SignedDuration::from_mins(1));

    let last = if link.ends_with('A') { 'B' } else { 'A' };
    let changed = format!("{}{last}", &link[..link.len() - 1]);
    assert_eq!(visitor.follow(&changed, "").await.status(), 401);

    let session = cookie(&visitor.enter(link, "").await).expect("a session");
    assert_eq!(visitor.get("/ui", &session).await.status(), 200);
    assert_eq!(visitor.enter(link, "").await.status(), 401, "once");

    let read_only = json!({ "name": "r", "scope": "read_only" });
    let token = api.post("/tokens", read_only).await.expect(201).json();
    let reader = Api::new(&api.url, token["token"].as_str().unwrap());
    make(&reader).await.expect(403);

    // The session is the token's: it ends with it.
    let token = api
        .post("/tokens", json!({ "name": "t" }))
        .await
        .expect(201)
        .json();
    let other = Api::new(&api.url, token["token"].as_str().unwrap());
    let made = make(&other).await.expect(201).json();
    let session = cookie(&visitor.enter(made["url"].as_str().unwrap(), "").await).unwrap();
    assert_eq!(visitor.get("/ui", &session).await.status(), 200);
    api.delete(&format!("/tokens/{}", token["id"].as_str().unwrap()))
        .await
        .expect(204);
    assert_eq!(location(&visitor.get("/ui", &session).await), "/ui/login");
}

#[tokio::test]
async fn a_token_for_the_api_starts_no_session_and_a_link_does_not_call_the_api() {
    let visitor = with_platform().await;
    let call = async |token: &str| {
        let bearer = format!("Bearer {token}");
        visitor
            .send(
                Method::GET,
                "/api/public/webhooks",
                &[("authorization", &bearer)],
                "",
            )
            .await
            .status()
            .as_u16()
    };

    let for_api = platform_token("walhook", "42", 0, 60);
    assert_eq!(call(&for_api).await, 200);

    let for_both = platform_token(json!(["walhook", SIGN_IN]), "42", 0, 60);
    for token in [&for_api, &for_both] {
        let answer = visitor.follow(&link(token), "").await;
        assert_eq!(
            (answer.status().as_u16(), cookie(&answer)),
            (401, None),
            "{token}"
        );

        for field in ["token", "jwt"] {
            let answer = visitor
                .send(Method::POST, "/ui/login", &[], &format!("{field}={token}"))
                .await;
            assert_eq!(
                (answer.status().as_u16(), cookie(&answer)),
                (401, None),
                "{field}"
            );
        }
    }

    for token in [
        &sign_in_token("42"),
        &for_both,
        &platform_token("walhook", "42", 120, 180),
    ] {
        assert_eq!(call(token).await, 401, "{token}");
    }
}

#[tokio::test]
async fn tokens_with_critical_extensions_are_rejected() {
    let visitor = with_platform().await;
    let critical = |audience: &str, extensions: Value| {
        let header = json!({ "alg": "HS256", "crit": extensions, "policy": "read-only" });
        hs256_token_with(&header, SECRET, &claims(audience, "42", 0, 60))
    };

    for extensions in [
        json!(["policy"]),
        json!(["exp"]),
        json!([]),
        json!("policy"),
    ] {
        let bearer = format!("Bearer {}", critical("walhook", extensions.clone()));
        let headers = [("authorization", bearer.as_str())];
        let called = visitor
            .send(Method::GET, "/api/public/webhooks", &headers, "")
            .await;
        assert_eq!(called.status(), 401, "{extensions}");

        let entered = visitor
            .get(&link(&critical(SIGN_IN, extensions.clone())), "")
            .await;
        assert_eq!(
            (entered.status().as_u16(), cookie(&entered)),
            (401, None),
            "{extensions}"
        );
    }
}

#[tokio::test]
async fn sign_ins_are_audited() {
    let visitor = with_platform().await;
    visitor.sign_in("").await;
    visitor.enter(&link(&sign_in_token("42")), "").await;
    visitor.follow(&link("nonsense"), "").await;

    let query =
        "select via, token_id is not null, user_id = '42', changed = '{}' from walhook.audit
                 where action = 'user.signed_in' order by id";
    let rows = visitor
        .stage
        .app
        .store()
        .await
        .query(query, &[])
        .await
        .unwrap();

    let found: Vec<(&str, bool, bool, bool)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect();
    assert_eq!(
        found,
        [("token", true, false, true), ("jwt", false, true, true)]
    );
}

#[tokio::test]
async fn a_link_asks_before_it_replaces_another_user_s_session() {
    let visitor = with_platform().await;
    let session_of = async |user: &str| {
        cookie(&visitor.enter(&link(&sign_in_token(user)), "").await).expect("a session")
    };

    let user_of = async |session: &str| {
        let page = visitor
            .get("/ui/events", session)
            .await
            .text()
            .await
            .unwrap();
        page.split("User <bdi>")
            .nth(1)
            .map(|rest| rest.split('<').next().unwrap().to_owned())
    };

    let session = session_of("victim").await;
    let token = sign_in_token("attacker");
    let confirmation = visitor.follow(&link(&token), &session).await;

    assert_eq!(
        (confirmation.status().as_u16(), cookie(&confirmation)),
        (200, None),
        "a page asks first"
    );
    let page = confirmation.text().await.unwrap();

    assert!(
        page.contains("<bdi>victim</bdi>") && page.contains("<bdi>attacker</bdi>"),
        "{page}"
    );
    assert_eq!(user_of(&session).await.as_deref(), Some("victim"));

    // Another site cannot confirm for the visitor.
    let form = format!("jwt={token}&next=/ui/events");
    let foreign = [
        ("cookie", session.as_str()),
        ("sec-fetch-site", "cross-site"),
    ];

    assert_eq!(
        visitor
            .send(Method::POST, "/ui/login", &foreign, &form)
            .await
            .status(),
        403
    );

    assert_eq!(user_of(&session).await.as_deref(), Some("victim"));
    let own = [
        ("cookie", session.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    let replaced = visitor.send(Method::POST, "/ui/login", &own, &form).await;

    assert_eq!(location(&replaced), "/ui/events");
    assert_eq!(
        user_of(&cookie(&replaced).unwrap()).await.as_deref(),
        Some("attacker")
    );
    assert_eq!(user_of(&session).await, None, "the old session has ended");

    assert_eq!(
        visitor
            .send(Method::POST, "/ui/login", &own, &form)
            .await
            .status(),
        401,
        "once"
    );

    // A link of the same user does not ask.
    let session = session_of("victim").await;
    let entered = visitor
        .enter(&link(&sign_in_token("victim")), &session)
        .await;
    assert_eq!(location(&entered), "/ui/events");
}

/// What a visitor enters would otherwise belong to the user that another site chose.
#[tokio::test]
async fn other_sites_sign_in_no_visitor() {
    let visitor = with_platform().await;

    for site in [
        &[("sec-fetch-site", "cross-site")][..],
        // Nothing around the web UI is of the platform, because no page may embed it.
        &[
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-dest", "iframe"),
        ],
        &[("sec-fetch-site", "none")],
        &[],
    ] {
        let token = sign_in_token("attacker");
        let confirmation = visitor.send(Method::GET, &link(&token), site, "").await;

        assert_eq!(
            (confirmation.status().as_u16(), cookie(&confirmation)),
            (200, None),
            "{site:?}"
        );
        let page = confirmation.text().await.unwrap();

        assert!(
            page.contains("Sign in as <bdi>attacker</bdi>")
                && !page.contains("You are signed in")
                && !page.contains("data-submit"),
            "{page}"
        );
        let form = format!("jwt={token}&next=/ui/events");
        let own = [("sec-fetch-site", "same-origin")];
        assert_eq!(
            location(&visitor.send(Method::POST, "/ui/login", &own, &form).await),
            "/ui/events"
        );
    }

    visitor.enter(&link(&sign_in_token("42")), "").await;

    let credentials = [
        format!("token={}", visitor.stage.api.token),
        format!("jwt={}", sign_in_token("attacker")),
    ];
    for form in &credentials {
        for foreign in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "https://evil.example"),
        ] {
            let answer = visitor
                .send(Method::POST, "/ui/login", &[foreign], form)
                .await;
            assert_eq!(
                (answer.status().as_u16(), cookie(&answer)),
                (403, None),
                "{foreign:?}"
            );
        }
    }
}

impl Visitor {
    /// Returns the secret that a page shows, or the path that it redirects to.
    async fn secret_at(&self, path: &str, session: &str) -> Result<String, String> {
        let answer = self.get(path, session).await;
        if answer.status() != 200 {
            return Err(location(&answer).to_owned());
        }

        let page = answer.text().await.unwrap();
        let secret = page
            .split("<code id=\"secret\">")
            .nth(1)
            .expect("a secret")
            .split('<')
            .next()
            .unwrap();

        assert!(secret.starts_with("whsec_"), "{page}");
        Ok(secret.to_owned())
    }
}

#[tokio::test]
async fn a_secret_is_shown_until_it_is_hidden_or_ten_minutes_have_passed() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let headers = [("cookie", session.as_str())];
    let form = format!(
        "name=x&url={}&events=delivery.failed",
        visitor.stage.receiver.url("/in")
    );
    let created = visitor
        .send(Method::POST, "/ui/webhooks/new", &headers, &form)
        .await;
    let page = location(&created).to_owned();

    assert!(
        !page.contains("whsec_") && created.text().await.unwrap().is_empty(),
        "{page}"
    );
    let webhook = page.rsplit_once('/').unwrap().0.to_owned();
    let id = webhook.rsplit('/').next().unwrap();
    let first = visitor.secret_at(&page, &session).await.unwrap();

    assert_eq!(
        visitor.secret_at(&page, &session).await.as_ref(),
        Ok(&first),
        "reloading shows it again"
    );
    let (_, other) = visitor.sign_in("").await;

    assert_eq!(
        visitor.secret_at(&page, &other).await,
        Err(webhook.clone()),
        "another session does not see it"
    );
    assert_eq!(
        location(&visitor.send(Method::POST, &page, &headers, "").await),
        webhook
    );
    assert_eq!(
        visitor.secret_at(&page, &session).await,
        Err(webhook.clone()),
        "once"
    );

    let regenerate = async || {
        let answer = visitor
            .send(
                Method::POST,
                &format!("{webhook}/secret"),
                &headers,
                "overlap=0s",
            )
            .await;
        assert_eq!(location(&answer), page);
        visitor.secret_at(&page, &session).await.unwrap()
    };

    let second = regenerate().await;
    assert_ne!(second, first);
    assert_eq!(
        visitor.secret_at(&page, &session).await,
        Ok(second),
        "reloading does not generate another"
    );

    let api = &visitor.stage.api;
    api.post(&format!("/webhooks/{id}/regenerate-secret"), json!({}))
        .await
        .expect(200);
    assert_eq!(
        visitor.secret_at(&page, &session).await,
        Err(webhook.clone()),
        "this session did not generate the secret"
    );
    regenerate().await;

    let store = visitor.stage.app.store().await;
    run_sql(
        &store,
        "update walhook.session set reveals_until = now() where reveals is not null",
    )
    .await;
    assert_eq!(
        visitor.secret_at(&page, &session).await,
        Err(webhook),
        "ten minutes have passed"
    );
}

#[tokio::test]
async fn pages_have_security_headers_and_assets_are_cached() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;

    for path in ["/ui", "/ui/login", "/ui/nothing", "/ui/webhooks/new"] {
        let answer = visitor.get(path, &session).await;
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();

        assert!(
            policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"),
            "{path}: {policy}"
        );
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(
            answer.headers()["x-content-type-options"],
            "nosniff",
            "{path}"
        );
        assert!(answer.headers().contains_key("x-request-id"), "{path}");
    }

    let page = visitor.get("/ui/login", "").await.text().await.unwrap();

    for stem in ["ui-", "icon-"] {
        let path = page
            .split('"')
            .find(|part| part.contains(&format!("/assets/{stem}")))
            .expect("an asset")
            .to_owned();
        let answer = visitor.get(&path, "").await;
        assert_eq!(
            answer.headers()["cache-control"],
            "public, max-age=31536000, immutable",
            "{path}"
        );
    }

    assert_eq!(visitor.get("/ui/assets/ui-0.css", "").await.status(), 404);

    assert_eq!(
        visitor
            .send(Method::DELETE, "/ui", &[("cookie", session.as_str())], "")
            .await
            .status(),
        405
    );

    // The page of a secret is not compressed, because its length would reveal something about the
    // secret.
    let events = format!(
        "name=x&url={}&events=delivery.failed",
        visitor.stage.receiver.url("/in")
    );
    let headers = [("cookie", session.as_str()), ("accept-encoding", "gzip")];
    let created = visitor
        .send(Method::POST, "/ui/webhooks/new", &headers, &events)
        .await;
    let created = visitor
        .send(Method::GET, location(&created), &headers, "")
        .await;

    assert!(
        !created.headers().contains_key("content-encoding"),
        "{created:?}"
    );
    assert!(created.text().await.unwrap().contains("whsec_"));

    let list = visitor.send(Method::GET, "/ui", &headers, "").await;
    assert_eq!(list.headers()["content-encoding"], "gzip");
}

#[tokio::test]
async fn an_error_page_says_when_to_try_again() {
    let app = TestApp::prepare_alone(Options::default()).await;
    let server = app.server.clone();
    let client = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let visitor = Visitor {
        stage: Stage::start_with(app).await,
        client,
    };

    let session = visitor.sign_in("/ui").await.1;
    server.stop(StopMode::Immediate).await.unwrap();

    let unavailable = async || {
        let page = visitor.get("/ui", &session).await;
        (page.status() == 503).then_some(page)
    };

    // The first connection may still report the shutdown.
    let page = eventually("the store to be unavailable", unavailable).await;
    assert_eq!(page.headers()[reqwest::header::RETRY_AFTER], "1");
    assert!(
        page.text()
            .await
            .unwrap()
            .contains("cannot reach its store")
    );
}
