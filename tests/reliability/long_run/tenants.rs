//! The users and their webhooks, and what owners do with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::collector::Collector;
use super::load::Owner;
use super::replicas::{Caller, Urls};
use crate::support::{Hostile, Misdeed, TestApp};

pub const PAYMENT: &str = "payment.statement_ready";
pub const REVIEW: &str = "release.review.status_changed";
pub const DISTRIBUTED: &str = "release.distributed";

/// A webhook, with the path of its receiver.
#[derive(Clone, Debug)]
pub struct Webhook {
    pub id: Uuid,
    pub path: String,
    pub events: Vec<&'static str>,
}

/// A replay: its webhook must have all events since this time.
#[derive(Clone, Debug)]
pub struct Replayed {
    pub webhook: Webhook,
    pub since: Timestamp,
}

/// A user who manages webhooks.
pub struct Tenant {
    pub owner: Owner,
    pub caller: Caller,
    collector: Arc<Collector>,
    pub webhooks: Vec<Webhook>,
}

impl Tenant {
    pub async fn create(
        app: &TestApp,
        owner: Owner,
        urls: Urls,
        collector: &Arc<Collector>,
    ) -> Tenant {
        let token = app.token(&owner.user.to_string()).await;
        let collector = collector.clone();
        Tenant {
            owner,
            caller: Caller { urls, token },
            collector,
            webhooks: Vec::new(),
        }
    }

    /// Creates a webhook whose receiver is `path` of the collector.
    pub async fn add(&mut self, path: &str, ordering: &str, events: &[&'static str]) -> Webhook {
        let url = self.collector.url(path);
        self.add_at(&url, path, ordering, events).await
    }

    pub async fn add_at(
        &mut self,
        url: &str,
        path: &str,
        ordering: &str,
        events: &[&'static str],
    ) -> Webhook {
        let body = json!({ "name": path, "url": url, "events": events, "ordering": ordering });
        let created = self.caller.post("/webhooks", body).await.expect(201).json();
        let id = created["id"]
            .as_str()
            .expect("an id")
            .parse()
            .expect("a UUID");

        self.collector
            .add_secret(id, created["secret"].as_str().expect("a secret"));
        let webhook = Webhook {
            id,
            path: path.to_owned(),
            events: events.to_vec(),
        };

        self.webhooks.push(webhook.clone());
        webhook
    }

    pub async fn edit(&self, webhook: &Webhook, body: Value) {
        self.caller
            .patch(&format!("/webhooks/{}", webhook.id), body)
            .await
            .expect(200);
    }

    pub async fn rotate_secret(&self, webhook: &Webhook) {
        let path = format!("/webhooks/{}/regenerate-secret", webhook.id);
        let answer = self
            .caller
            .post(&path, json!({ "overlap": "1h" }))
            .await
            .expect(200)
            .json();

        self.collector
            .add_secret(webhook.id, answer["secret"].as_str().expect("a secret"));
    }

    /// Starts a job. Returns its path.
    pub async fn start_job(&self, webhook: &Webhook, kind: &str, since: Timestamp) -> String {
        let path = format!("/webhooks/{}", webhook.id);
        let body = json!({ "since": since.to_string() });
        let started = self
            .caller
            .post(&format!("{path}/{kind}"), body)
            .await
            .expect(202)
            .json();

        format!("{path}/jobs/{}", started["job_id"].as_str().expect("an id"))
    }

    pub async fn delete(&mut self, webhook: &Webhook) {
        self.caller
            .delete(&format!("/webhooks/{}", webhook.id))
            .await;
        self.webhooks.retain(|other| other.id != webhook.id);
    }
}

/// All of them.
pub struct Tenants {
    /// Has a fast webhook and two ordered ones, which nobody edits.
    pub steady: Tenant,
    /// Edits a webhook, has failing ones, and starts jobs.
    pub busy: Tenant,
    /// Is erased and replaced by another.
    pub guest: Tenant,
    pub edited: Webhook,
    pub failing: Webhook,
    pub replayed: Vec<Replayed>,
    /// The paths of the jobs of the busy user's webhooks.
    pub jobs: Vec<String>,
    /// Webhooks of erased users.
    pub erased: Vec<(i64, Vec<Uuid>)>,
    edits: usize,
    _hostile: Vec<Hostile>,
}

impl Tenants {
    pub async fn create(
        app: &TestApp,
        owners: [Owner; 3],
        urls: &Urls,
        collector: &Arc<Collector>,
    ) -> Tenants {
        let [steady, busy, guest] = owners;
        let mut steady = Tenant::create(app, steady, urls.clone(), collector).await;

        steady
            .add("/slow", "none", &[PAYMENT, REVIEW, DISTRIBUTED])
            .await;
        steady.add("/ordered/strict", "strict", &[PAYMENT]).await;
        steady
            .add("/ordered/release", "release", &[REVIEW, DISTRIBUTED])
            .await;

        let mut busy = Tenant::create(app, busy, urls.clone(), collector).await;
        let edited = busy.add("/edited/0", "none", &[PAYMENT, REVIEW]).await;
        let failing = busy.add("/failing", "none", &[DISTRIBUTED]).await;
        let mut hostile = Vec::new();

        for misdeed in [Misdeed::Silence, Misdeed::Reset] {
            let receiver = Hostile::start(misdeed).await;
            busy.add_at(&receiver.url("http"), "hostile", "none", &[DISTRIBUTED])
                .await;
            hostile.push(receiver);
        }

        let guest = Tenants::guest(app, guest, urls, collector).await;
        let replayed = Vec::new();
        let jobs = Vec::new();
        let erased = Vec::new();

        Tenants {
            steady,
            busy,
            guest,
            edited,
            failing,
            replayed,
            jobs,
            erased,
            edits: 0,
            _hostile: hostile,
        }
    }

    pub async fn guest(
        app: &TestApp,
        owner: Owner,
        urls: &Urls,
        collector: &Arc<Collector>,
    ) -> Tenant {
        let mut guest = Tenant::create(app, owner, urls.clone(), collector).await;
        guest
            .add("/guest", "none", &[PAYMENT, REVIEW, DISTRIBUTED])
            .await;

        // Has pending retries when its owner is erased.
        guest
            .add("/failing", "release", &[PAYMENT, DISTRIBUTED])
            .await;
        guest
    }

    /// Makes the next edit of a series.
    pub async fn edit(&mut self) {
        let busy = &self.busy;
        let edited = &self.edited;
        let n = self.edits;
        let url = busy.collector.url(&format!("/edited/{n}"));

        let edit = match n % 8 {
            0 => json!({ "active": false }),
            1 => json!({ "url": url, "description": "under maintenance" }),
            2 => json!({ "active": true }),
            3 => json!({ "events": [PAYMENT, DISTRIBUTED], "ordering": "strict" }),
            4 => {
                json!({ "filter": { "label_ids": [busy.owner.label] }, "metadata": { "edit": n.to_string() } })
            }
            5 => json!({ "url": url, "events": [PAYMENT, REVIEW], "ordering": "release" }),
            6 => json!({ "filter": null, "headers": { "X-Edit": n.to_string() } }),
            _ => json!({ "ordering": "none", "headers": null }),
        };

        busy.edit(edited, edit).await;
        self.edits += 1;
    }

    /// Makes the failing receiver work, and recovers what it did not take.
    pub async fn recover(&mut self, now: Timestamp, began: Timestamp) {
        self.busy.collector.is_healed.store(true, Ordering::Relaxed);
        let job = self
            .busy
            .start_job(&self.failing, "recover", reach(now, began))
            .await;
        self.jobs.push(job);
    }

    pub fn break_receiver(&self) {
        self.busy
            .collector
            .is_healed
            .store(false, Ordering::Relaxed);
    }

    /// Gives a new webhook the events of the last minutes.
    pub async fn replay(&mut self, now: Timestamp, began: Timestamp) {
        let since = (now - SignedDuration::from_mins(10)).max(began);
        let path = format!("/replayed/{}", self.replayed.len());
        let webhook = self.busy.add(&path, "none", &[DISTRIBUTED]).await;
        let job = self.busy.start_job(&webhook, "replay", since).await;

        self.jobs.push(job);
        self.replayed.push(Replayed { webhook, since });
    }

    /// Cancels a replay, and deletes its webhook.
    pub async fn cancel_replay(&mut self, now: Timestamp, began: Timestamp) {
        let since = reach(now, began);
        let webhook = self
            .busy
            .add("/cancelled", "none", &[PAYMENT, REVIEW])
            .await;
        let job = self.busy.start_job(&webhook, "replay", since).await;

        self.busy.caller.delete(&job).await;
        let state = self.busy.caller.get(&job).await.expect(200).json()["state"].clone();
        assert!(
            state == "cancelled" || state == "finished",
            "the job is {state}"
        );
        self.busy.delete(&webhook).await;
    }

    /// Recovers what failed and what the edited webhook missed.
    pub async fn finish(&mut self, now: Timestamp, began: Timestamp) {
        self.busy
            .edit(&self.edited, json!({ "active": true }))
            .await;
        self.recover(now, began).await;

        let job = self
            .busy
            .start_job(&self.edited, "recover", reach(now, began))
            .await;
        self.jobs.push(job);
    }

    /// Asserts that no job was cancelled. Jobs that ended days ago are not listed any more.
    pub async fn assert_jobs_finished(&self) {
        for job in &self.jobs {
            let answer = self.busy.caller.get(job).await;
            assert!(
                answer.status == 404 || answer.json()["state"] == "finished",
                "{job}: {answer:?}"
            );
        }
    }
}

/// Returns the time since which jobs are sure to find events and attempts: a day ago, or the
/// beginning.
pub fn reach(now: Timestamp, began: Timestamp) -> Timestamp {
    (now - SignedDuration::from_hours(24)).max(began)
}
