//! An event's trace. All its ids are found and none is kept: every replica gets the same, so that what different processes
//! tell of an event hours apart is one trace. The trace's id is the event's own.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A span's id, as W3C Trace Context has it: eight bytes, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// A part of an event's way that has one span a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// All of it, from the commit to the store: what the other spans hang on.
    Event,
    /// From the commit until it was read.
    Capture,
    /// The transaction that stored it.
    Store,
}

impl SpanId {
    pub fn of_stage(event: Uuid, stage: Stage) -> SpanId {
        let name: &[u8] = match stage {
            Stage::Event => b"event",
            Stage::Capture => b"capture",
            Stage::Store => b"store",
        };
        SpanId::from_digest(Sha256::new().chain_update(event.as_bytes()).chain_update(name))
    }

    /// By its beginning, so that an attempt which is made again, under the same number, is another span.
    pub fn of_attempt(delivery: Uuid, attempt: u16, started_at: Timestamp) -> SpanId {
        let place = Sha256::new().chain_update(delivery.as_bytes()).chain_update(attempt.to_be_bytes());
        SpanId::from_digest(place.chain_update(started_at.as_millisecond().to_be_bytes()))
    }

    fn from_digest(digest: Sha256) -> SpanId {
        let mut id = [0; 8];
        id.copy_from_slice(&digest.finalize()[..8]);
        // All zero would be no id.
        id[7] = if id == [0; 8] { 1 } else { id[7] };
        SpanId(id)
    }
}

/// Which events are traced: a share of them, told by the rightmost 56 bits of the trace id, which are random in an event's id.
/// Every replica decides alike, and so does whoever samples further on by OpenTelemetry's consistent probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The least of the taken.
    threshold: u64,
}

const RANDOM_VALUES: u64 = 1 << 56;

impl Sampling {
    /// `ratio` is from 0, none, to 1, all.
    pub fn new(ratio: f64) -> Sampling {
        Sampling { threshold: ((1.0 - ratio.clamp(0.0, 1.0)) * RANDOM_VALUES as f64) as u64 }
    }

    pub fn takes(self, event: Uuid) -> bool {
        let (_, random) = event.as_u64_pair();
        random % RANDOM_VALUES >= self.threshold
    }

    /// The header `traceparent`, version 00.
    pub fn traceparent(self, event: Uuid, parent: SpanId) -> String {
        format!("00-{}-{}-{:02x}", event.simple(), hex::encode(parent.0), u8::from(self.takes(event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Uuid = Uuid::from_u128(0x0195_504c_a3a0_7abc_8def_0123_4567_89ab);

    #[test]
    fn ids_are_the_same_everywhere_and_different_for_whatever_differs() {
        let at: Timestamp = "2026-03-01T09:05:00.120Z".parse().unwrap();
        let later: Timestamp = "2026-03-01T09:05:00.121Z".parse().unwrap();
        assert_eq!(SpanId::of_attempt(EVENT, 1, at), SpanId::of_attempt(EVENT, 1, at));
        let ids = [
            SpanId::of_stage(EVENT, Stage::Event),
            SpanId::of_stage(EVENT, Stage::Capture),
            SpanId::of_stage(EVENT, Stage::Store),
            SpanId::of_stage(Uuid::nil(), Stage::Event),
            SpanId::of_attempt(EVENT, 1, at),
            SpanId::of_attempt(EVENT, 2, at),
            SpanId::of_attempt(EVENT, 1, later),
        ];
        let distinct: std::collections::HashSet<SpanId> = ids.into();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn the_header_names_trace_and_span_and_whether_it_is_taken() {
        let parent = SpanId([0, 1, 2, 3, 4, 5, 6, 0xAB]);
        let header = "00-0195504ca3a07abc8def0123456789ab-00010203040506ab";
        assert_eq!(Sampling::new(1.0).traceparent(EVENT, parent), format!("{header}-01"));
        assert_eq!(Sampling::new(0.0).traceparent(EVENT, parent), format!("{header}-00"));
    }

    #[test]
    fn a_share_is_taken_whatever_the_fixed_bits_are() {
        let event = |index: u64| {
            let digest = Sha256::digest(index.to_be_bytes());
            Uuid::from_slice(&digest[..16]).unwrap()
        };
        for (ratio, range) in [(0.0, 0..1), (0.1, 800..1_200), (0.5, 4_700..5_300), (1.0, 10_000..10_001)] {
            let sampling = Sampling::new(ratio);
            let taken = (0..10_000).filter(|index| sampling.takes(event(*index))).count();
            assert!(range.contains(&taken), "{ratio}: {taken}");
        }
        // What half takes, a tenth more takes too.
        assert!((0..1_000).all(|i| !Sampling::new(0.5).takes(event(i)) || Sampling::new(0.6).takes(event(i))));
    }
}
