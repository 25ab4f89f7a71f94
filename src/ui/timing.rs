//! How long the parts of a request took, as a bar.

use std::time::Duration;

use super::format::Millis;
use crate::domain::delivery::Timing;

/// The parts of an attempt, in their order.
pub struct TimingBar {
    pub parts: Vec<TimingPart>,
    /// Whether the request was sent on an open connection.
    pub is_reused: bool,
}

/// A part, and its place in a bar of 1,000 units.
pub struct TimingPart {
    pub name: &'static str,
    /// The class of its colour.
    pub class: &'static str,
    pub millis: u64,
    pub x: u64,
    pub width: u64,
}

impl TimingPart {
    pub fn shown(&self) -> Millis<Option<u64>> {
        Millis(Some(self.millis))
    }
}

impl TimingBar {
    pub fn new(timing: &Timing, duration_ms: Option<i32>) -> TimingBar {
        let total = duration_ms
            .and_then(|millis| u64::try_from(millis).ok())
            .unwrap_or(0);
        let millis = |part: Option<Duration>| part.map(|part| part.as_millis() as u64);
        let measured = [
            ("DNS", "dns", millis(timing.dns)),
            ("Connect", "connect", millis(timing.connect)),
            ("TLS", "tls", millis(timing.tls)),
            ("Wait", "wait", millis(timing.wait)),
        ];

        let sum: u64 = measured.iter().filter_map(|(_, _, millis)| *millis).sum();
        let rest = total.checked_sub(sum).filter(|rest| *rest > 0);
        let rest = rest.filter(|_| timing.wait.is_some());
        let all = measured.into_iter().chain([("Body", "body", rest)]);
        let whole = total.max(sum).max(1);
        let mut begin = 0;
        let mut parts = Vec::new();

        for (name, class, millis) in all {
            let Some(millis) = millis else {
                continue;
            };

            parts.push(TimingPart {
                name,
                class,
                millis,
                x: begin * 1_000 / whole,
                width: millis * 1_000 / whole,
            });
            begin += millis;
        }

        TimingBar {
            parts,
            is_reused: timing.connect.is_none() && timing.dns.is_none() && timing.wait.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_bar() {
        let millis = |millis| Some(Duration::from_millis(millis));
        let timing = Timing {
            dns: None,
            connect: millis(10),
            tls: millis(20),
            wait: millis(60),
        };
        let bar = TimingBar::new(&timing, Some(100));
        let places: Vec<(&str, u64, u64)> = bar
            .parts
            .iter()
            .map(|part| (part.name, part.x, part.width))
            .collect();

        let expected = [
            ("Connect", 0, 100),
            ("TLS", 100, 200),
            ("Wait", 300, 600),
            ("Body", 900, 100),
        ];
        assert_eq!(places, expected);
        assert!(!bar.is_reused);
        assert!(TimingBar::new(&Timing::default(), None).parts.is_empty());
    }
}
