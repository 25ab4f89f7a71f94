//! The statistics of a webhook as two panels with charts and a table: the last 24 hours by hour,
//! the last 30 days by day.

use jiff::{SignedDuration, Timestamp};

use super::charts::{Chart, Unit};
use super::format::{Millis, Percent};
use crate::manage::{Counts, Hour};

/// The statistics of one time range.
pub struct Panel {
    pub title: &'static str,
    /// Prefix of the HTML IDs.
    pub id: &'static str,
    pub unit: Unit,
    pub total: Counts,
    /// Oldest first.
    pub periods: Vec<StatsPeriod>,
    pub rate_chart: Chart,
    pub latency_chart: Chart,
}

impl Panel {
    /// Returns the periods with attempts, newest first.
    pub fn rows(&self) -> impl Iterator<Item = &StatsPeriod> {
        self.periods
            .iter()
            .rev()
            .filter(|period| period.counts.attempts() > 0)
    }
}

/// One hour or day.
pub struct StatsPeriod {
    pub at: Timestamp,
    pub counts: Counts,
}

/// Returns the panels for hours of the last 30 days.
pub fn panels(hours: &[Hour], now: Timestamp) -> [Panel; 2] {
    [
        panel("Last 24 hours", "day", Unit::Hour, 24, hours, now),
        panel("Last 30 days", "month", Unit::Day, 30, hours, now),
    ]
}

fn panel(
    title: &'static str,
    id: &'static str,
    unit: Unit,
    count: i64,
    hours: &[Hour],
    now: Timestamp,
) -> Panel {
    // The last period contains `now`. Days are in UTC.
    let period_of = |at: Timestamp| at.as_second().div_euclid(unit.seconds());
    let last = period_of(now);

    let of = |period: i64| StatsPeriod {
        at: Timestamp::from_second(period * unit.seconds()).unwrap_or(now),
        counts: Counts::sum(
            hours
                .iter()
                .filter(|hour| period_of(hour.begins_at) == period),
        ),
    };

    let periods: Vec<StatsPeriod> = (last - count + 1..=last).map(of).collect();
    let total = Counts::sum(
        hours
            .iter()
            .filter(|hour| period_of(hour.begins_at) > last - count),
    );
    let rate_chart = rate_chart(title, unit, &periods, &total);
    let latency_chart = latency_chart(title, unit, &periods);

    Panel {
        title,
        id,
        unit,
        total,
        periods,
        rate_chart,
        latency_chart,
    }
}

fn rate_chart(title: &str, unit: Unit, periods: &[StatsPeriod], total: &Counts) -> Chart {
    let rate = Percent(total.success_rate());
    Chart {
        label: format!(
            "Success rate, {}: {rate} overall. The table below has the numbers.",
            title.to_lowercase()
        ),
        times: periods.iter().map(|period| period.at).collect(),
        unit,
        lines: vec![(
            "rate",
            periods
                .iter()
                .map(|period| period.counts.success_rate())
                .collect(),
        )],
        highest: 1.0,
        scale: |share| format!("{:.0} %", share * 100.0),
        volume: periods
            .iter()
            .map(|period| period.counts.attempts())
            .collect(),
    }
}

fn latency_chart(title: &str, unit: Unit, periods: &[StatsPeriod]) -> Chart {
    let quantiles = |share: f64| -> Vec<Option<f64>> {
        let of = |period: &StatsPeriod| {
            period
                .counts
                .durations
                .quantile(share)
                .map(|millis| millis as f64)
        };
        periods.iter().map(of).collect()
    };

    let p50 = quantiles(0.5);
    let p95 = quantiles(0.95);
    // At least two milliseconds, so that half of it is another whole number.
    let slowest = p95.iter().flatten().copied().fold(2.0, f64::max);

    Chart {
        label: format!(
            "Response time, {}: median and 95th percentile. The table below has the numbers.",
            title.to_lowercase()
        ),
        times: periods.iter().map(|period| period.at).collect(),
        unit,
        lines: vec![("p95", p95), ("p50", p50)],
        highest: rounded_up(slowest),
        scale: |millis| {
            if millis == 0.0 {
                "0".to_owned()
            } else {
                Millis(Some(millis.round() as u64)).to_string()
            }
        },
        volume: Vec::new(),
    }
}

/// Rounds up to a number that reads well at the top of a scale, whole and halved.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        .map(|step| step * power)
        .into_iter()
        .find(|step| *step >= value)
        .unwrap_or(value)
}

/// Returns the time 24 hours before `now`.
pub fn day_before(now: Timestamp) -> Timestamp {
    now - SignedDuration::from_hours(24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(
            [1.0, 3.0, 45.0, 61.0, 999.0].map(rounded_up),
            [1.0, 4.0, 60.0, 80.0, 1_000.0]
        );
    }

    /// The labels of a scale are its values, rounded.
    #[test]
    fn a_scale_has_different_labels_however_fast_a_receiver_is() {
        for slowest in [0, 1, 2, 3, 5, 9, 61, 999, 1_001, 2_500] {
            let mut counts = Counts::default();
            counts.durations.add(slowest);
            let period = StatsPeriod {
                at: Timestamp::UNIX_EPOCH,
                counts,
            };

            let chart = latency_chart("x", Unit::Hour, &[period]);
            let labels = [0.0, 0.5, 1.0].map(|share| (chart.scale)(chart.highest * share));
            let distinct: std::collections::BTreeSet<_> = labels.iter().collect();
            assert_eq!(distinct.len(), 3, "{slowest}: {labels:?}");
        }
    }

    #[test]
    fn hours_are_counted_in_their_periods() {
        let now: Timestamp = "2026-03-10T09:30:00Z".parse().unwrap();
        let hour = |at: &str, delivered, failed| Hour {
            begins_at: at.parse().unwrap(),
            counts: Counts {
                delivered,
                failed,
                ..Counts::default()
            },
        };

        let hours = [
            hour("2026-03-01T00:00:00Z", 1, 1),
            hour("2026-03-09T09:00:00Z", 5, 0),
            hour("2026-03-09T10:00:00Z", 2, 0),
            hour("2026-03-10T09:00:00Z", 0, 1),
        ];

        let [day, month] = panels(&hours, now);
        let busy = |panel: &Panel| {
            panel
                .periods
                .iter()
                .filter(|period| period.counts.attempts() > 0)
                .count()
        };

        assert_eq!((day.total.attempts(), busy(&day)), (3, 2));
        assert_eq!(Percent(day.total.success_rate()).to_string(), "66.7 %");
        assert_eq!((month.total.attempts(), busy(&month)), (10, 3));
        assert_eq!(month.periods[28].counts.delivered, 7, "9 March");
    }
}
