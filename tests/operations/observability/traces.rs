//! An event is one trace, from its commit to the receiver. A collector that is down delays nothing.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;
use walhook::private_postgres::free_port;

use crate::support::collector::{Collector, attributes};
use crate::support::{Answer, Api, DEADLINE, Platform, Received, Receiver, TestApp, eventually};

const EVENT: &str = "payment.statement_ready";

struct Scene {
    app: TestApp,
    collector: Collector,
    receiver: Receiver,
    platform: Platform,
    user: i64,
    api: Api,
    webhook: String,
}

impl Scene {
    async fn start(filter: &str) -> Scene {
        // Not an ephemeral port: a test ends the collector and starts another one on the same port.
        let collector = Collector::start(free_port().unwrap()).await;
        let mut app = TestApp::prepare().await;

        app.set("log.filter", filter)
            .set_fast_retries()
            .set("tracing.headers", "api-key=hunter%202");
        app.set(
            "tracing.otlp_endpoint",
            &format!("http://127.0.0.1:{}", collector.port),
        );
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let receiver = Receiver::start().await;
        let user = platform.user(&[]).await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api
            .create_webhook(&receiver.url("/hook?token=hush"), &[EVENT])
            .await;

        Scene {
            app,
            collector,
            receiver,
            platform,
            user,
            api,
            webhook,
        }
    }

    /// Raises an event and waits for this many attempts.
    async fn event(&self, attempts: usize) -> Vec<Received> {
        self.receiver.clear();
        self.platform.payment(self.user, "ready").await;
        self.receiver.wait_for(attempts).await
    }
}

/// Returns trace id, parent id and flags of the header.
fn traceparent(received: &Received) -> (String, String, String) {
    let parts: Vec<&str> = received.header("traceparent").split('-').collect();
    let [version, trace, parent, flags] = parts[..] else {
        panic!("{parts:?}")
    };

    assert_eq!(
        (version, trace),
        (
            "00",
            received
                .header("x-webhook-event-id")
                .replace('-', "")
                .as_str()
        )
    );

    (trace.to_owned(), parent.to_owned(), flags.to_owned())
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    let mut found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    found.sort_by_key(|span| span.start_time_unix_nano);
    found
}

fn code(span: &Span) -> StatusCode {
    span.status
        .as_ref()
        .map_or(StatusCode::Unset, |status| status.code())
}

#[tokio::test]
async fn an_event_is_one_trace_from_the_wal_to_the_receiver() {
    let mut scene = Scene::start("trace").await;
    scene
        .receiver
        .answer_in_turn(&[Answer::Status(500), Answer::Status(200)]);

    let received = scene.event(2).await;
    let (trace, first, flags) = traceparent(&received[0]);
    let (_, second, _) = traceparent(&received[1]);

    assert_eq!(flags, "01");
    assert_ne!(first, second);

    let spans = scene.collector.wait_for_trace(&trace, 5).await;

    let root = named(&spans, "event payment.statement_ready")[0];
    assert_eq!(
        (root.kind(), root.parent_span_id.len()),
        (SpanKind::Producer, 0)
    );

    let of_root = attributes(&root.attributes);
    let store = scene.app.store().await;
    let statement = "select id::text, commit_lsn::text, ordinal::text from walhook.event";
    let row = store.query_one(statement, &[]).await.unwrap();

    for (key, column) in [
        ("walhook.event.id", 0),
        ("walhook.lsn", 1),
        ("walhook.ordinal", 2),
    ] {
        assert_eq!(of_root[key], row.get::<_, String>(column), "{key}");
    }

    assert_eq!(
        (of_root["walhook.event.type"].as_str(), &of_root["user.id"]),
        (EVENT, &scene.user.to_string())
    );

    let capture = named(&spans, "capture")[0];
    let storing = named(&spans, "store")[0];

    assert_eq!(capture.start_time_unix_nano, root.start_time_unix_nano);
    assert_eq!(capture.end_time_unix_nano, storing.start_time_unix_nano);
    assert_eq!(storing.end_time_unix_nano, root.end_time_unix_nano);

    let attempts = named(&spans, "POST");
    let ids: Vec<String> = attempts
        .iter()
        .map(|span| hex::encode(&span.span_id))
        .collect();

    assert_eq!(ids, [first, second]);

    for span in [capture, storing, attempts[0], attempts[1]] {
        assert_eq!(span.parent_span_id, root.span_id, "{span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }

    let [failed, delivered] = [0, 1].map(|index| attributes(&attempts[index].attributes));
    let port = scene
        .receiver
        .url("")
        .rsplit(':')
        .next()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    for (key, value) in [
        ("http.request.method", "POST"),
        ("server.address", "127.0.0.1"),
        ("server.port", &port),
    ] {
        assert_eq!(
            (failed[key].as_str(), delivered[key].as_str()),
            (value, value),
            "{key}"
        );
    }

    assert_eq!(failed["walhook.webhook.id"], scene.webhook);
    assert_eq!(failed["walhook.delivery.id"], received[0].delivery());

    assert_eq!(
        (
            &*failed["error.type"],
            &*failed["http.response.status_code"]
        ),
        ("500", "500")
    );

    assert_eq!(
        (
            &*delivered["http.response.status_code"],
            &*delivered["http.request.resend_count"]
        ),
        ("200", "1")
    );

    assert_eq!(
        (
            &*failed["walhook.delivery.outcome"],
            &*delivered["walhook.delivery.outcome"]
        ),
        ("failed", "delivered")
    );

    assert_eq!(
        (attempts[0].kind(), code(attempts[0]), code(attempts[1])),
        (SpanKind::Client, StatusCode::Error, StatusCode::Unset)
    );
    assert!(!delivered.contains_key("error.type"));

    redelivery_and_test(&scene, &trace).await;
    let export = scene.collector.exports().remove(0);

    assert_eq!(export.headers["api-key"], "hunter 2");
    assert_eq!(export.resource["service.name"], "Walhook");
    assert_eq!(
        export.resource["service.version"],
        env!("CARGO_PKG_VERSION")
    );

    let exported = format!(
        "{:?}",
        scene
            .collector
            .exports()
            .into_iter()
            .map(|export| export.spans)
            .collect::<Vec<_>>()
    );

    assert!(!exported.contains("hush"), "a URL's secret is in a span");

    // The last spans are exported before the process ends.
    let last = scene.event(1).await;
    let (trace, ..) = traceparent(&last[0]);

    assert!(scene.app.stop().await.success());
    assert_eq!(scene.collector.trace(&trace).len(), 4);

    let log = std::fs::read_to_string(scene.app.log_file()).unwrap();
    assert!(!log.contains("hunter"), "{log}");
}

/// A redelivery belongs to the trace of its event; a test has its own trace.
async fn redelivery_and_test(scene: &Scene, trace: &str) {
    let logs = scene
        .api
        .wait_for_logs(&scene.webhook, "both attempts", |logs| logs.len() == 2)
        .await;
    let entry = logs[0]["id"].as_str().unwrap();

    scene
        .api
        .post(
            &format!("/webhooks/{}/logs/{entry}/redeliver", scene.webhook),
            json!({}),
        )
        .await
        .expect(202);

    let spans = scene.collector.wait_for_trace(trace, 6).await;
    let rounds: Vec<String> = named(&spans, "POST")
        .iter()
        .map(|span| attributes(&span.attributes)["walhook.delivery.round"].clone())
        .collect();

    assert_eq!(rounds, ["1", "1", "2"]);
    scene.receiver.clear();
    scene
        .api
        .post(&format!("/webhooks/{}/test", scene.webhook), json!({}))
        .await
        .expect(200);

    let test = scene.receiver.wait_for(1).await;
    let (trace, span, _) = traceparent(&test[0]);
    let spans = scene.collector.wait_for_trace(&trace, 1).await;

    assert_eq!(
        (
            hex::encode(&spans[0].span_id),
            spans[0].parent_span_id.len()
        ),
        (span, 0)
    );
}

#[tokio::test]
async fn without_its_collector_everything_works_and_one_line_is_logged() {
    let mut scene = Scene::start("walhook=info").await;
    let port = scene.collector.port;
    let lines = |app: &TestApp, words: &str| {
        std::fs::read_to_string(app.log_file())
            .unwrap()
            .matches(words)
            .count()
    };

    drop(std::mem::replace(
        &mut scene.collector,
        Collector::start(0).await,
    ));
    let mut traces = BTreeMap::new();

    for _ in 0..3 {
        let received = scene.event(1).await;
        let (trace, span, _) = traceparent(&received[0]);

        traces.insert(trace, span);
        let warned = || async { (lines(&scene.app, "exporting spans fails") > 0).then_some(()) };
        eventually("the warning", warned).await;
    }

    // Spans that could not be exported have waited.
    scene.collector = Collector::start(port).await;

    for (trace, span) in &traces {
        let spans = scene.collector.wait_for_trace(trace, 4).await;
        assert_eq!(hex::encode(&named(&spans, "POST")[0].span_id), *span);
    }

    let metrics = scene.app.sidecar().metrics_url.clone();
    let exported = || async {
        let text = crate::support::metrics(&metrics).await;
        text.lines()
            .any(|line| line == "walhook_spans_exported_total 12")
            .then_some(text)
    };

    let text = eventually("twelve spans in the metric", exported).await;

    for reason in ["queue_full", "refused"] {
        assert!(
            text.contains(&format!(
                "walhook_spans_dropped_total{{reason=\"{reason}\"}} 0\n"
            )),
            "{text}"
        );
    }

    assert_eq!(lines(&scene.app, "exporting spans fails"), 1);
    assert_eq!(lines(&scene.app, "exporting spans works again"), 1);

    // Events that are not sampled are flagged so for receivers, and not exported.
    assert!(scene.app.stop().await.success());
    scene.app.set("tracing.sample_ratio", "0");
    scene.app.run().await;

    let received = scene.event(1).await;
    let (trace, _, flags) = traceparent(&received[0]);

    assert_eq!(flags, "00");
    assert!(scene.app.stop().await.success());
    assert_eq!(scene.collector.trace(&trace).len(), 0);

    // A collector that accepts connections but never responds delays neither deliveries nor
    // shutdown for long.
    let hangs = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", hangs.local_addr().unwrap());

    scene
        .app
        .set("tracing.sample_ratio", "1")
        .set("tracing.otlp_endpoint", &endpoint);
    scene.app.run().await;
    scene.event(1).await;

    let _connection = tokio::time::timeout(DEADLINE, hangs.accept())
        .await
        .expect("a connection")
        .unwrap();
    assert!(scene.app.stop().await.success());
}
