//! `walhook trigger`: sends an example of an event to a receiver under development.

use jiff::Timestamp;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::CommandResult;
use super::forward::{self, ForwardedEvent, Forwarder, Reason};
use crate::domain::event::EventKind;
use crate::events;
use crate::vault::new_webhook_secret;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Event to send, with the example data of the catalogue
    #[arg(value_parser = forward::event_kind())]
    event: EventKind,
    #[command(flatten)]
    forward: forward::ForwardOptions,
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let Arguments {
        event: kind,
        mut forward,
    } = arguments;
    let secret = forward.secret.take().unwrap_or_else(|| {
        let secret = new_webhook_secret();
        eprintln!(
            "Signing secret, new for this request: {}",
            secret.expose_secret()
        );

        secret
    });

    let data = (events::rule(kind).example)();
    let event = ForwardedEvent {
        id: Uuid::now_v7(),
        kind,
        occurred_at: Timestamp::now(),
        data,
        sequence: None,
    };

    let forwarder = Forwarder::new(&forward, Uuid::now_v7(), secret)?;
    forwarder.forward(&event, Reason::Test).await
}
