//! A runtime with its own threads, for work that must not queue behind other tasks.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// A Tokio runtime of its own: the kernel shares the processors out between its threads and the other runtime's.
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
            // A task of another runtime may drop it, and must not block.
            runtime.shutdown_background();
        }
    }
}
