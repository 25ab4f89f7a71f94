//! The pool of connections to the store, transactions, and the cancellation of statements whose
//! request was dropped.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime,
    Timeouts, Transaction,
};
use tokio_postgres::NoTls;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::checkpoint::Committed;
use super::configured::Configured;
use super::observe::PoolUse;
use super::{Result, StoreError, processes};
use crate::postgres::{self, ANSWER_TIMEOUT, SessionSettings, Target};
use crate::sql::store as sql;

/// How long a connection may take to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle on the store. Clones share the pool.
#[derive(Clone)]
pub struct Store {
    pool: Pool,
    canceller: Canceller,
    /// How long a single statement may take.
    limit: Duration,
    pub(super) committed: Committed,
}

/// How long a transaction may wait for its next statement. Those of a running process follow each
/// other at once, and are given up after this time without an answer.
const IDLE_LIMIT: (&str, Duration) = ("idle_in_transaction_session_timeout", ANSWER_TIMEOUT);

fn limit((name, limit): (&'static str, Duration)) -> (&'static str, String) {
    (name, limit.as_millis().to_string())
}

/// Makes the server read pages in the order of an index. The tables of pages are partitioned by day
/// and most partitions may be empty: by its estimates, reading all entries of a webhook and sorting
/// them would cost no more.
const BY_INDEX: [(&str, &str); 2] = [("enable_sort", "off"), ("enable_seqscan", "off")];

/// For readers of a log, which read one page after another: planning one takes as long as reading
/// it. A generic plan cannot know how little a bitmap of an index would leave out: it may be that of
/// a whole day.
const ONE_PLAN: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_bitmapscan", "off"),
];

/// Refuses a new connection if `most` others wait for a lock or for a synchronous standby, and
/// still do after [`REFUSE_AFTER`]. The server keeps a waiting connection after its client has
/// given it up and repeats the transaction, so a long wait would use up `max_connections`.
fn refuse_if_waiting(most: usize) -> Hook {
    Hook::async_fn(move |client, _| {
        Box::pin(async move {
            let until = Instant::now() + REFUSE_AFTER;

            loop {
                let row = client
                    .query_typed(sql::server::CONNECTIONS_WAITING, &[])
                    .await
                    .map_err(HookError::Backend)?;
                let waiting: i64 = row.first().map_or(0, |row| row.get(0));
                if usize::try_from(waiting).is_ok_and(|waiting| waiting < most) {
                    return Ok(());
                }

                if Instant::now() > until {
                    return Err(HookError::message(format!(
                        "{waiting} already wait in the server for a lock or for a synchronous standby"
                    )));
                }

                tokio::time::sleep(REFUSE_AFTER / 10).await;
            }
        })
    })
}

/// For how long connections of all replicas may wait, for example for the lock of a migration,
/// before new ones are refused.
const REFUSE_AFTER: Duration = Duration::from_secs(1);

/// How long to wait for a free or a new connection.
const WAIT: Duration = Duration::from_secs(10);

/// Returns the target of sessions that name this process.
fn named(url: &str, roles: &str) -> Result<Target> {
    let mut target = Target::parse(url)?;
    let first = target.config.get_application_name().unwrap_or_default();
    let name = processes::session_name(first, roles);
    target.config.application_name(name);
    Ok(target)
}

impl Store {
    /// Opens no connection yet: the first use does, so that a process can start while the store is
    /// down.
    pub fn open(url: &str, connections: usize) -> Result<Store> {
        Store::open_configured(Target::parse(url)?, connections, Vec::new(), None)
    }

    /// A pool for a process that runs for long: the server ends transactions whose connection has
    /// died unnoticed. Otherwise their locks would block the transactions that repeat them. Opens
    /// no connection while as many as it has wait in the server.
    pub fn open_for_service(url: &str, connections: usize) -> Result<Store> {
        Store::open_target_for_service(Target::parse(url)?, connections)
    }

    /// Like [`Store::open_for_service`]. The sessions name the process, so that it is one of
    /// [`Store::processes`].
    pub fn open_for_process(url: &str, connections: usize, roles: &str) -> Result<Store> {
        Store::open_target_for_service(named(url, roles)?, connections)
    }

    /// Like [`Store::open_for_requests`]. The sessions name a process that only serves the API.
    pub fn open_for_api(url: &str, connections: usize, limit: Duration) -> Result<Store> {
        Store::open_by_index(named(url, "api")?, connections, limit, &[])
    }

    fn open_target_for_service(target: Target, connections: usize) -> Result<Store> {
        let settings = vec![limit(IDLE_LIMIT)];
        Store::open_configured(
            target,
            connections,
            settings,
            Some(refuse_if_waiting(connections)),
        )
    }

    /// A pool for API requests: the server ends their statements after `statement_timeout`, and
    /// reads pages by indexes.
    pub fn open_for_requests(
        url: &str,
        connections: usize,
        statement_timeout: Duration,
    ) -> Result<Store> {
        Store::open_by_index(Target::parse(url)?, connections, statement_timeout, &[])
    }

    /// One connection for reading a log, whose store this is.
    pub fn open_log(url: &str, statement_timeout: Duration) -> Result<Store> {
        Store::open_by_index(Target::parse(url)?, 1, statement_timeout, &ONE_PLAN)
    }

    fn open_by_index(
        target: Target,
        connections: usize,
        statement_timeout: Duration,
        plans: &[(&'static str, &str)],
    ) -> Result<Store> {
        let limits = [IDLE_LIMIT, ("statement_timeout", statement_timeout)].map(limit);
        let plans = BY_INDEX.iter().chain(plans);
        let plans = plans.map(|(name, value)| (*name, (*value).to_owned()));
        Store::open_configured(
            target,
            connections,
            limits.into_iter().chain(plans).collect(),
            None,
        )
    }

    fn open_configured(
        target: Target,
        connections: usize,
        settings: SessionSettings,
        post_create: Option<Hook>,
    ) -> Result<Store> {
        let connector = target.connector().map_err(postgres::ConnectError::from)?;
        let config = target.config;
        let manager_config = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };

        let canceller = Canceller(connector.clone());
        let connect = Configured {
            tls: connector,
            settings,
        };
        let manager = Manager::from_connect(config, connect, manager_config);

        let wait = Some(WAIT);
        let mut builder = Pool::builder(manager);

        if let Some(hook) = post_create {
            builder = builder.post_create(hook);
        }

        let pool = builder
            .max_size(connections)
            // The most recently used server process has the warmest caches.
            .queue_mode(QueueMode::Lifo)
            .timeouts(Timeouts {
                wait,
                create: wait,
                recycle: wait,
            })
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a runtime is given, without which building fails");

        Ok(Store {
            pool,
            canceller,
            limit: ANSWER_TIMEOUT,
            committed: Committed::default(),
        })
    }

    /// Returns a handle on the same pool for statements that take longer, such as those of
    /// maintenance.
    pub fn with_limit(&self, limit: Duration) -> Store {
        Store {
            limit,
            ..self.clone()
        }
    }

    pub async fn connection(&self) -> Result<StoreConnection> {
        Ok(StoreConnection::new(
            self.pool.get().await?,
            self.canceller.clone(),
        ))
    }

    /// Borrows a connection for one transaction, which starts with [`PipelinedTransaction::begin`].
    pub async fn pipelined_transaction(&self) -> Result<PipelinedTransaction> {
        Ok(PipelinedTransaction(Some(self.connection().await?)))
    }

    /// Runs `work` with a time limit. When it is exceeded, the connection may be dead, so it and
    /// all idle connections are closed.
    pub async fn in_time<T, E: From<StoreError>>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => {
                self.pool.retain(|_, _| false);
                Err(StoreError::Silent(limit).into())
            }
        }
    }

    /// Runs a single statement within the limit of this handle. When it is exceeded, the statement
    /// is also cancelled on the server, which may be slow and not silent.
    pub(super) async fn statement<T>(
        &self,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.in_time(self.limit, cancel_on_drop(work)).await
    }

    /// Runs `work` in a transaction and commits it, within the limit of this handle. An error rolls
    /// it back.
    pub async fn transaction<T, E: From<StoreError>>(
        &self,
        work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.in_time(self.limit, async {
            let mut connection = self.connection().await?;
            let transaction = connection.transaction().await.map_err(StoreError::from)?;
            let done = work(&transaction).await?;
            transaction.commit().await.map_err(StoreError::from)?;

            Ok(done)
        })
        .await
    }

    /// Tests the connection that would be used next. If it does not answer soon, all idle
    /// connections are closed.
    pub async fn probe(&self) -> Result<()> {
        self.in_time(PROBE_TIMEOUT, self.ping()).await
    }

    pub fn pool_use(&self) -> PoolUse {
        let status = self.pool.status();
        PoolUse {
            open: status.size,
            busy: status.size.saturating_sub(status.available),
        }
    }

    /// Waits for an answer from the store. If it is dropped, its connection is closed: returned to
    /// the pool, a dead connection would be borrowed again.
    pub async fn ping(&self) -> Result<()> {
        self.statement(async { Ok(self.connection().await?.batch_execute("select 1").await?) })
            .await
    }
}

/// Sends statements behind `begin` without waiting for its answer, which saves a round trip.
/// Dropping it without [`PipelinedTransaction::release`] closes the connection, which rolls back
/// what is not committed.
pub struct PipelinedTransaction(Option<StoreConnection>);

impl PipelinedTransaction {
    pub async fn begin(&self) -> Result<()> {
        Ok(self.batch_execute(sql::server::BEGIN_PIPELINED).await?)
    }

    /// Can be sent together with the last statements: if one of them fails, the server rolls back.
    pub async fn commit(&self) -> Result<()> {
        Ok(self.batch_execute("commit").await?)
    }

    /// Returns the connection to the pool. Call it when the transaction is known to have ended.
    pub fn release(mut self) {
        self.0 = None;
    }
}

impl Deref for PipelinedTransaction {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("present until it is released")
    }
}

impl Drop for PipelinedTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}

/// A cancellation needs its own connection. If it takes longer, the server's `statement_timeout`
/// ends the statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

tokio::task_local! {
    static REQUEST: Arc<AtomicBool>;
}

/// Runs `work`. If the returned future is dropped before it ends, the running statements of `work`
/// are cancelled on the server, and their connections are closed. Otherwise a statement would keep
/// running on a connection that the next borrower waits for. Tasks that `work` spawns are not
/// affected.
pub fn cancel_on_drop<T>(work: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
    let abandoned = Arc::new(AtomicBool::new(false));
    Abandonable {
        work: Box::pin(REQUEST.scope(abandoned.clone(), work)),
        abandoned,
    }
}

struct Abandonable<F> {
    work: Pin<Box<F>>,
    abandoned: Arc<AtomicBool>,
}

impl<F: Future> Future for Abandonable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.work.as_mut().poll(context)
    }
}

impl<F> Drop for Abandonable<F> {
    /// Runs before `work`, and the connections that it holds, are dropped. Finished work holds
    /// none.
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// How cancel requests reach the server.
#[derive(Clone)]
struct Canceller(Option<MakeRustlsConnect>);

/// A borrowed connection. Dropping it returns it to the pool, or closes it if the request that
/// borrowed it was dropped.
pub struct StoreConnection {
    object: Option<Object>,
    canceller: Canceller,
    /// Whether the request that borrowed it was dropped. `None` outside of a request.
    abandoned: Option<Arc<AtomicBool>>,
}

impl StoreConnection {
    fn new(object: Object, canceller: Canceller) -> StoreConnection {
        StoreConnection {
            object: Some(object),
            canceller,
            abandoned: REQUEST.try_with(Arc::clone).ok(),
        }
    }

    /// Closes the connection, which rolls back an open transaction.
    fn close(mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

impl Deref for StoreConnection {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.object.as_ref().expect("present until it is dropped")
    }
}

impl DerefMut for StoreConnection {
    fn deref_mut(&mut self) -> &mut Object {
        self.object.as_mut().expect("present until it is dropped")
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        let is_abandoned = self
            .abandoned
            .as_ref()
            .is_some_and(|abandoned| abandoned.load(Ordering::Relaxed));
        if !is_abandoned {
            return;
        }

        // Without a runtime the process is ending, and cannot cancel anything.
        let (Some(object), Ok(runtime)) =
            (self.object.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };

        let (token, Canceller(tls)) = (object.cancel_token(), self.canceller.clone());
        runtime.spawn(async move {
            let cancelled = async {
                match tls {
                    Some(tls) => token.cancel_query(tls).await,
                    None => token.cancel_query(NoTls).await,
                }
            };

            if !matches!(tokio::time::timeout(CANCEL_TIMEOUT, cancelled).await, Ok(Ok(()))) {
                tracing::debug!("a statement of an abandoned request could not be cancelled; it ends by its timeout");
            }

            // Held until now, so that abandoned statements count against the pool's limit.
            drop(Object::take(object));
        });
    }
}
