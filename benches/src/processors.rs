//! Keeps what a measure adds to the machine off the processors of the measured system.

use anyhow::{Context, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

/// Confines this process, and all that it starts, to all processors but the last one until it is
/// dropped. [`Separation::runtime`] has the last one.
pub struct Separation {
    all: CpuSet,
    last: CpuSet,
    /// None only while it is dropped.
    runtime: Option<Runtime>,
}

impl Separation {
    pub fn new() -> anyhow::Result<Separation> {
        let all = sched_getaffinity(None).context("reading the processors")?;
        let mut others = all;
        let mut last = CpuSet::new();
        let number = (0..CpuSet::MAX_CPU)
            .rev()
            .find(|processor| all.is_set(*processor));
        let number = number.context("no processor")?;

        others.unset(number);
        last.set(number);
        ensure!(
            others.count() > 0,
            "the attackers need a processor of their own, and there is only one"
        );

        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || {
                // The figures would show it.
                let _ = sched_setaffinity(None, &last);
            })
            .enable_all()
            .build()?;

        confine(&others, Some(&last))?;
        Ok(Separation {
            all,
            last,
            runtime: Some(runtime),
        })
    }

    /// The runtime on the last processor. Processes that its tasks start stay there too.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("present until it is dropped")
    }

    /// The number of processors of the measured system.
    pub fn measured(&self) -> u32 {
        self.all.count() - self.last.count()
    }
}

impl Drop for Separation {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not `drop`, which waits for tasks.
            runtime.shutdown_background();
        }

        // Later measures would show it.
        let _ = confine(&self.all, None);
    }
}

/// Confines the threads of this process, except those that have exactly the processors `except`.
/// New threads and processes inherit it.
fn confine(processors: &CpuSet, except: Option<&CpuSet>) -> anyhow::Result<()> {
    for entry in
        std::fs::read_dir("/proc/self/task").context("reading the threads of this process")?
    {
        let name = entry?.file_name();
        let thread = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        // A thread may have ended meanwhile.
        if except.is_some() && sched_getaffinity(thread).ok().as_ref() == except {
            continue;
        }

        let _ = sched_setaffinity(thread, processors);
    }

    Ok(())
}
