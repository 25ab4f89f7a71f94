//! The loop that owns the lanes: takes work in, gives slots out, and starts one task an attempt.

use std::future::pending;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Context;
use super::claims::{Holding, Pace};
use super::gate::RetryGate;
use super::lanes::{Class, Lanes, Limits};
use super::targets::{Destination, Lookup, Targets};
use crate::domain::delivery::{Attempted, Delivery};
use crate::domain::webhook::SealedTarget;
use crate::handoff::{Handed, Room};
use crate::store::StoreError;
use crate::store::deliver::{ClaimRequest, Claimed, Due};
use crate::telemetry::{self, Activity, recurring};

/// What is left of a lease behind the timeout must do for recording the answer.
const TIME_TO_RECORD: Duration = Duration::from_secs(2);
/// Between two tries to read targets while the store does not answer.
const LOAD_RETRY: Duration = Duration::from_millis(250);
/// A slot rests so long when what is at fault is ours.
const REST_AFTER_OWN_FAULT: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the store.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(3);

/// A delivery whose turn it is.
struct Turn {
    delivery: Delivery,
    slot: Slot,
}

/// A delivery's place in this process and its slot among the requests; both are free again when it is dropped, whatever
/// became of the task that held it.
struct Slot {
    webhook: Uuid,
    class: Class,
    bytes: usize,
    room: Room,
    finished: mpsc::UnboundedSender<(Uuid, Class)>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.room.release(self.webhook, self.bytes);
        // The dispatcher may have ended, and counts no more.
        let _ = self.finished.send((self.webhook, self.class));
    }
}

struct Load {
    webhooks: Vec<Uuid>,
    asked_at: Instant,
    found: Result<Vec<SealedTarget>, StoreError>,
}

struct Claim {
    request: ClaimRequest,
    result: Result<Claimed, StoreError>,
}

pub(super) struct Dispatcher {
    context: Context,
    fresh: mpsc::UnboundedReceiver<Handed>,
    room: Room,
    attempted: mpsc::Sender<Attempted>,
    lanes: Lanes,
    retry_gate: RetryGate,
    targets: Targets,
    /// Waiting for a question for their targets to be put.
    parked: Vec<Turn>,
    /// Waiting for the answer to the question under way.
    loading: Vec<Turn>,
    load: Option<BoxFuture<'static, Load>>,
    load_again_at: Option<Instant>,
    fresh_pace: Pace,
    retry_pace: Pace,
    claim: Option<BoxFuture<'static, Claim>>,
    loading_webhooks: Activity,
    claiming: Activity,
    tasks: JoinSet<()>,
    finished: mpsc::UnboundedSender<(Uuid, Class)>,
    finishes: mpsc::UnboundedReceiver<(Uuid, Class)>,
}

impl Dispatcher {
    pub fn new(
        context: Context,
        fresh: mpsc::UnboundedReceiver<Handed>,
        room: Room,
        attempted: mpsc::Sender<Attempted>,
    ) -> Dispatcher {
        let (finished, finishes) = mpsc::unbounded_channel();
        let now = Instant::now();
        let settings = &context.settings;
        let limits = Limits { total: settings.concurrency, per_webhook: settings.per_webhook_concurrency };
        Dispatcher {
            lanes: Lanes::new(limits),
            retry_gate: RetryGate::new(settings.retries_per_second, now),
            targets: Targets::new(context.vault.clone(), settings.guard.clone()),
            parked: Vec::new(),
            loading: Vec::new(),
            load: None,
            load_again_at: None,
            fresh_pace: Pace::new(Due::Fresh, now),
            retry_pace: Pace::new(Due::Retries, now),
            claim: None,
            loading_webhooks: Activity::new("loading webhooks"),
            claiming: Activity::new("claiming deliveries"),
            tasks: JoinSet::new(),
            finished,
            finishes,
            context,
            fresh,
            room,
            attempted,
        }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let in_flight = metrics::gauge!(telemetry::IN_FLIGHT);
        let mut fresh_is_open = true;
        loop {
            self.give_turns();
            self.begin_load();
            self.begin_claim();
            self.reap();
            in_flight.set(self.lanes.in_flight() as f64);
            let wake_at = self.wake_at();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(finish) = self.finishes.recv() => self.finish(finish),
                load = ready(&mut self.load) => self.end_load(load),
                claim = ready(&mut self.claim) => self.end_claim(claim),
                fresh = self.fresh.recv(), if fresh_is_open => match fresh {
                    Some(handed) => self.take(handed),
                    None => fresh_is_open = false,
                },
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
        self.drain().await;
        in_flight.set(0.0);
    }

    /// Takes in what is being stored. Its targets were read in the same transaction: mostly so lately that nobody need ask again.
    fn take(&mut self, handed: Handed) {
        self.targets.told(handed.read_at, handed.targets);
        handed.deliveries.into_iter().for_each(|delivery| self.lanes.push(delivery));
        self.retry_gate.fresh(Instant::now());
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let claim_at = self.fresh_pace.next_at().min(self.retry_pace.next_at());
        // A claim under way wakes us by itself.
        let claim_at = if self.claim.is_some() { now + GIVE_BACK_TIMEOUT } else { claim_at };
        let wake_at = self.load_again_at.map_or(claim_at, |load_at| load_at.min(claim_at));
        // While slots are wanting, one that is given back wakes us.
        let opens_at = self.retry_gate.opens_at(now);
        if self.lanes.queued_retries() > 0 && opens_at > now { wake_at.min(opens_at) } else { wake_at }
    }

    fn finish(&mut self, first: (Uuid, Class)) {
        let mut count = 0;
        let mut next = Some(first);
        while let Some((webhook, class)) = next {
            self.lanes.finish(webhook, class);
            count += 1;
            next = self.finishes.try_recv().ok();
        }
        self.fresh_pace.left(count);
        self.retry_pace.left(count);
    }

    fn reap(&mut self) {
        while let Some(end) = self.tasks.try_join_next() {
            if let Err(error) = end {
                recurring!(error, %error, "an attempt's task failed; its lease runs out and it is made again");
            }
        }
    }

    /// Starts what has a turn and a target; the others wait for theirs to be read.
    fn give_turns(&mut self) {
        let now = Instant::now();
        while let Some(delivery) = self.lanes.pop(self.retry_gate.opens_at(now) <= now) {
            let class = Class::of(&delivery);
            if class == Class::Retry {
                self.retry_gate.passed(now);
            }
            let (room, finished) = (self.room.clone(), self.finished.clone());
            let slot = Slot { webhook: delivery.webhook, class, bytes: delivery.bytes(), room, finished };
            let turn = Turn { delivery, slot };
            match self.targets.recent(turn.delivery.webhook) {
                _ if self.has_lapsed(&turn.delivery) => drop(turn),
                Some(lookup) => self.start(turn, lookup),
                None => self.parked.push(turn),
            }
        }
    }

    /// Whether the lease might end before the attempt is recorded: then the delivery comes due by itself, for whoever claims it.
    fn has_lapsed(&self, delivery: &Delivery) -> bool {
        delivery.lease.until < Instant::now() + self.context.settings.timeout + TIME_TO_RECORD
    }

    fn start(&mut self, turn: Turn, lookup: Lookup) {
        let destination = match lookup {
            Lookup::Found(destination) if !self.has_lapsed(&turn.delivery) => destination,
            Lookup::Found(_) | Lookup::Gone | Lookup::Unreadable => return,
        };
        let sender = self.context.sender.clone();
        let attempted = self.attempted.clone();
        self.tasks.spawn(async move {
            let Turn { delivery, slot } = turn;
            let Destination { endpoint, active, signer } = &*destination;
            let attempt = match active {
                true => sender.signed(endpoint, signer, &(&delivery).into()).await,
                false => Ok(sender.cancelled()),
            };
            let Ok(attempt) = attempt else {
                // No attempt was made and none is used up: the lease runs out. The slot stays taken for a while, so that
                // not everything that is due is tried as fast as it fails.
                return tokio::time::sleep(REST_AFTER_OWN_FAULT).await;
            };
            if attempted.send(Attempted { delivery, attempt }).await.is_err() {
                recurring!(error, "attempts cannot be recorded: nobody records any more");
            }
            drop(slot);
        });
    }

    /// Asks for the targets of all that wait for one; one question at a time.
    fn begin_load(&mut self) {
        let too_soon = self.load_again_at.is_some_and(|again| Instant::now() < again);
        if self.load.is_some() || self.parked.is_empty() || too_soon {
            return;
        }
        self.load_again_at = None;
        // Another's answer may have come while these waited.
        for turn in std::mem::take(&mut self.parked) {
            match self.targets.recent(turn.delivery.webhook) {
                Some(lookup) => self.start(turn, lookup),
                None => self.loading.push(turn),
            }
        }
        let mut webhooks: Vec<Uuid> = self.loading.iter().map(|turn| turn.delivery.webhook).collect();
        webhooks.sort_unstable();
        webhooks.dedup();
        if webhooks.is_empty() {
            return;
        }
        let store = self.context.store.clone();
        self.load = Some(Box::pin(async move {
            let asked_at = Instant::now();
            let found = store.targets(&webhooks).await;
            Load { webhooks, asked_at, found }
        }));
    }

    fn end_load(&mut self, load: Load) {
        self.load = None;
        let waiting = std::mem::take(&mut self.loading);
        let found = match load.found {
            Ok(found) => found,
            Err(error) => {
                self.loading_webhooks.failed(&error);
                self.load_again_at = Some(Instant::now() + LOAD_RETRY);
                self.parked.extend(waiting);
                return;
            }
        };
        self.loading_webhooks.succeeded();
        self.targets.learn(load.asked_at, &load.webhooks, found);
        let gone = load.webhooks.iter().filter(|webhook| matches!(self.targets.learned(**webhook), Lookup::Gone));
        self.remove_orphans(gone.copied().collect(), Vec::new());
        for turn in waiting {
            let lookup = self.targets.learned(turn.delivery.webhook);
            self.start(turn, lookup);
        }
    }

    fn begin_claim(&mut self) {
        let now = Instant::now();
        let queued = self.lanes.queued();
        if self.claim.is_some() {
            return;
        }
        for due in [Due::Fresh, Due::Retries] {
            if !self.pace(due).is_due(now, queued) {
                continue;
            }
            let holding = Holding { by_webhook: self.lanes.held(), queued_retries: self.lanes.queued_retries() };
            let (timeout, per_webhook) = (self.context.settings.timeout, self.context.settings.per_webhook_concurrency);
            let room = self.room.clone();
            if let Some(request) = self.pace(due).begin(now, timeout, per_webhook, &holding, &room) {
                let store = self.context.store.clone();
                self.claim = Some(Box::pin(async move {
                    let result = store.claim(&request).await;
                    Claim { request, result }
                }));
                return;
            }
        }
    }

    fn pace(&mut self, due: Due) -> &mut Pace {
        match due {
            Due::Fresh => &mut self.fresh_pace,
            Due::Retries => &mut self.retry_pace,
        }
    }

    fn end_claim(&mut self, claim: Claim) {
        self.claim = None;
        let now = Instant::now();
        let queued = self.lanes.queued();
        let claimed = match claim.result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.claiming.failed(&error);
                return self.pace(claim.request.due).failed(now);
            }
        };
        self.claiming.succeeded();
        self.pace(claim.request.due).found(now, &claim.request, &claimed, queued);
        let (kept, refused): (Vec<Delivery>, Vec<Delivery>) =
            claimed.deliveries.into_iter().partition(|delivery| self.room.reserve(delivery.webhook, delivery.bytes()));
        if claim.request.due == Due::Fresh && !kept.is_empty() {
            self.retry_gate.fresh(now);
        }
        kept.into_iter().for_each(|delivery| self.lanes.push(delivery));
        self.remove_orphans(Vec::new(), claimed.orphans);
        if !refused.is_empty() {
            let store = self.context.store.clone();
            self.tasks.spawn(async move {
                if let Err(error) = store.release(&refused).await {
                    tracing::debug!(%error, "leases were not given back; they run out");
                }
            });
        }
    }

    /// Nothing can come of deliveries whose webhook or event is gone.
    fn remove_orphans(&mut self, webhooks: Vec<Uuid>, deliveries: Vec<Uuid>) {
        if webhooks.is_empty() && deliveries.is_empty() {
            return;
        }
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            match store.remove_orphans(&webhooks, &deliveries).await {
                Ok(removed) => tracing::info!(removed, "removed deliveries whose webhook or event is gone"),
                Err(error) => tracing::debug!(%error, "deliveries of deleted webhooks stay until the next look"),
            }
        });
    }

    /// No new attempts. What waits is given back at once, so that another replica need not wait for leases to end.
    async fn drain(mut self) {
        let deadline = tokio::time::Instant::now() + self.context.settings.drain;
        let mut waiting = self.lanes.drain();
        self.fresh.close();
        while let Ok(handed) = self.fresh.try_recv() {
            waiting.extend(handed.deliveries);
        }
        for delivery in &waiting {
            self.room.release(delivery.webhook, delivery.bytes());
        }
        waiting.extend(self.parked.drain(..).chain(self.loading.drain(..)).map(|turn| turn.delivery));
        if self.claim.is_some()
            && let Ok(claim) = tokio::time::timeout(GIVE_BACK_TIMEOUT, ready(&mut self.claim)).await
            && let Ok(claimed) = claim.result
        {
            waiting.extend(claimed.deliveries);
        }
        if !waiting.is_empty() {
            match tokio::time::timeout(GIVE_BACK_TIMEOUT, self.context.store.release(&waiting)).await {
                Ok(Ok(())) => tracing::info!(deliveries = waiting.len(), "gave back deliveries that were not begun"),
                Ok(Err(_)) | Err(_) => tracing::warn!("leases were not given back; they run out by themselves"),
            }
        }
        let end = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, end).await.is_err() {
            tracing::warn!(requests = self.tasks.len(), "requests under way are dropped; they are made again");
            self.tasks.shutdown().await;
        }
    }
}

/// The end of a future that may not be there.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
