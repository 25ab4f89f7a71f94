//! One URL serves queries and replication alike: TLS, passwords, certificates, sockets and several
//! hosts, on a real server.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use walhook::postgres;
use walhook::private_postgres::Options;
use walhook::store::Store;

use crate::support::{TestApp, full_listener, run_sql};

/// Every printable ASCII character, and some others.
fn password() -> String {
    (' '..='~').chain("é ß 🎵".chars()).collect()
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A certificate authority, a server's certificate for `localhost`, and a client's certificate for
/// the role `certified`.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn make() -> Certificates {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };

        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();

        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "a private authority");
        write("ca.pem", authority.self_signed(&key).unwrap().pem());

        let issuer = Issuer::new(authority, key);

        for (file, name, common_name) in [
            ("server", "localhost", "localhost"),
            ("client", "client", "certified"),
        ] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params
                .distinguished_name
                .push(DnType::CommonName, common_name);
            write(
                &format!("{file}.pem"),
                params.signed_by(&key, &issuer).unwrap().pem(),
            );
            write(&format!("{file}.key"), key.serialize_pem());
        }

        Certificates { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Copies the server's files to its data directory.
    fn copy_to(&self, data: &Path) {
        for name in ["ca.pem", "server.pem", "server.key"] {
            let target: PathBuf = data.join(name);
            std::fs::copy(self.directory.path().join(name), &target).unwrap();
            std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
            let owner = std::os::unix::fs::MetadataExt::uid(&data.metadata().unwrap());
            std::os::unix::fs::chown(&target, Some(owner), None).unwrap();
        }
    }
}

/// A server that accepts `certified` by certificate, `sealed` by password over TLS only, and `odd`
/// by password over any connection.
async fn prepare(certificates: &Certificates) -> TestApp {
    let app = TestApp::prepare_alone(Options::default()).await;
    let data = app.server.data_dir();

    certificates.copy_to(&data);
    let rules = "local all postgres trust\nlocal all all scram-sha-256\nhost all postgres 127.0.0.1/32 trust
        hostssl all certified 127.0.0.1/32 cert\nhostssl all sealed 127.0.0.1/32 scram-sha-256
        host all odd 127.0.0.1/32 scram-sha-256\n";

    std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
    let owner = app.source().await;
    let literal = password().replace('\'', "''");

    let statements = [
        "alter system set ssl = on".to_owned(),
        "alter system set ssl_ca_file = 'ca.pem'".into(),
        "alter system set ssl_cert_file = 'server.pem'".into(),
        "alter system set ssl_key_file = 'server.key'".into(),
        "create role certified superuser login".into(),
        format!("create role sealed superuser login password '{literal}'"),
        format!("create role odd superuser login password '{literal}'"),
        "select pg_reload_conf()".into(),
    ];
    for statement in statements {
        run_sql(&owner, &statement).await;
    }

    let is_on = async || {
        owner
            .query_one("show ssl", &[])
            .await
            .unwrap()
            .get::<_, &str>(0)
            .eq("on")
            .then_some(())
    };

    crate::support::eventually("TLS to be on", is_on).await;
    app
}

#[tokio::test]
async fn every_form_of_url_works_for_queries_and_for_replication() {
    let certificates = Certificates::make();
    let mut app = prepare(&certificates).await;
    let port = app.server.port();
    let database = format!("{}_platform", app.name);
    let secret = encode(&password());
    let authority = format!("sslrootcert={}", encode(&certificates.path("ca.pem")));
    let client = format!(
        "sslcert={}&sslkey={}",
        encode(&certificates.path("client.pem")),
        encode(&certificates.path("client.key"))
    );
    let socket = encode(&app.server.directory().display().to_string());
    let literal = password().replace('\\', r"\\").replace('\'', r"\'");

    let urls = [
        format!("postgres://odd:{secret}@127.0.0.1:{port}/{database}?sslmode=disable"),
        format!("postgres://odd:{secret}@127.0.0.1:{port}/{database}"),
        format!("host=127.0.0.1 port={port} user=odd password='{literal}' dbname={database}"),
        format!("postgresql://odd@127.0.0.1:{port}/{database}?password={secret}"),
        format!("postgres://odd:{secret}@{socket}:{port}/{database}"),
        format!("postgres:///{database}?host={socket}&port={port}&user=odd&password={secret}"),
        format!(
            "postgres://sealed:{secret}@localhost:{port}/{database}?sslmode=verify-full&{authority}"
        ),
        format!("postgres://sealed:{secret}@localhost:{port}/{database}?{authority}"),
        format!(
            "postgres://sealed:{secret}@127.0.0.1:{port}/{database}?sslmode=verify-ca&{authority}"
        ),
        format!("postgres://sealed:{secret}@127.0.0.1:{port}/{database}?sslmode=prefer"),
        format!(
            "postgres://certified@localhost:{port}/{database}?sslmode=verify-full&{authority}&{client}"
        ),
        format!(
            "postgres://odd:{secret}@127.0.0.1:1,127.0.0.1:{port}/{database}?target_session_attrs=read-write&connect_timeout=2"
        ),
    ];
    for url in urls {
        app.set("source.url", &url);
        // Setup creates the slot over a replication connection, and everything else by queries.
        let output = app.walhook_ok(&["setup"]).await;
        assert!(output.contains("created at"), "{url}: {output}");
        app.walhook_ok(&["teardown", "--yes"]).await;
    }
}

#[tokio::test]
async fn connection_errors_give_the_reason_and_never_contain_the_password() {
    const SECRET: &str = "hunter2";
    let certificates = Certificates::make();
    let mut app = prepare(&certificates).await;
    let port = app.server.port();
    let database = format!("{}_platform", app.name);
    let authority = format!("sslrootcert={}", encode(&certificates.path("ca.pem")));
    let at = |host: &str, rest: &str| {
        format!("postgres://sealed:{SECRET}@{host}:{port}/{database}?{rest}")
    };

    let cases = [
        (at("localhost", "sslmode=verify-full"), "sslrootcert"),
        (
            at("127.0.0.1", &format!("sslmode=verify-full&{authority}")),
            "by a name in the server's certificate",
        ),
        (
            at("localhost", &format!("sslmode=require&{authority}")),
            "password authentication failed",
        ),
        (at("localhost", "sslmode=disable"), "no encryption"),
        (
            at("localhost", "sslmode=verify-full&sslrootcert=/nowhere.pem"),
            "sslrootcert: /nowhere.pem",
        ),
        (
            format!("postgres://certified:{SECRET}@localhost:{port}/{database}?{authority}"),
            "certificate",
        ),
    ];
    // Those that no server could accept are mistakes of the configuration.
    let mistakes = [
        (
            at("localhost", "sslmode=always"),
            "sslmode=always is not one of",
        ),
        (at("localhost", "sslcert=/x.pem"), "sslkey"),
    ];
    let cases = cases.map(|case| (case, 1)).into_iter();

    for ((url, reason), code) in cases.chain(mistakes.map(|case| (case, 2))) {
        app.set("source.url", &url);

        for command in ["check", "setup"] {
            let result = app.walhook(&[command]).await;
            let output = [result.stdout, result.stderr].concat();
            let output = String::from_utf8_lossy(&output);

            assert_eq!(result.status.code(), Some(code), "{url}: {output}");
            assert!(output.contains(reason), "{reason} for {url}: {output}");
            assert!(!output.contains(SECRET), "{output}");
        }
    }
}

#[tokio::test]
async fn hosts_that_do_not_answer_keep_no_connection_from_the_next_host() {
    let app = TestApp::prepare().await;
    let (unreachable, _held) = full_listener(([127, 0, 0, 1], 0).into()).await;

    // The kernel accepts connections to it, and nothing answers: as at a frozen server.
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = [
        unreachable.local_addr().unwrap().port(),
        frozen.local_addr().unwrap().port(),
        app.server.port(),
    ];
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let url = format!(
        "postgres://postgres@{hosts}/{}_store?target_session_attrs=read-write",
        app.name
    );

    postgres::connect(&url).await.unwrap();
    Store::open(&url, 1).unwrap().ping().await.unwrap();
}
