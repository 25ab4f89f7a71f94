//! A histogram of request durations, from which percentiles are estimated.

/// The number of buckets. Bucket `i` counts durations up to √2ⁱ ms that exceed the previous bucket.
/// The last one also counts everything longer (from 33 s).
pub const BUCKETS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations([u64; BUCKETS]);

impl Default for Durations {
    fn default() -> Self {
        Durations([0; BUCKETS])
    }
}

impl Durations {
    pub fn add(&mut self, millis: u64) {
        let bucket = match millis {
            0 | 1 => 0,
            // Slightly less, so that rounding does not put a power of two into the next bucket.
            millis => ((millis as f64).log2() * 2.0 - 1e-9).ceil() as usize,
        };
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Adds the counts of all buckets, in order.
    pub fn add_counts(&mut self, counts: &[i32]) {
        for (bucket, count) in self.0.iter_mut().zip(counts) {
            *bucket += u64::try_from(*count).unwrap_or(0);
        }
    }

    pub fn merge(&mut self, other: &Durations) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(bucket, count)| *bucket += count);
    }

    pub fn counts(&self) -> impl Iterator<Item = i32> {
        self.0
            .iter()
            .map(|count| i32::try_from(*count).unwrap_or(i32::MAX))
    }

    /// Returns the estimated quantile in milliseconds, or None if there are no requests. The error
    /// is at most a fifth, because the result is the middle of a bucket.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;

        Some(if bucket == 0 {
            1
        } else {
            ((bucket as f64 - 0.5) / 2.0).exp2().round() as u64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_a_fifth() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        (1..=1_000).for_each(|millis| durations.add(millis));

        for (quantile, exact) in [(0.05, 50.0), (0.5, 500.0), (0.95, 950.0), (1.0, 1_000.0)] {
            let estimate = durations.quantile(quantile).unwrap() as f64;
            assert!(
                (estimate / exact).ln().abs() < 0.2,
                "{quantile}: {estimate}, not {exact}"
            );
        }
    }

    #[test]
    fn the_last_bucket_counts_everything_longer() {
        let mut durations = Durations::default();
        durations.add(u64::MAX);
        assert_eq!(durations.counts().last(), Some(1));
        durations.add(0);
        durations.add(2);
        assert_eq!(
            durations.counts().take(3).collect::<Vec<_>>(),
            [1, 0, 1],
            "2 ms is the upper bound of its bucket"
        );

        let mut sum = Durations::default();
        sum.add_counts(&durations.counts().collect::<Vec<_>>());
        assert_eq!(sum, durations);
    }
}
