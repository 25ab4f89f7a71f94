//! Checks that hold for every page: accessible, no console messages, small, nothing from other
//! origins, no horizontal scrolling.

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::Value;

use crate::browser::Browser;

/// The limit for a page with its assets, as transferred.
const MAX_BYTES: u64 = 50_000;
/// The limit for a page before compression.
pub const MAX_PAGE_BYTES: usize = 60_000;

/// Returns the path to which `scripts/install-dependencies test ui` downloads axe-core.
pub fn axe_path() -> PathBuf {
    // This test is `debug/deps/ui-…` in the target directory.
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors()
        .nth(3)
        .expect("the target directory")
        .join("axe-core/axe.min.js")
}

static AXE: LazyLock<String> =
    LazyLock::new(|| std::fs::read_to_string(axe_path()).expect("axe-core is installed"));

const RUN_AXE: &str = "
    const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ['violations'] }).then(
        (results) => done(results.violations.map((found) => found.id + ': ' + found.help + '\\n' +
            found.nodes.map((node) => '  ' + node.html + '\\n  ' + node.failureSummary).join('\\n'))),
        (error) => done([String(error)]));";

const LOADED: &str = "
    const entries = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    return entries.map((entry) => [entry.name, Math.max(entry.encodedBodySize, entry.transferSize), entry.decodedBodySize]);";

/// Checks the page that the browser shows.
pub async fn check(browser: &Browser) {
    let path = browser.path().await;
    check_loaded(browser, &path).await;
    browser
        .driver
        .execute(&*AXE, Vec::new())
        .await
        .expect("axe-core loads");

    let found = browser
        .driver
        .execute_async(RUN_AXE, Vec::new())
        .await
        .expect("axe-core runs")
        .json()
        .clone();

    let violations: Vec<&str> = found
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();

    assert!(
        violations.is_empty(),
        "{path} ({:?}):\n{}",
        browser.kind,
        violations.join("\n")
    );

    assert_silent(browser, &path).await;
    let is_wider =
        "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
    assert_eq!(
        browser.evaluate(is_wider).await,
        false,
        "{path} ({:?}) is wider than the window",
        browser.kind
    );
}

/// Asserts that the console has no messages since the last call.
pub async fn assert_silent(browser: &Browser, path: &str) {
    let messages = browser
        .driver
        .browser_log()
        .await
        .expect("the browser's log");

    // The browser logs each response with an error status, such as that to an invalid form.
    let expected = |message: &str| message.contains("the server responded with a status of 4");
    let messages: Vec<_> = messages
        .into_iter()
        .filter(|entry| !expected(&entry.message))
        .collect();
    assert!(messages.is_empty(), "{path}: {messages:?}");
}

async fn check_loaded(browser: &Browser, path: &str) {
    let loaded = browser.evaluate(LOADED).await;
    let mut sum = 0;

    for entry in loaded.as_array().expect("a list") {
        let name = entry[0].as_str().expect("an address");
        assert!(
            name.starts_with(&browser.origin) || name.starts_with("data:"),
            "{path} loads {name}"
        );

        // Later requests of scripts do not count.
        sum += if name.contains("/ui/assets/") || entry == &loaded[0] {
            entry[1].as_u64().unwrap_or(0)
        } else {
            0
        };
    }

    assert!(sum < MAX_BYTES, "{path} has {sum} bytes: {loaded}");
    let page = loaded[0][2].as_u64().expect("a size") as usize;
    assert!(page < MAX_PAGE_BYTES, "{path} has {page} bytes of HTML");
}
