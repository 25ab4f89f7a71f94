//! What happens on the simulated platform, as sequences of transactions. No I/O.

use crate::vault::random_bytes;

/// The demo's users. The first has every add-on; the last has none at first.
pub const USERS: [i64; 3] = [1, 2, 3];
const LABELS: [(i64, i64, &str); 4] = [
    (11, 1, "Aurora Recordings"),
    (12, 1, "Low Tide"),
    (13, 2, "Paper Moon Music"),
    (14, 3, "Kiosk Tapes"),
];
const OUTLETS: [(i64, &str); 6] = [
    (21, "Spotify"),
    (22, "Apple Music"),
    (23, "Deezer"),
    (24, "TIDAL"),
    (25, "Amazon Music"),
    (26, "Beatport"),
];
const ADJECTIVES: [&str; 8] = [
    "Silver", "Quiet", "Northern", "Electric", "Paper", "Hollow", "Golden", "Distant",
];
const NOUNS: [&str; 8] = [
    "Harbour", "Signals", "Summer", "Machines", "Letters", "Rivers", "Static", "Gardens",
];
const ISSUES: &str = r#"'[{"field": "artwork", "message": "The cover shows a web address"}]'"#;
const NO_ISSUES: &str = "null";

/// One transaction of the platform: its statements, and whether it commits or rolls back. No
/// webhook may report a rollback.
pub struct Transaction {
    pub statements: Vec<String>,
    pub committed: bool,
}

/// What the platform does with one object, such as a release: its transactions in order.
pub type Workflow = Vec<Transaction>;

fn commit(statements: Vec<String>) -> Transaction {
    Transaction {
        statements,
        committed: true,
    }
}

/// Generates workflows and the ids of their rows.
pub struct Scenario {
    next_id: i64,
    workflows: usize,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            next_id: 1_000,
            workflows: 0,
        }
    }
}

impl Scenario {
    /// The users, add-ons, labels and outlets that exist from the start.
    pub fn initial_rows() -> Transaction {
        let mut statements: Vec<String> = Vec::new();
        statements.extend(USERS.map(|user| {
            format!("insert into app_user values ({user}, 'owner{user}@example.com')")
        }));

        for (user, addon) in [
            (1, "preflight_qc"),
            (1, "stream_radar"),
            (2, "stream_radar"),
        ] {
            statements.push(format!(
                "insert into user_addon (user_id, addon) values ({user}, '{addon}')"
            ));
        }

        for (id, user, name) in LABELS {
            statements.push(format!(
                "insert into label (id, user_id, name) values ({id}, {user}, '{name}')"
            ));
        }

        statements
            .extend(OUTLETS.map(|(id, name)| {
                format!("insert into outlet (id, name) values ({id}, '{name}')")
            }));
        commit(statements)
    }

    /// Returns the next workflow. The first two contain every event; the others are random.
    pub fn workflow(&mut self) -> Workflow {
        self.workflows += 1;

        match self.workflows {
            1 => return self.release(LABELS[0].0, &Plan::EVERY_EVENT),
            2 => return self.payment(USERS[0]),
            _ => {}
        }

        match below(20) {
            0..3 => self.payment(*pick(&USERS)),
            3 => addon_granted_and_revoked(USERS[2]),
            _ => self.release(pick(&LABELS).0, &Plan::random()),
        }
    }

    fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// A payment statement is drafted and becomes ready.
    fn payment(&mut self, user: i64) -> Workflow {
        let id = self.id();
        let amount = below(500_000);
        let rate = if one_in(3) { 108 } else { 100 };
        let money = |cents: usize| format!("{}.{:02}", cents / 100, cents % 100);
        let (amount, total) = (money(amount), money(amount * rate / 100));
        let currency = if rate == 100 { "USD" } else { "EUR" };
        let draft = format!(
            "insert into payment (id, user_id, invoice_number, period_end, amount, total_due_usd, currency, status) \
             values ({id}, {user}, 'INV-{id:06}', (date_trunc('month', now()) - interval '1 day')::date, {amount}, \
             {total}, '{currency}', 'draft')"
        );
        let ready = format!("update payment set status = 'ready' where id = {id}");

        vec![commit(vec![draft]), commit(vec![ready])]
    }

    /// A release is drafted, reviewed, transcoded and distributed; with some plans it is flagged or
    /// taken down afterwards.
    fn release(&mut self, label: i64, plan: &Plan) -> Workflow {
        let id = self.id();
        let track = self.id();
        let isrc = format!("QZWAL{:07}", track % 10_000_000);
        let title = format!("{} {}", pick(&ADJECTIVES), pick(&NOUNS));
        let draft = format!(
            "insert into release (id, label_id, cat, title, review_status, delivery_status) \
             values ({id}, {label}, 'WAL{id:05}', '{title}', 'draft', 'pending')"
        );
        let track_row = format!(
            "insert into track (id, release_id, isrc, title) values ({track}, {id}, '{isrc}', '{title}')"
        );
        let mut workflow = vec![commit(vec![draft, track_row])];

        if plan.rolls_back {
            let statements = vec![review(id, "approved", NO_ISSUES)];
            workflow.push(Transaction {
                statements,
                committed: false,
            });
        }

        workflow.extend(self.reviewed(id, plan));

        if plan.rejected {
            return workflow;
        }

        workflow.extend(self.transcoded(track, plan.transcoding_fails));
        workflow.extend(self.distributed(id, plan));

        if plan.flagged {
            workflow.extend(self.flagged(id, track, &isrc));
        }

        if plan.taken_down {
            workflow.extend(self.taken_down(id));
        }

        workflow
    }

    fn reviewed(&mut self, release: i64, plan: &Plan) -> Workflow {
        let hold = format!(
            "update release set review_status = 'to_review', pre_review_hold = true, updated_at = now() where id = {release}"
        );
        let report = format!(
            "insert into preflight_report (id, release_id, generated_at, profile_name, profile_version, blocking, \
             informational, requires_feedback) values ({}, {release}, now(), 'standard', 4, {}, {}, {})",
            self.id(),
            below(3),
            below(9),
            below(2)
        );

        let mut workflow = vec![commit(vec![hold]), commit(vec![report])];

        if plan.needs_changes {
            workflow.push(commit(vec![review(release, "require_changes", ISSUES)]));
            workflow.push(commit(vec![review(release, "to_review", NO_ISSUES)]));
        }

        let (status, issues) = if plan.rejected {
            ("rejected", ISSUES)
        } else {
            ("approved", NO_ISSUES)
        };

        workflow.push(commit(vec![review(release, status, issues)]));
        workflow
    }

    fn transcoded(&mut self, track: i64, fails_first: bool) -> Workflow {
        let outcomes: &[&str] = match (fails_first, one_in(2)) {
            (false, _) => &["complete"],
            (true, true) => &["error", "complete"],
            (true, false) => &["incomplete", "complete"],
        };

        let mut workflow = Vec::new();

        for outcome in outcomes {
            let id = self.id();
            let queued = format!(
                "insert into transcoder_queue (id, track_id, status) values ({id}, {track}, 'queued')"
            );

            workflow.push(commit(vec![queued]));
            let file = |asset_type: i64, file: i64| {
                format!(
                    "insert into transcoder_queue_file values ({file}, {id}, {asset_type}, '{outcome}')"
                )
            };

            let done = format!(
                "update transcoder_queue set status = '{outcome}', updated_at = now() where id = {id}"
            );
            workflow.push(commit(vec![file(1, self.id()), file(2, self.id()), done]));
        }

        workflow
    }

    fn distributed(&mut self, release: i64, plan: &Plan) -> Workflow {
        let first = below(OUTLETS.len());
        let outlets = (0..plan.outlets).map(|step| OUTLETS[(first + step) % OUTLETS.len()].0);
        let mut entries = Vec::new();
        let mut statements = Vec::new();

        for outlet in outlets {
            let id = self.id();
            entries.push(id);
            statements.push(format!(
                "insert into distro_queue (id, release_id, outlet_id, status) values ({id}, {release}, {outlet}, 'scheduled')"
            ));
        }

        let mut workflow = vec![
            commit(statements),
            commit(vec![delivery_status(release, "distributing")]),
        ];

        for status in ["transcoding", "batched"] {
            workflow.extend(
                entries
                    .iter()
                    .map(|id| commit(vec![distribution(*id, status, "null")])),
            );
        }

        let (failing, complete) = entries.split_at(usize::from(plan.an_outlet_fails));
        for id in failing {
            let status = *pick(&["error", "fault", "rejected", "batch_exception"]);
            let message = "'The outlet rejected the artwork: it must be 3000 by 3000 pixels'";
            workflow.push(commit(vec![distribution(*id, status, message)]));
        }

        workflow.extend(
            complete
                .iter()
                .map(|id| commit(vec![distribution(*id, "complete", "null")])),
        );
        workflow.push(commit(vec![delivery_status(release, "distributed")]));

        workflow
    }

    fn taken_down(&mut self, release: i64) -> Workflow {
        let id = self.id();
        let outlet = pick(&OUTLETS).0;
        let request = format!(
            "insert into distro_queue (id, release_id, outlet_id, status, takedown) \
             values ({id}, {release}, {outlet}, 'scheduled', true)"
        );

        vec![
            commit(vec![request]),
            commit(vec![distribution(id, "complete", "null")]),
        ]
    }

    /// A Stream Radar flag is raised, resolved, reopened and resolved again.
    fn flagged(&mut self, release: i64, track: i64, isrc: &str) -> Workflow {
        let id = self.id();
        let dsp = pick(&["spotify", "deezer", "tidal"]);
        let severity = pick(&["low", "medium", "high"]);
        let streams = below(50_000);
        let raised = format!(
            "insert into stream_radar_flag (id, dsp, isrc, release_id, track_id, severity, status, first_detected_at, \
             last_detected_at, estimated_affected_streams, published_at) \
             values ({id}, '{dsp}', '{isrc}', {release}, {track}, '{severity}', 'active', now() - interval '1 day', now(), \
             {streams}, now())"
        );

        let resolved = format!(
            "update stream_radar_flag set status = 'resolved', resolved_at = now() where id = {id}"
        );
        let reopened = format!(
            "update stream_radar_flag set status = 'active', resolved_at = null, last_detected_at = now() where id = {id}"
        );
        [raised, resolved.clone(), reopened, resolved]
            .into_iter()
            .map(|change| commit(vec![change]))
            .collect()
    }
}

/// The optional steps in the workflow of a release.
struct Plan {
    rolls_back: bool,
    needs_changes: bool,
    rejected: bool,
    transcoding_fails: bool,
    outlets: usize,
    an_outlet_fails: bool,
    flagged: bool,
    taken_down: bool,
}

impl Plan {
    const EVERY_EVENT: Plan = Plan {
        rolls_back: true,
        needs_changes: true,
        rejected: false,
        transcoding_fails: true,
        outlets: 2,
        an_outlet_fails: true,
        flagged: true,
        taken_down: true,
    };

    fn random() -> Plan {
        Plan {
            rolls_back: one_in(4),
            needs_changes: one_in(4),
            rejected: one_in(10),
            transcoding_fails: one_in(6),
            outlets: 1 + below(OUTLETS.len()),
            an_outlet_fails: one_in(5),
            flagged: one_in(4),
            taken_down: one_in(5),
        }
    }
}

/// Moves a release to another review status. `issues` is an SQL literal.
fn review(release: i64, status: &str, issues: &str) -> String {
    format!(
        "update release set review_status = '{status}', review_issues = {issues}, pre_review_hold = false, \
         updated_at = now() where id = {release}"
    )
}

fn delivery_status(release: i64, status: &str) -> String {
    format!(
        "update release set delivery_status = '{status}', updated_at = now() where id = {release}"
    )
}

/// Moves an entry of the distribution queue to another status. `message` is an SQL literal.
fn distribution(entry: i64, status: &str, message: &str) -> String {
    format!(
        "update distro_queue set status = '{status}', message = {message}, updated_at = now() where id = {entry}"
    )
}

fn addon_granted_and_revoked(user: i64) -> Workflow {
    let grant = format!(
        "insert into user_addon (user_id, addon) values ({user}, 'preflight_qc') on conflict do nothing"
    );
    let revoke =
        format!("delete from user_addon where user_id = {user} and addon = 'preflight_qc'");
    [grant, revoke]
        .into_iter()
        .map(|change| commit(vec![change]))
        .collect()
}

/// Returns a random number below `limit`, evenly distributed enough for a demonstration.
pub fn below(limit: usize) -> usize {
    usize::from(u16::from_be_bytes(random_bytes())) * limit / (usize::from(u16::MAX) + 1)
}

fn one_in(chances: usize) -> bool {
    below(chances) == 0
}

fn pick<T>(items: &[T]) -> &T {
    &items[below(items.len())]
}
