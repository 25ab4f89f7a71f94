//! The guide's table of metrics matches exactly what the binary exports: names, types and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use walhook::domain::delivery::DeliveryClass;
use walhook::store::observe::{Extent, WebhookStates};

use crate::support::{Receiver, Sidecar, TestApp, eventually, run_sql};

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

#[derive(Debug, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

/// The rows `| name | type | labels | meaning |`.
fn documented() -> BTreeMap<String, Metric> {
    let guide = read("docs/runbook.md");
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `walhook_"));

    let metrics = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, kind, labels, meaning, ""] = cells[..] else {
            panic!("{row}")
        };

        assert!(!meaning.is_empty(), "{row}");
        let labels = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();

        (
            format!("walhook_{}", name.trim_end_matches('`')),
            Metric {
                kind: kind.to_owned(),
                labels,
            },
        )
    });

    metrics.collect()
}

/// The metrics that the source declares: name and type.
fn described() -> BTreeMap<String, String> {
    let source = read("src/telemetry/mod.rs");
    let declarations = source
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("describe_")?.split_once(' '));

    let metrics = declarations.map(|(kind, rest)| {
        let name = rest
            .split('"')
            .nth(1)
            .unwrap_or_else(|| panic!("{kind} {rest}"));
        (name.to_owned(), kind.to_owned())
    });

    metrics.collect()
}

/// Returns Walhook's metrics in a scrape.
fn scraped(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::new();

    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE walhook_")
            .and_then(|rest| rest.split_once(' '))
        {
            assert!(
                text.contains(&format!("# HELP walhook_{name} ")),
                "{name} is not described"
            );
            metrics.insert(
                format!("walhook_{name}"),
                Metric {
                    kind: kind.to_owned(),
                    labels: BTreeSet::new(),
                },
            );
        }
    }

    for line in text.lines().filter(|line| line.starts_with("walhook_")) {
        let Some((name, rest)) = line.split_once('{') else {
            continue;
        };

        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let metric = base
            .filter(|base| metrics.contains_key(*base))
            .unwrap_or(name)
            .to_owned();
        let labels = rest
            .split("\",")
            .filter_map(|pair| pair.split_once('='))
            .map(|(label, _)| label.to_owned());
        let known = &mut metrics
            .get_mut(&metric)
            .unwrap_or_else(|| panic!("{line}"))
            .labels;

        known.extend(labels.filter(|label| label != "le"));
    }

    metrics
}

#[test]
fn the_guide_lists_every_metric_by_its_type() {
    let documented = documented()
        .into_iter()
        .map(|(name, metric)| (name, metric.kind));
    assert_eq!(documented.collect::<BTreeMap<_, _>>(), described());
}

#[tokio::test]
async fn scraped_metrics_match_the_documentation() {
    let mut app =
        TestApp::start_with(|app| app.set("source.heartbeat", "200ms").set_fast_retries()).await;

    let first = crate::support::metrics(&app.sidecar().metrics_url).await;
    let platform = app.platform().await;
    let receiver = Receiver::start().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;

    api.create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;
    platform.payment(user, "ready").await;
    receiver.wait_for(1).await;

    let url = app.sidecar().metrics_url.clone();
    let expected = [
        "walhook_events_total",
        "walhook_unrouted_events_total",
        "walhook_delivery_attempts_total",
        "walhook_delivery_attempt_duration_seconds",
        "walhook_commit_to_receipt_seconds",
        "walhook_deliveries_in_flight",
        "walhook_webhooks_limited",
        "walhook_deliveries_pending",
        "walhook_delivery_oldest_due_seconds",
        "walhook_webhooks",
        "walhook_notices_pending",
        "walhook_capture_connected",
        "walhook_capture_lag_seconds",
        "walhook_checkpoint_age_seconds",
        "walhook_heartbeat_round_trip_seconds",
        "walhook_gaps_open",
        "walhook_slot_retained_bytes",
        "walhook_slot_unacknowledged_bytes",
        "walhook_slot_active",
        "walhook_slot_status",
        "walhook_store_connections",
        "walhook_build_info",
        "walhook_proxy_failures_total",
        "walhook_own_faults_total",
    ];

    let all = || async {
        let text = crate::support::metrics(&url).await;
        let found = scraped(&text);
        expected
            .iter()
            .all(|name| found.contains_key(*name))
            .then_some((text, found))
    };

    let (text, found) = eventually("all metrics of a busy process", all).await;
    let documented = documented();

    for (name, metric) in &found {
        assert_eq!(Some(metric), documented.get(name), "{name}");
    }

    for name in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_open_fds",
    ] {
        assert!(text.contains(&format!("\n{name} ")), "{name}");
    }

    // Counters exist from the start, so that their first increase shows.
    let series = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("walhook_"));
        let names = lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
        let counters = names.filter(|name| name.split('{').next().unwrap().ends_with("_total"));
        counters.collect::<BTreeSet<String>>()
    };

    let (first, last) = (series(&first), series(&text));
    assert_eq!(first, last, "counters that appeared later");

    for (name, _) in documented
        .iter()
        .filter(|(_, metric)| metric.kind == "counter")
    {
        let is_of = |series: &String| series.split('{').next() == Some(name);
        assert!(
            first.iter().any(is_of),
            "{name} is not exported at the start"
        );
    }
}

/// Its last value would stay, and alerts look at all replicas.
#[tokio::test]
async fn a_replica_that_no_longer_captures_reports_no_lag() {
    const LAG: &str = "walhook_capture_lag_seconds";
    let app = TestApp::prepare().await;

    app.setup().await;
    let first = app.replica(&[]).await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    eventually("a lag", async || {
        first.metric(LAG).await.filter(|lag| *lag > 0.0)
    })
    .await;

    let second = app.replica(&[]).await;
    let ended = "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active_pid is not null";

    // The gauges of both change some time after the stream has ended.
    let taken_over = async || {
        let captures = async |replica: &Sidecar| {
            replica.metric("walhook_capture_connected").await == Some(1.0)
        };

        let by_first = captures(&first).await;
        let by_second = captures(&second).await;
        if by_first && !by_second {
            platform.client.query(ended, &[&app.name]).await.unwrap();
        }

        (by_second && first.metric(LAG).await == Some(0.0)).then_some(())
    };

    eventually(
        "the second replica to capture, and no lag of the first",
        taken_over,
    )
    .await;

    for replica in [first, second] {
        assert!(replica.stop().await.success());
    }
}

/// More than one statement counts, and many deliveries have the same position in the index.
#[tokio::test]
async fn long_backlogs_and_many_webhooks_are_counted_exactly() {
    let app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let rows = "
        insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id, active, disabled_at)
        select gen_random_uuid(), '1', n::text, 'http://127.0.0.1/', '{payment.statement_ready}', '', '', n % 3 = 0,
            case n % 3 when 1 then now() end
        from generate_series(1, 5000) n;
        -- A commit of many rows to one webhook, parked deliveries of another, and deliveries of many.
        insert into walhook.delivery (id, webhook_id, event_id, due_at)
        select gen_random_uuid(), 'a0000000-0000-0000-0000-000000000000', gen_random_uuid(), now() - interval '1 minute'
        from generate_series(1, 7001);
        insert into walhook.delivery (id, webhook_id, event_id, due_at)
        select gen_random_uuid(), 'b0000000-0000-0000-0000-000000000000', gen_random_uuid(), 'infinity'
        from generate_series(1, 4001);
        insert into walhook.delivery (id, webhook_id, event_id, due_at, attempt)
        select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now() - n * interval '1 second', 2
        from generate_series(-10, 6000) n";

    run_sql(&app.store().await, rows).await;
    let store = walhook::store::Store::open_for_service(&app.store_url, 2).unwrap();
    let fresh = store
        .queue(DeliveryClass::Fresh, Extent::All)
        .await
        .unwrap();

    assert_eq!(fresh.deliveries, 7_001 + 4_001);
    assert!((60.0..6_000.0).contains(&fresh.oldest_due), "{fresh:?}");

    let retry = store
        .queue(DeliveryClass::Retry, Extent::All)
        .await
        .unwrap();
    assert_eq!(retry.deliveries, 6_011);
    assert!((6_000.0..12_000.0).contains(&retry.oldest_due), "{retry:?}");

    let states = store.webhook_states(Extent::All).await.unwrap();
    assert_eq!(
        states,
        WebhookStates {
            active: 1_666,
            inactive: 1_667,
            disabled: 1_667,
            failing: 0,
        }
    );
}
