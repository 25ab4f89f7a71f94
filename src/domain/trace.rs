//! The trace of an event. All ids are computed and none is stored: spans that different replicas
//! export, even hours apart, belong to the same trace. The trace id is the event's id.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A span id as defined by W3C Trace Context: eight bytes, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// A stage of an event's processing that has one span per trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the commit until the event is stored: the root span.
    Event,
    /// From the commit until the change is read.
    Capture,
    /// The transaction that stores the event.
    Store,
}

impl SpanId {
    /// Computes the id of a stage's span.
    pub fn of_stage(event: Uuid, stage: Stage) -> SpanId {
        let name: &[u8] = match stage {
            Stage::Event => b"event",
            Stage::Capture => b"capture",
            Stage::Store => b"store",
        };

        SpanId::from_digest(
            Sha256::new()
                .chain_update(event.as_bytes())
                .chain_update(name),
        )
    }

    /// Computes the id of an attempt's span. The start time is part of it: a repeated attempt with
    /// the same number is another span.
    pub fn of_attempt(delivery: Uuid, attempt: u16, started_at: Timestamp) -> SpanId {
        let digest = Sha256::new()
            .chain_update(delivery.as_bytes())
            .chain_update(attempt.to_be_bytes());
        SpanId::from_digest(digest.chain_update(started_at.as_millisecond().to_be_bytes()))
    }

    fn from_digest(digest: Sha256) -> SpanId {
        let mut id = [0; 8];
        id.copy_from_slice(&digest.finalize()[..8]);
        // An id of zeros is invalid.
        id[7] = if id == [0; 8] { 1 } else { id[7] };
        SpanId(id)
    }
}

/// Decides which events are traced, from the rightmost 56 bits of the trace id, which are random in
/// an event's id. Every replica decides the same, and so does a collector with OpenTelemetry's
/// consistent probability sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The smallest random value that is traced.
    threshold: u64,
}

const RANDOM_VALUES: u64 = 1 << 56;

impl Sampling {
    /// Traces the share `ratio` of all events, from 0 to 1.
    pub fn new(ratio: f64) -> Sampling {
        Sampling {
            threshold: ((1.0 - ratio.clamp(0.0, 1.0)) * RANDOM_VALUES as f64) as u64,
        }
    }

    /// Returns whether the event is traced.
    pub fn includes(self, event: Uuid) -> bool {
        let (_, random) = event.as_u64_pair();
        random % RANDOM_VALUES >= self.threshold
    }

    /// Returns the value of the header `traceparent`, version 00.
    pub fn traceparent(self, event: Uuid, parent: SpanId) -> String {
        format!(
            "00-{}-{}-{:02x}",
            event.simple(),
            hex::encode(parent.0),
            u8::from(self.includes(event))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Uuid = Uuid::from_u128(0x0195_504c_a3a0_7abc_8def_0123_4567_89ab);

    #[test]
    fn ids_are_deterministic_and_distinct() {
        let at: Timestamp = "2026-03-01T09:05:00.120Z".parse().unwrap();
        let later: Timestamp = "2026-03-01T09:05:00.121Z".parse().unwrap();

        assert_eq!(
            SpanId::of_attempt(EVENT, 1, at),
            SpanId::of_attempt(EVENT, 1, at)
        );

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
    fn traceparent_has_the_trace_the_span_and_the_sampled_flag() {
        let parent = SpanId([0, 1, 2, 3, 4, 5, 6, 0xAB]);
        let header = "00-0195504ca3a07abc8def0123456789ab-00010203040506ab";
        assert_eq!(
            Sampling::new(1.0).traceparent(EVENT, parent),
            format!("{header}-01")
        );
        assert_eq!(
            Sampling::new(0.0).traceparent(EVENT, parent),
            format!("{header}-00")
        );
    }

    #[test]
    fn the_traced_share_matches_the_ratio() {
        let event = |index: u64| {
            let digest = Sha256::digest(index.to_be_bytes());
            Uuid::from_slice(&digest[..16]).unwrap()
        };

        for (ratio, range) in [
            (0.0, 0..1),
            (0.1, 800..1_200),
            (0.5, 4_700..5_300),
            (1.0, 10_000..10_001),
        ] {
            let sampling = Sampling::new(ratio);
            let taken = (0..10_000)
                .filter(|index| sampling.includes(event(*index)))
                .count();
            assert!(range.contains(&taken), "{ratio}: {taken}");
        }

        // Events traced at ratio 0.5 are also traced at 0.6.
        assert!((0..1_000).all(
            |i| !Sampling::new(0.5).includes(event(i)) || Sampling::new(0.6).includes(event(i))
        ));
    }
}
