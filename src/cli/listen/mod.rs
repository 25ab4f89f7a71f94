//! `walhook listen`: follows the event feed, and forwards each event to a receiver under
//! development.
//!
//! Events are forwarded one at a time, in the feed's order. An event counts as forwarded when it
//! was sent, whatever came back: a receiver under development often fails, and the developer who
//! fixes it wants to see the next event, or the last one again. That is also why a refused
//! connection is only printed.

pub mod feed;
mod keys;
pub mod state;

use secrecy::ExposeSecret;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::feed::{EventContent, FeedClient, FeedEvent, FeedOptions, FeedResponse, Wait};
use self::state::ListenState;
use super::forward::{self, ForwardedEvent, Forwarder, Reason};
use super::{CommandResult, stop_signal};

/// The exit code of a process that a second signal ends at once: 128 and the number of SIGINT, as
/// of a process that handles no signals.
const INTERRUPTED: i32 = 130;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    feed: FeedOptions,
    #[command(flatten)]
    forward: forward::ForwardOptions,
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let Arguments {
        feed: options,
        forward,
    } = arguments;

    let mut state = options.state(state::LATEST)?;
    let feed = FeedClient::new(&options, forward.ca_file.as_deref(), Wait::ForEvents)?;
    let given = forward.secret.clone();
    let secret = given.clone().map_or_else(|| state.secret(), Ok)?;
    let forwarder = Forwarder::new(&forward, state.webhook(), secret.clone())?;

    let banner = [
        format!(
            "Forwarding events of {} to {}",
            options.api(),
            forwarder.url()
        ),
        format!("Webhook id:     {}", state.webhook()),
        format!(
            "Signing secret: {}",
            given.map_or(secret.expose_secret(), |_| "as given")
        ),
    ];

    let stop = CancellationToken::new();
    tokio::spawn(cancel_on_signal(stop.clone()));

    let mut listener = Listener {
        feed,
        forwarder,
        state,
        keys: keys::read(),
        last: None,
        stop,
    };

    let Some(first) = listener.next_page().await? else {
        return Ok(true);
    };

    banner.iter().for_each(|line| eprintln!("{line}"));

    if keys::can_read() {
        eprintln!("Press r and Enter to send the last event again, Ctrl-C to stop.");
    }

    listener.run(first).await?;
    Ok(true)
}

/// The first signal ends the process after the request in flight, the second at once.
pub async fn cancel_on_signal(stop: CancellationToken) {
    stop_signal().await;
    stop.cancel();
    stop_signal().await;
    std::process::exit(INTERRUPTED);
}

struct Listener {
    feed: FeedClient,
    forwarder: Forwarder,
    state: ListenState,
    /// Requests to send the last event again.
    keys: mpsc::Receiver<()>,
    last: Option<ForwardedEvent>,
    stop: CancellationToken,
}

impl Listener {
    /// Forwards pages until a signal arrives.
    async fn run(&mut self, first: FeedResponse) -> anyhow::Result<()> {
        let mut next = Some(first);
        while let Some(page) = next {
            for FeedEvent { content: event, .. } in page.events {
                if self.stop.is_cancelled() {
                    return Ok(());
                }

                self.forward(event).await?;
            }

            self.state.finish_page(page.next_cursor)?;
            next = self.next_page().await?;
        }

        Ok(())
    }

    /// Waits for the next page, and meanwhile sends the last event again on request. Returns None
    /// when a signal arrives.
    async fn next_page(&mut self) -> anyhow::Result<Option<FeedResponse>> {
        let Listener {
            feed,
            forwarder,
            state,
            keys,
            last,
            stop,
        } = self;

        let mut page = std::pin::pin!(feed.page(state.after()));

        loop {
            tokio::select! {
                page = &mut page => return page.map(Some),
                () = stop.cancelled() => return Ok(None),
                Some(()) = keys.recv() => send_again(forwarder, last.as_ref(), stop).await?,
            }
        }
    }

    async fn forward(&mut self, event: EventContent) -> anyhow::Result<()> {
        let id = event.id;
        if self.state.is_forwarded(id) {
            return Ok(());
        }

        match event.event.parse() {
            Ok(kind) => {
                let data = Box::<str>::from(event.data).into();
                let sequence = Some(self.state.sequence() + 1);

                let event = ForwardedEvent {
                    id,
                    kind,
                    occurred_at: event.occurred_at,
                    data,
                    sequence,
                };

                send(&self.forwarder, &event, Reason::Occurred, &self.stop).await?;
                self.last = Some(event);
                self.state.record_forwarded(id)?;
            }
            Err(_) => {
                eprintln!(
                    "Skipped event {id}: this version of walhook does not know its type. Upgrade walhook."
                );
                self.state.record_skipped(id)?;
            }
        }

        if self.keys.try_recv().is_ok() {
            send_again(&self.forwarder, self.last.as_ref(), &self.stop).await?;
        }

        Ok(())
    }
}

async fn send_again(
    forwarder: &Forwarder,
    last: Option<&ForwardedEvent>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match last {
        Some(event) => send(forwarder, event, Reason::Again, stop).await,
        None => {
            eprintln!("No event was sent yet.");
            Ok(())
        }
    }
}

/// Sends an event. When a signal arrives, waits for the response all the same: the event must be
/// recorded, or it would be repeated.
async fn send(
    forwarder: &Forwarder,
    event: &ForwardedEvent,
    reason: Reason,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut sending = std::pin::pin!(forwarder.forward(event, reason));
    tokio::select! {
        biased;
        sent = &mut sending => return sent.map(drop),
        () = stop.cancelled() => eprintln!("Waiting for the response to the last request. Press Ctrl-C again to end at once."),
    }

    sending.await.map(drop)
}
