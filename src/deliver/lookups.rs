//! Divides the lookups that run at a time among names, by how their nameservers answered before:
//! names that are not answered, whatever their number and their owners, leave permits to names that
//! are. No I/O.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long a name whose lookup went unanswered is not looked up again, so that not every delivery
/// to it takes up budget. Shorter than the wait before a retry.
const UNANSWERED_TTL: Duration = Duration::from_secs(10);
/// How long a name counts as late after its last late lookup, even if it was answered quickly
/// since. With a shorter time, nameservers that answer every other query would hold many permits.
const LATE_TTL: Duration = Duration::from_secs(60);
/// Names that are remembered: more than the receivers of a large platform. They take at most 6 MiB.
/// A name that is forgotten counts as new.
const MAX_NAMES: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// How a lookup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSpeed {
    /// The name's nameservers answered quickly.
    Quick,
    /// The answer came late, or had not come when the lookup had to end.
    Late,
    /// The query went unanswered, while other names were answered.
    Unanswered,
}

/// The permits for lookups. A quick name may use all of them. A new name may use half of them, and
/// only until its answer is late. Late lookups may use a quarter. The remaining quarter is always
/// left to quick names.
pub struct LookupBudget {
    total: Semaphore,
    new: Semaphore,
    late: Semaphore,
    /// How the last lookup of each name ended, and when.
    names: Mutex<LruCache<String, (AnswerSpeed, Instant)>>,
}

/// A permit for one lookup. Returned when dropped.
pub struct LookupPermit<'a> {
    budget: &'a LookupBudget,
    _total: SemaphorePermit<'a>,
    part: BudgetPart<'a>,
}

/// The part of the budget that a permit is counted in.
enum BudgetPart<'a> {
    /// No part: the name is quick.
    Whole,
    New(#[expect(dead_code, reason = "held")] SemaphorePermit<'a>),
    Late(#[expect(dead_code, reason = "held")] SemaphorePermit<'a>),
}

impl LookupBudget {
    pub fn new(permits: usize) -> LookupBudget {
        LookupBudget {
            total: Semaphore::new(permits),
            new: Semaphore::new((permits / 2).max(1)),
            late: Semaphore::new((permits / 4).max(1)),
            names: Mutex::new(LruCache::new(MAX_NAMES)),
        }
    }

    /// Waits for a permit for a lookup of `name`. The caller limits the wait.
    pub async fn acquire(&self, name: &str) -> LookupPermit<'_> {
        // The part first: a lookup that waits for it must not hold a permit that others could use.
        let part = match self.standing(name, Instant::now()) {
            Some(AnswerSpeed::Quick) => BudgetPart::Whole,
            None => BudgetPart::New(take(&self.new).await),
            Some(AnswerSpeed::Late | AnswerSpeed::Unanswered) => {
                BudgetPart::Late(take(&self.late).await)
            }
        };

        LookupPermit {
            budget: self,
            _total: take(&self.total).await,
            part,
        }
    }

    /// Whether the last lookup of `name` went unanswered a moment ago.
    pub fn is_unanswered(&self, name: &str, now: Instant) -> bool {
        let known = self.names.lock().get(name).copied();
        known.is_some_and(|(speed, at)| {
            speed == AnswerSpeed::Unanswered && now - at < UNANSWERED_TTL
        })
    }

    /// Remembers how a lookup of `name` ended.
    pub fn note(&self, name: &str, speed: AnswerSpeed, now: Instant) {
        let is_late = matches!(
            self.standing(name, now),
            Some(AnswerSpeed::Late | AnswerSpeed::Unanswered)
        );
        if !(is_late && speed == AnswerSpeed::Quick) {
            self.names.lock().put(name.to_owned(), (speed, now));
        }
    }

    /// Returns how the last lookup of `name` ended. None if the name counts as new.
    fn standing(&self, name: &str, now: Instant) -> Option<AnswerSpeed> {
        let (speed, at) = *self.names.lock().get(name)?;
        (speed == AnswerSpeed::Quick || now - at < LATE_TTL).then_some(speed)
    }
}

impl LookupPermit<'_> {
    /// Counts the lookup as late. False if there are as many late ones as allowed: then it must
    /// end.
    pub fn become_late(&mut self) -> bool {
        if matches!(self.part, BudgetPart::Late(_)) {
            return true;
        }

        let Ok(late) = self.budget.late.try_acquire() else {
            return false;
        };

        self.part = BudgetPart::Late(late);
        true
    }
}

async fn take(permits: &Semaphore) -> SemaphorePermit<'_> {
    permits.acquire().await.expect("never closed")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Takes a permit if there is one at once.
    fn permit<'a>(budget: &'a LookupBudget, name: &str) -> Option<LookupPermit<'a>> {
        budget.acquire(name).now_or_never()
    }

    /// Takes as many permits as there are for lookups of such names.
    fn fill<'a>(budget: &'a LookupBudget, name: &str) -> Vec<LookupPermit<'a>> {
        std::iter::from_fn(|| permit(budget, name)).collect()
    }

    #[test]
    fn new_names_get_half_of_the_permits_and_late_ones_a_quarter() {
        let budget = LookupBudget::new(16);
        budget.note("quick", AnswerSpeed::Quick, Instant::now());
        budget.note("late", AnswerSpeed::Late, Instant::now());
        budget.note("silent", AnswerSpeed::Unanswered, Instant::now());

        let new = fill(&budget, "new");
        let mut late = fill(&budget, "late");

        assert_eq!((new.len(), late.len()), (8, 4));
        assert!(permit(&budget, "silent").is_none());
        assert_eq!(
            fill(&budget, "quick").len(),
            4,
            "the others may not use the rest"
        );
        late.pop();
        assert_eq!(fill(&budget, "silent").len(), 1);
        drop((new, late));
        assert_eq!(fill(&budget, "quick").len(), 16);
    }

    #[test]
    fn a_late_lookup_leaves_its_permit_to_others() {
        let budget = LookupBudget::new(16);
        budget.note("quick", AnswerSpeed::Quick, Instant::now());

        let mut lookups = fill(&budget, "new");
        lookups.extend(fill(&budget, "quick"));
        assert_eq!(lookups.len(), 16);

        let mut remaining = Vec::new();
        let mut ended = 0;

        for mut lookup in lookups {
            match lookup.become_late() {
                true => remaining.push(lookup),
                false => ended += 1,
            }
        }

        assert_eq!((remaining.len(), ended), (4, 12));
        assert!(
            remaining.iter_mut().all(LookupPermit::become_late),
            "a late lookup stays late"
        );
        assert_eq!(fill(&budget, "new").len(), 8);
    }

    #[test]
    fn a_name_is_late_for_a_while_and_unanswered_for_a_shorter_one() {
        let budget = LookupBudget::new(16);
        let start = Instant::now();

        budget.note("a", AnswerSpeed::Quick, start);
        assert_eq!(
            budget.standing("a", start + LATE_TTL * 100),
            Some(AnswerSpeed::Quick)
        );
        budget.note("a", AnswerSpeed::Unanswered, start);
        assert!(budget.is_unanswered("a", start));
        assert!(!budget.is_unanswered("a", start + UNANSWERED_TTL));
        budget.note("a", AnswerSpeed::Quick, start + UNANSWERED_TTL);
        assert_eq!(
            budget.standing("a", start + UNANSWERED_TTL),
            Some(AnswerSpeed::Unanswered),
            "one quick answer is not enough"
        );
        budget.note("a", AnswerSpeed::Late, start + UNANSWERED_TTL);
        assert_eq!(
            budget.standing("a", start + LATE_TTL),
            Some(AnswerSpeed::Late)
        );

        let later = start + UNANSWERED_TTL + LATE_TTL;
        assert_eq!(budget.standing("a", later), None, "it counts as new again");
        budget.note("a", AnswerSpeed::Quick, later);
        assert_eq!(budget.standing("a", later), Some(AnswerSpeed::Quick));
    }
}
