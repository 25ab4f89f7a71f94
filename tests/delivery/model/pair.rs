//! The model and the store side by side: applies each operation to both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;
use walhook::domain::backoff::RetrySchedule;
use walhook::domain::delivery::{Answer, Attempt, Attempted, Delivery, ErrorKind, Lease, next};
use walhook::domain::event::{Event, EventKind, UserId, delivery_id};
use walhook::domain::lsn::Lsn;
use walhook::domain::ordering::Ordering;
use walhook::domain::position::Position;
use walhook::record;
use walhook::store::audit::{Actor, Via};
use walhook::store::deliver::{ClaimRequest, DeliveryClass};
use walhook::store::enqueue::{NewLease, insert_events, insert_missed, subscriptions};
use walhook::store::keys::{self, SealedKeyPair};
use walhook::store::record::{AttemptRow, CompletedAttempt};
use walhook::store::recovery::{self, Redelivery};
use walhook::store::webhooks::{self, Changes, Conditional};

use super::memory::{Memory, store_delivery};
use super::pure::{Model, ModelWebhook, Pending, View};
use super::{ATTEMPTS, Operation, Reply, THRESHOLD, USER, WEBHOOKS};
use crate::support::Bench;
use crate::support::memory::Redelivered;

/// The store and its model.
pub struct Pair<'a> {
    pub bench: &'a Bench,
    pub model: Model,
    /// The store in memory.
    pub memory: Memory,
    /// By ordering.
    webhooks: Vec<Uuid>,
    /// In the order in which they were stored.
    pub events: Vec<Uuid>,
    /// The release of each event.
    releases: BTreeMap<Uuid, Option<i64>>,
    edits: usize,
    /// How many webhooks were disabled.
    pub disabled: usize,
    /// How many deliveries replays have created.
    pub replayed: i64,
    claims: Vec<Delivery>,
    schedule: RetrySchedule,
    pub actor: Actor,
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Accepted => Answer::Accepted { status: 200 },
        Reply::Failed => Answer::Failed {
            kind: ErrorKind::HttpStatus,
            message: "answered 500".into(),
            status: Some(500),
        },
        Reply::Gone => Answer::Failed {
            kind: ErrorKind::HttpStatus,
            message: "answered 410".into(),
            status: Some(410),
        },
        Reply::TooLarge => Answer::TooLarge { bytes: 70_000 },
        Reply::Inactive => Answer::Inactive,
    }
}

impl<'a> Pair<'a> {
    pub async fn new(bench: &'a Bench) -> Pair<'a> {
        let tables = "delivery, attempt, event, missed_event, delivery_round, recovery, webhook_hour, audit, webhook, \
                      superseded_attempt, webhook_sequence, notice, replay_exclusion";
        let clean: String = tables
            .split(", ")
            .map(|table| format!("delete from walhook.{table};"))
            .collect();

        bench.client.batch_execute(&clean).await.unwrap();
        let mut webhooks = Vec::new();
        let mut memory = Memory::new();

        for _ in 0..WEBHOOKS {
            let id = bench.webhook("http://127.0.0.1:9/").await.0;
            let ordering = "update walhook.webhook set ordering = $2 where id = $1";

            bench
                .client
                .execute(ordering, &[&id, &Ordering::ALL[webhooks.len()].as_str()])
                .await
                .unwrap();
            let target = bench.store.targets(&[id]).await.unwrap().remove(0);
            memory.create_webhook(target, Ordering::ALL[webhooks.len()]);
            webhooks.push(id);
        }

        let mut pair = Pair {
            bench,
            model: Model {
                view: View::default(),
                rounds: BTreeMap::new(),
                numbers: BTreeMap::new(),
                created: Vec::new(),
                order: BTreeMap::new(),
                ended_leases: Vec::new(),
                superseded: Vec::new(),
            },
            memory,
            webhooks,
            events: Vec::new(),
            releases: BTreeMap::new(),
            edits: 0,
            disabled: 0,
            replayed: 0,
            claims: Vec::new(),
            schedule: RetrySchedule::new(
                vec![Duration::ZERO; usize::from(ATTEMPTS) - 1],
                Duration::ZERO,
            ),
            actor: Actor {
                user: UserId(USER.into()),
                via: Via::CommandLine,
            },
        };

        pair.model.view = pair.view().await;
        pair
    }

    pub async fn view(&self) -> View {
        let client = &self.bench.client;
        let mut view = View::default();
        let webhooks =
            "select id, active, secret, success_count, failure_count, consecutive_failures,
                               (failing_since is not null) = (consecutive_failures > 0) as is_sound,
                               disabled_at is not null, url, ordering
                        from walhook.webhook";
        let pending =
            "select id, webhook_id, round, attempt, lease, due_at = 'infinity' as parked, sequence
             from walhook.delivery";
        let log = "select delivery_id, round, attempt, outcome, sequence from walhook.attempt order by 1, 2, 3, 4, 5";
        let missed = "select webhook_id, event_id from walhook.missed_event order by 1, 2";
        let sequences = "select webhook_id, last from walhook.webhook_sequence where last > 0";

        let (webhooks, pending, log, missed, sequences) = tokio::try_join!(
            client.query(webhooks, &[]),
            client.query(pending, &[]),
            client.query(log, &[]),
            client.query(missed, &[]),
            client.query(sequences, &[])
        )
        .unwrap();
        for row in webhooks {
            assert!(
                row.get::<_, bool>(6),
                "consecutive failures have a start: {row:?}"
            );
            let counters = (row.get(3), row.get(4), row.get(5));
            let active = row.get(1);
            let secret = row.get(2);
            let disabled = row.get(7);
            let url = row.get(8);
            let ordering = Ordering::named(row.get(9)).expect("an ordering");

            view.webhooks.insert(
                row.get(0),
                ModelWebhook {
                    active,
                    disabled,
                    url,
                    ordering,
                    secret,
                    counters,
                },
            );
        }

        for row in pending {
            let round = row.get(2);
            let attempt = row.get(3);
            let lease = row.get(4);

            let pending = Pending {
                webhook: row.get(1),
                round,
                attempt,
                lease,
                parked: row.get(5),
                sequence: row.get(6),
            };

            view.pending.insert(row.get(0), pending);
        }

        for row in log {
            view.log.entry(row.get(0)).or_default().push((
                row.get(1),
                row.get(2),
                row.get(3),
                row.get(4),
            ));
        }

        view.missed = missed.iter().map(|row| (row.get(0), row.get(1))).collect();
        view.sequences = sequences
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();

        view
    }

    pub fn state(&self, webhook: Uuid) -> Option<&ModelWebhook> {
        self.model.view.webhooks.get(&webhook)
    }

    pub async fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Event { webhook } => self.event(self.webhooks[webhook]).await,
            Operation::HandOff {
                webhook,
                commits,
                reply,
            } => {
                self.hand_off(self.webhooks[webhook], commits, reply).await;
            }
            Operation::Claim { retries } => self.claim(retries).await,
            Operation::Answer { claim, reply } if !self.claims.is_empty() => {
                let held = self.claims[claim % self.claims.len()].clone();
                self.answer(vec![held], reply).await;
            }
            Operation::AnswerAll { reply } if !self.claims.is_empty() => {
                self.answer(self.claims.clone(), reply).await;
            }
            Operation::Release { claim } if !self.claims.is_empty() => {
                let held = self.claims[claim % self.claims.len()].clone();
                self.bench
                    .store
                    .release(std::slice::from_ref(&held))
                    .await
                    .unwrap();
                self.memory.release(&held);

                if let Some(pending) = self.model.view.pending.get_mut(&held.id)
                    && pending.lease == Some(held.lease.token)
                {
                    pending.lease = None;
                }
            }
            Operation::EndLeases => {
                let end = "update walhook.delivery set due_at = now() where lease is not null";
                self.bench.client.execute(end, &[]).await.unwrap();
                self.memory.end_leases();

                let leased = self
                    .model
                    .view
                    .pending
                    .iter()
                    .filter(|(_, pending)| pending.lease.is_some());

                self.model.ended_leases = leased.map(|(id, _)| *id).collect();
            }
            Operation::Toggle { webhook, active } => {
                self.toggle(self.webhooks[webhook], active).await
            }
            Operation::Delete { webhook } => self.delete(self.webhooks[webhook]).await,
            Operation::NewSecret { webhook } => self.new_secret(self.webhooks[webhook]).await,
            Operation::Redeliver { delivery } if !self.model.created.is_empty() => {
                let (id, webhook) = self.model.created[delivery % self.model.created.len()];
                self.redeliver(id, webhook).await;
            }
            Operation::Recover { webhook } => self.recover(self.webhooks[webhook]).await,
            Operation::Replay { webhook } => self.replay(self.webhooks[webhook]).await,
            Operation::Edit { webhook, ordering } => {
                self.edit(self.webhooks[webhook], Ordering::ALL[ordering])
                    .await
            }
            Operation::Answer { .. }
            | Operation::AnswerAll { .. }
            | Operation::Release { .. }
            | Operation::Redeliver { .. } => {}
        }
    }

    fn ordering(&self, webhook: Uuid) -> Ordering {
        self.state(webhook)
            .map_or(Ordering::None, |state| state.ordering)
    }

    pub fn order_key(&self, webhook: Uuid, event: Uuid) -> Option<i64> {
        self.ordering(webhook).key(|| self.releases[&event])
    }

    /// Inserts an event of one of two releases, or of none.
    async fn new_event(&mut self) -> Uuid {
        let release = Some(self.releases.len() as i64 % 3).filter(|release| *release > 0);
        let data = release.map_or("{}".to_owned(), |release| {
            format!("{{\"release_id\": {release}}}")
        });

        let id = Uuid::now_v7();
        let number = self.events.len() as u64 + 1;

        let event = Event {
            id,
            kind: EventKind::ReleaseDistributed,
            user: UserId(USER.into()),
            label: None,
            occurred_at: Timestamp::now(),
            position: Position::Wal {
                timeline: 1,
                commit: Lsn(number),
                ordinal: 1,
            },
            data: data.into(),
        };

        let mut connection = self.bench.store.connection().await.unwrap();
        let transaction = connection.transaction().await.unwrap();

        insert_events(&transaction, std::slice::from_ref(&event), false)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        self.memory.event(&event);
        self.releases.insert(id, release);
        self.events.push(id);

        id
    }

    /// Stores an event as the enqueue stage does.
    async fn event(&mut self, webhook: Uuid) {
        let event = self.new_event().await;
        let key = self.order_key(webhook, event);
        let mut connection = self.bench.store.connection().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        let found = subscriptions(&transaction, &[USER], &["release.distributed"])
            .await
            .unwrap();
        let found = found
            .into_iter()
            .find(|subscription| subscription.target.webhook == webhook);

        assert_eq!(
            found.as_ref().map(|found| found.target.active),
            self.state(webhook).map(|state| state.active)
        );

        match found.map(|found| found.target.active) {
            Some(true) => {
                let ids = (delivery_id(event, webhook), webhook, event);
                let sequence = store_delivery(&transaction, ids, key, None).await.unwrap();
                assert_eq!(
                    self.memory.store_delivery(ids, key, None),
                    sequence,
                    "numbered in memory"
                );
                self.model.create(webhook, event, key);
            }
            Some(false) => {
                insert_missed(&transaction, &[(webhook, event)])
                    .await
                    .unwrap();
                self.memory.insert_missed(webhook, event);
                self.model.view.missed.push((webhook, event));
                self.model.view.missed.sort_unstable();
            }
            None => {}
        }

        transaction.commit().await.unwrap();
    }

    async fn hand_off(&mut self, webhook: Uuid, commits: bool, reply: Reply) {
        // Deliveries that may have to wait are handed off after the commit.
        if self.ordering(webhook) != Ordering::None
            || !self.state(webhook).is_some_and(|state| state.active)
        {
            return;
        }

        let event = self.new_event().await;
        let id = delivery_id(event, webhook);
        let token = Uuid::now_v7();
        let lease = Lease {
            token,
            until: Instant::now() + Duration::from_secs(20),
        };

        let kind = EventKind::ReleaseDistributed;
        let occurred_at = Timestamp::now();
        let mut connection = self.bench.store.connection().await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        let ids = (id, webhook, event);
        let new_lease = NewLease {
            token,
            seconds: 20.0,
        };

        let sequence = store_delivery(&transaction, ids, None, Some(new_lease))
            .await
            .unwrap();
        let held = Delivery {
            id,
            webhook,
            event,
            kind,
            occurred_at,
            data: "{}".into(),
            round: 1,
            attempt: 1,
            sequence,
            order_key: None,
            activation: 0,
            lease,
        };

        // The store does not know it yet.
        self.answer(vec![held.clone()], reply).await;

        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }

        if commits {
            assert_eq!(
                self.memory.store_delivery(ids, None, Some(new_lease)),
                sequence,
                "numbered in memory"
            );
            self.model.create(webhook, event, None);
            self.model
                .view
                .pending
                .get_mut(&id)
                .expect("it was created")
                .lease = Some(token);
        }

        self.answer(vec![held.clone()], reply).await;
        self.claims.push(held);
    }

    async fn claim(&mut self, retries: bool) {
        let request = ClaimRequest {
            class: if retries {
                DeliveryClass::Retry
            } else {
                DeliveryClass::Fresh
            },
            timeout: Duration::from_secs(10),
            start_after: Uuid::nil(),
            end_with: None,
            max_webhooks: 100,
            max_rows: 1_000,
            max_bytes: usize::MAX,
            per_webhook: 1_000,
            limits: Vec::new(),
        };

        let mut claimed = self.bench.store.claim(&request).await.unwrap().deliveries;
        claimed.sort_unstable_by_key(|delivery| delivery.id);

        let ids: Vec<Uuid> = claimed.iter().map(|delivery| delivery.id).collect();
        let in_memory = self
            .memory
            .claim(&request, &claimed)
            .deliveries
            .into_iter()
            .map(|delivery| delivery.id);

        assert_eq!(
            in_memory.collect::<BTreeSet<Uuid>>(),
            ids.iter().copied().collect(),
            "claimed in memory"
        );
        assert_eq!(
            ids,
            self.model.claimable(retries),
            "everything that is due and not leased, and nothing else"
        );

        for delivery in &claimed {
            let pending = self
                .model
                .view
                .pending
                .get_mut(&delivery.id)
                .expect("it is claimable");

            assert_eq!(
                (pending.round, pending.attempt),
                (delivery.round as i16, delivery.attempt as i16)
            );
            pending.lease = Some(delivery.lease.token);
            self.model
                .ended_leases
                .retain(|ended| *ended != delivery.id);
        }

        self.claims.extend(claimed);
    }

    async fn answer(&mut self, held: Vec<Delivery>, reply: Reply) {
        let answer = answer(reply);
        let attempts: Vec<Attempted> = held
            .into_iter()
            .map(|delivery| {
                let attempt = Attempt {
                    started_at: Timestamp::now(),
                    answer: answer.clone(),
                    sent: None,
                };
                Attempted { delivery, attempt }
            })
            .collect();

        let follows = |attempted: &Attempted| {
            next(attempted.delivery.attempt, &answer, &self.schedule, || 0.0)
        };

        let entries: Vec<CompletedAttempt<'_>> = attempts
            .iter()
            .map(|attempted| {
                let next = follows(attempted);
                CompletedAttempt {
                    row: AttemptRow::new(Uuid::now_v7(), attempted, next.outcome()),
                    next,
                }
            })
            .collect();

        let policy = self.bench.config.disable.policy();
        let recorded = record::record(&self.bench.store, &entries, &policy, None)
            .await
            .unwrap();
        let in_memory = self.memory.record(&entries, &policy);

        assert_eq!(in_memory.counted, recorded.counted, "counted in memory");
        assert_eq!(in_memory.disabled, recorded.disabled, "disabled in memory");

        let expected: Vec<bool> = attempts
            .iter()
            .map(|held| self.model.answer(&held.delivery, &answer, follows(held)))
            .collect();
        assert_eq!(
            recorded.counted, expected,
            "an answer counts once, under the current lease"
        );

        let counted = attempts
            .iter()
            .zip(expected)
            .filter(|(_, counted)| *counted);
        let failed: BTreeSet<Uuid> = counted
            .map(|(attempted, _)| attempted.delivery.webhook)
            .collect();
        let is_failure = matches!(answer, Answer::Failed { .. });
        let disables = |id: &Uuid| {
            is_failure
                && self
                    .model
                    .disable(*id, i64::from(THRESHOLD), answer.is_gone())
        };

        let expected: Vec<Uuid> = failed.into_iter().filter(disables).collect();
        let disabled: Vec<Uuid> = recorded
            .disabled
            .iter()
            .map(|disabled| disabled.webhook)
            .collect();

        assert_eq!(
            disabled, expected,
            "the threshold or a receiver that is gone disables a webhook, and nothing else"
        );
        self.disabled += disabled.len();

        for webhook in disabled {
            while self.bench.store.cancel_pending(webhook).await.unwrap() > 0 {}
        }
    }

    async fn edit(&mut self, webhook: Uuid, ordering: Ordering) {
        self.edits += 1;
        let url = format!("http://127.0.0.1:9/{}", self.edits);
        let changes = Changes {
            url: Some(url.clone()),
            ordering: Some(ordering),
            ..Changes::default()
        };

        let done = webhooks::update(&self.bench.store, &self.actor, webhook, &changes, &|_| true)
            .await
            .unwrap();
        self.memory.edit(webhook, &url, ordering);

        let state = self.model.view.webhooks.get_mut(&webhook);
        assert_eq!(state.is_some(), done != Conditional::NotFound);

        if let Some(state) = state {
            (state.url, state.ordering) = (url, ordering);
        }
    }

    async fn toggle(&mut self, webhook: Uuid, active: bool) {
        let changes = Changes {
            active: Some(active),
            ..Changes::default()
        };

        let done = webhooks::update(&self.bench.store, &self.actor, webhook, &changes, &|_| true)
            .await
            .unwrap();
        assert_eq!(
            self.memory.set_active(webhook, active),
            done != Conditional::NotFound
        );

        let Some(state) = self.model.view.webhooks.get_mut(&webhook) else {
            return assert_eq!(done, Conditional::NotFound);
        };

        let was_active = std::mem::replace(&mut state.active, active);

        if active && std::mem::take(&mut state.disabled) {
            (state.counters.1, state.counters.2) = (0, 0);
        }

        if was_active && !active {
            self.model.cancel(webhook);
        }
    }

    async fn delete(&mut self, webhook: Uuid) {
        let done = webhooks::delete(&self.bench.store, &self.actor, webhook, &|_| true)
            .await
            .unwrap();
        let existed = self.model.view.webhooks.remove(&webhook).is_some();

        assert_eq!(self.memory.delete(webhook), existed);

        assert_eq!(
            done,
            if existed {
                Conditional::Done(())
            } else {
                Conditional::NotFound
            }
        );

        self.model.cancel(webhook);
    }

    async fn new_secret(&mut self, webhook: Uuid) {
        let sealed = self.bench.vault.seal(webhook, b"another secret");
        let pair = SealedKeyPair {
            private: sealed.clone(),
            public: [0; 32],
        };

        let overlap = Duration::ZERO;
        let set = keys::replace(
            &self.bench.store,
            &self.actor,
            webhook,
            &sealed,
            &pair,
            overlap,
        )
        .await
        .unwrap();

        let state = self.model.view.webhooks.get_mut(&webhook);
        assert_eq!(set.is_some(), state.is_some());

        if let Some(state) = state {
            self.memory.set_secret(webhook, sealed.bytes.clone());
            state.secret = sealed.bytes;
        }

        // The secret that signs the next attempt.
        let target = self.bench.store.targets(&[webhook]).await.unwrap().pop();
        assert_eq!(
            target.map(|target| target.secret),
            self.state(webhook).map(|state| state.secret.clone())
        );
    }

    async fn redeliver(&mut self, delivery: Uuid, webhook: Uuid) {
        let log = "select id from walhook.attempt where delivery_id = $1 limit 1";
        let Some(log) = self
            .bench
            .client
            .query_opt(log, &[&delivery])
            .await
            .unwrap()
        else {
            return;
        };

        let done = recovery::redeliver(&self.bench.store, &self.actor, webhook, log.get(0))
            .await
            .unwrap();
        let expected = match self.state(webhook).map(|state| state.active) {
            None => Redelivery::NoSuchLog,
            Some(false) => Redelivery::Inactive,
            Some(true) => {
                let round = self.model.next_round(delivery, webhook) as u16;
                Redelivery::Started { delivery, round }
            }
        };

        assert_eq!(done, expected);
        let in_memory = match done {
            Redelivery::Started { round, .. } => Redelivered::Started(round),
            Redelivery::Inactive => Redelivered::Inactive,
            _ => Redelivered::NotFound,
        };

        assert_eq!(self.memory.redeliver(webhook, delivery), in_memory);
    }
}
