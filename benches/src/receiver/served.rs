//! The receiver process: one thread that serves HTTP and answers questions.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::request::{Request, number_after, parse};
use super::{Question, Receipt, Status};

pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
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
}

/// Serves until standard input ends. Uses one thread, and leaves the other processors to what is measured.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
            match behavior {
                Behavior::Prompt => {}
                Behavior::Slow(wait) => tokio::time::sleep(wait).await,
                // Until the sender closes the connection.
                Behavior::Never => drop(stream.read_buf(&mut BytesMut::with_capacity(1)).await?),
            }
            if behavior == Behavior::Never {
                return Ok(());
            }
            stream.write_all(ANSWER).await?;
            bytes::Buf::advance(&mut buffer, length);
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Behavior {
    Prompt,
    Slow(Duration),
    Never,
}

impl Behavior {
    fn of(path: &[u8]) -> Behavior {
        let milliseconds = number_after(path, b"/slow/").map(Duration::from_millis);
        match milliseconds {
            Some(wait) => Behavior::Slow(wait),
            None if path.starts_with(b"/hang") => Behavior::Never,
            None => Behavior::Prompt,
        }
    }
}

impl Records {
    fn reply(&mut self, question: Question) -> serde_json::Result<String> {
        match question {
            Question::Secret { webhook, secret } => {
                let key = Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
                self.keys.insert(webhook.into_bytes(), key);
                serde_json::to_string(&())
            }
            Question::Reset => {
                (self.status, self.seen, self.receipts) = Default::default();
                serde_json::to_string(&())
            }
            Question::Status => serde_json::to_string(&self.status),
            Question::Receipts => serde_json::to_string(&self.receipts),
            Question::Sample => serde_json::to_string(&self.sample),
        }
    }

    fn record(&mut self, request: &Request<'_>, bytes: &[u8]) -> Behavior {
        let behavior = Behavior::of(request.path);
        self.status.requests += 1;
        let delivery = request.delivery.and_then(|id| uuid::Uuid::try_parse_ascii(id).ok());
        // Neither a hanging request nor another attempt of the same delivery is a receipt.
        if behavior != Behavior::Never && delivery.is_some_and(|id| self.seen.insert(id.as_u128())) {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
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
        let Some(key) = request.webhook.and_then(|webhook| self.keys.get(webhook)) else { return };
        self.status.checked += 1;
        let claimed = request.signature.and_then(|signature| hex::decode(signature).ok()).unwrap_or_default();
        if key.clone().chain_update(request.body).verify_slice(&claimed).is_err() {
            self.status.wrong += 1;
        }
    }
}
