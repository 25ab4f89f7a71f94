//! How long requests took: counts in fixed buckets, from which percentiles are estimated.

/// Bucket `i` holds what took up to √2ⁱ ms and longer than the one before; the last also what took longer, from 33 s on.
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
            // A hair less, so that a power of two does not fall a bucket too high by rounding.
            millis => ((millis as f64).log2() * 2.0 - 1e-9).ceil() as usize,
        };
        self.0[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Adds counts in the order of the buckets.
    pub fn add_counts(&mut self, counts: &[i32]) {
        for (bucket, count) in self.0.iter_mut().zip(counts) {
            *bucket += u64::try_from(*count).unwrap_or(0);
        }
    }

    pub fn merge(&mut self, other: &Durations) {
        self.0.iter_mut().zip(other.0).for_each(|(bucket, count)| *bucket += count);
    }

    pub fn counts(&self) -> impl Iterator<Item = i32> {
        self.0.iter().map(|count| i32::try_from(*count).unwrap_or(i32::MAX))
    }

    /// The time in milliseconds that the share `quantile` of the requests did not exceed: off by a fifth at most, since a bucket
    /// is known by its middle. None where nothing was sent.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(if bucket == 0 { 1 } else { ((bucket as f64 - 0.5) / 2.0).exp2().round() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_fifth() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        (1..=1_000).for_each(|millis| durations.add(millis));
        for (quantile, exact) in [(0.05, 50.0), (0.5, 500.0), (0.95, 950.0), (1.0, 1_000.0)] {
            let estimate = durations.quantile(quantile).unwrap() as f64;
            assert!((estimate / exact).ln().abs() < 0.2, "{quantile}: {estimate}, not {exact}");
        }
    }

    #[test]
    fn what_no_bucket_is_wide_enough_for_is_in_the_last() {
        let mut durations = Durations::default();
        durations.add(u64::MAX);
        assert_eq!(durations.counts().last(), Some(1));
        durations.add(0);
        durations.add(2);
        assert_eq!(durations.counts().take(3).collect::<Vec<_>>(), [1, 0, 1], "two is the end of its bucket");
        let mut sum = Durations::default();
        sum.add_counts(&durations.counts().collect::<Vec<_>>());
        assert_eq!(sum, durations);
    }
}
