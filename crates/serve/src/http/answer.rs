//! Answers, and their bytes.

use super::head::{HEAD_BYTES, Refusal};

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What was asked for.
    Page(Page),
    /// There is no such page.
    Missing,
    /// This client may not see the page; the sentence says why.
    Denied(String),
    /// The page can't be made now; the sentence says why.
    Failed(String),
    /// What the client sent is no request that is answered here.
    Refused(Refusal),
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its type, as `text/html; charset=utf-8`.
    pub content_type: &'static str,
    /// The content security policy: what a browser may load and run for the page.
    pub policy: String,
    /// Its content.
    pub body: Vec<u8>,
}

/// The policy of what is no page for people: nothing of it runs, and nothing is loaded for it.
pub(crate) const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

impl Answer {
    /// The bytes to send; without the page for a client that wants only headers.
    pub(crate) fn bytes(self, only_headers: bool) -> Vec<u8> {
        let (status, more) = match &self {
            Answer::Page(_) => ("200 OK", ""),
            Answer::Missing => ("404 Not Found", ""),
            Answer::Denied(_) => ("403 Forbidden", ""),
            Answer::Failed(_) => ("503 Service Unavailable", ""),
            Answer::Refused(Refusal::Malformed) => ("400 Bad Request", ""),
            Answer::Refused(Refusal::NotAllowed) => {
                ("405 Method Not Allowed", "Allow: GET, HEAD\r\n")
            }
            Answer::Refused(Refusal::TooLong) => ("431 Request Header Fields Too Large", ""),
        };
        let Page { content_type, policy, body } = self.page();
        // No answer is kept, guessed at, framed, or read by pages of other sites.
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Content-Security-Policy: {policy}\r\n{more}\r\n",
            body.len()
        );
        let mut bytes = head.into_bytes();
        if !only_headers {
            bytes.extend_from_slice(&body);
        }
        bytes
    }

    fn page(self) -> Page {
        let sentence = match self {
            Answer::Page(page) => return page,
            Answer::Missing => "There is no such page.".to_owned(),
            Answer::Denied(why) | Answer::Failed(why) => why,
            Answer::Refused(Refusal::Malformed) => "This is no request of HTTP/1.1.".to_owned(),
            Answer::Refused(Refusal::NotAllowed) => "Only GET and HEAD are answered.".to_owned(),
            Answer::Refused(Refusal::TooLong) => {
                format!("The head of a request has {HEAD_BYTES} bytes at most.")
            }
        };
        Page {
            content_type: "text/plain; charset=utf-8",
            policy: NOTHING.to_owned(),
            body: (sentence + "\n").into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_its_length_and_head_leaves_the_page_out() {
        let page = Page { content_type: "text/html", policy: NOTHING.into(), body: b"abc".into() };
        let text = String::from_utf8(Answer::Page(page.clone()).bytes(false)).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"));
        assert!(text.contains("\r\nContent-Length: 3\r\n") && text.ends_with("\r\n\r\nabc"));
        let text = String::from_utf8(Answer::Page(page).bytes(true)).unwrap();
        assert!(text.contains("\r\nContent-Length: 3\r\n") && text.ends_with("\r\n\r\n"));
        let text = String::from_utf8(Answer::Refused(Refusal::NotAllowed).bytes(false)).unwrap();
        assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("\r\nAllow: GET, HEAD\r\n"));
    }
}
