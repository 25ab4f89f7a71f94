//! Numbered steps before the demo is live, each with the time it takes.

use std::io::Write;
use std::time::Instant;

/// Prints `[3/6] Starting Walhook … 0.4 s`.
pub struct Steps {
    done: u32,
    total: u32,
    begun: Instant,
}

impl Steps {
    /// `before` steps were done and printed by the caller; `own` are to come.
    pub fn new(before: u32, own: u32) -> Steps {
        Steps { done: before, total: before + own, begun: Instant::now() }
    }

    /// Runs one step.
    pub async fn run<T>(&mut self, what: &str, step: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.done += 1;
        print!("[{}/{}] {what} … ", self.done, self.total);
        // A line without an end is not written by itself.
        std::io::stdout().flush()?;
        let begun = Instant::now();
        let result = step.await;
        match &result {
            Ok(_) => println!("{:.1} s", begun.elapsed().as_secs_f64()),
            Err(_) => println!("failed"),
        }
        result
    }

    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}
