//! Classifies errors of HTTP exchanges as the delivery log reports them.

use std::error::Error;
use std::io;

use hyper_util::client::legacy;

use super::reuse::Addresses;
use super::tunnel::{ConnectTimeout, NoTunnel, ProxyFault};
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
    Answer::Failed { kind, message, status: None }
}

/// Why a request got no response.
#[derive(Clone, Debug)]
pub struct Failure {
    answer: Result<Answer, OwnFault>,
    /// Whether the connection was closed before the head of a response was complete.
    pub is_closed: bool,
    /// The connection on which the request was sent.
    pub connection: Option<Addresses>,
}

impl Failure {
    pub fn of_direct(error: &reqwest::Error) -> Failure {
        classify(error, error.is_connect(), error.is_timeout())
    }

    pub fn of_tunnel(error: &legacy::Error) -> Failure {
        classify(error, error.is_connect(), false)
    }

    pub fn into_answer(self) -> Result<Answer, OwnFault> {
        self.answer
    }
}

/// Classifies an error by its chain of causes: the innermost one that has a kind decides.
fn classify(error: &(dyn Error + 'static), is_connect: bool, is_timeout: bool) -> Failure {
    let mut kind = is_timeout.then_some(Kind::TimedOut);
    let (mut is_closed, mut message, mut connection) = (false, String::new(), None);
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(cause) = own_cause(error) {
            let answer = Err(OwnFault { cause, message: error.to_string() });
            return Failure { answer, is_closed: false, connection: None };
        }
        kind = kind_of(error).or(kind);
        is_closed |= is_close(error);
        connection = connection_of(error).or(connection);
        message = error.to_string();
        next = inner(error);
    }
    let kind = match (kind, is_connect) {
        (Some(Kind::TimedOut), true) => {
            message = "no connection in time".to_owned();
            ErrorKind::ConnectTimeout
        }
        (Some(Kind::TimedOut), false) => ErrorKind::ResponseTimeout,
        (Some(Kind::Is(kind)), _) => kind,
        (None, true) => ErrorKind::ConnectRefused,
        // The connection was closed, or the response was not HTTP.
        (None, false) => ErrorKind::ConnectionReset,
    };
    let message = message.chars().filter(|character| *character != '\0').take(MAX_MESSAGE_CHARS).collect();
    Failure { answer: Ok(failed(kind, message)), is_closed: is_closed && !is_connect, connection }
}

/// Returns the error inside another. `source` does not do for I/O errors: it skips the error that an I/O error wraps.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
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
    error.downcast_ref().is_some_and(is_descriptor_limit).then_some(Cause::Descriptors)
}

/// Returns the connection that the error of a client names.
fn connection_of(error: &(dyn Error + 'static)) -> Option<Addresses> {
    Addresses::of(error.downcast_ref::<legacy::Error>()?.connect_info()?)
}

/// Whether an error means that the connection was closed.
fn is_close(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message() || error.is_closed();
    }
    // Over TLS, the end is unexpected without a `close_notify`.
    let kind = error.downcast_ref().map(io::Error::kind);
    matches!(
        kind,
        Some(
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    )
}

enum Kind {
    Is(ErrorKind),
    /// While connecting or while waiting for the response.
    TimedOut,
}

fn kind_of(error: &(dyn Error + 'static)) -> Option<Kind> {
    match error.downcast_ref() {
        Some(Unreachable::Unresolved | Unreachable::Unanswered) => return Some(Kind::Is(ErrorKind::Dns)),
        Some(Unreachable::Blocked(_) | Unreachable::BlockedName) => return Some(Kind::Is(ErrorKind::BlockedAddress)),
        // `own_cause` has returned the cause of a fault.
        Some(Unreachable::Fault(_) | Unreachable::Descriptors(_)) | None => {}
    }
    if error.is::<rustls::Error>() {
        return Some(Kind::Is(ErrorKind::Tls));
    }
    if error.is::<NoTunnel>() {
        return Some(Kind::Is(ErrorKind::ConnectRefused));
    }
    if error.is::<ConnectTimeout>() || error.downcast_ref().is_some_and(hyper::Error::is_timeout) {
        return Some(Kind::TimedOut);
    }
    Some(match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::TimedOut => Kind::TimedOut,
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Kind::Is(ErrorKind::ConnectRefused)
        }
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Kind::Is(ErrorKind::ConnectionReset),
        _ => return None,
    })
}
