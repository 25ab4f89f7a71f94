//! Converts the primary's URL to connection parameters for libpq, which makes the replication
//! connections.

use std::time::Duration;

use tokio_postgres::config::{
    ChannelBinding, Host, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs,
};

use crate::postgres::{ConnectError, Target, Verification, system_certificates};

/// Values arrive as text, whose form must not depend on settings of the role or the database.
const SESSION: &str = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=postgres -c extra_float_digits=1 \
                       -c bytea_output=hex -c statement_timeout=0";

/// Returns the parameters of a walsender connection to the URL's database. `settings` are set in
/// its session.
pub(crate) fn replication(url: &str, settings: &[(&str, &str)]) -> Result<String, ConnectError> {
    replication_to(&Target::parse(url)?, settings)
}

/// Like [`replication`], for a target that is parsed already.
pub(crate) fn replication_to(
    target: &Target,
    settings: &[(&str, &str)],
) -> Result<String, ConnectError> {
    // Later settings override earlier ones.
    let mut session = format!(
        "{} {SESSION}",
        target.config.get_options().unwrap_or_default()
    );

    for (name, value) in settings {
        session.push_str(&format!(" -c {name}={value}"));
    }

    let mut parameters = vec![
        ("replication", "database".to_owned()),
        ("options", session.trim().to_owned()),
    ];
    address(target, &mut parameters)?;
    security(target, &mut parameters)?;
    timeouts(target, &mut parameters);

    let written = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", quoted(value)));
    Ok(written.collect::<Vec<_>>().join(" "))
}

/// Returns whether one of the URL's hosts is a Unix socket.
pub(crate) fn is_by_socket(url: &str) -> Result<bool, ConnectError> {
    let Target { config, .. } = Target::parse(url)?;
    Ok(config
        .get_hosts()
        .iter()
        .any(|host| matches!(host, Host::Unix(_))))
}

type Parameters = Vec<(&'static str, String)>;

fn address(
    Target { config, .. }: &Target,
    parameters: &mut Parameters,
) -> Result<(), ConnectError> {
    let mut hosts = Vec::new();

    for host in config.get_hosts() {
        hosts.push(match host {
            Host::Tcp(name) => name.as_str(),
            Host::Unix(path) => path.to_str().ok_or(ConnectError::Url)?,
        });
    }

    let join = |values: Vec<String>| values.join(",");
    let lists = [
        ("host", hosts.join(",")),
        (
            "hostaddr",
            join(
                config
                    .get_hostaddrs()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            ),
        ),
        (
            "port",
            join(config.get_ports().iter().map(ToString::to_string).collect()),
        ),
    ];

    parameters.extend(lists.into_iter().filter(|(_, list)| !list.is_empty()));
    let texts = [
        ("user", config.get_user()),
        ("dbname", config.get_dbname()),
        ("application_name", config.get_application_name()),
    ];

    parameters.extend(
        texts
            .into_iter()
            .filter_map(|(name, text)| Some((name, text?.to_owned()))),
    );

    match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => {
            parameters.push(("target_session_attrs", "read-write".into()))
        }
        TargetSessionAttrs::ReadOnly => {
            parameters.push(("target_session_attrs", "read-only".into()))
        }
        _ => {}
    }

    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        parameters.push(("load_balance_hosts", "random".into()));
    }

    Ok(())
}

fn security(
    Target { config, tls }: &Target,
    parameters: &mut Parameters,
) -> Result<(), ConnectError> {
    if let Some(password) = config.get_password() {
        let password = std::str::from_utf8(password).map_err(|_| ConnectError::Url)?;
        parameters.push(("password", password.to_owned()));
    }

    match config.get_channel_binding() {
        ChannelBinding::Disable => parameters.push(("channel_binding", "disable".into())),
        ChannelBinding::Require => parameters.push(("channel_binding", "require".into())),
        _ => {}
    }

    if config.get_ssl_negotiation() == SslNegotiation::Direct {
        parameters.push(("sslnegotiation", "direct".into()));
    }

    parameters.push(("sslmode", tls.verification.word().into()));
    let verified = matches!(
        tls.verification,
        Verification::Authority | Verification::Full
    );
    let authorities = tls
        .authorities
        .clone()
        .or_else(|| system_certificates().filter(|_| verified));

    let files = [
        ("sslrootcert", authorities),
        (
            "sslcert",
            tls.identity
                .as_ref()
                .map(|(certificate, _)| certificate.clone()),
        ),
        ("sslkey", tls.identity.as_ref().map(|(_, key)| key.clone())),
    ];
    for (name, path) in files {
        if let Some(path) = path {
            parameters.push((name, path.to_str().ok_or(ConnectError::Url)?.to_owned()));
        }
    }

    Ok(())
}

fn timeouts(Target { config, .. }: &Target, parameters: &mut Parameters) {
    let mut seconds = |name, wait: Option<Duration>| {
        parameters.extend(wait.map(|wait| (name, wait.as_secs().max(1).to_string())));
    };

    seconds("connect_timeout", config.get_connect_timeout().copied());

    if config.get_keepalives() {
        seconds("keepalives_idle", Some(config.get_keepalives_idle()));
        seconds("keepalives_interval", config.get_keepalives_interval());
        parameters.extend(
            config
                .get_keepalives_retries()
                .map(|count| ("keepalives_count", count.to_string())),
        );
    } else {
        parameters.push(("keepalives", "0".into()));
    }

    let unacknowledged = config.get_tcp_user_timeout();
    parameters
        .extend(unacknowledged.map(|limit| ("tcp_user_timeout", limit.as_millis().to_string())));
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters_of(url: &str) -> String {
        replication(url, &[]).unwrap()
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
        let conninfo = replication(url, &[("lock_timeout", "60s")]).unwrap();

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
        assert!(replication("postgres://u:hunter2@h/db?tcp_user_timeout=soon", &[]).is_err());
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
            let error = replication(url, &[]).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }

        let half = replication("postgres://h/db?sslcert=/c.pem", &[])
            .unwrap_err()
            .to_string();
        assert!(half.contains("sslkey"), "{half}");
    }
}
