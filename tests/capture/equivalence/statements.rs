//! The SQL of each act.

use super::workload::{Act, Entry, Release, ReleaseChange};

fn quoted(text: Option<&str>) -> String {
    text.map_or("null".into(), |text| format!("'{text}'"))
}

fn number(number: Option<i64>) -> String {
    number.map_or("null".into(), |number| number.to_string())
}

pub fn issues(text: &str) -> String {
    format!(r#"[{{"code": "{text}"}}]"#)
}

pub fn time(minute: u8) -> String {
    format!("2026-03-01T09:{minute:02}:00.125000+00:00")
}

/// Returns the statement, with its semicolon.
pub fn statement(act: &Act) -> String {
    let written = looked_up(act)
        .or_else(|| release(act))
        .or_else(|| entry(act))
        .or_else(|| other(act));
    written.expect("every act is of one of these")
}

fn looked_up(act: &Act) -> Option<String> {
    Some(match act {
        Act::Label { id, user } => {
            let user = number(*user);
            format!(
                "insert into label (id, user_id, name) values ({id}, {user}, 'L')
                 on conflict (id) do update set user_id = {user};"
            )
        }
        Act::Outlet { id, name } => format!(
            "insert into outlet (id, name) values ({id}, '{name}') on conflict (id) do update set name = '{name}';"
        ),
        Act::Addon {
            user,
            addon,
            granted: true,
        } => format!("insert into user_addon values ({user}, '{addon}');"),
        Act::Addon { user, addon, .. } => {
            format!("delete from user_addon where user_id = {user} and addon = '{addon}';")
        }
        Act::Track { id, release } => {
            format!(
                "insert into track (id, release_id, isrc, title) values ({id}, {release}, 'I', 'T');"
            )
        }
        _ => return None,
    })
}

fn release(act: &Act) -> Option<String> {
    Some(match act {
        Act::NewRelease { id, release } => {
            let Release {
                label,
                review,
                delivery,
                hold,
                ..
            } = release;

            let title = quoted(release.title.as_deref());
            let issues = quoted(release.issues.as_deref().map(issues).as_deref());
            format!(
                "insert into release
                    (id, label_id, cat, title, review_status, delivery_status, pre_review_hold, review_issues)
                 values ({id}, {label}, 'C{id}', {title}, '{review}', '{delivery}', {hold}, {issues});"
            )
        }
        Act::Release { id, change } => {
            let set = match change {
                ReleaseChange::Review {
                    status,
                    issues: Some(found),
                } => {
                    format!(
                        "review_status = '{status}', review_issues = '{}'",
                        issues(found)
                    )
                }
                ReleaseChange::Review {
                    status,
                    issues: None,
                } => format!("review_status = '{status}'"),
                ReleaseChange::Delivery(status) => format!("delivery_status = '{status}'"),
                ReleaseChange::Title(title) => format!("title = '{title}'"),
                ReleaseChange::Hold(hold) => format!("pre_review_hold = {hold}"),
                ReleaseChange::Label(label) => format!("label_id = {label}"),
            };
            format!("update release set {set} where id = '{id}';")
        }
        Act::DropRelease { id } => format!("delete from release where id = '{id}';"),
        _ => return None,
    })
}

fn entry(act: &Act) -> Option<String> {
    Some(match act {
        Act::NewEntry { id, entry } => {
            let Entry {
                release,
                status,
                takedown,
                ..
            } = entry;

            let outlet = number(entry.outlet);
            let message = quoted(entry.message.as_deref());
            format!(
                "insert into distro_queue (id, release_id, outlet_id, status, takedown, message)
                 values ({id}, {release}, {outlet}, '{status}', {takedown}, {message});"
            )
        }
        Act::EntryStatus {
            id,
            status,
            message,
        } => {
            let message = message
                .as_ref()
                .map_or(String::new(), |message| format!(", message = '{message}'"));
            format!("update distro_queue set status = '{status}'{message} where id = '{id}';")
        }
        Act::EntriesStatus { release, status } => {
            format!("update distro_queue set status = '{status}' where release_id = {release};")
        }
        Act::EntryAgain { id, status } => format!(
            "with gone as (delete from distro_queue where id = '{id}' returning *)
             insert into distro_queue (id, release_id, outlet_id, status, takedown, message)
             select id, release_id, outlet_id, '{status}', takedown, message from gone;"
        ),
        Act::EntryKey { id, to } => format!("update distro_queue set id = {to} where id = '{id}';"),
        Act::DropEntry { id } => format!("delete from distro_queue where id = '{id}';"),
        _ => return None,
    })
}

fn other(act: &Act) -> Option<String> {
    Some(match act {
        Act::NewTranscode { id, track } => {
            format!(
                "insert into transcoder_queue (id, track_id, status) values ({id}, {track}, 'waiting');"
            )
        }
        Act::File {
            id,
            transcode,
            status,
        } => {
            format!("insert into transcoder_queue_file values ({id}, {transcode}, 4, '{status}');")
        }
        Act::Transcode { id, status } => {
            format!("update transcoder_queue set status = '{status}' where id = '{id}';")
        }
        Act::NewPayment { id, user, status } => {
            let user = quoted(user.map(|user| user.to_string()).as_deref());
            format!(
                "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                 values ({id}, {user}, 'N{id}', 10.50, 11.25, '{status}');"
            )
        }
        Act::Payment { id, status } => {
            format!("update payment set status = '{status}' where id = '{id}';")
        }
        Act::Report {
            id,
            release,
            minute,
            new: true,
        } => {
            format!(
                "insert into preflight_report
                    (id, release_id, generated_at, profile_name, profile_version, blocking, informational, requires_feedback)
                 values ({id}, {release}, '{}', 'p', 1, 2, 3, 4);",
                time(*minute)
            )
        }
        Act::Report { id, minute, .. } => {
            format!(
                "update preflight_report set generated_at = '{}' where id = '{id}';",
                time(*minute)
            )
        }
        Act::NewFlag {
            id,
            release,
            status,
        } => format!(
            "insert into stream_radar_flag
                (id, dsp, isrc, release_id, severity, status, published_at, resolved_at)
             values ({id}, 'SPOT', 'I', {release}, 'low', '{status}', '{0}', '{0}');",
            time(1)
        ),
        Act::Flag { id, status } => {
            format!("update stream_radar_flag set status = '{status}' where id = '{id}';")
        }
        _ => return None,
    })
}
