//! The platform's transactions. Each also writes which transitions it makes into a table on the
//! primary, so that exactly the committed transitions are known, also those whose commit was not
//! answered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::seed::Random;
use crate::support::{POLL, eventually, next_id};

pub const TRANSITIONS: &str = "create table transition (
    kind text, subject bigint, status text, user_id bigint, primary key (kind, subject, status))";

/// A user of the platform, with a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub user: i64,
    pub label: i64,
}

impl Owner {
    pub async fn create(client: &Client) -> Owner {
        let owner = Owner {
            user: next_id(),
            label: next_id(),
        };

        let create = format!(
            "begin; insert into app_user (id, email) values ({0}, 'someone@example.com');
             insert into label (id, user_id, name) values ({1}, {0}, 'Label'); commit",
            owner.user, owner.label
        );

        // Executed again if the primary fails meanwhile, with the same ids.
        client.batch_execute(&create).await.expect("an owner");
        owner
    }
}

/// Commits and rolls back transactions until it is stopped.
pub struct Load {
    owners: Arc<Mutex<Vec<Owner>>>,
    stops: Arc<AtomicBool>,
    /// Number of transactions that were tried.
    ticks: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Load {
    pub fn start(url: String, owners: Vec<Owner>, interval: Duration, seed: u64) -> Load {
        let owners = Arc::new(Mutex::new(owners));
        let stops = Arc::<AtomicBool>::default();
        let ticks = Arc::<AtomicU64>::default();
        let all = owners.clone();
        let stopped = stops.clone();
        let counted = ticks.clone();

        let task = tokio::spawn(async move {
            let mut random = Random::new(seed, 2);

            while !stopped.load(Ordering::Relaxed) {
                let Ok(client) = walhook::postgres::connect(&url).await else {
                    counted.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(POLL).await;
                    continue;
                };

                while !stopped.load(Ordering::Relaxed) {
                    let owner = {
                        let owners = all.lock().expect("nothing panics with this lock");
                        owners[random.below(owners.len())]
                    };

                    let done = client.batch_execute(&transaction(owner, &mut random)).await;
                    counted.fetch_add(1, Ordering::Relaxed);

                    match done {
                        Ok(()) => tokio::time::sleep(interval).await,
                        // A schema change may conflict with it. The transaction is open still.
                        Err(_) if !client.is_closed() => {
                            drop(client.batch_execute("rollback").await)
                        }
                        Err(_) => break,
                    }
                }
            }
        });

        Load {
            owners,
            stops,
            ticks,
            task,
        }
    }

    /// Replaces an owner. When this returns, no transaction of the old one is running.
    pub async fn replace(&self, old: Owner, new: Owner) {
        {
            let mut owners = self.owners.lock().expect("nothing panics with this lock");
            owners
                .iter_mut()
                .filter(|owner| **owner == old)
                .for_each(|owner| *owner = new);
        }
        // The second transaction from now on was chosen after the replacement.
        let before = self.ticks.load(Ordering::Relaxed);
        let later = async || (self.ticks.load(Ordering::Relaxed) >= before + 2).then_some(());
        eventually("two more transactions of the load", later).await;
    }

    pub async fn stop(self) {
        self.stops.store(true, Ordering::Relaxed);
        self.task.await.expect("the load does not panic");
    }
}

/// Returns the statements of a transaction.
fn transaction(owner: Owner, random: &mut Random) -> String {
    let Owner { user, label } = owner;

    match random.below(20) {
        0 => format!("begin; {} rollback", payments(user, 2)),
        1 => format!(
            "begin; {} savepoint s; {} rollback to s; commit",
            payments(user, 1),
            payments(user, 2)
        ),
        2 => format!("begin; {} commit", payments(user, 30)),
        3..=8 => format!("begin; {} commit", payments(user, 1 + random.below(3))),
        _ => format!(
            "begin; {} commit",
            releases(user, label, random.below(1_000_000))
        ),
    }
}

fn payments(user: i64, count: usize) -> String {
    let ids: Vec<i64> = (0..count).map(|_| next_id()).collect();
    format!(
        "with inserted as (
            insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
            select id, {user}, 'INV', 1, 1, 'ready' from unnest(array{ids:?}::bigint[]) as id returning id)
         insert into transition select 'payment.statement_ready', id, 'ready', {user} from inserted;"
    )
}

/// Moves one of a label's releases a step on, and adds a release if only few are under way. The
/// last steps distribute it, twice.
fn releases(user: i64, label: i64, n: usize) -> String {
    let id = next_id();
    format!(
        "with moved as (
            update release set review_status = case review_status when 'draft' then 'to_review' when 'to_review' then 'audit'
                else 'approved' end
            where id = (select id from release where label_id = {label} and review_status <> 'approved'
                        order by hashint8(id + {n}) limit 1)
            returning id, review_status)
         insert into transition select 'release.review.status_changed', id, review_status, {user} from moved;
         update release set delivery_status = 'pending'
         where id = (select max(id) from release where label_id = {label} and delivery_status = 'distributed') and {n} % 3 = 0;
         with distributed as (
            update release set delivery_status = 'distributed'
            where label_id = {label} and review_status = 'approved' and delivery_status = 'pending' returning id)
         insert into transition select 'release.distributed', id, 'distributed', {user} from distributed on conflict do nothing;
         insert into release (id, label_id, cat, title, review_status, delivery_status)
         select {id}, {label}, 'CAT', 'Release', 'draft', 'pending'
         where (select count(*) from release where label_id = {label} and review_status <> 'approved') < 6;"
    )
}
