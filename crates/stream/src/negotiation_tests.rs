use std::io::Cursor;

use onefold_core::Fingerprint;

use super::*;
use crate::{
    Begin, Next, StreamReader, StreamWriter,
    offer::{OFFER_BLOCKS_MAX, OFFER_RUNS_MAX, Offer},
};

const SECRET: [u8; 32] = [7; 32];

fn agreed() -> Agreed {
    Agreed::new(&SECRET, Algorithm::Blake3, &[1; 32], &[2; 32])
}

/// What a receiver with this secret writes first, and then.
fn answers(secret: &[u8; 32], then: impl FnOnce(&mut Answering<&mut Vec<u8>>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let agreed = Agreed::new(secret, Algorithm::Blake3, &[1; 32], &[2; 32]);
    let mut hello = [1; 64];
    hello[32..].copy_from_slice(&agreed.of("sender"));
    let begun = Answering::begin(&mut &hello[..], &mut bytes, secret, Algorithm::Blake3, &[2; 32]);
    then(&mut begun.unwrap().0);
    bytes
}

fn begin(bytes: &[u8]) -> Result<(Asking<&[u8]>, [u8; 32])> {
    Asking::begin(&mut Vec::new(), bytes, &SECRET, Algorithm::Blake3, &[1; 32], false)
}

#[test]
fn both_sides_agree_and_every_pattern_of_missing_blocks_comes_over() {
    for count in [1, 7, 8, 9, 1000, OFFER_BLOCKS_MAX as usize] {
        let missing: Vec<bool> = (0..count).map(|n| (n * n) >> 3 & 1 == 1).collect();
        let bytes = answers(&SECRET, |answering| {
            answering.missing(&missing).unwrap();
            answering.done(5).unwrap();
        });
        let (mut asking, key) = begin(&bytes).unwrap();
        assert_eq!(key, agreed().of("stream"));
        assert!(asking.missing(count).unwrap() == missing);
        asking.done().unwrap();
    }
}

#[test]
fn a_store_of_another_secret_is_told_nothing_and_asked_nothing() {
    let bytes = answers(&[8; 32], |_| {});
    let mut told = Vec::new();
    let begun = Asking::begin(&mut told, &bytes[..], &SECRET, Algorithm::Blake3, &[1; 32], false);
    let said = begun.err().unwrap().to_string();
    assert!(said.contains("another secret") && said.contains("--like"), "{said}");
    assert_eq!(told.len(), 48, "the magic and a nonce");
    // The same secret, and fingerprints of another kind.
    let begun =
        Asking::begin(&mut told, &bytes[..], &[8; 32], Algorithm::HmacSha256, &[1; 32], false);
    assert!(begun.is_err());
    // A sender that does not know the secret: it may know all that was ever said.
    for proof in [agreed().of("receiver"), agreed().of("stream"), [0; 32]] {
        let mut hello = [1; 64];
        hello[32..].copy_from_slice(&proof);
        let mut out = Vec::new();
        let begun =
            Answering::begin(&mut &hello[..], &mut out, &SECRET, Algorithm::Blake3, &[2; 32]);
        assert!(begun.err().unwrap().to_string().contains("another secret"));
    }
    // The proofs of another day.
    let old = Agreed::new(&SECRET, Algorithm::Blake3, &[1; 32], &[3; 32]);
    assert!(!agreed().proves("sender", &old.of("sender")));
}

#[test]
fn answers_that_are_too_long_too_short_changed_or_cut_off_are_refused() {
    let put = |kind, first, blocks, payload: &[u8]| {
        let bytes = answers(&SECRET, |answering| {
            answering.0.put(kind, 0, first, blocks, payload).unwrap();
        });
        begin(&bytes).unwrap().0.missing(9).map(drop)
    };
    put(Of::Missing, 0, 9, &[0xff, 1]).unwrap();
    for (kind, first, blocks, payload) in [
        (Of::Missing, 0, 9, &[0xff][..]),
        (Of::Missing, 0, 9, &[0xff, 1, 0]),
        (Of::Missing, 0, 9, &[0xff, 3]),
        (Of::Missing, 0, 8, &[0xff]),
        (Of::Missing, 0, 8, &[0xff, 1]),
        (Of::Missing, 1, 9, &[0xff, 1]),
        (Of::Done, 0, 9, &[]),
        (Of::Data, 0, 9, &[0xff, 1]),
        (Of::Missing, 0, 9, &[0; 1 << 20]),
    ] {
        assert_eq!(put(kind, first, blocks, payload).unwrap_err().kind(), Kind::Corrupt);
    }
    let right = answers(&SECRET, |answering| answering.missing(&[true; 9]).unwrap());
    for at in 0..right.len() {
        let mut other = right.clone();
        other[at] ^= 1 << (at % 8);
        let read = |bytes: &[u8]| begin(bytes).and_then(|(mut asking, _)| asking.missing(9));
        assert!(read(&other).is_err(), "byte {at}");
        assert!(read(&right[..at]).is_err(), "cut at {at}");
    }
}

/// An answer that says that it has four gigabytes, and then never ends.
#[test]
fn an_answer_without_an_end_costs_a_header() {
    struct Endless(Cursor<Vec<u8>>, u64);
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.read(into)?;
            if n > 0 {
                return Ok(n);
            }
            self.1 += into.len() as u64;
            into.fill(0xff);
            Ok(into.len())
        }
    }
    let mut bytes = answers(&SECRET, |_| {});
    bytes.extend_from_slice(&[Of::Missing as u8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let mut endless = Endless(Cursor::new(bytes), 0);
    let begun =
        Asking::begin(&mut Vec::new(), &mut endless, &SECRET, Algorithm::Blake3, &[1; 32], false);
    assert_eq!(begun.unwrap().0.missing(9).unwrap_err().kind(), Kind::Corrupt);
    assert!(endless.1 < 100, "{}", endless.1);
}

fn offered(offer: &Offer) -> Result<Next> {
    let mut bytes = Vec::new();
    let begin = Begin { guid: [1; 16], blocks: 1 << 20, ..Begin::default() };
    let mut writer = StreamWriter::begin_negotiated(&mut bytes, [9; 32], false, &begin, false)?;
    writer.offer(offer)?;
    StreamReader::begin_negotiated(&bytes[..], [9; 32], false)?.next_frame()
}

#[test]
fn an_offer_is_read_as_it_was_written_or_refused() {
    let of = |runs: Vec<(u64, u64)>| {
        let blocks: u64 = runs.iter().map(|run| run.1).sum();
        let fingerprints = (0..blocks).map(|n| Fingerprint([n as u8; 16])).collect();
        Offer { runs, fingerprints }
    };
    let most = (0..OFFER_RUNS_MAX as u64).map(|n| (n * 20, 16)).collect();
    for right in [of(vec![(0, 1)]), of(vec![(5, 9), (14, 2), (100, 1)]), of(most)] {
        assert_eq!(offered(&right).unwrap(), Next::Offer(right));
    }
    let many = (0..=OFFER_RUNS_MAX as u64).map(|n| (n * 20, 1)).collect();
    let wrong = [
        vec![],
        vec![(5, 0)],
        vec![(5, 9), (13, 2)],
        vec![(u64::MAX, 2)],
        vec![((1 << 20) - 1, 2)],
        vec![(0, OFFER_BLOCKS_MAX + 1)],
        many,
    ];
    for runs in wrong {
        assert!(offered(&of(runs)).is_err());
    }
    let mut short = of(vec![(5, 9)]);
    short.fingerprints.pop();
    assert!(offered(&short).is_err());
    // A stream that is not negotiated has none.
    let mut bytes = Vec::new();
    let begin = Begin { guid: [1; 16], blocks: 100, ..Begin::default() };
    let mut writer = StreamWriter::begin(&mut bytes, &begin, false).unwrap();
    writer.offer(&of(vec![(5, 9)])).unwrap();
    assert!(StreamReader::begin(&bytes[..]).unwrap().next_frame().is_err());
}
