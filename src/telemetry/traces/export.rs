//! Exports spans to the collector in batches: OTLP over HTTP.
//!
//! Not `opentelemetry-otlp`, which drops the count of spans that a collector rejects. Batching,
//! retries and the final flush would remain here.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use metrics::{Counter, counter};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::spans::text;
use crate::config::Collector;
use crate::retry::Backoff;
use crate::telemetry::{self, Activity, recurring};
use crate::tls;

/// Spans in one request.
const MAX_BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const RETRIES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How long shutdown waits for the collector.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// A response is a few bytes.
const MAX_RESPONSE: usize = 64 << 10;

/// Returns the counter of spans that were dropped for `reason`.
pub fn dropped(reason: &'static str) -> Counter {
    counter!(telemetry::SPANS_DROPPED, "reason" => reason)
}

/// The background task that exports spans.
pub struct Exporter {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    pub(super) fn start(
        collector: &Collector,
        service: &str,
        spans: mpsc::Receiver<Span>,
    ) -> anyhow::Result<Exporter> {
        let stop = CancellationToken::new();
        let worker = Worker {
            client: client(collector)?,
            url: collector.url.clone(),
            resource: resource(service),
            spans,
            stop: stop.clone(),
            exported: counter!(telemetry::SPANS_EXPORTED),
            refused: dropped("refused"),
            exporting: Activity::new("exporting spans"),
        };

        Ok(Exporter {
            stop,
            task: tokio::spawn(worker.run()),
        })
    }

    /// Exports the remaining spans, if the collector accepts them in time. Must be called at the
    /// end of the process.
    pub async fn flush(mut self) {
        self.stop.cancel();

        if timeout(FLUSH_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::debug!("the last spans were not exported in time");
        }
    }
}

struct Worker {
    client: reqwest::Client,
    url: url::Url,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    stop: CancellationToken,
    exported: Counter,
    refused: Counter,
    exporting: Activity,
}

/// Why a batch was not exported.
#[derive(Debug, thiserror::Error)]
enum ExportFault {
    #[error("{}", root_cause(.0))]
    Unreachable(reqwest::Error),
    #[error("the collector answered {0}")]
    Status(StatusCode),
}

impl ExportFault {
    /// Whether the same batch may be accepted later, as the protocol defines it.
    fn is_transient(&self) -> bool {
        match self {
            ExportFault::Unreachable(_) => true,
            ExportFault::Status(status) => matches!(status.as_u16(), 429 | 502..=504),
        }
    }
}

/// Returns the innermost cause of the error, without the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes
        .last()
        .map_or_else(|| "no response".to_owned(), ToString::to_string)
}

impl Worker {
    async fn run(mut self) {
        loop {
            let batch = self.next().await;
            if batch.is_empty() {
                return;
            }

            self.export(batch).await;
        }
    }

    /// Returns the next batch: queued spans, and those that arrive within [`BATCH_DELAY`]. Empty
    /// when tracing ends.
    async fn next(&mut self) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut full_at = Instant::now() + BATCH_DELAY;

        while batch.len() < MAX_BATCH {
            let free = MAX_BATCH - batch.len();
            let was_empty = batch.is_empty();

            tokio::select! {
                biased;
                () = self.stop.cancelled(), if !self.spans.is_closed() => self.spans.close(),
                count = self.spans.recv_many(&mut batch, free) => match count {
                    0 => break,
                    _ if was_empty => full_at = Instant::now() + BATCH_DELAY,
                    _ => {}
                },
                () = sleep_until(full_at), if !was_empty => break,
            }
        }

        batch
    }

    /// Retries until the batch is accepted or permanently rejected. Meanwhile new spans wait in the
    /// queue.
    async fn export(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let body = Bytes::from(self.request(spans).encode_to_vec());
        let mut retries = RETRIES;

        loop {
            let fault = match self.post(body.clone()).await {
                Ok(answer) => return self.accepted(count, &answer),
                Err(fault) => fault,
            };

            self.exporting.failed(&fault);

            if !fault.is_transient() || self.stop.is_cancelled() {
                return self.refused.increment(count);
            }

            retries.wait_unless(&self.stop).await;
        }
    }

    fn accepted(&self, count: u64, answer: &[u8]) {
        self.exporting.succeeded();
        let partial = ExportTraceServiceResponse::decode(answer)
            .ok()
            .and_then(|answer| answer.partial_success);
        let rejected = partial
            .as_ref()
            .map_or(0, |partial| partial.rejected_spans.max(0) as u64)
            .min(count);
        if rejected > 0 {
            let reason = partial
                .map(|partial| partial.error_message)
                .unwrap_or_default();
            recurring!(
                warn,
                rejected,
                reason,
                "the collector rejected some of the spans"
            );
        }

        self.refused.increment(rejected);
        self.exported.increment(count - rejected);
    }

    async fn post(&self, body: Bytes) -> Result<Vec<u8>, ExportFault> {
        let sent = self.client.post(self.url.clone()).body(body).send().await;
        let mut answer = sent.map_err(ExportFault::Unreachable)?;
        if !answer.status().is_success() {
            return Err(ExportFault::Status(answer.status()));
        }

        let mut read = Vec::new();

        // The status was received: a body that breaks off changes nothing.
        while let Ok(Some(chunk)) = answer.chunk().await {
            read.extend_from_slice(&chunk);

            if read.len() > MAX_RESPONSE {
                break;
            }
        }

        Ok(read)
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };

        let scope_spans = vec![ScopeSpans {
            scope: Some(scope),
            spans,
            ..ScopeSpans::default()
        }];
        let resource = Some(self.resource.clone());

        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource,
                scope_spans,
                ..ResourceSpans::default()
            }],
        }
    }
}

fn resource(service: &str) -> Resource {
    let attributes = vec![
        text("service.name", service),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", Uuid::now_v7().to_string()),
    ];
    Resource {
        attributes,
        ..Resource::default()
    }
}

/// Builds the client, without proxy and redirects: only the collector may receive the headers.
fn client(collector: &Collector) -> anyhow::Result<reqwest::Client> {
    let mut headers = HeaderMap::from_iter([(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-protobuf"),
    )]);
    for (name, value) in &collector.headers {
        let mut value = HeaderValue::from_str(value.expose_secret()).context("tracing.headers")?;
        value.set_sensitive(true);
        headers.insert(
            HeaderName::from_bytes(name.as_bytes()).context("tracing.headers")?,
            value,
        );
    }

    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls::client(tls::system_roots()))
        .no_proxy();
    let builder = builder
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REQUEST_TIMEOUT);
    builder
        .default_headers(headers)
        .build()
        .context("a client for tracing.otlp_endpoint")
}
