//! The order of a webhook's deliveries.

use super::named::named;

named! {
    /// Which deliveries of a webhook wait until those before them have ended.
    pub enum Ordering {
        None = "none",
        /// Those of the same release. Events without a release do not wait.
        Release = "release",
        /// All.
        Strict = "strict",
    }
}

/// The order key of all deliveries of a webhook with [`Ordering::Strict`]. Releases have positive
/// ids.
const STRICT: i64 = 0;

impl Ordering {
    /// Returns the order key of a delivery: those with the same key are delivered one after the
    /// other. `release` returns the release that the event is about.
    pub fn key(self, release: impl FnOnce() -> Option<i64>) -> Option<i64> {
        match self {
            Ordering::None => None,
            Ordering::Release => release(),
            Ordering::Strict => Some(STRICT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::EventKind;
    use crate::domain::subject::Subject;

    #[test]
    fn keys_are_constant_when_strict_and_the_release_s_id_otherwise() {
        let key = |ordering: Ordering, data: &str| {
            ordering.key(|| Subject::new(EventKind::ReleaseDistributed, None, data).release())
        };

        let of_release = r#"{"label_id": 1, "release_id": 20417, "nested": {"release_id": 5}}"#;
        assert_eq!(
            Ordering::ALL
                .iter()
                .map(|ordering| key(*ordering, of_release))
                .collect::<Vec<_>>(),
            [None, Some(20_417), Some(0)]
        );

        for without in [
            "{}",
            r#"{"release_id": null}"#,
            r#"{"release_id": "x"}"#,
            r#"{"nested": {"release_id": 5}}"#,
        ] {
            assert_eq!(
                (
                    key(Ordering::Release, without),
                    key(Ordering::Strict, without)
                ),
                (None, Some(0)),
                "{without}"
            );
        }
    }
}
