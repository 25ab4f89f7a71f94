//! The limit: a bare reqwest client that posts to the same receiver, with nothing of Walhook's in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;

/// As long as a delivery's body.
const BODY: &[u8] = br#"{"event":"distribution.outlet.status_changed","timestamp":"2026-03-01T09:05:00.123+00:00","webhook_id":"0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11","data":{"distro_queue_id":1000417,"release_id":1000418,"label_id":1,"release_cat":"CAT-418","outlet_id":18,"outlet_name":"Outlet 18","previous_status":"scheduled","status":"transcoding"}}"#;

#[derive(Clone)]
pub struct Bare {
    client: reqwest::Client,
    url: String,
}

impl Bare {
    pub fn new(url: String) -> anyhow::Result<Bare> {
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).pool_max_idle_per_host(1_024).build()?;
        Ok(Bare { client, url })
    }

    /// One POST, and how long it took.
    pub async fn post(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        // Without a delivery's id: the receiver does not count it among deliveries.
        let request = self.client.post(&self.url).header("content-type", "application/json");
        let answer = request.body(Bytes::from_static(BODY)).send().await.context("the bare loop")?;
        answer.bytes().await?;
        Ok(begun.elapsed())
    }

    /// Posts for `length` with `concurrency` requests under way: how many a second.
    pub async fn rate(&self, concurrency: usize, length: Duration) -> anyhow::Result<f64> {
        let done = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let tasks: Vec<_> = (0..concurrency)
            .map(|_| {
                let (bare, done) = (self.clone(), done.clone());
                tokio::spawn(async move {
                    while begun.elapsed() < length {
                        bare.post().await?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
    }
}
