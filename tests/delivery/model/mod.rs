//! The life of deliveries against a model of it: whatever comes in whatever order, the store is as the model says.
//!
//! The operations go through the very functions that the stages and the API use, on a real Postgres. What the model does not
//! have is time: what is due is due at once, and a lease ends when the sequence says so, as if its holder were dead.

mod pair;
mod pure;

use crate::support::Bench;
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::pair::Pair;

const CASES: u32 = 200;
const WEBHOOKS: usize = 2;
/// Few, so that sequences get to the end of a round.
const ATTEMPTS: u16 = 3;
/// The user of the harness's webhooks.
const USER: &str = "u";

#[derive(Clone, Copy, Debug)]
enum Reply {
    Accepted,
    Failed,
    TooLarge,
    Inactive,
}

/// Numbers choose among what there is, round and round.
#[derive(Clone, Debug)]
enum Operation {
    Event {
        webhook: usize,
    },
    Claim {
        retries: bool,
    },
    /// The answer to a claim made at any time, perhaps long superseded, perhaps told already.
    Answer {
        claim: usize,
        reply: Reply,
    },
    /// All claims ever made, answered in one batch.
    AnswerAll {
        reply: Reply,
    },
    /// Given back, as when a replica ends.
    Release {
        claim: usize,
    },
    /// Holders are dead: their leases end.
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
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        Answer, AnswerAll, Claim, Delete, EndLeases, Event, NewSecret, Recover, Redeliver, Release, Toggle,
    };
    let webhook = || 0..WEBHOOKS;
    let number = || 0..64_usize;
    let reply = || {
        prop_oneof![
            3 => Just(Reply::Accepted),
            6 => Just(Reply::Failed),
            1 => Just(Reply::TooLarge),
            1 => Just(Reply::Inactive),
        ]
    };
    prop_oneof![
        5 => webhook().prop_map(|webhook| Event { webhook }),
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
    ]
}

#[test]
fn the_store_is_as_the_model_says_whatever_comes_in_whatever_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(async {
        let bench = Bench::new().await;
        // In partitions, as in life.
        let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
        walhook::partitions::maintain(&bench.store, today, 30).await.unwrap();
        bench
    });
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let result = TestRunner::new(config).run(&vec(operation(), 0..=60), |operations| {
        runtime.block_on(async {
            let mut pair = Pair::new(&bench).await;
            for (number, operation) in operations.iter().enumerate() {
                pair.apply(operation).await;
                assert_eq!(pair.view().await, pair.model.view, "behind operation {number}, {operation:?}");
                let too_many = pair.model.view.log.values().flatten().any(|line| line.1 > ATTEMPTS as i16);
                assert!(!too_many, "more attempts than the schedule has");
            }
        });
        Ok(())
    });
    // With the shortest sequence that still goes wrong.
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
