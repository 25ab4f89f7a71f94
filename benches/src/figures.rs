//! Figures: one value per repeat, their median and spread, ratios of medians, thresholds, and the
//! printed table.

use std::fmt::Write;

use anyhow::{Context, ensure};
use serde::Serialize;

/// One quantity, once for each repeat.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub measure: &'static str,
    pub name: String,
    pub unit: &'static str,
    pub repeats: Vec<f64>,
    /// For a ratio, the quotient of the two figures' medians, so that the printed figures agree.
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    /// The figures that a ratio divides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_of: Option<[String; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub must: Option<Must>,
}

/// A threshold.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Must {
    /// For the median.
    AtLeast(f64),
    /// For the median.
    AtMost(f64),
    /// For the highest value of all repeats.
    NeverAbove(f64),
}

impl std::fmt::Display for Must {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Must::AtLeast(bound) => write!(f, "≥ {}", number(*bound)),
            Must::AtMost(bound) => write!(f, "≤ {}", number(*bound)),
            Must::NeverAbove(bound) => write!(f, "always ≤ {}", number(*bound)),
        }
    }
}

impl Figure {
    pub fn is_met(&self) -> bool {
        match self.must {
            Some(Must::AtLeast(bound)) => self.median >= bound,
            Some(Must::AtMost(bound)) => self.median <= bound,
            Some(Must::NeverAbove(bound)) => self.highest <= bound,
            None => true,
        }
    }

    /// Returns the line that reports a missed threshold.
    pub fn missed(&self) -> String {
        let Figure {
            measure,
            name,
            unit,
            ..
        } = self;

        let must = self.must.map(|must| must.to_string()).unwrap_or_default();
        let space = if unit.is_empty() { "" } else { " " };
        format!(
            "MISSED: {measure}: {name}: {}{space}{unit} ({}), must be {must}",
            number(self.median),
            self.spread()
        )
    }

    fn spread(&self) -> String {
        format!("{} to {}", number(self.lowest), number(self.highest))
    }

    fn set(&mut self, repeats: Vec<f64>, center: f64) {
        self.lowest = repeats.iter().copied().fold(f64::INFINITY, f64::min);
        self.highest = repeats.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (self.repeats, self.median) = (repeats, center);
    }
}

/// The figures of one measure, in the order in which they were first recorded.
pub struct Figures {
    measure: &'static str,
    list: Vec<Figure>,
}

impl Figures {
    pub fn new(measure: &'static str) -> Figures {
        Figures {
            measure,
            list: Vec::new(),
        }
    }

    /// Adds one repeat's value.
    pub fn add(&mut self, name: impl Into<String>, unit: &'static str, value: f64) {
        self.figure(name.into(), unit, None).repeats.push(value);
    }

    /// Adds one repeat's value of a figure that has a threshold.
    pub fn require(&mut self, name: impl Into<String>, unit: &'static str, value: f64, must: Must) {
        self.figure(name.into(), unit, Some(must))
            .repeats
            .push(value);
    }

    /// Declares the ratio of two figures that have one value each per repeat. Declaring it again
    /// changes nothing.
    pub fn ratio(&mut self, name: impl Into<String>, over: &str, under: &str, must: Option<Must>) {
        self.figure(name.into(), "", must).ratio_of = Some([over.to_owned(), under.to_owned()]);
    }

    fn figure(&mut self, name: String, unit: &'static str, must: Option<Must>) -> &mut Figure {
        let known = self.list.iter().position(|figure| figure.name == name);
        let index = known.unwrap_or_else(|| {
            let measure = self.measure;
            let repeats = Vec::new();
            let ratio_of = None;
            let median = f64::NAN;
            let lowest = f64::NAN;
            let highest = f64::NAN;

            self.list.push(Figure {
                measure,
                name,
                unit,
                repeats,
                median,
                lowest,
                highest,
                ratio_of,
                must,
            });

            self.list.len() - 1
        });

        &mut self.list[index]
    }

    /// Returns the figures with their medians. Fails if a ratio's figures are not paired.
    pub fn into_list(mut self) -> anyhow::Result<Vec<Figure>> {
        for index in 0..self.list.len() {
            let (repeats, center) = match &self.list[index].ratio_of {
                Some([over, under]) => self.paired(over, under)?,
                None => (
                    self.list[index].repeats.clone(),
                    median(&self.list[index].repeats),
                ),
            };
            self.list[index].set(repeats, center);
        }

        Ok(self.list)
    }

    /// The ratio of each pair, and the ratio of the medians.
    fn paired(&self, over: &str, under: &str) -> anyhow::Result<(Vec<f64>, f64)> {
        let find = |name: &str| {
            let figure = self
                .list
                .iter()
                .find(|figure| figure.name == name && figure.ratio_of.is_none());
            figure
                .map(|figure| &figure.repeats)
                .with_context(|| format!("{}: no figure `{name}`", self.measure))
        };

        let over_repeats = find(over)?;
        let under_repeats = find(under)?;
        let counts = (over_repeats.len(), under_repeats.len());

        ensure!(
            counts.0 == counts.1,
            "`{over}` has {} repeats, `{under}` has {}: they are not paired",
            counts.0,
            counts.1
        );

        let pairs = over_repeats
            .iter()
            .zip(under_repeats)
            .map(|(over, under)| over / under)
            .collect();
        Ok((pairs, median(over_repeats) / median(under_repeats)))
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);

    let middle = sorted.len() / 2;

    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns a quantile of the samples: the smallest value that at least `share` of them do not
/// exceed. Sorts them in place.
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = (samples.len() as f64 * share).ceil() as usize;
    samples
        .get(index.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Formats with at least four significant digits and grouped thousands.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };

    let text = format!("{value:.decimals$}");
    let (whole, rest) = text
        .split_once('.')
        .map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
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

/// Returns the table that is printed.
pub fn table(figures: &[Figure]) -> String {
    let header = [
        "measure",
        "figure",
        "unit",
        "median",
        "lowest to highest",
        "must be",
        "",
    ]
    .map(str::to_owned);

    let mut rows = vec![header];

    for figure in figures {
        let (must, verdict) = match figure.must {
            Some(must) => (
                must.to_string(),
                if figure.is_met() { "ok" } else { "MISSED" },
            ),
            None => (String::new(), ""),
        };

        rows.push([
            figure.measure.to_owned(),
            figure.name.clone(),
            figure.unit.to_owned(),
            number(figure.median),
            figure.spread(),
            must,
            verdict.to_owned(),
        ]);
    }

    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };

    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();

    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let fill = " ".repeat(widths[column] - cell.chars().count());

            // Numbers are aligned right, words left.
            let _ = if (3..5).contains(&column) {
                write!(text, "{fill}{cell}  ")
            } else {
                write!(text, "{cell}{fill}  ")
            };
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
    fn a_threshold_applies_to_the_median_or_to_the_highest_value() {
        let mut figures = Figures::new("drain");

        for value in [3.0, 1.0, 2.0] {
            figures.require("rate", "1/s", value, Must::AtLeast(2.5));
            figures.require("memory", "MB", value, Must::NeverAbove(2.5));
        }

        let list = figures.into_list().unwrap();
        assert_eq!(
            (list[0].median, list[0].lowest, list[0].highest),
            (2.0, 1.0, 3.0)
        );
        assert!(!list[0].is_met());

        // The median is within the bound, the highest is not.
        assert!(!list[1].is_met());
        assert_eq!(
            list[0].missed(),
            "MISSED: drain: rate: 2.000 1/s (1.000 to 3.000), must be ≥ 2.500"
        );
    }

    #[test]
    fn a_ratio_divides_medians_and_its_spread_is_that_of_the_pairs() {
        let mut figures = Figures::new("dead");

        for (alone, beside) in [(1.0, 2.0), (2.0, 2.0), (4.0, 6.0)] {
            figures.add("alone", "ms", alone);
            figures.add("beside", "ms", beside);
            figures.ratio("beside / alone", "beside", "alone", Some(Must::AtMost(1.2)));
        }

        let list = figures.into_list().unwrap();
        let ratio = &list[2];

        assert_eq!(ratio.median, list[1].median / list[0].median);
        assert_eq!((ratio.lowest, ratio.median, ratio.highest), (1.0, 1.0, 2.0));
        assert_eq!(ratio.repeats, [2.0, 1.0, 1.5]);
        assert!(ratio.is_met());
    }

    #[test]
    fn figures_that_are_not_paired_have_no_ratio() {
        let mut figures = Figures::new("dead");
        figures.add("alone", "ms", 1.0);
        figures.add("beside", "ms", 1.0);
        figures.add("beside", "ms", 2.0);
        figures.ratio("beside / alone", "beside", "alone", None);

        assert!(
            figures
                .into_list()
                .unwrap_err()
                .to_string()
                .contains("not paired")
        );

        let mut figures = Figures::new("dead");
        figures.ratio("beside / alone", "beside", "alone", None);
        assert!(figures.into_list().is_err());
    }

    #[test]
    fn quantiles_are_measured_values() {
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
