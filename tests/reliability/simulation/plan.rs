//! What a seed does: how many replicas and webhooks there are, and what happens to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;
use walhook::config::Config;
use walhook::deliver::Settings;
use walhook::domain::backoff::RetrySchedule;
use walhook::domain::disablement::{CountedFailures, Policy};
use walhook::domain::event::{EventKind, UserId};
use walhook::domain::ordering::Ordering;
use walhook::domain::webhook::SealedTarget;
use walhook::vault::{Sealed, Vault};

use super::capture::Change;
use super::random::Random;
use super::receivers::{Mode, Receiver};
use super::replica::Replica;
use super::world::{Event, Queue, World};
use crate::support::memory::MemoryStore;

/// For how long there are faults and new events.
pub const ACTIVE: Duration = Duration::from_secs(25);
/// How long requests may take. Leases last ten seconds longer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The waits of the retry schedule, in milliseconds: ten attempts, as by default, but sooner.
pub const WAITS: [u64; 9] = [200, 300, 400, 600, 800, 1_000, 1_500, 2_000, 3_000];
pub const JITTER: Duration = Duration::from_millis(400);
const MAX_WEBHOOKS: u64 = 7;
/// The events of the catalogue that the platform raises here.
const KINDS: [EventKind; 3] = [
    EventKind::ReleaseDistributed,
    EventKind::DeliveryCompleted,
    EventKind::PaymentStatementReady,
];

/// What happens to processes, the store and receivers.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Crash(usize, Duration),
    /// The process is stopped and continues. Its monotonic clock goes on.
    Pause(usize, Duration),
    /// The machine is suspended: its monotonic clock stops.
    Suspend(usize, Duration),
    /// The wall clock is set.
    StepClock(usize, SignedDuration),
    /// The store's wall clock is set: leases end early or late, and so do the waits before retries.
    StepStoreClock(SignedDuration),
    Drain(usize),
    StoreDown(Duration),
    Receiver(usize, Mode),
    /// Nothing goes wrong from here on.
    End,
}

/// What owners do.
#[derive(Clone, Copy, Debug)]
pub enum UserAction {
    SetActive(usize, bool),
    SetOrdering(usize, Ordering),
    SetUrl(usize),
    Delete(usize),
    Redeliver(usize),
    Recover(usize),
    Replay(usize),
}

/// The probabilities of faults of single requests.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whether nothing goes wrong except with receivers, and with commits that take long.
    pub is_calm: bool,
    pub replicas: usize,
    pub slow_store: f64,
    /// Transactions that store events and take long.
    pub slow_commits: f64,
    pub lost_requests: f64,
    pub lost_answers: f64,
    pub own_faults: f64,
    /// Deliveries whose body is too large.
    pub too_large: f64,
    pub claims: ClaimSize,
    /// How many bytes of data a process can hold, if other webhooks take the rest of its budget.
    pub free_bytes: Option<usize>,
}

/// The most that a claim visits and takes. With few webhooks, cycles of several claims need a lower
/// limit than the product's.
#[derive(Clone, Copy, Debug)]
pub struct ClaimSize {
    pub webhooks: usize,
    pub rows: usize,
}

/// What is the same for all seeds, and takes time to make.
pub struct Fixed {
    settings: Settings,
    vault: Arc<Vault>,
    secrets: Vec<Sealed>,
}

impl Fixed {
    pub fn new() -> Fixed {
        let key = base64::engine::general_purpose::STANDARD.encode([9; 32]);
        let vault = Arc::new(Vault::new(&[key.into()]).expect("a key of 32 bytes"));
        let mut config = Config::default();

        config.delivery.allow_http = true;
        let settings = Settings::from_config(&config).expect("the defaults are valid");
        let secrets = (1..=MAX_WEBHOOKS)
            .map(|id| vault.seal(Uuid::from_u128(id.into()), b"whsec_c2VjcmV0"))
            .collect();

        Fixed {
            settings: Settings {
                timeout: TIMEOUT,
                ..settings
            },
            vault,
            secrets,
        }
    }
}

fn mode(random: &mut Random) -> Mode {
    match random.between(0, 11) {
        0..=4 => Mode::Fast,
        5 => Mode::Slow,
        6 => Mode::Hanging,
        7 => Mode::Failing(500),
        8 => Mode::Failing(*random.pick(&[429, 503])),
        9 => Mode::Failing(*random.pick(&[410, 404, 301])),
        _ => Mode::Flaky,
    }
}

fn policy(random: &mut Random) -> Policy {
    let min_duration = Duration::from_secs(*random.pick(&[0, 0, 3]));
    let counted = match random.between(0, 2) {
        0 => CountedFailures::Cumulative,
        _ => CountedFailures::Consecutive { min_duration },
    };

    Policy {
        counted,
        threshold: random.between(5, 60) as u32,
        on_gone: random.chance(0.5),
    }
}

impl World {
    pub fn new(seed: u64, fixed: &Fixed, with_trace: bool) -> World {
        let mut random = Random::new(seed);
        let is_calm = random.chance(0.2);
        let is_seldom = |random: &mut Random| !is_calm && random.chance(0.3);
        let claims_little = is_seldom(&mut random);
        let has_little_memory = is_seldom(&mut random);

        let level = |random: &mut Random, most: f64| {
            if is_calm {
                0.0
            } else {
                random.share().powi(2) * most
            }
        };

        let plan = Plan {
            is_calm,
            replicas: random.between(2, 5) as usize,
            slow_store: level(&mut random, 0.1),
            slow_commits: *random.pick(&[0.0, 0.1, 0.4]),
            lost_requests: level(&mut random, 0.15),
            lost_answers: level(&mut random, 0.15),
            own_faults: level(&mut random, 0.05),
            too_large: level(&mut random, 0.02),
            claims: match claims_little {
                true => ClaimSize {
                    webhooks: random.between(1, 3) as usize,
                    rows: random.between(2, 20) as usize,
                },
                false => ClaimSize {
                    webhooks: usize::MAX,
                    rows: usize::MAX,
                },
            },
            free_bytes: has_little_memory.then(|| random.between(64, 512) as usize),
        };

        let began_at: Timestamp = "2026-03-01T12:00:00Z".parse().expect("a time");
        let settings = Settings {
            concurrency: random.between(4, 24) as usize,
            per_webhook_concurrency: random.between(1, 4) as usize,
            retries_per_second: *random.pick(&[20, 100, 1_000]),
            adaptive_concurrency: random.chance(0.5),
            ..fixed.settings.clone()
        };

        let policy = policy(&mut random);
        let mut world = World {
            settings,
            vault: Arc::clone(&fixed.vault),
            plan,
            origin: Instant::now(),
            began_at,
            now: Duration::ZERO,
            store_steps: Vec::new(),
            store: MemoryStore::new(began_at),
            replicas: (0..plan.replicas).map(|_| Replica::default()).collect(),
            receivers: BTreeMap::new(),
            webhooks: Vec::new(),
            owners: BTreeMap::new(),
            stream: Vec::new(),
            open: None,
            requests: Vec::new(),
            schedule: RetrySchedule::new(WAITS.map(Duration::from_millis).to_vec(), JITTER),
            policy,
            store_down_until: Duration::ZERO,
            edited: BTreeMap::new(),
            last_id: 1_000,
            trace: with_trace.then(Vec::new),
            random,
            queue: Queue::default(),
            events: 0,
            digest: 0,
            coverage: BTreeMap::new(),
        };

        world.create_webhooks(fixed);
        world.plan_events();
        world.plan_actions();

        if !is_calm {
            world.plan_faults();
        }

        world.at(ACTIVE, Event::Fault(Fault::End));
        (0..plan.replicas).for_each(|replica| world.after(Duration::ZERO, Event::Start(replica)));

        world
    }

    fn create_webhooks(&mut self, fixed: &Fixed) {
        for number in 1..=self.random.between(3, MAX_WEBHOOKS) {
            let webhook = Uuid::from_u128(number.into());
            let sealed = fixed.secrets[number as usize - 1].clone();
            let user = UserId((if number % 3 == 0 { "v" } else { "u" }).into());

            let target = SealedTarget {
                webhook,
                owner: user.clone(),
                url: format!("https://receiver-{number}.example.com/"),
                active: true,
                secret: sealed.bytes,
                secret_key_id: sealed.key_id,
                headers: None,
                keys: Default::default(),
                activation: 0,
            };

            // The first is always fast, the second never at first.
            let mode = match number {
                1 => Mode::Fast,
                2 => {
                    *self
                        .random
                        .pick(&[Mode::Slow, Mode::Hanging, Mode::Failing(500), Mode::Flaky])
                }
                _ => mode(&mut self.random),
            };

            let ordering = if number == 1 {
                Ordering::None
            } else {
                *self.random.pick(Ordering::ALL)
            };

            let transaction = self.store.begin();
            transaction.create_webhook(target, user.clone(), &KINDS, ordering);
            transaction.commit();
            self.webhooks.push(webhook);
            self.owners.insert(webhook, user);

            self.receivers.insert(
                webhook,
                Receiver {
                    mode,
                    was_always_fast: mode == Mode::Fast,
                },
            );
        }
    }

    fn plan_events(&mut self) {
        let mut at = Duration::from_millis(300);
        let pace = *self.random.pick(&[150, 400, 1_200]);

        while at < ACTIVE {
            // A transaction of the platform raises one event or several.
            for _ in 0..*self.random.pick(&[1, 1, 1, 2, 6]) {
                let change = Change {
                    user: UserId((if self.random.chance(0.3) { "v" } else { "u" }).into()),
                    kind: *self.random.pick(&KINDS),
                    release: self
                        .random
                        .chance(0.8)
                        .then(|| self.random.between(1, 3) as i64),
                };
                self.at(at, Event::Commit(change));
            }

            at += self.random.millis(0, 2 * pace);
        }
    }

    fn any_webhook(&mut self) -> usize {
        self.random.between(0, self.webhooks.len() as u64 - 1) as usize
    }

    fn plan_actions(&mut self) {
        let most = if self.plan.is_calm { 4 } else { 25 };
        for _ in 0..self.random.between(0, most) {
            let at = self.random.millis(500, ACTIVE.as_millis() as u64);

            // In a calm plan, the first is the one whose delays are measured.
            let webhook = self.any_webhook().max(usize::from(self.plan.is_calm));
            let action = match self.random.between(0, 19) {
                0..=3 => UserAction::SetActive(webhook, false),
                4..=7 => UserAction::SetActive(webhook, true),
                8..=9 => UserAction::SetOrdering(webhook, *self.random.pick(Ordering::ALL)),
                10 => UserAction::SetUrl(webhook),
                11 if self.random.chance(0.3) => UserAction::Delete(webhook),
                12..=15 => UserAction::Redeliver(webhook),
                16..=17 => UserAction::Recover(webhook),
                _ => UserAction::Replay(webhook),
            };

            self.at(at, Event::User(action));
        }

        if self.random.chance(0.4) {
            self.plan_catching_up();
        }

        // Owners notice that their webhooks were disabled.
        for webhook in 0..self.webhooks.len() {
            let at = self.random.millis(5_000, ACTIVE.as_millis() as u64);
            self.at(at, Event::User(UserAction::SetActive(webhook, true)));
        }

        for _ in 0..self.random.between(0, 12) {
            let at = self.random.millis(0, ACTIVE.as_millis() as u64);
            let webhook = self.any_webhook().max(1);
            let mode = mode(&mut self.random);
            self.at(at, Event::Fault(Fault::Receiver(webhook, mode)));
        }
    }

    /// An owner switches a webhook off for long, then lets two jobs deliver what it has missed.
    fn plan_catching_up(&mut self) {
        let webhook = self.any_webhook().max(usize::from(self.plan.is_calm));
        let off = self.random.millis(500, 8_000);
        let on = off + self.random.millis(8_000, 14_000);
        let recovery = on + self.random.millis(0, 1_000);

        for (at, action) in [
            (off, UserAction::SetActive(webhook, false)),
            (on, UserAction::SetActive(webhook, true)),
            (on, UserAction::Replay(webhook)),
            (recovery, UserAction::Recover(webhook)),
        ] {
            self.at(at, Event::User(action));
        }
    }

    fn plan_faults(&mut self) {
        for _ in 0..self.random.between(0, 14) {
            let at = self.random.millis(500, ACTIVE.as_millis() as u64);
            let replica = self.random.between(0, self.plan.replicas as u64 - 1) as usize;

            let fault = match self.random.between(0, 11) {
                0..=3 => Fault::Crash(replica, self.random.millis(50, 6_000)),
                4..=5 => Fault::Pause(replica, self.random.millis(50, 20_000)),
                6 => Fault::Suspend(replica, self.random.millis(50, 20_000)),
                7 => Fault::StepClock(
                    replica,
                    SignedDuration::from_secs(self.random.between(0, 7_200) as i64 - 3_600),
                ),
                8..=9 => Fault::Drain(replica),
                _ => Fault::StoreDown(self.random.millis(50, 4_000)),
            };

            self.at(at, Event::Fault(fault));
        }

        for _ in 0..self.random.between(0, 3) {
            let at = self.random.millis(500, ACTIVE.as_millis() as u64);

            // Forward by more than a lease or less; backward by little, because everything that is
            // due waits for so long.
            let seconds = if self.random.chance(0.7) { 30 } else { -5 };
            let step = SignedDuration::from_millis(
                (self.random.share() * f64::from(seconds) * 1_000.0) as i64,
            );
            self.at(at, Event::Fault(Fault::StepStoreClock(step)));
        }
    }
}
