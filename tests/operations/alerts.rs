//! A real Prometheus scrapes the running binary and loads the shipped rules. Each alert fires under
//! its real condition, and clears afterwards.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use walhook::private_postgres::{Options, free_port};

use crate::support::{Api, Receiver, SmtpSink, TestApp, are_installed, eventually, run_sql};

/// Prometheus with the shipped configuration, but shorter intervals. Killed when dropped.
struct Prometheus {
    url: String,
    _child: Child,
    _directory: TempDir,
}

impl Prometheus {
    async fn start(target: &str) -> Prometheus {
        let directory = tempfile::tempdir().unwrap();
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
        let read = |name: &str| std::fs::read_to_string(shipped.join(name)).unwrap();

        // Only durations, sizes and the target differ from the shipped files.
        let config = read("prometheus.yml")
            .replace("15s", "500ms")
            .replace("127.0.0.1:9464", target);
        let rules = read("walhook.rules.yml");
        let rules = rules
            .lines()
            .filter(|line| !line.trim_start().starts_with("for: "));
        let rules: String = rules.map(|line| line.to_owned() + "\n").collect();
        let rules = rules
            .replace("[5m]", "[5s]")
            .replace("[1h]", "[5s]")
            .replace("> 120", "> 1")
            .replace("> 5e9", "> 2e7");

        std::fs::write(directory.path().join("prometheus.yml"), config).unwrap();
        std::fs::write(directory.path().join("walhook.rules.yml"), rules).unwrap();

        let listen = format!("127.0.0.1:{}", free_port().unwrap());
        let child = Command::new("prometheus")
            .arg(format!(
                "--config.file={}",
                directory.path().join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={listen}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus, of Debian's package");

        Prometheus {
            url: format!("http://{listen}"),
            _child: child,
            _directory: directory,
        }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let (status, text) = crate::support::fetch(&format!("{}{path}", self.url)).await?;
        (status == 200).then(|| serde_json::from_str(&text).unwrap())
    }

    /// Returns the firing alerts.
    async fn firing(&self) -> Vec<String> {
        let answer = self.get("/api/v1/alerts").await.unwrap_or_default();
        let alerts = answer["data"]["alerts"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");

        firing
            .map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }

    async fn wait_for(&self, alert: &str, fires: bool) {
        let what = if fires { "fires" } else { "clears" };
        eventually(&format!("{alert} {what}"), async || {
            (self.firing().await.iter().any(|name| name == alert) == fires).then_some(())
        })
        .await;
    }
}

/// `walhook run` at the address that Prometheus scrapes. Killed when dropped.
struct Running(Child);

impl Running {
    async fn start(app: &TestApp, metrics: &str, arguments: &[&str]) -> Running {
        let mut command = app.command(&[&["run"], arguments].concat());
        command.env(
            "WALHOOK_HTTP__LISTEN",
            format!("127.0.0.1:{}", free_port().unwrap()),
        );
        command
            .env("WALHOOK_HTTP__METRICS_LISTEN", metrics)
            .stdout(Stdio::null())
            .stderr(Stdio::null());

        let running = Running(command.spawn().expect("walhook starts"));
        let alive = format!("http://{metrics}/healthz");
        eventually("the process to answer", async || {
            crate::support::fetch(&alive)
                .await
                .filter(|answer| answer.0 == 200)
        })
        .await;

        running
    }

    async fn stop(mut self) {
        self.0.kill().await.expect("a child can be killed");
    }
}

/// The environment in which conditions are created.
struct Scene {
    app: TestApp,
    prometheus: Prometheus,
    metrics: String,
}

impl Scene {
    async fn prepare(settings: &[(&str, &str)]) -> Scene {
        let mut app = TestApp::prepare_alone(Options::default()).await;
        app.set_fast_retries();

        for (key, value) in settings {
            app.set(key, value);
        }

        app.setup().await;
        let metrics = format!("127.0.0.1:{}", free_port().unwrap());
        let prometheus = Prometheus::start(&metrics).await;
        Scene {
            app,
            prometheus,
            metrics,
        }
    }

    async fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&self.app, &self.metrics, arguments).await
    }

    async fn fires(&self, alert: &str) {
        self.prometheus.wait_for(alert, true).await;
    }

    async fn clears(&self, alert: &str) {
        self.prometheus.wait_for(alert, false).await;
    }
}

#[tokio::test]
async fn alerts_of_the_process_and_its_deliveries_fire_and_clear() {
    if !(SmtpSink::is_available() && are_installed(&["prometheus"])) {
        return;
    }

    let smtp = free_port().unwrap();
    let scene = Scene::prepare(&[
        ("disable.threshold", "3000"),
        ("disable.min_duration", "0s"),
        ("mail.smtp_url", &format!("smtp://127.0.0.1:{smtp}")),
        ("mail.from", "webhooks@example.com"),
    ])
    .await;

    // First no process runs, then one does.
    scene.fires("WalhookDown").await;
    let running = scene.start(&[]).await;

    scene.clears("WalhookDown").await;
    let running = receiver_and_mail_down(&scene, running, smtp).await;
    running.stop().await;
    backlog(&scene).await;
}

#[tokio::test]
async fn alerts_of_the_slot_fire_and_clear() {
    if !are_installed(&["prometheus"]) {
        return;
    }

    let scene = Scene::prepare(&[]).await;
    another_reader_of_the_slot(&scene).await;
    gap(&scene).await;
}

/// A receiver fails until its webhook is disabled, and the mail server is down when its owner
/// should be notified.
async fn receiver_and_mail_down(scene: &Scene, running: Running, smtp: u16) -> Running {
    let platform = scene.app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;

    receiver.answer_status(500);
    subscribe(&scene.app, user, &receiver).await;

    // The ranges of the rules are a few seconds here: a single burst may have left them.
    for alert in ["WalhookDeliveriesFail", "WalhookNoticesStuck"] {
        eventually(alert, async || {
            platform.payment(user, "ready").await;
            scene
                .prometheus
                .firing()
                .await
                .iter()
                .any(|name| name == alert)
                .then_some(())
        })
        .await;
    }

    // The disabled webhook no longer fails, and the mail server accepts the kept notices.
    let sink = SmtpSink::start(smtp, &[]).await;
    sink.wait_for("taken", 1).await;
    scene.clears("WalhookDeliveriesFail").await;
    scene.clears("WalhookNoticesStuck").await;

    running
}

async fn subscribe(app: &TestApp, user: i64, receiver: &Receiver) {
    let user = user.to_string();
    let token = app.walhook_ok(&["token", "create", "--user", &user]).await;

    // By a separate process, so that the observed one keeps its ports.
    let side = app.replica(&["--roles", "api"]).await;
    let api = Api::new(&side.api_url, token.trim());
    api.create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;
    side.kill().await;
}

/// Events are stored while no process has the role `deliver`.
async fn backlog(scene: &Scene) {
    let platform = scene.app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;

    subscribe(&scene.app, user, &receiver).await;
    let running = scene.start(&["--roles", "capture,api"]).await;

    platform.payment(user, "ready").await;
    scene.fires("WalhookBacklogOld").await;
    running.stop().await;

    let running = scene.start(&[]).await;
    scene.clears("WalhookBacklogOld").await;
    running.stop().await;
}

/// Another program reads the slot and acknowledges nothing: no replica captures, and WAL
/// accumulates.
async fn another_reader_of_the_slot(scene: &Scene) {
    let options = [
        "proto_version=1".to_owned(),
        format!("publication_names={}", scene.app.name),
    ];
    let mut intruder = scene.app.server.program("pg_recvlogical");

    intruder.args([
        "--start",
        "--slot",
        &scene.app.name,
        "--file",
        "/dev/null",
        "--fsync-interval",
        "0",
    ]);

    intruder.args(["--dbname", &scene.app.source_url, "--status-interval", "0"]);
    intruder
        .args(options.iter().flat_map(|option| ["--option", option]))
        .kill_on_drop(true);

    let mut intruder = intruder
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pg_recvlogical starts");
    let client = scene.app.source().await;

    eventually("the slot is taken", async || {
        let row = client
            .query_one("select active from pg_replication_slots", &[])
            .await
            .unwrap();
        row.get::<_, bool>(0).then_some(())
    })
    .await;

    let running = scene.start(&[]).await;
    let filler = "select count(pg_logical_emit_message(false, 'filler', repeat('x', 8000))) from generate_series(1, 4000)";

    run_sql(&client, filler).await;
    scene.fires("WalhookNotCapturing").await;
    scene.fires("WalhookSlotRetainsWal").await;
    intruder.kill().await.expect("a child can be killed");
    scene.clears("WalhookNotCapturing").await;

    eventually("WalhookSlotRetainsWal clears", async || {
        // WAL is retained from the last record of running transactions, which a checkpoint writes.
        run_sql(&client, "checkpoint").await;
        let firing = scene.prometheus.firing().await;
        (!firing.contains(&"WalhookSlotRetainsWal".to_owned())).then_some(())
    })
    .await;

    running.stop().await;
}

/// The slot is dropped, and the gap repaired.
async fn gap(scene: &Scene) {
    let client = scene.app.source().await;
    eventually("the slot is dropped", async || {
        let dropped = client
            .execute("select pg_drop_replication_slot($1)", &[&scene.app.name])
            .await;
        dropped.is_ok().then_some(())
    })
    .await;

    let running = scene.start(&[]).await;
    scene.fires("WalhookGap").await;
    scene.fires("WalhookSlotAtRisk").await;
    running.stop().await;
    scene.app.walhook_ok(&["repair"]).await;

    let running = scene.start(&[]).await;
    scene.clears("WalhookGap").await;
    scene.clears("WalhookSlotAtRisk").await;
    running.stop().await;
}
