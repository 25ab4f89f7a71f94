//! Parses `Retry-After`: a number of seconds, or an HTTP date (RFC 9110, section 10.2.3).

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Returns how long after `now` the receiver asks to wait: zero for a date in the past, and `None`
/// if the value is malformed.
pub fn parse(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than fit are as good as for ever.
        return Some(value.parse().map_or(Duration::MAX, Duration::from_secs));
    }

    let at = httpdate::parse_http_date(value).ok()?;
    Some(
        at.duration_since(SystemTime::from(now))
            .unwrap_or(Duration::ZERO),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_the_three_forms_of_dates_are_understood() {
        let now: Timestamp = "2026-03-01T09:05:00Z".parse().unwrap();
        let seconds = |value: &str| parse(value, now).map(|wait| wait.as_secs());

        assert_eq!((seconds("120"), seconds(" 0 ")), (Some(120), Some(0)));
        assert_eq!(
            seconds("99999999999999999999999"),
            Some(Duration::MAX.as_secs())
        );

        for date in [
            "Sun, 01 Mar 2026 09:06:30 GMT",
            "Sunday, 01-Mar-26 09:06:30 GMT",
            "Sun Mar  1 09:06:30 2026",
        ] {
            assert_eq!(seconds(date), Some(90), "{date}");
        }

        assert_eq!(seconds("Sun, 01 Mar 2026 09:04:59 GMT"), Some(0));

        for malformed in ["", "-1", "1.5", "+3", "soon", "2026-03-01T09:06:30Z", "١"] {
            assert_eq!(seconds(malformed), None, "{malformed}");
        }
    }
}
