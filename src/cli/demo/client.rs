//! A client of the management API for the demo's users: plain HTTP on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

#[derive(Clone)]
pub struct DemoClient(reqwest::Client);

impl DemoClient {
    pub fn new() -> anyhow::Result<DemoClient> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10));
        Ok(DemoClient(builder.build()?))
    }

    /// Waits until `/readyz` answers with success.
    pub async fn wait_until_ready(&self, metrics: SocketAddr) {
        let url = format!("http://{metrics}/readyz");
        let is_ready = async || self.0.get(&url).send().await?.error_for_status();

        while is_ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates a webhook. Returns its id and secret.
    pub async fn create_webhook(
        &self,
        api_url: &str,
        token: &str,
        name: &str,
        url: &str,
        events: &[&str],
    ) -> anyhow::Result<(String, String)> {
        let body = json!({ "name": name, "url": url, "events": events }).to_string();
        let request = self
            .0
            .post(format!("{api_url}/webhooks"))
            .bearer_auth(token);
        let answer = request
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await?;
        let status = answer.status();
        let text = answer.text().await?;

        if status != reqwest::StatusCode::CREATED {
            bail!("creating webhook {name} failed: {status}: {text}");
        }

        let webhook: Value = serde_json::from_str(&text).context("the response is not JSON")?;
        let field = |key: &str| {
            webhook[key]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("no {key}: {text}"))
        };

        Ok((field("id")?, field("secret")?))
    }
}
