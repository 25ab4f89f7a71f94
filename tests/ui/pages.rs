//! Audits of every page on desktops, on phones and in dark mode.

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::Stage;
use crate::support::{TestApp, run_sql};

#[tokio::test]
async fn the_pages_of_a_new_user_pass_the_audit() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = Browser::start(Kind::Desktop, &stage.origin()).await;

    browser.visit("/ui/login").await;
    audit::check(&browser).await;
    browser.sign_in(&stage.api.token).await;
    browser.wait_for_text("No webhooks yet").await;
    audit::check(&browser).await;
}

#[tokio::test]
async fn every_page_passes_the_audit_on_a_desktop() {
    check_every_page(Kind::Desktop).await;
}

#[tokio::test]
async fn every_page_passes_the_audit_on_a_phone() {
    check_every_page(Kind::Phone).await;
}

#[tokio::test]
async fn every_page_passes_the_audit_in_dark_mode() {
    check_every_page(Kind::Dark).await;
}

async fn check_every_page(kind: Kind) {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let webhook = stage
        .webhook_with_log(
            "Label & Sons: a name that is rather long, so that it has to go over several lines",
        )
        .await;

    let mut pages = stage.pages(&webhook).await;
    let store = stage.app.store().await;

    for state in [
        "disabled_at = now(), disabled_reason = '100 failures in a row: no answer within 10 s'",
        "disabled_at = null",
    ] {
        let url = "/a/rather/long/path/that/has/to/be/broken/somewhere";
        let url = stage.receiver.url(url);
        let events = ["payment.statement_ready"];
        let (id, _) = stage.api.create_webhook(&url, &events).await;
        let update =
            format!("update walhook.webhook set active = false, {state} where id = '{id}'");

        run_sql(&store, &update).await;
        pages.push(("webhook", format!("/ui/webhooks/{id}")));
    }

    let browser = stage.browser(kind).await;

    for (_, path) in &pages {
        browser.visit(path).await;
        audit::check(&browser).await;
    }

    let is_dark = "return matchMedia('(prefers-color-scheme: dark)').matches";
    assert_eq!(browser.evaluate(is_dark).await, kind == Kind::Dark);
}

#[tokio::test]
async fn an_internal_error_has_a_page_without_details() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;
    let store = stage.app.store().await;

    run_sql(&store, "alter table walhook.webhook rename to webhook_away").await;
    browser.visit("/ui").await;
    browser.wait_for_text("Internal error").await;
    assert!(
        !browser.text().await.contains("relation"),
        "{}",
        browser.text().await
    );
    run_sql(&store, "alter table walhook.webhook_away rename to webhook").await;
    browser.visit("/ui").await;
    browser.wait_for_text("No webhooks yet").await;
}

#[tokio::test]
async fn events_that_the_platform_never_sends_are_marked() {
    if !browser::is_available() {
        return;
    }

    let mut app = TestApp::prepare().await;
    app.set("source.tables.track.absent", "true")
        .set("source.tables.release.extra.upc", "cat");
    let stage = Stage::start_with(app).await;
    let url = stage.receiver.url("/");
    let (webhook, _) = stage.api.create_webhook(&url, &["transcode.failed"]).await;
    let browser = stage.browser(Kind::Desktop).await;

    // Two events, by their badges.
    let badges = "return [...document.querySelectorAll('.badge')].filter(badge => badge.textContent === 'Not available').length";
    for (path, count) in [
        ("/ui/event-types".to_owned(), 2),
        ("/ui/webhooks/new".to_owned(), 2),
        (format!("/ui/webhooks/{webhook}"), 1),
    ] {
        browser.visit(&path).await;
        assert_eq!(browser.evaluate(badges).await, count, "{path}");
        audit::check(&browser).await;
    }

    browser.visit("/ui/event-types").await;
    let examples = "return document.body.textContent.split('\"upc\": \"example\"').length - 1";
    assert_eq!(browser.evaluate(examples).await, 11);
}
