//! The web UI in a frame of the platform's page, and the platform's brand.

use std::process::Command;

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;

use crate::browser::{self, Browser, Kind};
use crate::fixture::Stage;
use crate::sign_in::{self, Visitor};
use crate::support::{TestApp, eventually, one, run_program};

/// Where the guide has the web UI.
const PUBLISHED: &str = "https://hooks.example";

/// Returns the code in that language in the guide's section on frames.
fn published(language: &str) -> String {
    let guide = include_str!("../../docs/integrators.md");
    let (_, section) = guide.split_once("### In a frame\n").expect("the section");
    let (_, code) = section
        .split_once(&format!("```{language}\n"))
        .expect("an example");
    code.split_once("```").expect("its end").0.to_owned()
}

/// Returns a link that the guide's program makes.
fn link(origin: &str, user: &str) -> String {
    let call = format!("print(sign_in_link('{user}', '{}'))", sign_in::SECRET);
    let program = [published("python"), call].concat();
    let printed = run_program(Command::new("python3").args(["-c", &program]));
    printed.trim().replace(PUBLISHED, origin)
}

/// Serves the guide's page.
fn serve(listener: TcpListener, origin: String) {
    let page = move || {
        let link = link(&origin, "42");
        let page = published("html").replace(PUBLISHED, &origin);
        let page = page.replace("LINK", &link);
        async move { Html(format!("<!DOCTYPE html><title>Platform</title>{page}")) }
    };

    let router = Router::new().route("/", get(page));
    tokio::spawn(async move { axum::serve(listener, router).await });
}

fn settings(app: &mut TestApp, ancestors: &str) {
    app.set("http.public_url", "http://127.0.0.1")
        .set("ui.frame_ancestors", ancestors);
    for (key, value) in sign_in::PLATFORM {
        app.set(key, value);
    }
}

/// Returns a listener and its origin, which is on another site than the web UI.
async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://localhost:{}", listener.local_addr().unwrap().port());
    (listener, origin)
}

/// The height of the frame in the platform's page.
async fn frame_height(browser: &Browser) -> f64 {
    let height = "return document.querySelector('iframe').getBoundingClientRect().height";
    browser.evaluate(height).await.as_f64().expect("a number")
}

#[tokio::test]
async fn the_platform_s_page_embeds_the_web_ui() {
    if !browser::is_available() {
        return;
    }

    let (listener, platform) = bind().await;
    let (other_listener, other) = bind().await;
    let mut app = TestApp::prepare().await;
    settings(&mut app, &platform);

    let stage = Stage::start_with(app).await;
    serve(listener, stage.origin());
    serve(other_listener, stage.origin());

    let browser = Browser::start(Kind::Desktop, &platform).await;
    browser.visit("/").await;

    // The link has signed in, although the web UI is on another site.
    browser.driver.enter_frame(0).await.unwrap();
    browser.wait_for_text("No webhooks yet").await;
    assert_eq!(browser.count(".brand, .user").await, 0);

    let cookies = browser.devtools("Storage.getCookies", json!({})).await;
    let session = &cookies["cookies"][0];
    assert_eq!(session["name"], "__Host-walhook_portal", "{cookies}");
    assert_eq!(session["partitionKey"]["topLevelSite"], "http://localhost");

    // A form is accepted, and its result shown.
    browser.click("main a.primary").await;
    browser.fill("#name", "From the frame").await;
    browser.fill("#url", &stage.receiver.url("/in")).await;
    browser.click("input[value='delivery.failed']").await;
    browser.click("form.edit .primary").await;
    browser.find("#secret").await;
    let store = stage.app.store().await;
    let owners = "select string_agg(user_id, ',') from walhook.webhook";
    assert_eq!(one::<String>(&store, owners).await, "42");

    // A frame as high as its page opens no dialogs, which would be out of sight.
    browser.click("a[href='/ui']").await;
    browser.click("a[href$='/delete']").await;
    browser.wait_for_text("Delete").await;
    assert_eq!(browser.count("dialog[open]").await, 0);

    // The frame follows the height of each page.
    for path in ["/ui/events", "/ui/guide"] {
        browser.click(&format!("nav a[href='{path}']")).await;
        let page = "return [location.pathname, document.readyState,
                            document.documentElement.getBoundingClientRect().height]";
        let height = eventually("the page", || async {
            let page = browser.evaluate(page).await;
            let is_there = page[0] == path && page[1] == "complete";
            is_there.then(|| page[2].as_f64().expect("a number"))
        })
        .await;

        browser.driver.enter_parent_frame().await.unwrap();
        eventually("the frame's height", || async {
            ((frame_height(&browser).await - height).abs() <= 1.0).then_some(())
        })
        .await;
        browser.driver.enter_frame(0).await.unwrap();
    }

    // The platform's page scrolls to a heading in the frame.
    browser.click("a[href='/ui/guide/secrets']").await;
    browser
        .click("a[href='/ui/guide/verify#complete-receivers']")
        .await;
    browser.wait_for_text("Replay protection").await;
    let top = "return document.getElementById('complete-receivers').getBoundingClientRect().top";
    let top = browser.evaluate(top).await.as_f64().expect("a number");
    browser.driver.enter_parent_frame().await.unwrap();
    let position = "return scrollY - document.querySelector('iframe').offsetTop";
    eventually("the heading", || async {
        let position = browser.evaluate(position).await.as_f64()?;
        // At the top of the window, unless the page ends before.
        (position > 0.0 && (-1.0..700.0).contains(&(top - position))).then_some(())
    })
    .await;

    // The session is that of the platform's frame only.
    browser.driver.enter_default_frame().await.unwrap();
    browser
        .driver
        .goto(format!("{}/ui", stage.origin()))
        .await
        .unwrap();
    browser
        .wait_for_path("the sign-in page", |path| path == "/ui/login")
        .await;

    // Other pages cannot show it.
    browser.driver.goto(&other).await.unwrap();
    browser.driver.enter_frame(0).await.unwrap();
    assert_eq!(browser.count("main, form").await, 0);
    let used: i64 = one(&store, "select count(*) from walhook.used_link").await;
    assert_eq!(used, 1, "the other page has used no link");
}

#[tokio::test]
async fn a_frame_of_the_same_site_shares_the_session_of_a_tab() {
    if !browser::is_available() {
        return;
    }

    let (listener, platform) = bind().await;
    // An IP address is a site, whatever the port.
    let platform = platform.replace("localhost", "127.0.0.1");
    let mut app = TestApp::prepare().await;
    settings(&mut app, &platform);

    let stage = Stage::start_with(app).await;
    let web_ui = stage.origin();
    let page = format!("<!DOCTYPE html><title>Platform</title><iframe src='{web_ui}/ui'></iframe>");
    let router = Router::new().route("/", get(async move || Html(page)));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let browser = stage.browser(Kind::Desktop).await;
    browser.driver.goto(&platform).await.unwrap();
    browser.driver.enter_frame(0).await.unwrap();
    browser.wait_for_text("No webhooks yet").await;
}

#[tokio::test]
async fn the_brand_is_shown_and_stays_readable() {
    if !browser::is_available() {
        return;
    }

    let logo = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'><rect width='40' height='20' fill='#e6b800'/></svg>";
    let (listener, images) = bind().await;
    let image = move || async move { ([("content-type", "image/svg+xml")], logo) };
    let router = Router::new().route("/logo.svg", get(image));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let mut app = TestApp::prepare().await;
    app.set("ui.brand.name", "Aurora & Sons")
        .set("ui.brand.logo", &format!("{images}/logo.svg"))
        .set("ui.brand.accent", "#e6b800")
        .set("ui.brand.color_scheme", "dark");
    let stage = Stage::start_with(app).await;
    let browser = stage.browser(Kind::Desktop).await;

    assert_eq!(browser.text_of(".brand").await, "Aurora & Sons");
    let width = "return document.querySelector('.brand img').naturalWidth";
    eventually("the logo", || async {
        (browser.evaluate(width).await == 40).then_some(())
    })
    .await;

    // The accent is readable on dark pages as it is.
    let colors = "const style = (element, name) => getComputedStyle(document.querySelector(element))[name];
                  return [style('main .primary', 'backgroundColor'), style('body', 'backgroundColor')]";
    assert_eq!(
        browser.evaluate(colors).await,
        json!(["rgb(230, 184, 0)", "rgb(18, 19, 22)"])
    );
    crate::audit::assert_silent(&browser, "a page with a brand").await;

    // Also in the API reference.
    browser.visit("/api/public/docs").await;
    browser.wait_for_text("Aurora & Sons").await;
    let colors =
        "const style = (element, name) => getComputedStyle(document.querySelector(element))[name];
                  return [style('main a', 'color'), style('body', 'backgroundColor')]";
    assert_eq!(
        browser.evaluate(colors).await,
        json!(["rgb(230, 184, 0)", "rgb(18, 19, 22)"])
    );
    crate::audit::check(&browser).await;
}

#[tokio::test]
async fn only_configured_origins_may_embed() {
    let visitor = Visitor::start(&[
        ("http.public_url", "https://hooks.example"),
        (
            "ui.frame_ancestors",
            "https://app.example,https://b.example:81",
        ),
    ])
    .await;
    let ancestors = "frame-ancestors https://app.example https://b.example:81";

    for path in ["/ui/login", "/ui/nothing", "/api/public/docs"] {
        let answer = visitor.get(path, "").await;
        let policy = answer.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(policy.ends_with(ancestors), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    let answer = visitor.get("/api/public/webhooks", "").await;
    let policy = answer.headers()["content-security-policy"]
        .to_str()
        .unwrap();
    assert!(policy.ends_with("frame-ancestors 'none'"), "{policy}");

    let (answer, session) = visitor.sign_in("").await;
    let set = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(set.starts_with("__Host-walhook_portal="), "{set}");
    assert!(set.contains("; SameSite=None; Partitioned; "), "{set}");
    assert!(set.ends_with("; Secure"), "{set}");

    // Such a cookie comes with requests of other sites too.
    let headers = [
        ("cookie", session.as_str()),
        ("sec-fetch-site", "cross-site"),
    ];
    for path in ["/ui/logout", "/api/public/webhooks"] {
        let answer = visitor
            .send(reqwest::Method::POST, path, &headers, "")
            .await;
        assert_eq!(answer.status(), 403, "{path}");
    }
}
