//! A long run: kills, pauses, failovers, restarts of all servers, schema changes, changes of the
//! day, jobs, rotations, erasures and edits, under load. At the end everything is accounted for,
//! and memory and descriptors of the replicas have not grown.
//!
//! `WALHOOK_LONG_RUN_MINUTES` is the length of the long form, an hour by default. Each run prints
//! its seed, from which the sequence of actions follows: `WALHOOK_LONG_RUN_SEED` repeats it.

mod account;
mod clock;
mod collector;
mod director;
mod feeds;
mod load;
mod plan;
mod replicas;
mod seed;
mod servers;
mod tenants;
mod trend;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;
use walhook::vault::random_bytes;

use account::{Account, Totals};
use clock::SharedClock;
use collector::Collector;
use director::{Director, Keys, Schema};
use feeds::Reader;
use load::{Load, Owner, TRANSITIONS};
use plan::Plan;
use replicas::{Life, Replicas, Serving};
use seed::{Random, seed};
use servers::Servers;
use tenants::{Replayed, Tenants};

const RETENTION_DAYS: u32 = 2;
/// Bounds on the growth of a process per minute. A run fails if the growth exceeds them with 97.5 %
/// confidence.
const MEMORY_KIB_PER_MINUTE: f64 = 32.0;
const DESCRIPTORS_PER_MINUTE: f64 = 1.0;
/// Only lives that were measured for so long are bounded: caches grow for about a quarter of an
/// hour.
const BOUNDED_MINUTES: f64 = 30.0;
/// A run of this length measures the replica that is never restarted for long enough.
const BOUNDED_RUN: Duration = Duration::from_secs(45 * 60);

/// The results of a run.
struct Report {
    seed: u64,
    length: Duration,
    done: BTreeMap<String, usize>,
    days: BTreeMap<String, i64>,
    totals: Totals,
    requests: usize,
    lives: Vec<Life>,
}

impl Report {
    fn print(&self) {
        println!("seed {}, {:.0?}", self.seed, self.length);
        println!("{:?}", self.done);

        let Totals {
            events,
            deliveries,
            attempts,
            delivered,
            permanently_failed,
            cancelled,
        } = &self.totals;

        println!(
            "{events} events, {deliveries} deliveries, {attempts} attempts, {} requests received",
            self.requests
        );
        println!(
            "{delivered} delivered, {permanently_failed} failed permanently, {cancelled} cancelled"
        );
        println!("events per day: {:?}", self.days);

        let peak = self
            .lives
            .iter()
            .map(Life::peak_memory_kib)
            .fold(0.0, f64::max);
        println!(
            "{} processes, at most {:.1} MiB",
            self.lives.len(),
            peak / 1024.0
        );

        for life in self.lives.iter().filter_map(Life::measured) {
            println!("{}: KiB {}", life.name, life.memory);
            println!("{}: descriptors {}", life.name, life.descriptors);
        }
    }

    fn assert_flat(&self) {
        let measured: Vec<_> = self.lives.iter().filter_map(Life::measured).collect();
        let bounded = measured
            .iter()
            .filter(|life| life.memory.minutes >= BOUNDED_MINUTES);
        let mut count = 0;

        for life in bounded {
            assert!(
                life.memory.low < MEMORY_KIB_PER_MINUTE,
                "{}: memory grows: KiB {}",
                life.name,
                life.memory
            );

            let descriptors = life.descriptors;
            assert!(
                descriptors.low < DESCRIPTORS_PER_MINUTE,
                "{}: descriptors grow: {descriptors}",
                life.name
            );
            count += 1;
        }

        assert!(
            count > 0 || self.length < BOUNDED_RUN,
            "no process was measured for {BOUNDED_MINUTES} minutes"
        );
    }
}

/// Starts everything. None if a server's version is not installed.
async fn begin(plan: &Plan, seed: u64) -> Option<Director> {
    let clock = SharedClock::new();
    let (mut app, servers) = Servers::start(&clock).await?;

    app.set("delivery.timeout", "1s")
        .set("delivery.retry_schedule", &["100ms"; 9].join(","))
        .set("delivery.retry_jitter", "50ms")
        .set("disable.threshold", "1000000000")
        .set("source.heartbeat", "500ms")
        .set("limits.webhooks_per_user", "500")
        .set("limits.requests_per_second", "0")
        .set("retention.days", &RETENTION_DAYS.to_string());

    let platform = app.source().await;
    platform.batch_execute(TRANSITIONS).await.expect("a table");

    let mut owners = [Owner::default(); 3];
    for owner in &mut owners {
        *owner = Owner::create(&platform).await;
    }

    app.setup().await;
    account::create(&app.store().await).await;

    let keys = Keys::new(app.setting("secrets.master_key"), &mut Random::new(seed, 3));
    let replicas = Replicas::start(&mut app, &keys.all).await;
    let collector = Collector::start(seed).await;
    let tenants = Tenants::create(&app, owners, &replicas.urls, &collector).await;
    let began = clock.now();
    let load = Load::start(
        app.source_url.clone(),
        owners.to_vec(),
        plan.load_interval,
        seed,
    );

    let load = Some(load);
    let schema = Schema::default();
    let done = BTreeMap::new();

    Some(Director {
        app,
        servers,
        clock,
        collector,
        replicas,
        tenants,
        load,
        began,
        keys,
        schema,
        done,
    })
}

/// Ends the load, waits for the end of everything that it has caused, and accounts for it.
async fn end(
    mut director: Director,
    readers: [(&str, Reader); 3],
    seed: u64,
    started: Instant,
) -> Report {
    director.load.take().expect("the load runs").stop().await;
    director.replicas.until_ready(&director.app).await;

    let Tenants {
        steady,
        busy,
        guest,
        ..
    } = &director.tenants;

    let owners = [steady, busy, guest].map(|tenant| tenant.owner.user);
    for owner in owners {
        director.until_stored(owner).await;
    }

    let now = director.clock.now();
    director.tenants.finish(now, director.began).await;
    director
        .until_none(
            "unfinished jobs",
            "select count(*) from walhook.recovery where finished_at is null",
        )
        .await;

    director
        .until_none("pending deliveries", "select count(*) from walhook.pending")
        .await;

    director.tenants.assert_jobs_finished().await;
    director.until_maintained().await;

    let account = Account::open(&director.app).await;

    for (name, reader) in &readers {
        reader
            .assert_read(name, &account.feed(owners[0]).await)
            .await;
        println!(
            "{name}: connected again {} times",
            reader.resumed.load(Ordering::Relaxed)
        );
    }

    let lives = director.replicas.stop().await;
    let primary = director.app.source().await;
    let requests = director.collector.with(|seen| seen.requests);

    let days = audit(
        &account,
        &primary,
        &director.tenants,
        &director.collector,
        now,
        director.began,
    )
    .await;

    println!("days with a partition: {days:?}");
    let printed = director.app.walhook_ok(&["secrets", "reencrypt"]).await;

    assert!(printed.starts_with("0 re-encrypted"), "{printed}");
    let totals = account.totals().await;
    let days = account.events_per_day().await;

    Report {
        seed,
        length: started.elapsed(),
        done: director.done,
        days,
        totals,
        requests,
        lives,
    }
}

/// Accounts for all events and deliveries. Returns the days that have a partition.
async fn audit(
    account: &Account,
    primary: &tokio_postgres::Client,
    tenants: &Tenants,
    collector: &Collector,
    ended: Timestamp,
    began: Timestamp,
) -> Vec<String> {
    let all = [&tenants.steady, &tenants.busy, &tenants.guest];
    let owners = all.map(|tenant| tenant.owner.user);
    let webhooks: Vec<Uuid> = all
        .iter()
        .flat_map(|tenant| &tenant.webhooks)
        .map(|webhook| webhook.id)
        .collect();

    account
        .assert_events_are_transitions(primary, &owners)
        .await;
    account.assert_no_gap().await;
    account.assert_deliveries_have_ended(&webhooks).await;
    account.assert_complete(&tenants.steady).await;

    let recovered = Replayed {
        webhook: tenants.failing.clone(),
        since: tenants::reach(ended, began),
    };

    for replayed in tenants.replayed.iter().chain([&recovered]) {
        account.assert_delivered_since(owners[1], replayed).await;
    }

    for (user, webhooks) in &tenants.erased {
        account.assert_erased(*user, webhooks).await;
    }

    let seen = collector.take();
    assert!(
        seen.violations.is_empty(),
        "{} violations, such as {}",
        seen.violations.len(),
        seen.violations[0]
    );

    println!(
        "{} requests of {} arrived late, after a later delivery",
        seen.late, seen.requests
    );
    assert_eq!(
        seen.wrongly_signed(),
        0,
        "requests were signed with no secret of their webhook"
    );

    let hostile = tenants
        .busy
        .webhooks
        .iter()
        .filter(|webhook| webhook.path == "hostile");
    let hostile: Vec<Uuid> = hostile.map(|webhook| webhook.id).collect();
    account.assert_received(&seen, &webhooks, &hostile).await;

    account.days().await
}

/// Runs rounds of the plan for its length. None if a server's version is not installed.
async fn run(plan: &Plan, seed: u64) -> Option<Report> {
    let started = Instant::now();
    println!("WALHOOK_LONG_RUN_SEED={seed}");

    let mut director = begin(plan, seed).await?;
    let reader = &director.tenants.steady.caller;

    let readers = [
        ("feed by pages", Reader::pages(reader.clone())),
        (
            "feed as a stream",
            Reader::stream(reader.clone(), Serving::Restarted),
        ),
        (
            "feed as a stream of the replica that is never restarted",
            Reader::stream(reader.clone(), Serving::Survivor),
        ),
    ];

    let mut random = Random::new(seed, 0);
    let end_of_rounds = Instant::now() + plan.length;

    loop {
        director.round(plan, &mut random).await;

        if Instant::now() >= end_of_rounds {
            break;
        }
    }

    let report = end(director, readers, seed, started).await;
    report.print();

    Some(report)
}

/// Each action once or twice, so that the long form cannot rot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_round_of_faults_and_changes_loses_nothing() {
    let plan = Plan {
        length: Duration::ZERO,
        wait: Duration::from_millis(300),
        pause: Duration::from_secs(1),
        calm: Duration::ZERO,
        kills_per_round: 2,
        repeats: 1,
        load_interval: Duration::from_millis(100),
    };

    if let Some(report) = run(&plan, seed(1)).await {
        // Three if the real day changes meanwhile.
        assert!(
            report.totals.events > 20 && [2, 3].contains(&report.days.len()),
            "{:?} {:?}",
            report.totals,
            report.days
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes an hour: `make soak`"]
async fn an_hour_of_faults_and_changes_loses_nothing_and_leaks_nothing() {
    let minutes = std::env::var("WALHOOK_LONG_RUN_MINUTES")
        .map_or(60, |text| text.parse().expect("a number of minutes"));
    let plan = Plan {
        length: Duration::from_secs(minutes * 60),
        wait: Duration::from_secs(3),
        // Longer than a lease.
        pause: Duration::from_secs(15),
        calm: Duration::from_secs(120),
        kills_per_round: 8,
        repeats: 2,
        load_interval: Duration::from_millis(100),
    };

    let another = u64::from(u32::from_be_bytes(random_bytes()));
    if let Some(report) = run(&plan, seed(another)).await {
        report.assert_flat();
    }
}
