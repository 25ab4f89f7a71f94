//! Threads apart, for work that must not wait for its turn behind others'.

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Threads of its own: what runs here is shared out by the kernel, not by the other threads' queues.
pub struct Apart(Option<Runtime>);

impl Apart {
    pub fn new(name: &'static str, threads: usize) -> std::io::Result<Apart> {
        let runtime = Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()?;
        Ok(Apart(Some(runtime)))
    }

    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.as_ref().expect("there until it is dropped").spawn(work)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Whoever drops it may be a task, and waits for nobody.
            runtime.shutdown_background();
        }
    }
}
