//! Decides which receivers may be called: addresses that are globally reachable by IANA's
//! special-purpose registries, and those that the configuration exempts. Used when a webhook is
//! saved, and again for each connection, on the address that is dialled.

use futures_util::FutureExt;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use url::{Host, Url};

use super::resolver::Resolver;
pub use super::resolver::{AddressLookup, Unreachable};
use crate::telemetry::recurring;

pub const MAX_URL_BYTES: usize = 2_048;
/// The timeout of attempts for a guard that is created without a configuration.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a URL is rejected by its form, before its host is looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlProblem {
    #[error("must be at most {MAX_URL_BYTES} bytes long")]
    TooLong,
    #[error("is not a URL: {0}")]
    Malformed(url::ParseError),
    #[error("must begin with https://")]
    NotHttps,
    #[error("must begin with https:// or http://")]
    NotHttp,
    #[error("must not contain a user name or password")]
    UserInfo,
    #[error("must name a host")]
    NoHost,
    #[error("must not have port 0: no server listens on it")]
    PortZero,
    #[error("must be reachable from the internet: localhost is not")]
    Localhost,
}

/// Allows or refuses receivers, by the configuration and the addresses that the resolver finds.
#[derive(Clone)]
pub struct Guard {
    allow_http: bool,
    allow_localhost: bool,
    allow_networks: Arc<[IpNet]>,
    deny_networks: Arc<[IpNet]>,
    lookup: AddressLookup,
}

impl Guard {
    /// Creates a guard that uses this host's nameservers.
    pub fn new(allow_http: bool, allow_networks: Vec<IpNet>) -> Guard {
        let lookup = Resolver::of_this_host(DEFAULT_TIMEOUT).into_lookup();
        let allow_networks = allow_networks.into();

        Guard {
            allow_http,
            allow_localhost: false,
            allow_networks,
            deny_networks: Arc::default(),
            lookup,
        }
    }

    /// Allows every host, also `localhost`, and resolves names as other programs of this machine
    /// do: for commands with which a developer calls a receiver on purpose.
    pub fn unrestricted() -> Guard {
        let lookup: AddressLookup = Arc::new(|host, port| {
            let found = tokio::net::lookup_host((host, port));
            found
                .map(|found| {
                    found
                        .map(Iterator::collect)
                        .map_err(|_| Unreachable::Unresolved)
                })
                .boxed()
        });

        let everything = vec![IpNet::V4(v4(0, 0, 0, 0, 0)), IpNet::V6(v6(0, 0, 0, 0))];
        Guard {
            allow_localhost: true,
            ..Guard::new(true, everything).with_lookup(lookup)
        }
    }

    /// Refuses these networks, even if they are global or allowed.
    pub fn denying(self, deny_networks: Vec<IpNet>) -> Guard {
        Guard {
            deny_networks: deny_networks.into(),
            ..self
        }
    }

    /// Uses another resolver.
    pub fn with_lookup(self, lookup: AddressLookup) -> Guard {
        Guard { lookup, ..self }
    }

    /// Checks the form of a URL.
    pub fn check_url(&self, url: &str) -> Result<Url, UrlProblem> {
        let url = check_form(url, self.allow_http)?;
        match url.host() {
            Some(Host::Domain(name)) if !self.allow_localhost && is_localhost(name) => {
                Err(UrlProblem::Localhost)
            }
            _ => Ok(url),
        }
    }

    /// Whether connections to an address are allowed.
    pub fn allows(&self, ip: IpAddr) -> bool {
        let embedded = embedded_v4(ip).map(IpAddr::V4);
        let is_in = |networks: &[IpNet]| {
            let contains = |ip: &IpAddr| networks.iter().any(|network| network.contains(ip));
            contains(&ip) || embedded.as_ref().is_some_and(contains)
        };

        !is_in(&self.deny_networks) && (is_global(ip) || is_in(&self.allow_networks))
    }

    /// Checks the URL's host if it is an IP address: the resolver never sees those.
    pub fn check_literal(&self, url: &Url) -> Result<(), Unreachable> {
        match literal(url) {
            Some(ip) if !self.allows(ip) => Err(Unreachable::Blocked(ip)),
            _ => Ok(()),
        }
    }

    /// Returns the addresses of a name, if connections to all of them are allowed.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unreachable> {
        if let Ok(ip) = host.parse() {
            return if self.allows(ip) {
                Ok(vec![SocketAddr::new(ip, port)])
            } else {
                Err(Unreachable::Blocked(ip))
            };
        }

        let addresses = (self.lookup)(host.to_owned(), port).await?;
        if addresses.is_empty() {
            return Err(Unreachable::Unresolved);
        }

        match addresses.iter().find(|address| !self.allows(address.ip())) {
            Some(address) => {
                // Not each at this level: a webhook with many deliveries would fill the log.
                recurring!(info, host, address = %address.ip(), "names of receivers resolve to blocked addresses");
                tracing::debug!(host, address = %address.ip(), "a receiver's name resolves to a blocked address");
                Err(Unreachable::BlockedName)
            }
            None => Ok(addresses),
        }
    }

    /// Checks whether connections to the URL's host are allowed at present.
    pub async fn check_reachable(&self, url: &Url) -> Result<(), Unreachable> {
        self.check_literal(url)?;
        let Some(Host::Domain(name)) = url.host() else {
            return Ok(());
        };

        self.resolve(name, url.port_or_known_default().unwrap_or(443))
            .await
            .map(drop)
    }
}

fn check_form(text: &str, allow_http: bool) -> Result<Url, UrlProblem> {
    if text.len() > MAX_URL_BYTES {
        return Err(UrlProblem::TooLong);
    }

    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::EmptyHost => UrlProblem::NoHost,
        error => UrlProblem::Malformed(error),
    })?;

    // Requests use the normalised form, which percent-encoding may have made longer.
    if url.as_str().len() > MAX_URL_BYTES {
        return Err(UrlProblem::TooLong);
    }

    match url.scheme() {
        "https" => {}
        "http" if allow_http => {}
        _ if allow_http => return Err(UrlProblem::NotHttp),
        _ => return Err(UrlProblem::NotHttps),
    }

    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlProblem::UserInfo);
    }

    if url.port() == Some(0) {
        return Err(UrlProblem::PortZero);
    }

    if url.has_host() {
        Ok(url)
    } else {
        Err(UrlProblem::NoHost)
    }
}

/// `url` has lower-cased the name.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Domain(_) => None,
        Host::Ipv4(ip) => Some(IpAddr::V4(ip)),
        Host::Ipv6(ip) => Some(IpAddr::V6(ip)),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

const SPECIAL_V4: [Ipv4Net; 16] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // carrier-grade NAT
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link local, and clouds' metadata
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // 6to4 relays, deprecated
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarking
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved
    v4(255, 255, 255, 255, 32),
];

/// All assigned global unicast addresses. Unique local, link local, site local, multicast,
/// loopback, discard and the local NAT64 prefix 64:ff9b:1::/48 are outside it.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 0, 3);
const SPECIAL_V6: [Ipv6Net; 3] = [
    v6(0x2001, 0, 0, 23),     // protocol assignments: Teredo, benchmarking, ORCHID
    v6(0x2001, 0xdb8, 0, 32), // documentation
    v6(0x3fff, 0, 0, 20),     // documentation
];
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 96);
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 0, 16);

/// Whether an address is globally reachable. If it is an IPv6 address that embeds an IPv4 address,
/// the latter decides.
pub fn is_global(ip: IpAddr) -> bool {
    match (ip, embedded_v4(ip)) {
        (IpAddr::V4(ip), _) | (IpAddr::V6(_), Some(ip)) => {
            !SPECIAL_V4.iter().any(|network| network.contains(&ip))
        }
        (IpAddr::V6(ip), None) => {
            GLOBAL_UNICAST.contains(&ip) && !SPECIAL_V6.iter().any(|network| network.contains(&ip))
        }
    }
}

/// Returns the IPv4 address that packets to this IPv6 address are sent to: mapped, NAT64 and 6to4
/// forms. The deprecated compatible form (::/96) is not global unicast and is refused as a whole.
fn embedded_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let octets = ip.octets();

    let at = |start: usize| {
        Ipv4Addr::new(
            octets[start],
            octets[start + 1],
            octets[start + 2],
            octets[start + 3],
        )
    };

    if let Some(mapped) = ip.to_ipv4_mapped() {
        Some(mapped)
    } else if NAT64.contains(&ip) {
        Some(at(12))
    } else if SIX_TO_FOUR.contains(&ip) {
        Some(at(2))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_not_global() {
        let special = [
            "0.0.0.0",
            "0.255.1.1",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.2.3",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "::ffff:0:7f00:1",
            "::8.8.8.8",
            "64:ff9b::a00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:0:4136:e378::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
        ];
        for text in special {
            assert!(!is_global(ip(text)), "{text}");
        }
    }

    #[test]
    fn addresses_next_to_special_networks_are_global() {
        let global = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.112.255",
            "223.255.255.255",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700::1111",
            "2a00:1450::1",
            "3ffe::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ];
        for text in global {
            assert!(is_global(ip(text)), "{text}");
        }
    }

    #[test]
    fn exempted_networks_are_allowed_in_every_form_of_the_address() {
        let guard = Guard::new(
            false,
            vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()],
        );

        for allowed in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "64:ff9b::a01:203",
            "fd00::1",
            "8.8.8.8",
        ] {
            assert!(guard.allows(ip(allowed)), "{allowed}");
        }

        for refused in ["10.2.0.1", "127.0.0.1", "fc00::1", "::ffff:10.2.0.1"] {
            assert!(!guard.allows(ip(refused)), "{refused}");
        }
    }

    fn checked(url: &str, allow_http: bool) -> Result<Url, UrlProblem> {
        Guard::new(allow_http, Vec::new()).check_url(url)
    }

    #[test]
    fn urls_are_checked_by_their_form() {
        let ok = [
            "https://example.com",
            "https://example.com:8443/hook?a=b#c",
            "https://[2606:4700::1111]/",
            "HTTPS://EXAMPLE.COM",
        ];
        for url in ok {
            assert!(checked(url, false).is_ok(), "{url}");
        }

        let long = format!("https://example.com/{}", "a".repeat(MAX_URL_BYTES));
        let grows_when_encoded = format!("https://example.com/{}", "é".repeat(500));

        let cases = [
            ("http://example.com", UrlProblem::NotHttps),
            ("ftp://example.com", UrlProblem::NotHttps),
            ("https://user@example.com", UrlProblem::UserInfo),
            ("https://:secret@example.com", UrlProblem::UserInfo),
            ("https://localhost/", UrlProblem::Localhost),
            ("https://LOCALHOST.:80/", UrlProblem::Localhost),
            ("https://a.localhost/", UrlProblem::Localhost),
            ("https://a.b.localhost./", UrlProblem::Localhost),
            ("https://", UrlProblem::NoHost),
            ("https://example.com:0/", UrlProblem::PortZero),
            (long.as_str(), UrlProblem::TooLong),
            (grows_when_encoded.as_str(), UrlProblem::TooLong),
        ];
        for (url, problem) in cases {
            assert_eq!(checked(url, false).unwrap_err(), problem, "{url}");
        }

        assert!(matches!(
            checked("example.com/hook", false),
            Err(UrlProblem::Malformed(_))
        ));
        assert!(checked("http://example.com", true).is_ok());
        assert_eq!(
            checked("ftp://example.com", true).unwrap_err(),
            UrlProblem::NotHttp
        );
        assert!(checked("https://notlocalhost/", false).is_ok());
    }

    #[tokio::test]
    async fn literal_addresses_are_refused_in_every_notation() {
        let guard = Guard::new(true, Vec::new());

        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://017700000001/",
            "http://127.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://169.254.169.254/latest",
        ] {
            let url = guard.check_url(url).unwrap();
            assert!(
                matches!(guard.check_literal(&url), Err(Unreachable::Blocked(_))),
                "{url}"
            );
            assert!(
                matches!(
                    guard.check_reachable(&url).await,
                    Err(Unreachable::Blocked(_))
                ),
                "{url}"
            );
        }

        assert!(
            guard
                .check_literal(&guard.check_url("https://1.1.1.1/").unwrap())
                .is_ok()
        );
    }

    #[tokio::test]
    async fn names_are_refused_if_any_address_is_refused_or_none_is_found() {
        let guard = Guard::new(false, Vec::new());
        assert_eq!(
            guard.resolve("localhost", 443).await,
            Err(Unreachable::BlockedName)
        );
        assert_eq!(
            guard.resolve("no-such-host.invalid", 443).await,
            Err(Unreachable::Unresolved)
        );

        let exempt = Guard::new(
            false,
            vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        );
        assert!(
            exempt
                .resolve("localhost", 443)
                .await
                .is_ok_and(|found| !found.is_empty())
        );
    }
}
