//! The numbered steps of the demo's start, with the time that each takes.

use std::io::Write;
use std::time::Instant;

/// Prints one line per step, such as `[3/6] Starting the sidecar … 0.4 s`.
pub struct Steps {
    done: u32,
    total: u32,
    started: Instant,
}

impl Steps {
    /// `before` steps were already printed by `make demo`; `remaining` follow.
    pub fn new(before: u32, remaining: u32) -> Steps {
        Steps {
            done: before,
            total: before + remaining,
            started: Instant::now(),
        }
    }

    /// Runs one step.
    pub async fn run<T>(
        &mut self,
        what: &str,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.done += 1;
        print!("[{}/{}] {what} … ", self.done, self.total);

        // Standard output is flushed only at line ends.
        std::io::stdout().flush()?;
        let started = Instant::now();
        let result = step.await;
        match &result {
            Ok(_) => println!("{:.1} s", started.elapsed().as_secs_f64()),
            Err(_) => println!("failed"),
        }

        result
    }

    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}
