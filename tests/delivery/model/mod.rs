//! Deliveries against a model: after every sequence of operations, the store is in the state that
//! the model predicts.
//!
//! The operations call the same functions as the stages and the API, on a real Postgres. The model
//! has no time: what is due is due at once, and leases end when the sequence says so, as if their
//! holders had died. [`schedule`] is the same for the dispatcher's schedule, which [`hanging`] runs
//! in virtual time. [`memory`] holds the store in memory, on which the simulation runs, to the same
//! model.

mod hanging;
mod jobs;
mod memory;
mod pair;
mod pure;
mod schedule;

use std::cell::Cell;

use crate::support::Bench;
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::pair::Pair;

const CASES: u32 = 200;
/// One for each ordering.
const WEBHOOKS: usize = 3;
/// Few, so that sequences reach the end of a round.
const ATTEMPTS: u16 = 3;
/// So few failures in a row disable a webhook: more than one delivery has.
const THRESHOLD: u32 = 5;
/// The owner of the webhooks.
const USER: &str = "u";

#[derive(Clone, Copy, Debug)]
enum Reply {
    Accepted,
    Failed,
    /// 410.
    Gone,
    TooLarge,
    Inactive,
}

/// Numbers select one of what exists, modulo how many there are.
#[derive(Clone, Debug)]
enum Operation {
    Event {
        webhook: usize,
    },
    /// A delivery is handed off and answered before its transaction commits, or fails to. The
    /// answer is recorded again afterwards.
    HandOff {
        webhook: usize,
        commits: bool,
        reply: Reply,
    },
    Claim {
        retries: bool,
    },
    /// The answer to any claim, perhaps superseded or recorded already.
    Answer {
        claim: usize,
        reply: Reply,
    },
    /// Answers to all claims so far, in one batch.
    AnswerAll {
        reply: Reply,
    },
    /// The lease is released, as when a replica shuts down.
    Release {
        claim: usize,
    },
    /// The holders have died: all leases end.
    EndLeases,
    Toggle {
        webhook: usize,
        active: bool,
    },
    Delete {
        webhook: usize,
    },
    NewSecret {
        webhook: usize,
    },
    Redeliver {
        delivery: usize,
    },
    Recover {
        webhook: usize,
    },
    Replay {
        webhook: usize,
    },
    /// The URL and the ordering of a webhook are changed.
    Edit {
        webhook: usize,
        ordering: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        Answer, AnswerAll, Claim, Delete, Edit, EndLeases, Event, HandOff, NewSecret, Recover,
        Redeliver, Release, Replay, Toggle,
    };

    let webhook = || 0..WEBHOOKS;
    let number = || 0..64_usize;

    let reply = || {
        prop_oneof![
            3 => Just(Reply::Accepted),
            6 => Just(Reply::Failed),
            1 => Just(Reply::Gone),
            1 => Just(Reply::TooLarge),
            1 => Just(Reply::Inactive),
        ]
    };

    prop_oneof![
        5 => webhook().prop_map(|webhook| Event { webhook }),
        3 => (webhook(), any::<bool>(), reply())
            .prop_map(|(webhook, commits, reply)| HandOff { webhook, commits, reply }),
        8 => any::<bool>().prop_map(|retries| Claim { retries }),
        8 => (number(), reply()).prop_map(|(claim, reply)| Answer { claim, reply }),
        4 => reply().prop_map(|reply| AnswerAll { reply }),
        2 => number().prop_map(|claim| Release { claim }),
        3 => Just(EndLeases),
        3 => (webhook(), any::<bool>()).prop_map(|(webhook, active)| Toggle { webhook, active }),
        1 => webhook().prop_map(|webhook| Delete { webhook }),
        1 => webhook().prop_map(|webhook| NewSecret { webhook }),
        3 => number().prop_map(|delivery| Redeliver { delivery }),
        2 => webhook().prop_map(|webhook| Recover { webhook }),
        2 => webhook().prop_map(|webhook| Replay { webhook }),
        2 => (webhook(), webhook()).prop_map(|(webhook, ordering)| Edit { webhook, ordering }),
    ]
}

#[test]
fn the_store_matches_the_model_after_any_sequence_of_operations() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let bench = runtime.block_on(async {
        let mut bench = Bench::new().await;
        bench.config.disable.threshold = THRESHOLD;
        bench.config.disable.on_gone = true;

        // In daily partitions, as in production.
        let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        walhook::partitions::maintain(&bench.store, today, 30)
            .await
            .unwrap();

        bench
    });

    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };

    let disabled = Cell::new(0);
    let replayed = Cell::new(0);

    let result = TestRunner::new(config).run(&vec(operation(), 0..=60), |operations| {
        runtime.block_on(async {
            let mut pair = Pair::new(&bench).await;

            for (number, operation) in operations.iter().enumerate() {
                pair.apply(operation).await;
                pair.model.settle();
                assert_eq!(
                    pair.view().await,
                    pair.model.view,
                    "after operation {number}, {operation:?}"
                );
                assert_eq!(
                    pair.memory.view(),
                    pair.model.view,
                    "in memory, after operation {number}, {operation:?}"
                );

                let too_many = pair
                    .model
                    .view
                    .log
                    .values()
                    .flatten()
                    .any(|line| line.1 > ATTEMPTS as i16);

                assert!(!too_many, "more attempts than the schedule has");
            }

            disabled.set(disabled.get() + pair.disabled);
            replayed.set(replayed.get() + pair.replayed);
        });
        Ok(())
    });

    // Prints the shortest sequence that still fails.
    result.unwrap_or_else(|failure| panic!("{failure}"));
    let disabled = disabled.get();
    let replayed = replayed.get();
    println!("{disabled} webhooks were disabled, {replayed} deliveries were replayed");
    assert!(
        disabled > 0 && replayed > 0,
        "{disabled} webhooks were disabled, {replayed} deliveries were replayed"
    );
}
