//! The dispatcher: takes deliveries from the hand-off and from claims, and starts one task per
//! attempt. Does the I/O that the schedule decides on.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::dispatch::{Dispatch, Leftover, Start};
use super::schedule::Finished;
use super::sender::Sender;
use super::settings::Settings;
use super::targets::Destination;
use crate::domain::delivery::{Attempted, Delivery};
use crate::domain::webhook::SealedTarget;
use crate::failpoint::failpoint;
use crate::handoff::{DeliveryBudget, FreshDeliveries};
use crate::store::delivery::{ClaimRequest, Claimed};
use crate::store::{Store, StoreError};
use crate::telemetry::{self, Activity, recurring};
use crate::vault::Vault;

/// How long a permit is held after a fault on Walhook's side, so that deliveries are not tried as
/// fast as they fail.
const PAUSE_AFTER_OWN_FAULT: Duration = Duration::from_secs(1);
/// How long shutdown waits for the store to release leases.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The dispatcher's dependencies.
pub struct Context {
    pub store: Store,
    pub vault: Arc<Vault>,
    pub sender: Sender,
    pub settings: Settings,
}

/// The right to have one request in flight. Returned when dropped, even if the task that held it
/// panicked.
struct Permit {
    finished: Finished,
    returns: mpsc::UnboundedSender<Finished>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // After shutdown the dispatcher no longer counts.
        let _ = self.returns.send(self.finished);
    }
}

/// A finished query for webhooks: their ids, when the query was sent, and its result.
type TargetsRead = (Vec<Uuid>, Instant, Result<Vec<SealedTarget>, StoreError>);
/// A finished claim, with its result.
type Claim = (ClaimRequest, Result<Claimed, StoreError>);

pub struct Dispatcher {
    context: Context,
    fresh: mpsc::UnboundedReceiver<FreshDeliveries>,
    attempted: mpsc::Sender<Attempted>,
    dispatch: Dispatch,
    read: Option<BoxFuture<'static, TargetsRead>>,
    claim: Option<BoxFuture<'static, Claim>>,
    reading_webhooks: Activity,
    claiming: Activity,
    tasks: JoinSet<()>,
    permits: mpsc::UnboundedSender<Finished>,
    returned: mpsc::UnboundedReceiver<Finished>,
}

impl Dispatcher {
    pub fn new(
        context: Context,
        fresh: mpsc::UnboundedReceiver<FreshDeliveries>,
        budget: DeliveryBudget,
        attempted: mpsc::Sender<Attempted>,
    ) -> Dispatcher {
        let (permits, returned) = mpsc::unbounded_channel();
        Dispatcher {
            dispatch: Dispatch::new(
                &context.settings,
                context.vault.clone(),
                budget,
                Instant::now(),
            ),
            read: None,
            claim: None,
            reading_webhooks: Activity::new("reading webhooks"),
            claiming: Activity::new("claiming deliveries"),
            tasks: JoinSet::new(),
            permits,
            returned,
            context,
            fresh,
            attempted,
        }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let in_flight = metrics::gauge!(telemetry::IN_FLIGHT);
        let limited = metrics::gauge!(telemetry::LIMITED_WEBHOOKS);
        let mut fresh_is_open = true;
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));

        loop {
            let now = Instant::now();
            self.start_attempts();
            self.release_expiring();
            self.start_read(now);
            self.start_claim(now);
            self.reap();
            in_flight.set(self.dispatch.in_flight() as f64);
            limited.set(self.dispatch.limited() as f64);

            let wake_at = self.dispatch.wake_at(now);
            // Reset only if it must fire earlier, which most iterations do not require.
            if timer.is_elapsed() || wake_at < timer.deadline().into_std() {
                timer.as_mut().reset(wake_at.into());
            }

            tokio::select! {
                () = stop.cancelled() => break,
                Some(finished) = self.returned.recv() => self.finish(finished),
                read = ready(&mut self.read) => self.end_read(read),
                claim = ready(&mut self.claim) => self.end_claim(claim),
                fresh = self.fresh.recv(), if fresh_is_open => match fresh {
                    Some(fresh) => self.dispatch.take(fresh, Instant::now()),
                    None => fresh_is_open = false,
                },
                () = &mut timer => {}
            }
        }

        self.drain().await;
        in_flight.set(0.0);
    }

    fn finish(&mut self, first: Finished) {
        let now = Instant::now();
        self.dispatch.finish(first, now);

        while let Ok(finished) = self.returned.try_recv() {
            self.dispatch.finish(finished, now);
        }
    }

    fn reap(&mut self) {
        while let Some(end) = self.tasks.try_join_next() {
            if let Err(error) = end {
                recurring!(error, %error, "a task of the dispatcher failed; its delivery is claimed again when the lease ends");
            }
        }
    }

    /// Starts attempts while there are permits.
    fn start_attempts(&mut self) {
        while let Some(start) = self.dispatch.next_start(Instant::now()) {
            let permit = Permit {
                finished: start.finished,
                returns: self.permits.clone(),
            };

            let sender = self.context.sender.clone();
            let attempted = self.attempted.clone();
            self.tasks.spawn(attempt(start, permit, sender, attempted));
        }
    }

    /// Starts to read the webhooks of all waiting deliveries.
    fn start_read(&mut self, now: Instant) {
        let Some(webhooks) = self.dispatch.next_read(now) else {
            return;
        };

        let store = self.context.store.clone();
        self.read = Some(Box::pin(async move {
            let queried_at = Instant::now();
            let found = store.targets(&webhooks).await;
            (webhooks, queried_at, found)
        }));
    }

    fn end_read(&mut self, (webhooks, queried_at, found): TargetsRead) {
        self.read = None;

        match found {
            Ok(found) => {
                self.reading_webhooks.succeeded();
                self.dispatch
                    .read(&webhooks, queried_at, found, Instant::now());
            }
            Err(error) => {
                self.reading_webhooks.failed(&error);
                self.dispatch.read_failed(Instant::now());
            }
        }
    }

    fn start_claim(&mut self, now: Instant) {
        let Some(request) = self.dispatch.next_claim(now) else {
            return;
        };

        let store = self.context.store.clone();
        self.claim = Some(Box::pin(async move {
            let result = store.claim(&request).await;
            (request, result)
        }));
    }

    fn end_claim(&mut self, (request, result): Claim) {
        self.claim = None;
        let now = Instant::now();
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.claiming.failed(&error);
                return self.dispatch.claim_failed(&request, now);
            }
        };

        self.claiming.succeeded();
        let Leftover { refused, orphans } = self.dispatch.claimed(&request, claimed, now);
        self.remove_orphans(orphans);
        self.release(refused);
    }

    /// Releases the leases of deliveries that have waited too long to be started.
    fn release_expiring(&mut self) {
        let expiring = self.dispatch.take_expiring();
        self.release(expiring);
    }

    fn release(&mut self, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }

        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            if let Err(error) = store.release(&deliveries).await {
                tracing::debug!(%error, "leases were not released; their deliveries are due when they end");
            }
        });
    }

    /// Removes those of `deliveries` whose event no longer exists.
    fn remove_orphans(&mut self, deliveries: Vec<Uuid>) {
        if deliveries.is_empty() {
            return;
        }

        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            match store.remove_orphans(&deliveries).await {
                Ok(0) => {}
                Ok(removed) => {
                    tracing::info!(removed, "removed deliveries whose event no longer exists")
                }
                Err(error) => {
                    tracing::debug!(%error, "deliveries without an event were not removed yet")
                }
            }
        });
    }

    /// Starts no more attempts. Releases the leases of waiting deliveries, so that other replicas
    /// can claim them at once, and lets requests in flight finish within the drain time.
    async fn drain(mut self) {
        let deadline = tokio::time::Instant::now() + self.context.settings.drain;
        let mut waiting = self.dispatch.drain();

        self.fresh.close();

        while let Ok(fresh) = self.fresh.try_recv() {
            waiting.extend(fresh.deliveries);
        }

        if self.claim.is_some()
            && let Ok((_, Ok(claimed))) =
                tokio::time::timeout(RELEASE_TIMEOUT, ready(&mut self.claim)).await
        {
            waiting.extend(claimed.deliveries);
        }

        if !waiting.is_empty() {
            let released = async {
                failpoint!("shutdown_started_leases_not_released")?;
                self.context.store.release(&waiting).await
            };

            match tokio::time::timeout(RELEASE_TIMEOUT, released).await {
                Ok(Ok(())) => tracing::info!(
                    deliveries = waiting.len(),
                    "released deliveries that were not attempted"
                ),
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(
                        "leases were not released; their deliveries are due when they end"
                    )
                }
            }
        }

        let end = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, end).await.is_err() {
            tracing::warn!(
                requests = self.tasks.len(),
                "requests in flight were aborted; they are repeated when their leases end"
            );
            self.tasks.shutdown().await;
        }
    }
}

/// Makes one attempt and sends it to the recording stage.
async fn attempt(
    start: Start,
    mut permit: Permit,
    sender: Sender,
    attempted: mpsc::Sender<Attempted>,
) {
    let Start {
        delivery,
        destination,
        ..
    } = start;
    let Destination {
        endpoint,
        active,
        signer,
        ..
    } = &*destination;

    let started = failpoint!("attempt_started_request_not_sent");
    let attempt = match active {
        true if started.is_ok() => sender
            .send(endpoint, signer, &(&delivery).into())
            .await
            .ok(),
        true => None,
        false => Some(sender.cancelled()),
    };

    let Some(attempt) = attempt else {
        // No attempt was made, and none is used up: the delivery is claimed again when its lease
        // ends.
        return tokio::time::sleep(PAUSE_AFTER_OWN_FAULT).await;
    };

    permit.finished.note(&attempt);
    let _ = failpoint!("request_answered_attempt_not_passed_on");

    if attempted
        .send(Attempted { delivery, attempt })
        .await
        .is_err()
    {
        recurring!(
            error,
            "attempts cannot be recorded: the recording stage has ended"
        );
    }
}

/// Waits for a future that may not exist.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}
