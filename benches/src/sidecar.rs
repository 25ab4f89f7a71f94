//! Runs the shipped binary with a configuration file, as operators do.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::{StreamExt, TryStreamExt, stream};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::process::{Child, Command};
use walhook::private_postgres::free_port;
use walhook::vault::random_bytes;

use crate::platform::EVENT;
use crate::wait::eventually;

pub const SLOT: &str = "walhook";
const JWT_SECRET: &str = "the secret that a platform shares with its sidecar";
const ISSUER: &str = "https://platform.example";
const AUDIENCE: &str = "walhook";
/// The default of `http.base_path`.
pub const API_PATH: &str = "/api/public";
/// Concurrent requests that create webhooks.
const CONCURRENT_CREATIONS: usize = 8;
const STOP_DEADLINE: Duration = Duration::from_secs(40);

/// The settings that all replicas of an installation share.
pub struct Installation {
    program: PathBuf,
    directory: PathBuf,
    http: reqwest::Client,
    source_url: String,
    store_url: String,
    master_key: String,
    /// Lines of the section `source`.
    source: String,
    /// Lines of the section `delivery`.
    delivery: String,
}

/// A webhook that was created over the API.
pub struct Webhook {
    pub id: String,
    pub secret: String,
}

impl Installation {
    /// Uses another URL of the primary.
    pub fn set_source(&mut self, url: String) {
        self.source_url = url;
    }

    pub fn new(
        program: &Path,
        directory: &Path,
        source_url: String,
        store_url: String,
    ) -> Installation {
        let master_key = STANDARD.encode(random_bytes::<32>());
        let program = program.to_owned();
        let directory = directory.to_owned();
        let http = reqwest::Client::new();

        Installation {
            program,
            directory,
            http,
            source_url,
            store_url,
            master_key,
            source: String::new(),
            delivery: String::new(),
        }
    }

    /// Returns another one of the same build, in a directory below.
    pub fn another(
        &self,
        name: &str,
        source_url: &str,
        store_url: &str,
    ) -> anyhow::Result<Installation> {
        let directory = self.directory.join(name);
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Installation::new(
            &self.program,
            &directory,
            source_url.to_owned(),
            store_url.to_owned(),
        ))
    }

    /// Adds lines to the sections `source` and `delivery`.
    pub fn configure(&mut self, source: &str, delivery: &str) {
        (self.source, self.delivery) = (source.to_owned(), delivery.to_owned());
    }

    fn write_config(&self, name: &str, api: &str, metrics: &str) -> anyhow::Result<PathBuf> {
        let text = format!(
            "[source]\nurl = \"{}\"\nslot = \"{SLOT}\"\n{}\n[store]\nurl = \"{}\"\n[secrets]\nmaster_key = \"{}\"\n\
             [http]\nlisten = \"{api}\"\nmetrics_listen = \"{metrics}\"\n\
             [auth.jwt]\nissuer = \"{ISSUER}\"\naudience = \"{AUDIENCE}\"\nsecret = \"{JWT_SECRET}\"\n\
             [delivery]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n{}\n",
            self.source_url, self.source, self.store_url, self.master_key, self.delivery
        );

        let path = self.directory.join(format!("{name}.toml"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;

        Ok(path)
    }

    fn command(&self, config: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| name.to_string_lossy().starts_with("WALHOOK_")) {
            command.env_remove(name);
        }

        command
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `walhook setup`.
    pub async fn set_up(&self) -> anyhow::Result<()> {
        let config = self.write_config("setup", "127.0.0.1:0", "127.0.0.1:0")?;
        let output = self
            .command(&config)
            .arg("setup")
            .output()
            .await
            .context("cannot run walhook")?;
        if !output.status.success() {
            bail!(
                "`walhook setup` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }

        Ok(())
    }

    /// Starts `walhook run` without waiting for it.
    pub fn start(&self, name: &str, roles: &str) -> anyhow::Result<Sidecar> {
        let address = || -> anyhow::Result<String> { Ok(format!("127.0.0.1:{}", free_port()?)) };
        let api = address()?;
        let metrics = address()?;
        let config = self.write_config(name, &api, &metrics)?;
        let log = self.directory.join(format!("{name}.log"));
        let output = std::fs::File::create(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = self.command(&config);

        command
            .args(["run", "--roles", roles])
            .stdout(Stdio::null())
            .stderr(output);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(Sidecar {
            child,
            log,
            api: format!("http://{api}{API_PATH}"),
            metrics: format!("http://{metrics}"),
        })
    }

    /// Creates webhooks for [`EVENT`] over the API, by a process that runs only for this.
    pub async fn create_webhooks(
        &self,
        wanted: &[(u64, String)],
        ordering: &str,
    ) -> anyhow::Result<Vec<Webhook>> {
        let sidecar = self.start("api", "api")?;
        self.wait_until_ready(&sidecar).await?;

        let requests = wanted.iter().enumerate().map(|(number, (user, url))| {
            let name = format!("Webhook {number}");
            let body = json!({ "name": name, "url": url, "events": [EVENT], "ordering": ordering });
            self.create_webhook(&sidecar, *user, body.to_string())
        });

        let created = stream::iter(requests)
            .buffered(CONCURRENT_CREATIONS)
            .try_collect()
            .await?;
        sidecar.stop().await?;

        Ok(created)
    }

    async fn create_webhook(
        &self,
        sidecar: &Sidecar,
        user: u64,
        body: String,
    ) -> anyhow::Result<Webhook> {
        let request = self
            .http
            .post(format!("{}/webhooks", sidecar.api))
            .bearer_auth(token(user)?);
        let answer = request
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await?;
        let status = answer.status();
        let text = answer.text().await?;
        let webhook: Value = serde_json::from_str(&text)
            .with_context(|| format!("the API responded with {status}"))?;
        let field = |name: &str| webhook[name].as_str().map(str::to_owned);
        let (Some(id), Some(secret)) = (field("id"), field("secret")) else {
            bail!("the API responded with {status}: {text}")
        };

        Ok(Webhook { id, secret })
    }

    pub async fn wait_until_ready(&self, sidecar: &Sidecar) -> anyhow::Result<()> {
        let url = format!("{}/readyz", sidecar.metrics);
        let ready = eventually("the sidecar is ready", || async {
            Ok(self
                .http
                .get(&url)
                .send()
                .await
                .is_ok_and(|answer| answer.status().is_success()))
        });

        ready.await.with_context(|| sidecar.log_tail())
    }
}

/// Creates a token for a user as the platform would.
pub fn token(user: u64) -> anyhow::Result<String> {
    let expires = jiff::Timestamp::now().as_second() + 3_600;
    let claims = json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": user.to_string(), "exp": expires });
    let base64 = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let signed = format!(
        "{}.{}",
        base64(br#"{"alg":"HS256"}"#),
        base64(claims.to_string().as_bytes())
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(JWT_SECRET.as_bytes())?;

    mac.update(signed.as_bytes());
    Ok(format!("{signed}.{}", base64(&mac.finalize().into_bytes())))
}

/// A running `walhook run`; killed when dropped.
pub struct Sidecar {
    child: Child,
    log: PathBuf,
    api: String,
    metrics: String,
}

impl Sidecar {
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// The API's base URL.
    pub fn api(&self) -> &str {
        &self.api
    }

    /// The host and port of the API.
    pub fn api_address(&self) -> &str {
        let without_scheme = self
            .api
            .split_once("://")
            .map_or(self.api.as_str(), |(_, rest)| rest);
        without_scheme.split('/').next().unwrap_or_default()
    }

    /// Returns the value of a metric, which is 0 until it is first recorded. `series` is its name
    /// with its labels.
    pub async fn metric(&self, series: &str) -> anyhow::Result<f64> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let text = client
            .get(format!("{}/metrics", self.metrics))
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?;

        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        Ok(value.unwrap_or(0.0))
    }

    /// Kills it: hanging requests would delay an orderly shutdown.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Fails if it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!(
                "the sidecar ended unexpectedly ({status}): {}",
                self.log_tail()
            ),
            None => Ok(()),
        }
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!(
            "the last lines of the sidecar's log:\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        )
    }

    /// Stops it by SIGTERM, and waits for its end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self
            .child
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }

        let end = tokio::time::timeout(STOP_DEADLINE, self.child.wait()).await;
        end.context("the sidecar does not stop")??;

        Ok(())
    }
}
