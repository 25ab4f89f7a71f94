//! Composes the mail of a notice: a text and an HTML part, with a Message-ID that stays the same on
//! every try.

use askama::Template;
use jiff::Timestamp;
use lettre::Message;
use lettre::error::Error;
use lettre::message::header::{Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart};

use crate::domain::notice::{Notice, NoticeKind};
use crate::domain::text::is_hidden;

/// The values that are the same in all mails.
#[derive(Clone)]
pub struct MailContext {
    pub from: Mailbox,
    /// `service.name`
    pub service: String,
    /// Base path of the API.
    pub base_path: String,
    /// URL under which browsers reach the web UI, if configured.
    pub public_url: Option<String>,
    /// Days for which events are stored.
    pub retention_days: u32,
}

/// The values that both templates show.
struct Mail<'a> {
    notice: &'a Notice,
    is_disabled: bool,
    name: String,
    at: String,
    /// When a recovery must start, as an argument for the API.
    since: String,
    context: &'a MailContext,
}

impl Mail<'_> {
    /// Returns the URL of the webhook's page in the web UI.
    fn page(&self) -> Option<String> {
        let origin = self.context.public_url.as_deref()?;
        Some(format!("{origin}/ui/webhooks/{}", self.notice.webhook))
    }
}

#[derive(Template)]
#[template(path = "notice.txt")]
struct PlainMail<'a>(&'a Mail<'a>);

#[derive(Template)]
#[template(path = "notice.html")]
struct Html<'a>(&'a Mail<'a>);

/// Parses one e-mail address, with or without a display name.
pub fn mailbox(text: &str) -> Option<Mailbox> {
    if text.contains(char::is_control) {
        return None;
    }

    text.parse().ok()
}

/// Composes the mail of a notice.
pub fn compose(notice: &Notice, to: Mailbox, context: &MailContext) -> Result<Message, Error> {
    let name = one_line(&notice.name);
    let is_disabled = notice.kind == NoticeKind::Disabled;
    let subject = match notice.kind {
        NoticeKind::Disabled => format!("Webhook disabled: {name}"),
        NoticeKind::Warning => format!("Warning: webhook {name} is failing"),
    };

    let since = format(notice.recovery_since(), "%Y-%m-%dT%H:%M:00Z");
    let mail = Mail {
        notice,
        is_disabled,
        name,
        at: format(notice.at, "%Y-%m-%d %H:%M UTC"),
        since,
        context,
    };

    let text = PlainMail(&mail)
        .render()
        .expect("writing to a String cannot fail");
    let html = Html(&mail)
        .render()
        .expect("writing to a String cannot fail");

    Message::builder()
        .from(context.from.clone())
        .to(to)
        .subject(subject)
        .message_id(Some(format!(
            "<{}@{}>",
            notice.id,
            context.from.email.domain()
        )))
        .header(AutoSubmitted)
        .multipart(MultiPart::alternative_plain_html(text, html))
}

/// Replaces control and invisible characters, so that a name can neither start another header nor
/// change how the subject reads. Names are validated, so this is a second defence.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if is_hidden(c) { ' ' } else { c })
        .collect()
}

fn format(at: Timestamp, pattern: &str) -> String {
    at.strftime(pattern).to_string()
}

/// Marks the mail as automatic, so that autoresponders do not reply to it (RFC 3834).
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

    fn context() -> MailContext {
        MailContext {
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
            failing_since: Some("2026-03-01T04:30:10Z".parse().unwrap()),
            webhook: Uuid::from_u128(8),
            user: UserId("42".into()),
            name: name.to_owned(),
            url: "https://label.example/hooks?a=1&b=<2>".to_owned(),
            reason: "HTTP 500 answers".to_owned(),
            failures: 100,
            threshold: 100,
        }
    }

    fn composed(notice: &Notice) -> String {
        let message = compose(notice, mailbox("owner@label.example").unwrap(), &context()).unwrap();
        String::from_utf8(message.formatted()).unwrap()
    }

    fn headers(mail: &str) -> Vec<&str> {
        let head = mail.split_once("\r\n\r\n").unwrap().0;
        head.split("\r\n")
            .filter(|line| !line.starts_with([' ', '\t']))
            .collect()
    }

    #[test]
    fn a_mail_names_the_failure_and_the_next_steps() {
        let notice = notice(NoticeKind::Disabled, "Hooks & <co>");
        let context = context();

        let values = Mail {
            notice: &notice,
            is_disabled: true,
            name: notice.name.clone(),
            at: "2026-03-01 09:05 UTC".to_owned(),
            since: "2026-03-01T09:05:00Z".to_owned(),
            context: &context,
        };

        let text = PlainMail(&values).render().unwrap();
        let html = Html(&values).render().unwrap();

        for part in [
            "Hooks & <co>",
            &notice.url,
            "HTTP 500 answers",
            "2026-03-01 09:05 UTC",
            "{\"active\": true}",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }

        assert!(
            html.contains("Hooks &#38; &#60;co&#62;")
                && !html.contains("<co>")
                && !html.contains("<2>"),
            "{html}"
        );

        let mail = composed(&notice);
        assert!(
            mail.contains("2026-03-01T04:28:00Z"),
            "the first failure: {mail}"
        );
        assert!(
            headers(&mail).contains(&"Subject: Webhook disabled: Hooks & <co>"),
            "{mail}"
        );
        assert!(
            mail.contains(&format!("Message-ID: <{}@example.com>", notice.id)),
            "{mail}"
        );
        assert!(
            mail.contains("Auto-Submitted: auto-generated\r\n"),
            "{mail}"
        );
        assert!(
            mail.contains("text/plain") && mail.contains("text/html"),
            "{mail}"
        );
    }

    #[test]
    fn a_mail_links_to_the_webhook_page_if_the_public_url_is_known() {
        let notice = notice(NoticeKind::Warning, "n");
        let parts = |public_url: Option<&str>| {
            let context = MailContext {
                public_url: public_url.map(str::to_owned),
                ..context()
            };

            let values = Mail {
                notice: &notice,
                is_disabled: false,
                name: notice.name.clone(),
                at: String::new(),
                since: String::new(),
                context: &context,
            };

            [
                PlainMail(&values).render().unwrap(),
                Html(&values).render().unwrap(),
            ]
        };

        let page = format!("https://hooks.example/ui/webhooks/{}", notice.webhook);
        let [text, html] = parts(Some("https://hooks.example"));
        assert!(
            text.contains(&page) && html.contains(&format!("<a href=\"{page}\">")),
            "{text}\n{html}"
        );

        for part in parts(None) {
            assert!(!part.contains("/ui/"), "{part}");
        }
    }

    #[test]
    fn a_name_cannot_inject_a_header() {
        let plain = headers(&composed(&notice(NoticeKind::Warning, "n"))).len();

        for name in [
            "a\r\nBcc: x@y.example",
            "a\n\nbody",
            "a\rBcc: b",
            "\u{85}Bcc: c",
            "ü\r\nBcc: d",
            "\0",
        ] {
            let mail = composed(&notice(NoticeKind::Warning, name));
            let headers = headers(&mail);
            assert_eq!(headers.len(), plain, "{name:?}: {mail}");
            assert!(
                !headers.iter().any(|header| header.starts_with("Bcc")),
                "{name:?}: {mail}"
            );
        }

        assert!(mailbox("a@b.example\r\nBcc: c@d.example").is_none());
        assert!(
            mailbox("a@b.example, c@d.example").is_none(),
            "only one recipient is allowed"
        );
    }
}
