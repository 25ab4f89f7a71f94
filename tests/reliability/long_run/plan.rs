//! What is done to the installation, and in which order. The order follows from the seed.

use std::time::Duration;

use walhook::private_postgres::StopMode;

use super::seed::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL to one of the two replicas that serve the API, and a start.
    Kill(usize),
    /// SIGTERM, and a start.
    Restart(usize),
    /// SIGSTOP, and SIGCONT after a time.
    Pause(usize, Duration),
    RestartStore(StopMode),
    RestartPrimary(StopMode),
    RestartStandby,
    FailOver,
    /// The next of a series of schema changes on a watched table.
    ChangeSchema(usize),
    ChangeDay,
    /// The failing receiver works again, and what it did not take is recovered.
    Recover,
    /// The failing receiver fails again.
    Break,
    /// A new webhook gets the history.
    Replay,
    CancelReplay,
    /// Replaces a webhook's secret, with an overlap.
    RotateSecret(usize),
    RotateMasterKey,
    Erase,
    /// The next of a series of edits.
    Edit,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long rounds are started.
    pub length: Duration,
    /// The longest wait between two actions.
    pub wait: Duration,
    /// The longest pause of a replica.
    pub pause: Duration,
    /// How long only the load runs after each round of actions.
    pub calm: Duration,
    pub kills_per_round: usize,
    /// How often the other actions are done in each round.
    pub repeats: usize,
    /// Between two transactions of the load.
    pub load_interval: Duration,
}

impl Plan {
    /// Returns the actions of the next round, each with the wait before it.
    pub fn round(&self, random: &mut Random) -> Vec<(Duration, Action)> {
        let mut actions: Vec<Action> = (0..self.kills_per_round)
            .map(|_| Action::Kill(random.below(2)))
            .collect();

        for repeat in 0..self.repeats {
            let mode = if repeat % 2 == 0 {
                StopMode::Immediate
            } else {
                StopMode::Fast
            };

            actions.extend([
                Action::RestartStore(mode),
                Action::Edit,
                Action::RotateSecret(random.below(3)),
            ]);
            actions.extend((0..4).map(Action::ChangeSchema));
        }

        let pause = self.pause.mul_f64((random.below(100) + 1) as f64 / 100.0);
        let mode = if random.below(2) == 0 {
            StopMode::Immediate
        } else {
            StopMode::Fast
        };

        actions.extend([
            Action::Restart(random.below(2)),
            Action::Pause(random.below(2), pause),
            Action::RestartPrimary(mode),
            Action::RestartStandby,
            Action::FailOver,
            Action::ChangeDay,
            Action::Recover,
            Action::Break,
            Action::Replay,
            Action::CancelReplay,
            Action::RotateMasterKey,
            Action::Erase,
        ]);

        random.shuffle(&mut actions);
        let wait = |random: &mut Random| self.wait.mul_f64(random.below(1_000) as f64 / 1_000.0);
        actions
            .into_iter()
            .map(|action| (wait(random), action))
            .collect()
    }
}

#[test]
fn the_same_seed_gives_the_same_actions() {
    let plan = Plan {
        length: Duration::ZERO,
        wait: Duration::from_secs(1),
        pause: Duration::from_secs(1),
        calm: Duration::ZERO,
        kills_per_round: 5,
        repeats: 2,
        load_interval: Duration::ZERO,
    };

    let rounds = |seed| {
        let mut random = Random::new(seed, 0);
        [plan.round(&mut random), plan.round(&mut random)]
    };

    assert_eq!(rounds(1), rounds(1));
    assert_ne!(rounds(1), rounds(2));
}
