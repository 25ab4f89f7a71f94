//! When a failing webhook is disabled, and when its owner is warned beforehand.

use std::time::Duration;

use jiff::Timestamp;

/// The minimum time between two warnings about one webhook.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(24 * 60 * 60);

/// When failures disable a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub counted: CountedFailures,
    /// The number of failures that disables a webhook; at least 1.
    pub threshold: u32,
    /// Whether an answer with 410 Gone disables a webhook at once.
    pub on_gone: bool,
}

/// Which failures count towards the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedFailures {
    /// Failures since the last success. The first of them must also be at least `min_duration` ago.
    Consecutive { min_duration: Duration },
    /// All failures since the webhook was created, or reactivated after an automatic disablement.
    Cumulative,
}

/// A webhook's failure counters. All times are on the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub active: bool,
    pub failures: u64,
    pub consecutive_failures: u64,
    /// When the first failure since the last success occurred.
    pub failing_since: Option<Timestamp>,
    pub warned_at: Option<Timestamp>,
    pub now: Timestamp,
}

/// How far an active webhook is from being disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// The failed attempts that disable it, if none succeeds in between: at least 1.
    pub failures: u64,
    /// It is not disabled before this time. None if it does not fail, or has failed long enough.
    pub not_before: Option<Timestamp>,
}

/// What to do with a webhook after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Nothing,
    Warn,
    Disable,
}

impl Policy {
    /// Decides what to do with a webhook after a failure. The decision depends on the counters
    /// alone and not on how they changed: a batch may add several failures, the count may be
    /// reached before `min_duration`, and the policy may have changed since earlier failures.
    pub fn judge(&self, standing: &Standing) -> Verdict {
        let count = self.count(standing);
        let threshold = u64::from(self.threshold);

        if !standing.active {
            Verdict::Nothing
        } else if count >= threshold && self.lasted_long_enough(standing) {
            Verdict::Disable
        } else if count >= threshold.div_ceil(2)
            && has_passed(BETWEEN_WARNINGS, standing.warned_at, standing.now)
        {
            Verdict::Warn
        } else {
            Verdict::Nothing
        }
    }

    /// Returns whether a webhook is disabled regardless of its failures. `is_gone`: its receiver
    /// has answered with 410 Gone.
    pub fn disables_gone(&self, standing: &Standing, is_gone: bool) -> bool {
        self.on_gone && is_gone && standing.active
    }

    /// Returns the number of failures that count towards the threshold.
    pub fn count(&self, standing: &Standing) -> u64 {
        match self.counted {
            CountedFailures::Consecutive { .. } => standing.consecutive_failures,
            CountedFailures::Cumulative => standing.failures,
        }
    }

    /// Returns how far a webhook is from being disabled. None if it is inactive.
    pub fn countdown(&self, standing: &Standing) -> Option<Countdown> {
        let left = u64::from(self.threshold).saturating_sub(self.count(standing));
        let not_before = match (self.counted, standing.failing_since) {
            (CountedFailures::Consecutive { min_duration }, Some(since)) => {
                let earliest = since.checked_add(min_duration).ok();
                earliest.filter(|at| *at > standing.now)
            }
            _ => None,
        };

        standing.active.then_some(Countdown {
            failures: left.max(1),
            not_before,
        })
    }

    fn lasted_long_enough(&self, standing: &Standing) -> bool {
        match self.counted {
            CountedFailures::Consecutive { min_duration } => {
                standing.failing_since.is_some()
                    && has_passed(min_duration, standing.failing_since, standing.now)
            }
            CountedFailures::Cumulative => true,
        }
    }
}

/// Returns whether `time` has passed since `since`. True if `since` is None.
fn has_passed(time: Duration, since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_none_or(|since| {
        Duration::try_from(now.duration_since(since)).is_ok_and(|passed| passed >= time)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CUMULATIVE: Policy = Policy {
        counted: CountedFailures::Cumulative,
        threshold: 10,
        on_gone: false,
    };
    const MINUTES: Duration = Duration::from_secs(300);
    const CONSECUTIVE: Policy = Policy {
        counted: CountedFailures::Consecutive {
            min_duration: MINUTES,
        },
        threshold: 10,
        on_gone: false,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn standing(failures: u64, consecutive_failures: u64, failing_for: i64) -> Standing {
        let now = at(1_000_000);
        let failing_since = (consecutive_failures > 0).then(|| at(1_000_000 - failing_for));

        Standing {
            active: true,
            failures,
            consecutive_failures,
            failing_since,
            warned_at: None,
            now,
        }
    }

    #[test]
    fn each_policy_counts_its_own_failures() {
        assert_eq!(CUMULATIVE.judge(&standing(4, 4, 900)), Verdict::Nothing);
        assert_eq!(CUMULATIVE.judge(&standing(5, 1, 0)), Verdict::Warn);
        assert_eq!(CUMULATIVE.judge(&standing(10, 1, 0)), Verdict::Disable);
        assert_eq!(CONSECUTIVE.judge(&standing(99, 4, 900)), Verdict::Nothing);
        assert_eq!(CONSECUTIVE.judge(&standing(99, 5, 900)), Verdict::Warn);
        assert_eq!(CONSECUTIVE.judge(&standing(10, 10, 300)), Verdict::Disable);
    }

    #[test]
    fn consecutive_failures_only_warn_until_the_minimum_duration() {
        assert_eq!(CONSECUTIVE.judge(&standing(500, 500, 299)), Verdict::Warn);
        assert_eq!(
            CONSECUTIVE.judge(&standing(500, 500, 300)),
            Verdict::Disable
        );

        let at_once = Policy {
            counted: CountedFailures::Consecutive {
                min_duration: Duration::ZERO,
            },
            ..CONSECUTIVE
        };

        assert_eq!(at_once.judge(&standing(10, 10, 0)), Verdict::Disable);
    }

    #[test]
    fn a_countdown_ends_with_the_failure_that_disables() {
        let left = |policy: &Policy, standing: Standing| policy.countdown(&standing).unwrap();
        let none_before = |failures| Countdown {
            failures,
            not_before: None,
        };

        assert_eq!(left(&CUMULATIVE, standing(4, 1, 0)), none_before(6));
        assert_eq!(left(&CONSECUTIVE, standing(9, 4, 300)), none_before(6));

        // The count has been reached, but not the minimum duration.
        let waiting = Countdown {
            failures: 1,
            not_before: Some(at(1_000_060)),
        };
        assert_eq!(left(&CONSECUTIVE, standing(500, 500, 240)), waiting);

        assert_eq!(left(&CONSECUTIVE, standing(0, 0, 0)), none_before(10));

        let inactive = Standing {
            active: false,
            ..standing(4, 4, 0)
        };
        assert_eq!(CUMULATIVE.countdown(&inactive), None);
    }

    #[test]
    fn warnings_are_a_day_apart_and_inactive_webhooks_are_ignored() {
        let warned = |ago: i64| Standing {
            warned_at: Some(at(1_000_000 - ago)),
            ..standing(7, 7, 0)
        };

        assert_eq!(CUMULATIVE.judge(&warned(86_399)), Verdict::Nothing);
        assert_eq!(CUMULATIVE.judge(&warned(86_400)), Verdict::Warn);

        let inactive = Standing {
            active: false,
            ..standing(500, 500, 900)
        };

        assert_eq!(CUMULATIVE.judge(&inactive), Verdict::Nothing);
        let first = Policy {
            threshold: 1,
            ..CUMULATIVE
        };

        assert_eq!(first.judge(&standing(1, 1, 0)), Verdict::Disable);
    }

    #[test]
    fn a_gone_receiver_is_disabled_only_if_configured_and_active() {
        let on_gone = Policy {
            on_gone: true,
            ..CUMULATIVE
        };

        let active = standing(1, 1, 0);
        assert!(on_gone.disables_gone(&active, true) && !on_gone.disables_gone(&active, false));
        assert!(!CUMULATIVE.disables_gone(&active, true));

        assert!(!on_gone.disables_gone(
            &Standing {
                active: false,
                ..active
            },
            true
        ));
    }

    #[derive(Clone, Copy, Debug)]
    struct TestAttempt {
        fails: bool,
        after: i64,
    }

    fn count(standing: &mut Standing, attempts: &[TestAttempt]) -> bool {
        let mut failed = false;

        for attempt in attempts {
            standing.now = at(standing.now.as_second() + attempt.after);
            failed |= attempt.fails;

            if attempt.fails {
                standing.failures += 1;
                standing.consecutive_failures += 1;
                standing.failing_since.get_or_insert(standing.now);
            } else {
                standing.consecutive_failures = 0;
                standing.failing_since = None;
            }
        }

        failed
    }

    /// Counts and judges batches as recording does. Returns whether the webhook was disabled, and
    /// the times of the warnings.
    fn run(policy: &Policy, attempts: &[TestAttempt], batch: usize) -> (bool, Vec<Timestamp>) {
        let mut standing = Standing {
            failing_since: None,
            ..standing(0, 0, 0)
        };

        let mut warnings = Vec::new();

        for attempts in attempts.chunks(batch) {
            if !count(&mut standing, attempts) {
                continue;
            }

            match policy.judge(&standing) {
                Verdict::Nothing => {}
                Verdict::Warn => {
                    standing.warned_at = Some(standing.now);
                    warnings.push(standing.now);
                }
                Verdict::Disable => return (true, warnings),
            }
        }

        (false, warnings)
    }

    fn attempts() -> impl Strategy<Value = Vec<TestAttempt>> {
        let attempt = (
            prop::bool::weighted(0.8),
            prop_oneof![0..5_i64, 0..40_000_i64],
        );
        prop::collection::vec(
            attempt.prop_map(|(fails, after)| TestAttempt { fails, after }),
            0..60,
        )
    }

    proptest! {
        #[test]
        fn batches_disable_only_what_single_attempts_would(
            attempts in attempts(), batch in 1..20_usize, threshold in 1..15_u32, min_seconds in 0..100_u64,
        ) {
            let min_duration = Duration::from_secs(min_seconds);
            for counted in [CountedFailures::Cumulative, CountedFailures::Consecutive { min_duration }] {
                let policy = Policy { counted, threshold, on_gone: false };
                let ((alone, _), (together, _)) = (run(&policy, &attempts, 1), run(&policy, &attempts, batch));

                // A success ends the failures before it in the same batch, so a batch may disable
                // later.
                prop_assert!(alone || !together);

                if counted == CountedFailures::Cumulative {
                    prop_assert_eq!(alone, together);
                    let failures = attempts.iter().filter(|attempt| attempt.fails).count();
                    prop_assert_eq!(alone, failures >= threshold as usize);
                }
            }
        }

        #[test]
        fn warnings_start_at_half_the_threshold_and_are_a_day_apart(attempts in attempts(), batch in 1..20_usize, threshold in 2..80_u32) {
            let policy = Policy { threshold, ..CUMULATIVE };
            let (_, warnings) = run(&policy, &attempts, batch);

            prop_assert!(warnings.windows(2).all(|pair| has_passed(BETWEEN_WARNINGS, Some(pair[0]), pair[1])));
            let failures = attempts.iter().filter(|attempt| attempt.fails).count() as u32;
            prop_assert!(warnings.is_empty() || failures >= threshold.div_ceil(2));
        }
    }
}
