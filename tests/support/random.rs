//! Random numbers that follow from a seed.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;

        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns true in this share of calls.
    pub fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    /// Returns one of the values.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns a text. One in ten has several kB that do not compress well, so that it is stored
    /// out of line.
    pub fn text(&mut self) -> String {
        let words = if self.percent(10) { 150 } else { 1 };
        (0..words)
            .map(|_| format!("{:016x}", self.next()))
            .collect()
    }
}
