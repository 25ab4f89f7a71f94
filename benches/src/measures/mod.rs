//! The measures, one file each.

mod backlog;
mod capture;
mod cells;
mod clients;
mod dead;
mod drain;
mod growth;
mod hostile;
mod latency;
mod load;
mod ordering;
mod pileup;
mod polite;
mod reach;
mod scale;
mod tenants;
mod writer;

use std::path::PathBuf;

use indicatif::ProgressBar;

use crate::figures::Figures;

/// Bounds on peak memory in megabytes: for any sidecar, and for a single one under load.
pub const MEMORY: f64 = 100.0;
pub const SMALL_MEMORY: f64 = 60.0;

/// Options of a run.
pub struct Plan {
    pub walhook: PathBuf,
    /// How often a figure and its reference alternate.
    pub repeats: usize,
    /// Share of the full numbers of rows and seconds.
    pub scale: f64,
    pub progress: ProgressBar,
}

impl Plan {
    /// Returns `count`, scaled.
    pub fn count(&self, count: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(1)
    }

    pub fn seconds(&self, seconds: f64) -> std::time::Duration {
        std::time::Duration::from_secs_f64((seconds * self.scale).max(1.0))
    }

    /// Shows the current step.
    pub fn show_step(&self, what: impl Into<std::borrow::Cow<'static, str>>) {
        let what = what.into();

        if self.progress.is_hidden() {
            eprintln!("{what}");
        }

        self.progress.set_message(what);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Measure {
    /// Deliveries per second from a backlog
    Drain,
    /// Rows per second through capture and derivation
    Capture,
    /// From commit to receipt
    Latency,
    /// A healthy webhook beside nine that hang
    Dead,
    /// A million due retries
    Pileup,
    /// A healthy webhook and a polite API client beside hostile receivers, slow API clients, and a
    /// tenant that attacks
    Hostile,
    /// A store that has grown
    Growth,
    /// Webhooks whose deliveries are sent in order
    Ordering,
    /// The cost for the application that writes
    Writer,
    /// One, two and four replicas: the cap on requests in flight
    Scale,
    /// A log store and two cells, beside a single store
    Cells,
}

impl Measure {
    pub const ALL: [Measure; 11] = [
        Measure::Drain,
        Measure::Capture,
        Measure::Latency,
        Measure::Dead,
        Measure::Hostile,
        Measure::Pileup,
        Measure::Ordering,
        Measure::Growth,
        Measure::Writer,
        Measure::Scale,
        Measure::Cells,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Measure::Drain => "drain",
            Measure::Capture => "capture",
            Measure::Latency => "latency",
            Measure::Dead => "dead",
            Measure::Hostile => "hostile",
            Measure::Pileup => "pileup",
            Measure::Ordering => "ordering",
            Measure::Growth => "growth",
            Measure::Writer => "writer",
            Measure::Scale => "scale",
            Measure::Cells => "cells",
        }
    }

    pub async fn run(self, plan: &Plan) -> anyhow::Result<Figures> {
        match self {
            Measure::Drain => drain::measure(plan).await,
            Measure::Capture => capture::measure(plan).await,
            Measure::Latency => latency::measure(plan).await,
            Measure::Dead => dead::measure(plan).await,
            Measure::Hostile => hostile::measure(plan).await,
            Measure::Pileup => pileup::measure(plan).await,
            Measure::Ordering => ordering::measure(plan).await,
            Measure::Growth => growth::measure(plan).await,
            Measure::Writer => writer::measure(plan).await,
            Measure::Scale => scale::measure(plan).await,
            Measure::Cells => cells::measure(plan).await,
        }
    }
}
