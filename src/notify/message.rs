//! What the mail says: a text and an HTML part, under a Message-ID that stays the same however often it is sent.

use askama::Template;
use jiff::Timestamp;
use lettre::Message;
use lettre::error::Error;
use lettre::message::header::{Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};

use crate::domain::notice::{Notice, NoticeKind};

/// What all mails have in common.
#[derive(Clone)]
pub struct Letterhead {
    pub from: Mailbox,
    /// `service.name`
    pub service: String,
    /// Where the API is.
    pub base_path: String,
    /// Where browsers reach the user interface, if that is configured.
    pub public_url: Option<String>,
    /// How long events are kept.
    pub retention_days: u32,
}

/// Both parts say the same. The names are those of the templates.
struct Letter<'a> {
    notice: &'a Notice,
    is_disabled: bool,
    name: String,
    /// For people, and for the API.
    at: String,
    since: String,
    head: &'a Letterhead,
}

impl Letter<'_> {
    /// The webhook's page in the user interface.
    fn page(&self) -> Option<String> {
        let origin = self.head.public_url.as_deref()?;
        Some(format!("{origin}/ui/webhooks/{}", self.notice.webhook))
    }
}

#[derive(Template)]
#[template(path = "notice.txt")]
struct Text<'a>(&'a Letter<'a>);

#[derive(Template)]
#[template(path = "notice.html")]
struct Html<'a>(&'a Letter<'a>);

/// An address, with or without a name.
pub fn mailbox(text: &str) -> Option<Mailbox> {
    if text.contains(char::is_control) {
        return None;
    }
    text.parse().ok()
}

pub fn write(notice: &Notice, to: Mailbox, head: &Letterhead) -> Result<Message, Error> {
    let name = one_line(&notice.name);
    let is_disabled = notice.kind == NoticeKind::Disabled;
    let subject = match notice.kind {
        NoticeKind::Disabled => format!("Webhook disabled: {name}"),
        NoticeKind::Warning => format!("Warning: webhook {name} is failing"),
    };
    let since = format(notice.at, "%Y-%m-%dT%H:%M:00Z");
    let letter = Letter { notice, is_disabled, name, at: format(notice.at, "%Y-%m-%d %H:%M UTC"), since, head };
    let text = Text(&letter).render().expect("a String takes everything");
    let html = Html(&letter).render().expect("a String takes everything");
    Message::builder()
        .from(head.from.clone())
        .to(to)
        .subject(subject)
        .message_id(Some(format!("<{}@{}>", notice.id, head.from.email.domain())))
        .header(AutoSubmitted)
        .multipart(MultiPart::alternative_plain_html(text, html))
}

/// A name cannot have control characters; if one ever had, it would still not begin another header.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn format(at: Timestamp, how: &str) -> String {
    at.strftime(how).to_string()
}

/// Nobody wrote this: an absence notice must not be sent in answer to it (RFC 3834).
#[derive(Clone, Copy)]
struct AutoSubmitted;

impl Header for AutoSubmitted {
    fn name() -> HeaderName {
        HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(AutoSubmitted)
    }

    fn display(&self) -> HeaderValue {
        HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::event::UserId;

    fn head() -> Letterhead {
        Letterhead {
            from: mailbox("Example <webhooks@example.com>").unwrap(),
            service: "Example".to_owned(),
            base_path: "/api/public".to_owned(),
            public_url: None,
            retention_days: 30,
        }
    }

    fn notice(kind: NoticeKind, name: &str) -> Notice {
        Notice {
            id: Uuid::from_u128(7),
            kind,
            at: "2026-03-01T09:05:59Z".parse().unwrap(),
            webhook: Uuid::from_u128(8),
            user: UserId("42".into()),
            name: name.to_owned(),
            url: "https://label.example/hooks?a=1&b=<2>".to_owned(),
            reason: "HTTP 500 answers".to_owned(),
            failures: 100,
            threshold: 100,
        }
    }

    fn written(notice: &Notice) -> String {
        let message = write(notice, mailbox("owner@label.example").unwrap(), &head()).unwrap();
        String::from_utf8(message.formatted()).unwrap()
    }

    fn headers(mail: &str) -> Vec<&str> {
        let head = mail.split_once("\r\n\r\n").unwrap().0;
        head.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])).collect()
    }

    #[test]
    fn a_mail_says_what_happened_and_what_to_do() {
        let notice = notice(NoticeKind::Disabled, "Hooks & <co>");
        let letterhead = head();
        let letter = Letter {
            notice: &notice,
            is_disabled: true,
            name: notice.name.clone(),
            at: "2026-03-01 09:05 UTC".to_owned(),
            since: "2026-03-01T09:05:00Z".to_owned(),
            head: &letterhead,
        };
        let (text, html) = (Text(&letter).render().unwrap(), Html(&letter).render().unwrap());
        for part in ["Hooks & <co>", &notice.url, "HTTP 500 answers", "2026-03-01 09:05 UTC", "{\"active\": true}"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(html.contains("Hooks &#38; &#60;co&#62;") && !html.contains("<co>") && !html.contains("<2>"), "{html}");
        let mail = written(&notice);
        assert!(headers(&mail).contains(&"Subject: Webhook disabled: Hooks & <co>"), "{mail}");
        assert!(mail.contains(&format!("Message-ID: <{}@example.com>", notice.id)), "{mail}");
        assert!(mail.contains("Auto-Submitted: auto-generated\r\n"), "{mail}");
        assert!(mail.contains("text/plain") && mail.contains("text/html"), "{mail}");
    }

    #[test]
    fn a_mail_links_to_the_webhook_s_page_where_its_address_is_known() {
        let notice = notice(NoticeKind::Warning, "n");
        let parts = |public_url: Option<&str>| {
            let head = Letterhead { public_url: public_url.map(str::to_owned), ..head() };
            let letter = Letter {
                notice: &notice,
                is_disabled: false,
                name: notice.name.clone(),
                at: String::new(),
                since: String::new(),
                head: &head,
            };
            [Text(&letter).render().unwrap(), Html(&letter).render().unwrap()]
        };
        let page = format!("https://hooks.example/ui/webhooks/{}", notice.webhook);
        let [text, html] = parts(Some("https://hooks.example"));
        assert!(text.contains(&page) && html.contains(&format!("<a href=\"{page}\">")), "{text}\n{html}");
        for part in parts(None) {
            assert!(!part.contains("/ui/"), "{part}");
        }
    }

    #[test]
    fn no_name_begins_a_header() {
        let plain = headers(&written(&notice(NoticeKind::Warning, "n"))).len();
        for name in ["a\r\nBcc: x@y.example", "a\n\nbody", "a\rBcc: b", "\u{85}Bcc: c", "ü\r\nBcc: d", "\0"] {
            let mail = written(&notice(NoticeKind::Warning, name));
            let headers = headers(&mail);
            assert_eq!(headers.len(), plain, "{name:?}: {mail}");
            assert!(!headers.iter().any(|header| header.starts_with("Bcc")), "{name:?}: {mail}");
        }
        assert!(mailbox("a@b.example\r\nBcc: c@d.example").is_none());
        assert!(mailbox("a@b.example, c@d.example").is_none(), "one owner is told, nobody else");
    }
}
