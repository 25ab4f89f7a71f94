//! Formats of times: in UTC, which the script converts to the visitor's time zone.

use std::borrow::Borrow;
use std::fmt;

use askama::filters::HtmlSafe;
use jiff::Timestamp;

use crate::domain::time::millis;

/// A time to the second, as an HTML element.
pub struct Exact<T>(pub T);
/// A time as how long ago it was, as an HTML element.
pub struct Ago<T>(pub T);

impl<T: Borrow<Timestamp>> HtmlSafe for Exact<T> {}
impl<T: Borrow<Timestamp>> HtmlSafe for Ago<T> {}

impl<T: Borrow<Timestamp>> fmt::Display for Exact<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = *self.0.borrow();
        write!(f, r#"<time datetime="{}">{}</time>"#, millis(at), utc(at))
    }
}

impl<T: Borrow<Timestamp>> fmt::Display for Ago<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = *self.0.borrow();
        let ago = ago(at, Timestamp::now());
        write!(
            f,
            r#"<time datetime="{}" title="{}" data-relative>{ago}</time>"#,
            millis(at),
            utc(at)
        )
    }
}

fn utc(at: Timestamp) -> impl fmt::Display {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    let (number, unit) = match seconds.abs() {
        0..45 if seconds < 0 => return "in a moment".to_owned(),
        0..45 => return "just now".to_owned(),
        45..3_570 => ((seconds + 30 * seconds.signum()) / 60, "minute"),
        3_570..84_600 => ((seconds + 1_800 * seconds.signum()) / 3_600, "hour"),
        _ => ((seconds + 43_200 * seconds.signum()) / 86_400, "day"),
    };

    let plural = if number.abs() == 1 { "" } else { "s" };

    if number < 0 {
        format!("in {} {unit}{plural}", -number)
    } else {
        format!("{number} {unit}{plural} ago")
    }
}

/// Formats a time as the value of a `datetime-local` field.
pub fn field(at: impl Borrow<Timestamp>) -> String {
    at.borrow().strftime("%Y-%m-%dT%H:%M").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let shown = |before: i64| ago(Timestamp::from_second(1_000_000 - before).unwrap(), now);

        assert_eq!(shown(3), "just now");
        assert_eq!(shown(-3), "in a moment");
        assert_eq!(shown(50), "1 minute ago");
        assert_eq!(shown(170), "3 minutes ago");
        assert_eq!(shown(3_600), "1 hour ago");
        assert_eq!(shown(200_000), "2 days ago");
        assert_eq!(shown(-600), "in 10 minutes");
    }
}
