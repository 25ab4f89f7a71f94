//! The feed as a stream of Server-Sent Events.

use serde_json::json;

use crate::support::sse::Stream;
use crate::support::{Api, Platform, Sidecar, TestApp, eventually, one};

pub async fn wait_for_streams(sidecar: &Sidecar, count: usize) {
    let are_open =
        async || (sidecar.metric("walhook_feed_streams").await == Some(count as f64)).then_some(());
    eventually(&format!("{count} open streams"), are_open).await;
}

/// The resident memory of the process.
fn memory_kib(sidecar: &Sidecar) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid()))
        .expect("the process runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("the kernel counts");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number of kB")
}

/// Commits `count` payments, each of which raises an event.
async fn pay(platform: &Platform, user: i64, count: usize) {
    for _ in 0..count {
        platform.payment(user, "ready").await;
    }
}

#[tokio::test]
async fn a_stream_resumes_without_loss_or_repetition() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;

    // Nothing has happened yet: the first block alone says where to resume.
    let first = Stream::open(&api, "?after=latest", None).await.last_id;
    pay(&platform, user, 3).await;

    let mut stream = Stream::open(&api, "?after=latest", first.as_deref()).await;
    let mut seen = stream.ids(3).await;

    pay(&platform, user, 3).await;
    let event = stream.event().await;

    assert_eq!(event.event.as_deref(), Some("payment.statement_ready"));
    let keys: Vec<String> = event.json().as_object().unwrap().keys().cloned().collect();

    assert_eq!(keys, ["id", "event", "occurred_at", "label_id", "data"]);
    seen.push(event.json()["id"].as_str().unwrap().to_owned());

    let last_id = stream.last_id.clone();
    drop(stream);

    // The process ends, which ends a stream, and another takes over.
    let open = Stream::open(&api, "?after=latest", None).await;
    let (status, ()) = tokio::join!(app.stop(), open.end());

    assert!(status.success());
    pay(&platform, user, 2).await;
    app.run().await;

    let api = Api::new(&app.sidecar().api_url, &api.token);
    let mut stream = Stream::open(&api, "?event=payment.statement_ready", last_id.as_deref()).await;

    seen.extend(stream.ids(4).await);
    pay(&platform, user, 1).await;
    seen.extend(stream.ids(1).await);

    let sql = "select id::text from walhook.event order by sequence";
    let stored: Vec<String> = app
        .store()
        .await
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();

    assert_eq!(seen, stored);

    // A page continues after the same cursor.
    let cursor = stream.last_id.unwrap();
    let page = api
        .get(&format!("/events?after={cursor}"))
        .await
        .expect(200)
        .json();
    assert_eq!(page, json!({ "data": [], "next_cursor": cursor }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_streams_cost_no_queries_and_little_memory_and_leave_the_api_usable() {
    const STREAMS: usize = 300;
    let mut app = TestApp::prepare().await;

    app.set("limits.streams_per_user", &STREAMS.to_string());

    // Streams count towards neither of these limits.
    app.set("http.max_connections", "16")
        .set("http.max_requests", "8")
        .set("limits.requests_per_second", "0");
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let idle = platform.user(&[]).await;
    let busy = platform.user(&[]).await;
    let api = app.api(&idle.to_string()).await;
    let other = app.api(&busy.to_string()).await;
    let mut news = Stream::open(&other, "", None).await;
    let mut streams = vec![Stream::open(&api, "", None).await];
    let before = memory_kib(app.sidecar());

    while streams.len() < STREAMS {
        streams.push(Stream::open(&api, "", None).await);
    }

    wait_for_streams(app.sidecar(), STREAMS + 1).await;
    let refused = Stream::request(&api, "", None).await.unwrap();

    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["retry-after"].as_bytes()
        ),
        (429, &b"15"[..])
    );

    let problem: serde_json::Value = serde_json::from_str(&refused.text().await.unwrap()).unwrap();
    assert_eq!(problem["type"], "/problems/too-many-streams");

    // 50 KiB each.
    let grown = memory_kib(app.sidecar()).saturating_sub(before);
    assert!(grown < 50 * STREAMS as u64, "{grown} KiB");

    let reads = "walhook_feed_reads_total";
    let sidecar = &*app.sidecar();
    let all_read = async || {
        sidecar
            .metric(reads)
            .await
            .filter(|read| *read > STREAMS as f64)
    };

    let before = eventually("the first reads", all_read).await;
    pay(&platform, busy, 20).await;
    news.ids(20).await;

    let after = app.sidecar().metric(reads).await.unwrap();
    assert!(
        after - before <= 40.0,
        "{} reads for the events of one stream",
        after - before
    );

    for _ in 0..20 {
        let api = Api::new(&api.url, &api.token);
        api.get("/webhooks").await.expect(200);
    }

    pay(&platform, idle, 1).await;
    let expected = streams[0].ids(1).await;

    for stream in &mut streams[1..] {
        assert_eq!(stream.ids(1).await, expected);
    }

    drop(streams);
    wait_for_streams(app.sidecar(), 1).await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_streams_only() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let revoked = app.api(&user.to_string()).await;
    let kept = app.api(&user.to_string()).await;
    let ended = Stream::open(&revoked, "", None).await;
    let mut open = Stream::open(&kept, "", None).await;
    let first = "select id::text from walhook.api_token order by created_at limit 1";

    let id: String = one(&app.store().await, first).await;

    app.walhook_ok(&["token", "revoke", &id]).await;
    ended.end().await;
    wait_for_streams(app.sidecar(), 1).await;
    platform.payment(user, "ready").await;
    open.event().await;

    // A comment shows that the connection works.
    let comment = open.next().await.unwrap().comment;
    assert_eq!(comment.as_deref(), Some("keep-alive"));
}
