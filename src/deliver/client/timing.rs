//! Measures the parts of a request: the lookup of the host's name, the connection, TLS, and the wait
//! for the response.

use std::cell::Cell;
use std::time::Instant;

use crate::domain::delivery::Timing;

tokio::task_local! {
    /// What the current task's request has reached. A connection that the client opens outside of
    /// the request, because another one became usable first, changes nothing.
    static MARKS: Cell<Marks>;
}

/// When a request has reached the parts of opening a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    dialing: Option<Instant>,
    resolving: Option<Instant>,
    resolved: Option<Instant>,
    connected: Option<Instant>,
    secured: Option<Instant>,
}

/// A part of opening a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A new connection is opened.
    Dialing,
    Resolving,
    Resolved,
    Connected,
    /// The connection can be used: TLS is established, if the URL says so.
    Secured,
}

/// The times of an exchange that the marks do not contain.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub started: Instant,
    /// When the head of the response has arrived.
    pub head: Option<Instant>,
    pub ended: Instant,
    pub is_tls: bool,
    /// Whether no connection was established.
    pub is_unconnected: bool,
}

/// Runs a request. Returns its result, and what it has reached.
pub async fn measure<T>(request: impl Future<Output = T>) -> (T, Marks) {
    let measured = async {
        let result = request.await;
        (result, MARKS.with(Cell::get))
    };
    MARKS.scope(Cell::default(), measured).await
}

/// Notes what the current request has reached.
pub fn mark(mark: Mark) {
    let _ = MARKS.try_with(|marks| marks.set(marks.get().with(mark, Instant::now())));
}

impl Marks {
    fn with(self, mark: Mark, at: Instant) -> Marks {
        let at = Some(at);
        match mark {
            Mark::Dialing => Marks {
                dialing: at,
                ..Marks::default()
            },
            Mark::Resolving => Marks {
                resolving: at,
                ..self
            },
            Mark::Resolved => Marks {
                resolved: at,
                ..self
            },
            Mark::Connected => Marks {
                connected: at,
                ..self
            },
            Mark::Secured => Marks {
                secured: at,
                ..self
            },
        }
    }

    /// Returns how long the parts took. A part in which the request failed lasts until the end.
    pub fn timing(self, bounds: &Bounds) -> Timing {
        let Bounds {
            started,
            head,
            ended,
            is_tls,
            is_unconnected,
        } = *bounds;
        let until = |end: Option<Instant>, from: Instant| {
            end.unwrap_or(ended).saturating_duration_since(from)
        };

        // The request was sent on a connection that was open.
        if self.secured.is_none() && !is_unconnected {
            return Timing {
                wait: Some(until(head, started)),
                ..Timing::default()
            };
        }

        // An address needs no lookup.
        let connecting = match self.resolving {
            Some(_) => self.resolved,
            None => self.dialing,
        };

        Timing {
            dns: self.resolving.map(|from| until(self.resolved, from)),
            connect: connecting.map(|from| until(self.connected, from)),
            tls: self
                .connected
                .filter(|_| is_tls)
                .map(|from| until(self.secured, from)),
            wait: self.secured.map(|from| until(head, from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Marks at 1, 2, 3, … milliseconds after `start`.
    fn marks(start: Instant, reached: &[Mark]) -> Marks {
        reached
            .iter()
            .zip(1..)
            .fold(Marks::default(), |marks, (mark, millis)| {
                marks.with(*mark, start + Duration::from_millis(millis))
            })
    }

    #[test]
    fn a_part_lasts_until_the_next_or_until_the_failure() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let bounds = Bounds {
            started: start,
            head: Some(at(20)),
            ended: at(30),
            is_tls: true,
            is_unconnected: false,
        };
        let timing = |[dns, connect, tls, wait]: [Option<u64>; 4]| Timing {
            dns: dns.map(Duration::from_millis),
            connect: connect.map(Duration::from_millis),
            tls: tls.map(Duration::from_millis),
            wait: wait.map(Duration::from_millis),
        };
        let all = [
            Mark::Dialing,
            Mark::Resolving,
            Mark::Resolved,
            Mark::Connected,
            Mark::Secured,
        ];

        let new = marks(start, &all).timing(&bounds);
        assert_eq!(new, timing([Some(1), Some(1), Some(1), Some(15)]));

        let reused = Marks::default().timing(&bounds);
        assert_eq!(reused, timing([None, None, None, Some(20)]));

        let failed = Bounds {
            head: None,
            is_unconnected: true,
            ..bounds
        };
        let unresolved = marks(start, &all[..2]).timing(&failed);
        assert_eq!(unresolved, timing([Some(28), None, None, None]));

        let unsecured = marks(start, &all[..4]).timing(&failed);
        assert_eq!(unsecured, timing([Some(1), Some(1), Some(26), None]));

        let literal = marks(start, &all[..1]).timing(&failed);
        assert_eq!(literal, timing([None, Some(29), None, None]));
    }
}
