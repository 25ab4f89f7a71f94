//! Connects to a server whose URL names several hosts.
//!
//! The driver tries the hosts one after the other, and limits only the TCP connection in time. A
//! host that is frozen or unreachable would use up the caller's time limit, at every attempt, and
//! the hosts after it would never be tried. Here each host has a head start on the next one, and
//! the first that accepts the connection is used.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use uuid::Uuid;

/// How long a host may take before the next one is tried as well: longer than the handshake with a
/// busy server.
const HEAD_START: Duration = Duration::from_secs(1);

/// A connection, and the index of its host in the URL.
pub(super) type Connected<T> = (
    Client,
    Connection<Socket, <T as MakeTlsConnect<Socket>>::Stream>,
    usize,
);

/// Connects to the first host that accepts, in the order of the URL. The caller limits the time.
pub(super) async fn connect<T>(config: &Config, tls: T) -> Result<Connected<T>, Error>
where
    T: MakeTlsConnect<Socket> + Clone,
{
    let attempt = async |host: usize| {
        let (client, connection) = only(config, host).connect(tls.clone()).await?;
        Ok::<_, Error>((client, connection, host))
    };

    let mut untried = order(config).into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failed = None;

    loop {
        match untried.next() {
            Some(host) => attempts.push(attempt(host)),
            None if attempts.is_empty() => return Err(failed.expect("at least one host was tried")),
            None => {}
        }

        tokio::select! {
            biased;
            Some(result) = attempts.next() => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => failed = Some(error),
            },
            () = tokio::time::sleep(HEAD_START), if untried.len() > 0 => {}
        }
    }
}

/// Returns the number of hosts, of which a target has at least one.
pub(super) fn count(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// Returns the hosts in the order in which they are tried. `load_balance_hosts=random` starts at
/// any of them.
fn order(config: &Config) -> Vec<usize> {
    let mut hosts: Vec<usize> = (0..count(config)).collect();

    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        // The last bits of such an id are random.
        let start = Uuid::now_v7().as_u128() as usize % hosts.len();
        hosts.rotate_left(start);
    }

    hosts
}

/// Formats the first host and its port.
pub(super) fn address(config: &Config) -> String {
    let host = match (config.get_hosts().first(), config.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, address) => address.map(ToString::to_string).unwrap_or_default(),
    };
    format!("{host}:{}", config.get_ports().first().unwrap_or(&5432))
}

/// Returns the configuration with only one of its hosts.
pub(super) fn only(config: &Config, host: usize) -> Config {
    if count(config) == 1 {
        return config.clone();
    }

    let mut only = Config::new();
    config.get_hosts().get(host).map(|host| match host {
        Host::Tcp(name) => only.host(name),
        Host::Unix(path) => only.host_path(path),
    });
    config
        .get_hostaddrs()
        .get(host)
        .map(|address| only.hostaddr(*address));

    let ports = config.get_ports();
    ports
        .get(host)
        .or(ports.first())
        .map(|port| only.port(*port));
    config.get_user().map(|user| only.user(user));
    config
        .get_password()
        .map(|password| only.password(password));
    config.get_dbname().map(|name| only.dbname(name));
    config.get_options().map(|options| only.options(options));
    config
        .get_application_name()
        .map(|name| only.application_name(name));
    config
        .get_connect_timeout()
        .map(|limit| only.connect_timeout(*limit));
    config
        .get_tcp_user_timeout()
        .map(|limit| only.tcp_user_timeout(*limit));
    config
        .get_keepalives_interval()
        .map(|interval| only.keepalives_interval(interval));
    config
        .get_keepalives_retries()
        .map(|retries| only.keepalives_retries(retries));

    only.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());

    only
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: &str = "user=u password=p dbname=d options='-c a=b' application_name=x sslmode=require sslnegotiation=direct \
        connect_timeout=3 tcp_user_timeout=4 keepalives=1 keepalives_idle=5 keepalives_interval=6 keepalives_retries=7 \
        target_session_attrs=read-write channel_binding=require load_balance_hosts=random";

    #[test]
    fn one_of_several_hosts_keeps_every_other_parameter() {
        let parse = |hosts: &str| format!("{hosts} {EVERYTHING}").parse::<Config>().unwrap();
        let several = parse("host=a,/run,c port=1,2,3");

        for (index, host) in ["host=a port=1", "host=/run port=2", "host=c port=3"]
            .into_iter()
            .enumerate()
        {
            assert_eq!(only(&several, index), parse(host));
        }

        let addresses = parse("hostaddr=127.0.0.1,127.0.0.2 port=5");
        assert_eq!(only(&addresses, 1), parse("hostaddr=127.0.0.2 port=5"));
        assert_eq!(only(&parse("host=a"), 0), parse("host=a"));
    }

    #[test]
    fn every_host_is_tried_once() {
        let mut ordered = order(&format!("host=a,b,c {EVERYTHING}").parse().unwrap());
        ordered.sort_unstable();
        assert_eq!(ordered, [0, 1, 2]);
        assert_eq!(order(&"host=a,b user=u".parse().unwrap()), [0, 1]);
    }
}
