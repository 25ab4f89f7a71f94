//! What an event is about (label, release, outlet and status), and the filters of webhooks.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind};

impl EventKind {
    /// Returns whether events of this kind belong to a label.
    pub const fn has_label(self) -> bool {
        !matches!(self, EventKind::PaymentStatementReady)
    }

    /// Returns whether events of this kind name an outlet.
    pub const fn has_outlet(self) -> bool {
        matches!(
            self,
            EventKind::DeliveryCompleted
                | EventKind::DeliveryFailed
                | EventKind::TakedownCompleted
                | EventKind::DistributionOutletStatusChanged
        )
    }

    /// Returns the key of `data` that has the status after the change. None for events without a
    /// status.
    pub const fn status_key(self) -> Option<&'static str> {
        match self {
            EventKind::DeliveryCompleted
            | EventKind::DeliveryFailed
            | EventKind::TakedownCompleted
            | EventKind::StreamRadarFlagCreated
            | EventKind::StreamRadarFlagResolved
            | EventKind::TranscodeCompleted
            | EventKind::TranscodeFailed
            | EventKind::DistributionOutletStatusChanged => Some("status"),
            EventKind::ReleaseReviewStatusChanged => Some("new_status"),
            EventKind::ReleaseDistributed => Some("delivery_status"),
            EventKind::ReleasePreflightReportReady | EventKind::PaymentStatementReady => None,
        }
    }
}

/// An event as filters and orderings see it. Its `data` is read when one of them first needs it.
pub struct Subject<'a> {
    kind: EventKind,
    label: Option<i64>,
    data: &'a str,
    fields: OnceCell<SubjectFields<'a>>,
}

/// The keys of `data` that filters and orderings need.
#[derive(Default, Deserialize)]
struct SubjectFields<'a> {
    release_id: Option<i64>,
    outlet_id: Option<i64>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(borrow)]
    new_status: Option<Text<'a>>,
    #[serde(borrow)]
    delivery_status: Option<Text<'a>>,
}

/// A string, borrowed unless it has escapes. (serde does not borrow an `Option<Cow>`.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> From<&'a Event> for Subject<'a> {
    fn from(event: &'a Event) -> Self {
        Subject::new(event.kind, event.label, &event.data)
    }
}

impl<'a> Subject<'a> {
    /// The subject of an event with this label and this `data`, which is JSON.
    pub fn new(kind: EventKind, label: Option<i64>, data: &'a str) -> Subject<'a> {
        Subject {
            kind,
            label,
            data,
            fields: OnceCell::new(),
        }
    }

    fn fields(&self) -> &SubjectFields<'a> {
        // `data` is an object that the catalogue has serialised. An event whose data cannot be read
        // has none of the values.
        self.fields
            .get_or_init(|| serde_json::from_str(self.data).unwrap_or_default())
    }

    /// The release that the event is about. A payment statement, for example, has none.
    pub fn release(&self) -> Option<i64> {
        self.fields().release_id
    }

    fn status(&self) -> Option<&str> {
        let fields = self.fields();
        let status = match self.kind.status_key()? {
            "new_status" => &fields.new_status,
            "delivery_status" => &fields.delivery_status,
            _ => &fields.status,
        };

        status.as_ref().map(|Text(status)| &**status)
    }
}

/// Which of a webhook's events are delivered. A list that is absent lets every event pass.
///
/// Keys that this build does not know are ignored: a newer one may have stored them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_ids: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlet_ids: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statuses: Option<Vec<String>>,
}

impl EventFilter {
    /// Returns whether every event passes.
    pub fn is_empty(&self) -> bool {
        let EventFilter {
            label_ids,
            outlet_ids,
            statuses,
        } = self;
        label_ids.is_none() && outlet_ids.is_none() && statuses.is_none()
    }

    /// Returns whether an event passes: for each list, the event's value is in it. A list does not
    /// apply to kinds of event that have no such value. If the kind has one but the event's is
    /// null, the event does not pass.
    pub fn passes(&self, subject: &Subject<'_>) -> bool {
        let kind = subject.kind;
        let label =
            |ids: &Vec<i64>| !kind.has_label() || subject.label.is_some_and(|id| ids.contains(&id));

        let outlet = |ids: &Vec<i64>| {
            !kind.has_outlet()
                || subject
                    .fields()
                    .outlet_id
                    .is_some_and(|id| ids.contains(&id))
        };

        let status = |statuses: &Vec<String>| {
            kind.status_key().is_none()
                || subject
                    .status()
                    .is_some_and(|own| statuses.iter().any(|status| status == own))
        };

        self.label_ids.as_ref().is_none_or(label)
            && self.outlet_ids.as_ref().is_none_or(outlet)
            && self.statuses.as_ref().is_none_or(status)
    }
}

/// Returns whether a webhook that subscribes to `events` with this filter gets an event. Everything
/// that creates deliveries of events that the webhook has not had asks this.
pub fn is_wanted(
    events: &[EventKind],
    filter: Option<&EventFilter>,
    subject: &Subject<'_>,
) -> bool {
    events.contains(&subject.kind) && filter.is_none_or(|filter| filter.passes(subject))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> EventFilter {
        serde_json::from_str(json).unwrap()
    }

    #[track_caller]
    fn assert_passes(
        expected: bool,
        filter_json: &str,
        kind: EventKind,
        label: Option<i64>,
        data: &str,
    ) {
        let filter = filter(filter_json);
        assert_eq!(
            filter.passes(&Subject::new(kind, label, data)),
            expected,
            "{filter_json} {kind} {label:?} {data}"
        );
    }

    const FAILED: &str = r#"{"outlet_id":12,"status":"rejected","message":"a \"b\""}"#;

    #[test]
    fn an_event_passes_if_each_list_has_its_value() {
        let kind = EventKind::DeliveryFailed;

        for (filter, expected) in [
            ("{}", true),
            (r#"{"label_ids":[1,2]}"#, true),
            (r#"{"label_ids":[2]}"#, false),
            (r#"{"outlet_ids":[12]}"#, true),
            (r#"{"outlet_ids":[1]}"#, false),
            (r#"{"statuses":["error","rejected"]}"#, true),
            (r#"{"statuses":["error"]}"#, false),
            (
                r#"{"label_ids":[1],"outlet_ids":[12],"statuses":["rejected"]}"#,
                true,
            ),
            (
                r#"{"label_ids":[1],"outlet_ids":[13],"statuses":["rejected"]}"#,
                false,
            ),
            (r#"{"a_criterion_of_a_newer_version":[1]}"#, true),
        ] {
            assert_passes(expected, filter, kind, Some(1), FAILED);
        }
    }

    #[test]
    fn a_list_does_not_apply_to_events_without_such_a_value() {
        let payment = EventKind::PaymentStatementReady;
        assert_passes(
            true,
            r#"{"label_ids":[1],"outlet_ids":[1],"statuses":["x"]}"#,
            payment,
            None,
            "{}",
        );

        let review = EventKind::ReleaseReviewStatusChanged;
        let data = r#"{"label_id":1,"previous_status":"draft","new_status":"to_review","review_issues":[{"status":"x"}]}"#;

        assert_passes(
            true,
            r#"{"outlet_ids":[9],"statuses":["to_review"]}"#,
            review,
            Some(1),
            data,
        );

        assert_passes(false, r#"{"statuses":["draft"]}"#, review, Some(1), data);
        let distributed = EventKind::ReleaseDistributed;
        assert_passes(
            true,
            r#"{"statuses":["distributed"]}"#,
            distributed,
            Some(1),
            r#"{"delivery_status":"distributed"}"#,
        );
    }

    #[test]
    fn a_null_is_in_no_list() {
        let kind = EventKind::DeliveryCompleted;
        let data = r#"{"outlet_id":null,"status":"complete"}"#;

        assert_passes(false, r#"{"outlet_ids":[1]}"#, kind, Some(1), data);
        assert_passes(true, r#"{"statuses":["complete"]}"#, kind, Some(1), data);
        assert_passes(false, r#"{"label_ids":[1]}"#, kind, None, data);
    }

    #[test]
    fn a_webhook_gets_only_events_that_it_subscribes_to() {
        let subject = Subject::new(EventKind::DeliveryFailed, Some(1), FAILED);
        let one = filter(r#"{"label_ids":[1]}"#);

        assert!(is_wanted(&[EventKind::DeliveryFailed], None, &subject));
        assert!(is_wanted(
            &[EventKind::DeliveryFailed],
            Some(&one),
            &subject
        ));
        assert!(!is_wanted(
            &[EventKind::DeliveryCompleted],
            Some(&one),
            &subject
        ));
        assert!(!is_wanted(
            &[EventKind::DeliveryFailed],
            Some(&filter(r#"{"label_ids":[2]}"#)),
            &subject
        ));
    }
}
