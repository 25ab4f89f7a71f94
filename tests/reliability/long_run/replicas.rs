//! The replicas: two that are killed, and one that is never restarted. All have all roles. The
//! memory and the descriptors of each are sampled.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::trend::Trend;
use crate::support::{Api, ApiAnswer, DEADLINE, POLL, Sidecar, TestApp, eventually};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// The share of a life that is not measured: caches and pools grow at first.
const WARM_UP: f64 = 0.25;
/// Lives that are measured for less than this have no trend.
const SHORTEST: Duration = Duration::from_secs(60);

/// The measurements of one process.
#[derive(Clone, Debug)]
pub struct Life {
    pub name: String,
    pid: u32,
    started: Instant,
    has_ended: bool,
    /// Seconds since the start, private memory in KiB, and open descriptors. Pages of the program
    /// file do not count: the kernel reads them when they are first used and can drop them.
    samples: Vec<(f64, f64, f64)>,
}

/// How many requests all clients have sent: each is for the next replica.
static TURNS: AtomicUsize = AtomicUsize::new(0);

/// The trends of a life.
pub struct Measured {
    pub name: String,
    pub memory: Trend,
    pub descriptors: Trend,
}

impl Life {
    fn sample(&mut self) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let memory = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map(Iterator::count);

        if let (Some(memory), Ok(descriptors)) = (memory, descriptors) {
            self.samples.push((
                self.started.elapsed().as_secs_f64(),
                memory,
                descriptors as f64,
            ));
        }
    }

    pub fn measured(&self) -> Option<Measured> {
        let end = self.samples.last()?.0;
        let warm: Vec<_> = self
            .samples
            .iter()
            .filter(|(seconds, ..)| *seconds >= end * WARM_UP)
            .collect();

        let trend = |value: fn(&(f64, f64, f64)) -> f64| {
            Trend::of(
                &warm
                    .iter()
                    .map(|sample| (sample.0, value(sample)))
                    .collect::<Vec<_>>(),
            )
        };

        let memory = trend(|sample| sample.1)?;
        let descriptors = trend(|sample| sample.2)?;
        let is_long = memory.minutes * 60.0 >= SHORTEST.as_secs_f64();

        is_long.then(|| Measured {
            name: self.name.clone(),
            memory,
            descriptors,
        })
    }

    pub fn peak_memory_kib(&self) -> f64 {
        self.samples
            .iter()
            .map(|sample| sample.1)
            .fold(0.0, f64::max)
    }
}

/// The replicas that a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    Any,
    /// Those that are killed and restarted.
    Restarted,
    /// The one that is never restarted.
    Survivor,
}

/// The URLs of the replicas' APIs now. The last one is of the replica that is never restarted.
pub type Urls = Arc<Mutex<Vec<String>>>;

pub struct Replicas {
    killed: Vec<Sidecar>,
    survivor: Sidecar,
    pub urls: Urls,
    lives: Arc<Mutex<Vec<Life>>>,
    _sampling: AbortOnDropHandle<()>,
}

impl Replicas {
    /// Starts them. `keys` are all master keys that the one which is never restarted will need.
    pub async fn start(app: &mut TestApp, keys: &[String]) -> Replicas {
        let lives = Arc::<Mutex<Vec<Life>>>::default();
        let own = app.setting("secrets.master_key").to_owned();
        let survivor = app.set("secrets.master_key", &keys.join(",")).spawn(&[]);

        app.set("secrets.master_key", &own);
        note(&lives, "not restarted", &survivor);

        let sampled = lives.clone();
        let sampling = tokio::spawn(async move {
            loop {
                tokio::time::sleep(SAMPLE_INTERVAL).await;
                let mut lives = sampled.lock().expect("nothing panics with this lock");
                lives
                    .iter_mut()
                    .filter(|life| !life.has_ended)
                    .for_each(Life::sample);
            }
        });

        let mut replicas = Replicas {
            killed: Vec::new(),
            survivor,
            urls: Urls::default(),
            lives,
            _sampling: AbortOnDropHandle::new(sampling),
        };

        for index in 0..2 {
            let sidecar = app.spawn(&[]);
            note(&replicas.lives, &format!("replica {index}"), &sidecar);
            replicas.killed.push(sidecar);
        }

        replicas.note_urls();
        replicas.until_ready(app).await;

        replicas
    }

    /// Replaces a replica by a new process.
    fn replace(&mut self, index: usize, app: &TestApp) -> Sidecar {
        let new = app.spawn(&[]);
        let old = std::mem::replace(&mut self.killed[index], new);
        let mut lives = self.lives.lock().expect("nothing panics with this lock");
        let name = format!("replica {index}");

        lives
            .iter_mut()
            .filter(|life| life.name == name)
            .for_each(|life| life.has_ended = true);
        drop(lives);
        note(&self.lives, &name, &self.killed[index]);
        self.note_urls();

        old
    }

    fn note_urls(&self) {
        let urls = self
            .killed
            .iter()
            .chain([&self.survivor])
            .map(|sidecar| sidecar.api_url.clone())
            .collect();
        *self.urls.lock().expect("nothing panics with this lock") = urls;
    }

    pub async fn kill(&mut self, index: usize, app: &TestApp) {
        self.replace(index, app).kill().await;
    }

    /// Stops a replica with SIGTERM, and starts another. Waits first: a process that is just
    /// starting does not handle the signal yet.
    pub async fn restart(&mut self, index: usize, app: &TestApp) {
        self.until_ready(app).await;
        let status = self.replace(index, app).stop().await;
        assert!(status.success(), "a replica ended with {status}");
    }

    pub async fn pause(&mut self, index: usize, length: Duration) {
        if self.killed[index].has_ended() {
            return;
        }

        self.killed[index].signal(Signal::STOP);
        tokio::time::sleep(length).await;
        self.killed[index].signal(Signal::CONT);
    }

    /// Starts replicas again that have ended because a server was down when they started. Asserts
    /// that the one that was never restarted runs.
    pub fn revive(&mut self, app: &TestApp) {
        assert!(
            !self.survivor.has_ended(),
            "the replica that was not restarted has ended"
        );

        for index in 0..2 {
            if self.killed[index].has_ended() {
                drop(self.replace(index, app));
            }
        }
    }

    /// Waits until all are ready.
    pub async fn until_ready(&mut self, app: &TestApp) {
        let end = Instant::now() + DEADLINE * 2;

        loop {
            self.revive(app);
            let mut reports = Vec::new();

            for sidecar in self.killed.iter().chain([&self.survivor]) {
                reports.push(sidecar.readiness().await);
            }

            if reports
                .iter()
                .all(|report| report.as_ref().is_some_and(|(status, _)| *status == 200))
            {
                return;
            }

            assert!(Instant::now() < end, "replicas are not ready: {reports:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops all, and returns what was measured of each.
    pub async fn stop(self) -> Vec<Life> {
        let lives = self
            .lives
            .lock()
            .expect("nothing panics with this lock")
            .clone();

        for sidecar in self.killed.into_iter().chain([self.survivor]) {
            assert!(sidecar.stop().await.success());
        }

        lives
    }
}

fn note(lives: &Mutex<Vec<Life>>, name: &str, sidecar: &Sidecar) {
    let name = name.to_owned();
    let pid = sidecar.pid();

    let life = Life {
        name,
        pid,
        started: Instant::now(),
        has_ended: false,
        samples: Vec::new(),
    };

    lives
        .lock()
        .expect("nothing panics with this lock")
        .push(life);
}

/// A client of the API that repeats a request until a replica answers it. A POST has an idempotency
/// key, and is executed once.
#[derive(Clone)]
pub struct Caller {
    pub urls: Urls,
    pub token: String,
}

impl Caller {
    /// Returns the client of a replica, in turn.
    pub fn api(&self, turn: usize, serving: Serving) -> Option<Api> {
        let urls = self.urls.lock().expect("nothing panics with this lock");
        let (survivor, restarted) = urls.split_last()?;
        let url = match serving {
            Serving::Any => urls.get(turn % urls.len())?,
            Serving::Restarted => restarted.get(turn % restarted.len())?,
            Serving::Survivor => survivor,
        };

        Some(Api::new(url, &self.token))
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> ApiAnswer {
        let key = Uuid::now_v7().to_string();
        let headers = [("idempotency-key", key.as_str())];
        let headers: &[_] = if method == "POST" { &headers } else { &[] };

        // The replica that is never restarted encrypts with the first master key for ever: it gets
        // no request that stores a secret or, for an idempotency key, a response.
        let serving = if ["GET", "DELETE"].contains(&method) {
            Serving::Any
        } else {
            Serving::Restarted
        };

        eventually(&format!("an answer to {method} {path}"), async || {
            let turn = TURNS.fetch_add(1, Ordering::Relaxed);
            let answer = self
                .api(turn, serving)?
                .try_send(method, path, headers, body.as_ref())
                .await
                .ok()?;

            // The request is in progress in a process that was killed.
            let is_held = answer.status == 409 && answer.body.contains("Idempotency-Key");

            // Another test's sidecar may have taken the port of a process that was killed.
            let is_foreign = answer.status == 401;
            (answer.status < 500 && answer.status != 429 && !is_held && !is_foreign)
                .then_some(answer)
        })
        .await
    }

    pub async fn get(&self, path: &str) -> ApiAnswer {
        self.call("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> ApiAnswer {
        self.call("POST", path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> ApiAnswer {
        self.call("PATCH", path, Some(body)).await
    }

    /// Deletes. A repeated request finds nothing.
    pub async fn delete(&self, path: &str) {
        let answer = self.call("DELETE", path, None).await;
        assert!([204, 404].contains(&answer.status), "{answer:?}");
    }
}
