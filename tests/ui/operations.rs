//! Every operation from signing in to signing out: on a desktop with and without scripts, and on a
//! phone.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::audit;
use crate::browser::{self, Browser, Kind};
use crate::fixture::{DISTRIBUTED, REVIEW, Stage};
use crate::support::{Answer, eventually};

struct Walkthrough {
    stage: Stage,
    browser: Browser,
}

impl Walkthrough {
    async fn start(kind: Kind) -> Walkthrough {
        let stage = Stage::start().await;
        let browser = stage.browser(kind).await;
        Walkthrough { stage, browser }
    }

    /// Opens a form by its link and submits it: in a dialog with scripts, on its own page without.
    async fn submit(&self, link: &str, form: &str) {
        self.browser.click(link).await;
        let container = if self.browser.has_scripts() {
            "dialog[open]"
        } else {
            "main"
        };

        self.browser.find(&format!("{container} {form}")).await;

        if self.browser.has_scripts() {
            audit::check(&self.browser).await;
        }

        self.browser
            .click(&format!("{container} {form} button"))
            .await;
    }

    /// Audits the page, if the browser runs scripts.
    async fn check(&self) {
        if self.browser.has_scripts() {
            audit::check(&self.browser).await;
        }
    }

    /// Returns the secret that the page shows.
    async fn secret(&self) -> String {
        let secret = self.browser.text_of("#secret").await;
        assert!(secret.starts_with("whsec_"), "{secret}");
        assert!(!self.browser.path().await.contains("whsec_"));
        self.check().await;
        secret
    }

    /// Creates a webhook after an invalid attempt, and returns its ID and secret.
    async fn create(&self) -> (String, String) {
        let browser = &self.browser;
        browser.click("a[href='/ui/webhooks/new']").await;
        browser.fill("#name", "  Label office ").await;
        browser.fill("#url", "ftp://elsewhere").await;
        browser.click("form.edit .primary").await;

        assert!(
            browser
                .text_of("#url-error")
                .await
                .contains("must begin with"),
            "{}",
            browser.text().await
        );

        assert!(
            browser
                .text_of("#events-error")
                .await
                .contains("at least one event")
        );

        assert_eq!(browser.count("#name-error").await, 0);
        assert_eq!(
            browser.find("#name").await.value().await.unwrap().unwrap(),
            "  Label office ",
            "the input is kept"
        );
        self.check().await;
        browser.fill("#url", &self.stage.receiver.url("/in")).await;

        for event in [REVIEW, DISTRIBUTED] {
            browser.click(&format!("input[value='{event}']")).await;
        }

        browser.click("form.edit .primary").await;
        let secret = self.secret().await;
        let copyable = browser.count("[data-copy]:not([hidden])").await;

        assert_eq!(copyable, usize::from(browser.has_scripts()));
        browser.driver.refresh().await.unwrap();
        assert_eq!(
            self.secret().await,
            secret,
            "reloading the page does not lose it"
        );
        browser.click("main .primary").await;

        let path = browser
            .wait_for_path("the webhook", |path| !path.ends_with("/new-secret"))
            .await;
        assert!(
            !browser.text().await.contains(&secret),
            "a secret is shown once"
        );
        browser.driver.back().await.unwrap();
        browser
            .wait_for_text("The secret can no longer be shown.")
            .await;
        assert!(
            !browser.text().await.contains(&secret),
            "going back does not show it either"
        );

        (path.rsplit('/').next().unwrap().to_owned(), secret)
    }

    async fn edit(&self, id: &str) {
        self.browser.visit("/ui").await;
        self.browser.click("a[href$='/edit']").await;
        self.browser.fill("#name", "Front office").await;
        self.browser.click("form.edit .primary").await;
        self.browser.wait_for_text("Changes saved.").await;
        assert_eq!(self.stage.api.webhook(id).await["name"], "Front office");

        // A concurrent change is not overwritten unknowingly.
        self.browser.visit(&format!("/ui/webhooks/{id}/edit")).await;

        self.stage
            .api
            .patch(
                &format!("/webhooks/{id}"),
                serde_json::json!({ "name": "Other" }),
            )
            .await
            .expect(200);

        self.browser.click("form.edit .primary").await;
        self.browser
            .wait_for_text("This webhook was changed in the meantime")
            .await;
        assert_eq!(self.stage.api.webhook(id).await["name"], "Other");
        self.browser.click("form.edit .primary").await;
        self.browser.wait_for_text("Changes saved.").await;
        assert_eq!(self.stage.api.webhook(id).await["name"], "Front office");

        // A host that does not resolve is accepted with a warning.
        self.browser.visit(&format!("/ui/webhooks/{id}/edit")).await;
        self.browser
            .fill("#url", "https://nowhere.invalid/in")
            .await;
        self.browser.click("form.edit .primary").await;
        self.browser
            .wait_for_text("The host's name does not resolve.")
            .await;

        let url = self.stage.receiver.url("/in");
        self.stage
            .api
            .patch(
                &format!("/webhooks/{id}"),
                serde_json::json!({ "url": url }),
            )
            .await
            .expect(200);
    }

    async fn toggle(&self, id: &str) {
        self.browser.visit("/ui").await;

        if self.browser.has_scripts() {
            self.browser.evaluate("window.same = true").await;
        }

        for active in [false, true] {
            self.browser.click(".switch").await;
            self.browser
                .find(&format!(".switch[aria-checked={active}]"))
                .await;
            assert_eq!(self.stage.api.webhook(id).await["active"], active);
        }

        if self.browser.has_scripts() {
            assert_eq!(
                self.browser.evaluate("return window.same").await,
                true,
                "the page was not reloaded"
            );
            assert_eq!(
                self.browser
                    .evaluate("return document.activeElement.className")
                    .await,
                "switch"
            );
        }
    }

    async fn test_and_regenerate(&self, id: &str, old: &str) -> String {
        self.browser.visit("/ui").await;
        self.submit("a[href$='/test']", "form").await;
        self.browser.wait_for_text("Test delivered: 200").await;

        let sent = self.stage.receiver.wait_for(1).await;
        assert!(sent[0].is_signed_with(old));
        assert_eq!(sent[0].header("x-webhook-test"), "true");
        self.browser.visit("/ui").await;
        self.submit("a[href$='/secret']", "form").await;

        let new = self.secret().await;
        assert_ne!(new, old);
        self.browser.visit("/ui/event-types").await;
        self.browser
            .click("[id='payment.statement_ready'] form button")
            .await;
        self.browser.wait_for_text("Test delivered: 200").await;

        let sent = self.stage.receiver.wait_for(2).await;
        assert!(sent[1].is_signed_with(&new) && sent[1].event() == "payment.statement_ready");
        assert_eq!(
            self.stage.api.webhook(id).await["success_count"],
            0,
            "tests are not counted"
        );

        new
    }

    /// Checks the order of the columns, and the labels that narrow screens show beside each value.
    async fn check_columns(&self) {
        const COLUMNS: [&str; 6] = [
            "Event Type",
            "Outcome",
            "Response Status",
            "Duration",
            "Attempt",
            "Timestamp",
        ];

        let header = "return [...document.querySelectorAll('.log thead th')].map((cell) => cell.textContent)";
        assert_eq!(
            self.browser.evaluate(header).await,
            serde_json::json!(COLUMNS)
        );

        let cells = "return [...document.querySelector('.log tbody tr').children].map((cell) => cell.dataset.label)";
        assert_eq!(
            self.browser.evaluate(cells).await,
            serde_json::json!(COLUMNS)
        );
    }

    /// A new delivery appears in the log.
    async fn watch_log(&self, id: &str) {
        self.browser.visit("/ui").await;
        self.browser.click("main a[href$='/logs']").await;

        if self.browser.has_scripts() {
            self.browser.click("#live").await;
        }

        let release = self.stage.platform.release(self.stage.label).await;
        self.stage
            .platform
            .set_review_status(release, "to_review")
            .await;
        self.stage
            .api
            .wait_for_logs(id, "a delivery", |logs| logs.len() == 3)
            .await;

        if !self.browser.has_scripts() {
            self.browser.driver.refresh().await.unwrap();
        }

        eventually("the delivery in the log", || async {
            (self.browser.count("[data-entry]").await == 3).then_some(())
        })
        .await;

        if self.browser.has_scripts() {
            self.browser.click("#live[aria-pressed=true]").await;
            self.browser.wait_for_text("1 new entry.").await;
            self.check_columns().await;
        }

        self.check().await;
    }

    async fn filter_and_open(&self, id: &str) {
        self.stage.receiver.answer_in_turn(&[Answer::Full(
            503,
            Vec::new(),
            b"come back later".to_vec(),
        )]);
        let release = self.stage.platform.release(self.stage.label).await;

        self.stage
            .platform
            .set_delivery_status(release, "distributed")
            .await;
        self.stage
            .api
            .wait_for_logs(id, "a failure", |logs| {
                logs.iter().any(|entry| entry["outcome"] == "failed")
            })
            .await;

        self.browser.visit(&format!("/ui/webhooks/{id}/logs")).await;

        // A phone shows the results first.
        if self.browser.kind == Kind::Phone {
            assert_eq!(
                self.browser
                    .evaluate("return document.querySelector('#event').checkVisibility()")
                    .await,
                false
            );
            self.browser.click(".more summary").await;
        }

        self.browser.choose("#event", DISTRIBUTED).await;
        self.browser.choose("#outcome", "failed").await;
        self.browser.choose("#status", "5xx").await;
        self.browser.click(".filters button").await;
        self.browser
            .wait_for_path("a filter", |path| path.contains("outcome=failed"))
            .await;
        assert_eq!(self.browser.count("[data-entry]").await, 1);
        self.browser.click("[data-entry] a").await;
        self.browser.wait_for_text("come back later").await;

        let text = self.browser.text().await;

        for expected in [
            "503",
            "1 of 10",
            "2 of 10, due",
            "X-Webhook-Signature",
            "X-Webhook-Id",
            id,
            "HTTP error status",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }

        assert!(
            self.browser
                .text_of("#pretty")
                .await
                .contains("\n    \"release_id\"")
        );

        self.browser.click("main details summary").await;
        assert!(
            self.browser
                .text_of("#raw")
                .await
                .contains("\"event\":\"release.distributed\"")
        );

        self.check().await;
    }

    async fn redeliver(&self, id: &str) {
        let respond = Arc::new(Notify::new());
        let answer = Answer::When(Arc::clone(&respond), 200);
        self.stage.receiver.answer(move |_| answer.clone());
        let before = self.stage.receiver.requests().len();
        let started = "Redelivery started (round 2)";

        self.browser.click("#redeliver").await;
        self.browser.wait_for_text(started).await;

        // The page refreshes itself until the attempt has ended. It keeps what it said, and what is open.
        if self.browser.has_scripts() {
            self.browser.wait_for_text("Round 2").await;
            let raw = "document.querySelector('details:has(#raw)')";
            self.browser.evaluate(&format!("{raw}.open = true")).await;
            respond.notify_one();
            self.browser.find("#live[aria-pressed=false]").await;
            self.browser.find(".timeline .badge.good").await;
            self.browser.wait_for_text(started).await;
            assert_eq!(
                self.browser.evaluate(&format!("return {raw}.open")).await,
                true
            );
        } else {
            respond.notify_one();
        }

        self.stage.receiver.answer_status(200);

        let sent = self.stage.receiver.wait_for(before + 1).await;
        let failed = &sent[before - 1];
        let again = &sent[before];

        assert_eq!((failed.delivery(), again.attempt()), (again.delivery(), 1));
        self.stage
            .api
            .wait_for_logs(id, "the redelivery", |logs| {
                logs[0]["outcome"] == "delivered"
            })
            .await;
        self.compare_rounds().await;
    }

    /// Opens the newest attempt, and compares it with the failed one.
    async fn compare_rounds(&self) {
        self.browser.driver.refresh().await.unwrap();
        let text = self.browser.text().await;

        for expected in [
            "Redelivered",
            "Signature verifies with the current secret",
            "walhook listen --api",
            "walhook trigger release.distributed",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }

        self.check().await;
        self.browser
            .click("ol:nth-of-type(1) input[name=compare]")
            .await;
        self.browser
            .click("ol:nth-of-type(2) input[name=compare]")
            .await;
        self.browser
            .click("form[action*='/deliveries/'] button")
            .await;
        self.browser
            .wait_for_path("a comparison", |path| path.contains("compare="))
            .await;

        let compared = self.browser.text_of(".comparison").await;
        assert!(
            compared.contains("200") && compared.contains("503"),
            "{compared}"
        );
        self.check().await;
    }

    /// Previews and recovers a delivery that was cancelled by deactivating the webhook.
    async fn recover(&self, id: &str) {
        self.stage.receiver.answer_status(500);
        let release = self.stage.platform.release(self.stage.label).await;

        self.stage
            .platform
            .set_review_status(release, "to_review")
            .await;
        let failed = |logs: &[serde_json::Value]| logs[0]["outcome"] == "failed";

        self.stage
            .api
            .wait_for_logs(id, "another failure", failed)
            .await;
        self.browser.visit(&format!("/ui/webhooks/{id}")).await;
        self.browser.click("#toggle").await;
        self.browser.find("#toggle[aria-checked=false]").await;
        self.stage.receiver.answer_status(200);
        self.browser.click("#toggle").await;
        self.browser.find("#toggle[aria-checked=true]").await;

        let before = self.stage.receiver.requests().len();
        self.browser.click(".tabs a[href$='/recover']").await;
        assert_eq!(self.browser.text_of("#preview-title").await, "1 delivery");
        self.check().await;
        self.browser.click("#preview button").await;
        self.browser
            .wait_for_text("Recovery of 1 delivery started")
            .await;
        self.stage.receiver.wait_for(before + 1).await;
        self.browser.visit(&format!("/ui/webhooks/{id}")).await;

        let text = self.browser.text().await;
        assert!(
            text.contains("Success rate") && text.contains("HTTP error status"),
            "{text}"
        );
        assert_eq!(self.browser.count("svg.chart").await, 4);
        self.check().await;
    }

    async fn reach_limit_and_delete(&self, id: &str) {
        for path in ["/a", "/b"] {
            self.stage
                .api
                .create_webhook(&self.stage.receiver.url(path), &[REVIEW])
                .await;
        }

        self.browser.visit("/ui").await;
        self.browser.find("#limit").await;
        assert_eq!(self.browser.count("a[href='/ui/webhooks/new']").await, 0);
        self.check().await;
        self.submit(&format!("a[href='/ui/webhooks/{id}/delete']"), "form")
            .await;
        self.browser
            .wait_for_text("Webhook “Front office” deleted.")
            .await;
        self.stage
            .api
            .get(&format!("/webhooks/{id}"))
            .await
            .expect(404);
        self.browser.find("a[href='/ui/webhooks/new']").await;
        self.browser.visit(&format!("/ui/webhooks/{id}")).await;
        self.browser
            .wait_for_text("There is no such webhook.")
            .await;
    }

    async fn sign_out(&self) {
        self.browser.visit("/ui").await;
        self.browser.click(".user button").await;
        self.browser
            .wait_for_path("the sign-in page", |path| path == "/ui/login")
            .await;
        self.browser.visit("/ui/events").await;
        assert_eq!(self.browser.path().await, "/ui/login?next=%2Fui%2Fevents");
    }

    async fn run(self) {
        let (id, secret) = self.create().await;
        self.test_and_regenerate(&id, &secret).await;
        self.edit(&id).await;
        self.toggle(&id).await;
        self.watch_log(&id).await;
        self.filter_and_open(&id).await;
        self.redeliver(&id).await;
        self.recover(&id).await;
        self.reach_limit_and_delete(&id).await;
        self.sign_out().await;
    }
}

#[tokio::test]
async fn every_operation_works_on_a_desktop() {
    if !browser::is_available() {
        return;
    }

    Walkthrough::start(Kind::Desktop).await.run().await;
}

#[tokio::test]
async fn every_operation_works_without_scripts() {
    if !browser::is_available() {
        return;
    }

    Walkthrough::start(Kind::NoScripts).await.run().await;
}

#[tokio::test]
async fn every_operation_works_on_a_phone() {
    if !browser::is_available() {
        return;
    }

    Walkthrough::start(Kind::Phone).await.run().await;
}

#[tokio::test]
async fn a_tooltip_lists_the_events_of_a_webhook() {
    if !browser::is_available() {
        return;
    }

    let test = Walkthrough::start(Kind::Desktop).await;
    test.stage
        .api
        .create_webhook(&test.stage.receiver.url("/in"), &[REVIEW, DISTRIBUTED])
        .await;
    test.browser.visit("/ui").await;

    let tip = test
        .browser
        .driver
        .find(thirtyfour::By::Css("#events-1"))
        .await
        .unwrap();

    assert!(!tip.is_displayed().await.unwrap());
    test.browser
        .find(".tooltip button")
        .await
        .focus()
        .await
        .unwrap();

    assert!(tip.is_displayed().await.unwrap());
    assert_eq!(
        tip.text().await.unwrap(),
        format!("{REVIEW}\n{DISTRIBUTED}")
    );
    audit::check(&test.browser).await;
}
