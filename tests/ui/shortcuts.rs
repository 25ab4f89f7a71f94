//! Keyboard shortcuts.

use serde_json::json;
use thirtyfour::Key;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{REVIEW, Stage};

/// Waits until the script listens to keys.
async fn wait_until_ready(browser: &Browser) {
    browser.find("#shortcuts").await;
}

/// Returns the path that the link with the focus leads to.
async fn focused_link(browser: &Browser) -> String {
    let path = "return document.activeElement.pathname ?? ''";
    let path = browser.evaluate(path).await;
    path.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_shortcuts_that_the_list_shows_work() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;

    browser.press("?").await;
    browser.find("dialog[open] .keys").await;
    audit::check(&browser).await;

    let places = "return [...document.querySelectorAll('dialog [data-key]')].map((link) => [link.dataset.key, link.pathname])";
    let places = browser.evaluate(places).await;
    let places = places.as_array().unwrap();
    assert!(places.contains(&json!(["a", "/ui/audit"])), "{places:?}");

    // Keys that belong to the dialog do nothing on the page behind it.
    browser.press("gd").await;
    browser.press(Key::Escape).await;
    browser.find("body:not(:has(dialog[open]))").await;
    assert_eq!(browser.path().await, "/ui");

    for place in places.iter().rev() {
        let (key, path) = (place[0].as_str().unwrap(), place[1].as_str().unwrap());
        browser.press(format!("g{key}")).await;
        browser.wait_for_path(path, |shown| shown == path).await;
        wait_until_ready(&browser).await;
    }

    browser.press("/").await;
    browser
        .wait_for_path("the search", |path| path.starts_with("/ui/logs"))
        .await;
    browser.find("#cat:focus").await;
    audit::check(&browser).await;
}

#[tokio::test]
async fn rows_are_reached_by_keys() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let url = stage.receiver.url("/");
    let (first, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let (second, _) = stage.api.create_webhook(&url, &[REVIEW]).await;
    let browser = stage.browser(Kind::Desktop).await;
    let mut rows = Vec::new();

    for key in ["j", "j", "j", "k"] {
        browser.press(key).await;
        rows.push(focused_link(&browser).await);
    }

    let of = |id: &String| format!("/ui/webhooks/{id}");
    let shown = [&rows[0], &rows[1]];
    assert!(
        shown.contains(&&of(&first)) && shown.contains(&&of(&second)),
        "{rows:?}"
    );
    assert_eq!((&rows[2], &rows[3]), (&rows[1], &rows[0]), "the list ends");

    browser.press(Key::Enter).await;
    browser
        .wait_for_path("the webhook", |path| *path == *rows[0])
        .await;
}

#[tokio::test]
async fn shortcuts_do_nothing_in_fields_with_modifiers_or_when_they_are_off() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Desktop).await;

    browser.visit("/ui/logs").await;
    browser.press("/").await;
    browser.press("?ge/").await;
    let typed = browser.find("#cat").await.value().await.unwrap();
    assert_eq!(typed.as_deref(), Some("?ge/"));

    browser.visit("/ui").await;

    for modifier in [Key::Control, Key::Alt, Key::Meta] {
        let chain = browser.driver.action_chain().key_down(modifier.clone());
        let chain = chain.send_keys("g").key_up(modifier).send_keys("e");
        chain.perform().await.unwrap();
    }

    // The dialog would not open if one of those keys had led away.
    browser.press("?").await;
    browser.click("dialog [data-shortcuts]").await;
    browser.click("dialog [data-close]").await;
    assert_eq!(browser.path().await, "/ui");

    // Off, on other pages too, until they are turned on again.
    browser.visit("/ui/events").await;
    browser.press("?gw").await;
    browser.click("#shortcuts").await;
    assert_eq!(browser.count("dialog [data-shortcuts]:checked").await, 0);
    browser.click("dialog [data-shortcuts]").await;
    browser.click("dialog [data-close]").await;
    assert_eq!(browser.path().await, "/ui/events");
    browser.press("gw").await;
    browser
        .wait_for_path("the list", |path| path == "/ui")
        .await;
}
