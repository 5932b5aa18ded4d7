//! The head of a request for a page: it is understood, refused or not complete, and what was
//! understood says the same when it is written again.

use onefold_serve::http::{HEAD_BYTES, Head, Refusal};

use crate::reach;

/// One head.
pub fn http_head(data: &[u8]) {
    let parsed = Head::parse(data);
    let whole = parsed.ok().flatten();
    let kind = format!("{:?}", parsed.map(|head| head.is_some()));
    let Some(head) = reach::is(whole, &kind) else {
        // More bytes complete a head, or make it too long.
        if parsed == Ok(None) {
            assert!(data.len() < HEAD_BYTES, "an endless head");
            let longer = [data, &[b'a'; HEAD_BYTES]].concat();
            assert!(!matches!(Head::parse(&longer), Ok(None)), "an endless head");
        }
        return;
    };
    assert!(head.path.starts_with('/') && !head.path.contains('?'), "{head:?}");
    assert!(head.path.bytes().all(|byte| (b'!'..=b'~').contains(&byte)), "{head:?}");
    let _ = head.may_be_a_foreign_page(&["nas.lan".to_owned()]);
    let method = if head.only_headers { "HEAD" } else { "GET" };
    let host = head.host.map(|host| format!("Host: {host}\r\n")).unwrap_or_default();
    let written = format!("{method} {} HTTP/1.0\r\n{host}\r\n", head.path);
    let again = Head::parse(written.as_bytes());
    assert!(again == Ok(Some(head)) || again == Err(Refusal::TooLong), "{head:?} {again:?}");
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    [
        "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
        "GET /metrics?a=b HTTP/1.0\r\n\r\n",
        "HEAD /status.json HTTP/1.1\r\nHost: [::1]:9400\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nab",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
