//! The receiver of all webhooks: it notes what arrives, asserts order and signatures, and answers
//! by the path.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use super::seed::Random;
use crate::support::{Answer, Received, Receiver, signature};

/// A delivery that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub webhook: Uuid,
    pub event: Uuid,
    pub requests: u32,
}

#[derive(Default)]
pub struct Seen {
    pub deliveries: HashMap<Uuid, Arrived>,
    /// The highest number that arrived, and when its first attempt to arrive was started, by
    /// webhook and order key.
    highest: HashMap<(Uuid, i64), (i64, Timestamp)>,
    /// Requests that arrived after one with a higher number, but were started before it: by a
    /// replica that was then paused for longer than its lease, or longer ago than the timeout,
    /// after which the receiver still reads them.
    pub late: usize,
    /// Violations of the order, and ids that changed.
    pub violations: Vec<String>,
    /// All secrets that each webhook has had.
    secrets: HashMap<Uuid, Vec<String>>,
    /// Requests whose signature no known secret has made: the response with a new secret may arrive
    /// later.
    unverified: Vec<(Uuid, Bytes, String)>,
    pub requests: usize,
}

pub struct Collector {
    receiver: Receiver,
    seen: Arc<Mutex<Seen>>,
    /// Whether the path `/failing` works.
    pub is_healed: Arc<AtomicBool>,
    _clearing: tokio_util::task::AbortOnDropHandle<()>,
}

/// The flaky receivers fail one request of four, but never the sixth attempt.
const FLAKY_ATTEMPTS: u32 = 5;

impl Collector {
    pub async fn start(seed: u64) -> Arc<Collector> {
        let receiver = Receiver::start().await;
        let seen = Arc::<Mutex<Seen>>::default();
        let is_healed = Arc::new(AtomicBool::new(false));
        let noted = seen.clone();
        let healed = is_healed.clone();
        let mut random = Random::new(seed, 1);

        receiver.answer(move |request| {
            noted
                .lock()
                .expect("nothing panics with this lock")
                .note(request);
            let is_flaky =
                request.path.starts_with("/ordered") && request.attempt() <= FLAKY_ATTEMPTS;

            match request.path.as_str() {
                _ if is_flaky && random.below(4) == 0 => Answer::Status(503),
                "/failing" if !healed.load(Ordering::Relaxed) => Answer::Status(500),
                "/slow" => Answer::After(Duration::from_millis(50), 200),
                _ => Answer::Status(200),
            }
        });

        Arc::new_cyclic(|own: &std::sync::Weak<Collector>| {
            let own = own.clone();

            // Everything is noted: the requests themselves would take hundreds of megabytes.
            let clearing = tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let Some(own) = own.upgrade() else { return };
                    own.receiver.clear();
                }
            });

            Collector {
                receiver,
                seen,
                is_healed,
                _clearing: tokio_util::task::AbortOnDropHandle::new(clearing),
            }
        })
    }

    pub fn url(&self, path: &str) -> String {
        self.receiver.url(path)
    }

    pub fn add_secret(&self, webhook: Uuid, secret: &str) {
        self.with(|seen| {
            seen.secrets
                .entry(webhook)
                .or_default()
                .push(secret.to_owned())
        });
    }

    /// Returns all that was seen.
    pub fn take(&self) -> Seen {
        self.with(std::mem::take)
    }

    pub fn with<T>(&self, read: impl FnOnce(&mut Seen) -> T) -> T {
        read(&mut self.seen.lock().expect("nothing panics with this lock"))
    }
}

impl Seen {
    fn note(&mut self, request: &Received) {
        let id = |name: &str| request.header(name).parse::<Uuid>().expect("an id");
        let webhook = id("x-webhook-id");
        let delivery = id("x-webhook-delivery");
        let event = id("x-webhook-event-id");

        self.requests += 1;
        let arrived = self.deliveries.entry(delivery).or_insert(Arrived {
            webhook,
            event,
            requests: 0,
        });

        arrived.requests += 1;

        if (arrived.webhook, arrived.event) != (webhook, event) {
            self.violations
                .push(format!("delivery {delivery} has two events or webhooks"));
        }

        if request.path.starts_with("/ordered") {
            self.assert_in_order(webhook, request);
        }

        let made = request.header("x-webhook-signature").to_owned();
        if !self.is_signed(webhook, &request.body, &made) {
            self.unverified.push((webhook, request.body.clone(), made));
        }
    }

    fn assert_in_order(&mut self, webhook: Uuid, request: &Received) {
        let key = match request.path.as_str() {
            "/ordered/release" => request.data()["release_id"]
                .as_i64()
                .expect("an event of a release"),
            _ => 0,
        };

        let number: i64 = request
            .header("x-webhook-sequence")
            .parse()
            .expect("a number");
        let started: Timestamp = request
            .header("x-webhook-timestamp")
            .parse()
            .expect("a time");
        let highest = self
            .highest
            .entry((webhook, key))
            .or_insert((number, started));

        if number > highest.0 {
            *highest = (number, started);
        } else if number < highest.0 && started <= highest.1 {
            self.late += 1;
        } else if number < highest.0 {
            let (other, at) = highest;
            self.violations.push(format!(
                "{}: {number} was started at {started}, after {other} at {at}",
                request.path
            ));
        }
    }

    fn is_signed(&self, webhook: Uuid, body: &[u8], made: &str) -> bool {
        let secrets = self
            .secrets
            .get(&webhook)
            .map(Vec::as_slice)
            .unwrap_or_default();

        // The newest first.
        secrets
            .iter()
            .rev()
            .any(|secret| signature(secret, body) == made)
    }

    /// Returns how many requests were signed with none of their webhook's secrets.
    pub fn wrongly_signed(&self) -> usize {
        self.unverified
            .iter()
            .filter(|(webhook, body, made)| !self.is_signed(*webhook, body, made))
            .count()
    }
}
