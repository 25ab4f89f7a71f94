//! The receiver's guide in the browser.

use thirtyfour::By;

use crate::audit;
use crate::browser::{self, Kind};
use crate::fixture::{DISTRIBUTED, Stage};

#[tokio::test]
async fn every_chapter_is_accessible_and_names_the_webhook() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let browser = stage.browser(Kind::Phone).await;
    browser.visit("/ui/guide/verify").await;
    audit::check(&browser).await;

    let url = stage.receiver.url("/in");
    let (first, _) = stage.api.create_webhook(&url, &[DISTRIBUTED]).await;
    let (second, _) = stage.api.create_webhook(&url, &[DISTRIBUTED]).await;
    browser.visit("/ui/guide").await;
    browser.wait_for_text("1h, 1h, 1h").await;

    let links = browser.driver.find_all(By::Css(".chapters a")).await;
    let mut chapters = Vec::new();
    for link in links.unwrap() {
        chapters.push(link.attr("href").await.unwrap().expect("a path"));
    }

    assert_eq!(chapters.len(), 18, "{chapters:?}");

    for chapter in chapters.iter().filter(|path| path.starts_with("/ui/guide")) {
        browser.visit(chapter).await;
        audit::check(&browser).await;
    }

    // Every example is that of a webhook of the user, who can choose it.
    for path in [
        "/ui/guide/verify",
        "/ui/guide/a-delivery",
        "/ui/guide/filters",
    ] {
        browser.visit(path).await;
        for webhook in [&first, &second] {
            browser.choose("select[name=webhook]", webhook).await;
            browser.click("article form button").await;
            browser
                .wait_for_path("the webhook", |path| path.ends_with(webhook.as_str()))
                .await;
            let text = "return document.querySelector('article').textContent";
            let text = browser.evaluate(text).await;
            let text = text.as_str().unwrap();
            assert!(text.contains(webhook.as_str()), "{path}: {text}");
            assert!(
                !text.contains("0195512d-7c6c") && !text.contains("$WEBHOOK"),
                "{path}"
            );
        }
    }

    browser.visit("/ui/guide/verify").await;
    assert_eq!(browser.count("article details").await, 7);

    // The API reference leads back.
    browser.click(".chapters a[href='/api/public/docs']").await;
    browser.click("a[href='/ui']").await;
    browser
        .wait_for_path("the list", |path| path == "/ui")
        .await;
}
