//! Looks up the addresses of receivers' names with the nameservers of `/etc/resolv.conf`, and in `/etc/hosts`. No thread waits
//! for a nameserver: one that is silent costs memory and a few sockets for a few seconds, within a budget.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use lru::LruCache;
use tokio::sync::Semaphore;

use super::guard::Lookup;

/// A lookup may take this long where attempts may take much longer.
const LONGEST: Duration = Duration::from_secs(5);
/// Of a lookup's time, tenths for a place in the budget, for the question, and for finding out whose fault it is that nobody
/// answered.
const PLACE: u32 = 1;
const QUESTION: u32 = 7;
const PROBE: u32 = 2;
/// Names that are looked up at a time. Each that is not answered for holds some six sockets.
const BUDGET: usize = 64;
/// For this long a name that was not answered for is not asked for again: a receiver whose nameserver is silent takes one place
/// in the budget now and then, and not one for each of its deliveries. Shorter than the wait before a retry.
const SILENCE: Duration = Duration::from_secs(10);
/// Names whose silence is remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1_024).expect("not zero");
/// Addresses of a name that connections are tried to. They share the time for connecting.
const MAX_ADDRESSES: usize = 16;
/// How often the files are looked at for changes.
const REREAD: Duration = Duration::from_secs(5);
/// Questions over one TCP connection at a time: answers too large for UDP are rare.
const MAX_TCP_QUESTIONS: usize = 256;

/// The fault of a resolver or of the way to it: it says nothing of the name. Inside an [`io::Error`], a [`Lookup`] says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ResolverFault(String);

/// Where the resolver reads what it needs to know.
#[derive(Clone, Debug)]
pub struct Sources {
    pub resolv_conf: PathBuf,
    pub hosts: PathBuf,
    /// The nameservers' port: the file has no place for one.
    pub port: u16,
}

impl Default for Sources {
    fn default() -> Self {
        Sources { resolv_conf: "/etc/resolv.conf".into(), hosts: "/etc/hosts".into(), port: 53 }
    }
}

/// Why there are no addresses.
#[derive(Clone, Debug)]
enum Failure {
    /// A nameserver answered that there are none.
    NoAddress,
    /// Nobody answered for this name, while the nameservers answered other questions.
    Silence,
    Fault(ResolverFault),
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoAddress => io::ErrorKind::NotFound.into(),
            Failure::Silence => io::ErrorKind::TimedOut.into(),
            Failure::Fault(fault) => io::Error::other(fault),
        }
    }
}

type Found = Result<Arc<[IpAddr]>, Failure>;
type UnderWay = Shared<BoxFuture<'static, Found>>;

/// A resolver with its budget; clones share both.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    sources: Sources,
    timeout: Duration,
    budget: Semaphore,
    current: Mutex<Option<Current>>,
    /// By name, so that deliveries to one receiver share a lookup and its place in the budget.
    under_way: Mutex<HashMap<String, UnderWay>>,
    silent: Mutex<LruCache<String, Instant>>,
    last_answer: Mutex<Option<Instant>>,
}

/// Made from the files as they were.
struct Current {
    nameservers: TokioResolver,
    hosts: Arc<HashMap<String, Vec<IpAddr>>>,
    modified: [Option<SystemTime>; 2],
    looked_at: Instant,
}

impl Resolver {
    /// With what this host is configured to use.
    pub fn of_this_host(timeout: Duration) -> Resolver {
        Resolver::new(Sources::default(), BUDGET, timeout)
    }

    /// Works on at most `budget` names at a time. A lookup ends within half of `timeout`, so that the caller can distinguish
    /// a silent nameserver from a silent receiver.
    pub fn new(sources: Sources, budget: usize, timeout: Duration) -> Resolver {
        Resolver(Arc::new(Inner {
            sources,
            timeout: (timeout / 2).min(LONGEST),
            budget: Semaphore::new(budget),
            current: Mutex::default(),
            under_way: Mutex::default(),
            silent: Mutex::new(LruCache::new(REMEMBERED)),
            last_answer: Mutex::default(),
        }))
    }

    pub fn into_lookup(self) -> Lookup {
        Arc::new(move |name, port| {
            let resolver = self.clone();
            Box::pin(async move {
                let addresses = resolver.addresses(&name).await?;
                Ok(addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
            })
        })
    }

    /// The addresses of `name`, which is absolute: search domains are a convenience for people, and lead elsewhere than the
    /// owner of a public name meant.
    async fn addresses(&self, name: &str) -> Found {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if self.0.is_silent(&name) {
            return Err(Failure::Silence);
        }
        let lookup = lock(&self.0.under_way).entry(name).or_insert_with_key(|name| self.begin(name)).clone();
        lookup.await
    }

    /// In a task of its own, because callers share it: the first caller may give up while others still wait.
    fn begin(&self, name: &str) -> UnderWay {
        let place = Registered { inner: Arc::clone(&self.0), name: name.to_owned() };
        let task = tokio::spawn(async move { place.inner.look_up(&place.name).await });
        let ended = task.map(|end| end.unwrap_or_else(|error| Err(fault(error.to_string()))));
        ended.boxed().shared()
    }
}

/// A lookup's place among those under way, until it is dropped.
struct Registered {
    inner: Arc<Inner>,
    name: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.inner.under_way).remove(&self.name);
    }
}

fn fault(reason: impl Into<String>) -> Failure {
    Failure::Fault(ResolverFault(reason.into()))
}

impl Inner {
    fn part(&self, tenths: u32) -> Duration {
        self.timeout * tenths / (PLACE + QUESTION + PROBE)
    }

    async fn look_up(&self, name: &str) -> Found {
        let (nameservers, hosts) = self.current();
        if let Some(addresses) = hosts.get(name) {
            return Ok(addresses.as_slice().into());
        }
        // Punycode by now; what DNS cannot spell has no addresses.
        let Ok(mut query) = Name::from_ascii(name) else { return Err(Failure::NoAddress) };
        query.set_fqdn(true);
        let Ok(Ok(_place)) = tokio::time::timeout(self.part(PLACE), self.budget.acquire()).await else {
            return Err(fault("too many names are being looked up at this moment"));
        };
        let begun = Instant::now();
        let reason = match tokio::time::timeout(self.part(QUESTION), nameservers.lookup_ip(query)).await {
            Ok(Ok(found)) => {
                *lock(&self.last_answer) = Some(Instant::now());
                return Ok(found.iter().take(MAX_ADDRESSES).collect());
            }
            Ok(Err(NetError::Dns(_))) => {
                *lock(&self.last_answer) = Some(Instant::now());
                return Err(Failure::NoAddress);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        if self.answer_others(&nameservers, begun).await {
            lock(&self.silent).put(name.to_owned(), Instant::now());
            return Err(Failure::Silence);
        }
        Err(fault(format!("this host's nameservers do not answer: {reason}")))
    }

    /// Whether the nameservers answer other questions while one name has gone without an answer: then that name's own are to
    /// blame. Any answer will do, and everybody can answer for the root.
    async fn answer_others(&self, nameservers: &TokioResolver, begun: Instant) -> bool {
        let late = begun + self.part(QUESTION) / 2;
        if lock(&self.last_answer).is_some_and(|answered| answered >= late) {
            return true;
        }
        let probe = nameservers.lookup(Name::root(), RecordType::NS);
        let answer = tokio::time::timeout(self.part(PROBE), probe).await;
        matches!(answer, Ok(Ok(_) | Err(NetError::Dns(_))))
    }

    fn is_silent(&self, name: &str) -> bool {
        lock(&self.silent).get(name).is_some_and(|since| since.elapsed() < SILENCE)
    }

    /// What the files say; they are read again when they change.
    fn current(&self) -> (TokioResolver, Arc<HashMap<String, Vec<IpAddr>>>) {
        let mut current = lock(&self.current);
        let modified = || {
            let paths = [&self.sources.resolv_conf, &self.sources.hosts];
            paths.map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
        };
        let known = current.take().filter(|known| known.looked_at.elapsed() < REREAD || known.modified == modified());
        let known = match known {
            Some(known) if known.looked_at.elapsed() < REREAD => known,
            Some(known) => Current { looked_at: Instant::now(), ..known },
            None => Current {
                // Before they are read: a change meanwhile is noticed the next time.
                modified: modified(),
                nameservers: self.nameservers(),
                hosts: Arc::new(hosts(&std::fs::read_to_string(&self.sources.hosts).unwrap_or_default())),
                looked_at: Instant::now(),
            },
        };
        let known = current.insert(known);
        (known.nameservers.clone(), Arc::clone(&known.hosts))
    }

    /// Without any in the file there is one on this host, as resolv.conf(5) says.
    fn nameservers(&self) -> TokioResolver {
        let configured = std::fs::read(&self.sources.resolv_conf).ok().and_then(|text| parse_resolv_conf(text).ok());
        let (mut servers, edns0) = match &configured {
            Some((config, options)) => (config.name_servers().to_vec(), options.edns0),
            None => (vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())], false),
        };
        for connection in servers.iter_mut().flat_map(|server| &mut server.connections) {
            connection.port = self.sources.port;
        }
        let mut options = ResolverOpts::default();
        options.edns0 = edns0;
        // Twice, and time left for what one of the two questions, for IPv4 and IPv6 addresses, was answered with.
        options.attempts = 1;
        options.timeout = self.part(QUESTION) * 2 / 5;
        // A nameserver at a time: a question without an answer holds several sockets for each.
        options.num_concurrent_reqs = 1;
        options.max_active_requests = MAX_TCP_QUESTIONS;
        // Nothing is kept: answers may be large, and where there are many lookups a nameserver nearby does.
        options.cache_size = 0;
        options.positive_max_ttl = Some(Duration::ZERO);
        options.negative_max_ttl = Some(Duration::ZERO);
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
        builder.build().expect("only TLS can be wanting, and there is none")
    }
}

/// The addresses by name, of a file as hosts(5) describes it.
fn hosts(text: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else { continue };
        for name in words {
            hosts.entry(name.trim_end_matches('.').to_ascii_lowercase()).or_default().push(address);
        }
    }
    hosts
}

/// What is behind these locks is whole at all times.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
