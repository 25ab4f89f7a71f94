//! An application that commits payments all the time, and remembers which commits were
//! acknowledged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use walhook::postgres;

use crate::support::{POLL, next_id};

const WRITERS: usize = 3;
/// Between two payments of a writer.
const INTERVAL: Duration = Duration::from_millis(50);
/// After this long without an answer, a writer connects again. It does not know whether its last
/// payment is committed.
const PATIENCE: Duration = Duration::from_secs(5);
const INSERT: &str = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
    values ($1, $2, 'INV', 1, 1, 'ready') returning substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";

/// An acknowledged commit.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    pub payment: i64,
    pub at: SystemTime,
    /// The timeline of the server that acknowledged it.
    pub timeline: u32,
}

/// All payments of a test, by id. Ids are in the order in which the statements were sent.
#[derive(Clone, Default)]
pub struct Account(Arc<Mutex<BTreeMap<i64, Option<Acknowledged>>>>);

impl Account {
    fn payments(&self) -> MutexGuard<'_, BTreeMap<i64, Option<Acknowledged>>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        self.payments().values().copied().flatten().collect()
    }

    /// Returns the first acknowledged payment that `matches`.
    pub fn first(&self, matches: impl Fn(&Acknowledged) -> bool) -> Option<Acknowledged> {
        self.payments()
            .values()
            .copied()
            .flatten()
            .filter(matches)
            .min_by_key(|acknowledged| acknowledged.at)
    }
}

/// Commits payments until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    pub fn start(url: &str, user: i64, account: &Account) -> Load {
        let stop = Arc::<AtomicBool>::default();
        let writer = |_| tokio::spawn(write(url.to_owned(), user, account.clone(), stop.clone()));
        let writers = (0..WRITERS).map(writer).collect();
        Load { stop, writers }
    }

    /// Waits until the last statement has ended or was given up.
    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);

        for writer in self.writers {
            writer.await.expect("a writer does not panic");
        }
    }
}

async fn write(url: String, user: i64, account: Account, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(Ok(client)) = tokio::time::timeout(PATIENCE, postgres::connect(&url)).await else {
            tokio::time::sleep(POLL).await;
            continue;
        };

        while !stop.load(Ordering::Relaxed) {
            let payment = next_id();
            account.payments().insert(payment, None);

            let inserted =
                tokio::time::timeout(PATIENCE, client.query_one(INSERT, &[&payment, &user])).await;
            let Ok(Ok(row)) = inserted else { break };
            let timeline = u32::from_str_radix(row.get(0), 16).expect("a timeline");
            let acknowledged = Acknowledged {
                payment,
                at: SystemTime::now(),
                timeline,
            };

            account.payments().insert(payment, Some(acknowledged));
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
