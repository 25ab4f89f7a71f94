//! Row numbers up to which the outbox has no unread rows.
//!
//! Deleted rows stay in the table and in its index until vacuum may remove them, which a dump, a
//! long report or a standby can prevent for hours. A window therefore does not start at the first
//! row number, but at a floor.
//!
//! A floor is a row number and the id of a transaction that began after the number was assigned.
//! Numbers are assigned in ascending order, and a trigger runs in a transaction that has written a
//! row and so has an id already. So every row up to the floor's, committed or not, is of a
//! transaction with a lower id than the floor's: once all transactions with lower ids have ended
//! and their rows have been read, no unread row is left, and none can appear. A snapshot's `xmax`
//! could not replace the id: a transaction that is running may have a higher id than that.
//!
//! This holds while no number and no transaction id is assigned twice. Floors therefore end with
//! the epoch, that is at each crash, failover, restore, new sequence, or connection, and are not
//! stored. Transaction ids have 64 bits and do not wrap around.

use crate::domain::window::Snapshot;

/// The most unconfirmed floors. A long transaction keeps all later floors unconfirmed: beyond this
/// number, every second one is forgotten, so that few old and many recent ones remain.
const MAX_UNCONFIRMED: usize = 32;

/// The floors of one epoch, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Floors {
    /// All rows up to this one have been passed on, and no transaction can add others.
    confirmed: u64,
    /// A window starts at one of these if it has no rows of the transactions before the floor's.
    unconfirmed: Vec<Floor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Floor {
    row: u64,
    transaction: u64,
}

impl Floors {
    /// Adds a floor: the number `row` was assigned before `transaction` began.
    pub fn add(&mut self, row: u64, transaction: u64) {
        if row <= self.highest() {
            return;
        }

        self.unconfirmed.push(Floor { row, transaction });

        if self.unconfirmed.len() > MAX_UNCONFIRMED {
            let mut index = 0;

            // The first and the last one stay.
            self.unconfirmed.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// Confirms floors with a snapshot all of whose rows have been passed on.
    pub fn confirm(&mut self, complete: &Snapshot) {
        let Some(oldest) = complete.oldest_running() else {
            return;
        };

        let confirmed = self
            .unconfirmed
            .iter()
            .take_while(|floor| floor.transaction <= oldest)
            .count();
        if let Some(floor) = self.unconfirmed.drain(..confirmed).next_back() {
            self.confirmed = floor.row;
        }
    }

    pub const fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Returns the row after which rows are waiting that no long transaction has written.
    pub fn highest(&self) -> u64 {
        self.unconfirmed
            .last()
            .map_or(self.confirmed, |floor| floor.row)
    }

    /// Returns the row numbers and the transaction ids of the unconfirmed floors, as parameters of
    /// a query.
    pub fn unconfirmed(&self) -> (Vec<i64>, Vec<String>) {
        self.unconfirmed
            .iter()
            .map(|floor| (floor.row as i64, floor.transaction.to_string()))
            .unzip()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A server whose transactions write rows and end in any order.
    #[derive(Default)]
    struct TestServer {
        /// The last transaction id and the last row number that were assigned, and the highest
        /// transaction id that has ended.
        assigned: u64,
        row: u64,
        ended: u64,
        running: Vec<u64>,
        /// The transaction of each row, starting with row 1.
        rows: Vec<u64>,
    }

    #[derive(Clone, Debug)]
    enum TestAction {
        Begin,
        Write(usize),
        End(usize),
        AddFloor,
        Read,
    }

    impl TestServer {
        fn begin(&mut self) -> u64 {
            self.assigned += 1;
            self.assigned
        }

        /// As PostgreSQL takes it: running transactions after the last one that has ended are not
        /// listed.
        fn snapshot(&self) -> Snapshot {
            let next = self.ended + 1;
            let listed: Vec<u64> = self
                .running
                .iter()
                .copied()
                .filter(|id| *id < next)
                .collect();

            let oldest = listed.iter().copied().min().unwrap_or(next);
            let listed: Vec<String> = listed.iter().map(u64::to_string).collect();
            Snapshot::from(format!("{oldest}:{next}:{}", listed.join(",")).as_str())
        }

        fn act(&mut self, action: &TestAction, floors: &mut Floors) {
            match action {
                TestAction::Begin => {
                    let id = self.begin();
                    self.running.push(id);
                }
                TestAction::Write(index) if !self.running.is_empty() => {
                    self.row += 1;
                    self.rows.push(self.running[index % self.running.len()]);
                }
                TestAction::End(index) if !self.running.is_empty() => {
                    let id = self.running.swap_remove(index % self.running.len());
                    self.ended = self.ended.max(id);
                }
                TestAction::AddFloor => {
                    let row = self.row;
                    let transaction = self.begin();
                    floors.add(row, transaction);
                    self.ended = self.ended.max(transaction);
                }
                TestAction::Read => floors.confirm(&self.snapshot()),
                TestAction::Write(_) | TestAction::End(_) => {}
            }
        }
    }

    fn action() -> impl Strategy<Value = TestAction> {
        prop_oneof![
            2 => Just(TestAction::Begin),
            3 => (0..8_usize).prop_map(TestAction::Write),
            2 => (0..8_usize).prop_map(TestAction::End),
            1 => Just(TestAction::AddFloor),
            1 => Just(TestAction::Read),
        ]
    }

    proptest! {
        #[test]
        fn no_transaction_that_runs_has_a_row_up_to_the_confirmed_floor(actions in vec(action(), 0..400)) {
            let mut server = TestServer::default();
            let mut floors = Floors::default();

            for action in &actions {
                server.act(action, &mut floors);
                let below = &server.rows[..floors.confirmed() as usize];
                prop_assert!(below.iter().all(|id| !server.running.contains(id)), "{floors:?} {below:?} {:?}", server.running);
            }
        }
    }

    fn with(floors: impl IntoIterator<Item = (u64, u64)>) -> Floors {
        let mut with = Floors::default();

        for (row, transaction) in floors {
            with.add(row, transaction);
        }

        with
    }

    #[test]
    fn a_floor_is_confirmed_when_all_transactions_before_its_own_have_been_read() {
        let mut floors = with([(10, 105), (20, 115)]);

        // 104 is running, and not listed: it is the highest id.
        floors.confirm(&"104:104:".into());
        assert_eq!(floors.confirmed(), 0);
        floors.confirm(&"104:120:104".into());
        assert_eq!(floors.confirmed(), 0);
        floors.confirm(&"105:120:105,118".into());
        assert_eq!((floors.confirmed(), floors.highest()), (10, 20));
        floors.confirm(&"120:120:".into());
        assert_eq!((floors.confirmed(), floors.highest()), (20, 20));
        assert_eq!(floors.unconfirmed(), (vec![], vec![]));
        floors.confirm(&Snapshot::empty());
        assert_eq!(floors.confirmed(), 20);
    }

    #[test]
    fn a_floor_below_another_one_is_not_added() {
        let floors = with([(20, 105), (10, 115), (20, 116), (21, 117)]);
        assert_eq!(
            floors.unconfirmed(),
            (vec![20, 21], vec!["105".into(), "117".into()])
        );
    }

    #[test]
    fn a_long_transaction_leaves_few_old_and_many_recent_floors() {
        let floors = with((1..=10_000).map(|number| (number, number + 100)));
        let rows = floors.unconfirmed().0;
        assert!(
            rows.len() <= MAX_UNCONFIRMED && rows.is_sorted(),
            "{rows:?}"
        );
        assert_eq!((rows[0], rows[rows.len() - 1]), (1, 10_000));
    }
}
