//! What a webhook's deliveries came to, as charts with a table beside each.

use jiff::{SignedDuration, Timestamp};

use super::answer::Count;
use super::charts::{Chart, Svg, Unit};
use super::time::Moment;
use crate::api::Summary;
use crate::domain::durations::Durations;
use crate::store::hours::Hour;

/// One stretch of time.
pub struct Panel {
    pub title: &'static str,
    /// Names its parts in the page.
    pub id: &'static str,
    pub unit: &'static str,
    pub rate: String,
    pub attempts: Count,
    pub failed: Count,
    pub p50: String,
    pub p95: String,
    pub is_empty: bool,
    pub rate_chart: Svg,
    pub latency_chart: Svg,
    pub rows: Vec<PanelRow>,
}

/// One hour or day.
pub struct PanelRow {
    pub at: Moment,
    pub delivered: Count,
    pub failed: Count,
    pub rate: String,
    pub p50: String,
    pub p95: String,
}

/// What one hour or day came to.
#[derive(Clone, Default)]
struct Period {
    delivered: u64,
    failed: u64,
    durations: Durations,
}

impl Period {
    fn attempts(&self) -> u64 {
        self.delivered + self.failed
    }

    fn rate(&self) -> Option<f64> {
        (self.attempts() > 0).then(|| self.delivered as f64 / self.attempts() as f64)
    }
}

const HOUR: i64 = 3_600;

/// The last 24 hours and the last 30 days, of hours the oldest of which is 30 days old.
pub fn panels(hours: &[Hour], now: Timestamp) -> [Panel; 2] {
    [
        panel("Last 24 hours", "day", Unit::Hour, 24, HOUR, hours, now),
        panel("Last 30 days", "month", Unit::Day, 30, 24 * HOUR, hours, now),
    ]
}

fn panel(
    title: &'static str,
    id: &'static str,
    unit: Unit,
    count: usize,
    length: i64,
    hours: &[Hour],
    now: Timestamp,
) -> Panel {
    // The last period is the one that now is in; days are those of UTC.
    let last = now.as_second().div_euclid(length);
    let first = last - (count as i64 - 1);
    let within = |hour: &&Hour| hour.begins_at.as_second().div_euclid(length) >= first;
    let mut periods = vec![Period::default(); count];
    for hour in hours.iter().filter(within) {
        let place = hour.begins_at.as_second().div_euclid(length) - first;
        let Some(period) = usize::try_from(place).ok().and_then(|place| periods.get_mut(place)) else { continue };
        period.delivered += hour.counts.delivered;
        period.failed += hour.counts.failed + hour.counts.permanently_failed;
        period.durations.merge(&hour.counts.durations);
    }
    let begin = |place: usize| Timestamp::from_second((first + place as i64) * length).unwrap_or(now);
    let times: Vec<Timestamp> = (0..count).map(begin).collect();
    let summary = Summary::of(hours.iter().filter(within));
    let failed = summary.failed + summary.permanently_failed;
    Panel {
        title,
        id,
        unit: unit.name(),
        rate: percent(summary.success_rate),
        attempts: Count(summary.delivered + failed),
        failed: Count(failed),
        p50: duration(summary.duration_ms.p50),
        p95: duration(summary.duration_ms.p95),
        is_empty: summary.delivered + failed == 0,
        rate_chart: rate_chart(title, unit, &times, &periods, summary.success_rate),
        latency_chart: latency_chart(title, unit, &times, &periods),
        rows: times.iter().zip(&periods).rev().filter(|(_, period)| period.attempts() > 0).map(row).collect(),
    }
}

fn row((at, period): (&Timestamp, &Period)) -> PanelRow {
    PanelRow {
        at: Moment::exact(*at),
        delivered: Count(period.delivered),
        failed: Count(period.failed),
        rate: percent(period.rate()),
        p50: duration(period.durations.quantile(0.5)),
        p95: duration(period.durations.quantile(0.95)),
    }
}

fn rate_chart(title: &str, unit: Unit, times: &[Timestamp], periods: &[Period], rate: Option<f64>) -> Svg {
    let label =
        format!("Success rate, {}: {} over all. The table has the numbers.", title.to_lowercase(), percent(rate));
    let lines = vec![("rate", periods.iter().map(Period::rate).collect())];
    let volume = periods.iter().map(Period::attempts).collect();
    Chart { label, times, unit, lines, highest: 1.0, scale: |share| format!("{:.0} %", share * 100.0), volume }.draw()
}

fn latency_chart(title: &str, unit: Unit, times: &[Timestamp], periods: &[Period]) -> Svg {
    let line = |share: f64| -> Vec<Option<f64>> {
        periods.iter().map(|period| period.durations.quantile(share).map(|millis| millis as f64)).collect()
    };
    let (p50, p95) = (line(0.5), line(0.95));
    let slowest = p95.iter().flatten().copied().fold(1.0, f64::max);
    let label =
        format!("Time to answer, {}: median and 95th percentile. The table has the numbers.", title.to_lowercase());
    let scale = |millis: f64| if millis == 0.0 { "0".to_owned() } else { duration(Some(millis.round() as u64)) };
    let lines = vec![("p95", p95), ("p50", p50)];
    Chart { label, times, unit, lines, highest: rounded_up(slowest), scale, volume: Vec::new() }.draw()
}

/// To a number that reads well at the top of a scale, and halved.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

/// A share, never rounded to all or nothing.
fn percent(share: Option<f64>) -> String {
    match share {
        None => "–".to_owned(),
        Some(share) if share >= 1.0 => "100 %".to_owned(),
        Some(share) if share <= 0.0 => "0 %".to_owned(),
        Some(share) => format!("{:.1} %", (share * 100.0).clamp(0.1, 99.9)),
    }
}

pub fn duration(millis: Option<u64>) -> String {
    match millis {
        None => "–".to_owned(),
        Some(0) => "< 1 ms".to_owned(),
        Some(millis @ 1..1_000) => format!("{millis} ms"),
        Some(millis) => format!("{:.1} s", millis as f64 / 1_000.0),
    }
}

/// The beginning of what is told of the last day.
pub fn a_day_before(now: Timestamp) -> Timestamp {
    now - SignedDuration::from_hours(24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::hours::Counts;

    #[test]
    fn a_few_failures_among_many_are_not_rounded_away() {
        assert_eq!(percent(Some(0.99999)), "99.9 %");
        assert_eq!(percent(Some(0.00001)), "0.1 %");
        assert_eq!((percent(Some(1.0)), percent(Some(0.0)), percent(None)), ("100 %".into(), "0 %".into(), "–".into()));
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!([1.0, 3.0, 45.0, 61.0, 999.0].map(rounded_up), [1.0, 4.0, 60.0, 80.0, 1_000.0]);
    }

    #[test]
    fn hours_fall_into_their_periods() {
        let now: Timestamp = "2026-03-10T09:30:00Z".parse().unwrap();
        let hour = |at: &str, delivered, failed| Hour {
            begins_at: at.parse().unwrap(),
            counts: Counts { delivered, failed, ..Counts::default() },
        };
        let hours = [
            hour("2026-03-01T00:00:00Z", 1, 1),
            hour("2026-03-09T09:00:00Z", 5, 0),
            hour("2026-03-09T10:00:00Z", 2, 0),
            hour("2026-03-10T09:00:00Z", 0, 1),
        ];
        let [day, month] = panels(&hours, now);
        assert_eq!((day.attempts.to_string(), day.rate.as_str(), day.rows.len()), ("3".into(), "66.7 %", 2));
        assert_eq!((month.attempts.to_string(), month.rows.len()), ("10".into(), 3));
        assert_eq!(month.rows[1].delivered.to_string(), "7", "the ninth of March");
    }
}
