//! Name resolution: real queries to a nameserver with scripted answers, and attempts that depend on
//! the answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpSocket, UdpSocket};
use tokio::task::JoinHandle;
use walhook::clock::SystemClock;
use walhook::config::{Config, Period};
use walhook::deliver::guard::{Guard, Unreachable};
use walhook::deliver::resolver::{Resolver, ResolverFiles};
use walhook::deliver::{Sender, Settings};
use walhook::private_postgres::free_port;

use crate::support::{Answer, Bench, Receiver, attempt, eventually};

const TYPE_A: u16 = 1;
const NO_SUCH_NAME: u8 = 3;
const SERVER_FAILURE: u8 = 2;
/// A lookup may take half of this.
const TIMEOUT: Duration = Duration::from_secs(12);
/// Names that are answered must be answered within a twentieth of this.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// A nameserver that answers by the first label of a name: `up` has a loopback address, names that
/// start with `silent` get no answer, `broken` gets a server failure, `many` has more addresses
/// than are used, `large` has an answer that does not fit into a UDP packet, and others do not
/// exist.
struct Nameserver {
    address: SocketAddr,
    questions: Arc<AtomicUsize>,
    is_mute: Arc<AtomicBool>,
    server: JoinHandle<()>,
    directory: tempfile::TempDir,
}

impl Nameserver {
    async fn start() -> Nameserver {
        // Free over TCP as well, for the test that must refuse connections.
        let port = free_port().unwrap();
        let socket = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let questions = Arc::<AtomicUsize>::default();
        let is_mute = Arc::<AtomicBool>::default();
        let count = questions.clone();
        let mute = is_mute.clone();

        let server = tokio::spawn(async move {
            let mut packet = [0; 1_500];

            loop {
                let (length, from) = socket.recv_from(&mut packet).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);

                if !mute.load(Ordering::Relaxed)
                    && let Some(answer) = answer(&packet[..length])
                {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });

        let directory = tempfile::tempdir().unwrap();

        // Search domains and ndots must not be applied: `up` must not become `up.search.example`.
        let resolv_conf =
            "search search.example\noptions ndots:5 attempts:9 timeout:30\nnameserver 127.0.0.1\n";
        std::fs::write(directory.path().join("resolv.conf"), resolv_conf).unwrap();
        std::fs::write(
            directory.path().join("hosts"),
            "# local\n127.0.0.1 known.example Other # and more\n",
        )
        .unwrap();

        Nameserver {
            address,
            questions,
            is_mute,
            server,
            directory,
        }
    }

    fn resolver(&self, budget: usize, timeout: Duration) -> Resolver {
        let file = |name: &str| self.directory.path().join(name);
        let sources = ResolverFiles {
            resolv_conf: file("resolv.conf"),
            hosts: file("hosts"),
            port: self.address.port(),
        };

        Resolver::new(sources, budget, timeout)
    }

    fn guard(&self, budget: usize) -> Guard {
        self.guard_within(budget, TIMEOUT)
    }

    fn guard_within(&self, budget: usize, timeout: Duration) -> Guard {
        let lookup = self.resolver(budget, timeout).into_lookup();
        Guard::new(true, vec!["127.0.0.0/8".parse().unwrap()]).with_lookup(lookup)
    }

    fn sender(&self) -> Sender {
        let mut config = Config::default();
        config.delivery.timeout = Period(TIMEOUT);
        let settings = Settings {
            guard: self.guard(64),
            ..Settings::from_config(&config).unwrap()
        };

        Sender::new(&settings, Arc::new(SystemClock)).unwrap()
    }
}

impl Drop for Nameserver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Encodes the response to a query (RFC 1035, section 4.1).
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();

    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8(question[at + 1..end].to_vec()).unwrap());
        at = end;
    }

    let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
    let first = labels.first().map(String::as_str).unwrap_or_default();
    let is_absolute = !labels.iter().any(|label| label == "search");

    let (code, addresses): (u8, Vec<Ipv4Addr>) = match first {
        name if name.starts_with("silent") => return None,
        "" => (0, Vec::new()),
        "up" if is_absolute => (0, vec![Ipv4Addr::LOCALHOST]),
        "many" => (
            0,
            (1..=25)
                .map(|last| Ipv4Addr::new(127, 0, 0, last))
                .collect(),
        ),
        "broken" => (SERVER_FAILURE, Vec::new()),
        "large" => (0, Vec::new()),
        _ => (NO_SUCH_NAME, Vec::new()),
    };

    let addresses = if kind == TYPE_A {
        addresses
    } else {
        Vec::new()
    };

    let mut answer = question[..2].to_vec();

    // Flags: response, recursion desired and available, and for a large answer truncated.
    let truncated = if first == "large" { 0x02 } else { 0 };
    answer.extend([0x81 | truncated, 0x80 | code, 0, 1]);
    answer.extend(u16::try_from(addresses.len()).unwrap().to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(&question[12..at + 5]);

    for address in addresses {
        // The name of the query, and an address with a TTL of a minute.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }

    Some(answer)
}

#[tokio::test]
async fn names_are_absolute_and_the_hosts_file_comes_first() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard(4);
    let loopback = Ok(vec![SocketAddr::from(([127, 0, 0, 1], 443))]);

    for name in ["up", "up.", "up.example", "UP.example"] {
        assert_eq!(guard.resolve(name, 443).await, loopback, "{name}");
    }

    assert_eq!(
        guard.resolve("unknown.example", 443).await,
        Err(Unreachable::Unresolved)
    );
    assert_eq!(
        guard.resolve("broken.example", 443).await,
        Err(Unreachable::Unresolved)
    );

    let before = nameserver.questions.load(Ordering::Relaxed);

    for name in ["known.example", "KNOWN.example.", "other"] {
        assert_eq!(guard.resolve(name, 443).await, loopback, "{name}");
    }

    assert_eq!(
        nameserver.questions.load(Ordering::Relaxed),
        before,
        "names in the hosts file are not queried"
    );
    let many = guard.resolve("many.example", 443).await.unwrap();
    assert_eq!(many.len(), 16, "the number of addresses is limited");
}

/// With getaddrinfo, each of them would block one of 512 threads for longer than the timeout.
#[tokio::test]
async fn unanswered_names_of_one_tenant_delay_no_other() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard_within(64, LONG_TIMEOUT);

    let hostile: Vec<JoinHandle<_>> = (0..600)
        .map(|number| {
            // Ten webhooks.
            let guard = guard.clone();
            let name = format!("silent{}.example", number % 10);
            tokio::spawn(async move { guard.resolve(&name, 443).await })
        })
        .collect();

    let waiting = || async { (nameserver.questions.load(Ordering::Relaxed) >= 10).then_some(()) };
    eventually("queries without an answer", waiting).await;
    assert!(
        guard.resolve("up.example", 443).await.is_ok(),
        "other names are looked up"
    );
    assert!(
        hostile.iter().all(|lookup| !lookup.is_finished()),
        "the others still wait"
    );

    for lookup in hostile {
        assert_eq!(lookup.await.unwrap(), Err(Unreachable::Unanswered));
    }

    let before = nameserver.questions.load(Ordering::Relaxed);
    assert_eq!(
        guard.resolve("silent1.example", 443).await,
        Err(Unreachable::Unanswered)
    );
    assert_eq!(
        nameserver.questions.load(Ordering::Relaxed),
        before,
        "unanswered names are remembered for a while"
    );
}

/// Users who change their webhooks' URLs all the time, to names that are never answered.
struct Flood {
    users: Vec<JoinHandle<()>>,
    ended: Arc<AtomicUsize>,
}

impl Flood {
    /// Looks up ever new names, 40 at a time.
    fn start(guard: &Guard) -> Flood {
        let ended = Arc::<AtomicUsize>::default();
        let look_up = |webhook| {
            let guard = guard.clone();
            let ended = ended.clone();

            tokio::spawn(async move {
                for change in 0.. {
                    let _ = guard
                        .resolve(&format!("silent{webhook}-{change}.example"), 443)
                        .await;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        };

        Flood {
            users: (0..40).map(look_up).collect(),
            ended,
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.users.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test]
async fn names_without_answers_delay_none_that_was_answered_before() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard_within(16, LONG_TIMEOUT);

    assert!(guard.resolve("up.example", 443).await.is_ok());
    let before = nameserver.questions.load(Ordering::Relaxed);
    let flood = Flood::start(&guard);

    // Two questions for each of the eight names that are looked up at first.
    let waiting =
        || async { (nameserver.questions.load(Ordering::Relaxed) >= before + 16).then_some(()) };
    eventually("queries without an answer", waiting).await;

    // Until some wait for a late answer, and others have taken the places of those that ended.
    while flood.ended.load(Ordering::Relaxed) < 100 {
        let found = guard.resolve("up.example", 443).await;
        assert!(found.is_ok(), "{found:?}");
    }
}

#[tokio::test]
async fn names_without_answers_leave_places_to_other_new_names() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard_within(16, LONG_TIMEOUT);
    let unanswered = Arc::<AtomicUsize>::default();

    let look_up = |number| {
        let guard = guard.clone();
        let unanswered = unanswered.clone();

        tokio::spawn(async move {
            let found = guard.resolve(&format!("silent{number}.example"), 443).await;
            assert!(
                matches!(found, Err(Unreachable::Fault(_) | Unreachable::Unanswered)),
                "{found:?}"
            );
            unanswered.fetch_add(
                usize::from(found == Err(Unreachable::Unanswered)),
                Ordering::Relaxed,
            );
        })
    };

    let hostile: Vec<JoinHandle<_>> = (0..40).map(look_up).collect();
    let ended = || async { hostile.iter().any(JoinHandle::is_finished).then_some(()) };

    eventually("lookups to end for lack of a place", ended).await;
    let found = || async { guard.resolve("up.new.example", 443).await.ok() };

    eventually("a new name", found).await;
    assert_eq!(
        unanswered.load(Ordering::Relaxed),
        0,
        "the first silent names still wait for their nameservers"
    );

    for lookup in hostile {
        lookup.await.unwrap();
    }

    // A quarter of the budget: names without answers are given up too, and use up attempts.
    assert!(unanswered.load(Ordering::Relaxed) >= 4);
}

#[tokio::test]
async fn a_full_budget_does_not_count_against_the_receiver() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard(1);
    let first = tokio::spawn({
        let guard = guard.clone();
        async move { guard.resolve("silent1.example", 443).await }
    });

    let waiting = || async { (nameserver.questions.load(Ordering::Relaxed) > 0).then_some(()) };
    eventually("a query without an answer", waiting).await;
    assert!(matches!(
        guard.resolve("up.example", 443).await,
        Err(Unreachable::Fault(_))
    ));
    first.await.unwrap().unwrap_err();
    assert!(
        guard.resolve("up.example", 443).await.is_ok(),
        "the budget is free again"
    );
}

/// Only if this host's nameservers answer other queries is the receiver's nameserver to blame for a
/// missing answer.
#[tokio::test]
async fn missing_answers_are_attributed_to_the_right_nameserver() {
    let nameserver = Nameserver::start().await;
    let receiver = Receiver::start().await;
    let sender = nameserver.sender();
    let url = |name: &str| receiver.url_at(name, "/in");

    assert_eq!(
        attempt(&sender, &url("up.example"))
            .await
            .unwrap()
            .answer
            .error(),
        None
    );

    for name in ["unknown.example", "broken.example", "silent.example"] {
        let failed = attempt(&sender, &url(name)).await.unwrap().answer;
        assert_eq!(
            failed.error().map(|kind| kind.as_str()),
            Some("dns"),
            "{name}"
        );
    }

    nameserver.is_mute.store(true, Ordering::Relaxed);
    let fault = attempt(&sender, &url("other.example"))
        .await
        .unwrap_err()
        .to_string();

    assert!(fault.contains("nameservers do not answer"), "{fault}");
    nameserver.is_mute.store(false, Ordering::Relaxed);
    assert_eq!(receiver.requests().len(), 1);
}

/// The nameserver answers that the answer is large, and refuses the connection over which it could
/// be read.
#[tokio::test]
async fn a_failed_connection_to_the_nameserver_is_not_the_receivers_fault() {
    let nameserver = Nameserver::start().await;

    // Not listening: nothing else can use the port.
    let refusing = TcpSocket::new_v4().unwrap();
    refusing.bind(nameserver.address).unwrap();
    let found = nameserver.guard(4).resolve("large.example", 443).await;
    assert!(matches!(found, Err(Unreachable::Fault(_))), "{found:?}");
}

/// Without its nameservers, names would be looked up elsewhere, and names in the hosts file would
/// not be found.
#[tokio::test]
async fn files_that_cannot_be_read_are_not_the_receivers_fault() {
    for file in ["resolv.conf", "hosts"] {
        let nameserver = Nameserver::start().await;
        let path = nameserver.directory.path().join(file);

        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();

        let found = nameserver.guard(4).resolve("unknown.example", 443).await;
        assert!(
            matches!(found, Err(Unreachable::Fault(_))),
            "{file}: {found:?}"
        );
    }
}

#[tokio::test]
async fn while_nameservers_do_not_answer_no_attempt_is_used_up() {
    let nameserver = Nameserver::start().await;
    nameserver.is_mute.store(true, Ordering::Relaxed);

    let mut bench = Bench::new().await;
    bench.config.delivery.timeout = Period(TIMEOUT);

    let receiver = Receiver::start().await;
    receiver.answer(|_| Answer::Status(204));

    let (webhook, _) = bench.webhook(&receiver.url_at("up.example", "/")).await;
    let delivery = bench.delivery(webhook).await;
    let settings = Settings {
        guard: nameserver.guard(64),
        ..bench.settings()
    };

    let running = bench.run_with(settings);

    // The query and the probe, both unanswered.
    let queried = || async { (nameserver.questions.load(Ordering::Relaxed) > 0).then_some(()) };
    eventually("a first lookup", queried).await;

    let free = || async {
        (running.handoff.budget.counters().free() == walhook::handoff::CAPACITY).then_some(())
    };

    eventually("the budget to be released", free).await;
    assert!(bench.is_pending(delivery).await && bench.log(delivery).await.is_empty());
    assert_eq!(bench.counters(webhook).await, (0, 0, 0, false, false));
    nameserver.is_mute.store(false, Ordering::Relaxed);
    bench
        .client
        .execute("update walhook.delivery set due_at = now()", &[])
        .await
        .unwrap();
    bench.wait_for_end(delivery).await;
    running.stop().await;
    assert_eq!(
        bench.log(delivery).await,
        [(1, "delivered".to_owned(), None, Some(204))]
    );
}

#[tokio::test]
async fn changed_files_are_read_again() {
    let nameserver = Nameserver::start().await;
    let guard = nameserver.guard(4);

    assert_eq!(
        guard.resolve("new.example", 443).await,
        Err(Unreachable::Unresolved)
    );
    std::fs::write(
        nameserver.directory.path().join("hosts"),
        "127.0.0.7 new.example\n",
    )
    .unwrap();

    let found = || async { guard.resolve("new.example", 443).await.ok() };
    assert_eq!(
        eventually("the new line", found).await,
        [SocketAddr::from(([127, 0, 0, 7], 443))]
    );
}
