//! The pool. Statements are prepared once a connection and kept by their text.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime, Timeouts};

use super::Result;
use super::observe::PoolUse;
use crate::postgres;

/// A handle on the store; clones share the pool.
#[derive(Clone)]
pub struct Store {
    pool: Pool,
}

impl Store {
    /// Connections are opened on first use: a store that is down at start-up is waited for by those who use it.
    pub fn open(url: &str, connections: usize) -> Result<Store> {
        let target = postgres::Target::parse(url)?;
        let connector = target.connector().map_err(postgres::ConnectError::from)?;
        let mut config = target.config;
        config.keepalives_idle(Duration::from_secs(30));
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match connector {
            None => Manager::from_config(config, tokio_postgres::NoTls, manager_config),
            Some(connector) => Manager::from_config(config, connector, manager_config),
        };
        let wait = Some(Duration::from_secs(10));
        let pool = Pool::builder(manager)
            .max_size(connections)
            // The server's process that was busy last is the one whose caches are warm.
            .queue_mode(QueueMode::Lifo)
            .timeouts(Timeouts { wait, create: wait, recycle: wait })
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a runtime is given, which is all that can be missing");
        Ok(Store { pool })
    }

    pub async fn connection(&self) -> Result<Object> {
        Ok(self.pool.get().await?)
    }

    pub fn pool_use(&self) -> PoolUse {
        let status = self.pool.status();
        PoolUse { open: status.size, busy: status.size.saturating_sub(status.available) }
    }

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<()> {
        self.connection().await?.batch_execute("select 1").await?;
        Ok(())
    }
}
