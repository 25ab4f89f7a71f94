//! A steady load of commits, and how long each took to become a receipt.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::bare::Bare;
use crate::figures::quantile;
use crate::platform::{Commit, Muted, ROWS, ROWS_APART, Writer};
use crate::rig::Rig;
use crate::sidecar::Sidecar;

/// Commits a second at most: above, each has several rows, as a platform's workers would.
const MAX_COMMITS: f64 = 500.0;
/// Bare POSTs a second beside the load.
const POSTS: u32 = 50;

/// Transitions a second for a while, of one user's rows; each of them is delivered once.
#[derive(Clone, Copy)]
pub struct Load {
    pub user: u64,
    pub rate: f64,
    pub length: Duration,
}

/// All in milliseconds.
pub struct Latencies {
    /// From the moment a commit is asked for to the receipt of its event.
    pub receipts: Vec<f64>,
    pub commits: Vec<f64>,
    pub posts: Vec<f64>,
    /// Transitions a second that were really written.
    pub rate: f64,
}

impl Latencies {
    /// What cannot be undercut: a commit's own duration and a bare POST's.
    pub fn reference(&mut self, share: f64) -> f64 {
        quantile(&mut self.commits, share) + quantile(&mut self.posts, share)
    }

    pub fn of_receipts(&mut self, share: f64) -> f64 {
        quantile(&mut self.receipts, share)
    }
}

/// Moves each of the user's rows once, muted, as if everything had run for a while: what they refer to is looked up, and
/// their pages were written whole into the log since the last checkpoint. Nothing is delivered.
pub async fn warm_up(rig: &Rig, user: u64) -> anyhow::Result<()> {
    let place = rig.platform.write_at_once(user, ROWS, Muted::Yes).await?;
    rig.wait_for_checkpoint(place).await
}

impl Load {
    /// Writes, waits for the receipts, and tells them apart by their rows.
    pub async fn run(self, rig: &mut Rig, sidecars: &mut [Sidecar]) -> anyhow::Result<Latencies> {
        rig.receiver.reset().await?;
        let bare = Bare::new(rig.receiver.url())?;
        let posting = tokio::spawn(post_beside(bare, self.length));
        let begun = Instant::now();
        let commits = self.write_apart(rig.platform.url().to_owned()).await?;
        let rate = commits.iter().map(|commit| commit.rows).sum::<u64>() as f64 / begun.elapsed().as_secs_f64();
        let posts = posting.await??;
        let mut begun_at: HashMap<u64, u64> = HashMap::new();
        for commit in &commits {
            begun_at.extend((commit.first_row..commit.first_row + commit.rows).map(|row| (row, commit.begun_at)));
        }
        let receipts = rig.wait_for_receipts(sidecars, &begun_at).await?;
        let millis = |took: Duration| took.as_secs_f64() * 1e3;
        Ok(Latencies {
            receipts: receipts.into_iter().map(|(row, at)| at.saturating_sub(begun_at[&row]) as f64 / 1e3).collect(),
            commits: commits.iter().map(|commit| millis(commit.took)).collect(),
            posts: posts.into_iter().map(millis).collect(),
            rate,
        })
    }

    /// On a thread of its own, so that nothing is handed from one to another for every commit: it is not what is measured.
    async fn write_apart(self, url: String) -> anyhow::Result<Vec<Commit>> {
        let thread = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tokio::task::spawn_blocking(move || thread.block_on(self.write(&url))).await?
    }

    async fn write(self, url: &str) -> anyhow::Result<Vec<Commit>> {
        let writer = Writer::connect(url).await?;
        let commits_a_second = self.rate.min(MAX_COMMITS);
        let rows = (self.rate / commits_a_second).round() as u64;
        // A row twice could not be told apart.
        let most = (ROWS / rows) as usize;
        let count = ((commits_a_second * self.length.as_secs_f64()) as usize).clamp(1, most);
        let mut beat = interval(Duration::from_secs_f64(1.0 / commits_a_second));
        beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut commits = Vec::with_capacity(count);
        for number in 0..count as u64 {
            beat.tick().await;
            commits.push(writer.commit(self.user * ROWS_APART + number * rows, rows).await?);
        }
        Ok(commits)
    }
}

async fn post_beside(bare: Bare, length: Duration) -> anyhow::Result<Vec<Duration>> {
    let mut beat = interval(Duration::from_secs(1) / POSTS);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begun = Instant::now();
    // The first opens the connection.
    bare.post().await?;
    let mut took = Vec::new();
    while begun.elapsed() < length || took.is_empty() {
        beat.tick().await;
        took.push(bare.post().await?);
    }
    Ok(took)
}
