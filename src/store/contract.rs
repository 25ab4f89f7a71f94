//! What the stages' transactions do, as traits. Transactions of Postgres implement them. So does
//! the store in memory on which the simulation runs the same code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::disable::{self, Failing};
use super::enqueue::{self, NewDelivery, NewLease, Subscription};
use super::order::{self, Key, OrderedDelivery, PromotionLease};
use super::record::{self, AttemptRow, CompletedAttempt, Counters};
use super::recovery::{self, Criteria, Job, LoggedDeliveries, Progress, Scan};
use super::replay::{self, Pending, Read, Replay};
use super::{Result, hours, jobs, sequences, superseded};
use crate::domain::delivery::Delivery;
use crate::domain::event::{Event, UserId};
use crate::domain::ordering::Ordering;
use crate::domain::sequence::Sequences;
use crate::domain::webhook::Tally;

/// The statements that store events with their deliveries.
pub trait EnqueueStatements: Sync {
    fn plan_by_index(&self) -> impl Future<Output = Result<()>> + Send;

    /// See [`enqueue::subscriptions`].
    fn subscriptions(
        &self,
        users: &[&str],
        kinds: &[&str],
    ) -> impl Future<Output = Result<Vec<Subscription>>> + Send;

    /// See [`sequences::start`].
    fn start_sequences(
        &self,
        webhooks: &[Uuid],
        into: &mut Sequences,
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`sequences::store`].
    fn store_sequences(&self, changed: &[(Uuid, i64)]) -> impl Future<Output = Result<()>> + Send;

    /// See [`enqueue::insert_events`].
    fn insert_events(
        &self,
        events: &[Event],
        repaired: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`enqueue::insert_deliveries`].
    fn insert_deliveries(
        &self,
        deliveries: &[NewDelivery],
        lease: NewLease,
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`order::insert`].
    fn insert_ordered(
        &self,
        ordered: &[OrderedDelivery],
        lease: NewLease,
    ) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// See [`enqueue::insert_missed`].
    fn insert_missed(&self, missed: &[(Uuid, Uuid)]) -> impl Future<Output = Result<()>> + Send;
}

impl<C: GenericClient> EnqueueStatements for C {
    async fn plan_by_index(&self) -> Result<()> {
        super::plan_by_index(self).await
    }

    async fn subscriptions(&self, users: &[&str], kinds: &[&str]) -> Result<Vec<Subscription>> {
        enqueue::subscriptions(self, users, kinds).await
    }

    async fn start_sequences(&self, webhooks: &[Uuid], into: &mut Sequences) -> Result<()> {
        sequences::start(self, webhooks, into).await
    }

    async fn store_sequences(&self, changed: &[(Uuid, i64)]) -> Result<()> {
        sequences::store(self, changed).await
    }

    async fn insert_events(&self, events: &[Event], repaired: bool) -> Result<()> {
        enqueue::insert_events(self, events, repaired).await
    }

    async fn insert_deliveries(&self, deliveries: &[NewDelivery], lease: NewLease) -> Result<()> {
        enqueue::insert_deliveries(self, deliveries, lease).await
    }

    async fn insert_ordered(
        &self,
        ordered: &[OrderedDelivery],
        lease: NewLease,
    ) -> Result<Vec<Uuid>> {
        order::insert(self, ordered, lease).await
    }

    async fn insert_missed(&self, missed: &[(Uuid, Uuid)]) -> Result<()> {
        enqueue::insert_missed(self, missed).await
    }
}

/// The statements that record attempts.
pub trait RecordStatements: EnqueueStatements {
    /// See [`record::lock_leased`].
    fn lock_leased(
        &self,
        attempts: &[CompletedAttempt<'_>],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// See [`record::end_leased`].
    fn end_leased(
        &self,
        attempts: &[CompletedAttempt<'_>],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// See [`superseded::take`].
    fn take_superseded(
        &self,
        deliveries: &[Uuid],
        leases: &[Uuid],
    ) -> impl Future<Output = Result<Vec<(Uuid, Uuid)>>> + Send;

    /// See [`superseded::hold_webhooks`].
    fn hold_webhooks(&self, webhooks: &[Uuid]) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// See [`record::end_deliveries`].
    fn end_deliveries(
        &self,
        attempts: &[CompletedAttempt<'_>],
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`record::retry_deliveries`].
    fn retry_deliveries(
        &self,
        attempts: &[CompletedAttempt<'_>],
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`record::insert_attempts`].
    fn insert_attempts(&self, rows: &[AttemptRow<'_>]) -> impl Future<Output = Result<()>> + Send;

    /// See [`record::count_webhooks`].
    fn count_webhooks(
        &self,
        tallies: &BTreeMap<Uuid, Tally>,
    ) -> impl Future<Output = Result<Vec<Counters>>> + Send;

    /// See [`hours::add`].
    fn add_hours(
        &self,
        attempts: &[CompletedAttempt<'_>],
    ) -> impl Future<Output = Result<()>> + Send;

    /// See [`order::promote`].
    fn promote(
        &self,
        keys: &BTreeSet<Key>,
        lease: Option<PromotionLease>,
    ) -> impl Future<Output = Result<Vec<Delivery>>> + Send;

    /// See [`disable::warn`].
    fn warn(&self, failing: &Failing) -> impl Future<Output = Result<()>> + Send;

    /// See [`disable::disable`].
    fn disable(&self, failing: &Failing) -> impl Future<Output = Result<Option<UserId>>> + Send;

    /// See [`audit::record`].
    fn audit(
        &self,
        actor: &Actor,
        action: Action,
        subject: Uuid,
        changed: &[&str],
    ) -> impl Future<Output = Result<()>> + Send;
}

impl RecordStatements for Transaction<'_> {
    async fn lock_leased(&self, attempts: &[CompletedAttempt<'_>]) -> Result<Vec<bool>> {
        record::lock_leased(self, attempts).await
    }

    async fn end_leased(&self, attempts: &[CompletedAttempt<'_>]) -> Result<Vec<bool>> {
        record::end_leased(self, attempts).await
    }

    async fn take_superseded(
        &self,
        deliveries: &[Uuid],
        leases: &[Uuid],
    ) -> Result<Vec<(Uuid, Uuid)>> {
        superseded::take(self, deliveries, leases).await
    }

    async fn hold_webhooks(&self, webhooks: &[Uuid]) -> Result<Vec<Uuid>> {
        superseded::hold_webhooks(self, webhooks).await
    }

    async fn end_deliveries(&self, attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        record::end_deliveries(self, attempts).await
    }

    async fn retry_deliveries(&self, attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        record::retry_deliveries(self, attempts).await
    }

    async fn insert_attempts(&self, rows: &[AttemptRow<'_>]) -> Result<()> {
        record::insert_attempts(self, rows).await
    }

    async fn count_webhooks(&self, tallies: &BTreeMap<Uuid, Tally>) -> Result<Vec<Counters>> {
        record::count_webhooks(self, tallies).await
    }

    async fn add_hours(&self, attempts: &[CompletedAttempt<'_>]) -> Result<()> {
        hours::add(self, attempts).await
    }

    async fn promote(
        &self,
        keys: &BTreeSet<Key>,
        lease: Option<PromotionLease>,
    ) -> Result<Vec<Delivery>> {
        order::promote(self, keys, lease).await
    }

    async fn warn(&self, failing: &Failing) -> Result<()> {
        disable::warn(self, failing).await
    }

    async fn disable(&self, failing: &Failing) -> Result<Option<UserId>> {
        disable::disable(self, failing).await
    }

    async fn audit(
        &self,
        actor: &Actor,
        action: Action,
        subject: Uuid,
        changed: &[&str],
    ) -> Result<()> {
        audit::record(self, actor, action, subject, changed).await
    }
}

/// The statements of one step of a job.
pub trait JobStatements: EnqueueStatements {
    /// See [`recovery::take`].
    fn take_job(&self, later: &[UserId]) -> impl Future<Output = Result<Option<Job>>> + Send;

    /// See [`jobs::end`].
    fn end_job(&self, job: Uuid) -> impl Future<Output = Result<Option<i64>>> + Send;

    /// See [`recovery::count_first_attempts`].
    fn count_first_attempts(
        &self,
        webhook: Uuid,
        limit: i64,
        with_parked: bool,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// See [`recovery::scan`]. Returns lists.
    fn scan_recovery(
        &self,
        criteria: &Criteria,
        progress: Progress,
        limit: i64,
    ) -> impl Future<Output = Result<Scan>> + Send;

    /// See [`recovery::start_next_rounds`]. Skips deliveries that are in another round.
    fn start_next_rounds(
        &self,
        webhook: Uuid,
        logged: &LoggedDeliveries,
    ) -> impl Future<Output = Result<Vec<(Uuid, u16)>>> + Send;

    /// See [`recovery::update`].
    fn move_recovery(
        &self,
        job: Uuid,
        progress: Progress,
        started: usize,
        is_finished: bool,
        wait: Duration,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// See [`recovery::remove_missed`].
    fn remove_missed(
        &self,
        webhook: Uuid,
        events: &[Uuid],
    ) -> impl Future<Output = Result<Vec<(Uuid, Option<i64>)>>> + Send;

    /// See [`recovery::in_commit_order`].
    fn in_commit_order(
        &self,
        events: &[Uuid],
    ) -> impl Future<Output = Result<Vec<(Uuid, Option<i64>)>>> + Send;

    /// See [`order::ordering`].
    fn ordering(&self, webhook: Uuid) -> impl Future<Output = Result<Ordering>> + Send;

    /// See [`replay::exclude`].
    fn exclude(&self, webhook: Uuid, events: &[Uuid]) -> impl Future<Output = Result<()>> + Send;

    /// See [`Replay::pending`].
    fn replay_pending(
        &self,
        replay: &Replay,
        limits: (i64, i64),
    ) -> impl Future<Output = Result<Pending>> + Send;

    /// See [`Replay::exclude_pending`].
    fn exclude_pending(&self, replay: &Replay) -> impl Future<Output = Result<()>> + Send;

    /// See [`Replay::exclude_logged`].
    fn exclude_logged(
        &self,
        replay: &Replay,
        limit: i64,
    ) -> impl Future<Output = Result<Read>> + Send;

    /// See [`Replay::scan`].
    fn scan_replay(
        &self,
        replay: &Replay,
        limit: i64,
        most: i64,
    ) -> impl Future<Output = Result<replay::Scan>> + Send;

    /// See [`Replay::excluded`].
    fn excluded(
        &self,
        replay: &Replay,
        events: &[Uuid],
        deliveries: &[Uuid],
    ) -> impl Future<Output = Result<Vec<Uuid>>> + Send;

    /// See [`Replay::update`].
    fn move_replay(
        &self,
        replay: &Replay,
        progress: replay::Progress,
        created: &[Uuid],
        chunk_size: i32,
        is_finished: bool,
        wait: Duration,
    ) -> impl Future<Output = Result<i64>> + Send;
}

impl JobStatements for Transaction<'_> {
    async fn take_job(&self, later: &[UserId]) -> Result<Option<Job>> {
        recovery::take(self, later).await
    }

    async fn end_job(&self, job: Uuid) -> Result<Option<i64>> {
        jobs::end(self, job).await
    }

    async fn count_first_attempts(
        &self,
        webhook: Uuid,
        limit: i64,
        with_parked: bool,
    ) -> Result<i64> {
        recovery::count_first_attempts(self, webhook, limit, with_parked).await
    }

    async fn scan_recovery(
        &self,
        criteria: &Criteria,
        progress: Progress,
        limit: i64,
    ) -> Result<Scan> {
        recovery::scan(self, criteria, progress, limit, true).await
    }

    async fn start_next_rounds(
        &self,
        webhook: Uuid,
        logged: &LoggedDeliveries,
    ) -> Result<Vec<(Uuid, u16)>> {
        recovery::start_next_rounds(self, webhook, logged, true).await
    }

    async fn move_recovery(
        &self,
        job: Uuid,
        progress: Progress,
        started: usize,
        is_finished: bool,
        wait: Duration,
    ) -> Result<i64> {
        recovery::update(self, job, progress, started, is_finished, wait).await
    }

    async fn remove_missed(
        &self,
        webhook: Uuid,
        events: &[Uuid],
    ) -> Result<Vec<(Uuid, Option<i64>)>> {
        recovery::remove_missed(self, webhook, events).await
    }

    async fn in_commit_order(&self, events: &[Uuid]) -> Result<Vec<(Uuid, Option<i64>)>> {
        recovery::in_commit_order(self, events).await
    }

    async fn ordering(&self, webhook: Uuid) -> Result<Ordering> {
        order::ordering(self, webhook).await
    }

    async fn exclude(&self, webhook: Uuid, events: &[Uuid]) -> Result<()> {
        replay::exclude(self, webhook, events).await
    }

    async fn replay_pending(&self, replay: &Replay, limits: (i64, i64)) -> Result<Pending> {
        replay.pending(self, limits).await
    }

    async fn exclude_pending(&self, replay: &Replay) -> Result<()> {
        replay.exclude_pending(self).await
    }

    async fn exclude_logged(&self, replay: &Replay, limit: i64) -> Result<Read> {
        replay.exclude_logged(self, limit).await
    }

    async fn scan_replay(&self, replay: &Replay, limit: i64, most: i64) -> Result<replay::Scan> {
        replay.scan(self, limit, most).await
    }

    async fn excluded(
        &self,
        replay: &Replay,
        events: &[Uuid],
        deliveries: &[Uuid],
    ) -> Result<Vec<Uuid>> {
        replay.excluded(self, events, deliveries).await
    }

    async fn move_replay(
        &self,
        replay: &Replay,
        progress: replay::Progress,
        created: &[Uuid],
        chunk_size: i32,
        is_finished: bool,
        wait: Duration,
    ) -> Result<i64> {
        replay
            .update(self, progress, created, chunk_size, is_finished, wait)
            .await
    }
}
