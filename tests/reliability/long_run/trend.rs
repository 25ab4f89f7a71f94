//! The slope of a measured quantity over time, by least squares, with its confidence.

/// Consecutive samples depend on each other, so that their scatter says little about the slope's
/// error. The means of this many equal parts of the time hardly do.
const PARTS: usize = 20;
/// The 97.5 % quantile of Student's distribution with `PARTS - 2` degrees of freedom.
const QUANTILE: f64 = 2.101;

/// A slope per minute and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    pub slope: f64,
    pub low: f64,
    pub high: f64,
    pub mean: f64,
    pub minutes: f64,
}

impl Trend {
    /// Computes the trend of samples of (seconds, value), in the order of their times. None if they
    /// are too few.
    pub fn of(samples: &[(f64, f64)]) -> Option<Trend> {
        let first = samples.first()?.0;
        let last = samples.last()?.0;
        let mut sums = [(0.0, 0.0, 0_u32); PARTS];

        for (seconds, value) in samples {
            let part = ((seconds - first) / (last - first) * PARTS as f64) as usize;
            let (seconds_sum, values, count) = &mut sums[part.min(PARTS - 1)];
            (*seconds_sum, *values, *count) = (*seconds_sum + seconds, *values + value, *count + 1);
        }

        if sums.iter().any(|(.., count)| *count == 0) {
            return None;
        }

        let points = sums.map(|(seconds, values, count)| {
            (seconds / f64::from(count) / 60.0, values / f64::from(count))
        });

        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / PARTS as f64;
        let x = mean(|point| point.0);
        let y = mean(|point| point.1);
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let slope = points
            .iter()
            .map(|point| (point.0 - x) * (point.1 - y))
            .sum::<f64>()
            / spread;
        let residuals: f64 = points
            .iter()
            .map(|point| (point.1 - y - slope * (point.0 - x)).powi(2))
            .sum();
        let error = (residuals / (PARTS - 2) as f64 / spread).sqrt();
        let low = slope - QUANTILE * error;
        let high = slope + QUANTILE * error;

        Some(Trend {
            slope,
            low,
            high,
            mean: y,
            minutes: (last - first) / 60.0,
        })
    }
}

impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Trend {
            slope,
            low,
            high,
            mean,
            minutes,
        } = self;
        write!(
            f,
            "{slope:+.2} per minute (95 % between {low:+.2} and {high:+.2}), mean {mean:.0}, over {minutes:.1} minutes"
        )
    }
}

#[test]
fn a_slope_is_found_in_noise_and_noise_is_no_slope() {
    let mut random = super::seed::Random::new(1, 0);
    let mut samples = |per_minute: f64| -> Vec<(f64, f64)> {
        let noise = |random: &mut super::seed::Random| random.below(2_000) as f64 - 1_000.0;
        (0..600)
            .map(|n| {
                (
                    f64::from(n) * 2.0,
                    50_000.0 + f64::from(n) / 30.0 * per_minute + noise(&mut random),
                )
            })
            .collect()
    };

    let rising = Trend::of(&samples(200.0)).unwrap();
    assert!(
        (150.0..250.0).contains(&rising.slope) && rising.low > 100.0,
        "{rising}"
    );

    let flat = Trend::of(&samples(0.0)).unwrap();
    assert!(
        flat.low < 0.0 && flat.high > 0.0 && flat.high < 50.0,
        "{flat}"
    );
    assert_eq!(Trend::of(&samples(0.0)[..10]), None);
}
