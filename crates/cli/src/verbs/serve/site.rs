//! `serve --http`: figures for Prometheus, the report as JSON, and a page that shows it to people.
//!
//! *Invariant:* the page asks for nothing but `/status.json` of the same server, and its policy
//! keeps browsers from loading or running anything else, whatever names volumes have.

use std::sync::{Arc, LazyLock};

use onefold_core::Result;
use onefold_serve::http::{Answer, Audience, Page, Site};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::report::{figures::Seen, metrics};

/// The page, with its style and its script.
const PAGE: &str = include_str!("page.html");

/// What browsers may do for answers that are no page: nothing.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// What browsers may do for the page: its own style and script, and asking this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(between("<style>", "</style>")),
        hash(between("<script>", "</script>"))
    )
});

/// Makes the report of a store at this moment, without waiting for a disk.
pub(super) type Reporter = Box<dyn Fn() -> Result<Value> + Send + Sync>;

/// The pages of a served store.
pub(super) struct Pages {
    report: Reporter,
    /// Whether everybody who reaches a TCP address may learn what the store holds: it has one
    /// tenant.
    open: bool,
}

impl Pages {
    pub(super) fn new(report: Reporter, open: bool) -> Arc<Pages> {
        Arc::new(Pages { report, open })
    }

    /// The report, as `make` shows it.
    fn shown(&self, content_type: &'static str, make: impl Fn(&Value) -> String) -> Answer {
        match (self.report)() {
            Ok(report) => page(content_type, NOTHING, make(&report)),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }
}

impl Site for Pages {
    fn answer(&self, path: &str, audience: Audience) -> Answer {
        let sees_all = self.open || audience == Audience::Operator;
        match path {
            "/metrics" => {
                let most = if sees_all { Seen::ByOperator } else { Seen::ByAll };
                self.shown(metrics::CONTENT_TYPE, |report| metrics::text(report, most))
            }
            "/" | "/status.json" if !sees_all => Answer::Denied(
                "What the store holds is shown to its operator alone: use a UNIX socket (--http \
                 unix:PATH), or say with --one-tenant that all volumes belong to one tenant."
                    .to_owned(),
            ),
            "/" => page("text/html; charset=utf-8", &POLICY, PAGE.to_owned()),
            "/status.json" => self.shown("application/json", Value::to_string),
            _ => Answer::Missing,
        }
    }
}

fn page(content_type: &'static str, policy: &str, text: String) -> Answer {
    Answer::Page(Page { content_type, policy: policy.to_owned(), body: text.into_bytes() })
}

/// The text of the page between two marks.
fn between(begin: &str, end: &str) -> &'static str {
    PAGE.split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end))
        .map_or("", |(inside, _)| inside)
}

/// The hash of a style or a script, as a policy names it.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let bits = (0..3).fold(0, |bits, n| bits << 8 | u32::from(*three.get(n).unwrap_or(&0)));
        let digit = |n: usize| match n <= three.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_has_one_style_and_one_script_and_loads_nothing() {
        assert!(between("<style>", "</style>").len() > 100);
        assert!(between("<script>", "</script>").len() > 100);
        for (text, times) in [("<style", 1), ("<script", 1), ("fetch(", 1)] {
            assert_eq!(PAGE.matches(text).count(), times, "{text}");
        }
        let never = [
            "http:",
            "https:",
            "//cdn",
            "@import",
            "url(",
            "<img",
            "<link",
            "<iframe",
            " style=",
            " onclick",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];
        for text in never {
            assert!(!PAGE.contains(text), "{text}");
        }
        assert!(POLICY.starts_with("default-src 'none'; style-src 'sha256-"));
    }

    #[test]
    fn rule_14_strangers_do_not_learn_what_the_store_holds() {
        let report = json!({
            "engine": "block", "stopped": null, "space": { "free_bytes": 7 },
            "server": { "version": "1", "nbd": { "written_bytes": 8 } },
            "volumes": [{ "name": "secret", "bytes": 9 }],
        });
        let body = |pages: &Pages, path, audience| match pages.answer(path, audience) {
            Answer::Page(page) => Some(String::from_utf8(page.body).unwrap()),
            _ => None,
        };
        let pages = |open| {
            let report = report.clone();
            Pages::new(Box::new(move || Ok(report.clone())), open)
        };
        let closed = pages(false);
        let shown = body(&closed, "/metrics", Audience::Anybody).unwrap();
        assert!(shown.contains("onefold_client_written_bytes_total 8\n"), "{shown}");
        assert!(!shown.contains("free") && !shown.contains("secret"), "{shown}");
        for path in ["/", "/status.json"] {
            assert_eq!(body(&closed, path, Audience::Anybody), None);
            assert!(body(&closed, path, Audience::Operator).is_some());
            assert!(body(&pages(true), path, Audience::Anybody).is_some());
        }
        for (pages, audience) in [(pages(true), Audience::Anybody), (closed, Audience::Operator)] {
            let shown = body(&pages, "/metrics", audience).unwrap();
            assert!(shown.contains("onefold_store_free_bytes 7\n"), "{shown}");
            assert!(shown.contains("onefold_volume_size_bytes{volume=\"secret\"} 9\n"), "{shown}");
        }
    }
}
