//! The words that platforms use for the tables, columns and values of the reference schema, and how
//! a name is compared with them.

use crate::domain::table::Table;

/// A phrase and how much a name says if it is this phrase, between 0 and 1.
type Phrase = (&'static str, f64);

/// Splits a name into its words in lower case and in the singular: `"DistroQueues"`,
/// `distro_queues` and `DISTRO QUEUE` are the same.
pub(super) fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];

    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| letters[before]);
        let after = letters.get(index + 1);
        let starts_word = letter.is_uppercase()
            && (before.is_some_and(|before| before.is_lowercase() || before.is_numeric())
                || (before.is_some_and(char::is_uppercase)
                    && after.is_some_and(|after| after.is_lowercase())));

        if !letter.is_alphanumeric() || starts_word {
            words.push(String::new());
        }

        if letter.is_alphanumeric() {
            let word = words.last_mut().expect("the list is never empty");
            word.extend(letter.to_lowercase());
        }
    }

    words.retain(|word| !word.is_empty());
    words.iter().map(|word| singular(word)).collect()
}

fn singular(word: &str) -> String {
    let keeps_s = ["ss", "us", "is", "as"]
        .iter()
        .any(|end| word.ends_with(end));
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| stem.len() > 2) {
        return format!("{stem}y");
    }

    for end in ["uses", "ches", "shes", "sses", "xes"] {
        if word.ends_with(end) {
            return word[..word.len() - 2].to_owned();
        }
    }

    match word.strip_suffix('s') {
        Some(stem) if !keeps_s && stem.len() > 2 => stem.to_owned(),
        _ => word.to_owned(),
    }
}

/// Returns the form in which values are compared: `In Review`, `IN_REVIEW` and `inReview` are
/// `in_review`.
pub(super) fn value_key(text: &str) -> String {
    words(text).join("_")
}

/// Returns how close a name is to the closest of some phrases, between 0 and 1. Words before the
/// phrase count little, because frameworks and teams write prefixes: `catalog_release`.
pub(super) fn closeness(name: &[String], phrases: &[Phrase]) -> f64 {
    let scores = phrases
        .iter()
        .map(|(phrase, weight)| weight * likeness(name, &words(phrase)));
    scores.fold(0.0, f64::max)
}

fn likeness(name: &[String], phrase: &[String]) -> f64 {
    // Django writes the words of a model's name together: `catalog_distributionjob`.
    let is_together = name.last().is_some_and(|last| *last == phrase.concat());

    if name.concat() == phrase.concat() {
        1.0
    } else if name.ends_with(phrase) || is_together {
        0.88
    } else if name.starts_with(phrase) {
        0.5
    } else if phrase.iter().all(|word| name.contains(word)) {
        0.45
    } else {
        0.0
    }
}

/// Returns a column's name without the ending of a reference: `album_id`, `albumNo` and `fk_album`
/// refer to an album. None if nothing is left.
pub(super) fn referent(name: &[String]) -> Option<Vec<String>> {
    const ENDINGS: [&str; 8] = ["id", "no", "nr", "num", "number", "key", "fk", "ref"];
    let is_ending = |word: &&String| !ENDINGS.contains(&word.as_str());
    let left: Vec<String> = name.iter().filter(is_ending).cloned().collect();
    (!left.is_empty()).then_some(left)
}

/// Returns the phrases for a table's name.
pub(super) fn of_table(table: Table) -> &'static [Phrase] {
    match table {
        Table::Release => &[
            ("release", 1.0),
            ("album", 0.95),
            ("product", 0.7),
            ("project", 0.4),
        ],
        Table::DistroQueue => &[
            ("distro queue", 1.0),
            ("distribution queue", 1.0),
            ("distribution job", 1.0),
            ("distribution", 0.9),
            ("delivery job", 1.0),
            ("delivery queue", 1.0),
            ("release delivery", 1.0),
            ("release distribution", 1.0),
            ("release outlet", 0.9),
            ("release store", 0.9),
            ("delivery", 0.85),
            ("shipment", 0.7),
            ("export", 0.6),
            ("job", 0.5),
        ],
        Table::TranscoderQueue => &[
            ("transcoder queue", 1.0),
            ("transcoding job", 1.0),
            ("transcode job", 1.0),
            ("transcode", 0.95),
            ("transcoding", 0.95),
            ("encode job", 0.95),
            ("encoding job", 0.95),
            ("encoding", 0.85),
            ("conversion", 0.8),
            ("audio job", 0.7),
        ],
        Table::Payment => &[
            ("payment", 1.0),
            ("statement", 1.0),
            ("payment request", 1.0),
            ("royalty statement", 1.0),
            ("payout", 0.95),
            ("invoice", 0.8),
            ("royalty report", 0.8),
            ("withdrawal", 0.7),
        ],
        Table::PreflightReport => &[
            ("preflight report", 1.0),
            ("preflight", 0.95),
            ("qc report", 0.95),
            ("quality report", 0.95),
            ("quality check", 0.9),
            ("validation report", 0.8),
        ],
        Table::StreamRadarFlag => &[
            ("stream radar flag", 1.0),
            ("radar flag", 0.95),
            ("fraud flag", 0.9),
            ("fraud alert", 0.9),
            ("stream anomaly", 0.95),
            ("anomaly", 0.85),
            ("stream flag", 0.95),
            ("stream alert", 0.9),
        ],
        Table::Label => &[
            ("label", 1.0),
            ("imprint", 0.95),
            ("record label", 1.0),
            ("brand", 0.5),
        ],
        Table::Outlet => &[
            ("outlet", 1.0),
            ("dsp", 1.0),
            ("store", 0.95),
            ("retailer", 0.95),
            ("shop", 0.9),
            ("partner", 0.6),
            ("channel", 0.6),
            ("destination", 0.6),
        ],
        Table::Track => &[
            ("track", 1.0),
            ("song", 0.9),
            ("recording", 0.85),
            ("asset", 0.4),
        ],
        Table::TranscoderQueueFile => &[
            ("transcoder queue file", 1.0),
            ("transcode file", 1.0),
            ("transcoded file", 1.0),
            ("transcode output", 0.95),
            ("encoded file", 0.95),
            ("rendition", 0.9),
            ("audio file", 0.5),
        ],
        Table::UserAddon => &[
            ("user addon", 1.0),
            ("addon", 0.95),
            ("user add on", 1.0),
            ("user feature", 0.85),
            ("entitlement", 0.8),
            ("account addon", 0.95),
        ],
        Table::AppUser => &[
            ("user", 1.0),
            ("app user", 1.0),
            ("owner", 0.9),
            ("usr", 0.9),
            ("person", 0.7),
            ("account", 0.7),
            ("member", 0.6),
            ("customer", 0.6),
            ("profile", 0.4),
        ],
    }
}

/// Returns the phrases for a column's name. References to other tables are recognized by
/// [`referent`] instead.
pub(super) fn of_column(table: Table, column: &str) -> &'static [Phrase] {
    const STATUS: &[Phrase] = &[
        ("status", 1.0),
        ("state", 0.95),
        ("phase", 0.6),
        ("stage", 0.6),
    ];

    match (table, column) {
        (Table::Release, "cat") => &[
            ("cat", 1.0),
            ("catalog number", 1.0),
            ("catalogue number", 1.0),
            ("catalog no", 1.0),
            ("catalog ref", 1.0),
            ("catalogue ref", 1.0),
            ("cat no", 1.0),
            ("catalog", 0.7),
            ("reference", 0.6),
            ("upc", 0.5),
            ("sku", 0.5),
            ("barcode", 0.4),
        ],
        (Table::Release, "title") => &[("title", 1.0), ("name", 0.9)],
        (Table::Release, "review_status") => &[
            ("review status", 1.0),
            ("review state", 1.0),
            ("review", 0.9),
            ("moderation status", 0.95),
            ("moderation state", 0.95),
            ("approval status", 0.95),
            ("qc status", 0.8),
            ("status", 0.7),
            ("state", 0.65),
        ],
        (Table::Release, "delivery_status") => &[
            ("delivery status", 1.0),
            ("delivery state", 1.0),
            ("distribution status", 1.0),
            ("distribution state", 1.0),
            ("shipping status", 0.9),
            ("shipping", 0.85),
            ("distribution", 0.8),
            ("delivery", 0.8),
        ],
        (Table::Release, "review_issues") => &[
            ("review issue", 1.0),
            ("issue", 0.9),
            ("problem", 0.9),
            ("review note", 0.7),
            ("rejection reason", 0.8),
        ],
        (Table::Release, "pre_review_hold") => &[
            ("pre review hold", 1.0),
            ("on hold", 0.9),
            ("hold", 0.9),
            ("held", 0.9),
        ],
        (Table::DistroQueue, "takedown") => &[
            ("takedown", 1.0),
            ("is takedown", 1.0),
            ("kind", 0.7),
            ("type", 0.7),
            ("action", 0.7),
            ("operation", 0.7),
            ("job type", 0.7),
        ],
        (Table::DistroQueue, "message") => &[
            ("message", 1.0),
            ("error message", 1.0),
            ("failure reason", 0.95),
            ("last error", 0.95),
            ("error", 0.9),
            ("error text", 0.9),
            ("reason", 0.8),
            ("note", 0.5),
        ],
        (Table::Payment, "invoice_number") => &[
            ("invoice number", 1.0),
            ("invoice no", 1.0),
            ("invoice", 0.9),
            ("statement number", 0.95),
            ("statement no", 0.95),
            ("number", 0.9),
            ("reference", 0.8),
            ("ref", 0.7),
        ],
        (Table::Payment, "period_end") => &[
            ("period end", 1.0),
            ("period to", 0.95),
            ("period ends on", 1.0),
            ("period", 0.8),
            ("end date", 0.8),
            ("ends on", 0.8),
        ],
        (Table::Payment, "amount") => &[
            ("amount", 1.0),
            ("net amount", 0.95),
            ("amount cent", 0.95),
            ("total cent", 0.9),
            ("total", 0.85),
            ("cent", 0.85),
            ("net", 0.6),
        ],
        (Table::Payment, "total_due_usd") => &[
            ("total due usd", 1.0),
            ("amount usd", 0.95),
            ("total usd", 0.95),
            ("usd amount", 0.95),
            ("usd cent", 0.9),
            ("amount usd cent", 0.95),
            ("usd", 0.8),
        ],
        (Table::Payment, "currency") => &[
            ("currency", 1.0),
            ("currency code", 1.0),
            ("iso currency", 0.9),
        ],
        (Table::Payment, "status") => &[
            ("status", 1.0),
            ("state", 0.95),
            ("released", 0.7),
            ("ready", 0.8),
            ("published", 0.7),
        ],
        (Table::PreflightReport, "generated_at") => &[
            ("generated at", 1.0),
            ("completed at", 0.9),
            ("finished at", 0.9),
            ("checked at", 0.85),
            ("created at", 0.4),
        ],
        (Table::PreflightReport, "profile_name") => &[("profile name", 1.0), ("profile", 0.9)],
        (Table::PreflightReport, "profile_version") => &[
            ("profile version", 1.0),
            ("version", 0.8),
            ("revision", 0.8),
        ],
        (Table::PreflightReport, "blocking") => &[
            ("blocking", 1.0),
            ("blocker", 0.9),
            ("error", 0.8),
            ("error count", 0.8),
        ],
        (Table::PreflightReport, "informational") => &[
            ("informational", 1.0),
            ("info", 0.8),
            ("hint", 0.8),
            ("warning", 0.7),
            ("warning count", 0.7),
        ],
        (Table::PreflightReport, "requires_feedback") => &[
            ("require feedback", 1.0),
            ("feedback", 0.8),
            ("question", 0.7),
        ],
        (Table::StreamRadarFlag, "dsp") => &[
            ("dsp", 1.0),
            ("platform", 0.9),
            ("store", 0.7),
            ("outlet", 0.7),
        ],
        (Table::StreamRadarFlag, "isrc") => &[("isrc", 1.0)],
        (Table::StreamRadarFlag, "severity") => &[
            ("severity", 1.0),
            ("level", 0.9),
            ("risk", 0.7),
            ("priority", 0.7),
        ],
        (Table::StreamRadarFlag, "status") => &[
            ("status", 1.0),
            ("state", 0.95),
            ("open", 0.8),
            ("active", 0.8),
            ("resolved", 0.8),
        ],
        (Table::StreamRadarFlag, "first_detected_at") => &[
            ("first detected at", 1.0),
            ("first seen at", 0.95),
            ("first seen", 0.95),
            ("detected at", 0.7),
        ],
        (Table::StreamRadarFlag, "last_detected_at") => &[
            ("last detected at", 1.0),
            ("last seen at", 0.95),
            ("last seen", 0.95),
        ],
        (Table::StreamRadarFlag, "estimated_affected_streams") => &[
            ("estimated affected stream", 1.0),
            ("affected stream", 0.95),
            ("stream", 0.8),
            ("play", 0.8),
            ("stream count", 0.85),
        ],
        (Table::StreamRadarFlag, "published_at") => &[
            ("published at", 1.0),
            ("raised at", 0.95),
            ("flagged at", 0.9),
            ("created at", 0.7),
            ("created", 0.6),
            ("detected at", 0.5),
        ],
        (Table::StreamRadarFlag, "resolved_at") => &[
            ("resolved at", 1.0),
            ("closed at", 0.95),
            ("cleared at", 0.9),
        ],
        (Table::Outlet, "name") => &[
            ("name", 1.0),
            ("display name", 1.0),
            ("title", 0.9),
            ("slug", 0.5),
            ("code", 0.4),
        ],
        (Table::TranscoderQueueFile, "asset_type_id") => &[
            ("asset type id", 1.0),
            ("asset type", 0.95),
            ("format id", 0.9),
            ("format", 0.8),
            ("type id", 0.7),
        ],
        (Table::UserAddon, "addon") => &[
            ("addon", 1.0),
            ("add on", 1.0),
            ("feature", 0.9),
            ("module", 0.7),
            ("name", 0.6),
            ("code", 0.6),
        ],
        (Table::AppUser, "email") => &[("email", 1.0), ("email address", 1.0), ("mail", 0.9)],
        (_, "status") => STATUS,
        _ => &[],
    }
}

/// Returns the meanings of a column's values with the words that platforms use for them.
pub(super) fn meanings(
    table: Table,
    column: &str,
) -> &'static [(&'static str, &'static [&'static str])] {
    match (table, column) {
        (Table::Release, "review_status") => &[
            (
                "draft",
                &[
                    "draft",
                    "new",
                    "created",
                    "incomplete",
                    "in_progress",
                    "editing",
                ],
            ),
            (
                "to_review",
                &[
                    "to_review",
                    "in_review",
                    "review",
                    "pending_review",
                    "submitted",
                    "pending",
                    "awaiting_review",
                    "under_review",
                    "waiting_for_review",
                    "ready_for_review",
                ],
            ),
            (
                "approved",
                &[
                    "approved",
                    "accepted",
                    "ok",
                    "passed",
                    "published",
                    "live",
                    "distributed",
                    "delivered",
                    "released",
                ],
            ),
            ("rejected", &["rejected", "refused", "declined", "denied"]),
            (
                "require_changes",
                &[
                    "require_changes",
                    "requires_changes",
                    "changes_requested",
                    "needs_changes",
                    "changes_required",
                    "changes",
                    "action_required",
                    "needs_work",
                ],
            ),
            (
                "audit",
                &[
                    "audit",
                    "in_audit",
                    "auditing",
                    "manual_review",
                    "compliance",
                ],
            ),
        ],
        (Table::Release, "delivery_status") => &[(
            "distributed",
            &[
                "distributed",
                "delivered",
                "live",
                "released",
                "shipped",
                "complete",
                "completed",
                "published",
            ],
        )],
        (Table::DistroQueue, "status") => &[
            (
                "scheduled",
                &[
                    "scheduled",
                    "pending",
                    "queued",
                    "new",
                    "waiting",
                    "created",
                    "open",
                ],
            ),
            ("transcoding", &["transcoding", "encoding", "converting"]),
            ("batched", &["batched", "packaged", "packaging", "batch"]),
            (
                "complete",
                &[
                    "complete",
                    "completed",
                    "delivered",
                    "done",
                    "success",
                    "succeeded",
                    "finished",
                    "live",
                    "ok",
                ],
            ),
            ("error", &["error", "failed", "failure", "errored"]),
            (
                "fault",
                &["fault", "faulted", "exception", "crashed", "internal_error"],
            ),
            ("rejected", &["rejected", "refused", "declined"]),
            (
                "batch_exception",
                &["batch_exception", "batch_error", "batch_failed"],
            ),
        ],
        (Table::TranscoderQueue | Table::TranscoderQueueFile, "status") => &[
            (
                "complete",
                &[
                    "complete",
                    "completed",
                    "done",
                    "success",
                    "succeeded",
                    "finished",
                    "ok",
                ],
            ),
            ("error", &["error", "failed", "failure", "errored"]),
            (
                "incomplete",
                &[
                    "incomplete",
                    "partial",
                    "partially_completed",
                    "partially_complete",
                ],
            ),
        ],
        (Table::Payment, "status") => &[(
            "ready",
            &[
                "ready",
                "issued",
                "available",
                "published",
                "released",
                "finalized",
                "finalised",
                "generated",
            ],
        )],
        (Table::StreamRadarFlag, "status") => &[
            (
                "active",
                &[
                    "active", "open", "opened", "new", "flagged", "raised", "detected",
                ],
            ),
            (
                "resolved",
                &["resolved", "closed", "cleared", "dismissed", "done"],
            ),
        ],
        (Table::StreamRadarFlag, "severity") => &[
            ("low", &["low", "minor", "info"]),
            ("medium", &["medium", "moderate", "warning", "mid"]),
            ("high", &["high", "critical", "severe", "major"]),
        ],
        (Table::DistroQueue, "takedown") => &[
            (
                "true",
                &[
                    "takedown",
                    "remove",
                    "removal",
                    "delete",
                    "deletion",
                    "withdraw",
                    "withdrawal",
                    "y",
                    "yes",
                    "1",
                ],
            ),
            (
                "false",
                &[
                    "delivery",
                    "deliver",
                    "insert",
                    "initial",
                    "update",
                    "new",
                    "distribute",
                    "distribution",
                    "metadata_update",
                    "n",
                    "no",
                    "0",
                ],
            ),
        ],
        (Table::Release, "pre_review_hold") => &[
            ("true", &["y", "yes", "on", "held", "hold", "1"]),
            ("false", &["n", "no", "off", "0"]),
        ],
        (Table::UserAddon, "addon") => &[
            (
                "preflight_qc",
                &["preflight_qc", "preflight", "qc", "quality_check"],
            ),
            (
                "stream_radar",
                &[
                    "stream_radar",
                    "radar",
                    "fraud_detection",
                    "stream_monitoring",
                ],
            ),
        ],
        _ => &[],
    }
}

/// Returns the times that say that something has happened, for a status that no column has, with
/// what a time and a null mean.
pub(super) fn times(
    table: Table,
    column: &str,
) -> Option<(&'static [Phrase], &'static str, &'static str)> {
    match (table, column) {
        (Table::Release, "delivery_status") => Some((
            &[
                ("distributed at", 1.0),
                ("delivered at", 0.9),
                ("live at", 0.8),
                ("published at", 0.6),
            ],
            "distributed",
            "pending",
        )),
        (Table::DistroQueue, "status") => Some((
            &[
                ("completed at", 1.0),
                ("delivered at", 1.0),
                ("finished at", 0.9),
                ("done at", 0.9),
            ],
            "complete",
            "scheduled",
        )),
        (Table::Payment, "status") => Some((
            &[
                ("ready at", 1.0),
                ("issued at", 1.0),
                ("published at", 0.9),
                ("released at", 0.9),
                ("generated at", 0.8),
            ],
            "ready",
            "draft",
        )),
        (Table::StreamRadarFlag, "status") => Some((
            &[
                ("resolved at", 1.0),
                ("closed at", 0.95),
                ("cleared at", 0.9),
            ],
            "resolved",
            "active",
        )),
        _ => None,
    }
}

/// Returns whether a column marks deleted rows, and the condition that other rows meet.
pub(super) fn soft_deletion(name: &str, is_time: bool, is_boolean: bool) -> Option<&'static str> {
    const TIMES: &[Phrase] = &[
        ("deleted at", 1.0),
        ("deleted", 1.0),
        ("discarded at", 1.0),
        ("removed at", 0.9),
        ("deleted on", 1.0),
    ];
    const MARKS: &[Phrase] = &[("is deleted", 1.0), ("deleted", 1.0), ("is removed", 1.0)];
    let words = words(name);

    if is_time && closeness(&words, TIMES) >= 0.9 {
        Some(r#""null""#)
    } else if is_boolean && closeness(&words, MARKS) >= 0.9 {
        Some("false")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_frameworks_have_the_same_words() {
        for name in [
            "distro_queues",
            "DistroQueue",
            "distroQueues",
            "DISTRO_QUEUE",
            "distro queue",
        ] {
            assert_eq!(words(name), ["distro", "queue"], "{name}");
        }

        assert_eq!(words("releaseUPC2"), ["release", "upc2"]);
        assert_eq!(words("HTTPStatuses"), ["http", "status"]);
        assert_eq!(words("companies"), ["company"]);

        for value in ["In Review", "IN_REVIEW", "in-review", "inReview"] {
            assert_eq!(value_key(value), "in_review", "{value}");
        }
    }

    #[test]
    fn a_prefix_is_closer_than_another_ending() {
        let close = |name: &str| closeness(&words(name), of_table(Table::Release));
        assert!(close("releases") > close("catalog_release"));
        assert!(close("catalog_release") > close("release_notes"));
        assert!(close("oauth_tokens") < 0.1);

        let job = closeness(
            &words("catalog_distributionjob"),
            of_table(Table::DistroQueue),
        );
        assert!(job > 0.8, "{job}");
        assert_eq!(referent(&words("albumNo")), Some(vec!["album".to_owned()]));
        assert_eq!(referent(&words("id")), None);
    }
}
