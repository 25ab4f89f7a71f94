//! A minimal collector of traces: OTLP over HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::eventually;

/// The content of one request.
#[derive(Clone)]
pub struct Export {
    pub headers: HeaderMap,
    pub resource: BTreeMap<String, String>,
    pub spans: Vec<Span>,
}

type Exports = Arc<Mutex<Vec<Export>>>;

/// Listens until it is dropped.
pub struct Collector {
    pub port: u16,
    exports: Exports,
    _server: AbortOnDropHandle<()>,
}

impl Collector {
    pub async fn start(port: u16) -> Collector {
        let listener = TcpListener::bind(("127.0.0.1", port))
            .await
            .expect("the collector's port");
        let port = listener.local_addr().unwrap().port();
        let exports = Exports::default();
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(exports.clone());
        let server = async move { axum::serve(listener, router).await.expect("a server") };

        Collector {
            port,
            exports,
            _server: AbortOnDropHandle::new(tokio::spawn(server)),
        }
    }

    pub fn exports(&self) -> Vec<Export> {
        self.exports.lock().unwrap().clone()
    }

    /// Returns the spans of a trace so far. The id is hexadecimal.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        let spans = self.exports().into_iter().flat_map(|export| export.spans);
        spans
            .filter(|span| hex::encode(&span.trace_id) == id)
            .collect()
    }

    /// Waits until the trace has this many spans.
    pub async fn wait_for_trace(&self, id: &str, count: usize) -> Vec<Span> {
        let whole = || async { Some(self.trace(id)).filter(|spans| spans.len() >= count) };
        let spans = eventually(&format!("{count} spans of {id}"), whole).await;
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }
}

async fn receive(State(exports): State<Exports>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return StatusCode::BAD_REQUEST;
    };

    for group in request.resource_spans {
        let resource = attributes(&group.resource.expect("a resource").attributes);
        let spans = group
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans)
            .collect();
        exports.lock().unwrap().push(Export {
            headers: headers.clone(),
            resource,
            spans,
        });
    }

    StatusCode::OK
}

/// Returns attributes as text, numbers in decimal.
pub fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let value = |pair: &KeyValue| match pair.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{}: {other:?}", pair.key),
    };

    let map: BTreeMap<String, String> = pairs
        .iter()
        .map(|pair| (pair.key.clone(), value(pair)))
        .collect();
    assert_eq!(
        map.len(),
        pairs.len(),
        "an attribute is given twice: {pairs:?}"
    );

    map
}
