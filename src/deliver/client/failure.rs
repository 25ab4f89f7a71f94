//! An exchange's error in the words of the delivery log.

use std::error::Error;
use std::io;

use hyper_util::client::legacy;

use super::connect::{ConnectTimeout, NoTunnel, ProxyFault};
use crate::deliver::guard::Unreachable;
use crate::domain::delivery::{Answer, ErrorKind};

/// Messages are for people.
const MAX_MESSAGE_CHARS: usize = 300;

/// Why there was no attempt at all, by no fault of the receiver's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OwnFault(String);

pub fn failed(kind: ErrorKind, message: String) -> Answer {
    Answer::Failed { kind, message, status: None }
}

/// The kind of an error that came instead of an answer, by what is at the bottom of it.
pub fn classify(error: &legacy::Error) -> Result<Answer, OwnFault> {
    let mut kind = None;
    let mut message = error.to_string();
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.is::<ProxyFault>() {
            return Err(OwnFault(error.to_string()));
        }
        kind = kind_of(error).or(kind);
        message = error.to_string();
        cause = inner(error);
    }
    let kind = match (kind, error.is_connect()) {
        (Some(Kind::TimedOut), true) => ErrorKind::ConnectTimeout,
        (Some(Kind::TimedOut), false) => ErrorKind::ResponseTimeout,
        (Some(Kind::Is(kind)), _) => kind,
        (None, true) => ErrorKind::ConnectRefused,
        // The connection closed, or what came over it was not HTTP.
        (None, false) => ErrorKind::ConnectionReset,
    };
    Ok(failed(kind, message.chars().filter(|character| *character != '\0').take(MAX_MESSAGE_CHARS).collect()))
}

/// What an error wraps. An I/O error's own `source` skips the error that it was made from.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

enum Kind {
    Is(ErrorKind),
    /// The phase tells of what.
    TimedOut,
}

fn kind_of(error: &(dyn Error + 'static)) -> Option<Kind> {
    if let Some(refusal) = error.downcast_ref::<Unreachable>() {
        return Some(Kind::Is(match refusal {
            Unreachable::Unresolved => ErrorKind::Dns,
            Unreachable::Blocked(_) => ErrorKind::BlockedAddress,
        }));
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
