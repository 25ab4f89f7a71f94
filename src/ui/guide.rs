//! The receiver's guide: `docs/receivers.md` in pages, with the settings of this platform and the
//! ID of the user's webhook.

use askama::Template;
use axum::extract::Path;
use axum::response::Response;
use jiff::SignedDuration;
use pulldown_cmark::html::push_html;
use pulldown_cmark::{Event, Options, Parser, Tag};
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::Count;
use super::page::{Frame, Section, page};
use super::verify::{SNIPPETS, Snippet};
use super::visit::Visit;
use crate::config::{Config, DisablePolicy};
use crate::manage::Webhook;

const TEXT: &str = include_str!("../../docs/receivers.md");
/// Between these lines, the text has functions that the page shows in more languages.
const SNIPPETS_BEGIN: &str = "<!-- The web UI shows these functions in more languages. -->";
const SNIPPETS_END: &str = "<!-- End of the functions. -->";
/// The webhook of the examples.
const EXAMPLE_WEBHOOK: &str = "0195512d-7c6c-7a3e-b1a4-0d6f5c1f8a11";
const WEBHOOK_VARIABLE: &str = "$WEBHOOK";
/// The other documents and the complete receivers, as of this build.
const SOURCE: &str = concat!(
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/v",
    env!("CARGO_PKG_VERSION"),
    "/docs/"
);

/// The guide, rendered once.
pub struct Guide {
    /// The settings that receivers notice.
    facts: Vec<(&'static str, String)>,
    chapters: Vec<Chapter>,
}

struct Chapter {
    slug: String,
    title: &'static str,
    html: String,
    /// What follows the functions that verify a delivery. None if the chapter has none.
    after_snippets: Option<String>,
}

impl Guide {
    /// `base_path` is that of the API, without a trailing slash.
    pub fn new(config: &Config, base_path: &str) -> Guide {
        let chapters = || {
            TEXT.split("\n## ")
                .skip(1)
                .filter_map(|text| text.split_once('\n'))
        };
        let anchors: Vec<(String, String)> = chapters()
            .flat_map(|(title, text)| anchors(&slug(title), text))
            .collect();
        let link = |link: &str| target(link, base_path, &anchors);

        let chapter = |(title, text): (&'static str, &str)| {
            let (before, after) = match text.split_once(SNIPPETS_BEGIN) {
                Some((before, rest)) => (before, rest.split_once(SNIPPETS_END)),
                None => (text, None),
            };

            Chapter {
                slug: slug(title),
                title,
                html: html(before, base_path, link),
                after_snippets: after.map(|(_, after)| html(after, base_path, link)),
            }
        };

        Guide {
            facts: facts(config),
            chapters: chapters().map(chapter).collect(),
        }
    }
}

/// Returns the name of a heading in links, as GitHub makes it.
fn slug(title: &str) -> String {
    let kept = title
        .chars()
        .filter(|c| c.is_alphanumeric() || " -".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns each name in a chapter that can be linked to, with its path below the guide.
fn anchors(chapter: &str, text: &str) -> Vec<(String, String)> {
    let headings = text.lines().filter_map(|line| line.strip_prefix("### "));
    let mut anchors = vec![(chapter.to_owned(), chapter.to_owned())];

    anchors.extend(headings.map(slug).map(|name| {
        let path = format!("{chapter}#{name}");
        (name, path)
    }));
    anchors
}

/// Returns the target of a link in the document.
fn target(link: &str, base_path: &str, anchors: &[(String, String)]) -> String {
    let anchor = link.strip_prefix('#').and_then(|name| {
        let found = anchors.iter().find(|(anchor, _)| anchor == name);
        found.map(|(_, path)| format!("/ui/guide/{path}"))
    });

    match (anchor, link) {
        (Some(path), _) => path,
        (None, "asyncapi.json" | "openapi.json") => format!("{base_path}/{link}"),
        (None, link) if link.starts_with("https://") => link.to_owned(),
        (None, link) if link.starts_with("api.md") => format!("{base_path}/docs"),
        (None, link) => format!("{SOURCE}{link}"),
    }
}

/// Renders a part of a chapter. Its headings move up, because the page has the chapter's.
fn html(text: &str, base_path: &str, link: impl Fn(&str) -> String) -> String {
    let text = text.replace("/api/public", base_path);
    let line = |line: &str| match line.strip_prefix("### ") {
        Some(title) => format!("## {title} {{#{}}}\n", slug(title)),
        None => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();

    let options = Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES;
    let events = Parser::new_ext(&text, options).map(|event| match event {
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Link {
            link_type,
            dest_url: link(&dest_url).into(),
            title,
            id,
        }),
        event => event,
    });

    let mut html = String::new();
    push_html(&mut html, events);

    // What scrolls can be reached with the keyboard. Pages of others are not shown in a frame.
    html.replace(
        "<table>",
        "<div class=\"scroll\" tabindex=\"0\"><table class=\"plain-table\">",
    )
    .replace("</table>", "</table></div>")
    .replace("<th></th>", "<td></td>")
    .replace("<pre>", "<pre tabindex=\"0\">")
    .replace(
        "<a href=\"https://",
        "<a target=\"_blank\" rel=\"noreferrer\" href=\"https://",
    )
}

fn facts(config: &Config) -> Vec<(&'static str, String)> {
    let duration = |duration| {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        format!("{duration:#}")
    };

    let delivery = &config.delivery;
    let waits: Vec<String> = delivery
        .retry_schedule
        .iter()
        .map(|wait| duration(wait.0))
        .collect();
    let counted = match config.disable.policy {
        DisablePolicy::Consecutive => "in a row",
        DisablePolicy::Cumulative => "in total",
    };
    let yes_or_no = |is_on| if is_on { "Yes" } else { "No" }.to_owned();

    vec![
        ("Response timeout", duration(delivery.timeout.0)),
        ("Attempts", delivery.schedule().attempts().to_string()),
        (
            "Waits between attempts",
            format!(
                "{}; each plus up to {}",
                waits.join(", "),
                duration(delivery.retry_jitter.0)
            ),
        ),
        (
            "Maximum size of a body",
            format!("{} bytes", Count(delivery.max_payload_bytes)),
        ),
        (
            "A webhook is disabled after",
            format!("{} failed attempts {counted}", config.disable.threshold),
        ),
        (
            "Retry-After postpones an attempt",
            yes_or_no(delivery.honor_retry_after),
        ),
        (
            "410 Gone disables the webhook",
            yes_or_no(config.disable.on_gone),
        ),
        (
            "Events and log entries are stored for",
            format!("{} days", config.retention.days),
        ),
        (
            "User-Agent",
            format!("{}-Webhooks/1.0", config.service.name),
        ),
    ]
}

#[derive(Template)]
#[template(path = "ui/guide.html")]
struct GuidePage<'a> {
    frame: Frame,
    guide: &'a Guide,
    /// None for the first page.
    chapter: Option<&'a Chapter>,
    /// With the ID of the chosen webhook.
    html: String,
    after_snippets: Option<String>,
    snippets: &'static [Snippet],
    /// The user's webhooks, if the page names one.
    webhooks: Vec<Webhook>,
    chosen: Option<Uuid>,
}

impl GuidePage<'_> {
    fn is_shown(&self, entry: &Chapter) -> bool {
        self.chapter
            .is_some_and(|chapter| chapter.slug == entry.slug)
    }
}

/// Shows what this platform has set.
pub async fn index(visit: Visit) -> Response {
    let guide = visit.state.guide.clone();

    page(&GuidePage {
        frame: visit.frame(Section::Guide),
        guide: &guide,
        chapter: None,
        html: String::new(),
        after_snippets: None,
        snippets: SNIPPETS,
        webhooks: Vec::new(),
        chosen: None,
    })
}

/// Shows a chapter. The query can name one of the user's webhooks.
pub async fn show(
    visit: Visit,
    Path(slug): Path<String>,
    fields: Fields,
) -> Result<Response, PageError> {
    let guide = visit.state.guide.clone();
    let chapter = guide.chapters.iter().find(|chapter| chapter.slug == slug);
    let chapter = chapter.ok_or_else(PageError::no_such_page)?;

    let names_webhook = chapter.after_snippets.is_some()
        || [EXAMPLE_WEBHOOK, WEBHOOK_VARIABLE]
            .iter()
            .any(|name| chapter.html.contains(name));
    let mut webhooks = Vec::new();

    if names_webhook {
        webhooks = visit.webhooks().await?;
    }

    let wanted: Option<Uuid> = fields.one("webhook").parse().ok();
    let mut ids = webhooks.iter().map(|webhook| webhook.id);
    let chosen = ids.find(|id| wanted.is_none_or(|wanted| wanted == *id));
    let fill = |html: &str| match chosen.map(|id| id.to_string()) {
        Some(id) => html
            .replace(EXAMPLE_WEBHOOK, &id)
            .replace(WEBHOOK_VARIABLE, &id),
        None => html.to_owned(),
    };

    Ok(page(&GuidePage {
        frame: visit.frame(Section::Guide),
        guide: &guide,
        chapter: Some(chapter),
        html: fill(&chapter.html),
        after_snippets: chapter.after_snippets.as_deref().map(fill),
        snippets: SNIPPETS,
        webhooks,
        chosen,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_the_guide_has_a_target() {
        let guide = Guide::new(&Config::default(), "/api");
        let verify = guide
            .chapters
            .iter()
            .find(|chapter| chapter.slug == "verify");
        let after = verify.and_then(|verify| verify.after_snippets.as_ref());
        let after = after.expect("the functions that verify are marked");
        let pages = guide.chapters.iter().map(|chapter| &*chapter.html);
        let text: String = pages.chain([&**after]).collect();

        let links = || {
            text.split(" href=\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next())
        };
        assert!(links().count() > 10);

        for link in links() {
            let path = link.strip_prefix("/ui/guide/");
            let exists = match path.map(|path| path.split_once('#').unwrap_or((path, ""))) {
                Some((slug, anchor)) => {
                    let names = |chapter: &&Chapter| chapter.slug == slug;
                    let is_there = guide.chapters.iter().any(|chapter| names(&chapter));
                    is_there && (anchor.is_empty() || text.contains(&format!("id=\"{anchor}\"")))
                }
                None => link.starts_with("https://") || link.starts_with("/api/"),
            };

            assert!(exists, "{link}");
        }
    }
}
