//! OpenTelemetry spans that follow an event from its commit to each attempt. Without a collector,
//! no spans are built. A slow or dead collector delays nothing: spans that exceed the queue's
//! capacity are dropped and counted.

mod export;
mod spans;

use std::sync::Arc;

use jiff::Timestamp;
use metrics::Counter;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;

pub use export::Exporter;

use crate::config::Config;
use crate::domain::delivery::{Attempted, Outcome};
use crate::domain::event::Event;
use crate::domain::trace::{Sampling, SpanId, Stage};

/// Maximum number of spans waiting for the collector, of about a kilobyte each.
const QUEUE: usize = 8_192;

/// Records spans for the collector, if one is configured. Clones share its queue.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<TracerState>>);

struct TracerState {
    sampling: Sampling,
    queue: mpsc::Sender<Span>,
    /// Counts spans that were dropped because the queue was full.
    dropped: Counter,
}

/// Starts tracing as configured. Without a collector, the tracer does nothing and there is no
/// exporter.
pub fn start(config: &Config) -> anyhow::Result<(Tracer, Option<Exporter>)> {
    let collector = config.tracing.collector().map_err(anyhow::Error::msg)?;
    let (Some(collector), Some(sampling)) = (collector, config.tracing.sampling()) else {
        return Ok((Tracer::default(), None));
    };

    let (queue, spans) = mpsc::channel(QUEUE);
    let exporter = Exporter::start(&collector, &config.service.name, spans)?;
    let inner = TracerState {
        sampling,
        queue,
        dropped: export::dropped("queue_full"),
    };

    Ok((Tracer(Some(Arc::new(inner))), Some(exporter)))
}

impl Tracer {
    /// Records events that were stored. `read_at` is when the transaction that stored them started.
    pub fn stored(&self, events: &[Event], read_at: Timestamp, stored: Timestamp) {
        let Some(inner) = &self.0 else { return };
        for event in events
            .iter()
            .filter(|event| inner.sampling.includes(event.id))
        {
            spans::stored(event, read_at, stored)
                .into_iter()
                .for_each(|span| inner.record(span));
        }
    }

    /// Records an attempt of a delivery.
    pub fn attempted(&self, attempted: &Attempted, outcome: Outcome) {
        let event = SpanId::of_stage(attempted.delivery.event, Stage::Event);
        self.attempt(attempted, outcome, Some(event));
    }

    /// Records a test, which has no event as its parent.
    pub fn tested(&self, attempted: &Attempted, outcome: Outcome) {
        self.attempt(attempted, outcome, None);
    }

    fn attempt(&self, attempted: &Attempted, outcome: Outcome, parent: Option<SpanId>) {
        let Some(inner) = &self.0 else { return };
        if inner.sampling.includes(attempted.delivery.event) {
            inner.record(spans::attempt(attempted, outcome, parent));
        }
    }
}

impl TracerState {
    fn record(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use metrics::atomics::AtomicU64;
    use uuid::Uuid;

    use super::*;
    use crate::domain::event::{EventKind, UserId};
    use crate::domain::lsn::Lsn;
    use crate::domain::position::Position;

    fn event() -> Event {
        Event {
            id: Uuid::from_u128(7),
            kind: EventKind::DeliveryFailed,
            user: UserId("u".into()),
            label: None,
            occurred_at: Timestamp::UNIX_EPOCH,
            position: Position::Wal {
                timeline: 1,
                commit: Lsn(1),
                ordinal: 1,
            },
            repaired: false,
            data: "{}".into(),
        }
    }

    #[test]
    fn spans_dropped_from_a_full_queue_are_counted_and_unsampled_events_are_not() {
        let count = Arc::new(AtomicU64::new(0));
        let tracer = |ratio, queue| {
            let dropped = Counter::from_arc(count.clone());
            Tracer(Some(Arc::new(TracerState {
                sampling: Sampling::new(ratio),
                queue,
                dropped,
            })))
        };

        let (queue, mut waiting) = mpsc::channel(2);
        tracer(0.0, queue.clone()).stored(&[event()], Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        tracer(1.0, queue).stored(
            &[event(), event()],
            Timestamp::UNIX_EPOCH,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(count.load(Ordering::Relaxed), 4);
        assert!(
            waiting.try_recv().is_ok() && waiting.try_recv().is_ok() && waiting.try_recv().is_err()
        );
    }
}
