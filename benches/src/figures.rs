//! What was measured: medians over the repeats with their spread, thresholds, the table and the JSON.

use std::fmt::Write;

use serde::Serialize;

/// One quantity, once for each repeat.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub measure: &'static str,
    pub name: String,
    pub unit: &'static str,
    pub repeats: Vec<f64>,
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub must: Option<Must>,
}

/// What the median has to be.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Must {
    AtLeast(f64),
    AtMost(f64),
}

impl Must {
    fn holds(self, value: f64) -> bool {
        match self {
            Must::AtLeast(bound) => value >= bound,
            Must::AtMost(bound) => value <= bound,
        }
    }
}

impl std::fmt::Display for Must {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Must::AtLeast(bound) => write!(f, "≥ {}", number(*bound)),
            Must::AtMost(bound) => write!(f, "≤ {}", number(*bound)),
        }
    }
}

impl Figure {
    pub fn is_met(&self) -> bool {
        self.must.is_none_or(|must| must.holds(self.median))
    }
}

/// The figures of one measure, in the order in which they were first recorded.
pub struct Figures {
    measure: &'static str,
    list: Vec<Figure>,
}

impl Figures {
    pub fn new(measure: &'static str) -> Figures {
        Figures { measure, list: Vec::new() }
    }

    /// Adds one repeat's value.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.add_bound(name, unit, value, None);
    }

    /// The same for what has to hold.
    pub fn require(&mut self, name: impl Into<String>, unit: &'static str, value: f64, must: Must) {
        self.add_bound(name, unit, value, Some(must));
    }

    fn add_bound(&mut self, name: impl Into<String>, unit: &'static str, value: f64, must: Option<Must>) {
        let name = name.into();
        let known = self.list.iter().position(|figure| figure.name == name);
        let index = known.unwrap_or_else(|| {
            let (repeats, measure) = (Vec::new(), self.measure);
            self.list.push(Figure { measure, name, unit, repeats, median: 0.0, lowest: 0.0, highest: 0.0, must });
            self.list.len() - 1
        });
        let figure = &mut self.list[index];
        figure.repeats.push(value);
        let mut sorted = figure.repeats.clone();
        sorted.sort_by(f64::total_cmp);
        figure.median = median(&sorted);
        (figure.lowest, figure.highest) = (sorted[0], sorted[sorted.len() - 1]);
    }

    pub fn into_list(self) -> Vec<Figure> {
        self.list
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// A quantile of samples that are sorted in place; `share` of them are at most the answer.
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = (samples.len() as f64 * share).ceil() as usize;
    samples.get(index.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Four significant digits at least, thousands apart.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left % 3 == 0 && digit.is_ascii_digit() && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// The table for people.
pub fn table(figures: &[Figure]) -> String {
    let header = ["measure", "figure", "unit", "median", "lowest to highest", "must be", ""].map(str::to_owned);
    let mut rows = vec![header];
    for figure in figures {
        let (must, verdict) = match figure.must {
            Some(must) => (must.to_string(), if figure.is_met() { "ok" } else { "MISSED" }),
            None => (String::new(), ""),
        };
        rows.push([
            figure.measure.to_owned(),
            figure.name.clone(),
            figure.unit.to_owned(),
            number(figure.median),
            format!("{} to {}", number(figure.lowest), number(figure.highest)),
            must,
            verdict.to_owned(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let fill = " ".repeat(widths[column] - cell.chars().count());
            // Numbers to the right, words to the left.
            let _ =
                if (3..5).contains(&column) { write!(text, "{fill}{cell}  ") } else { write!(text, "{cell}{fill}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_kept_with_its_spread_and_judged() {
        let mut figures = Figures::new("drain");
        for value in [3.0, 1.0, 2.0] {
            figures.require("rate", "1/s", value, Must::AtLeast(2.5));
        }
        let [figure] = &figures.into_list()[..] else { panic!("one figure is expected") };
        assert_eq!((figure.median, figure.lowest, figure.highest), (2.0, 1.0, 3.0));
        assert!(!figure.is_met());
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let mut samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut samples, 0.5), 500.0);
        assert_eq!(quantile(&mut samples, 0.999), 999.0);
        assert_eq!(quantile(&mut samples, 1.0), 1000.0);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [1_234_567.0, 12.345, 0.1234, 999.96, -1_234.0].map(number),
            ["1,234,567", "12.35", "0.123", "1,000.0", "-1,234"]
        );
    }
}
