//! Performs the actions, one after the other, while the load and the readers run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use uuid::Uuid;

use super::clock::SharedClock;
use super::collector::Collector;
use super::load::{Load, Owner};
use super::plan::{Action, Plan};
use super::replicas::Replicas;
use super::seed::Random;
use super::servers::Servers;
use super::tenants::Tenants;
use super::{RETENTION_DAYS, account};
use crate::support::{TestApp, eventually};

/// Only ends hanging runs: statements may wait for locks and standbys without a limit of their own.
const LONGEST_ACTION: Duration = Duration::from_secs(300);

pub struct Director {
    pub app: TestApp,
    pub servers: Servers,
    pub clock: SharedClock,
    pub collector: Arc<Collector>,
    pub replicas: Replicas,
    pub tenants: Tenants,
    /// None after the end of the load.
    pub load: Option<Load>,
    /// When the load began.
    pub began: Timestamp,
    pub keys: Keys,
    pub schema: Schema,
    /// How often each action was performed.
    pub done: BTreeMap<String, usize>,
}

/// The master keys, of which one after the other is used.
pub struct Keys {
    pub all: Vec<String>,
    current: usize,
}

impl Keys {
    /// `first` is in use.
    pub fn new(first: &str, random: &mut Random) -> Keys {
        let key = |random: &mut Random| {
            let bytes: Vec<u8> = (0..4).flat_map(|_| random.next().to_be_bytes()).collect();
            STANDARD.encode(bytes)
        };

        let all = [first.to_owned()]
            .into_iter()
            .chain((0..63).map(|_| key(random)))
            .collect();
        Keys { all, current: 0 }
    }
}

/// What schema changes have left behind.
#[derive(Default)]
pub struct Schema {
    changes: usize,
    added: Vec<(&'static str, String)>,
    is_renamed: bool,
}

impl Schema {
    /// Returns the statements of a change. `kind` is one of four.
    fn change(&mut self, kind: usize) -> String {
        self.changes += 1;
        let table = if self.changes.is_multiple_of(2) {
            "payment"
        } else {
            "release"
        };

        let column = format!("note_{}", self.changes);

        match kind {
            0 => {
                self.added.push((table, column.clone()));
                format!("alter table {table} add column {column} text default 'x'")
            }
            1 => {
                let (from, to) = if self.is_renamed {
                    ("changed_at", "updated_at")
                } else {
                    ("updated_at", "changed_at")
                };

                self.is_renamed = !self.is_renamed;
                format!("alter table release rename column {from} to {to}")
            }
            2 if self.changes.is_multiple_of(3) => format!("vacuum full {table}"),
            2 => {
                self.added.push((table, column.clone()));
                // A volatile default rewrites the table.
                format!(
                    "alter table {table} add column {column} timestamptz default clock_timestamp()"
                )
            }
            _ => match self.added.is_empty() {
                true => {
                    format!(
                        "alter table {table} add column {column} int; alter table {table} drop column {column}"
                    )
                }
                false => {
                    let (table, column) = self.added.remove(0);
                    format!("alter table {table} drop column {column}")
                }
            },
        }
    }
}

impl Director {
    /// Performs a round, and then lets only the load run.
    pub async fn round(&mut self, plan: &Plan, random: &mut Random) {
        for (wait, action) in plan.round(random) {
            tokio::time::sleep(wait).await;
            let started = std::time::Instant::now();
            let performed = tokio::time::timeout(LONGEST_ACTION, self.perform(action)).await;

            performed.unwrap_or_else(|_| panic!("{action:?} takes longer than {LONGEST_ACTION:?}"));
            self.replicas.revive(&self.app);
            println!(
                "{} {action:?} took {:.1?}",
                self.clock.now(),
                started.elapsed()
            );

            let name = format!("{action:?}");
            let name = name.split('(').next().expect("a name").to_owned();
            *self.done.entry(name).or_default() += 1;
        }

        self.replicas.until_ready(&self.app).await;
        tokio::time::sleep(plan.calm).await;
    }

    async fn perform(&mut self, action: Action) {
        let app = &self.app;

        match action {
            Action::Kill(index) => self.replicas.kill(index, app).await,
            Action::Restart(index) => self.replicas.restart(index, app).await,
            Action::Pause(index, length) => self.replicas.pause(index, length).await,
            Action::RestartStore(mode) => self.servers.restart_store(mode).await,
            Action::RestartPrimary(mode) => self.servers.restart_primary(mode).await,
            Action::RestartStandby => self.servers.restart_standby().await,
            Action::FailOver => self.servers.fail_over(&app.name).await,
            Action::ChangeSchema(kind) => {
                let change = self.schema.change(kind);
                let done = async || app.source().await.batch_execute(&change).await.ok();
                eventually(&change, done).await;
            }
            Action::ChangeDay => {
                // On a busy machine the backlog of an ordered webhook can be long. Deliveries of
                // expired days would be cancelled. The time is fixed: a receiver that hangs gets
                // more deliveries than it can take, some of which become a day old meanwhile.
                let day_ago = self.clock.now() - jiff::SignedDuration::from_hours(24);
                let old = format!(
                    "select count(*) from walhook.pending join walhook.event on event.id = event_id
                     where occurred_at < timestamptz '{day_ago}'"
                );

                self.until_none("deliveries of the day before", &old).await;
                account::copy(&app.store().await).await;
                self.clock.change_day().await;
                self.until_committed().await;
            }
            Action::Recover => self.tenants.recover(self.clock.now(), self.began).await,
            Action::Break => self.tenants.break_receiver(),
            Action::Replay => self.tenants.replay(self.clock.now(), self.began).await,
            Action::CancelReplay => {
                self.tenants
                    .cancel_replay(self.clock.now(), self.began)
                    .await
            }
            Action::RotateSecret(index) => {
                let steady = &self.tenants.steady;
                steady.rotate_secret(&steady.webhooks[index]).await;
            }
            Action::RotateMasterKey => self.rotate_master_key().await,
            Action::Erase => self.erase_guest().await,
            Action::Edit => self.tenants.edit().await,
        }
    }

    /// Waits until the platform commits another transition.
    async fn until_committed(&self) {
        let primary = self.app.source().await;
        let count = "select count(*) from transition";
        let before: i64 = primary.query_one(count, &[]).await.expect("a count").get(0);

        eventually("another transition", async || {
            let now: i64 = primary.query_one(count, &[]).await.expect("a count").get(0);
            (now > before).then_some(())
        })
        .await;
    }

    async fn rotate_master_key(&mut self) {
        let [old, new] =
            [self.keys.current, self.keys.current + 1].map(|n| self.keys.all[n].clone());
        self.app.set("secrets.master_key", &format!("{new},{old}"));

        for index in 0..2 {
            self.replicas.restart(index, &self.app).await;
        }

        self.replicas.until_ready(&self.app).await;
        let printed = self.app.walhook_ok(&["secrets", "reencrypt"]).await;

        assert!(!printed.starts_with("0 re-encrypted"), "{printed}");

        // Processes that start from now on do not have the old key.
        self.app.set("secrets.master_key", &new);
        self.keys.current += 1;
    }

    /// Erases the guest, while deliveries of theirs are pending, and creates another.
    async fn erase_guest(&mut self) {
        let old = self.tenants.guest.owner;
        let new = Owner::create(&self.app.source().await).await;

        self.load
            .as_ref()
            .expect("the load runs")
            .replace(old, new)
            .await;
        self.until_stored(old.user).await;

        let user = old.user.to_string();
        self.app
            .walhook_ok(&["user", "erase", &user, "--yes"])
            .await;

        let webhooks: Vec<Uuid> = self
            .tenants
            .guest
            .webhooks
            .iter()
            .map(|webhook| webhook.id)
            .collect();

        account::forget(&self.app.store().await, old.user, &webhooks).await;
        self.tenants.erased.push((old.user, webhooks));
        self.tenants.guest =
            Tenants::guest(&self.app, new, &self.replicas.urls, &self.collector).await;
    }

    /// Waits until all transitions of a user, who makes no more, are stored as events.
    pub async fn until_stored(&self, user: i64) {
        let primary = self.app.source().await;
        let store = self.app.store().await;

        // Waits for commits that wait for the standby, although their client has gone: they are not
        // visible yet.
        primary
            .batch_execute("begin; lock table transition in share mode; commit")
            .await
            .expect("a lock");
        let count = "select count(*) from transition where user_id = $1";
        let wanted: i64 = primary
            .query_one(count, &[&user])
            .await
            .expect("a count")
            .get(0);

        // The copies have the events of expired days.
        let stored = "select count(*) from (select id from walhook.event where user_id = $1
                      union select id from account.event where user_id = $1) as stored";
        eventually(&format!("{wanted} events of user {user}"), async || {
            let stored: i64 = store
                .query_one(stored, &[&user.to_string()])
                .await
                .expect("a count")
                .get(0);
            (stored >= wanted).then_some(())
        })
        .await;
    }

    /// Waits until a count in the store is zero, as long as it falls.
    pub async fn until_none(&self, what: &str, query: &str) {
        let store = self.app.store().await;
        let mut before = i64::MAX;
        while before > 0 {
            let fewer = async || {
                let left: i64 = store.query_one(query, &[]).await.expect("a count").get(0);
                (left == 0 || left < before).then_some(left)
            };
            before = eventually(&format!("fewer than {before} {what}"), fewer).await;
        }
    }

    /// Restarts a replica, which maintains the partitions, and waits until expired days are gone.
    pub async fn until_maintained(&mut self) {
        self.replicas.restart(0, &self.app).await;
        self.replicas.until_ready(&self.app).await;

        let oldest =
            self.clock.now() - jiff::SignedDuration::from_hours(24 * i64::from(RETENTION_DAYS));
        let oldest = oldest
            .to_zoned(jiff::tz::TimeZone::UTC)
            .strftime("event_%Y%m%d")
            .to_string();
        let expired = format!(
            "select count(*) from pg_class where relnamespace = 'walhook'::regnamespace and relname ~ '^event_2[0-9]{{7}}$'
                 and relname < '{oldest}'"
        );

        self.until_none("expired days", &expired).await;
    }
}
