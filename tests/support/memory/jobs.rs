//! The statements of recoveries and replays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;
use walhook::domain::delivery::Outcome;
use walhook::domain::event::UserId;
use walhook::domain::ordering::Ordering;
use walhook::domain::subject::Subject;
use walhook::store::Result;
use walhook::store::contract::JobStatements;
use walhook::store::recovery::{self, Criteria, Job, LoggedDeliveries, Scan, Work};
use walhook::store::replay::{self, Pending, Phase, Read, Replay, Selection, StoredEvent};

use super::{Line, MemoryTransaction, Row, State, later};

/// A recovery or a replay.
#[derive(Clone, Debug)]
pub struct MemoryJob {
    pub webhook: Uuid,
    pub due_at: Timestamp,
    /// How many deliveries it has started.
    pub created: i64,
    pub is_finished: bool,
    pub work: JobWork,
}

#[derive(Clone, Debug)]
pub enum JobWork {
    Recovery(Criteria, recovery::Progress),
    Replay(Box<MemoryReplay>),
}

#[derive(Clone, Debug)]
pub struct MemoryReplay {
    selection: Selection,
    last_sequence: i64,
    progress: replay::Progress,
    chunk: Vec<Uuid>,
    chunk_size: i32,
    chunk_at: Option<Timestamp>,
}

impl JobWork {
    pub fn recovery(criteria: Criteria) -> JobWork {
        JobWork::Recovery(
            criteria,
            recovery::Progress {
                phase: recovery::Phase::AttemptLog,
                position: Uuid::nil(),
            },
        )
    }

    pub fn replay(selection: Selection, last_sequence: i64) -> JobWork {
        let progress = replay::Progress {
            phase: Phase::PendingDeliveries,
            position: Uuid::nil(),
            sequence: 0,
        };

        let chunk = Vec::new();
        let chunk_size = 0;
        let chunk_at = None;

        JobWork::Replay(Box::new(MemoryReplay {
            selection,
            last_sequence,
            progress,
            chunk,
            chunk_size,
            chunk_at,
        }))
    }
}

impl State {
    fn job(&self, id: Uuid, job: &MemoryJob) -> Job {
        let webhook = self.webhooks.get(&job.webhook);
        let active = webhook.is_some_and(|webhook| webhook.target.active);

        let work = match &job.work {
            JobWork::Recovery(criteria, progress) => Work::Recovery(criteria.clone(), *progress),
            JobWork::Replay(replay) => Work::Replay(Box::new(Replay {
                id,
                webhook: job.webhook,
                user: self.owner(job.webhook),
                selection: replay.selection.clone(),
                last_sequence: replay.last_sequence,
                progress: replay.progress,
                chunk: replay.chunk.clone(),
                chunk_size: replay.chunk_size,
                chunk_age: replay
                    .chunk_at
                    .map(|at| self.now.duration_since(at).as_secs_f64()),
            })),
        };

        Job {
            id,
            webhook: job.webhook,
            user: self.owner(job.webhook),
            active,
            work,
        }
    }

    /// The owner of a webhook. Empty if it was deleted.
    fn owner(&self, webhook: Uuid) -> UserId {
        self.webhooks
            .get(&webhook)
            .map_or_else(|| UserId("".into()), |webhook| webhook.user.clone())
    }

    /// The rows of a webhook's attempt log after an id, in order of id.
    fn log_after(&self, webhook: Uuid, after: Uuid, limit: i64) -> Vec<&Line> {
        let mut lines: Vec<&Line> = self
            .log
            .iter()
            .filter(|line| line.webhook == webhook && line.id > after)
            .collect();
        lines.sort_unstable_by_key(|line| line.id);
        lines.truncate(limit as usize);

        lines
    }

    /// Whether this is the last outcome of the delivery's last round, and the event is kept. A
    /// cancelled round that succeeded nevertheless was delivered.
    fn is_last(&self, line: &Line) -> bool {
        let is_next = |row: &Row| row.round == line.round && row.attempt == line.attempt + 1;
        line.round == self.rounds.get(&line.delivery).copied().unwrap_or(1)
            && (line.outcome != Outcome::Failed
                || self.deliveries.get(&line.delivery).is_some_and(is_next))
            && self.events.contains_key(&line.event)
            && (line.outcome != Outcome::Cancelled || !self.is_delivered(line.delivery, line.round))
    }

    fn is_delivered(&self, delivery: Uuid, round: u16) -> bool {
        let is_it = |line: &&Line| line.delivery == delivery && line.round == round;
        self.log
            .iter()
            .filter(is_it)
            .any(|line| line.outcome == Outcome::Delivered)
    }

    fn scan_log(&self, criteria: &Criteria, progress: recovery::Progress, limit: i64) -> Scan {
        let examined = self.log_after(criteria.webhook, progress.position, limit);
        let mut found: BTreeMap<Uuid, &Line> = BTreeMap::new();

        for line in &examined {
            let is_named = criteria
                .outcomes
                .iter()
                .any(|outcome| outcome == line.outcome.as_str());
            let is_within = (criteria.since..criteria.until).contains(&line.started_at);
            if is_named && is_within && self.is_last(line) {
                found.insert(line.delivery, line);
            }
        }

        Scan {
            read: examined.len() as i64,
            last: examined.last().map(|line| line.id),
            found: found.len() as u64,
            logged: LoggedDeliveries {
                deliveries: found.keys().copied().collect(),
                events: found.values().map(|line| line.event).collect(),
                rounds: found.values().map(|line| line.round as i16).collect(),
                sequences: found.values().map(|line| line.sequence).collect(),
            },
        }
    }

    fn scan_missed(&self, criteria: &Criteria, progress: recovery::Progress, limit: i64) -> Scan {
        let of_webhook = |(webhook, event): &&(Uuid, Uuid)| {
            *webhook == criteria.webhook && *event > progress.position
        };

        let examined: Vec<Uuid> = self
            .missed
            .keys()
            .filter(of_webhook)
            .map(|(_, event)| *event)
            .take(limit as usize)
            .collect();

        let subscribed = self
            .webhooks
            .get(&criteria.webhook)
            .map_or(&[][..], |webhook| &webhook.events);
        let is_found = |id: &Uuid| {
            self.events.get(id).is_some_and(|event| {
                (criteria.since..criteria.until).contains(&event.occurred_at)
                    && subscribed.contains(&event.kind)
            })
        };

        let events: Vec<Uuid> = examined.iter().copied().filter(is_found).collect();
        let logged = LoggedDeliveries {
            deliveries: Vec::new(),
            rounds: Vec::new(),
            sequences: Vec::new(),
            events,
        };

        Scan {
            read: examined.len() as i64,
            last: examined.last().copied(),
            found: logged.events.len() as u64,
            logged,
        }
    }

    fn in_commit_order(&self, events: &[Uuid]) -> Vec<(Uuid, Option<i64>)> {
        let mut events: Vec<Uuid> = events
            .iter()
            .copied()
            .filter(|id| self.events.contains_key(id))
            .collect();
        events.sort_unstable_by_key(|id| (self.events[id].number, *id));

        let release = |id: &Uuid| {
            let event = &self.events[id];
            Subject::new(event.kind, event.label, &event.data).release()
        };

        events.iter().map(|id| (*id, release(id))).collect()
    }

    fn is_selected(&self, replay: &Replay, id: Uuid) -> bool {
        let (
            event,
            Selection {
                since,
                until,
                events,
                labels,
            },
        ) = (&self.events[&id], &replay.selection);
        event.user == replay.user
            && events.iter().any(|name| name == event.kind.as_str())
            && labels
                .as_ref()
                .is_none_or(|labels| event.label.is_some_and(|label| labels.contains(&label)))
            && (*since..*until).contains(&event.occurred_at)
            && !self.exclusions.contains_key(&(replay.id, id))
    }

    /// Scans the numbered events. The store in memory has no others.
    fn scan_events(&self, replay: &Replay, limit: i64, most: i64) -> replay::Scan {
        let numbers = replay.progress.sequence + 1..=replay.last_sequence;
        let mut examined: Vec<(i64, Uuid)> = self
            .events
            .iter()
            .filter(|(_, event)| event.user == replay.user && numbers.contains(&event.number))
            .map(|(id, event)| (event.number, *id))
            .collect();

        examined.sort_unstable();
        examined.truncate(limit as usize);

        let selected = examined
            .iter()
            .filter(|(_, id)| self.is_selected(replay, *id))
            .take(most as usize);
        let found: Vec<(i64, Uuid)> = selected.copied().collect();
        let is_full = found.len() as i64 >= most;
        let last = if is_full {
            found.last()
        } else {
            examined.last()
        };

        let sequence = last.map_or(replay.progress.sequence, |(number, _)| *number);
        let next = replay::Progress {
            sequence,
            ..replay.progress
        };

        let stored = |(_, id): &(i64, Uuid)| {
            let event = &self.events[id];
            StoredEvent {
                id: *id,
                kind: event.kind,
                label: event.label,
                data: event.data.to_string(),
            }
        };

        let next = Some(next).filter(|_| is_full || examined.len() as i64 >= limit);
        replay::Scan {
            next,
            found: found.iter().map(stored).collect(),
        }
    }

    fn count(&self, limit: i64, is_counted: impl Fn(&Uuid, &Row) -> bool) -> i64 {
        (self
            .deliveries
            .iter()
            .filter(|(id, row)| is_counted(id, row))
            .count() as i64)
            .min(limit)
    }
}

impl JobStatements for MemoryTransaction<'_> {
    async fn take_job(&self, later: &[UserId]) -> Result<Option<Job>> {
        let state = self.state();
        let open = state.jobs.iter().filter(|(_, job)| !job.is_finished);
        let is_replay = |job: &MemoryJob| matches!(job.work, JobWork::Replay(_));
        let mut replaying = BTreeSet::new();

        // Of the replays of a webhook, only the first.
        let runnable = open.filter(|(_, job)| !is_replay(job) || replaying.insert(job.webhook));
        let due = runnable.filter(|(_, job)| job.due_at <= state.now);
        let is_later = |job: &MemoryJob| later.contains(&state.owner(job.webhook));
        let due = due.min_by_key(|(id, job)| (is_later(job), job.due_at, **id));

        Ok(due.map(|(id, job)| state.job(*id, job)))
    }

    async fn end_job(&self, job: Uuid) -> Result<Option<i64>> {
        let mut state = self.state();
        let created = state
            .jobs
            .get(&job)
            .filter(|job| !job.is_finished)
            .map(|job| job.created);
        state.jobs.change(&job, |job| job.is_finished = true);

        Ok(created)
    }

    async fn count_first_attempts(
        &self,
        webhook: Uuid,
        limit: i64,
        with_parked: bool,
    ) -> Result<i64> {
        let state = self.state();
        let counts = |row: &Row| row.attempt == 1 && (with_parked || row.due_at.is_some());
        Ok(state.count(limit, |_, row| row.webhook == webhook && counts(row)))
    }

    async fn scan_recovery(
        &self,
        criteria: &Criteria,
        progress: recovery::Progress,
        limit: i64,
    ) -> Result<Scan> {
        let state = self.state();
        Ok(match progress.phase {
            recovery::Phase::AttemptLog => state.scan_log(criteria, progress, limit),
            recovery::Phase::MissedEvents => state.scan_missed(criteria, progress, limit),
        })
    }

    async fn start_next_rounds(
        &self,
        webhook: Uuid,
        logged: &LoggedDeliveries,
    ) -> Result<Vec<(Uuid, u16)>> {
        Ok(self.state().start_next_rounds(webhook, logged, true))
    }

    async fn move_recovery(
        &self,
        job: Uuid,
        progress: recovery::Progress,
        started: usize,
        is_finished: bool,
        wait: Duration,
    ) -> Result<i64> {
        let mut state = self.state();
        let due_at = later(state.now, wait);

        state.jobs.change(&job, |job| {
            job.created += started as i64;
            (job.is_finished, job.due_at) = (is_finished, due_at);

            if let JobWork::Recovery(_, at) = &mut job.work {
                *at = progress;
            }
        });

        Ok(state.jobs[&job].created)
    }

    async fn remove_missed(
        &self,
        webhook: Uuid,
        events: &[Uuid],
    ) -> Result<Vec<(Uuid, Option<i64>)>> {
        let mut state = self.state();
        let removed: Vec<Uuid> = events
            .iter()
            .copied()
            .filter(|event| state.missed.remove(&(webhook, *event)).is_some())
            .collect();
        Ok(state.in_commit_order(&removed))
    }

    async fn in_commit_order(&self, events: &[Uuid]) -> Result<Vec<(Uuid, Option<i64>)>> {
        Ok(self.state().in_commit_order(events))
    }

    async fn ordering(&self, webhook: Uuid) -> Result<Ordering> {
        Ok(self
            .state()
            .webhooks
            .get(&webhook)
            .map_or(Ordering::None, |webhook| webhook.ordering))
    }

    async fn exclude(&self, webhook: Uuid, events: &[Uuid]) -> Result<()> {
        let mut state = self.state();
        let is_open = |job: &MemoryJob| {
            job.webhook == webhook && !job.is_finished && matches!(job.work, JobWork::Replay(_))
        };

        let replays: Vec<Uuid> = state
            .jobs
            .iter()
            .filter(|(_, job)| is_open(job))
            .map(|(id, _)| *id)
            .collect();
        for replay in replays {
            events
                .iter()
                .for_each(|event| state.exclusions.put((replay, *event), ()));
        }

        Ok(())
    }

    async fn replay_pending(&self, replay: &Replay, limits: (i64, i64)) -> Result<Pending> {
        let state = self.state();
        Ok(Pending {
            first_attempts: state.count(limits.0, |_, row| {
                row.webhook == replay.webhook && row.attempt == 1
            }),
            retries: state.count(limits.1, |_, row| {
                row.webhook == replay.webhook && row.attempt > 1
            }),
            of_chunk: state.count(i64::MAX, |id, row| {
                replay.chunk.contains(id) && row.attempt == 1
            }),
        })
    }

    async fn exclude_pending(&self, replay: &Replay) -> Result<()> {
        let mut state = self.state();
        let (from, to) = replay.event_ids();
        let is_read = |row: &&Row| row.webhook == replay.webhook && (from..to).contains(&row.event);
        let events: Vec<Uuid> = state
            .deliveries
            .values()
            .filter(is_read)
            .map(|row| row.event)
            .collect();

        events
            .into_iter()
            .for_each(|event| state.exclusions.put((replay.id, event), ()));
        Ok(())
    }

    async fn exclude_logged(&self, replay: &Replay, limit: i64) -> Result<Read> {
        let mut state = self.state();
        let lines = state.log_after(replay.webhook, replay.attempts_after(), limit);
        let (from, to) = replay.event_ids();
        let read = Read {
            rows: lines.len() as i64,
            last: lines.last().map(|line| line.id),
        };

        let events: Vec<Uuid> = lines
            .iter()
            .map(|line| line.event)
            .filter(|event| (from..to).contains(event))
            .collect();
        events
            .into_iter()
            .for_each(|event| state.exclusions.put((replay.id, event), ()));

        Ok(read)
    }

    async fn scan_replay(&self, replay: &Replay, limit: i64, most: i64) -> Result<replay::Scan> {
        Ok(match replay.progress.phase {
            Phase::Events => self.state().scan_events(replay, limit, most),
            _ => replay::Scan {
                next: None,
                found: Vec::new(),
            },
        })
    }

    async fn excluded(
        &self,
        replay: &Replay,
        events: &[Uuid],
        deliveries: &[Uuid],
    ) -> Result<Vec<Uuid>> {
        let state = self.state();
        let is_excluded = |event: &&Uuid| state.exclusions.contains_key(&(replay.id, **event));
        let pending = deliveries
            .iter()
            .filter_map(|id| state.deliveries.get(id))
            .map(|row| row.event);

        Ok(events
            .iter()
            .filter(is_excluded)
            .copied()
            .chain(pending)
            .collect())
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
        let mut state = self.state();
        let now = state.now;
        let due_at = later(state.now, wait);

        state.jobs.change(&replay.id, |job| {
            job.created += created.len() as i64;
            (job.is_finished, job.due_at) = (is_finished, due_at);

            let JobWork::Replay(stored) = &mut job.work else {
                return;
            };

            (stored.progress, stored.chunk_size) = (progress, chunk_size);

            if !created.is_empty() {
                (stored.chunk, stored.chunk_at) = (created.to_vec(), Some(now));
            }
        });

        Ok(state.jobs[&replay.id].created)
    }
}
