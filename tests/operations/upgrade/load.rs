//! Load: a platform that commits and users of the API, both without a pause. Both record what they
//! did.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Platform, Received, eventually};

pub const EVENTS: [&str; 3] = [
    "payment.statement_ready",
    "distribution.outlet.status_changed",
    "delivery.completed",
];
/// Between two transactions, and between two requests of one client.
const INTERVAL: Duration = Duration::from_millis(10);

/// Commits transitions until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// The event that each commit must raise.
    committed: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Load {
    pub fn start(platform: Platform, user: i64) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let committed = Arc::<Mutex<Vec<String>>>::default();
        let stopped = stop.clone();
        let raised = committed.clone();

        let task = tokio::spawn(async move {
            let label = platform.label(user).await;
            let outlet = platform.outlet("Outlet").await;
            let raise = |lines: &[String]| {
                raised
                    .lock()
                    .expect("nobody panics with this lock")
                    .extend_from_slice(lines)
            };

            while !stopped.load(Ordering::Relaxed) {
                let payment = platform.payment(user, "ready").await;
                raise(&[format!("{} {payment}", EVENTS[0])]);

                let release = platform.release(label).await;
                let queued = platform.distribution(release, outlet, "scheduled").await;

                raise(&[format!("{} {queued} null -> \"scheduled\"", EVENTS[1])]);

                for (before, after) in [
                    ("scheduled", "transcoding"),
                    ("transcoding", "batched"),
                    ("batched", "complete"),
                ] {
                    platform.set_distribution_status(queued, after).await;
                    raise(&[format!(
                        "{} {queued} \"{before}\" -> \"{after}\"",
                        EVENTS[1]
                    )]);
                    tokio::time::sleep(INTERVAL).await;
                }

                raise(&[format!("{} {queued}", EVENTS[2])]);
            }
        });

        Load {
            stop,
            committed,
            task,
        }
    }

    pub fn committed(&self) -> usize {
        self.committed
            .lock()
            .expect("nobody panics with this lock")
            .len()
    }

    /// Stops, and returns everything that was committed, in no particular order.
    pub async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the load does not panic");
        std::mem::take(&mut *self.committed.lock().expect("nobody panics with this lock"))
    }
}

/// Describes a delivered event in the words by which [`Load`] describes a committed one.
pub fn describe(request: &Received) -> String {
    let event = request.event();
    let data = request.data();

    match event {
        "payment.statement_ready" => format!("{event} {}", data["payment_request_id"]),
        "delivery.completed" => format!("{event} {}", data["distro_queue_id"]),
        _ => format!(
            "{event} {} {} -> {}",
            data["distro_queue_id"], data["previous_status"], data["status"]
        ),
    }
}

/// Users who repeat every request that concerns a webhook, each on its own connection.
pub struct Clients {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rounds: AtomicU64,
    requests: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Clients {
    /// Starts one client per token. Their webhooks' tests are sent to `receiver`.
    pub fn start(api_url: &str, tokens: Vec<String>, receiver: &str) -> Clients {
        let shared = Arc::<Shared>::default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(30));
        let http = http.build().expect("a client without TLS settings");

        let tasks = tokens.into_iter().map(|token| {
            let client = Client {
                http: http.clone(),
                url: api_url.to_owned(),
                token,
                shared: shared.clone(),
            };
            tokio::spawn(client.work(receiver.to_owned()))
        });

        Clients {
            tasks: tasks.collect(),
            shared,
        }
    }

    /// Waits until every client has completed a round that started after this call.
    pub async fn wait_for_round(&self) {
        let enough = self.shared.rounds.load(Ordering::Relaxed) + 2 * self.tasks.len() as u64;
        let round =
            || async { (self.shared.rounds.load(Ordering::Relaxed) >= enough).then_some(()) };
        eventually("a round of every API user", round).await;
    }

    /// Stops, and returns the number of requests and those that failed.
    pub async fn stop(self) -> (u64, Vec<String>) {
        self.shared.stop.store(true, Ordering::Relaxed);

        for task in self.tasks {
            task.await.expect("a client does not panic");
        }

        let failures = std::mem::take(
            &mut *self
                .shared
                .failures
                .lock()
                .expect("nobody panics with this lock"),
        );

        (self.shared.requests.load(Ordering::Relaxed), failures)
    }
}

struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
    shared: Arc<Shared>,
}

impl Client {
    async fn work(self, receiver: String) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            // Failures are recorded. The next round starts with a new webhook.
            self.do_round(&receiver).await;
            self.shared.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn do_round(&self, receiver: &str) -> Option<()> {
        let webhook = json!({ "name": "one of many", "url": receiver, "events": [EVENTS[0]] });
        let created = self.send("POST", "/webhooks", Some(webhook), 201).await?;
        let path = format!("/webhooks/{}", created["id"].as_str()?);

        self.send("GET", &path, None, 200).await?;
        self.send("PATCH", &path, Some(json!({ "name": "renamed" })), 200)
            .await?;

        let tested = self
            .send("POST", &format!("{path}/test"), Some(json!({})), 200)
            .await?;
        if tested["delivered"] != true {
            self.fail(format!("a test was not delivered: {tested}"));
        }

        self.send("GET", "/webhooks", None, 200).await?;
        self.send("GET", &format!("{path}/logs"), None, 200).await?;

        self.send("DELETE", &path, None, 204).await.map(drop)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        wanted: u16,
    ) -> Option<Value> {
        tokio::time::sleep(INTERVAL).await;
        self.shared.requests.fetch_add(1, Ordering::Relaxed);

        let method = method.parse().expect("a method");
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token);

        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }

        let answer = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
        };

        match answer.await {
            Ok((status, text)) if status == wanted => {
                Some(serde_json::from_str(&text).unwrap_or_default())
            }
            Ok((status, text)) => self.fail(format!("{path}: {status} {text}")),
            Err(error) => self.fail(format!("{path}: {error:?}")),
        }
    }

    fn fail(&self, what: String) -> Option<Value> {
        self.shared
            .failures
            .lock()
            .expect("nobody panics with this lock")
            .push(what);
        None
    }
}
