//! What happens on a platform, as plans of transactions: pure, so that nothing here has to wait for a database.

use postgres_types::ToSql;
use serde_json::json;

use crate::vault::random_bytes;

/// The demo's users. The first has every add-on, the last none at first.
pub const USERS: [i64; 3] = [1, 2, 3];
const LABELS: [(i64, i64, &str); 4] =
    [(11, 1, "Aurora Recordings"), (12, 1, "Low Tide"), (13, 2, "Paper Moon Music"), (14, 3, "Kiosk Tapes")];
const OUTLETS: [(i64, &str); 6] =
    [(21, "Spotify"), (22, "Apple Music"), (23, "Deezer"), (24, "TIDAL"), (25, "Amazon Music"), (26, "Beatport")];
const ADJECTIVES: [&str; 8] = ["Silver", "Quiet", "Northern", "Electric", "Paper", "Hollow", "Golden", "Distant"];
const NOUNS: [&str; 8] = ["Harbour", "Signals", "Summer", "Machines", "Letters", "Rivers", "Static", "Gardens"];

pub type Parameter = Box<dyn ToSql + Sync + Send>;

pub struct Statement {
    pub sql: &'static str,
    pub parameters: Vec<Parameter>,
}

/// What the platform does at once; some of it is taken back, and nobody must ever hear of that.
pub struct Transaction {
    pub statements: Vec<Statement>,
    pub committed: bool,
}

/// Transactions in their order.
pub type Story = Vec<Transaction>;

macro_rules! sql {
    ($sql:expr $(, $parameter:expr )* $(,)?) => {
        Statement { sql: $sql, parameters: vec![ $( Box::new($parameter) as Parameter ),* ] }
    };
}

fn commit(statements: Vec<Statement>) -> Transaction {
    Transaction { statements, committed: true }
}

/// Gives out ids and begins stories.
pub struct Scenario {
    next_id: i64,
    begun: usize,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario { next_id: 1_000, begun: 0 }
    }
}

impl Scenario {
    /// Who and what there is before anything happens.
    pub fn cast() -> Transaction {
        let mut statements = Vec::new();
        for user in USERS {
            let email = format!("owner{user}@example.com");
            statements.push(sql!("insert into app_user (id, email) values ($1, $2)", user, email));
        }
        for (user, addon) in [(1, "preflight_qc"), (1, "stream_radar"), (2, "stream_radar")] {
            statements.push(sql!("insert into user_addon (user_id, addon) values ($1, $2)", user as i64, addon));
        }
        for (id, user, name) in LABELS {
            statements.push(sql!("insert into label (id, user_id, name) values ($1, $2, $3)", id, user, name));
        }
        for (id, name) in OUTLETS {
            statements.push(sql!("insert into outlet (id, name) values ($1, $2)", id, name));
        }
        commit(statements)
    }

    /// The next story. The first few show every event there is; then it is up to chance.
    pub fn story(&mut self) -> Story {
        self.begun += 1;
        match self.begun {
            1 => return self.release(LABELS[0].0, &Course::EVENTFUL),
            2 => return self.payment(USERS[0]),
            _ => {}
        }
        match below(20) {
            0..3 => self.payment(*pick(&USERS)),
            3 => addon_toggled(USERS[2]),
            _ => self.release(pick(&LABELS).0, &Course::by_chance()),
        }
    }

    fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// A statement of account is drawn up and becomes ready.
    fn payment(&mut self, user: i64) -> Story {
        let id = self.id();
        let (amount, rate) = (below(500_000) as i64, if one_in(3) { 108 } else { 100 });
        let cents = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
        let currency = if rate == 100 { "USD" } else { "EUR" };
        let draw_up = sql!(
            "insert into payment (id, user_id, invoice_number, period_end, amount, total_due_usd, currency, status) \
             values ($1, $2, $3, (date_trunc('month', now()) - interval '1 day')::date, $4::text::numeric, \
             $5::text::numeric, $6, 'draft')",
            id,
            user,
            format!("INV-{id:06}"),
            cents(amount),
            cents(amount * rate / 100),
            currency
        );
        let ready = sql!("update payment set status = 'ready' where id = $1", id);
        vec![commit(vec![draw_up]), commit(vec![ready])]
    }

    /// The life of a release, from draft to its outlets and perhaps off them again.
    fn release(&mut self, label: i64, course: &Course) -> Story {
        let (id, track) = (self.id(), self.id());
        let isrc = format!("QZWAL{:07}", track % 10_000_000);
        let title = format!("{} {}", pick(&ADJECTIVES), pick(&NOUNS));
        let draft = sql!(
            "insert into release (id, label_id, cat, title, review_status, delivery_status) \
             values ($1, $2, $3, $4, 'draft', 'pending')",
            id,
            label,
            format!("WAL{id:05}"),
            title.clone()
        );
        let track_row = sql!(
            "insert into track (id, release_id, isrc, title) values ($1, $2, $3, $4)",
            track,
            id,
            isrc.clone(),
            title
        );
        let mut story = vec![commit(vec![draft, track_row])];
        if course.thinks_twice {
            let statements = vec![review(id, "approved", None)];
            story.push(Transaction { statements, committed: false });
        }
        story.extend(self.reviewed(id, course));
        if course.rejected {
            return story;
        }
        story.extend(self.transcoded(track, course.transcoding_fails));
        story.extend(self.distributed(id, course));
        if course.streams_look_odd {
            story.extend(self.flagged(id, track, &isrc));
        }
        if course.taken_down {
            story.extend(self.taken_down(id));
        }
        story
    }

    fn reviewed(&mut self, release: i64, course: &Course) -> Story {
        let hold = "update release set review_status = 'to_review', pre_review_hold = true, updated_at = now() \
                    where id = $1";
        let report = sql!(
            "insert into preflight_report (id, release_id, generated_at, profile_name, profile_version, blocking, \
             informational, requires_feedback) values ($1, $2, now(), 'standard', 4, $3, $4, $5)",
            self.id(),
            release,
            below(3) as i64,
            below(9) as i64,
            below(2) as i64
        );
        let mut story = vec![commit(vec![sql!(hold, release)]), commit(vec![report])];
        let issues = json!([{ "field": "artwork", "message": "The cover shows a web address" }]);
        if course.needs_changes {
            story.push(commit(vec![review(release, "require_changes", Some(issues.clone()))]));
            story.push(commit(vec![review(release, "to_review", None)]));
        }
        let verdict =
            if course.rejected { review(release, "rejected", Some(issues)) } else { review(release, "approved", None) };
        story.push(commit(vec![verdict]));
        story
    }

    fn transcoded(&mut self, track: i64, fails_first: bool) -> Story {
        let outcomes: &[&str] = match (fails_first, one_in(2)) {
            (false, _) => &["complete"],
            (true, true) => &["error", "complete"],
            (true, false) => &["incomplete", "complete"],
        };
        let mut story = Vec::new();
        for outcome in outcomes {
            let id = self.id();
            let queued =
                sql!("insert into transcoder_queue (id, track_id, status) values ($1, $2, 'queued')", id, track);
            story.push(commit(vec![queued]));
            let mut statements: Vec<Statement> = Vec::new();
            for asset_type in [1_i64, 2] {
                statements.push(sql!(
                    "insert into transcoder_queue_file (id, transcoder_queue_id, asset_type_id, status) \
                     values ($1, $2, $3, $4)",
                    self.id(),
                    id,
                    asset_type,
                    *outcome
                ));
            }
            let done = "update transcoder_queue set status = $2, updated_at = now() where id = $1";
            statements.push(sql!(done, id, *outcome));
            story.push(commit(statements));
        }
        story
    }

    fn distributed(&mut self, release: i64, course: &Course) -> Story {
        let first = below(OUTLETS.len());
        let outlets: Vec<i64> = (0..course.outlets).map(|step| OUTLETS[(first + step) % OUTLETS.len()].0).collect();
        let entries: Vec<(i64, i64)> = outlets.iter().map(|outlet| (self.id(), *outlet)).collect();
        let schedule = |(id, outlet): &(i64, i64)| {
            let insert =
                "insert into distro_queue (id, release_id, outlet_id, status) values ($1, $2, $3, 'scheduled')";
            sql!(insert, *id, release, *outlet)
        };
        let mut story = vec![commit(entries.iter().map(schedule).collect())];
        story.push(commit(vec![delivery_status(release, "distributing")]));
        for status in ["transcoding", "batched"] {
            story.extend(entries.iter().map(|(id, _)| commit(vec![distribution(*id, status, None)])));
        }
        let failing = usize::from(course.an_outlet_fails);
        for (id, _) in &entries[..failing] {
            let status = *pick(&["error", "fault", "rejected", "batch_exception"]);
            let message = "The outlet did not take the artwork: 3000 by 3000 pixels are wanted";
            story.push(commit(vec![distribution(*id, status, Some(message))]));
        }
        story.extend(entries[failing..].iter().map(|(id, _)| commit(vec![distribution(*id, "complete", None)])));
        story.push(commit(vec![delivery_status(release, "distributed")]));
        story
    }

    fn taken_down(&mut self, release: i64) -> Story {
        let id = self.id();
        let request = sql!(
            "insert into distro_queue (id, release_id, outlet_id, status, takedown) \
             values ($1, $2, $3, 'scheduled', true)",
            id,
            release,
            pick(&OUTLETS).0
        );
        vec![commit(vec![request]), commit(vec![distribution(id, "complete", None)])]
    }

    /// Odd streams are seen, stop, and come back once more.
    fn flagged(&mut self, release: i64, track: i64, isrc: &str) -> Story {
        let id = self.id();
        let raised = sql!(
            "insert into stream_radar_flag (id, dsp, isrc, release_id, track_id, severity, status, first_detected_at, \
             last_detected_at, estimated_affected_streams, published_at) \
             values ($1, $2, $3, $4, $5, $6, 'active', now() - interval '1 day', now(), $7, now())",
            id,
            *pick(&["spotify", "deezer", "tidal"]),
            isrc.to_owned(),
            release,
            track,
            *pick(&["low", "medium", "high"]),
            below(50_000) as i64
        );
        let resolved =
            || sql!("update stream_radar_flag set status = 'resolved', resolved_at = now() where id = $1", id);
        let reopened = sql!(
            "update stream_radar_flag set status = 'active', resolved_at = null, last_detected_at = now() where id = $1",
            id
        );
        [raised, resolved(), reopened, resolved()].into_iter().map(|change| commit(vec![change])).collect()
    }
}

/// What will befall a release.
struct Course {
    thinks_twice: bool,
    needs_changes: bool,
    rejected: bool,
    transcoding_fails: bool,
    outlets: usize,
    an_outlet_fails: bool,
    streams_look_odd: bool,
    taken_down: bool,
}

impl Course {
    const EVENTFUL: Course = Course {
        thinks_twice: true,
        needs_changes: true,
        rejected: false,
        transcoding_fails: true,
        outlets: 2,
        an_outlet_fails: true,
        streams_look_odd: true,
        taken_down: true,
    };

    fn by_chance() -> Course {
        Course {
            thinks_twice: one_in(4),
            needs_changes: one_in(4),
            rejected: one_in(10),
            transcoding_fails: one_in(6),
            outlets: 1 + below(OUTLETS.len()),
            an_outlet_fails: one_in(5),
            streams_look_odd: one_in(4),
            taken_down: one_in(5),
        }
    }
}

fn review(release: i64, status: &'static str, issues: Option<serde_json::Value>) -> Statement {
    let update = "update release set review_status = $2, review_issues = $3, pre_review_hold = false, updated_at = now() \
                  where id = $1";
    sql!(update, release, status, issues)
}

fn delivery_status(release: i64, status: &'static str) -> Statement {
    sql!("update release set delivery_status = $2, updated_at = now() where id = $1", release, status)
}

fn distribution(entry: i64, status: &'static str, message: Option<&'static str>) -> Statement {
    let update = "update distro_queue set status = $2, message = $3, updated_at = now() where id = $1";
    sql!(update, entry, status, message)
}

/// An add-on is given and, a while later, given up.
fn addon_toggled(user: i64) -> Story {
    let given = "insert into user_addon (user_id, addon) values ($1, 'preflight_qc') on conflict do nothing";
    let given_up = "delete from user_addon where user_id = $1 and addon = 'preflight_qc'";
    [given, given_up].into_iter().map(|change| commit(vec![sql!(change, user)])).collect()
}

/// A number below `limit`; near enough to evenly spread for a play.
pub fn below(limit: usize) -> usize {
    usize::from(u16::from_be_bytes(random_bytes())) * limit / (usize::from(u16::MAX) + 1)
}

fn one_in(chances: usize) -> bool {
    below(chances) == 0
}

fn pick<T>(items: &[T]) -> &T {
    &items[below(items.len())]
}
