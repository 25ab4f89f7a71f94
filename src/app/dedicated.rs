//! A runtime with its own threads, for work that must not queue behind other tasks.

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// A separate Tokio runtime: the kernel schedules its threads beside those of the main runtime.
pub struct DedicatedRuntime(Option<Runtime>);

/// The threads' share of the processors when there is not enough for all.
#[derive(Clone, Copy, Debug)]
pub enum Priority {
    Normal,
    /// About a tenth of what a normal thread of the process gets.
    Low,
}

/// How much [`Priority::Low`] adds to the nice value of the process, which the operator chooses.
const ADDED_NICENESS: i32 = 10;
/// The lowest priority.
const MAX_NICENESS: i32 = 19;

impl DedicatedRuntime {
    pub fn new(
        name: &'static str,
        threads: usize,
        priority: Priority,
    ) -> std::io::Result<DedicatedRuntime> {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(threads)
            .thread_name(name)
            .enable_all();

        if let Priority::Low = priority {
            // That of the calling thread: a thread of the runtime may start another one.
            let niceness = getpriority_process(None)?
                .saturating_add(ADDED_NICENESS)
                .min(MAX_NICENESS);
            builder.on_thread_start(move || lower_priority(niceness));
        }

        Ok(DedicatedRuntime(Some(builder.build()?)))
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0
            .as_ref()
            .expect("present until it is dropped")
            .spawn(work)
    }
}

impl Drop for DedicatedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Not `drop`, which waits for tasks and panics in an asynchronous context.
            runtime.shutdown_background();
        }
    }
}

/// Lowers the priority of the calling thread.
fn lower_priority(niceness: i32) {
    // On Linux only, the nice value belongs to the thread; elsewhere this would slow the whole
    // process.
    if cfg!(target_os = "linux")
        && let Err(error) = setpriority_process(None, niceness)
    {
        tracing::debug!(%error, "the priority of a thread cannot be lowered");
    }
}
