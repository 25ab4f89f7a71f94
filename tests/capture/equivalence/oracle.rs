//! A second implementation of the rules, on its own tables. It shares no code with the product.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::statements::{issues, time};
use super::workload::{Act, Committed, Entry, Release, ReleaseChange, Workload};

/// An event of the model or of the store.
#[derive(Clone, Debug)]
pub struct RaisedEvent {
    pub kind: String,
    pub user: String,
    pub data: Value,
}

/// What a change of a row's key counts as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyChange {
    Update,
    DeleteAndInsert,
}

struct Flag {
    release: i64,
    status: &'static str,
}

#[derive(Default)]
pub struct Model {
    raised: Vec<RaisedEvent>,
    muted: bool,
    labels: HashMap<i64, Option<i64>>,
    outlets: HashMap<i64, String>,
    addons: HashSet<(i64, &'static str)>,
    /// Including deleted ones, which later events may still refer to.
    releases: HashMap<i64, Release>,
    distributed: HashSet<i64>,
    entries: BTreeMap<i64, Entry>,
    tracks: HashMap<i64, i64>,
    transcodes: HashMap<i64, (i64, &'static str)>,
    files: BTreeMap<i64, (i64, &'static str)>,
    payments: HashMap<i64, (Option<i64>, &'static str)>,
    reports: HashMap<i64, u8>,
    flags: HashMap<i64, Flag>,
}

const SIX: [&str; 6] = [
    "draft",
    "to_review",
    "approved",
    "rejected",
    "require_changes",
    "audit",
];
const FAILURES: [&str; 4] = ["error", "fault", "rejected", "batch_exception"];

impl Model {
    pub fn replay(workload: &Workload, key_change: KeyChange) -> Vec<RaisedEvent> {
        let mut model = Model::default();

        for Committed { acts, muted } in &workload.committed {
            model.muted = *muted;
            acts.iter().for_each(|act| model.act(act, key_change));
        }

        model.raised
    }

    fn raise(&mut self, kind: &str, user: Option<i64>, data: Value) {
        if let (Some(user), false) = (user, self.muted) {
            self.raised.push(RaisedEvent {
                kind: kind.into(),
                user: user.to_string(),
                data,
            });
        }
    }

    fn owner(&self, release: i64) -> Option<i64> {
        self.labels[&self.releases[&release].label]
    }

    fn act(&mut self, act: &Act, key_change: KeyChange) {
        match act {
            Act::Label { id, user } => drop(self.labels.insert(*id, *user)),
            Act::Outlet { id, name } => drop(self.outlets.insert(*id, name.clone())),
            Act::Addon {
                user,
                addon,
                granted: true,
            } => drop(self.addons.insert((*user, addon))),
            Act::Addon { user, addon, .. } => drop(self.addons.remove(&(*user, *addon))),
            Act::NewRelease { id, release } => {
                self.releases.insert(*id, release.clone());
                self.delivered(*id);
            }
            Act::Release { id, change } => self.release(*id, change),
            Act::DropRelease { .. } => {}
            Act::NewEntry { id, entry } => {
                self.entries.insert(*id, entry.clone());
                self.moved(*id, None);
            }
            Act::EntryStatus {
                id,
                status,
                message,
            } => {
                if let (Some(entry), Some(message)) = (self.entries.get_mut(id), message) {
                    entry.message = Some(message.clone());
                }

                self.set_status(*id, status);
            }
            Act::EntryAgain { id, status } => self.set_status(*id, status),
            Act::EntriesStatus { release, status } => {
                let of_release = self
                    .entries
                    .iter()
                    .filter(|(_, entry)| entry.release == *release);
                let ids: Vec<i64> = of_release.map(|(id, _)| *id).collect();
                ids.into_iter().for_each(|id| self.set_status(id, status));
            }
            Act::EntryKey { id, to } => {
                let entry = self.entries.remove(id).expect("it is there");
                self.entries.insert(*to, entry);

                if key_change == KeyChange::DeleteAndInsert {
                    self.moved(*to, None);
                }
            }
            Act::DropEntry { id } => drop(self.entries.remove(id)),
            Act::Track { id, release } => drop(self.tracks.insert(*id, *release)),
            Act::NewTranscode { id, track } => {
                self.transcodes.insert(*id, (*track, "waiting"));
            }
            Act::File {
                id,
                transcode,
                status,
            } => drop(self.files.insert(*id, (*transcode, status))),
            Act::Transcode { id, status } => self.transcode(*id, status),
            Act::NewPayment { id, user, status } => {
                self.payments.insert(*id, (*user, "none"));
                self.payment(*id, status);
            }
            Act::Payment { id, status } => self.payment(*id, status),
            Act::Report {
                id,
                release,
                minute,
                ..
            } => self.report(*id, *release, *minute),
            Act::NewFlag {
                id,
                release,
                status,
            } => {
                self.flags.insert(
                    *id,
                    Flag {
                        release: *release,
                        status: "none",
                    },
                );
                self.flag(*id, status, true);
            }
            Act::Flag { id, status } => self.flag(*id, status, false),
        }
    }

    fn release(&mut self, id: i64, change: &ReleaseChange) {
        let release = self.releases.get_mut(&id).expect("it is there");

        match change {
            ReleaseChange::Review { status, issues } => {
                let previous = std::mem::replace(&mut release.review, status);

                if issues.is_some() {
                    release.issues.clone_from(issues);
                }

                self.reviewed(id, previous);
            }
            ReleaseChange::Delivery(status) => {
                if std::mem::replace(&mut release.delivery, status) != *status {
                    self.delivered(id);
                }
            }
            ReleaseChange::Title(title) => release.title = Some(title.clone()),
            ReleaseChange::Hold(hold) => release.hold = *hold,
            ReleaseChange::Label(label) => release.label = *label,
        }
    }

    fn identity(&self, id: i64) -> Value {
        let release = &self.releases[&id];
        json!({ "release_id": id, "label_id": release.label, "release_cat": format!("C{id}"), "release_title": release.title })
    }

    fn reviewed(&mut self, id: i64, previous: &str) {
        let release = &self.releases[&id];
        let now = release.review;
        if previous == now || !SIX.contains(&previous) || !SIX.contains(&now) {
            return;
        }

        let mut data = self.identity(id);
        data["previous_status"] = previous.into();
        data["new_status"] = now.into();

        if matches!(now, "rejected" | "require_changes") {
            let found = release.issues.as_deref().map_or("[]".into(), issues);
            data["review_issues"] = serde_json::from_str(&found).expect("JSON");
        }

        self.raise("release.review.status_changed", self.owner(id), data);
    }

    fn delivered(&mut self, id: i64) {
        let owner = self.owner(id);
        // Without an owner, no event is raised, and the release may still be distributed for the
        // first time.
        if self.releases[&id].delivery != "distributed"
            || owner.is_none()
            || !self.distributed.insert(id)
        {
            return;
        }

        let mut data = self.identity(id);
        data["delivery_status"] = "distributed".into();
        self.raise("release.distributed", owner, data);
    }

    fn set_status(&mut self, id: i64, status: &'static str) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };

        let previous = std::mem::replace(&mut entry.status, status);
        if previous != status {
            self.moved(id, Some(previous));
        }
    }

    fn moved(&mut self, id: i64, previous: Option<&str>) {
        let entry = self.entries[&id].clone();
        let owner = self.owner(entry.release);
        let release = &self.releases[&entry.release];
        let base = json!({
            "distro_queue_id": id, "release_id": entry.release, "label_id": release.label,
            "release_cat": format!("C{}", entry.release), "outlet_id": entry.outlet,
            "outlet_name": entry.outlet.map(|outlet| self.outlets[&outlet].clone()), "status": entry.status
        });

        if entry.status == "complete" && entry.takedown {
            let mut data = base.clone();
            data["takedown"] = true.into();
            self.raise("takedown.completed", owner, data);
        } else if entry.status == "complete" {
            self.raise("delivery.completed", owner, base.clone());
        } else if FAILURES.contains(&entry.status) {
            let mut data = base.clone();
            data["message"] = entry.message.clone().into();
            self.raise("delivery.failed", owner, data);
        }

        let mut data = base;
        data["previous_status"] = previous.filter(|status| *status != "paused").into();
        self.raise("distribution.outlet.status_changed", owner, data);
    }

    fn transcode(&mut self, id: i64, status: &'static str) {
        let (track, previous) = self.transcodes[&id];
        self.transcodes.insert(id, (track, status));

        if previous == status || status == "waiting" {
            return;
        }

        let release = self.tracks[&track];
        let files = self
            .files
            .values()
            .filter(|(transcode, _)| *transcode == id);
        let files: Vec<Value> = files
            .map(|(_, status)| json!({ "asset_type_id": 4, "status": status }))
            .collect();
        let data = json!({
            "release_id": release, "label_id": self.releases[&release].label, "track_id": track, "transcoder_queue_id": id,
            "status": status, "status_message": format!("transcode_{status}"), "files": files
        });

        let kind = if status == "complete" {
            "transcode.completed"
        } else {
            "transcode.failed"
        };

        self.raise(kind, self.owner(release), data);
    }

    fn payment(&mut self, id: i64, status: &'static str) {
        let (user, previous) = self.payments[&id];
        self.payments.insert(id, (user, status));

        if previous != status && status == "ready" {
            let data = json!({
                "payment_request_id": id, "invoice_number": format!("N{id}"), "period": null, "amount": 10.50,
                "total_due_usd": 11.25, "currency": "USD"
            });
            self.raise("payment.statement_ready", user, data);
        }
    }

    fn report(&mut self, id: i64, release: i64, minute: u8) {
        if self.reports.insert(id, minute) == Some(minute) || !self.releases[&release].hold {
            return;
        }

        let owner = self
            .owner(release)
            .filter(|owner| self.addons.contains(&(*owner, "preflight_qc")));
        let mut data = self.identity(release);

        data["generated_at"] = time(minute).into();
        data["profile"] = json!({ "name": "p", "version": 1 });
        data["counts"] = json!({ "blocking": 2, "informational": 3, "requires_feedback": 4 });
        self.raise("release.preflight.report_ready", owner, data);
    }

    fn flag(&mut self, id: i64, status: &'static str, new: bool) {
        let flag = self.flags.get_mut(&id).expect("it is there");
        let release = flag.release;
        let previous = std::mem::replace(&mut flag.status, status);
        if previous == status
            || status == "hidden"
            || (status == "resolved" && (new || previous != "active"))
        {
            return;
        }

        let owner = self
            .owner(release)
            .filter(|owner| self.addons.contains(&(*owner, "stream_radar")));
        let mut data = json!({
            "flag_id": id, "dsp": "spot", "isrc": "I", "release_id": release, "track_id": null, "severity": "low",
            "status": status, "first_detected_at": null, "last_detected_at": null, "estimated_affected_streams": null,
            "published_at": time(1), "resolved_at": null
        });

        if status == "active" {
            data["transition"] = if previous == "resolved" {
                "reopened"
            } else {
                "published"
            }
            .into();
            self.raise("stream_radar.flag_created", owner, data);
        } else {
            data["resolved_at"] = time(1).into();
            self.raise("stream_radar.flag_resolved", owner, data);
        }
    }
}
