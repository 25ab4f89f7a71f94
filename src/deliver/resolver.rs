//! Looks up the addresses of receivers' names in `/etc/hosts` and with the nameservers of
//! `/etc/resolv.conf`. No thread waits for a nameserver: one that does not answer costs memory and
//! a few sockets for a few seconds, within a budget.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hickory_resolver::Hosts;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::{RuntimeProvider, TokioRuntimeProvider};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::lookups::{AnswerSpeed, LookupBudget, LookupPermit};

/// The timeout from which on lookups take no longer, however long the timeout of attempts is.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How a lookup's time is divided, in tenths: waiting for the budget, the query, and a probe that
/// finds out whether the nameservers or the name is at fault when the query goes unanswered.
const WAIT_TENTHS: u32 = 1;
const QUERY_TENTHS: u32 = 7;
const PROBE_TENTHS: u32 = 2;
/// The part of the query's time after which an answer is late: long enough for a caching nameserver
/// to find an answer on the other side of the world, and to repeat a query whose packet was lost.
const QUICK_TENTHS: u32 = 1;
/// Names that are looked up at a time. Each unanswered lookup holds about six sockets.
const BUDGET: usize = 64;
/// Addresses of a name that are tried. They share the time for connecting.
const MAX_ADDRESSES: usize = 16;
/// How often the files are checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Queries over one TCP connection at a time. Answers too large for UDP are rare.
const MAX_TCP_QUERIES: usize = 256;

/// Looks up the addresses of a name, for connections to a port. Has its own time limit.
pub type AddressLookup = Arc<
    dyn Fn(String, u16) -> BoxFuture<'static, Result<Vec<SocketAddr>, Unreachable>> + Send + Sync,
>;

/// Why no connection to a host is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    #[error("the host's name does not resolve")]
    Unresolved,
    /// The query for this name went unanswered, while this host's nameservers answer others.
    #[error("the host's name does not resolve: its nameservers do not answer")]
    Unanswered,
    /// This host's nameservers, or the network to them, failed. Nothing is known about the name.
    #[error("the host's name could not be looked up: {0}")]
    Fault(String),
    /// This process or host has no free file descriptor for the lookup. Nothing is known about the
    /// name.
    #[error("the host's name could not be looked up: {0}")]
    Descriptors(String),
    /// The address is part of the URL.
    #[error("{0} is not reachable from the internet or is denied by this service")]
    Blocked(IpAddr),
    /// Without the address: otherwise anybody could look up names of the internal network.
    #[error(
        "the host's name resolves to an address that is not reachable from the internet or is denied by this service"
    )]
    BlockedName,
}

/// The files that the resolver reads, and the nameservers' port.
#[derive(Clone, Debug)]
pub struct ResolverFiles {
    pub resolv_conf: PathBuf,
    pub hosts: PathBuf,
    /// `resolv.conf` cannot name a port.
    pub port: u16,
}

/// Whether an error means that the process or the host has no free file descriptor.
pub(super) fn is_descriptor_limit(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| Some(errno.raw_os_error()) == error.raw_os_error())
}

/// Tokio's sockets. Counts those that could not be opened because no file descriptor was left:
/// hickory drops that error, and reports a timeout if another nameserver does not answer.
#[derive(Clone, Default)]
struct Sockets {
    tokio: TokioRuntimeProvider,
    refused: Arc<AtomicU64>,
}

impl Sockets {
    fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts the refusals of `opening`.
    fn count<S: 'static>(&self, opening: OpeningSocket<S>) -> OpeningSocket<S> {
        let refused = Arc::clone(&self.refused);
        Box::pin(async move {
            let opened = opening.await;
            if opened.as_ref().is_err_and(is_descriptor_limit) {
                refused.fetch_add(1, Ordering::Relaxed);
            }

            opened
        })
    }
}

type OpeningSocket<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;

impl RuntimeProvider for Sockets {
    type Handle = <TokioRuntimeProvider as RuntimeProvider>::Handle;
    type Timer = <TokioRuntimeProvider as RuntimeProvider>::Timer;
    type Udp = <TokioRuntimeProvider as RuntimeProvider>::Udp;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    fn connect_tcp(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        timeout: Option<Duration>,
    ) -> OpeningSocket<Self::Tcp> {
        self.count(self.tokio.connect_tcp(to, from, timeout))
    }

    fn bind_udp(&self, from: SocketAddr, to: SocketAddr) -> OpeningSocket<Self::Udp> {
        self.count(self.tokio.bind_udp(from, to))
    }
}

impl Default for ResolverFiles {
    fn default() -> Self {
        ResolverFiles {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            port: 53,
        }
    }
}

type Nameservers = hickory_resolver::Resolver<Sockets>;
type LookupResult = Result<Arc<[IpAddr]>, Unreachable>;
type SharedLookup = Shared<BoxFuture<'static, LookupResult>>;

/// A resolver with its budget. Clones share both.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    sources: ResolverFiles,
    timeout: Duration,
    budget: LookupBudget,
    sockets: Sockets,
    files: Mutex<Option<Files>>,
    /// Running lookups by name: deliveries to one receiver share a lookup.
    running: Mutex<HashMap<String, SharedLookup>>,
    last_answer: Mutex<Option<Instant>>,
}

/// The files as last read, and what they configure.
struct Files {
    texts: [Vec<u8>; 2],
    nameservers: Nameservers,
    hosts: Arc<Hosts>,
    read_at: Instant,
}

impl Resolver {
    /// Creates a resolver that uses this host's configuration.
    pub fn of_this_host(timeout: Duration) -> Resolver {
        Resolver::new(
            ResolverFiles::default(),
            BUDGET,
            timeout.min(LONGEST_TIMEOUT),
        )
    }

    /// Creates a resolver that looks up at most `budget` names at a time. A lookup ends within half
    /// of `timeout`, so that the caller can distinguish an unresponsive nameserver from an
    /// unresponsive receiver.
    pub fn new(sources: ResolverFiles, budget: usize, timeout: Duration) -> Resolver {
        Resolver(Arc::new(Inner {
            sources,
            timeout: timeout / 2,
            budget: LookupBudget::new(budget),
            sockets: Sockets::default(),
            files: Mutex::default(),
            running: Mutex::default(),
            last_answer: Mutex::default(),
        }))
    }

    pub fn into_lookup(self) -> AddressLookup {
        Arc::new(move |name, port| {
            let resolver = self.clone();
            Box::pin(async move {
                let addresses = resolver.addresses(&name).await?;
                Ok(addresses
                    .iter()
                    .map(|ip| SocketAddr::new(*ip, port))
                    .collect())
            })
        })
    }

    /// Returns the addresses of `name`. The name is absolute: search domains could turn a public
    /// name into a local one.
    async fn addresses(&self, name: &str) -> LookupResult {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if self.0.budget.is_unanswered(&name, Instant::now()) {
            return Err(Unreachable::Unanswered);
        }

        let lookup = self
            .0
            .running
            .lock()
            .entry(name)
            .or_insert_with_key(|name| self.start(name))
            .clone();
        lookup.await
    }

    /// Starts a lookup in its own task, because callers share it: the first may give up while
    /// others still wait.
    fn start(&self, name: &str) -> SharedLookup {
        let registered = Registered {
            inner: Arc::clone(&self.0),
            name: name.to_owned(),
        };

        let task = tokio::spawn(async move { registered.inner.look_up(&registered.name).await });
        let ended =
            task.map(|end| end.unwrap_or_else(|error| Err(Unreachable::Fault(error.to_string()))));
        ended.boxed().shared()
    }
}

/// Removes a lookup from the running ones when it is dropped.
struct Registered {
    inner: Arc<Inner>,
    name: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.inner.running.lock().remove(&self.name);
    }
}

impl Inner {
    fn part(&self, tenths: u32) -> Duration {
        self.timeout * tenths / (WAIT_TENTHS + QUERY_TENTHS + PROBE_TENTHS)
    }

    async fn look_up(&self, name: &str) -> LookupResult {
        let (nameservers, hosts) = self.files()?;

        // Already in Punycode. A name that DNS cannot represent has no address.
        let Ok(mut query) = Name::from_ascii(name) else {
            return Err(Unreachable::Unresolved);
        };

        query.set_fqdn(true);

        let of_family = |kind| hosts.lookup_static_host(&Query::query(query.clone(), kind));
        let listed = [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(of_family);
        let listed: Arc<[IpAddr]> = listed.flat_map(LookupIp::from).collect();
        if !listed.is_empty() {
            return Ok(listed);
        }

        let Ok(mut permit) =
            tokio::time::timeout(self.part(WAIT_TENTHS), self.budget.acquire(name)).await
        else {
            return Err(Unreachable::Fault(
                "too many names are being looked up at this moment".to_owned(),
            ));
        };

        let started = Instant::now();
        let refusals = self.sockets.refusals();
        let Some(answer) = self.query(&nameservers, query, &mut permit).await else {
            self.budget.note(name, AnswerSpeed::Late, Instant::now());
            return Err(Unreachable::Fault(
                "too many lookups are waiting for an answer at this moment".to_owned(),
            ));
        };

        let now = Instant::now();
        let speed = if now - started <= self.part(QUICK_TENTHS) {
            AnswerSpeed::Quick
        } else {
            AnswerSpeed::Late
        };

        match answer {
            Ok(addresses) => {
                self.note_answer(name, speed, now);
                Ok(addresses.iter().take(MAX_ADDRESSES).collect())
            }
            Err(_) if self.sockets.refusals() > refusals => Err(Unreachable::Descriptors(
                "no file descriptor is left for a query".to_owned(),
            )),
            // The nameservers answered: the name has no address, or records that cannot be used.
            Err(NetError::Dns(_) | NetError::Proto(_) | NetError::ForeignClassRecord { .. }) => {
                self.note_answer(name, speed, now);
                Err(Unreachable::Unresolved)
            }
            Err(NetError::Timeout) if self.answer_others(&nameservers, started).await => {
                self.budget
                    .note(name, AnswerSpeed::Unanswered, Instant::now());
                Err(Unreachable::Unanswered)
            }
            Err(NetError::Timeout) => Err(Unreachable::Fault(
                "this host's nameservers do not answer".to_owned(),
            )),
            // An I/O error (`NoConnections`, as hickory drops the error itself), a failed
            // connection for an answer that does not fit into a UDP packet (`Truncated`), too many
            // queries (`Busy`), or an error inside hickory.
            Err(error) => Err(Unreachable::Fault(format!(
                "this host's nameservers cannot be queried: {error}"
            ))),
        }
    }

    fn note_answer(&self, name: &str, speed: AnswerSpeed, now: Instant) {
        *self.last_answer.lock() = Some(now);
        self.budget.note(name, speed, now);
    }

    /// Queries for the addresses of a name. None if the answer is late and too many other lookups
    /// are.
    async fn query(
        &self,
        nameservers: &Nameservers,
        name: Name,
        permit: &mut LookupPermit<'_>,
    ) -> Option<Result<LookupIp, NetError>> {
        let mut answer = pin!(tokio::time::timeout(
            self.part(QUERY_TENTHS),
            nameservers.lookup_ip(name)
        ));
        let answer = match tokio::time::timeout(self.part(QUICK_TENTHS), &mut answer).await {
            Ok(answer) => answer,
            Err(_) if !permit.become_late() => return None,
            Err(_) => answer.await,
        };

        Some(answer.unwrap_or(Err(NetError::Timeout)))
    }

    /// Whether the nameservers answer other queries although one went unanswered: then that name's
    /// own nameservers are to blame. Any answer counts, and every nameserver can answer for the
    /// root.
    async fn answer_others(&self, nameservers: &Nameservers, started: Instant) -> bool {
        let late = started + self.part(QUERY_TENTHS) / 2;
        if self
            .last_answer
            .lock()
            .is_some_and(|answered| answered >= late)
        {
            return true;
        }

        let probe = nameservers.lookup(Name::root(), RecordType::NS);
        let answer = tokio::time::timeout(self.part(PROBE_TENTHS), probe).await;
        matches!(answer, Ok(Ok(_) | Err(NetError::Dns(_))))
    }

    /// Returns the nameservers and the hosts that the files configure. While the files are
    /// unchanged, the nameservers are kept, which know which of them answer.
    fn files(&self) -> Result<(Nameservers, Arc<Hosts>), Unreachable> {
        let mut current = self.files.lock();
        let known = match current.take() {
            Some(known) if known.read_at.elapsed() < FILE_CHECK_INTERVAL => known,
            known => {
                let texts = [read(&self.sources.resolv_conf)?, read(&self.sources.hosts)?];
                let read_at = Instant::now();

                match known.filter(|known| known.texts == texts) {
                    Some(known) => Files { read_at, ..known },
                    None => Files {
                        nameservers: self.nameservers(&texts[0]),
                        hosts: hosts(&texts[1])?,
                        texts,
                        read_at,
                    },
                }
            }
        };

        let known = current.insert(known);
        Ok((known.nameservers.clone(), Arc::clone(&known.hosts)))
    }

    /// Returns the nameservers of the file. Without any, localhost is the nameserver, as in
    /// resolv.conf(5).
    fn nameservers(&self, resolv_conf: &[u8]) -> Nameservers {
        let (mut servers, edns0) = match parse_resolv_conf(resolv_conf) {
            Ok((config, options)) => (config.name_servers().to_vec(), options.edns0),
            Err(_) => (
                vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())],
                false,
            ),
        };

        for connection in servers
            .iter_mut()
            .flat_map(|server| &mut server.connections)
        {
            connection.port = self.sources.port;
        }

        let mut options = ResolverOpts::default();
        options.edns0 = edns0;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never;

        // Two tries, with time left to use the answer of one address family when the other's query
        // goes unanswered.
        options.attempts = 1;
        options.timeout = self.part(QUERY_TENTHS) * 2 / 5;

        // One nameserver at a time: an unanswered query holds several sockets for each.
        options.num_concurrent_reqs = 1;
        options.max_active_requests = MAX_TCP_QUERIES;

        // No cache: answers may be large, and hosts with many lookups have a caching nameserver
        // nearby.
        options.cache_size = 0;
        options.positive_max_ttl = Some(Duration::ZERO);
        options.negative_max_ttl = Some(Duration::ZERO);

        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let builder =
            Nameservers::builder_with_config(config, self.sockets.clone()).with_options(options);
        builder
            .build()
            .expect("only TLS configuration can fail, and there is none")
    }
}

/// Reads a file that may be missing.
fn read(path: &Path) -> Result<Vec<u8>, Unreachable> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| {
            let message = format!("{}: {error}", path.display());

            if is_descriptor_limit(&error) {
                Unreachable::Descriptors(message)
            } else {
                Unreachable::Fault(message)
            }
        }),
    }
}

/// Parses a file in the format of hosts(5).
fn hosts(text: &[u8]) -> Result<Arc<Hosts>, Unreachable> {
    let mut hosts = Hosts::default();
    let parsed = hosts.read_hosts_conf(String::from_utf8_lossy(text).as_bytes());
    parsed.map_err(|error| Unreachable::Fault(error.to_string()))?;
    Ok(Arc::new(hosts))
}
