//! The demo's output: a live table on a terminal, plain lines otherwise.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::receiver::{ReceivedDelivery, ReceivedOutcome};
use crate::domain::event::EventKind;

const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts deliveries and shows the counts.
pub struct Screen {
    wanted: Option<u64>,
    pub verified: u64,
    pub rejected: u64,
    pub unverified: u64,
    by_event: BTreeMap<&'static str, u64>,
    started: Instant,
    last_line: Instant,
    table: Option<ScreenTable>,
}

struct ScreenTable {
    rows: BTreeMap<&'static str, ProgressBar>,
    total: ProgressBar,
}

impl Screen {
    pub fn new(wanted: Option<u64>) -> Screen {
        let now = Instant::now();
        let table = std::io::stderr()
            .is_terminal()
            .then(|| ScreenTable::new(wanted));
        let by_event = EventKind::ALL
            .iter()
            .map(|kind| (kind.as_str(), 0))
            .collect();

        Screen {
            wanted,
            verified: 0,
            rejected: 0,
            unverified: 0,
            by_event,
            started: now,
            last_line: now,
            table,
        }
    }

    /// Counts a delivery. Returns true when the wanted number is reached.
    pub fn show(&mut self, delivery: &ReceivedDelivery) -> bool {
        match &delivery.outcome {
            ReceivedOutcome::Verified => self.verified += 1,
            ReceivedOutcome::RejectedOnPurpose => self.rejected += 1,
            ReceivedOutcome::Unverified(reason) => {
                self.unverified += 1;
                self.print(&format!(
                    "unverified: {} {}: {reason}",
                    delivery.event, delivery.id
                ));
            }
        }

        if delivery.outcome == ReceivedOutcome::Verified {
            self.count(delivery);
        }

        self.wanted.is_some_and(|wanted| self.verified >= wanted)
    }

    fn count(&mut self, delivery: &ReceivedDelivery) {
        let rate = self.verified as f64 / self.elapsed();
        let Some((event, count)) = self
            .by_event
            .iter_mut()
            .find(|(event, _)| **event == delivery.event)
        else {
            return;
        };

        *count += 1;
        let count = *count;
        let event = *event;
        let last = format!("{rate:.1}/s, last {event} (attempt {})", delivery.attempt);

        if let Some(table) = &self.table {
            table.rows[event].set_position(count);
            let kinds = self.by_event.values().filter(|count| **count > 0).count() as u64;
            let (position, message) = match self.wanted {
                Some(_) => (self.verified, last),
                None => (kinds, format!("{} verified, {last}", self.verified)),
            };

            table.total.set_position(position);
            table.total.set_message(message);
        } else if self.verified == 1 || self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            println!("{} verified, {last}", self.verified);
        }
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64().max(0.001)
    }

    /// Prints a line that stays above the table.
    fn print(&self, line: &str) {
        match &self.table {
            Some(table) => table.total.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// Prints the final counts.
    pub fn print_summary(&self) {
        if let Some(table) = &self.table {
            table.clear();
        }

        println!();

        for (event, count) in &self.by_event {
            println!("{count:>8}  {event}");
        }

        println!(
            "{:>8}  verified in {:.1} s, {} rejected on purpose and retried, {} unverified",
            self.verified,
            self.elapsed(),
            self.rejected,
            self.unverified
        );
    }
}

impl ScreenTable {
    fn new(wanted: Option<u64>) -> ScreenTable {
        let bars = MultiProgress::new();
        let style = |template: &str| {
            let style =
                ProgressStyle::with_template(template).expect("a constant template is well-formed");
            style.progress_chars("=> ")
        };

        let mut rows = BTreeMap::new();

        for kind in EventKind::ALL {
            let row = bars.add(ProgressBar::no_length().with_style(style("{pos:>8}  {prefix}")));
            row.set_prefix(kind.as_str());
            row.tick();
            rows.insert(kind.as_str(), row);
        }

        // Without a wanted number, the bar shows how many event types were delivered.
        let (length, template) = match wanted {
            Some(wanted) => (wanted, "{pos:>8}  of {len} verified [{bar:24}] {wide_msg}"),
            None => (
                EventKind::ALL.len() as u64,
                "{pos:>8}  of {len} event types [{bar:24}] {wide_msg}",
            ),
        };

        ScreenTable {
            rows,
            total: bars.add(ProgressBar::new(length).with_style(style(template))),
        }
    }

    fn clear(&self) {
        self.rows.values().for_each(ProgressBar::finish_and_clear);
        self.total.finish_and_clear();
    }
}
