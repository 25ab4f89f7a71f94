//! Spans that follow an event from its commit to each attempt, for a collector that takes OpenTelemetry's protocol. Without one
//! nothing is made at all; a slow or dead one holds nobody up: what finds no room is dropped and counted.

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

/// Spans that wait for the collector: about a kilobyte each.
const QUEUE: usize = 8_192;

/// Where stages tell what they did; clones tell the same collector, or nobody.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Inner>>);

struct Inner {
    sampling: Sampling,
    queue: mpsc::Sender<Span>,
    /// For lack of room.
    dropped: Counter,
}

/// What the settings of `tracing` ask for: where to tell, and who takes it to the collector.
pub fn start(config: &Config) -> anyhow::Result<(Tracer, Option<Exporter>)> {
    let collector = config.tracing.collector().map_err(anyhow::Error::msg)?;
    let (Some(collector), Some(sampling)) = (collector, config.tracing.sampling()) else {
        return Ok((Tracer::default(), None));
    };
    let (queue, spans) = mpsc::channel(QUEUE);
    let exporter = Exporter::start(&collector, &config.service.name, spans)?;
    let inner = Inner { sampling, queue, dropped: export::dropped("queue_full") };
    Ok((Tracer(Some(Arc::new(inner))), Some(exporter)))
}

impl Tracer {
    /// Events that are in the store now; `taken_up` is when the transaction that stored them was begun.
    pub fn stored(&self, events: &[Event], taken_up: Timestamp, stored: Timestamp) {
        let Some(inner) = &self.0 else { return };
        for event in events.iter().filter(|event| inner.sampling.takes(event.id)) {
            spans::stored(event, taken_up, stored).into_iter().for_each(|span| inner.tell(span));
        }
    }

    /// An attempt that is over, and what the log says of it.
    pub fn attempted(&self, attempted: &Attempted, outcome: Outcome) {
        let event = SpanId::of_stage(attempted.delivery.event, Stage::Event);
        self.attempt(attempted, outcome, Some(event));
    }

    /// The same of a test: no event of the platform's stands before it.
    pub fn tested(&self, attempted: &Attempted, outcome: Outcome) {
        self.attempt(attempted, outcome, None);
    }

    fn attempt(&self, attempted: &Attempted, outcome: Outcome, parent: Option<SpanId>) {
        let Some(inner) = &self.0 else { return };
        if inner.sampling.takes(attempted.delivery.event) {
            inner.tell(spans::attempt(attempted, outcome, parent));
        }
    }
}

impl Inner {
    fn tell(&self, span: Span) {
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
            occurred_at: Timestamp::UNIX_EPOCH,
            position: Position::Wal { timeline: 1, commit: Lsn(1), ordinal: 1 },
            data: "{}".into(),
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_what_is_not_sampled_is_not() {
        let count = Arc::new(AtomicU64::new(0));
        let tracer = |ratio, queue| {
            let dropped = Counter::from_arc(count.clone());
            Tracer(Some(Arc::new(Inner { sampling: Sampling::new(ratio), queue, dropped })))
        };
        let (queue, mut waiting) = mpsc::channel(2);
        tracer(0.0, queue.clone()).stored(&[event()], Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        tracer(1.0, queue).stored(&[event(), event()], Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        assert_eq!(count.load(Ordering::Relaxed), 4);
        assert!(waiting.try_recv().is_ok() && waiting.try_recv().is_ok() && waiting.try_recv().is_err());
    }
}
