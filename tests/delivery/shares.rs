//! Rules of the dispatcher that only appear with many webhooks, a full budget or a suspended
//! process. No store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use uuid::Uuid;
use walhook::config::Config;
use walhook::deliver::Settings;
use walhook::deliver::dispatch::Dispatch;
use walhook::deliver::schedule::{Finished, Limits, Schedule};
use walhook::domain::delivery::{Delivery, DeliveryClass, Feedback, Lease};
use walhook::domain::event::EventKind;
use walhook::domain::webhook::SealedTarget;
use walhook::handoff::{DeliveryBudget, FreshDeliveries};
use walhook::store::delivery::Claimed;
use walhook::vault::Vault;

const LIMITS: Limits = Limits {
    total: 8,
    per_webhook: 4,
    adaptive: true,
};

fn delivery(webhook: u128, id: u128, (round, attempt): (u16, u16)) -> Delivery {
    Delivery {
        id: Uuid::from_u128(id),
        webhook: Uuid::from_u128(webhook),
        event: Uuid::nil(),
        kind: EventKind::DeliveryCompleted,
        occurred_at: Timestamp::UNIX_EPOCH,
        data: "{}".into(),
        round,
        attempt,
        sequence: None,
        order_key: None,
        activation: 0,
        lease: Lease {
            token: Uuid::nil(),
            until: Instant::now() + Duration::from_secs(20),
            place: None,
        },
    }
}

fn schedule(budget: &DeliveryBudget, now: Instant) -> Schedule {
    Schedule::new(LIMITS, 1_000, Duration::from_secs(10), budget.clone(), now)
}

/// Queues the first attempt of a delivery, as the budget admits it.
fn add(schedule: &mut Schedule, budget: &DeliveryBudget, webhook: u128, now: Instant) {
    let delivery = delivery(webhook, webhook, (1, 1));
    assert!(budget.reserve(delivery.webhook, delivery.bytes()));
    schedule.add_fresh(vec![delivery], now);
}

#[test]
fn responsive_webhooks_that_could_use_all_permits_leave_one_to_a_new_webhook() {
    let now = Instant::now();
    let budget = DeliveryBudget::default();
    let mut schedule = schedule(&budget, now);

    for webhook in 1..=8 {
        add(&mut schedule, &budget, webhook, now);
        let started = schedule.next(now).expect("permits are free");
        let finished = Finished {
            took: Some(Duration::ZERO),
            feedback: Feedback::Responsive,
            ..Finished::of(&started)
        };
        schedule.finish(finished, now);
    }

    (1..=8).for_each(|webhook| add(&mut schedule, &budget, webhook, now));
    add(&mut schedule, &budget, 9, now);

    let started: Vec<u128> = std::iter::from_fn(|| schedule.next(now))
        .map(|one| one.webhook.as_u128())
        .collect();
    assert!(started.len() == 8 && started.contains(&9), "{started:?}");
}

#[test]
fn claimed_deliveries_beyond_the_budget_are_returned_for_their_release() {
    let now = Instant::now();
    let budget = DeliveryBudget::default();
    let mut schedule = schedule(&budget, now);
    let request = schedule.next_claim(now).expect("a claim is due");

    // Fresh deliveries were handed off during the claim.
    while budget.reserve(Uuid::from_u128(1), 1) {}
    let deliveries = vec![delivery(1, 7, (1, 1)), delivery(2, 8, (1, 1))];
    let mut claimed = Claimed {
        deliveries,
        ..Claimed::default()
    };

    let refused = schedule.claimed(&request, &mut claimed, now);
    assert_eq!(
        refused
            .iter()
            .map(|delivery| delivery.id.as_u128())
            .collect::<Vec<_>>(),
        [7]
    );

    assert_eq!(schedule.queued(), 1);
}

/// The process may have been suspended since the webhook was read.
fn target(vault: &Vault, webhook: Uuid) -> SealedTarget {
    let secret = vault.seal(webhook, b"whsec_a");
    SealedTarget {
        webhook,
        url: "https://receiver.example.com/".into(),
        active: true,
        secret: secret.bytes,
        secret_key_id: secret.key_id,
        headers: None,
        keys: Default::default(),
        activation: 0,
    }
}

#[test]
fn an_attempt_that_became_ready_before_its_lease_was_too_short_is_not_started() {
    let now = Instant::now();
    let budget = DeliveryBudget::default();
    let vault =
        Arc::new(Vault::new(&[STANDARD.encode([1; 32]).into()]).expect("a key of 32 bytes"));
    let settings = Settings::from_config(&Config::default()).expect("the defaults are valid");
    let [short, long] = [1, 15].map(Duration::from_secs);

    for (suspended, is_slow, is_started) in [
        (short, false, true),
        (long, false, false),
        (long, true, false),
    ] {
        let mut dispatch = Dispatch::new(&settings, vault.clone(), budget.clone(), now);
        let fresh = delivery(1, 1, (1, 1));
        assert!(budget.reserve(fresh.webhook, fresh.bytes()));
        dispatch.take(
            FreshDeliveries {
                deliveries: vec![fresh],
                targets: Vec::new(),
                read_at: now,
            },
            now,
        );
        assert!(
            dispatch.next_start(now).is_none(),
            "its webhook is not known yet"
        );
        let webhooks = dispatch.next_read(now).expect("its webhook is read");
        dispatch.read(&webhooks, now, vec![target(&vault, webhooks[0])], now);
        if is_slow {
            budget
                .counters()
                .note_slow(webhooks[0], DeliveryClass::Fresh, 0);
        }
        let started = dispatch.next_start(now + suspended);
        assert_eq!(started.is_some(), is_started, "after {suspended:?}");
        assert_eq!(
            dispatch.take_expiring().len(),
            usize::from(!is_started && !is_slow),
            "its lease is released"
        );
        started
            .into_iter()
            .for_each(|start| dispatch.finish(start.finished, now + suspended));
        assert_eq!(dispatch.in_flight(), 0, "its permit is free again");
    }
}
