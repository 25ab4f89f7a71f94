//! Searching the deliveries of an account in the browser.

use crate::browser::{self, Kind};
use crate::fixture::Stage;

#[tokio::test]
async fn a_release_at_an_outlet_is_found_exported_and_opened() {
    if !browser::is_available() {
        return;
    }

    let stage = Stage::start().await;
    let webhook = stage.webhook_with_log("Aurora Recordings").await;
    let entry = stage.entry(&webhook, "failed").await;
    let path = format!("/webhooks/{webhook}/logs/{entry}");
    let entry = stage.api.get(&path).await.expect(200).json();
    let about = entry["about"].as_str().expect("a text");
    let (catalogue, outlet) = about.split_once(" · ").expect("a release and an outlet");
    let browser = stage.browser(Kind::Desktop).await;

    browser.click("nav a[href='/ui/logs']").await;
    browser.fill("#cat", &catalogue.to_lowercase()).await;
    browser.fill("#outlet_id", outlet).await;
    browser.click(".filters button").await;
    browser
        .wait_for_path("a search", |path| path.contains("cat="))
        .await;

    assert_eq!(browser.count("[data-entry]").await, 1);
    let row = browser.text_of("[data-entry]").await;
    assert!(
        row.contains(about) && row.contains("Aurora Recordings"),
        "{row}"
    );
    let exact = browser
        .evaluate("return document.querySelector('[data-entry] time').title")
        .await;
    assert!(exact.as_str().unwrap().contains("UTC"), "{exact}");

    // The link works with the session of the browser.
    let export = "const link = document.querySelector('a[href*=\"format=csv\"]').href;
                  return fetch(link).then((response) => response.text())";
    let csv = browser.evaluate(export).await;
    let csv = csv.as_str().unwrap();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(csv.contains(about), "{csv}");

    browser.click("[data-entry] a").await;
    browser.wait_for_text("Timeline").await;
    assert_eq!(browser.text_of("h1").await, about);
    assert_eq!(browser.count(".timeline .coming").await, 1);
    assert_eq!(browser.count(".timeline [data-entry]").await, 1);
}
