//! The schedule against a model of it: admission, fair queues, claims and the throttling of retries
//! together, without a store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uuid::Uuid;
use walhook::deliver::schedule::{Finished, Limits, RunningRequest, Schedule};
use walhook::domain::delivery::{Delivery, DeliveryClass, Feedback, Lease};
use walhook::domain::event::EventKind;
use walhook::handoff::{CAPACITY, DeliveryBudget, RESPONSIVE, Speed};
use walhook::store::delivery::{ClaimRequest, Claimed};

const CASES: u32 = 300;
const WEBHOOKS: u128 = 6;
const LIMITS: Limits = Limits {
    total: 8,
    per_webhook: 3,
    adaptive: true,
};
/// Of attempts that fail, the last.
const ATTEMPTS: u16 = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// A delivery is stored, and handed off if the budget allows.
    Store {
        webhook: u128,
    },
    Claim {
        succeeds: bool,
    },
    Start,
    /// One of the requests in flight ends.
    Finish {
        index: usize,
        is_quick: bool,
        is_accepted: bool,
    },
    /// A delivery in flight was not attempted.
    Skip {
        index: usize,
    },
    Wait {
        milliseconds: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{Claim, Finish, Skip, Start, Store, Wait};

    prop_oneof![
        6 => (1..=WEBHOOKS).prop_map(|webhook| Store { webhook }),
        3 => any::<bool>().prop_map(|succeeds| Claim { succeeds }),
        8 => Just(Start),
        6 => (0..64_usize, any::<bool>(), any::<bool>())
            .prop_map(|(index, is_quick, is_accepted)| Finish { index, is_quick, is_accepted }),
        1 => (0..64_usize).prop_map(|index| Skip { index }),
        3 => (0..800_u64).prop_map(|milliseconds| Wait { milliseconds }),
    ]
}

/// The schedule, and what is known about every delivery outside of it.
struct Pair {
    schedule: Schedule,
    budget: DeliveryBudget,
    now: Instant,
    created: u128,
    /// Deliveries in the store that nobody has leased.
    stored: Vec<Delivery>,
    /// Ids by webhook and class, in the order in which they must start.
    queued: BTreeMap<(Uuid, bool), VecDeque<Uuid>>,
    in_flight: Vec<Delivery>,
    /// By delivery.
    requests: BTreeMap<Uuid, RunningRequest>,
    /// By webhook, as its last request that has ended says.
    speeds: BTreeMap<Uuid, Speed>,
}

/// Returns a first attempt with a lease until then.
pub fn delivery(id: u128, webhook: Uuid, until: Instant) -> Delivery {
    Delivery {
        id: Uuid::from_u128(id),
        webhook,
        event: Uuid::nil(),
        kind: EventKind::DeliveryCompleted,
        occurred_at: Timestamp::UNIX_EPOCH,
        data: "{}".into(),
        round: 1,
        attempt: 1,
        sequence: None,
        order_key: None,
        activation: 0,
        lease: Lease {
            token: Uuid::nil(),
            until,
            place: None,
        },
    }
}

fn is_retry(delivery: &Delivery) -> bool {
    delivery.attempt > 1
}

impl Pair {
    fn new() -> Pair {
        let budget = DeliveryBudget::default();
        let now = Instant::now();

        Pair {
            schedule: Schedule::new(LIMITS, 1_000, Duration::from_secs(10), budget.clone(), now),
            budget,
            now,
            created: 0,
            stored: Vec::new(),
            queued: BTreeMap::new(),
            in_flight: Vec::new(),
            requests: BTreeMap::new(),
            speeds: BTreeMap::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Store { webhook } => self.store(Uuid::from_u128(webhook)),
            Operation::Claim { succeeds } => self.claim(succeeds),
            Operation::Start => drop(self.start()),
            Operation::Finish { .. } | Operation::Skip { .. } if self.in_flight.is_empty() => {}
            Operation::Finish {
                index,
                is_quick,
                is_accepted,
            } => {
                let took = Duration::from_millis(if is_quick { 20 } else { 9_000 });
                self.finish(index % self.in_flight.len(), Some(took), is_accepted);
            }
            Operation::Skip { index } => self.finish(index % self.in_flight.len(), None, false),
            Operation::Wait { milliseconds } => self.now += Duration::from_millis(milliseconds),
        }
    }

    fn store(&mut self, webhook: Uuid) {
        self.created += 1;
        let delivery = delivery(self.created, webhook, self.now);
        // Every third waits in the store, as if there had been no budget.
        if !self.created.is_multiple_of(3) && self.budget.reserve(webhook, delivery.bytes()) {
            self.queue(&delivery);
            self.schedule.add_fresh(vec![delivery], self.now);
        } else {
            self.stored.push(delivery);
        }
    }

    fn queue(&mut self, delivery: &Delivery) {
        let queue = self
            .queued
            .entry((delivery.webhook, is_retry(delivery)))
            .or_default();
        queue.push_back(delivery.id);
    }

    fn claim(&mut self, succeeds: bool) {
        let Some(request) = self.schedule.next_claim(self.now) else {
            return;
        };

        assert!(
            self.schedule.next_claim(self.now).is_none(),
            "one claim at a time"
        );

        if !succeeds {
            return self.schedule.claim_failed(&request, self.now);
        }

        let mut claimed = self.find(&request);
        let found = claimed.deliveries.clone();
        let refused = self.schedule.claimed(&request, &mut claimed, self.now);
        for delivery in found
            .into_iter()
            .filter(|one| !refused.iter().any(|other| other.id == one.id))
        {
            self.queue(&delivery);
        }

        self.stored.extend(refused);
    }

    /// Leases the deliveries that the SQL statement would lease.
    fn find(&mut self, request: &ClaimRequest) -> Claimed {
        let is_of_class = |delivery: &Delivery| DeliveryClass::of(delivery) == request.class;
        let mut webhooks: Vec<Uuid> = self
            .stored
            .iter()
            .filter(|delivery| is_of_class(delivery))
            .map(|delivery| delivery.webhook)
            .collect();

        webhooks.sort_unstable();
        webhooks.dedup();

        let mut claimed = Claimed::default();

        for webhook in webhooks
            .into_iter()
            .filter(|id| *id > request.start_after && request.end_with.is_none_or(|end| *id <= end))
        {
            let limit = request
                .limits
                .iter()
                .find(|(id, _)| *id == webhook)
                .map_or(request.per_webhook, |(_, n)| *n);
            for _ in 0..limit.min(request.max_rows - claimed.deliveries.len()) {
                let is_due =
                    |delivery: &Delivery| delivery.webhook == webhook && is_of_class(delivery);
                let Some(position) = self.stored.iter().position(is_due) else {
                    break;
                };

                claimed.deliveries.push(self.stored.remove(position));
            }
        }

        claimed
    }

    fn speed(&self, webhook: Uuid) -> Speed {
        self.speeds.get(&webhook).copied().unwrap_or_default()
    }

    /// Starts the next delivery, if there is one that may start.
    fn start(&mut self) -> bool {
        let Some(delivery) = self.schedule.next(self.now) else {
            let has_fresh = self
                .queued
                .iter()
                .any(|((_, is_retry), queue)| !is_retry && !queue.is_empty());
            assert!(
                !has_fresh || !self.in_flight.is_empty(),
                "nothing starts although all permits are free"
            );
            return false;
        };

        let queue = self
            .queued
            .get_mut(&(delivery.webhook, is_retry(&delivery)));
        assert_eq!(
            queue.and_then(VecDeque::pop_front),
            Some(delivery.id),
            "each queue keeps its order"
        );
        self.in_flight.push(delivery.clone());
        self.requests.insert(
            delivery.id,
            self.schedule
                .start_request(delivery.webhook, DeliveryClass::of(&delivery), self.now),
        );

        let count = |of: &dyn Fn(&Delivery) -> bool| {
            self.in_flight
                .iter()
                .filter(|delivery| of(delivery))
                .count()
        };

        // Each webhook may have one late request without a permit.
        let is_late =
            |delivery: &&Delivery| self.requests[&delivery.id].started_at + RESPONSIVE < self.now;
        let late: BTreeSet<Uuid> = self
            .in_flight
            .iter()
            .filter(is_late)
            .map(|delivery| delivery.webhook)
            .collect();

        assert!(self.in_flight.len() <= LIMITS.total + late.len());
        assert!(count(&|other| other.webhook == delivery.webhook) <= LIMITS.per_webhook);
        assert!(count(&is_retry) <= LIMITS.total / 2 + late.len());

        let speed = self.speed(delivery.webhook);
        let is_as_slow = |webhook: Uuid| self.speed(webhook) as usize >= speed as usize;
        let late = late
            .into_iter()
            .filter(|webhook| is_as_slow(*webhook))
            .count();

        assert!(count(&|other| is_as_slow(other.webhook)) <= speed.share(LIMITS.total) + late);
        true
    }

    fn finish(&mut self, index: usize, took: Option<Duration>, is_accepted: bool) {
        let delivery = self.in_flight.swap_remove(index);
        let webhook = delivery.webhook;
        let request = self.requests.remove(&delivery.id);
        let feedback = match (took, is_accepted) {
            (None, _) => Feedback::None,
            (Some(_), true) => Feedback::Responsive,
            (Some(took), false) if took > Duration::from_secs(1) => Feedback::TimedOut,
            (Some(_), false) => Feedback::Overloaded,
        };

        let finished = Finished {
            request,
            took,
            feedback,
            ..Finished::of(&delivery)
        };
        self.schedule.finish(finished, self.now);

        if let Some(took) = took {
            self.speeds.insert(
                webhook,
                if took <= RESPONSIVE {
                    Speed::Responsive
                } else {
                    Speed::Slow
                },
            );
        }

        match took {
            None => self.stored.push(delivery),
            Some(_) if !is_accepted && delivery.attempt < ATTEMPTS => {
                self.stored.push(Delivery {
                    attempt: delivery.attempt + 1,
                    ..delivery
                });
            }
            Some(_) => {}
        }
    }

    fn check(&self) {
        let queued: usize = self.queued.values().map(VecDeque::len).sum();
        assert_eq!(
            (self.schedule.queued(), self.schedule.in_flight()),
            (queued, self.in_flight.len())
        );
        assert_eq!(
            self.budget.counters().free(),
            CAPACITY - queued - self.in_flight.len()
        );
        assert!(self.schedule.wake_at(self.now) <= self.now + Duration::from_secs(3));
    }

    /// Has every receiver accept every request: then everything is delivered.
    fn deliver_all(&mut self) {
        for _ in 0..2_000 {
            while self.start() {}

            while !self.in_flight.is_empty() {
                self.finish(0, Some(Duration::from_millis(1)), true);
            }

            self.claim(true);
            self.now = self.now.max(self.schedule.wake_at(self.now));
            self.check();

            if self.stored.is_empty() && self.schedule.queued() == 0 {
                return;
            }
        }

        panic!(
            "{} in the store and {} queued are never delivered",
            self.stored.len(),
            self.schedule.queued()
        );
    }
}

#[test]
fn the_schedule_keeps_its_limits_and_loses_nothing() {
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };

    let result = TestRunner::new(config).run(&vec(operation(), 0..=200), |operations| {
        let mut pair = Pair::new();

        for operation in &operations {
            pair.apply(*operation);
            pair.check();
        }

        pair.deliver_all();
        Ok(())
    });

    result.unwrap_or_else(|failure| panic!("{failure}"));
}
