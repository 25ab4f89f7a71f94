//! Charts as SVG: of numbers and constants alone, without styles of their own.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;
use jiff::Timestamp;

use super::answer::Count;
use crate::domain::time::millis;

/// A drawing.
pub struct Svg(String);

impl fmt::Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Svg {}

/// Successes and failures, period by period.
pub struct Bars(pub Vec<(u64, u64)>);

impl Bars {
    /// As high as a line of text.
    pub fn sparkline(&self) -> Svg {
        const HEIGHT: f64 = 28.0;
        let (good, bad) = self.0.iter().fold((0, 0), |sum, bar| (sum.0 + bar.0, sum.1 + bar.1));
        let width = self.0.len() * 4;
        let label = format!("Last 24 hours: {} delivered, {} failed", Count(good), Count(bad));
        let mut svg = format!(
            r#"<svg class="sparkline" role="img" aria-label="{label}" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}">"#
        );
        let highest = self.0.iter().map(|(good, bad)| good + bad).max().unwrap_or(0).max(1) as f64;
        for (place, (good, bad)) in self.0.iter().enumerate() {
            let x = place * 4;
            let part = |count: u64| if count == 0 { 0.0 } else { (count as f64 / highest * HEIGHT).max(1.5) };
            let (high_good, high_bad) = (part(*good), part(*bad).min(HEIGHT));
            let high_good = high_good.min(HEIGHT - high_bad);
            if good + bad == 0 {
                bar(&mut svg, "none", x as f64, HEIGHT - 1.0, 3.0, 1.0);
            }
            bar(&mut svg, "good", x as f64, HEIGHT - high_good, 3.0, high_good);
            bar(&mut svg, "bad", x as f64, HEIGHT - high_good - high_bad, 3.0, high_bad);
        }
        svg.push_str("</svg>");
        Svg(svg)
    }
}

fn bar(svg: &mut String, class: &str, x: f64, y: f64, width: f64, height: f64) {
    if height > 0.0 {
        let _ = write!(svg, r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#);
    }
}

/// A chart over time: its lines, over the bars of how much there was.
pub struct Chart<'a> {
    /// Names it for those who do not see it.
    pub label: String,
    pub times: &'a [Timestamp],
    /// How long each of them lasts.
    pub unit: Unit,
    /// None where there is nothing to tell.
    pub lines: Vec<(&'static str, Vec<Option<f64>>)>,
    /// The top of the scale.
    pub highest: f64,
    /// What a value on the scale reads as.
    pub scale: fn(f64) -> String,
    pub volume: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Hour,
    Day,
}

impl Unit {
    pub fn show(self, at: Timestamp) -> String {
        let form = if self == Unit::Hour { "%H:%M" } else { "%d %b" };
        at.strftime(form).to_string()
    }

    pub fn name(self) -> &'static str {
        if self == Unit::Hour { "hour" } else { "day" }
    }
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 54.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 146.0;

impl Chart<'_> {
    pub fn draw(&self) -> Svg {
        let mut svg = format!(
            r#"<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="xMidYMid meet">"#,
            self.label
        );
        self.draw_scale(&mut svg);
        let most = self.volume.iter().copied().max().unwrap_or(0).max(1) as f64;
        for (place, count) in self.volume.iter().enumerate() {
            let height = *count as f64 / most * (BOTTOM - TOP);
            let (x, step) = (self.x(place), self.step());
            bar(&mut svg, "volume", x - step * 0.36, BOTTOM - height, step * 0.72, height);
        }
        for (class, values) in &self.lines {
            self.draw_line(&mut svg, class, values);
        }
        svg.push_str("</svg>");
        Svg(svg)
    }

    fn step(&self) -> f64 {
        (WIDTH - LEFT - 6.0) / self.times.len().max(1) as f64
    }

    fn x(&self, place: usize) -> f64 {
        LEFT + self.step() * (place as f64 + 0.5)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (value / self.highest).clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    fn draw_scale(&self, svg: &mut String) {
        for share in [0.0, 0.5, 1.0] {
            let y = self.y(self.highest * share);
            let text = (self.scale)(self.highest * share);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1}" y2="{y:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{text}</text>"#,
                LEFT - 6.0,
                y + 4.0
            );
        }
        let last = self.times.len().saturating_sub(1);
        for (place, anchor) in [(0, "start"), (last / 2, "middle"), (last, "end")] {
            let Some(at) = self.times.get(place) else { continue };
            let (x, machine, text) = (self.x(place), millis(*at), self.unit.show(*at));
            let unit = self.unit.name();
            let _ = write!(
                svg,
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="{anchor}" data-{unit}="{machine}">{text}</text>"#,
                HEIGHT - 6.0
            );
        }
    }

    /// Points that follow each other are joined; one by itself is a dot.
    fn draw_line(&self, svg: &mut String, class: &str, values: &[Option<f64>]) {
        let mut path = String::new();
        let mut joined = false;
        for (place, value) in values.iter().enumerate() {
            let Some(value) = value else {
                joined = false;
                continue;
            };
            let (x, y) = (self.x(place), self.y(*value));
            let _ = write!(path, "{}{x:.1} {y:.1}", if joined { "L" } else { "M" });
            let _ = write!(svg, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="2"/>"#);
            joined = true;
        }
        let _ = write!(svg, r#"<path class="{class}" d="{path}"/>"#);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_among_thousands_is_seen() {
        let Svg(svg) = Bars(vec![(0, 0), (10_000, 1)]).sparkline();
        assert!(svg.contains(r#"class="bad" x="4.0" y="0.0" width="3.0" height="1.5""#), "{svg}");
        assert!(svg.contains("10,000 delivered, 1 failed"), "{svg}");
    }

    #[test]
    fn a_gap_in_the_values_is_a_gap_in_the_line() {
        let times = [0, 3_600, 7_200, 10_800].map(|second| Timestamp::from_second(second).unwrap());
        let lines = vec![("rate", vec![Some(1.0), Some(0.5), None, Some(0.0)])];
        let scale = |value: f64| format!("{value}");
        let label = "x".into();
        let chart = Chart { label, times: &times, unit: Unit::Hour, lines, highest: 1.0, scale, volume: vec![0; 4] };
        let Svg(svg) = chart.draw();
        let path = svg.split("d=\"").nth(1).unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1), "{svg}");
    }
}
