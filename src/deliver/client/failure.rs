//! Classifies errors of HTTP exchanges, and says what happened in the words of the delivery log.

use std::error::Error;
use std::io;

use hyper_util::client::legacy;

use super::allowance::Exceeded;
use super::connection::Connection;
use super::connector::{ConnectTimeout, NoTunnel, ProxyFault};
use crate::deliver::guard::Unreachable;
use crate::deliver::resolver::is_descriptor_limit;
use crate::domain::delivery::{Answer, ErrorKind};

/// The most characters of a message in the delivery log, which people read.
const MAX_MESSAGE_CHARS: usize = 300;

/// A fault on Walhook's side: no attempt was made, and the receiver is not to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OwnFault {
    pub cause: Cause,
    message: String,
}

/// What failed on Walhook's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// `delivery.proxy` opened no tunnel.
    Proxy,
    /// This host's nameservers do not answer, or too many lookups wait for an answer.
    Resolver,
    /// The process or the host has no free file descriptor for a connection or a lookup.
    Descriptors,
}

impl Cause {
    /// The label of the metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Proxy => "proxy",
            Cause::Resolver => "resolver",
            Cause::Descriptors => "descriptors",
        }
    }
}

/// Returns the answer for an attempt that got no response.
pub fn failed(kind: ErrorKind, message: String) -> Answer {
    Answer::Failed {
        kind,
        message,
        status: None,
    }
}

const CLOSED: &str = "the receiver closed the connection before it answered";

/// Whether a request is sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resend {
    Never,
    /// If the connection had been used before: the receiver may have closed it without reading the
    /// request.
    IfReused,
    /// The receiver did not process the request, or it was not sent.
    Always,
}

/// Why a request got no response.
#[derive(Clone, Debug)]
pub struct Failure {
    answer: Result<Answer, OwnFault>,
    pub resend: Resend,
    /// The connection on which the request was sent.
    pub connection: Option<Connection>,
}

impl Failure {
    pub fn of(error: &legacy::Error) -> Failure {
        classify(error, error.is_connect())
    }

    /// Returns the failure of a request whose connection ended.
    pub fn closed() -> Failure {
        Failure::failed(
            ErrorKind::ConnectionReset,
            CLOSED.to_owned(),
            Resend::IfReused,
        )
    }

    fn failed(kind: ErrorKind, message: String, resend: Resend) -> Failure {
        Failure {
            answer: Ok(failed(kind, message)),
            resend,
            connection: None,
        }
    }

    /// Returns the failure of a request that was sent on this connection. If the connection was
    /// closed on Walhook's side, this is why.
    pub fn on(self, connection: Option<Connection>) -> Failure {
        match connection {
            Some(connection) if connection.is_exceeded() => Failure::failed(
                ErrorKind::ConnectionReset,
                Exceeded.to_string(),
                Resend::Never,
            ),
            connection => Failure { connection, ..self },
        }
    }

    pub fn into_answer(self) -> Result<Answer, OwnFault> {
        self.answer
    }
}

/// Classifies an error by its chain of causes: the innermost one that has a meaning decides.
fn classify(error: &(dyn Error + 'static), is_connect: bool) -> Failure {
    let mut meaning = None;
    let mut resend = Resend::Never;
    let mut is_http = false;
    let mut root = error;
    let mut next = Some(error);

    while let Some(error) = next {
        if let Some(cause) = own_cause(error) {
            let answer = Err(OwnFault {
                cause,
                message: error.to_string(),
            });

            return Failure {
                answer,
                resend: Resend::Never,
                connection: None,
            };
        }

        if let Some(found) = meaning_of(error) {
            resend = resend.max(found.resend);
            meaning = Some(found);
        }

        is_http |= error.is::<hyper::Error>();
        root = error;
        next = inner(error);
    }

    let (kind, message) = match meaning.map(|meaning| (meaning.kind, meaning.message)) {
        Some((None, _)) if is_connect => (
            ErrorKind::ConnectTimeout,
            "no connection in time".to_owned(),
        ),
        Some((None, message)) => (ErrorKind::ResponseTimeout, message),
        Some((Some(ErrorKind::ConnectionReset), _)) if is_connect => (
            ErrorKind::ConnectionReset,
            "the connection was closed while it was being opened".to_owned(),
        ),
        Some((Some(kind), message)) => (kind, message),
        // For example, the pool has waited for a connection of another request in vain.
        None if !is_http => {
            resend = Resend::Always;
            (ErrorKind::ConnectRefused, format!("no connection: {root}"))
        }
        None => (
            ErrorKind::ConnectionReset,
            format!("the exchange failed: {root}"),
        ),
    };

    let message = message
        .chars()
        .filter(|character| *character != '\0')
        .take(MAX_MESSAGE_CHARS)
        .collect();
    Failure::failed(kind, message, resend)
}

/// Returns the error inside another. `source` does not do for I/O errors: it skips the error that
/// an I/O error wraps.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Returns the cause if an error is a fault on Walhook's side.
fn own_cause(error: &(dyn Error + 'static)) -> Option<Cause> {
    if error.is::<ProxyFault>() {
        return Some(Cause::Proxy);
    }

    match error.downcast_ref() {
        Some(Unreachable::Fault(_)) => return Some(Cause::Resolver),
        Some(Unreachable::Descriptors(_)) => return Some(Cause::Descriptors),
        _ => {}
    }

    error
        .downcast_ref()
        .is_some_and(is_descriptor_limit)
        .then_some(Cause::Descriptors)
}

/// What an error means.
struct Meaning {
    /// None for a timeout, while connecting or while waiting for the response.
    kind: Option<ErrorKind>,
    message: String,
    resend: Resend,
}

impl Meaning {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Meaning {
        Meaning {
            kind: Some(kind),
            message: message.into(),
            resend: Resend::Never,
        }
    }

    fn reset(message: impl Into<String>, resend: Resend) -> Meaning {
        Meaning {
            resend,
            ..Meaning::new(ErrorKind::ConnectionReset, message)
        }
    }

    fn timed_out(message: &str) -> Meaning {
        Meaning {
            kind: None,
            message: message.to_owned(),
            resend: Resend::Never,
        }
    }
}

fn meaning_of(error: &(dyn Error + 'static)) -> Option<Meaning> {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return of_http(error);
    }

    if let Some(error) = error.downcast_ref::<h2::Error>() {
        return of_http2(error);
    }

    if let Some(error) = error.downcast_ref::<io::Error>() {
        return of_io(error.kind());
    }

    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(Meaning::new(ErrorKind::Tls, error.to_string()));
    }

    if error.is::<Exceeded>() {
        return Some(Meaning::reset(error.to_string(), Resend::Never));
    }

    if error.is::<NoTunnel>() {
        return Some(Meaning::new(ErrorKind::ConnectRefused, error.to_string()));
    }

    if error.is::<ConnectTimeout>() {
        return Some(Meaning::timed_out(""));
    }

    let kind = match error.downcast_ref()? {
        Unreachable::Unresolved | Unreachable::Unanswered => ErrorKind::Dns,
        Unreachable::Blocked(_) | Unreachable::BlockedName => ErrorKind::BlockedAddress,
        // `own_cause` has returned the cause of a fault.
        Unreachable::Fault(_) | Unreachable::Descriptors(_) => return None,
    };

    Some(Meaning::new(kind, error.to_string()))
}

fn of_http(error: &hyper::Error) -> Option<Meaning> {
    if error.is_timeout() {
        return Some(Meaning::timed_out(
            "the receiver did not answer a ping on its HTTP/2 connection in time",
        ));
    }

    // The request was still queued when the connection ended.
    if error.is_canceled() || error.is_closed() {
        return Some(Meaning::reset(CLOSED, Resend::Always));
    }

    // A user's error is the client's own end, for example after the connection's.
    if error.is_incomplete_message() || error.is_user() {
        return Some(Meaning::reset(CLOSED, Resend::IfReused));
    }

    if error.is_parse_too_large() {
        let message = "the head of the response has more than 64 KiB or more than 100 fields";
        return Some(Meaning::reset(message, Resend::Never));
    }

    if error.is_parse() {
        return Some(Meaning::reset(
            format!("the response is not valid HTTP: {error}"),
            Resend::Never,
        ));
    }

    if error.source().is_none() {
        return Some(Meaning::reset(
            "the receiver sent data before it got the request",
            Resend::IfReused,
        ));
    }

    None
}

fn of_http2(error: &h2::Error) -> Option<Meaning> {
    let reason = error.reason()?;
    let is_refused = matches!(reason, h2::Reason::REFUSED_STREAM | h2::Reason::NO_ERROR);

    Some(match (error.is_remote(), error.is_go_away()) {
        (true, true) => Meaning::reset(
            format!(
                "the receiver closed the HTTP/2 connection without processing the request ({reason:?})"
            ),
            Resend::Always,
        ),
        (true, false) if is_refused => Meaning::reset(
            format!("the receiver refused the request on its HTTP/2 stream ({reason:?})"),
            Resend::Always,
        ),
        (true, false) => Meaning::reset(
            format!("the receiver reset the HTTP/2 stream of the request ({reason:?})"),
            Resend::Never,
        ),
        // The client had closed the connection, for example after a notice of the receiver.
        (false, _) if reason == h2::Reason::NO_ERROR => Meaning::reset(CLOSED, Resend::IfReused),
        (false, false) if reason == h2::Reason::PROTOCOL_ERROR => Meaning::reset(
            "the head of the response has more than 16 KiB, or its HTTP/2 is not valid (PROTOCOL_ERROR)",
            Resend::Never,
        ),
        (false, _) => Meaning::reset(
            format!("the receiver's HTTP/2 is not valid ({reason:?})"),
            Resend::Never,
        ),
    })
}

fn of_io(kind: io::ErrorKind) -> Option<Meaning> {
    Some(match kind {
        io::ErrorKind::TimedOut => Meaning::timed_out("the receiver's host stopped responding"),
        io::ErrorKind::ConnectionRefused => Meaning::new(
            ErrorKind::ConnectRefused,
            "the receiver's host refused the connection",
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Meaning::new(
            ErrorKind::ConnectRefused,
            "the receiver's host is unreachable",
        ),
        io::ErrorKind::ConnectionReset => Meaning::reset(
            "the receiver reset the connection before it answered",
            Resend::IfReused,
        ),
        // From TLS, whose own errors say more, unless HTTP/2 has reduced them to this.
        io::ErrorKind::InvalidData => Meaning::new(
            ErrorKind::Tls,
            "the receiver's TLS data cannot be processed",
        ),
        // Over TLS, the end is unexpected without a `close_notify`.
        io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Meaning::reset(CLOSED, Resend::IfReused),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(error: impl Error + Send + Sync + 'static) -> (ErrorKind, String, Resend) {
        let error: Box<dyn Error + Send + Sync> = error.into();
        let failure = classify(&*error, false);
        match failure.answer {
            Ok(Answer::Failed { kind, message, .. }) => (kind, message, failure.resend),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_below_http_have_plain_messages() {
        use std::io::ErrorKind as Io;

        let reset = ErrorKind::ConnectionReset;
        let expected = [
            (Io::BrokenPipe, reset, CLOSED, Resend::IfReused),
            (Io::ConnectionAborted, reset, CLOSED, Resend::IfReused),
            (Io::UnexpectedEof, reset, CLOSED, Resend::IfReused),
            (
                Io::ConnectionReset,
                reset,
                "the receiver reset the connection before it answered",
                Resend::IfReused,
            ),
            (
                Io::InvalidData,
                ErrorKind::Tls,
                "the receiver's TLS data cannot be processed",
                Resend::Never,
            ),
            (
                Io::TimedOut,
                ErrorKind::ResponseTimeout,
                "the receiver's host stopped responding",
                Resend::Never,
            ),
            (
                Io::ConnectionRefused,
                ErrorKind::ConnectRefused,
                "the receiver's host refused the connection",
                Resend::Never,
            ),
            (
                Io::HostUnreachable,
                ErrorKind::ConnectRefused,
                "the receiver's host is unreachable",
                Resend::Never,
            ),
            (
                Io::NetworkUnreachable,
                ErrorKind::ConnectRefused,
                "the receiver's host is unreachable",
                Resend::Never,
            ),
        ];
        for (io, kind, message, resend) in expected {
            assert_eq!(
                described(io::Error::from(io)),
                (kind, message.to_owned(), resend),
                "{io:?}"
            );
        }

        let tls = io::Error::other(rustls::Error::HandshakeNotComplete);
        assert_eq!(described(tls).0, ErrorKind::Tls, "the inner error decides");

        assert_eq!(
            described(io::Error::other("odd")),
            (
                ErrorKind::ConnectRefused,
                "no connection: odd".to_owned(),
                Resend::Always
            )
        );

        assert_eq!(described(NoTunnel).0, ErrorKind::ConnectRefused);
        assert_eq!(described(Unreachable::Unresolved).0, ErrorKind::Dns);
    }

    #[test]
    fn what_the_client_finds_wrong_with_http_2_has_a_plain_message() {
        let expected = [
            (h2::Reason::NO_ERROR, CLOSED, Resend::IfReused),
            (
                h2::Reason::FRAME_SIZE_ERROR,
                "the receiver's HTTP/2 is not valid (FRAME_SIZE_ERROR)",
                Resend::Never,
            ),
        ];
        for (reason, message, resend) in expected {
            let found = described(h2::Error::from(reason));
            assert_eq!(
                found,
                (ErrorKind::ConnectionReset, message.to_owned(), resend)
            );
        }
    }

    #[test]
    fn while_connecting_the_kind_says_so() {
        let timed_out =
            classify(&ConnectTimeout(std::time::Duration::from_secs(1)), true).into_answer();
        assert_eq!(
            timed_out,
            Ok(failed(
                ErrorKind::ConnectTimeout,
                "no connection in time".to_owned()
            ))
        );

        let closed = classify(&io::Error::from(io::ErrorKind::UnexpectedEof), true).into_answer();
        let message = "the connection was closed while it was being opened".to_owned();
        assert_eq!(closed, Ok(failed(ErrorKind::ConnectionReset, message)));
    }
}
