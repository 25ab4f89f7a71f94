//! Load with a known result: payments that are committed, and others that are rolled back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::number;
use crate::support::{TestApp, eventually, next_id};

const COUNT: &str = "select count(*) from walhook.event where kind = 'payment.statement_ready'";
/// The pause between a writer's transactions.
const PAUSE: Duration = Duration::from_millis(2);

pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<i64>>>,
}

fn insert(id: i64, user: i64) -> String {
    format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values ({id}, {user}, 'I', 1, 1, 'ready');"
    )
}

impl Load {
    /// Starts two writers whose transactions overlap: one with short transactions, one with longer
    /// ones.
    pub async fn start(app: &TestApp, user: i64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let short = write(app.source().await, user, Arc::clone(&stop), Duration::ZERO);
        let long = write(
            app.source().await,
            user,
            Arc::clone(&stop),
            Duration::from_millis(30),
        );

        Load {
            stop,
            tasks: vec![tokio::spawn(short), tokio::spawn(long)],
        }
    }

    /// Stops the load and returns the payments that were committed.
    pub async fn stop(self) -> HashSet<i64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut committed = HashSet::new();

        for task in self.tasks {
            committed.extend(task.await.expect("the load does not panic"));
        }

        committed
    }
}

async fn write(client: Client, user: i64, stopped: Arc<AtomicBool>, open: Duration) -> Vec<i64> {
    let mut committed = Vec::new();

    while !stopped.load(Ordering::Relaxed) {
        let first = next_id();
        let never = next_id();
        let second = next_id();
        let begin = format!(
            "begin; {} savepoint s; {} rollback to s;",
            insert(first, user),
            insert(never, user)
        );

        client
            .batch_execute(&begin)
            .await
            .expect("the platform's database is up");
        tokio::time::sleep(open).await;

        client
            .batch_execute(&format!(
                "{} commit; begin; {} rollback",
                insert(second, user),
                insert(never, user)
            ))
            .await
            .unwrap();

        committed.extend([first, second]);
        tokio::time::sleep(PAUSE).await;
    }

    committed
}

/// Returns the payments of all stored events, including repeated ones.
async fn stored_payments(app: &TestApp) -> Vec<i64> {
    let query = "select (data ->> 'payment_request_id')::bigint from walhook.event where kind = 'payment.statement_ready'";
    app.store()
        .await
        .query(query, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// Waits until the store has this many events of payments.
async fn wait_for(store: &Client, count: i64) {
    eventually(&format!("{count} events"), async || {
        (number(store, COUNT).await >= count).then_some(())
    })
    .await;
}

/// Waits until the store has `more` events of payments than now.
pub async fn wait_for_more(app: &TestApp, more: i64) {
    let store = app.store().await;
    let before = number(&store, COUNT).await;
    wait_for(&store, before + more).await;
}

/// Asserts that the store has one event of each committed payment, and no others.
pub async fn assert_complete(app: &TestApp, committed: &HashSet<i64>) {
    wait_for(&app.store().await, committed.len() as i64).await;
    let stored = stored_payments(app).await;
    let distinct: HashSet<i64> = stored.iter().copied().collect();
    assert_eq!(distinct.len(), stored.len(), "a payment has two events");
    assert!(
        distinct == *committed,
        "lost {:?}, invented {:?}",
        committed - &distinct,
        &distinct - committed
    );
}
