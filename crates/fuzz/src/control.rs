//! What comes over the control socket: a line that asks, and a stream in pieces behind it.

use std::io::Read;

use onefold::parts::control::{Backup, Copied, Request, stream::Pieces};
use onefold_core::{Error, Kind};

use crate::reach;

/// One request and its stream. A request that is understood says the same when it is sent on, and a
/// stream gives no more bytes than it has.
pub fn control(data: &[u8]) {
    let (line, stream) = match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => data.split_at(end + 1),
        None => (data, &[][..]),
    };
    let understood = serde_json::from_slice::<Request>(line)
        .map_err(|error| Error::new(Kind::Unsupported, error.to_string()));
    if let Some(request) = reach::noted(understood) {
        let sent = serde_json::to_string(&request).unwrap_or_default();
        let again = serde_json::from_str::<Request>(&sent);
        let again = again.ok().and_then(|again| serde_json::to_string(&again).ok());
        assert!(again.as_ref() == Some(&sent), "{sent} is understood as {again:?}");
    }
    let mut pieces = Pieces::new(stream);
    let mut found = Vec::new();
    let read = pieces.read_to_end(&mut found);
    assert!(found.len() <= stream.len(), "{} bytes of {}", found.len(), stream.len());
    assert!(read.is_err() || pieces.has_ended(), "a stream without an end");
}

pub(crate) fn examples() -> Vec<Vec<u8>> {
    let requests = [
        Request::Status,
        Request::VolumeRename { name: "a".into(), new_name: "b".into() },
        Request::VolumeNoDedup { name: "a".into(), no_dedup: vec![0..8, 16..24] },
        Request::Backup(Box::new(Backup { set: "s".into(), ..Backup::default() })),
        Request::Copy(Box::new(Backup { copied: Some(Copied::default()), ..Backup::default() })),
        Request::Receive {
            volume: Some("a".into()),
            rollback: true,
            negotiates: false,
            domain: Some("d".into()),
        },
    ];
    let line = |request| serde_json::to_vec(request).unwrap_or_default();
    let stream = [&b"\n\x01\x05\0\0\0hello\x01\x01\0\0\0!\x05"[..]].concat();
    requests.iter().map(|request| [line(request), stream.clone()].concat()).collect()
}
