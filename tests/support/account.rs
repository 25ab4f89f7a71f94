//! The account after faults: what the platform has committed, what the store holds and what
//! receivers got must agree.
//!
//! ```text
//! let committed = account::committed_payments(&primary).await;
//! account::settled(&store, &committed).await;
//! let delivered = [Subscribed { webhook, requests: receiver.requests(), in_order: false }];
//! Account::take(&store, &committed, &delivered).await.assert_balanced();
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Received, eventually_within};

/// How long the next event or the end of the next delivery may take: a lease must end, on a machine
/// that many tests share.
const PROGRESS: Duration = Duration::from_secs(180);
/// The most faults that are shown: the first ones explain the others.
const SHOWN: usize = 12;

/// A transition that raises one event, as the event shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transition {
    pub kind: String,
    /// Distinguishes it from the other transitions of its kind.
    pub key: String,
}

impl Transition {
    /// A payment that became ready.
    pub fn payment(id: i64) -> Transition {
        Transition {
            kind: "payment.statement_ready".into(),
            key: id.to_string(),
        }
    }

    /// An entry of the distribution queue that got this status.
    pub fn outlet_status(entry: i64, status: &str) -> Transition {
        Transition {
            kind: "distribution.outlet.status_changed".into(),
            key: format!("{entry} {status}"),
        }
    }

    /// A release that got this review status.
    pub fn review(release: i64, status: &str) -> Transition {
        Transition {
            kind: "release.review.status_changed".into(),
            key: format!("{release} {status}"),
        }
    }

    /// Reads the transition from an event. Two transitions of one row to the same status are not
    /// distinguished.
    fn of_event(kind: &str, data: &Value) -> Transition {
        let ids = [
            "payment_request_id",
            "distro_queue_id",
            "transcoder_queue_id",
            "report_id",
            "flag_id",
            "release_id",
        ];

        let id = ids
            .iter()
            .find_map(|name| data[*name].as_i64())
            .map(|id| id.to_string());
        let status = ["new_status", "status"]
            .iter()
            .find_map(|name| data[*name].as_str());
        let status = status.filter(|_| kind != "payment.statement_ready");
        let parts: Vec<&str> = [id.as_deref(), status].into_iter().flatten().collect();

        Transition {
            kind: kind.into(),
            key: parts.join(" "),
        }
    }
}

/// Returns the transitions of all payments that are ready, in the order of their ids.
pub async fn committed_payments(primary: &Client) -> Vec<Transition> {
    let rows = primary
        .query(
            "select id from payment where status = 'ready' order by id",
            &[],
        )
        .await
        .expect("payments");
    rows.iter()
        .map(|row| Transition::payment(row.get(0)))
        .collect()
}

/// What one webhook's receiver got.
#[derive(Clone, Debug)]
pub struct Subscribed {
    pub webhook: String,
    pub requests: Vec<Received>,
    /// Whether the webhook's ordering is `strict`.
    pub in_order: bool,
}

/// Waits until the store has all events and no delivery, recovery or replay is pending. Waits as
/// long as there is progress.
pub async fn settled(store: &Client, committed: &[Transition]) {
    let mut events = -1;
    let mut pending = i64::MAX;

    loop {
        let progress = || async {
            let open =
                "select (select count(*) from walhook.event where commit_lsn is not null or ordinal is not null),
                               (select count(*) from walhook.pending)
                               + (select count(*) from walhook.recovery where finished_at is null)";

            // The store may be down, and the connection lost with it: the caller connects again.
            let row = store.query_one(open, &[]).await.expect("the store answers");
            let now: (i64, i64) = (row.get(0), row.get(1));
            let is_settled = now.0 >= committed.len() as i64 && now.1 == 0;

            (is_settled || now.0 > events || now.1 < pending).then_some((now, is_settled))
        };

        let what = format!(
            "progress beyond {events} of {} events with {pending} deliveries pending",
            committed.len()
        );
        let (now, is_settled) = eventually_within(PROGRESS, &what, progress).await;
        if is_settled {
            return;
        }

        (events, pending) = now;
    }
}

/// What was counted, and everything that contradicts the promises.
#[derive(Clone, Debug, Default)]
pub struct Account {
    pub events: usize,
    pub deliveries: usize,
    pub attempts: usize,
    pub requests: usize,
    /// Requests beyond the attempts of the log: an answer was lost, and the request was repeated
    /// under the same id.
    pub repeated: usize,
    /// Requests of ordered webhooks that were repeated after the next delivery had started. A
    /// process that is suspended for longer than its lease can cause them.
    pub repeated_late: usize,
    pub faults: Vec<String>,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account {
            events,
            deliveries,
            attempts,
            requests,
            repeated,
            repeated_late,
            ..
        } = self;
        write!(
            f,
            "{events} events, {deliveries} deliveries, {attempts} attempts, {requests} requests, {repeated} repeated, \
             {repeated_late} late"
        )
    }
}

/// An event of the store.
struct StoredEvent {
    id: Uuid,
    user: String,
    kind: String,
    transition: Transition,
}

/// A row of the attempt log.
#[derive(Debug)]
struct LoggedAttempt {
    round: i16,
    attempt: i16,
    outcome: String,
}

impl Account {
    /// Compares everything. `committed` has each transition that the platform has committed since
    /// setup. Webhooks exist, with their subscriptions, since before the first one, or have
    /// replayed everything.
    pub async fn take(
        store: &Client,
        committed: &[Transition],
        webhooks: &[Subscribed],
    ) -> Account {
        let mut account = Account::default();
        let events = stored_events(store).await;

        account.events = events.len();
        account.compare_events(committed, &events);
        account.check_order_of_events(store).await;
        account.check_deliveries(store, &events).await;

        for subscribed in webhooks {
            account.check_requests(store, &events, subscribed).await;
        }

        account
    }

    /// Panics if there is a fault.
    #[track_caller]
    pub fn assert_balanced(&self) {
        let shown: Vec<&str> = self.faults.iter().map(String::as_str).take(SHOWN).collect();
        assert!(
            shown.is_empty(),
            "{} faults ({self}):\n{}",
            self.faults.len(),
            shown.join("\n")
        );
    }

    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// Every committed transition has exactly one event, and there is no other event.
    fn compare_events(&mut self, committed: &[Transition], events: &[StoredEvent]) {
        let mut found: BTreeMap<&Transition, Vec<Uuid>> = BTreeMap::new();

        for event in events {
            found.entry(&event.transition).or_default().push(event.id);
        }

        for transition in committed {
            match found.remove(transition).as_deref() {
                Some([_]) => {}
                Some(several) => {
                    self.fault(format!("{transition:?} has several events: {several:?}"))
                }
                None => self.fault(format!("{transition:?} was committed and has no event")),
            }
        }

        for (transition, ids) in found {
            self.fault(format!(
                "{transition:?} was not committed and has the events {ids:?}"
            ));
        }
    }

    /// Events are numbered in the order of their commits. Those that a repair found share one
    /// position.
    async fn check_order_of_events(&mut self, store: &Client) {
        let overtaken = "select count(*) from (
                             select (commit_lsn, ordinal) < lag((commit_lsn, ordinal)) over (order by sequence) as overtakes
                             from walhook.event where not repaired and commit_lsn is not null
                         ) as numbered where overtakes";
        let overtaken: i64 = store
            .query_one(overtaken, &[])
            .await
            .expect("events")
            .get(0);
        if overtaken > 0 {
            self.fault(format!(
                "{overtaken} events are numbered before events of earlier commits"
            ));
        }
    }

    /// Every delivery of every event has ended once, and there are no others: in the attempt log,
    /// or as an event that an inactive webhook missed.
    async fn check_deliveries(&mut self, store: &Client, events: &[StoredEvent]) {
        let pending = store
            .query("select id, event_id from walhook.pending", &[])
            .await
            .expect("deliveries");
        for row in pending {
            self.fault(format!(
                "delivery {} of event {} is pending",
                row.get::<_, Uuid>(0),
                row.get::<_, Uuid>(1)
            ));
        }

        let mut attempts = logged_attempts(store, &mut self.attempts).await;
        let missed = store
            .query("select webhook_id, event_id from walhook.missed_event", &[])
            .await
            .expect("rows");
        let mut missed: HashSet<(Uuid, Uuid)> =
            missed.iter().map(|row| (row.get(0), row.get(1))).collect();
        let webhooks = "select id, user_id, events, success_count from walhook.webhook";

        for row in store.query(webhooks, &[]).await.expect("webhooks") {
            let (webhook, user, kinds): (Uuid, String, Vec<String>) =
                (row.get(0), row.get(1), row.get(2));
            let mut delivered = 0;

            for event in events
                .iter()
                .filter(|event| event.user == user && kinds.contains(&event.kind))
            {
                let rounds = attempts.remove(&(webhook, event.id));
                let was_missed = missed.remove(&(webhook, event.id));

                match rounds {
                    None if was_missed => {}
                    None => self.fault(format!(
                        "event {} has no delivery to webhook {webhook}",
                        event.id
                    )),
                    Some(_) if was_missed => {
                        self.fault(format!(
                            "event {} was delivered to webhook {webhook} and missed",
                            event.id
                        ));
                    }
                    Some(rounds) => delivered += self.check_rounds(webhook, event.id, &rounds),
                }
            }

            let counted: i64 = row.get(3);
            if counted != delivered {
                self.fault(format!(
                    "webhook {webhook} counts {counted} successes instead of {delivered}"
                ));
            }
        }

        for (webhook, event) in attempts.into_keys() {
            self.fault(format!(
                "webhook {webhook} has attempts of event {event}, which it should not get"
            ));
        }

        for (webhook, event) in missed {
            self.fault(format!(
                "webhook {webhook} has missed event {event}, which it should not get"
            ));
        }
    }

    /// Each round has ended once, with its last attempt, and its attempts are numbered from one.
    /// Returns how many succeeded.
    fn check_rounds(
        &mut self,
        webhook: Uuid,
        event: Uuid,
        deliveries: &HashMap<Uuid, Vec<LoggedAttempt>>,
    ) -> i64 {
        if deliveries.len() != 1 {
            let ids: Vec<&Uuid> = deliveries.keys().collect();
            self.fault(format!(
                "event {event} has several deliveries to webhook {webhook}: {ids:?}"
            ));
        }

        let mut successes = 0;

        for (delivery, attempts) in deliveries {
            self.deliveries += 1;
            let mut rounds: BTreeMap<i16, Vec<&LoggedAttempt>> = BTreeMap::new();

            for attempt in attempts {
                rounds.entry(attempt.round).or_default().push(attempt);
            }

            for (round, attempts) in rounds {
                match end_of_round(&attempts) {
                    Some(outcome) => successes += i64::from(outcome == "delivered"),
                    None => self.fault(format!(
                        "delivery {delivery} round {round} has not ended once: {attempts:?}"
                    )),
                }
            }
        }

        successes
    }

    /// Every request is of a stored event and of the delivery that the log has; repeats have the
    /// same id, data and number; everything that the log calls delivered has arrived.
    async fn check_requests(
        &mut self,
        store: &Client,
        events: &[StoredEvent],
        subscribed: &Subscribed,
    ) {
        let Subscribed {
            webhook,
            requests,
            in_order,
        } = subscribed;
        let logged =
            "select distinct delivery_id, event_id, outcome = 'delivered' from walhook.attempt
                      where webhook_id = $1::text::uuid and not test";
        let logged = store
            .query(logged, &[webhook])
            .await
            .expect("the attempt log");
        let deliveries: HashMap<String, Uuid> = logged
            .iter()
            .map(|row| (row.get::<_, Uuid>(0).to_string(), row.get(1)))
            .collect();
        let known: HashSet<Uuid> = events.iter().map(|event| event.id).collect();
        let mut first: HashMap<&str, (&Received, Value)> = HashMap::new();

        for request in requests {
            self.requests += 1;
            let event: Uuid = request
                .header("x-webhook-event-id")
                .parse()
                .expect("the id of an event");
            if !known.contains(&event) {
                self.fault(format!(
                    "webhook {webhook} got event {event}, which is not stored"
                ));
            }

            if deliveries.get(request.delivery()) != Some(&event) {
                self.fault(format!(
                    "webhook {webhook} got event {event} as delivery {}",
                    request.delivery()
                ));
            }

            let (earlier, data) = first
                .entry(request.delivery())
                .or_insert_with(|| (request, request.data()));
            let differs = *data != request.data()
                || [
                    "x-webhook-event",
                    "x-webhook-occurred-at",
                    "x-webhook-sequence",
                ]
                .iter()
                .any(|name| earlier.headers.get(*name) != request.headers.get(*name));
            if differs {
                self.fault(format!(
                    "delivery {} was repeated differently: {earlier:?}, {request:?}",
                    request.delivery()
                ));
            }
        }

        for row in logged.iter().filter(|row| row.get(2)) {
            let delivery = row.get::<_, Uuid>(0).to_string();
            if !first.contains_key(delivery.as_str()) {
                self.fault(format!(
                    "delivery {delivery} is logged as delivered and did not arrive at webhook {webhook}"
                ));
            }
        }

        let attempts =
            "select count(*) from walhook.attempt where webhook_id = $1::text::uuid and not test
                        and duration_ms is not null";
        let attempts: i64 = store
            .query_one(attempts, &[webhook])
            .await
            .expect("the attempt log")
            .get(0);
        self.repeated += requests.len().saturating_sub(attempts as usize);

        if *in_order {
            self.check_order(webhook, requests);
        }
    }

    /// Deliveries start in the order of their numbers, without a gap.
    fn check_order(&mut self, webhook: &str, requests: &[Received]) {
        let mut highest = 0;
        let mut seen = BTreeSet::new();

        for request in requests {
            let number: i64 = request
                .header("x-webhook-sequence")
                .parse()
                .expect("a number");
            if seen.insert(number) && number < highest {
                self.fault(format!(
                    "webhook {webhook}: delivery number {number} arrived after number {highest}"
                ));
            } else if number < highest {
                self.repeated_late += 1;
            }

            highest = highest.max(number);
        }

        if !seen.iter().copied().eq(1..=highest) {
            self.fault(format!(
                "webhook {webhook}: numbers are missing among {seen:?}"
            ));
        }
    }
}

/// Returns the outcome with which a round has ended. None unless its attempts are numbered from one
/// and it has ended exactly once.
fn end_of_round<'a>(attempts: &[&'a LoggedAttempt]) -> Option<&'a str> {
    let (cancelled, made): (Vec<&LoggedAttempt>, Vec<&LoggedAttempt>) = attempts
        .iter()
        .copied()
        .partition(|attempt| attempt.outcome == "cancelled");
    // A replica whose lease had ended has logged its request too: the last of each number counts.
    let made: Vec<&LoggedAttempt> = made
        .iter()
        .enumerate()
        .filter(|(index, attempt)| {
            made.get(index + 1)
                .is_none_or(|next| next.attempt != attempt.attempt)
        })
        .map(|(_, attempt)| *attempt)
        .collect();
    let count = made.len() as i16;
    let is_numbered = made.iter().map(|attempt| attempt.attempt).eq(1..=count);
    let (last, earlier) = made
        .split_last()
        .map_or((None, &[][..]), |(last, earlier)| (Some(*last), earlier));

    if !is_numbered || earlier.iter().any(|attempt| attempt.outcome != "failed") {
        return None;
    }

    match cancelled[..] {
        [] => last
            .map(|last| last.outcome.as_str())
            .filter(|outcome| *outcome != "failed"),
        // It replaces the next attempt, or the last one was in flight: that one is logged and does
        // not count.
        [end] if [count, count + 1].contains(&end.attempt) => Some(&end.outcome),
        _ => None,
    }
}

async fn stored_events(store: &Client) -> Vec<StoredEvent> {
    // Tests of webhooks have no position.
    let events = "select id, user_id, kind, data::text from walhook.event
                  where commit_lsn is not null or ordinal is not null order by sequence";
    let rows = store.query(events, &[]).await.expect("events");

    let event = |row: &tokio_postgres::Row| {
        let (kind, data): (String, &str) = (row.get(2), row.get(3));
        let data = serde_json::from_str(data).expect("an event's data is JSON");
        StoredEvent {
            id: row.get(0),
            user: row.get(1),
            transition: Transition::of_event(&kind, &data),
            kind,
        }
    };

    rows.iter().map(event).collect()
}

/// Attempts by webhook and event, and by delivery.
type Attempts = HashMap<(Uuid, Uuid), HashMap<Uuid, Vec<LoggedAttempt>>>;

async fn logged_attempts(store: &Client, count: &mut usize) -> Attempts {
    let attempts =
        "select webhook_id, event_id, delivery_id, round, attempt, outcome from walhook.attempt
                    where not test order by round, attempt, started_at";
    let rows = store.query(attempts, &[]).await.expect("the attempt log");

    *count = rows.len();
    let mut attempts = Attempts::new();

    for row in rows {
        let attempt = LoggedAttempt {
            round: row.get(3),
            attempt: row.get(4),
            outcome: row.get(5),
        };

        attempts
            .entry((row.get(0), row.get(1)))
            .or_default()
            .entry(row.get(2))
            .or_default()
            .push(attempt);
    }

    attempts
}
