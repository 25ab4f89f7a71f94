//! Random transactions, recorded as SQL and as acts.

use super::statements::statement;
use crate::support::random::Random;

/// The effect of one statement, as far as events depend on it.
#[derive(Clone, Debug)]
pub enum Act {
    Label {
        id: i64,
        user: Option<i64>,
    },
    Outlet {
        id: i64,
        name: String,
    },
    Addon {
        user: i64,
        addon: &'static str,
        granted: bool,
    },
    NewRelease {
        id: i64,
        release: Release,
    },
    Release {
        id: i64,
        change: ReleaseChange,
    },
    DropRelease {
        id: i64,
    },
    NewEntry {
        id: i64,
        entry: Entry,
    },
    EntryStatus {
        id: i64,
        status: &'static str,
        message: Option<String>,
    },
    /// All entries of a release.
    EntriesStatus {
        release: i64,
        status: &'static str,
    },
    /// Deletes the entry and inserts it again in the same transaction.
    EntryAgain {
        id: i64,
        status: &'static str,
    },
    EntryKey {
        id: i64,
        to: i64,
    },
    DropEntry {
        id: i64,
    },
    Track {
        id: i64,
        release: i64,
    },
    NewTranscode {
        id: i64,
        track: i64,
    },
    File {
        id: i64,
        transcode: i64,
        status: &'static str,
    },
    Transcode {
        id: i64,
        status: &'static str,
    },
    NewPayment {
        id: i64,
        user: Option<i64>,
        status: &'static str,
    },
    Payment {
        id: i64,
        status: &'static str,
    },
    Report {
        id: i64,
        release: i64,
        minute: u8,
        new: bool,
    },
    NewFlag {
        id: i64,
        release: i64,
        status: &'static str,
    },
    Flag {
        id: i64,
        status: &'static str,
    },
}

#[derive(Clone, Debug)]
pub struct Release {
    pub label: i64,
    pub title: Option<String>,
    pub review: &'static str,
    pub delivery: &'static str,
    pub hold: bool,
    pub issues: Option<String>,
}

#[derive(Clone, Debug)]
pub enum ReleaseChange {
    Review {
        status: &'static str,
        issues: Option<String>,
    },
    Delivery(&'static str),
    Title(String),
    Hold(bool),
    Label(i64),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub release: i64,
    pub outlet: Option<i64>,
    pub status: &'static str,
    pub takedown: bool,
    pub message: Option<String>,
}

/// The acts of one committed transaction, without those that were rolled back to a savepoint.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    pub acts: Vec<Act>,
    pub muted: bool,
}

pub struct Workload {
    /// The SQL of each transaction, including those that are rolled back.
    pub transactions: Vec<String>,
    pub committed: Vec<Committed>,
}

const REVIEW: [&str; 7] = [
    "draft",
    "to_review",
    "approved",
    "rejected",
    "require_changes",
    "audit",
    "lost",
];
const DELIVERY: [&str; 3] = ["pending", "distributed", "withdrawn"];
const ENTRY: [&str; 10] = [
    "scheduled",
    "transcoding",
    "batched",
    "complete",
    "complete",
    "error",
    "fault",
    "rejected",
    "batch_exception",
    "paused",
];
const TRANSCODE: [&str; 4] = ["waiting", "complete", "error", "incomplete"];
const ADDONS: [&str; 2] = ["preflight_qc", "stream_radar"];
const FLAG: [&str; 3] = ["active", "resolved", "hidden"];
const USERS: i64 = 12;
const LABELS: i64 = 30;
const OUTLETS: i64 = 8;

/// The ids of existing rows, to choose from.
#[derive(Clone, Default)]
struct Rows {
    releases: Vec<i64>,
    entries: Vec<i64>,
    tracks: Vec<i64>,
    transcodes: Vec<i64>,
    payments: Vec<i64>,
    reports: Vec<(i64, i64)>,
    flags: Vec<i64>,
    addons: Vec<(i64, &'static str)>,
}

struct Recorder {
    random: Random,
    rows: Rows,
    next: i64,
}

impl Workload {
    pub fn record(seed: u64, transactions: usize) -> Workload {
        let mut recorder = Recorder {
            random: Random::new(seed),
            rows: Rows::default(),
            next: 1_000,
        };

        let mut workload = Workload {
            transactions: Vec::new(),
            committed: Vec::new(),
        };

        workload.push("begin;", recorder.beginning(), "commit;");

        for _ in 0..transactions {
            recorder.transaction(&mut workload);
        }

        workload.transactions.push(
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
             values (1, 'last', 'I', 1, 1, 'ready');"
                .into(),
        );
        workload
    }

    fn push(&mut self, begin: &str, acts: Vec<Act>, end: &str) {
        let mut text = begin.to_owned();
        acts.iter().for_each(|act| text.push_str(&statement(act)));
        self.transactions.push(text + end);
        self.committed.push(Committed { acts, muted: false });
    }
}

impl Recorder {
    /// Inserts the labels and outlets: the stream shows them before other rows refer to them.
    fn beginning(&mut self) -> Vec<Act> {
        let labels = (1..=LABELS).map(|id| Act::Label {
            id: -id,
            user: Some(id % USERS + 1),
        });

        let outlets = (1..=OUTLETS).map(|id| Act::Outlet {
            id: -id,
            name: format!("Outlet {id}"),
        });

        labels.chain(outlets).collect()
    }

    fn transaction(&mut self, workload: &mut Workload) {
        let before = self.rows.clone();
        let mut text = String::from("begin;");
        let muted = self.random.percent(3);
        if muted {
            text.push_str("select pg_logical_emit_message(true, 'walhook', 'mute'); set local walhook.mute = 'on';");
        }

        let mut acts = Vec::new();

        for _ in 0..=self.random.below(3) {
            let undone = self.random.percent(10).then(|| self.rows.clone());
            if undone.is_some() {
                text.push_str("savepoint s;");
            }

            let act = self.act();
            text.push_str(&statement(&act));

            match undone {
                Some(rows) => {
                    text.push_str("rollback to s;");
                    self.rows = rows;
                }
                None => acts.push(act),
            }
        }

        if self.random.percent(8) {
            self.rows = before;
            workload.transactions.push(text + "rollback;");
        } else {
            workload.transactions.push(text + "commit;");
            workload.committed.push(Committed { acts, muted });
        }
    }

    fn id(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    fn label(&mut self) -> i64 {
        -(self.random.below(LABELS as usize) as i64 + 1)
    }

    fn user(&mut self) -> i64 {
        self.random.below(USERS as usize) as i64 + 1
    }

    fn act(&mut self) -> Act {
        match self.random.below(100) {
            0..10 => self.new_release(),
            10..30 => self.change_release(),
            30..42 => self.new_entry(),
            42..66 => self.change_entry(),
            66..72 => self.lookup(),
            72..82 => self.transcode(),
            82..88 => self.payment(),
            88..94 => self.report(),
            _ => self.flag(),
        }
    }

    fn new_release(&mut self) -> Act {
        let id = self.id();
        self.rows.releases.push(id);

        let release = Release {
            label: self.label(),
            title: self.random.percent(90).then(|| self.random.text()),
            review: self.random.of(&REVIEW),
            delivery: if self.random.percent(5) {
                "distributed"
            } else {
                "pending"
            },
            hold: self.random.percent(50),
            issues: self.random.percent(30).then(|| self.random.text()),
        };

        Act::NewRelease { id, release }
    }

    fn change_release(&mut self) -> Act {
        if self.rows.releases.is_empty() {
            return self.new_release();
        }

        let at = self.random.below(self.rows.releases.len());
        let id = self.rows.releases[at];

        let change = match self.random.below(20) {
            0..10 => {
                let issues = self.random.percent(30).then(|| self.random.text());
                ReleaseChange::Review {
                    status: self.random.of(&REVIEW),
                    issues,
                }
            }
            10..14 => ReleaseChange::Delivery(self.random.of(&DELIVERY)),
            14..16 => ReleaseChange::Title(self.random.text()),
            16 => ReleaseChange::Hold(self.random.percent(50)),
            17..19 => ReleaseChange::Label(self.label()),
            _ => {
                self.rows.releases.remove(at);
                return Act::DropRelease { id };
            }
        };

        Act::Release { id, change }
    }

    fn new_entry(&mut self) -> Act {
        if self.rows.releases.is_empty() {
            return self.new_release();
        }

        let id = self.id();
        self.rows.entries.push(id);

        let outlet = -(self.random.below(OUTLETS as usize) as i64 + 1);
        let entry = Entry {
            release: self.random.of(&self.rows.releases.clone()),
            outlet: self.random.percent(90).then_some(outlet),
            status: self.random.of(&ENTRY),
            takedown: self.random.percent(20),
            message: self.random.percent(50).then(|| self.random.text()),
        };

        Act::NewEntry { id, entry }
    }

    fn change_entry(&mut self) -> Act {
        if self.rows.entries.is_empty() {
            return self.new_entry();
        }

        let at = self.random.below(self.rows.entries.len());
        let id = self.rows.entries[at];

        match self.random.below(26) {
            24.. => Act::EntryAgain {
                id,
                status: self.random.of(&ENTRY),
            },
            0..18 => {
                let message = self.random.percent(30).then(|| self.random.text());
                Act::EntryStatus {
                    id,
                    status: self.random.of(&ENTRY),
                    message,
                }
            }
            18..21 if !self.rows.releases.is_empty() => {
                let release = self.random.of(&self.rows.releases.clone());
                Act::EntriesStatus {
                    release,
                    status: self.random.of(&ENTRY),
                }
            }
            21 => {
                let to = self.id();
                self.rows.entries[at] = to;
                Act::EntryKey { id, to }
            }
            _ => {
                self.rows.entries.remove(at);
                Act::DropEntry { id }
            }
        }
    }

    fn lookup(&mut self) -> Act {
        match self.random.below(6) {
            0..2 => Act::Label {
                id: self.label(),
                user: if self.random.percent(90) {
                    Some(self.user())
                } else {
                    None
                },
            },
            2 => {
                let id = -(self.random.below(OUTLETS as usize) as i64 + 1);
                Act::Outlet {
                    id,
                    name: self.random.text(),
                }
            }
            _ => {
                let user = self.user();
                let addon = self.random.of(&ADDONS);
                let known = self
                    .rows
                    .addons
                    .iter()
                    .position(|have| *have == (user, addon));

                match known {
                    Some(at) => drop(self.rows.addons.remove(at)),
                    None => self.rows.addons.push((user, addon)),
                }

                Act::Addon {
                    user,
                    addon,
                    granted: known.is_none(),
                }
            }
        }
    }

    fn transcode(&mut self) -> Act {
        let id = self.id();

        match self.random.below(4) {
            0 if !self.rows.releases.is_empty() => {
                self.rows.tracks.push(id);
                Act::Track {
                    id,
                    release: self.random.of(&self.rows.releases.clone()),
                }
            }
            1 if !self.rows.tracks.is_empty() => {
                self.rows.transcodes.push(id);
                Act::NewTranscode {
                    id,
                    track: self.random.of(&self.rows.tracks.clone()),
                }
            }
            2 if !self.rows.transcodes.is_empty() => {
                let transcode = self.random.of(&self.rows.transcodes.clone());
                Act::File {
                    id,
                    transcode,
                    status: self.random.of(&TRANSCODE),
                }
            }
            _ if !self.rows.transcodes.is_empty() => Act::Transcode {
                id: self.random.of(&self.rows.transcodes.clone()),
                status: self.random.of(&TRANSCODE),
            },
            _ => self.new_release(),
        }
    }

    fn payment(&mut self) -> Act {
        let status = self.random.of(&["open", "ready", "paid"]);

        if self.rows.payments.is_empty() || self.random.percent(50) {
            let id = self.id();
            self.rows.payments.push(id);

            let user = if self.random.percent(95) {
                Some(self.user())
            } else {
                None
            };

            return Act::NewPayment { id, user, status };
        }

        Act::Payment {
            id: self.random.of(&self.rows.payments.clone()),
            status,
        }
    }

    fn report(&mut self) -> Act {
        let minute = self.random.below(60) as u8;

        if self.rows.releases.is_empty() {
            return self.new_release();
        }

        if self.rows.reports.is_empty() || self.random.percent(50) {
            let id = self.id();
            let release = self.random.of(&self.rows.releases.clone());
            self.rows.reports.push((id, release));
            return Act::Report {
                id,
                release,
                minute,
                new: true,
            };
        }

        let (id, release) = self.random.of(&self.rows.reports.clone());
        Act::Report {
            id,
            release,
            minute,
            new: false,
        }
    }

    fn flag(&mut self) -> Act {
        let status = self.random.of(&FLAG);

        if self.rows.releases.is_empty() {
            return self.new_release();
        }

        if self.rows.flags.is_empty() || self.random.percent(40) {
            let id = self.id();
            self.rows.flags.push(id);
            return Act::NewFlag {
                id,
                release: self.random.of(&self.rows.releases.clone()),
                status,
            };
        }

        Act::Flag {
            id: self.random.of(&self.rows.flags.clone()),
            status,
        }
    }
}
