//! A runtime with its own threads, for work that must not queue behind other tasks.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// A separate Tokio runtime: the kernel schedules its threads beside those of the main runtime.
pub struct DedicatedRuntime(Option<Runtime>);

impl DedicatedRuntime {
    pub fn new(name: &'static str, threads: usize) -> std::io::Result<DedicatedRuntime> {
        let runtime = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()?;
        Ok(DedicatedRuntime(Some(runtime)))
    }

    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.as_ref().expect("present until it is dropped").spawn(work)
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
