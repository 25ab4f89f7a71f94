//! Times as pages show them: in UTC, for the script to turn into the reader's own.

use std::fmt;

use askama::filters::HtmlSafe;
use jiff::Timestamp;

use crate::domain::time::millis;

/// A point in time, written out.
pub struct Moment {
    at: Timestamp,
    /// Shown as how long ago that was.
    relative_to: Option<Timestamp>,
}

impl Moment {
    pub fn exact(at: Timestamp) -> Moment {
        Moment { at, relative_to: None }
    }

    pub fn relative(at: Timestamp, now: Timestamp) -> Moment {
        Moment { at, relative_to: Some(now) }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (machine, exact) = (millis(self.at), self.at.strftime("%Y-%m-%d %H:%M:%S UTC"));
        match self.relative_to {
            None => write!(f, r#"<time datetime="{machine}">{exact}</time>"#),
            Some(now) => {
                let ago = ago(self.at, now);
                write!(f, r#"<time datetime="{machine}" title="{exact}" data-relative>{ago}</time>"#)
            }
        }
    }
}

impl HtmlSafe for Moment {}

fn ago(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - at.as_second();
    let (number, unit) = match seconds.abs() {
        0..45 => return "just now".to_owned(),
        45..3_570 => ((seconds + 30 * seconds.signum()) / 60, "minute"),
        3_570..84_600 => ((seconds + 1_800 * seconds.signum()) / 3_600, "hour"),
        _ => ((seconds + 43_200 * seconds.signum()) / 86_400, "day"),
    };
    let plural = if number.abs() == 1 { "" } else { "s" };
    match number < 0 {
        true => format!("in {} {unit}{plural}", -number),
        false => format!("{number} {unit}{plural} ago"),
    }
}

/// What was asked for as a field for local times takes it; nothing where that was no time.
pub fn field_of(time: &str) -> String {
    time.parse().map(field).unwrap_or_default()
}

/// As a field for local times takes it.
pub fn field(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let shown = |before: i64| ago(Timestamp::from_second(1_000_000 - before).unwrap(), now);
        assert_eq!(shown(3), "just now");
        assert_eq!(shown(50), "1 minute ago");
        assert_eq!(shown(170), "3 minutes ago");
        assert_eq!(shown(3_600), "1 hour ago");
        assert_eq!(shown(200_000), "2 days ago");
        assert_eq!(shown(-600), "in 10 minutes");
    }
}
