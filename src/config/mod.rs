//! Settings and their defaults, one struct per section. `load` merges file, environment and flags.
//!
//! The doc comments are the reference: `docs/configuration.md` and `deploy/walhook.toml` are
//! generated from them.

/// Declares a section of the configuration: its settings with their documentation and defaults.
macro_rules! section {
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    ($(#[$meta:meta])* $name:ident: $($(#[$setting:meta])* $field:ident: $type:ty $(= $default:expr)?,)+) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$setting])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: section!(@default $($default)?),)+ }
            }
        }
    };
}

mod access;
mod auth;
mod cells;
mod load;
mod mail;
mod mapping;
mod operator;
mod otlp;
mod proxy;
mod source;
mod ui;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

pub use access::MAX_BODY_BYTES;
pub use auth::{Auth, Jwt};
pub use cells::{Cells, check_name as check_cell_name};
pub use load::{ConfigError, Sources, load, validate_text};
pub use mail::{Outgoing, SmtpServer, SmtpTls};
pub use mapping::{Condition, TableMapping, TableMappings};
pub use operator::Operator;
pub use otlp::{Collector, Tracing};
pub use proxy::Proxy;
pub use source::{AwaitVisibility, CaptureMode, ReplicaIdentity, Source};
pub use ui::{Brand, Color, ColorScheme, Ui};
pub use units::{Period, Size};

use crate::domain::backoff::RetrySchedule;
use crate::domain::disablement::{CountedFailures, Policy};

section! { Config:
    service: Service,
    source: Source,
    store: Store,
    cells: Cells,
    http: Http,
    delivery: Delivery,
    disable: Disable,
    limits: Limits,
    auth: Auth,
    ui: Ui,
    shutdown: Shutdown,
    mail: Mail,
    operator: Operator,
    secrets: Secrets,
    retention: Retention,
    log: Log,
    tracing: Tracing,
}

section! { Service:
    /// The service's name: deliveries carry the User-Agent `<name>-Webhooks/1.0`.
    name: String = "Walhook".into(),
}

section! { Store:
    /// URL of the database for Walhook's own tables (schema `walhook`). Default: `source.url`. A
    /// separate database is recommended, because the slot decodes everything that is written to its
    /// own database.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"postgres://walhook@db.internal/walhook?sslmode=verify-full")]
    url: Option<SecretString>,
}

section! { Http:
    /// Address of the API and the web UI.
    listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
    /// Path below which the API is served. The web UI is at `/ui`.
    base_path: String = "/api/public".into(),
    /// URL under which browsers reach the web UI. If it is https, cookies are marked Secure.
    #[schemars(example = &"https://webhooks.platform.example")]
    public_url: Option<String>,
    /// Larger request bodies are rejected with 413. At most 256KiB.
    max_body_bytes: Size = Size(64 << 10),
    /// Connections per listener. When there are more, the client that has kept the server waiting
    /// longest loses its connection.
    max_connections: usize = 1_024,
    /// Requests in flight, of which one user may have a quarter. Further requests wait up to two
    /// seconds and are then answered with 503, and those of one user with 429.
    max_requests: usize = 256,
    /// Open streams and long polls of the feed. They count neither as connections nor as requests
    /// in flight; each takes about 20 KiB of memory. Further ones are answered with 429.
    max_streams: usize = 2_048,
    /// Deadline for the head of a connection's first request.
    header_timeout: Period = Period::secs(10),
    /// How long an idle connection is kept. Set it longer than the load balancer in front keeps
    /// idle connections.
    idle_timeout: Period = Period::secs(75),
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    metrics_listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 9464)),
    /// Origins whose pages may call the API from a browser, such as `https://app.example`.
    cors_origins: Vec<String>,
}

section! { Delivery:
    /// Deadline for one attempt, from resolving the name to the status and headers of the response.
    /// The body is read until the deadline at most, and does not change the outcome.
    timeout: Period = Period::secs(10),
    /// Waits between attempts. The number of attempts is the length of this list plus one.
    retry_schedule: Vec<Period> = [30, 60, 120, 240, 480, 960, 1_920, 3_840, 7_680].map(Period::secs).to_vec(),
    /// A random duration up to this is added to each wait.
    retry_jitter: Period = Period::secs(30),
    /// Postpone the next attempt if a receiver answers 429 or 503 with `Retry-After`, by at most 24
    /// hours. It is never made earlier than by the schedule, and counts as any other.
    honor_retry_after: bool,
    /// Larger bodies are never sent: the delivery fails permanently as `payload_too_large`. At most
    /// 65536.
    max_payload_bytes: usize = 65_536,
    /// Requests in flight over all webhooks. In addition, up to eight times as many may wait for
    /// receivers that were not known to be slow.
    concurrency: usize = 256,
    /// Requests in flight per webhook.
    per_webhook_concurrency: usize = 64,
    /// Send fewer requests at once to receivers that answer 429 or 503 or do not answer in time,
    /// down to one, and gradually more when they answer again, up to `per_webhook_concurrency`.
    adaptive_concurrency: bool = true,
    /// Retries per second while first attempts are waiting. Without waiting first attempts, retries
    /// are not limited.
    retries_per_second: u32 = 1_000,
    /// Allow receivers with plain `http` URLs.
    allow_http: bool,
    /// Networks that receivers may be in although their addresses are private or special, such as
    /// `10.1.0.0/16`.
    #[schemars(with = "Vec<String>")]
    allow_networks: Vec<IpNet>,
    /// Networks that are always refused, even if they are public or allowed, such as your own
    /// public addresses.
    #[schemars(with = "Vec<String>")]
    deny_networks: Vec<IpNet>,
    /// HTTP proxy through which receivers are reached, by `CONNECT` tunnels to addresses that
    /// Walhook has resolved and checked.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"http://user:password@proxy.internal:3128")]
    proxy: Option<SecretString>,
    /// PEM file of certificate authorities to trust in addition to the system's.
    #[schemars(example = &"/etc/walhook/ca.pem")]
    extra_ca_file: Option<PathBuf>,
}

impl Delivery {
    /// Returns the waits between attempts.
    pub fn schedule(&self) -> RetrySchedule {
        RetrySchedule::new(
            self.retry_schedule.iter().map(|wait| wait.0).collect(),
            self.retry_jitter.0,
        )
    }
}

section! { Disable:
    /// Which failed attempts count towards the threshold.
    policy: DisablePolicy = DisablePolicy::Consecutive,
    /// Number of failed attempts after which a webhook is disabled. Its owner is warned at half of
    /// it.
    threshold: u32 = 100,
    /// Consecutive policy: the failures must also have lasted this long. With `5m`, a receiver that
    /// restarts under load is not disabled.
    min_duration: Period = Period::secs(0),
    /// Disable a webhook at once when its receiver answers 410 Gone.
    on_gone: bool,
}

impl Disable {
    /// Returns when a failing webhook is disabled.
    pub fn policy(&self) -> Policy {
        let counted = match self.policy {
            DisablePolicy::Consecutive => CountedFailures::Consecutive {
                min_duration: self.min_duration.0,
            },
            DisablePolicy::Cumulative => CountedFailures::Cumulative,
        };

        Policy {
            counted,
            threshold: self.threshold,
            on_gone: self.on_gone,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DisablePolicy {
    /// Failures since the last success.
    Consecutive,
    /// All failures since the webhook was created, or since it was last activated after an
    /// automatic disablement.
    Cumulative,
}

section! { Limits:
    /// Webhooks that one user may have.
    webhooks_per_user: u32 = 10,
    /// Open streams and long polls of the feed that one user may have. Each new event is read once
    /// for each of them.
    streams_per_user: u32 = 100,
    /// API requests per second and user, however they are authenticated.
    requests_per_second: u32 = 100,
    /// API requests that may exceed the rate at once.
    burst: u32 = 200,
}

section! { #[derive(Copy)] Shutdown:
    /// How long the listeners stay open while `/readyz` already answers 503, so that load balancers
    /// notice.
    delay: Period = Period::secs(0),
    /// How long requests in flight may take to finish.
    drain: Period = Period::secs(15),
}

section! { Mail:
    /// Mail server for notices to owners: `smtps://user:password@host`, `smtp://host?tls=required`
    /// (STARTTLS), or `smtp://host` (plain). Without it, notices are logged and kept.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"smtps://user:password@mail.example:465")]
    smtp_url: Option<SecretString>,
    /// Sender address.
    #[schemars(example = &"Walhook <webhooks@platform.example>")]
    from: Option<String>,
    /// PEM file of certificate authorities to trust in addition to the system's.
    #[schemars(example = &"/etc/walhook/mail-ca.pem")]
    extra_ca_file: Option<PathBuf>,
}

section! { Secrets:
    /// Base64 of 32 bytes (`openssl rand -base64 32`), or a list of such keys for rotation: the
    /// first encrypts, all decrypt. Required.
    #[serde(deserialize_with = "one_or_many", serialize_with = "redact_list")]
    #[schemars(with = "Vec<String>")]
    master_key: Vec<SecretString>,
}

section! { Retention:
    /// Days after which events and attempts are dropped, one daily partition at a time.
    days: u32 = 30,
}

section! { Log:
    /// Format of the server log.
    format: LogFormat = LogFormat::Text,
    /// What is logged, in the syntax of `RUST_LOG`, which takes precedence.
    // The libraries log each fault that they also return: Walhook logs it once.
    filter: String = "walhook=info,pg_walstream=off,deadpool=off,hickory_net=off,hickory_resolver=off,warn".into(),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per line.
    Json,
}

const REDACTED: &str = "[redacted]";

fn redact<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| REDACTED).serialize(serializer)
}

fn redact_list<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(secrets.iter().map(|_| REDACTED))
}

/// Serializes a URL without its credentials.
fn redact_url<S: Serializer>(
    secret: &Option<SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use secrecy::ExposeSecret;

    let shown = secret
        .as_ref()
        .map(|secret| without_password(secret.expose_secret()));
    shown.serialize(serializer)
}

/// Returns the URL without its password and any `password` parameter. Over HTTP, the user's name
/// and any parameter may be the secret: they are redacted too. Text that is not a URL is redacted
/// entirely.
pub fn without_password(url: &str) -> String {
    let Ok(mut url) = url::Url::parse(url) else {
        return REDACTED.into();
    };

    // Without `//`, or with an `@` that is not encoded, a part of the password may be anywhere.
    if !url.has_authority() || url[url::Position::BeforePath..].contains('@') {
        return REDACTED.into();
    }

    if url.password().is_some() && url.set_password(Some("redacted")).is_err() {
        return REDACTED.into();
    }

    if matches!(url.scheme(), "http" | "https") {
        let is_redacted = url.username().is_empty() || url.set_username("redacted").is_ok();
        url.set_query(url.query().map(|_| "redacted"));
        return if is_redacted {
            url.into()
        } else {
            REDACTED.into()
        };
    }

    let secret_parameter = |name: &str| matches!(name, "password" | "sslpassword");
    if url.query_pairs().any(|(name, _)| secret_parameter(&name)) {
        let kept: Vec<(String, String)> = url
            .query_pairs()
            .into_owned()
            .filter(|(name, _)| !secret_parameter(name))
            .collect();
        url.query_pairs_mut().clear().extend_pairs(kept);
    }

    url.into()
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SecretString>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(SecretString),
        Many(Vec<SecretString>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(secret) => vec![secret],
        OneOrMany::Many(secrets) => secrets,
    })
}
