//! Charts as SVG without inline styles, which the content security policy forbids. The templates
//! draw; this file computes coordinates.

use std::fmt::{self, Write};

use askama::Template;
use jiff::Timestamp;

use super::format::Count;
use crate::domain::time::millis;

/// A coordinate. One decimal is enough, and keeps pages small.
#[derive(Clone, Copy)]
struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

/// Delivered and failed attempts per period as bars, as high as a line of text.
#[derive(Template)]
#[template(path = "ui/sparkline.svg", escape = "html")]
pub struct Sparkline(pub Vec<(u64, u64)>);

const SPARK_HEIGHT: f64 = 28.0;
/// The minimum height of a part of a bar, so that a single failure among thousands of attempts is
/// visible.
const MIN_PART: f64 = 1.5;

impl Sparkline {
    fn delivered(&self) -> u64 {
        self.0.iter().map(|(delivered, _)| delivered).sum()
    }

    fn failed(&self) -> u64 {
        self.0.iter().map(|(_, failed)| failed).sum()
    }

    /// Returns class, x, y and height of each part of a bar.
    fn parts(&self) -> Vec<(&'static str, usize, Px, Px)> {
        let highest = self
            .0
            .iter()
            .map(|(delivered, failed)| delivered + failed)
            .max()
            .unwrap_or(0)
            .max(1) as f64;

        let height = |count: u64| match count {
            0 => 0.0,
            count => (count as f64 / highest * SPARK_HEIGHT).clamp(MIN_PART, SPARK_HEIGHT),
        };

        let bar = |(index, (delivered, failed)): (usize, &(u64, u64))| {
            let bad = height(*failed);
            let good = height(*delivered).min(SPARK_HEIGHT - bad);
            let none = if delivered + failed == 0 { 1.0 } else { 0.0 };

            [
                ("none", none, none),
                ("good", good, good),
                ("bad", good + bad, bad),
            ]
            .map(|(class, top, height)| (class, index * 4, Px(SPARK_HEIGHT - top), Px(height)))
        };

        self.0
            .iter()
            .enumerate()
            .flat_map(bar)
            .filter(|(_, _, _, height)| height.0 > 0.0)
            .collect()
    }
}

/// The length of a period of a chart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Hour,
    Day,
}

impl Unit {
    pub fn seconds(self) -> i64 {
        if self == Unit::Hour {
            3_600
        } else {
            24 * 3_600
        }
    }

    pub fn name(self) -> &'static str {
        if self == Unit::Hour { "hour" } else { "day" }
    }

    fn format(self, at: Timestamp) -> String {
        at.strftime(if self == Unit::Hour { "%H:%M" } else { "%m-%d" })
            .to_string()
    }
}

/// Lines over time, in front of bars for the number of attempts.
#[derive(Template)]
#[template(path = "ui/chart.svg", escape = "html")]
pub struct Chart {
    /// Describes the chart to screen readers.
    pub label: String,
    /// The start of each period.
    pub times: Vec<Timestamp>,
    pub unit: Unit,
    /// Class and values of each line. None leaves a gap.
    pub lines: Vec<(&'static str, Vec<Option<f64>>)>,
    /// The top of the scale.
    pub highest: f64,
    /// Formats a value on the scale.
    pub scale: fn(f64) -> String,
    pub volume: Vec<u64>,
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 54.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 146.0;

impl Chart {
    fn step(&self) -> f64 {
        (WIDTH - LEFT - 6.0) / self.times.len().max(1) as f64
    }

    fn x(&self, index: usize) -> Px {
        Px(LEFT + self.step() * (index as f64 + 0.5))
    }

    fn y(&self, value: f64) -> Px {
        Px(BOTTOM - (value / self.highest).clamp(0.0, 1.0) * (BOTTOM - TOP))
    }

    /// Returns position and text of each grid line.
    fn grid(&self) -> [(Px, Px, String); 3] {
        [0.0, 0.5, 1.0].map(|share| {
            let value = self.highest * share;
            (
                self.y(value),
                Px(self.y(value).0 + 4.0),
                (self.scale)(value),
            )
        })
    }

    /// Returns x, alignment, machine-readable time and text of each label of the time axis.
    fn time_labels(&self) -> Vec<(Px, &'static str, String, String)> {
        let last = self.times.len().saturating_sub(1);
        let label = |(index, anchor): (usize, &'static str)| {
            let at = *self.times.get(index)?;
            Some((self.x(index), anchor, millis(at), self.unit.format(at)))
        };

        [(0, "start"), (last / 2, "middle"), (last, "end")]
            .into_iter()
            .filter_map(label)
            .collect()
    }

    /// Returns x, y, width and height of each bar.
    fn bars(&self) -> Vec<(Px, Px, Px, Px)> {
        let most = self.volume.iter().copied().max().unwrap_or(0).max(1) as f64;
        let bar = |(index, count): (usize, &u64)| {
            let height = *count as f64 / most * (BOTTOM - TOP);
            let x = self.x(index).0 - self.step() * 0.36;
            let width = self.step() * 0.72;
            (Px(x), Px(BOTTOM - height), Px(width), Px(height))
        };

        self.volume
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(bar)
            .collect()
    }

    fn points(&self, values: &[Option<f64>]) -> Vec<(Px, Px)> {
        let point = |(index, value): (usize, &Option<f64>)| {
            value.map(|value| (self.x(index), self.y(value)))
        };
        values.iter().enumerate().filter_map(point).collect()
    }

    /// Returns the path that joins adjacent points.
    fn path(&self, values: &[Option<f64>]) -> String {
        let mut path = String::new();
        let mut command = 'M';

        for (index, value) in values.iter().enumerate() {
            if let Some(value) = value {
                let _ = write!(path, "{command}{} {}", self.x(index), self.y(*value));
            }

            command = if value.is_some() { 'L' } else { 'M' };
        }

        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_among_thousands_is_visible() {
        let svg = Sparkline(vec![(0, 0), (10_000, 1)]).render().unwrap();
        assert!(
            svg.contains(r#"class="bad" x="4" y="0.0" width="3" height="1.5""#),
            "{svg}"
        );
        assert!(svg.contains("10,000 delivered, 1 failed"), "{svg}");
    }

    #[test]
    fn a_gap_in_the_values_is_a_gap_in_the_line() {
        let times = [0, 3_600, 7_200, 10_800]
            .map(|second| Timestamp::from_second(second).unwrap())
            .into();
        let lines = vec![("rate", vec![Some(1.0), Some(0.5), None, Some(0.0)])];
        let scale = |value: f64| format!("{value}");
        let label = "x".into();

        let svg = Chart {
            label,
            times,
            unit: Unit::Hour,
            lines,
            highest: 1.0,
            scale,
            volume: vec![0; 4],
        };

        let svg = svg.render().unwrap();
        let path = svg.split(" d=\"").nth(1).unwrap();
        assert_eq!(
            (path.matches('M').count(), path.matches('L').count()),
            (2, 1),
            "{svg}"
        );
    }
}
