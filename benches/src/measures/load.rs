//! A steady load of commits, and the time from each commit to its receipt.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Plan;
use crate::bare::Bare;
use crate::figures::quantile;
use crate::platform::{Commit, ROW_ID_STRIDE, Writer};
use crate::rig::Rig;
use crate::sidecar::Sidecar;

/// Maximum number of commits per second. At higher rates, each commit has several rows, as those of
/// a platform's workers.
const MAX_COMMITS: f64 = 500.0;
/// Bare POSTs per second, measured during the load as a reference.
const POSTS: u32 = 50;
/// Duration of the warm-up: long enough for connections, plans and caches.
const WARM_UP: Duration = Duration::from_secs(1);

/// Transitions of a user's rows at a steady rate. Each row moves once, so that its receipt can be
/// recognized.
#[derive(Clone, Copy)]
pub struct Load {
    pub user: u64,
    /// Transitions per second.
    pub rate: f64,
    /// Duration of the measurement.
    pub length: Duration,
    /// Duration of the warm-up before it, which is not counted.
    pub warm_up: Duration,
}

/// The measured latencies, in milliseconds.
pub struct Latencies {
    /// From sending a commit to the receipt of its event.
    pub receipts: Vec<f64>,
    pub commits: Vec<f64>,
    pub posts: Vec<f64>,
    /// Transitions per second actually written.
    pub rate: f64,
    /// Events received per second, from the first commit to the last receipt.
    pub received: f64,
    /// Autovacuum runs during the measurement.
    pub autovacuums: i64,
}

impl Latencies {
    /// Returns the lower bound: the commit itself, another one in the store, and a bare POST.
    pub fn reference(&mut self, share: f64) -> f64 {
        2.0 * quantile(&mut self.commits, share) + quantile(&mut self.posts, share)
    }

    pub fn of_receipts(&mut self, share: f64) -> f64 {
        quantile(&mut self.receipts, share)
    }
}

impl Load {
    /// A load of 50 transitions per second: ordinary traffic.
    pub fn ordinary(user: u64, length: Duration) -> Load {
        Load {
            user,
            rate: 50.0,
            length,
            warm_up: WARM_UP,
        }
    }

    /// A load of `rate` transitions per second.
    pub fn at_rate(user: u64, rate: f64, length: Duration) -> Load {
        Load {
            user,
            rate,
            length,
            warm_up: WARM_UP,
        }
    }

    /// Returns the number of rows that move, including the warm-up.
    pub fn rows(&self) -> u64 {
        let (rows, warm_up, count) = self.shape();
        rows * (warm_up + count)
    }

    /// Returns rows per commit, commits of the warm-up, and commits that count.
    fn shape(&self) -> (u64, u64, u64) {
        let per_second = self.rate.min(MAX_COMMITS);
        let commits = |length: Duration| (per_second * length.as_secs_f64()) as u64;
        (
            (self.rate / per_second).round() as u64,
            commits(self.warm_up),
            commits(self.length).max(1),
        )
    }

    /// Starts a sidecar on idle servers, warms it up and runs the load. For loads that are compared
    /// with each other.
    pub async fn run_on_new_sidecar(
        self,
        plan: &Plan,
        rig: &mut Rig,
        name: &str,
    ) -> anyhow::Result<(Latencies, [Sidecar; 1])> {
        plan.show_step(name.to_owned());
        rig.rest().await?;
        let mut sidecars = [rig.start_sidecar("measured").await?];
        rig.warm_up(self.user, self.rows()).await?;
        Ok((self.run(rig, &mut sidecars).await?, sidecars))
    }

    /// Writes, waits for the receipts, and matches them to the commits by row.
    pub async fn run(self, rig: &mut Rig, sidecars: &mut [Sidecar]) -> anyhow::Result<Latencies> {
        ensure!(
            self.rows() < ROW_ID_STRIDE,
            "a load of {} rows is more than a user has",
            self.rows()
        );
        let bare = Bare::new(&mut rig.receiver).await?;

        rig.receiver.reset().await?;
        let autovacuums = rig.autovacuums().await?;
        let posting = tokio::spawn(post_beside(bare, self.warm_up, self.length));
        let started = Instant::now();
        let commits = self.write_on_thread(rig.platform.url().to_owned()).await?;
        let rate = commits.iter().map(|commit| commit.rows).sum::<u64>() as f64
            / started.elapsed().as_secs_f64();
        let posts = posting.await??;
        let counted = &commits[self.shape().1 as usize..];
        let mut sent_at: HashMap<u64, u64> = HashMap::new();

        for commit in counted {
            sent_at.extend(
                (commit.first_row..commit.first_row + commit.rows).map(|row| (row, commit.sent_at)),
            );
        }

        let receipts = rig.wait_for_receipts(sidecars, &sent_at).await?;
        let first = counted.first().map(|commit| commit.sent_at);
        let last = receipts.iter().map(|(_, at)| *at).max();
        let took = last
            .zip(first)
            .map_or(0, |(last, first)| last.saturating_sub(first));
        let received = receipts.len() as f64 * 1e6 / took.max(1) as f64;
        let millis = |took: Duration| took.as_secs_f64() * 1e3;

        Ok(Latencies {
            receipts: receipts
                .into_iter()
                .map(|(row, at)| at.saturating_sub(sent_at[&row]) as f64 / 1e3)
                .collect(),
            commits: counted.iter().map(|commit| millis(commit.took)).collect(),
            posts: posts.into_iter().map(millis).collect(),
            rate,
            received,
            autovacuums: rig.autovacuums().await? - autovacuums,
        })
    }

    /// Writes on a dedicated thread, so that no commit waits for another task.
    pub async fn write_on_thread(self, url: String) -> anyhow::Result<Vec<Commit>> {
        let thread = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        tokio::task::spawn_blocking(move || thread.block_on(self.write(&url))).await?
    }

    async fn write(self, url: &str) -> anyhow::Result<Vec<Commit>> {
        let writer = Writer::connect(url).await?;
        let (rows, warm_up, count) = self.shape();
        let mut ticks = interval(Duration::from_secs_f64(1.0 / self.rate.min(MAX_COMMITS)));

        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut commits = Vec::with_capacity((warm_up + count) as usize);

        for number in 0..warm_up + count {
            ticks.tick().await;
            commits.push(
                writer
                    .commit(self.user * ROW_ID_STRIDE + number * rows, rows)
                    .await?,
            );
        }

        Ok(commits)
    }
}

async fn post_beside(
    bare: Bare,
    warm_up: Duration,
    length: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let mut ticks = interval(Duration::from_secs(1) / POSTS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

    let started = Instant::now();

    // Opens the connection.
    bare.post().await?;
    let mut took = Vec::new();
    while started.elapsed() < warm_up + length || took.is_empty() {
        ticks.tick().await;
        let post = bare.post().await?;

        if started.elapsed() > warm_up {
            took.push(post);
        }
    }

    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_its_duration_at_any_rate() {
        let length = Duration::from_secs(10);
        assert_eq!(Load::ordinary(1, length).shape(), (1, 50, 500));
        let heavy = Load::at_rate(1, 20_000.0, length);
        assert_eq!(heavy.shape(), (40, 500, 5_000));
        assert_eq!(heavy.rows(), 220_000);
    }
}
