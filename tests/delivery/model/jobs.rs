//! Recoveries and replays, in the model and in both stores.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use walhook::domain::delivery::Outcome;
use walhook::domain::event::delivery_id;
use walhook::recover::{Step, Turns};
use walhook::store::recovery::{self, Criteria, Scope};
use walhook::store::replay::{self, Selection};

use super::pair::Pair;

impl Pair<'_> {
    /// Runs all jobs to their end. Returns how many deliveries they have started.
    async fn run_jobs(&self) -> i64 {
        let mut recovered = 0;

        loop {
            match walhook::recover::step(&self.bench.store, &mut Turns::default())
                .await
                .unwrap()
            {
                Step::Idle => return recovered,
                Step::Worked => {}
                Step::Finished {
                    recovered: count, ..
                } => recovered += count,
            }
        }
    }

    pub async fn recover(&mut self, webhook: Uuid) {
        let now = Timestamp::now();
        let scope = Scope {
            since: "2026-01-01T00:00:00Z".parse().unwrap(),
            until: now + SignedDuration::from_hours(1),
            outcomes: vec![Outcome::PermanentlyFailed, Outcome::Cancelled],
            missed: true,
        };

        let recovery = recovery::begin(&self.bench.store, &self.actor, webhook, &scope, 0)
            .await
            .unwrap();
        assert_eq!(recovery.is_some(), self.state(webhook).is_some());

        let Scope {
            since,
            until,
            outcomes,
            missed,
        } = scope;

        let outcomes = outcomes
            .iter()
            .map(|outcome| outcome.as_str().to_owned())
            .collect();
        let in_memory = self.memory.recover(
            Uuid::now_v7(),
            Criteria {
                webhook,
                since,
                until,
                outcomes,
                missed,
            },
        );

        let recovered = self.run_jobs().await;
        let mut expected = 0;

        if self.state(webhook).is_some_and(|state| state.active) {
            for delivery in self.model.recoverable(webhook) {
                self.model.next_round(delivery, webhook);
                expected += 1;
            }

            let of_webhook = |missed: &(Uuid, Uuid)| missed.0 == webhook;
            let (mine, others) = std::mem::take(&mut self.model.view.missed)
                .into_iter()
                .partition(of_webhook);

            self.model.view.missed = others;
            let mine: Vec<(Uuid, Uuid)> = mine;
            for (webhook, event) in mine {
                self.model
                    .create(webhook, event, self.order_key(webhook, event));
                expected += 1;
            }
        }

        assert_eq!((recovered, in_memory), (expected, expected));
    }

    /// A replay delivers what the webhook never had.
    pub async fn replay(&mut self, webhook: Uuid) {
        let selection = Selection {
            since: "2026-01-01T00:00:00Z".parse().unwrap(),
            until: Timestamp::now() + SignedDuration::from_hours(1),
            events: vec!["release.distributed".to_owned()],
            labels: None,
        };

        let replay = replay::begin(&self.bench.store, &self.actor, webhook, &selection, 0)
            .await
            .unwrap();
        assert_eq!(replay.is_some(), self.state(webhook).is_some());

        let in_memory = self.memory.replay(Uuid::now_v7(), webhook, selection);
        let replayed = self.run_jobs().await;
        let mut expected = 0;

        if self.state(webhook).is_some_and(|state| state.active) {
            for event in self.events.clone() {
                if !self.model.rounds.contains_key(&delivery_id(event, webhook)) {
                    self.model
                        .create(webhook, event, self.order_key(webhook, event));
                    expected += 1;
                }
            }
        }

        assert_eq!((replayed, in_memory), (expected, expected));
        self.replayed += replayed;
    }
}
