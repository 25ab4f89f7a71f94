//! Deliveries that were handed off without rows: random sequences of what can happen to them, on a
//! real store, compared with a model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio_postgres::Row;
use uuid::Uuid;
use walhook::domain::delivery::{
    Answer, Attempt, Attempted, Delivery, DeliveryClass, Next, Outcome, Place,
};
use walhook::domain::event::{EventKind, UserId, delivery_id};
use walhook::store::attempt::CompletedAttempt;
use walhook::store::audit::{Actor, Via};
use walhook::store::delivery::{ClaimRequest, NewLease};
use walhook::store::handoffs::{self, Handoffs, Locked, unpack};
use walhook::store::recovery::{self, RedeliveryResult};
use walhook::store::webhooks::Updated;

use crate::support::{Bench, DATA, run_sql, sent};

const CASES: u32 = 24;
const WEBHOOKS: usize = 3;
/// Longer than a case takes: leases end only when an operation ends them.
const LEASE: Duration = Duration::from_secs(600);
const CLEAR: &str = "truncate walhook.handoff, walhook.delivery";
const END_LEASES: &str =
    "update walhook.handoff set due_at = now(); update walhook.delivery set due_at = now()";

#[derive(Clone, Debug)]
enum Operation {
    /// Stores deliveries for these webhooks in one transaction.
    HandOff(Vec<usize>),
    /// Records attempts of deliveries that are or were held: which ones, and whether each succeeds.
    /// At the same time hand-offs are unpacked, or the same attempts are recorded again.
    Record {
        attempts: Vec<(prop::sample::Index, bool)>,
        unpacks: bool,
        repeats: bool,
    },
    Unpack,
    Claim,
    /// All leases end, and everything is claimed.
    Expire,
    Release(Vec<prop::sample::Index>),
    /// Switches a webhook off and on again.
    Cancel(usize),
    /// Redelivers one of those that have been attempted.
    Redeliver(prop::sample::Index),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{Cancel, Claim, Expire, HandOff, Record, Redeliver, Release, Unpack};

    let attempts = vec((any::<prop::sample::Index>(), any::<bool>()), 1..8);
    let record = (attempts, any::<bool>(), any::<bool>());

    prop_oneof![
        6 => vec(0..WEBHOOKS, 1..12).prop_map(HandOff),
        8 => record.prop_map(|(attempts, unpacks, repeats)| Record { attempts, unpacks, repeats }),
        2 => Just(Unpack),
        2 => Just(Claim),
        1 => Just(Expire),
        2 => vec(any::<prop::sample::Index>(), 1..4).prop_map(Release),
        1 => (0..WEBHOOKS).prop_map(Cancel),
        2 => any::<prop::sample::Index>().prop_map(Redeliver),
    ]
}

/// The next attempt of a pending delivery, and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    round: i16,
    attempt: i16,
    lease: Option<Uuid>,
}

struct Model<'a> {
    bench: &'a Bench,
    webhooks: Vec<Uuid>,
    pending: BTreeMap<Uuid, Pending>,
    webhook_of: BTreeMap<Uuid, Uuid>,
    /// The last round of each delivery.
    rounds: BTreeMap<Uuid, i16>,
    /// How often each round has ended.
    ended: BTreeMap<(Uuid, i16), usize>,
    /// Every delivery that a process has held, under each of its leases.
    held: Vec<Delivery>,
    delivered: i64,
}

impl Model<'_> {
    async fn new(bench: &Bench) -> Model<'_> {
        run_sql(&bench.client, CLEAR).await;
        let mut webhooks = Vec::new();

        for _ in 0..WEBHOOKS {
            webhooks.push(bench.webhook("http://127.0.0.1:9/").await.0);
        }

        Model {
            bench,
            webhooks,
            pending: BTreeMap::new(),
            webhook_of: BTreeMap::new(),
            rounds: BTreeMap::new(),
            ended: BTreeMap::new(),
            held: Vec::new(),
            delivered: 0,
        }
    }

    fn end(&mut self, id: Uuid) {
        let ended = self.pending.remove(&id).expect("it is pending");
        *self.ended.entry((id, ended.round)).or_default() += 1;
    }

    async fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match operation {
            Operation::HandOff(webhooks) => self.hand_off(webhooks).await,
            Operation::Record {
                attempts,
                unpacks,
                repeats,
            } => self.record(attempts, *unpacks, *repeats).await?,
            Operation::Unpack => unpack_all(self.bench).await,
            Operation::Claim => self.claim().await?,
            Operation::Expire => {
                run_sql(&self.bench.client, END_LEASES).await;
                unpack_all(self.bench).await;
                self.pending
                    .values_mut()
                    .for_each(|pending| pending.lease = None);
                self.claim().await?;
            }
            Operation::Release(picks) => self.release(picks).await,
            Operation::Cancel(index) => self.cancel(self.webhooks[*index]).await?,
            Operation::Redeliver(pick) => self.redeliver(pick).await?,
        }

        self.check().await
    }

    async fn hand_off(&mut self, webhooks: &[usize]) {
        let lease = NewLease::starting_now(LEASE);
        let mut deliveries = Vec::new();

        for (index, webhook) in webhooks.iter().enumerate() {
            let webhook = self.webhooks[*webhook];
            let event = self.bench.event(DATA).await;
            let mut delivery = Delivery {
                id: delivery_id(event, webhook),
                webhook,
                event,
                kind: EventKind::ReleaseDistributed,
                occurred_at: Timestamp::now(),
                data: DATA.into(),
                round: 1,
                attempt: 1,
                sequence: Some(index as i64),
                order_key: None,
                activation: 0,
                lease: lease.lease,
            };
            delivery.lease.place = Some(Place {
                index,
                of: webhooks.len(),
            });
            deliveries.push(delivery);
        }

        let mut connection = self.bench.store.connection().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        handoffs::insert(&transaction, &deliveries, lease)
            .await
            .unwrap();
        transaction.commit().await.unwrap();

        for delivery in deliveries {
            self.hold(delivery);
        }
    }

    /// Notes that a process holds the delivery from now on.
    fn hold(&mut self, delivery: Delivery) {
        let pending = Pending {
            round: delivery.round as i16,
            attempt: delivery.attempt as i16,
            lease: Some(delivery.lease.token),
        };
        self.pending.insert(delivery.id, pending);
        self.webhook_of.insert(delivery.id, delivery.webhook);
        self.rounds.insert(delivery.id, pending.round);
        self.held.push(delivery);
    }

    fn is_current(&self, delivery: &Delivery) -> bool {
        self.pending
            .get(&delivery.id)
            .is_some_and(|pending| pending.lease == Some(delivery.lease.token))
    }

    async fn record(
        &mut self,
        attempts: &[(prop::sample::Index, bool)],
        unpacks: bool,
        repeats: bool,
    ) -> Result<(), TestCaseError> {
        if self.held.is_empty() {
            return Ok(());
        }

        // Each delivery once.
        let picked: BTreeMap<Uuid, (Delivery, bool)> = attempts
            .iter()
            .map(|(pick, succeeds)| (pick.get(&self.held).clone(), *succeeds))
            .map(|(delivery, succeeds)| (delivery.id, (delivery, succeeds)))
            .collect();
        let batch: Vec<CompletedAttempt> = picked
            .values()
            .map(|(delivery, succeeds)| completed(delivery, *succeeds))
            .collect();

        let bench = self.bench;
        let unpacking = async {
            if unpacks {
                unpack_all(bench).await;
            }
        };
        let repeat = async {
            match repeats {
                true => bench.record(&batch).await,
                false => vec![false; batch.len()],
            }
        };
        let (counted, (), again) = tokio::join!(bench.record(&batch), unpacking, repeat);

        for ((delivery, succeeds), counts) in picked.values().zip(counted.iter().zip(&again)) {
            prop_assert!(counts != (&true, &true), "counted twice: {delivery:?}");
            prop_assert_eq!(
                *counts.0 || *counts.1,
                self.is_current(delivery),
                "{:?}",
                delivery
            );

            if !self.is_current(delivery) {
                continue;
            }

            if *succeeds {
                self.delivered += 1;
                self.end(delivery.id);
            } else {
                let pending = self.pending.get_mut(&delivery.id).expect("it is pending");
                pending.attempt += 1;
                pending.lease = None;
            }
        }

        Ok(())
    }

    /// Claims what is due, and asserts that this is what nobody holds.
    async fn claim(&mut self) -> Result<(), TestCaseError> {
        let mut claimed = claim(self.bench, DeliveryClass::Fresh).await;
        claimed.extend(claim(self.bench, DeliveryClass::Retry).await);

        let ids: BTreeSet<Uuid> = claimed.iter().map(|delivery| delivery.id).collect();
        let free = self.pending.iter().filter(|(_, one)| one.lease.is_none());
        let free: BTreeSet<Uuid> = free.map(|(id, _)| *id).collect();

        prop_assert_eq!(ids, free);
        claimed.into_iter().for_each(|delivery| self.hold(delivery));
        Ok(())
    }

    async fn release(&mut self, picks: &[prop::sample::Index]) {
        if self.held.is_empty() {
            return;
        }

        let released: Vec<Delivery> = picks
            .iter()
            .map(|pick| pick.get(&self.held).clone())
            .collect();
        self.bench.store.release(&released).await.unwrap();

        for delivery in released {
            if self.is_current(&delivery) {
                self.pending
                    .get_mut(&delivery.id)
                    .expect("it is pending")
                    .lease = None;
            }
        }
    }

    async fn cancel(&mut self, webhook: Uuid) -> Result<(), TestCaseError> {
        for active in [false, true] {
            let edited = self
                .bench
                .edit(webhook, |settings| settings.active = active)
                .await;
            prop_assert!(matches!(edited, Updated::Done(_)), "{edited:?}");
        }

        let cancelled: Vec<Uuid> = self
            .pending
            .keys()
            .filter(|id| self.webhook_of[id] == webhook)
            .copied()
            .collect();
        cancelled.into_iter().for_each(|id| self.end(id));
        Ok(())
    }

    async fn redeliver(&mut self, pick: &prop::sample::Index) -> Result<(), TestCaseError> {
        let logged = "select delivery_id, (array_agg(id order by id))[1], webhook_id from walhook.attempt
                      where webhook_id = any ($1) group by delivery_id, webhook_id order by delivery_id";
        let logged: Vec<Row> = self
            .bench
            .client
            .query(logged, &[&self.webhooks])
            .await
            .unwrap();
        if logged.is_empty() {
            return Ok(());
        }

        let row = pick.get(&logged);
        let id: Uuid = row.get(0);
        let actor = Actor {
            user: UserId("u".into()),
            via: Via::CommandLine,
        };
        let started = recovery::redeliver(&self.bench.store, &actor, row.get(2), row.get(1)).await;
        let round = self.rounds[&id] + 1;

        prop_assert_eq!(
            started.unwrap(),
            RedeliveryResult::Started {
                delivery: id,
                round: round as u16
            }
        );
        self.rounds.insert(id, round);
        self.pending.insert(
            id,
            Pending {
                round,
                attempt: 1,
                lease: None,
            },
        );
        Ok(())
    }

    /// Asserts that the store has exactly these deliveries pending.
    async fn check(&self) -> Result<(), TestCaseError> {
        let rows = "select id, round, attempt, lease from walhook.pending order by id";
        let rows = self.bench.client.query(rows, &[]).await.unwrap();
        let stored: Vec<(Uuid, Pending)> = rows
            .iter()
            .map(|row| {
                let pending = Pending {
                    round: row.get(1),
                    attempt: row.get(2),
                    lease: row.get(3),
                };
                (row.get(0), pending)
            })
            .collect();
        let expected: Vec<(Uuid, Pending)> = self.pending.clone().into_iter().collect();

        prop_assert_eq!(stored, expected);
        Ok(())
    }

    /// Delivers what is left, and asserts that every round has ended once and was counted once.
    async fn finish(mut self) -> Result<(), TestCaseError> {
        self.apply(&Operation::Expire).await?;

        while !self.pending.is_empty() {
            let current: Vec<Delivery> = self
                .held
                .iter()
                .filter(|delivery| self.is_current(delivery))
                .cloned()
                .collect();
            let batch: Vec<CompletedAttempt> =
                current.iter().map(|one| completed(one, true)).collect();
            let counted = self.bench.record(&batch).await;

            prop_assert!(counted.iter().all(|counts| *counts));
            self.delivered += current.len() as i64;
            current.iter().for_each(|delivery| self.end(delivery.id));
        }

        self.check().await?;
        prop_assert!(self.ended.values().all(|times| *times == 1));
        let mut counted = 0;

        for webhook in &self.webhooks {
            counted += self.bench.counters(*webhook).await.0;
        }

        prop_assert_eq!(counted, self.delivered);
        Ok(())
    }
}

async fn unpack_all(bench: &Bench) {
    unpack(&bench.store, Handoffs::Older(Duration::ZERO), Locked::Skip)
        .await
        .unwrap();
}

async fn claim(bench: &Bench, class: DeliveryClass) -> Vec<Delivery> {
    let request = ClaimRequest {
        class,
        timeout: LEASE,
        start_after: Uuid::nil(),
        end_with: None,
        max_webhooks: 100,
        max_rows: 1_000,
        max_bytes: usize::MAX,
        per_webhook: 1_000,
        limits: Vec::new(),
    };
    bench.store.claim(&request).await.unwrap().deliveries
}

/// An attempt that is the same whenever it is recorded.
fn completed(delivery: &Delivery, succeeds: bool) -> CompletedAttempt {
    let (answer, next) = match succeeds {
        true => (
            Answer::Accepted { status: 200 },
            Next::End(Outcome::Delivered),
        ),
        false => (
            Answer::Failed {
                kind: walhook::domain::delivery::ErrorKind::HttpStatus,
                message: String::new(),
                status: Some(500),
            },
            Next::Retry {
                after: Duration::ZERO,
                attempt: delivery.attempt + 1,
            },
        ),
    };
    let attempted = Attempted {
        delivery: delivery.clone(),
        attempt: Attempt {
            started_at: Timestamp::now(),
            answer,
            sent: Some(sent()),
        },
    };
    let id = delivery.lease.token.as_u128() ^ (delivery.id.as_u128() & 0xffff_ffff_ffff);

    CompletedAttempt::new(Uuid::from_u128(id), attempted, next)
}

#[test]
fn whatever_happens_to_what_was_handed_off_each_round_ends_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bench = runtime.block_on(Bench::new());
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };

    TestRunner::new(config)
        .run(&vec(operation(), 1..40), |operations| {
            runtime.block_on(async {
                let mut model = Model::new(&bench).await;

                for operation in &operations {
                    model.apply(operation).await?;
                }

                model.finish().await
            })
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
