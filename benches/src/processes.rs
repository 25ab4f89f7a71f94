//! CPU time and peak memory of processes, from /proc.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;

/// `USER_HZ`: the unit of times in /proc, the same on all current platforms.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds by kind of process.
#[derive(Clone, Debug, Default)]
pub struct Cpu(HashMap<Kind, f64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Sidecar,
    Receiver,
    /// The Postgres process that decodes the WAL for the slot.
    WalSender,
    /// All other Postgres processes.
    Postgres,
}

impl Kind {
    pub const ALL: [Kind; 4] = [
        Kind::Sidecar,
        Kind::Postgres,
        Kind::WalSender,
        Kind::Receiver,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Sidecar => "sidecar",
            Kind::Receiver => "receiver",
            Kind::WalSender => "walsender",
            Kind::Postgres => "rest of Postgres",
        }
    }
}

impl Cpu {
    /// Reads the CPU time of these sidecars, the receiver, and all processes of a Postgres server.
    pub fn now(sidecars: &[u32], receiver: u32, postmaster: u32) -> Cpu {
        let mut by_kind: HashMap<Kind, f64> = HashMap::new();
        let mut add = |kind, seconds| *by_kind.entry(kind).or_default() += seconds;

        sidecars
            .iter()
            .filter_map(|pid| stat(*pid))
            .for_each(|stat| add(Kind::Sidecar, stat.own));
        stat(receiver)
            .into_iter()
            .for_each(|stat| add(Kind::Receiver, stat.own));

        // The time of ended processes is counted for their parent.
        stat(postmaster)
            .into_iter()
            .for_each(|stat| add(Kind::Postgres, stat.own + stat.ended_children));

        for (pid, stat) in children(postmaster) {
            let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            add(
                if title.contains("walsender") {
                    Kind::WalSender
                } else {
                    Kind::Postgres
                },
                stat.own,
            );
        }

        Cpu(by_kind)
    }

    /// Seconds of one kind since `earlier`.
    pub fn since(&self, earlier: &Cpu, kind: Kind) -> f64 {
        let of = |cpu: &Cpu| cpu.0.get(&kind).copied().unwrap_or(0.0);
        (of(self) - of(earlier)).max(0.0)
    }
}

struct Stat {
    parent: u32,
    own: f64,
    ended_children: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;

    // The name before it may contain spaces and parentheses.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |index: usize| {
        fields
            .get(index)?
            .parse::<f64>()
            .ok()
            .map(|ticks| ticks / TICKS_PER_SECOND)
    };

    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        ended_children: seconds(13)? + seconds(14)?,
    })
}

fn children(parent: u32) -> Vec<(u32, Stat)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, stat(pid)?)))
        .filter(|(_, stat)| stat.parent == parent)
        .collect()
}

/// Returns the peak resident set of a process, in megabytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<f64> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("the sidecar's memory")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc")?;
    let kilobytes: f64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .context("VmHWM is not a number")?;

    Ok(kilobytes * 1_024.0 / 1e6)
}

/// Returns the number and model of the machine's processors.
pub fn processor() -> (usize, String) {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown");

    (count, model.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// Returns the load average of the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(f64::NAN)
}
