//! Connections to receivers: which are reused, and what happens when one was closed or none can be opened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use walhook::domain::delivery::Answer as Outcome;

use crate::support::{Bench, Receiver, TestApp, attempt, eventually};

/// A receiver that answers the first `answers[n]` requests on its connection `n`, and closes the connection after reading one
/// more. Counts requests and connections.
struct Closing {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Closing {
    async fn start(answers: &'static [usize]) -> Closing {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (seen, opened) = (requests.clone(), connections.clone());
        tokio::spawn(async move {
            for count in answers {
                let (stream, _) = listener.accept().await.unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, *count, seen.clone()));
            }
        });
        Closing { address, requests, connections }
    }

    fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }

    fn seen(&self) -> (usize, usize) {
        (self.requests.load(Ordering::Relaxed), self.connections.load(Ordering::Relaxed))
    }
}

async fn serve(mut stream: TcpStream, answers: usize, requests: Arc<AtomicUsize>) {
    for number in 0..=answers {
        let mut request = Vec::new();
        // Only the body ends like this.
        while !request.ends_with(b"}}") {
            if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                return;
            }
        }
        requests.fetch_add(1, Ordering::Relaxed);
        if number < answers {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
    }
}

const DELIVERED: Outcome = Outcome::Accepted { status: 200 };

#[tokio::test]
async fn an_idle_connection_that_the_receiver_closes_uses_up_no_attempt() {
    let sender = Bench::new().await.sender();
    let receiver = Closing::start(&[1, 2]).await;
    for number in 1..=3 {
        assert_eq!(attempt(&sender, &receiver.url()).await.unwrap().answer, DELIVERED, "{number}");
    }
    assert_eq!(receiver.seen(), (4, 2), "the second request was sent again, on a new connection");
}

#[tokio::test]
async fn a_new_connection_that_the_receiver_closes_is_a_failure() {
    let sender = Bench::new().await.sender();
    let receiver = Closing::start(&[0, 1, 0, 0]).await;
    let kind = async || attempt(&sender, &receiver.url()).await.unwrap().answer.error().map(|kind| kind.as_str());
    assert_eq!(kind().await, Some("connection_reset"));
    assert_eq!(receiver.seen(), (1, 1), "nothing is sent twice");
    assert_eq!(kind().await, None);
    assert_eq!(kind().await, Some("connection_reset"));
    assert_eq!(receiver.seen(), (4, 3), "sent again at most once");
}

/// Forbids the process to open another file descriptor, or restores its limit.
fn limit_descriptors(pid: u32, is_limited: bool) {
    let lowest_free = || (3..).find(|number| !std::path::Path::new(&format!("/proc/{pid}/fd/{number}")).exists());
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let current = if is_limited { lowest_free() } else { maximum };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap());
    rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[tokio::test]
async fn without_free_file_descriptors_no_attempt_is_used_up() {
    let mut app = TestApp::prepare().await;
    // Leases end after ten seconds more.
    app.set("delivery.timeout", "5s");
    app.setup().await;
    app.run().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    // From now on, lookups and the metrics listener have open connections.
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let (webhook, _) = api.create_webhook(&receiver.url("/in"), &["payment.statement_ready"]).await;
    let faults = "walhook_own_faults_total{cause=\"descriptors\"}";
    assert_eq!(app.sidecar().metric(faults).await, Some(0.0));

    let pid = app.sidecar().pid();
    limit_descriptors(pid, true);
    platform.payment(user, "ready").await;
    let sidecar = app.sidecar();
    let met = || async { (sidecar.metric(faults).await? >= 1.0).then_some(()) };
    eventually("a try without a file descriptor", met).await;
    assert!(receiver.requests().is_empty());
    limit_descriptors(pid, false);
    let logs = api.wait_for_logs(&webhook, "an attempt", |logs| !logs.is_empty()).await;
    assert_eq!((logs.len(), &logs[0]["attempt"], &logs[0]["outcome"]), (1, &json!(1), &json!("delivered")));
    assert_eq!(api.webhook(&webhook).await["failure_count"], 0);
}
