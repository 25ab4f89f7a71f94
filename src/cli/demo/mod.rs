//! `walhook demo`: a platform, the sidecar and a receiver on loopback. Everything it creates is
//! removed at the end.

mod client;
mod platform;
mod receiver;
mod screen;
mod service;
mod steps;

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use anyhow::bail;
use secrecy::ExposeSecret;
use tokio::sync::mpsc;

use self::client::DemoClient;
use self::platform::{Platform, USERS};
use self::receiver::{ReceivedDelivery, Receiver};
use self::screen::Screen;
use self::service::Service;
use self::steps::Steps;
use super::CommandResult;
use crate::app::open_store;
use crate::config::Config;
use crate::domain::event::{EventKind, UserId};
use crate::manage::{NewToken, tokens};
use crate::private_postgres::{Options, PrivatePostgres};

/// The demo fails if no delivery arrives for this long.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Exit after this many verified deliveries; by default, run until Ctrl-C
    #[arg(long, value_name = "NUMBER")]
    events: Option<NonZeroU64>,
    /// Transactions per second of the simulated platform
    #[arg(long, value_name = "NUMBER", default_value = "25")]
    rate: NonZeroU32,
    /// Number of steps that `make demo` has already printed
    #[arg(long, value_name = "NUMBER", default_value = "0", hide = true)]
    steps_done: u32,
}

/// Everything that runs. Fields are dropped in this order: the sidecar first, its database last.
struct Demo {
    service: Service,
    deliveries: mpsc::Receiver<ReceivedDelivery>,
    platform: Platform,
    _postgres: PrivatePostgres,
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let mut stop = std::pin::pin!(super::stop_signal());
    let mut demo = tokio::select! {
        demo = Demo::start(arguments.steps_done) => demo?,
        () = &mut stop => return Ok(false),
    };

    let wanted = arguments.events.map(NonZeroU64::get);
    let mut screen = Screen::new(wanted);

    // Whether a signal arrived, which also stops the sidecar.
    let ended = {
        let traffic = demo.platform.run(arguments.rate.get());
        tokio::select! {
            watched = watch(&mut demo.deliveries, &mut screen) => watched.map(|()| false),
            error = demo.service.failed() => Err(error),
            error = traffic => error.map(|never| match never {}),
            () = &mut stop => Ok(true),
        }
    };

    screen.print_summary();
    let is_stopped = ended?;

    // The receiver then answers without passing deliveries on. Requests in flight would wait for
    // this side of the channel.
    drop(demo.deliveries);
    demo.service.stop(is_stopped).await?;

    let complete = wanted.is_none_or(|wanted| screen.verified >= wanted);
    Ok(complete && screen.unverified == 0)
}

/// Shows deliveries until the wanted number is reached. Fails if none arrives within [`SILENCE`].
async fn watch(
    deliveries: &mut mpsc::Receiver<ReceivedDelivery>,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    loop {
        match tokio::time::timeout(SILENCE, deliveries.recv()).await {
            Ok(Some(delivery)) if screen.show(&delivery) => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => bail!("the receiver ended"),
            Err(_) => bail!("no delivery for {SILENCE:?}"),
        }
    }
}

impl Demo {
    async fn start(steps_before: u32) -> anyhow::Result<Demo> {
        let mut steps = Steps::new(steps_before, 4);
        let (postgres, platform) = steps
            .run(
                "Starting a private PostgreSQL with a platform's tables",
                start_postgres(),
            )
            .await?;

        let config = service::settings(&postgres)?;

        steps
            .run(
                "Preparing the platform's database and the store (walhook setup)",
                service::prepare(&config),
            )
            .await?;

        let client = DemoClient::new()?;
        let service = steps
            .run(
                "Starting the sidecar (walhook run)",
                Service::start(config.clone(), &client),
            )
            .await?;

        let create = async {
            let (receiver, deliveries) = Receiver::start().await?;
            let token = create_webhooks(&config, &client, &receiver).await?;
            anyhow::Ok((token, deliveries))
        };

        let (token, deliveries) = steps
            .run("Starting a receiver and creating four webhooks", create)
            .await?;
        print_instructions(&config, &token, steps.seconds())?;

        Ok(Demo {
            service,
            deliveries,
            platform,
            _postgres: postgres,
        })
    }
}

async fn start_postgres() -> anyhow::Result<(PrivatePostgres, Platform)> {
    let postgres = PrivatePostgres::start(Options {
        fsync: true,
        ..Options::default()
    })
    .await?;

    for database in ["platform", "store"] {
        postgres.create_database(database).await?;
    }

    let platform = Platform::create(&postgres.url("platform")).await?;
    Ok((postgres, platform))
}

/// Creates a token for each user, and webhooks. Returns the first user's token.
async fn create_webhooks(
    config: &Config,
    client: &DemoClient,
    receiver: &Receiver,
) -> anyhow::Result<String> {
    let all: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let outlets = [
        "delivery.completed",
        "delivery.failed",
        "takedown.completed",
    ];
    let radar = ["stream_radar.flag_created", "stream_radar.flag_resolved"];
    let business = [
        "release.distributed",
        "payment.statement_ready",
        "release.review.status_changed",
    ];

    // Index of the user, name, events, and whether the receiver rejects some first attempts.
    let office = "Back office (sometimes unavailable)";
    let webhooks: [(usize, &str, &[&str], bool); 4] = [
        (0, "Everything", &all, false),
        (1, "Outlets", &outlets, false),
        (1, "Stream Radar", &radar, false),
        (2, office, &business, true),
    ];

    let store = open_store(config.store_url()?, 1).await?;
    let mut tokens = Vec::new();

    for user in USERS {
        let token = tokens::create(
            &store,
            &UserId(user.to_string().into()),
            &NewToken::named("demo"),
        )
        .await?;
        tokens.push(token.expose_secret().to_owned());
    }

    for (number, (user, name, events, flaky)) in webhooks.into_iter().enumerate() {
        let token = &tokens[user];
        let url = format!("{}/hooks/{}", receiver.url, number + 1);
        let (id, secret) = client
            .create_webhook(&api_url(config), token, name, &url, events)
            .await?;

        receiver.expect(&id, secret, flaky)?;
    }

    Ok(tokens.swap_remove(0))
}

/// Prints what to open and what to type next.
fn print_instructions(config: &Config, token: &str, seconds: f64) -> anyhow::Result<()> {
    let base = config.http.listen;
    let metrics = config.http.metrics_listen;
    let api = api_url(config);
    let platform = config.source_url()?;
    let user = USERS[0];

    println!(
        "
Walhook is live after {seconds:.1} s.

  Open     http://{base}/ui
  Sign in  {token}   (the API token of user {user})

  Type in another terminal:
    # List the webhooks.
    curl -H 'Authorization: Bearer {token}' {api}/webhooks
    # Commit a row on the platform; its webhook arrives immediately.
    psql '{platform}' -c \"insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) \\
      values (1, {user}, 'INV-1', 10, 10, 'ready')\"

  API reference  {api}/docs
  Metrics        http://{metrics}/metrics

  Ctrl-C ends the demo and removes everything it created.
"
    );

    Ok(())
}

fn api_url(config: &Config) -> String {
    format!("http://{}{}", config.http.listen, config.http.base_path)
}
