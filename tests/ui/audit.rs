//! What holds of every page: accessible, silent, light, and with nothing from elsewhere.

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;

use crate::browser::Browser;

/// Over the wire, everything together.
const HEAVIEST: u64 = 50_000;

/// Where `scripts/install-dependencies test ui` puts it.
pub fn axe_path() -> PathBuf {
    // Of the target directory, where this test is `debug/deps/ui-…`.
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(3).expect("the target directory").join("axe-core/axe.min.js")
}

static AXE: LazyLock<String> = LazyLock::new(|| std::fs::read_to_string(axe_path()).expect("axe-core is installed"));

const RUN_AXE: &str = "
    const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ['violations'] }).then(
        (results) => done(results.violations.map((found) => found.id + ': ' + found.help + '\\n' +
            found.nodes.map((node) => '  ' + node.html + '\\n  ' + node.failureSummary).join('\\n'))),
        (error) => done([String(error)]));";

const LOADED: &str = "
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    return entries.map((entry) => [entry.name, Math.max(entry.encodedBodySize, entry.transferSize)]);";

/// Checks the page that the browser shows.
pub async fn check(browser: &Browser) {
    let place = browser.place().await;
    check_loaded(browser, &place).await;
    browser.driver.execute(&*AXE, Vec::new()).await.expect("axe-core loads");
    let found = browser.driver.execute_async(RUN_AXE, Vec::new()).await.expect("axe-core runs").json().clone();
    let violations: Vec<&str> = found.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(violations.is_empty(), "{place} ({:?}):\n{}", browser.kind, violations.join("\n"));
    assert_silent(browser, &place).await;
    let wider = "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(browser.evaluate(wider).await, false, "{place} ({:?}) is wider than the window", browser.kind);
}

/// No message since this was asked last.
pub async fn assert_silent(browser: &Browser, place: &str) {
    let messages = browser.driver.browser_log().await.expect("the browser's log");
    // What the browser says of an answer of ours that is no success, such as a form that is to be mended.
    let ours = |message: &str| message.contains("the server responded with a status of 4");
    let messages: Vec<_> = messages.into_iter().filter(|entry| !ours(&entry.message)).collect();
    assert!(messages.is_empty(), "{place}: {messages:?}");
}

async fn check_loaded(browser: &Browser, place: &str) {
    let loaded = browser.evaluate(LOADED).await;
    let mut sum = 0;
    for entry in loaded.as_array().expect("a list") {
        let name = entry[0].as_str().expect("an address");
        assert!(name.starts_with(&browser.origin) || name.starts_with("data:"), "{place} asks {name}");
        // What scripts read again belongs to no page's weight.
        sum += if name.contains("/ui/assets/") || entry == &loaded[0] { entry[1].as_u64().unwrap_or(0) } else { 0 };
    }
    assert!(sum < HEAVIEST, "{place} weighs {sum} bytes: {loaded}");
}
