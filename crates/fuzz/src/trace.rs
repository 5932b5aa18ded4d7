//! Recorded traces: hostile bytes give requests that a replay can take, or a typed error.

use std::{sync::Arc, time::Duration};

use onefold_core::Kind;
use onefold_lab::{
    request::What,
    trace::{self, Assumed},
};

use crate::reach;

/// Requests that are looked at: a few bytes can say a thousand million.
const REQUESTS_MAX: usize = 100_000;

/// Most blocks of one request.
const BLOCKS_MAX: u64 = 1 << 18;

/// A trace as it is, and with these bytes inside of a good frame, so that they are reached.
pub fn trace(data: &[u8]) {
    look(data);
    if let Ok(packed) = zstd::bulk::compress(data, 1) {
        look(&packed);
    }
}

fn look(bytes: &[u8]) {
    let source = match trace::of_bytes(Arc::from(bytes), Assumed::default()) {
        Ok(source) => source,
        Err(error) => return judge(&error),
    };
    let mut last = (0, Duration::ZERO);
    for item in source.requests.take(REQUESTS_MAX) {
        let (steps, request) = match item {
            Ok(item) => item,
            Err(error) => return judge(&error),
        };
        assert!(steps > last.0 && request.at >= last.1, "requests come one after the other");
        last = (steps, request.at);
        let (first, blocks) = match &request.what {
            What::Write { first, blocks, .. } => {
                assert!(
                    !blocks.is_empty() && blocks.len() as u64 <= BLOCKS_MAX,
                    "a write of {} blocks",
                    blocks.len()
                );
                assert!(
                    blocks.iter().all(|content| (1..=4096).contains(&content.lz4)),
                    "a size that LZ4 never has"
                );
                (first.0, blocks.len() as u64)
            }
            What::Trim { first, blocks } | What::Zeroes { first, blocks } => (first.0, *blocks),
            What::Flush | What::Phase(_) => {
                reach::good();
                continue;
            }
        };
        assert!(
            first.checked_add(blocks).is_some_and(|end| end <= source.volume_blocks),
            "a request stays within its volume"
        );
        reach::good();
    }
}

fn judge(error: &onefold_core::Error) {
    reach::refused(error);
    assert!(
        matches!(error.kind(), Kind::Corrupt | Kind::Io),
        "hostile bytes are {:?}: {error}",
        error.kind()
    );
}

/// A trace with each kind of record, what is in it, and text of both kinds.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let text = |hash: &str| {
        format!(
            "5000 1 nfsd 800 8 W 6 0 {hash}\n6000 1 nfsd 800 8 R 6 0 {hash}\n7000 1 x 16 16 W \
                 6 0 {hash}{hash}\n"
        )
        .into_bytes()
    };
    let page = "88b93b628d84082186026d9da044f173";
    let stream = stream();
    let packed = zstd::bulk::compress(&stream, 1).unwrap_or_default();
    vec![stream, packed, text(page), text(&page.repeat(8))]
}

/// The bytes of a trace: its header, and a record of each kind.
fn stream() -> Vec<u8> {
    let records: [(u64, u32, u8, u8, u16, [u8; 16]); 8] = [
        (0, 0, 4, 0, 0, *b"begin\0\0\0\0\0\0\0\0\0\0\0"),
        (1, 2, 0, 2, 100, [1; 16]),
        (2, 3, 0, 0, 4096, [2; 16]),
        (3, 0, 1, 0, 0, [0; 16]),
        (4, 7, 0, 3, 26, [3; 16]),
        (5, 0, 2, 0, 0, [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (6, 9, 3, 1, 0, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (7, 8, 0, 6, 77, [1; 16]),
    ];
    let mut stream = b"DTRC0001".to_vec();
    stream.extend(4096u32.to_le_bytes());
    stream.extend((records.len() as u32).to_le_bytes());
    stream.extend(1000u64.to_le_bytes());
    stream.extend([0; 8]);
    for (time, block, kind, flags, lz4, rest) in records {
        stream.extend(time.to_le_bytes());
        stream.extend(block.to_le_bytes());
        stream.extend([kind, flags]);
        stream.extend(lz4.to_le_bytes());
        stream.extend(rest);
    }
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_good() {
        let requests = |bytes: &Vec<u8>| {
            let source = trace::of_bytes(Arc::from(&bytes[..]), Assumed::default()).ok()?;
            source.requests.map(|item| item.ok()).collect::<Option<Vec<_>>>().map(|all| all.len())
        };
        let found: Vec<Option<usize>> = examples().iter().map(requests).collect();
        assert_eq!(found, [None, Some(7), Some(2), Some(2)]);
    }
}
