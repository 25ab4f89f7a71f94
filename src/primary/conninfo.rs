//! Converts the primary's URL to connection parameters for libpq, which makes the replication
//! connections.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{
    ChannelBinding, Host, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs,
};

use crate::postgres::{
    ConnectError, Target, Tls, Verification, system_certificates, with_settings,
};

/// Values arrive as text, whose form must not depend on settings of the role or the database.
const SESSION: &[(&str, &str)] = &[
    ("DateStyle", "ISO"),
    ("TimeZone", "UTC"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
    ("statement_timeout", "0"),
];

/// Returns the parameters of a walsender connection to the URL's database. `settings` are set in
/// its session.
pub(crate) fn replication(
    target: &Target,
    settings: &[(&'static str, &str)],
) -> Result<String, ConnectError> {
    let Target { config, tls } = target;
    let settings = [SESSION, settings].concat();

    let written: Vec<String> = [
        ("replication", Some("database".to_owned())),
        ("options", Some(with_settings(config, &settings))),
    ]
    .into_iter()
    .chain(address(config)?)
    .chain(security(config, tls)?)
    .chain(timeouts(config))
    .filter_map(|(name, value)| Some(format!("{name}={}", quoted(&value?))))
    .collect();

    Ok(written.join(" "))
}

/// Returns whether one of the URL's hosts is a Unix socket.
pub(crate) fn is_by_socket(url: &str) -> Result<bool, ConnectError> {
    let Target { config, .. } = Target::parse(url)?;
    Ok(config
        .get_hosts()
        .iter()
        .any(|host| matches!(host, Host::Unix(_))))
}

/// Parameters with their values. Those without a value are not written.
type Parameters<const N: usize> = [(&'static str, Option<String>); N];

fn address(config: &Config) -> Result<Parameters<8>, ConnectError> {
    let host = |host: &Host| match host {
        Host::Tcp(name) => Ok(name.clone()),
        Host::Unix(path) => text(path),
    };
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(host)
        .collect::<Result<_, _>>()?;

    let session = match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => Some("read-write".into()),
        TargetSessionAttrs::ReadOnly => Some("read-only".into()),
        _ => None,
    };
    let is_random = config.get_load_balance_hosts() == LoadBalanceHosts::Random;

    Ok([
        ("host", list(&hosts)),
        ("hostaddr", list(config.get_hostaddrs())),
        ("port", list(config.get_ports())),
        ("user", config.get_user().map(Into::into)),
        ("dbname", config.get_dbname().map(Into::into)),
        (
            "application_name",
            config.get_application_name().map(Into::into),
        ),
        ("target_session_attrs", session),
        ("load_balance_hosts", is_random.then(|| "random".into())),
    ])
}

fn security(config: &Config, tls: &Tls) -> Result<Parameters<7>, ConnectError> {
    let password = config.get_password().map(std::str::from_utf8).transpose();
    let binding = match config.get_channel_binding() {
        ChannelBinding::Disable => Some("disable".into()),
        ChannelBinding::Require => Some("require".into()),
        _ => None,
    };
    let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;

    let verified = matches!(
        tls.verification,
        Verification::Authority | Verification::Full
    );
    let authorities = tls
        .authorities
        .clone()
        .or_else(|| system_certificates().filter(|_| verified));
    let (certificate, key) = tls.identity.clone().unzip();
    let file = |path: Option<PathBuf>| path.as_deref().map(text).transpose();

    Ok([
        (
            "password",
            password.map_err(|_| ConnectError::Url)?.map(Into::into),
        ),
        ("channel_binding", binding),
        ("sslnegotiation", is_direct.then(|| "direct".into())),
        ("sslmode", Some(tls.verification.word().into())),
        ("sslrootcert", file(authorities)?),
        ("sslcert", file(certificate)?),
        ("sslkey", file(key)?),
    ])
}

fn timeouts(config: &Config) -> Parameters<6> {
    let seconds = |wait: Duration| wait.as_secs().max(1).to_string();
    let probes = config.get_keepalives();
    let probed = |value: Option<String>| value.filter(|_| probes);

    [
        (
            "connect_timeout",
            config.get_connect_timeout().copied().map(seconds),
        ),
        ("keepalives", (!probes).then(|| "0".into())),
        (
            "keepalives_idle",
            probed(Some(seconds(config.get_keepalives_idle()))),
        ),
        (
            "keepalives_interval",
            probed(config.get_keepalives_interval().map(seconds)),
        ),
        (
            "keepalives_count",
            probed(
                config
                    .get_keepalives_retries()
                    .map(|count| count.to_string()),
            ),
        ),
        (
            "tcp_user_timeout",
            config
                .get_tcp_user_timeout()
                .map(|limit| limit.as_millis().to_string()),
        ),
    ]
}

/// Joins values as libpq expects them. None if there are none.
fn list<T: ToString>(values: &[T]) -> Option<String> {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    Some(values.join(",")).filter(|list| !list.is_empty())
}

fn text(path: &Path) -> Result<String, ConnectError> {
    path.to_str().map(Into::into).ok_or(ConnectError::Url)
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<String, ConnectError> {
        replication(&Target::parse(url)?, &[])
    }

    fn parameters_of(url: &str) -> String {
        parsed(url).unwrap()
    }

    #[track_caller]
    fn assert_contains(conninfo: &str, wanted: &[&str]) {
        for wanted in wanted {
            assert!(conninfo.contains(wanted), "{wanted} in {conninfo}");
        }
    }

    #[test]
    fn a_plain_url_gets_session_settings_and_defaults() {
        let conninfo = parameters_of("postgres://walhook@db/platform");
        let wanted = [
            "replication='database'",
            "host='db'",
            "port='5432'",
            "user='walhook'",
            "dbname='platform'",
        ];

        assert_contains(&conninfo, &wanted);

        assert_contains(
            &conninfo,
            &[
                "application_name='walhook'",
                "sslmode='prefer'",
                "connect_timeout='10'",
            ],
        );

        for setting in [
            "DateStyle=ISO",
            "TimeZone=UTC",
            "extra_float_digits=1",
            "bytea_output=hex",
        ] {
            assert_contains(&conninfo, &[&format!("-c {setting}")]);
        }
    }

    #[test]
    fn sockets_and_several_hosts_work_in_both_forms() {
        for url in [
            "postgres://u@%2Ftmp%2Fs%20p:5433/db",
            "host='/tmp/s p' port=5433 user=u dbname=db",
        ] {
            assert_contains(
                &parameters_of(url),
                &["host='/tmp/s p'", "port='5433'", "user='u'", "dbname='db'"],
            );
            assert!(is_by_socket(url).unwrap());
        }

        assert!(!is_by_socket("postgres://u@h1:1,h2/db").unwrap());
        let conninfo = parameters_of("postgres://u@h1:1,h2/db?target_session_attrs=read-write");
        assert_contains(
            &conninfo,
            &[
                "host='h1,h2'",
                "port='1,5432'",
                "target_session_attrs='read-write'",
            ],
        );
    }

    #[test]
    fn parameters_of_the_url_are_kept_and_session_settings_override_its_options() {
        let url = "postgres://u:p%3F'\\%25@h/db?application_name=mine&options=-c%20TimeZone%3DCET&keepalives_retries=3";
        let conninfo =
            replication(&Target::parse(url).unwrap(), &[("lock_timeout", "60s")]).unwrap();

        assert_contains(
            &conninfo,
            &[
                "application_name='mine'",
                "keepalives_count='3'",
                r"password='p?\'\\%'",
            ],
        );

        assert!(
            conninfo.find("TimeZone=CET").unwrap() < conninfo.find("TimeZone=UTC").unwrap(),
            "{conninfo}"
        );
        assert_contains(&conninfo, &["-c lock_timeout=60s'"]);
    }

    #[test]
    fn dead_peers_are_detected_unless_the_url_says_otherwise() {
        for url in ["postgres://u@h/db", "host=h user=u dbname=db"] {
            let wanted = [
                "keepalives_idle='30'",
                "keepalives_interval='10'",
                "keepalives_count='3'",
            ];
            assert_contains(&parameters_of(url), &wanted);
            assert_contains(&parameters_of(url), &["tcp_user_timeout='30000'"]);
        }

        let own =
            "tcp_user_timeout=1500 keepalives_idle=7200 keepalives_interval=75 keepalives_count=9";
        let url = format!("postgres://u@h/db?{}", own.replace(' ', "&"));
        for conninfo in [
            parameters_of(&url),
            parameters_of(&format!("host=h user=u dbname=db {own}")),
        ] {
            assert_contains(
                &conninfo,
                &["tcp_user_timeout='1500'", "keepalives_idle='7200'"],
            );
            assert_contains(
                &conninfo,
                &["keepalives_interval='75'", "keepalives_count='9'"],
            );
        }

        let system = parameters_of(
            "postgres://u@h/db?tcp_user_timeout=0&keepalives_interval=0&keepalives_count=0",
        );

        for absent in [
            "tcp_user_timeout",
            "keepalives_interval",
            "keepalives_count",
        ] {
            assert!(!system.contains(absent), "{system}");
        }

        assert_contains(
            &parameters_of("postgres://u@h/db?keepalives=0"),
            &["keepalives='0'"],
        );
        assert!(parsed("postgres://u:hunter2@h/db?tcp_user_timeout=soon").is_err());
    }

    #[test]
    fn tls_is_the_same_for_all_connections() {
        let verified =
            parameters_of("postgres://h/db?sslmode=require&sslrootcert=%2Fetc%2Fca%20file.pem");
        assert_contains(
            &verified,
            &["sslmode='verify-full'", "sslrootcert='/etc/ca file.pem'"],
        );
        assert_contains(
            &parameters_of("host=h sslrootcert='/etc/ca file.pem' dbname=d"),
            &["sslmode='verify-full'", "dbname='d'"],
        );

        let named = parameters_of(
            "postgres://h/db?sslmode=verify-ca&sslcert=/c.pem&sslkey=/k.pem&sslrootcert=/ca.pem",
        );
        assert_contains(
            &named,
            &["sslmode='verify-ca'", "sslcert='/c.pem'", "sslkey='/k.pem'"],
        );

        let plain = parameters_of("postgres://h/db?sslmode=disable");
        assert!(
            plain.contains("sslmode='disable'") && !plain.contains("sslrootcert"),
            "{plain}"
        );
    }

    #[test]
    fn errors_do_not_contain_the_password() {
        for url in [
            "postgres://u:hunter2@h:x/db",
            "mysql://u:hunter2@h/db",
            "postgres://u:hunter2@h/db?sslmode=maybe",
        ] {
            let error = parsed(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }

        let half = parsed("postgres://h/db?sslcert=/c.pem")
            .unwrap_err()
            .to_string();
        assert!(half.contains("sslkey"), "{half}");
    }
}
