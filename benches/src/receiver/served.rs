//! The receiver process: one thread that serves HTTP and answers questions.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::behavior::{Behavior, Kind};
use super::request::{Request, number_after, parse};
use super::{Question, Reached, Receipt, Status};
use crate::platform::micros_now;

/// One of this many deliveries has its signature verified.
const SAMPLE: u64 = 64;
/// Larger than any delivery. A longer request is not from Walhook.
const MAX_REQUEST: usize = 256 << 10;
const ROW: &[u8] = br#""distro_queue_id""#;

#[derive(Default)]
struct Records {
    status: Status,
    seen: HashSet<u128>,
    receipts: Vec<Receipt>,
    keys: HashMap<Vec<u8>, Hmac<Sha256>>,
    /// The first delivery, which the bare loops repeat.
    sample: Option<String>,
    by_kind: HashMap<Kind, Reached>,
    /// The webhooks that were reached.
    webhooks: HashSet<(Kind, u128)>,
    /// Requests whose responses have not ended.
    open: HashMap<Kind, u64>,
}

/// Serves until standard input ends. Uses one thread, and leaves the other processors to what is
/// measured.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        print_line(&listener.local_addr()?.to_string()).await?;

        let records = Rc::new(RefCell::new(Records::default()));
        let accepting = records.clone();

        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let records = accepting.clone();
                // The sender handles errors of its connections.
                tokio::task::spawn_local(async move { drop(answer(stream, &records).await) });
            }
        });

        let mut questions = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = questions.next_line().await? {
            let text = records.borrow_mut().reply(serde_json::from_str(&line)?)?;
            print_line(&text).await?;
        }

        Ok(())
    })
}

async fn print_line(line: &str) -> std::io::Result<()> {
    let mut output = tokio::io::stdout();
    output.write_all(format!("{line}\n").as_bytes()).await?;
    output.flush().await
}

async fn answer(mut stream: TcpStream, records: &RefCell<Records>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(16 << 10);
    while buffer.len() < MAX_REQUEST && stream.read_buf(&mut buffer).await? > 0 {
        while let Some(request) = parse(&buffer).map_err(std::io::Error::other)? {
            let length = request.length;
            let behavior = records.borrow_mut().record(&request, &buffer[..length]);

            buffer.advance(length);
            let _open = Open::count(behavior, records);

            if !behavior.respond(&mut stream).await? {
                return Ok(());
            }
        }
    }

    Ok(())
}

/// Counts a request as open until it is dropped.
struct Open<'a>(Kind, &'a RefCell<Records>);

impl Open<'_> {
    fn count(behavior: Behavior, records: &RefCell<Records>) -> Option<Open<'_>> {
        let Behavior::Of(kind) = behavior else {
            return None;
        };

        *records.borrow_mut().open.entry(kind).or_default() += 1;
        Some(Open(kind, records))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        *self.1.borrow_mut().open.entry(self.0).or_default() -= 1;
    }
}

impl Records {
    fn reply(&mut self, question: Question) -> serde_json::Result<String> {
        match question {
            Question::Secret { webhook, secret } => {
                let key =
                    Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
                self.keys.insert(webhook.into_bytes(), key);
                serde_json::to_string(&())
            }
            Question::Reset => {
                (self.status, self.seen, self.receipts) = Default::default();
                (self.by_kind, self.webhooks) = Default::default();
                serde_json::to_string(&())
            }
            Question::Status => serde_json::to_string(&self.status),
            Question::Receipts => serde_json::to_string(&self.receipts),
            Question::Sample => serde_json::to_string(&self.sample),
            Question::Reached => {
                serde_json::to_string(&Kind::ALL.map(|kind| (kind, self.reached(kind))))
            }
        }
    }

    fn reached(&self, kind: Kind) -> Reached {
        let open = self.open.get(&kind).copied().unwrap_or_default();
        Reached {
            open,
            ..self.by_kind.get(&kind).copied().unwrap_or_default()
        }
    }

    fn count(&mut self, kind: Kind, request: &Request<'_>) {
        let webhook = request
            .webhook
            .and_then(|id| uuid::Uuid::try_parse_ascii(id).ok());
        let is_first = webhook.is_some_and(|id| self.webhooks.insert((kind, id.as_u128())));
        let reached = self.by_kind.entry(kind).or_default();

        reached.requests += 1;

        if is_first {
            reached.webhooks += 1;
            reached.last_at = micros_now();
        }
    }

    fn record(&mut self, request: &Request<'_>, bytes: &[u8]) -> Behavior {
        let behavior = Behavior::of(request.path);
        self.status.requests += 1;

        let delivery = request
            .delivery
            .and_then(|id| uuid::Uuid::try_parse_ascii(id).ok());

        if let Behavior::Of(kind) = behavior {
            self.count(kind, request);
        }

        // Neither a request without an ordinary response nor another attempt of the same delivery
        // is a receipt.
        if behavior.is_ordinary() && delivery.is_some_and(|id| self.seen.insert(id.as_u128())) {
            let now = micros_now();
            self.status.distinct += 1;
            self.status.last_at = now;

            if self.status.first_at == 0 {
                self.status.first_at = now;
            }

            // Row 0 does not exist: deliveries made for `pileup` are not timed.
            if let Some(row) = number_after(request.body, ROW).filter(|row| *row > 0) {
                self.receipts.push((row, now));
                self.status.receipts += 1;
            }

            if self.sample.is_none() {
                self.sample = Some(String::from_utf8_lossy(bytes).into_owned());
            }

            if self.status.distinct % SAMPLE == 1 {
                self.check(request);
            }
        }

        behavior
    }

    fn check(&mut self, request: &Request<'_>) {
        let Some(key) = request.webhook.and_then(|webhook| self.keys.get(webhook)) else {
            return;
        };

        self.status.checked += 1;
        let claimed = request
            .signature
            .and_then(|signature| hex::decode(signature).ok())
            .unwrap_or_default();
        if key
            .clone()
            .chain_update(request.body)
            .verify_slice(&claimed)
            .is_err()
        {
            self.status.wrong += 1;
        }
    }
}
