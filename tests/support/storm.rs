//! Two replicas under load that are killed at random, with a Postgres that restarts, and with good
//! and misbehaving receivers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use walhook::private_postgres::{Options, PrivatePostgres, StopMode};
use walhook::vault::random_bytes;

use super::{Hostile, Misdeed, Received, Receiver, Sidecar, TestApp, eventually, next_id};

const EVENT: &str = "payment.statement_ready";

/// The parameters of a storm.
pub struct Plan {
    /// How long payments are committed and replicas killed.
    pub length: Duration,
    /// Between two payments of each user.
    pub payment_interval: Duration,
    /// Mean time between two kills. Each is followed by a start.
    pub kill_interval: Duration,
    /// Number of kills between restarts of Postgres.
    pub kills_per_restart: usize,
}

/// The results of a storm.
#[derive(Debug)]
pub struct Report {
    pub payments: usize,
    pub attempts: i64,
    pub kills: usize,
    pub restarts: usize,
    /// The peak resident memory of all processes.
    pub most_memory_kib: u64,
}

/// Returns the peak resident memory of a process.
fn peak_kib(sidecar: &Sidecar) -> u64 {
    let Some(pid) = sidecar.running_pid() else {
        return 0;
    };

    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok())
        .unwrap_or(0)
}

/// Commits payments until it is stopped. Reconnects when the database restarts.
pub struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    pub fn start(url: String, users: Vec<i64>, interval: Duration) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();

        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let Ok(client) = walhook::postgres::connect(&url).await else {
                    tokio::time::sleep(super::POLL).await;
                    continue;
                };

                let insert = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                              values ($1, $2, 'INV', 1, 1, 'ready')";

                'connected: while !stopped.load(Ordering::Relaxed) {
                    for user in &users {
                        if client.execute(insert, &[&next_id(), user]).await.is_err() {
                            break 'connected;
                        }
                    }

                    tokio::time::sleep(interval).await;
                }
            }
        });

        Load { stop, task }
    }

    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the load does not panic");
    }
}

/// Returns a random duration of at most `length`.
fn random_below(length: Duration) -> Duration {
    length.mul_f64(f64::from(u32::from_be_bytes(random_bytes())) / f64::from(u32::MAX))
}

struct Storm {
    app: TestApp,
    good: Receiver,
    users: [i64; 2],
    /// Webhooks of the first user with misbehaving receivers.
    bad: Vec<String>,
    /// Kept until the end.
    _receivers: (Vec<Hostile>, Receiver),
}

impl Storm {
    async fn begin() -> Storm {
        let server = PrivatePostgres::start(Options {
            fsync: true,
            ..Options::default()
        })
        .await;
        let mut app = TestApp::prepare_on(Arc::new(server.expect("a private PostgreSQL"))).await;

        app.set("delivery.timeout", "300ms")
            .set("delivery.retry_schedule", &["20ms"; 9].join(","))
            .set("delivery.retry_jitter", "20ms")
            .set("disable.threshold", "1000000000");
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let users = [platform.user(&[]).await, platform.user(&[]).await];
        let good = Receiver::start().await;
        let failing = Receiver::start().await;

        failing.answer_status(500);
        let mut hostile = Vec::new();
        let mut urls = vec![failing.url("/")];

        let misdeeds = [
            (Misdeed::Silence, "http"),
            (Misdeed::Reset, "http"),
            (Misdeed::Trickle, "http"),
            (Misdeed::Gigabytes, "http"),
            (Misdeed::Greeting, "https"),
        ];
        for (misdeed, scheme) in misdeeds {
            let receiver = Hostile::start(misdeed).await;
            urls.push(receiver.url(scheme));
            hostile.push(receiver);
        }

        let mut bad = Vec::new();

        for user in users {
            app.api(&user.to_string())
                .await
                .create_webhook(&good.url("/"), &[EVENT])
                .await;
        }

        let api = app.api(&users[0].to_string()).await;

        for url in urls {
            bad.push(api.create_webhook(&url, &[EVENT]).await.0);
        }

        Storm {
            app,
            good,
            users,
            bad,
            _receivers: (hostile, failing),
        }
    }

    async fn kill_replicas(&mut self, plan: &Plan, report: &mut Report) {
        let mut replicas = [self.app.spawn(&[]), self.app.spawn(&[])];
        self.app.kill().await;

        let end = Instant::now() + plan.length;
        while Instant::now() < end {
            tokio::time::sleep(plan.kill_interval / 2 + random_below(plan.kill_interval)).await;
            let victim = usize::from(random_bytes::<1>()[0] % 2);

            report.record_memory(&replicas);
            let killed = std::mem::replace(&mut replicas[victim], self.app.spawn(&[]));

            killed.kill().await;
            report.kills += 1;

            if report.kills.is_multiple_of(plan.kills_per_restart) {
                let mode = if report.restarts.is_multiple_of(2) {
                    StopMode::Fast
                } else {
                    StopMode::Immediate
                };

                self.app
                    .server
                    .restart(mode)
                    .await
                    .expect("Postgres restarts");
                report.restarts += 1;

                // A process that was starting while its database was down has ended.
                for replica in &mut replicas {
                    if replica.has_ended() {
                        *replica = self.app.spawn(&[]);
                    }
                }
            }
        }

        for replica in &mut replicas {
            if replica.has_ended() {
                *replica = self.app.spawn(&[]);
            }

            replica.wait_until_ready().await;
        }

        self.settle(report, &replicas).await;
        report.record_memory(&replicas);

        for replica in replicas {
            assert!(replica.stop().await.success());
        }
    }

    /// Waits until everything committed was delivered, and no delivery is pending.
    async fn settle(&self, report: &mut Report, replicas: &[Sidecar]) {
        let platform = self.app.source().await;
        let committed = platform
            .query("select id from payment", &[])
            .await
            .expect("payments");
        let wanted: HashSet<i64> = committed.iter().map(|row| row.get(0)).collect();

        report.payments = wanted.len();
        let payments_in = |requests: &[Received]| -> HashSet<i64> {
            requests
                .iter()
                .filter_map(|request| request.data()["payment_request_id"].as_i64())
                .collect()
        };

        let received = self.good.wait_for_deliveries(wanted.len()).await;
        assert_eq!(
            payments_in(&received),
            wanted,
            "exactly the committed payments are delivered"
        );
        self.app.wait_for_events(wanted.len()).await;

        let store = self.app.store().await;
        let mut before = i64::MAX;

        loop {
            // Waits as long as there is progress.
            let fewer = || async {
                let row = store
                    .query_one("select count(*) from walhook.delivery", &[])
                    .await
                    .ok()?;
                let pending: i64 = row.get(0);
                (pending == 0 || pending < before).then_some(pending)
            };

            before = eventually("fewer deliveries pending", fewer).await;
            report.record_memory(replicas);

            if before == 0 {
                return;
            }
        }
    }

    async fn assert_log_is_sound(&self, report: &mut Report) {
        let store = self.app.store().await;
        let count =
            async |query: &str| -> i64 { store.query_one(query, &[]).await.expect(query).get(0) };

        report.attempts = count("select count(*) from walhook.attempt").await;
        let events = count("select count(*) from walhook.event").await;

        assert_eq!(
            events as usize, report.payments,
            "each event is stored once"
        );
        let too_many = "select count(*) from (select from walhook.attempt group by delivery_id, round
                        having count(*) > 10 or max(attempt) > 10 or count(*) <> count(distinct attempt)) as wrong";

        assert_eq!(
            count(too_many).await,
            0,
            "at most ten attempts per round, each once in the log"
        );

        for user in self.users {
            let ends = "select count(distinct delivery_id), count(*) filter (where outcome = 'delivered'),
                               (select count(*) from walhook.event where user_id = webhook.user_id), success_count
                        from walhook.webhook left join walhook.attempt on attempt.webhook_id = webhook.id
                        where webhook.user_id = $1 and webhook.url = $2 group by webhook.id";
            let row = store
                .query_one(ends, &[&user.to_string(), &self.good.url("/")])
                .await
                .expect("its log");
            let numbers: Vec<i64> = (0..4).map(|column| row.get(column)).collect();

            assert!(
                numbers.iter().all(|number| *number == numbers[0]),
                "each event is delivered and counted once: {numbers:?}"
            );
        }

        for webhook in &self.bad {
            let ends = "select (select count(*) from walhook.event where user_id = webhook.user_id),
                               count(*) filter (where outcome in ('permanently_failed', 'delivered')),
                               count(*) filter (where outcome in ('permanently_failed', 'failed')),
                               max(failure_count)
                        from walhook.webhook left join walhook.attempt on attempt.webhook_id = webhook.id
                        where webhook.id = $1::text::uuid group by webhook.id, webhook.user_id";

            let row = store.query_one(ends, &[webhook]).await.expect("its log");
            let [events, ended, failed, counted] =
                [0, 1, 2, 3].map(|column| row.get::<_, i64>(column));
            assert_eq!(
                (events, failed),
                (ended, counted),
                "each delivery has ended, and each failure is counted once"
            );
        }

        let too_few =
            "select count(*) from (select from walhook.attempt group by delivery_id, round
                       having bool_or(outcome = 'permanently_failed') and count(*) <> 10) as wrong";
        assert_eq!(
            count(too_few).await,
            0,
            "a delivery fails permanently only after ten attempts"
        );
    }
}

impl Report {
    fn record_memory(&mut self, replicas: &[Sidecar]) {
        self.most_memory_kib = replicas
            .iter()
            .map(peak_kib)
            .fold(self.most_memory_kib, u64::max);
    }
}

/// Runs the storm. Panics if a guarantee is violated.
pub async fn storm(plan: &Plan) -> Report {
    let mut report = Report {
        payments: 0,
        attempts: 0,
        kills: 0,
        restarts: 0,
        most_memory_kib: 0,
    };

    let mut storm = Storm::begin().await;
    let load = Load::start(
        storm.app.source_url.clone(),
        storm.users.to_vec(),
        plan.payment_interval,
    );
    let stop_load = async {
        tokio::time::sleep(plan.length).await;
        load.stop().await;
    };

    tokio::join!(stop_load, storm.kill_replicas(plan, &mut report));
    storm.assert_log_is_sound(&mut report).await;

    report
}
