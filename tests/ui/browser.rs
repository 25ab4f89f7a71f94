//! A headless Chromium with its own chromedriver. Both are killed at the end of the test.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use thirtyfour::common::command::{Command as DriverCommand, ExtensionCommand};
use thirtyfour::prelude::*;
use thirtyfour::{ChromeCapabilities, ChromiumLikeCapabilities, LoggingPrefsLogLevel, TypingData};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::audit;
use crate::support::{DEADLINE, are_installed, eventually, skip};

/// Two browsers at a time, because each can use a whole processor.
static BROWSERS: Semaphore = Semaphore::const_new(2);

/// The settings of a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Desktop,
    /// Without JavaScript.
    NoScripts,
    Phone,
    Dark,
}

pub struct Browser {
    pub driver: WebDriver,
    pub kind: Kind,
    /// Scheme, host and port of the web UI.
    pub origin: String,
    chromedriver: Child,
    _permit: SemaphorePermit<'static>,
}

/// A command of the Chrome DevTools Protocol.
#[derive(Debug)]
struct Devtools(&'static str, Value);

impl ExtensionCommand for Devtools {
    fn parameters_json(&self) -> Option<Value> {
        Some(json!({ "cmd": self.0, "params": self.1 }))
    }

    fn method(&self) -> Method {
        Method::POST
    }

    fn endpoint(&self) -> Arc<str> {
        "/goog/cdp/execute".into()
    }
}

fn capabilities(kind: Kind) -> ChromeCapabilities {
    let mut wanted = DesiredCapabilities::chrome();

    for argument in [
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1360,900",
        "--lang=en-US",
    ] {
        wanted.add_arg(argument).unwrap();
    }

    match kind {
        Kind::Desktop | Kind::Dark => {}
        Kind::NoScripts => {
            let prefs = json!({ "profile.managed_default_content_settings.javascript": 2 });
            wanted.add_experimental_option("prefs", prefs).unwrap();
        }
        Kind::Phone => {
            let metrics = json!({ "deviceMetrics": { "width": 390, "height": 844, "pixelRatio": 2, "touch": true } });
            wanted
                .add_experimental_option("mobileEmulation", metrics)
                .unwrap();
        }
    }

    wanted
        .set_browser_log_level(LoggingPrefsLogLevel::All)
        .unwrap();
    wanted
}

/// Whether a browser, its driver and axe-core are installed.
pub fn is_available() -> bool {
    are_installed(&["chromedriver", "chromium"])
        && (audit::axe_path().is_file() || skip("axe-core is not installed"))
}

impl Browser {
    pub async fn start(kind: Kind, origin: &str) -> Browser {
        let permit = BROWSERS.acquire().await.expect("it is never closed");
        let port = walhook::private_postgres::free_port().expect("a free port");

        // Its own process group, so that the browser is killed together with chromedriver.
        let chromedriver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver: run scripts/install-dependencies test ui");

        let url = format!("http://127.0.0.1:{port}");
        let driver = eventually("a browser", || async {
            WebDriver::new(&url, capabilities(kind))
                .await
                .map_err(|error| eprintln!("not yet: {error}"))
                .ok()
        })
        .await;

        let browser = Browser {
            driver,
            kind,
            origin: origin.to_owned(),
            chromedriver,
            _permit: permit,
        };

        if kind == Kind::Dark {
            let features = json!([{ "name": "prefers-color-scheme", "value": "dark" }]);
            browser
                .devtools(
                    "Emulation.setEmulatedMedia",
                    json!({ "features": features }),
                )
                .await;
        }

        browser
    }

    pub fn has_scripts(&self) -> bool {
        self.kind != Kind::NoScripts
    }

    pub async fn devtools(&self, command: &'static str, parameters: Value) -> Value {
        let command = DriverCommand::ExtensionCommand(Box::new(Devtools(command, parameters)));
        self.driver
            .cmd(command)
            .await
            .expect("the browser takes the command")
            .value_json()
            .expect("an answer")
    }

    /// Opens a page by its path.
    pub async fn visit(&self, path: &str) {
        self.driver
            .goto(format!("{}{path}", self.origin))
            .await
            .unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Returns path and query of the current page.
    pub async fn path(&self) -> String {
        let url = self.driver.current_url().await.expect("a page");
        url[url::Position::BeforePath..].to_owned()
    }

    /// Waits until the path of the current page satisfies `wanted`.
    pub async fn wait_for_path(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        eventually(what, || async {
            Some(self.path().await).filter(|path| wanted(path))
        })
        .await
    }

    /// Waits for a visible element that matches the selector.
    pub async fn find(&self, css: &str) -> WebElement {
        let query = self
            .driver
            .query(By::Css(css))
            .and_displayed()
            .wait(DEADLINE, Duration::from_millis(50));
        match query.first().await {
            Ok(found) => found,
            Err(_) => panic!("no {css} at {}: {}", self.path().await, self.text().await),
        }
    }

    pub async fn click(&self, css: &str) {
        let element = self.find(css).await;
        element.scroll_into_view().await.expect("it is in the page");
        element
            .click()
            .await
            .unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Replaces the content of a field.
    pub async fn fill(&self, css: &str, text: &str) {
        let field = self.find(css).await;
        field.clear().await.expect("a field");
        field.send_keys(text).await.expect("a field");
    }

    /// Presses keys in the element that has the focus.
    pub async fn press(&self, keys: impl Into<TypingData>) {
        let chain = self.driver.action_chain().send_keys(keys);
        chain.perform().await.expect("keys are pressed");
    }

    pub async fn choose(&self, css: &str, value: &str) {
        self.click(&format!(
            "{css} option[value='{value}'], {css} option:not([value])"
        ))
        .await;
    }

    pub async fn text_of(&self, css: &str) -> String {
        self.find(css)
            .await
            .text()
            .await
            .expect("an element's text")
    }

    /// Returns the visible text of the page.
    pub async fn text(&self) -> String {
        match self.driver.find(By::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_default(),
            Err(error) => error.to_string(),
        }
    }

    /// Waits until the page shows a text.
    pub async fn wait_for_text(&self, text: &str) {
        let shown = || async { self.text().await.contains(text).then_some(()) };
        let what = format!("“{text}” on the page");
        eventually(&what, shown).await;
    }

    pub async fn count(&self, css: &str) -> usize {
        self.driver
            .find_all(By::Css(css))
            .await
            .expect("a page")
            .len()
    }

    pub async fn evaluate(&self, script: &str) -> Value {
        self.driver
            .execute(script, Vec::new())
            .await
            .unwrap_or_else(|error| panic!("{script}: {error}"))
            .json()
            .clone()
    }

    /// Signs in with an API token.
    pub async fn sign_in(&self, token: &str) {
        self.visit("/ui/login").await;
        self.fill("#token", token).await;
        self.click("main button").await;
        self.wait_for_path("the list", |path| path == "/ui").await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let pid = self
            .chromedriver
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(group) = pid {
            let _ = kill_process_group(group, Signal::KILL);
        }

        // The browser is dead, so its session must not be closed.
        let driver = self.driver.clone();
        let _ = driver.leak();
    }
}
