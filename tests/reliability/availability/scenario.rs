//! A sidecar on a cluster, payments that are committed all the time, and the account of what was
//! delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use postgres_types::FromSql;
use walhook::postgres;

use super::cluster::{Cluster, Programs, Replication, in_time};
use super::load::{Account, Acknowledged, Load};
use crate::support::{Received, Receiver, TestApp};

const EVENT: &str = "payment.statement_ready";
/// Payments that are committed before the first fault.
const WARM_UP: usize = 50;

/// Where the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// On the cluster, in a database of its own.
    Cluster,
    /// On a server that does not fail.
    Elsewhere,
}

pub struct Scenario {
    pub cluster: Cluster,
    pub app: TestApp,
    capture: &'static str,
    user: i64,
    receiver: Receiver,
    /// The delivery ids of each payment that was received, and how many requests had each.
    received: BTreeMap<i64, BTreeMap<String, usize>>,
    account: Account,
    /// None while the application is stopped.
    load: Option<Load>,
}

/// What the account found.
#[derive(Debug, Default)]
pub struct Outcome {
    pub acknowledged: usize,
    /// Payments that exist now.
    pub committed: usize,
    /// Acknowledged payments that do not exist.
    pub lost_by_cluster: BTreeSet<i64>,
    /// Delivered payments that do not exist.
    pub false_events: BTreeSet<i64>,
    /// The gaps that were recorded.
    pub gaps: Vec<String>,
    /// Requests beyond the first of each delivery.
    pub repeated: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome {
            acknowledged,
            committed,
            repeated,
            gaps,
            ..
        } = self;

        let lost = self.lost_by_cluster.len();
        let invented = self.false_events.len();
        write!(
            f,
            "{acknowledged} acknowledged, {lost} of them lost by the cluster; {committed} committed, all delivered, "
        )?;

        write!(
            f,
            "{repeated} requests repeated; {invented} events of undone commits; gaps {gaps:?}"
        )
    }
}

impl Outcome {
    /// Asserts that the application, the store and the receiver agree on every payment, and that no
    /// gap was recorded.
    pub fn assert_exact(&self) {
        assert!(
            self.lost_by_cluster.is_empty(),
            "the cluster lost acknowledged commits: {self:?}"
        );
        assert!(
            self.false_events.is_empty(),
            "events of commits that do not exist were delivered: {self:?}"
        );
        assert!(self.gaps.is_empty(), "{self:?}");
    }
}

/// The state before a fault.
pub struct Fault {
    pub at: SystemTime,
    timeline: u32,
}

/// Who leads after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Commits may continue on the same timeline.
    SameLeader,
    NewLeader,
}

/// How long after the start of a fault the service was back.
#[derive(Debug)]
pub struct Times {
    /// Until the application's first commit was acknowledged again.
    pub writable: Duration,
    /// Until the event of such a commit was received.
    pub delivered: Duration,
}

impl Scenario {
    /// Starts everything and waits until a failover would lose nothing. None if a program is
    /// missing.
    pub async fn start(
        replication: Replication,
        capture: &'static str,
        place: StorePlace,
    ) -> Option<Scenario> {
        let programs = Programs::find()?;
        let cluster = Cluster::start(&programs, replication).await;
        let mut app = TestApp::prepare().await;
        let leader = cluster
            .connect(&cluster.nodes[0])
            .await
            .expect("the leader");

        for database in ["platform", "store"] {
            leader
                .batch_execute(&format!("create database {database}"))
                .await
                .expect("a new database");
        }

        let store_url = match place {
            StorePlace::Cluster => cluster.url("store"),
            StorePlace::Elsewhere => app.store_url.clone(),
        };

        app.use_databases(&cluster.url("platform"), &store_url)
            .await;
        app.set("source.capture", capture);
        app.setup().await;
        app.run().await;

        let user = app.platform().await.user(&[]).await;
        let receiver = Receiver::start().await;

        app.api(&user.to_string())
            .await
            .create_webhook(&receiver.url("/"), &[EVENT])
            .await;
        let account = Account::default();
        let mut scenario = Scenario {
            cluster,
            app,
            capture,
            user,
            receiver,
            received: BTreeMap::new(),
            account,
            load: None,
        };

        scenario.start_load();
        in_time("the first payments", async || {
            (scenario.account.acknowledged().len() >= WARM_UP).then_some(())
        })
        .await;
        scenario.wait_until_prepared().await;

        Some(scenario)
    }

    fn start_load(&mut self) {
        self.load = Some(Load::start(&self.app.source_url, self.user, &self.account));
    }

    /// Waits until all nodes follow the leader and have the slot.
    pub async fn wait_until_prepared(&self) -> usize {
        let leader = self.cluster.wait_until_healthy().await;

        if self.capture == "wal" {
            self.cluster
                .wait_until_slot_is_synchronized(&self.app.name)
                .await;
        }

        leader
    }

    /// Notes the time and the timeline before a fault.
    pub fn begin_fault(&self) -> Fault {
        let timelines = self
            .account
            .acknowledged()
            .into_iter()
            .map(|payment| payment.timeline);
        Fault {
            at: SystemTime::now(),
            timeline: timelines.max().expect("a payment"),
        }
    }

    /// Waits until the application commits and receives again after a fault.
    pub async fn wait_until_recovered(&self, fault: &Fault, ends: Ends) -> Times {
        let first = in_time("a commit after the fault", async || {
            self.account.first(|payment| {
                payment.at > fault.at
                    && (ends == Ends::SameLeader || payment.timeline > fault.timeline)
            })
        })
        .await;

        let delivered = in_time("the first event after the fault", async || {
            self.received_at(&first)
        })
        .await;
        let since = |at: SystemTime| at.duration_since(fault.at).unwrap_or_default();
        Times {
            writable: since(first.at),
            delivered: since(delivered),
        }
    }

    /// Waits until this many more payments are acknowledged and delivered.
    pub async fn pass(&self, count: usize) {
        let acknowledged = self.account.acknowledged().len();
        let received = self.receiver.requests().len();
        in_time("more payments", async || {
            let passed = self.account.acknowledged().len() >= acknowledged + count;
            (passed && self.receiver.requests().len() >= received + count).then_some(())
        })
        .await;
    }

    /// Returns the number of acknowledged payments.
    pub fn acknowledged(&self) -> usize {
        self.account.acknowledged().len()
    }

    /// Returns when the payment's event was received first.
    fn received_at(&self, payment: &Acknowledged) -> Option<SystemTime> {
        let requests = self.receiver.requests();
        requests
            .iter()
            .find(|request| payment_of(request) == payment.payment)
            .map(|request| request.at)
    }

    /// Stops the application, waits until everything committed is delivered, compares, and starts
    /// the application again.
    pub async fn settle(&mut self) -> Outcome {
        if let Some(load) = self.load.take() {
            load.stop().await;
        }

        let committed: BTreeSet<i64> = query(
            &self.app.source_url,
            "select id from payment",
            "the payments",
        )
        .await;

        in_time("every committed payment to be delivered", || {
            self.collect_received();
            let all = committed
                .iter()
                .all(|payment| self.received.contains_key(payment));
            std::future::ready(all.then_some(()))
        })
        .await;

        let mut outcome = self.compare(&committed);
        outcome.gaps = query(
            &self.app.store_url,
            "select reason from walhook.gap order by id",
            "the gaps",
        )
        .await;

        self.assert_store_agrees(&committed).await;
        self.start_load();

        outcome
    }

    fn collect_received(&mut self) {
        for request in self.receiver.take() {
            let deliveries = self.received.entry(payment_of(&request)).or_default();
            *deliveries.entry(request.delivery().to_owned()).or_default() += 1;
        }
    }

    fn compare(&self, committed: &BTreeSet<i64>) -> Outcome {
        let acknowledged: BTreeSet<i64> = self
            .account
            .acknowledged()
            .iter()
            .map(|payment| payment.payment)
            .collect();

        let delivered: BTreeSet<i64> = self.received.keys().copied().collect();

        for payment in committed {
            let deliveries = &self.received[payment];
            assert_eq!(
                deliveries.len(),
                1,
                "payment {payment} was delivered under several ids: {deliveries:?}"
            );
        }

        Outcome {
            acknowledged: acknowledged.len(),
            committed: committed.len(),
            lost_by_cluster: &acknowledged - committed,
            false_events: &delivered - committed,
            gaps: Vec::new(),
            repeated: self
                .received
                .values()
                .flat_map(BTreeMap::values)
                .map(|requests| requests - 1)
                .sum(),
        }
    }

    /// Asserts that the store has one event of each payment, and that every delivery has ended as
    /// delivered.
    async fn assert_store_agrees(&self, committed: &BTreeSet<i64>) {
        let events = "select (data ->> 'payment_request_id')::bigint from walhook.event";
        let url = &self.app.store_url;

        in_time("the store to have every event", async || {
            let stored: Vec<i64> = query(url, events, "the events").await;
            let distinct: BTreeSet<i64> = stored.iter().copied().collect();
            assert_eq!(distinct.len(), stored.len(), "a payment has two events");
            committed.is_subset(&distinct).then_some(())
        })
        .await;

        in_time("every delivery to end", async || {
            let pending: Vec<i64> = query(
                url,
                "select count(*) from walhook.pending",
                "the deliveries",
            )
            .await;
            (pending == [0]).then_some(())
        })
        .await;

        let undelivered = "select count(*) from (select from walhook.attempt group by delivery_id
             having not bool_or(outcome = 'delivered')) as undelivered";
        let undelivered: Vec<i64> = query(url, undelivered, "the attempts").await;
        assert_eq!(
            undelivered,
            [0],
            "a delivery has ended without being delivered"
        );
    }
}

fn payment_of(request: &Received) -> i64 {
    request.data()["payment_request_id"]
        .as_i64()
        .expect("a payment's event")
}

/// Returns the column that a query selects. Tries again if the connection fails: the leader may
/// change.
async fn query<T: for<'a> FromSql<'a>, C: FromIterator<T>>(
    url: &str,
    statement: &str,
    what: &str,
) -> C {
    let rows = in_time(what, async || {
        postgres::connect(url)
            .await
            .ok()?
            .query(statement, &[])
            .await
            .ok()
    })
    .await;
    rows.iter().map(|row| row.get(0)).collect()
}
