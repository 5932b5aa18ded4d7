//! What files have already: stored chunk lengths cut the old file, and ranges with equal
//! fingerprints stay.

use onefold_core::Result;
use parking_lot::Mutex;

use super::{
    ledger::Ledger,
    plan::{Plan, Range},
    target::RestoreTarget,
    threads,
};
use crate::{
    operations_log::{Archive, Domain},
    rules::Rule,
};

/// Bytes of a file that one thread compares at a time.
const PIECE_BYTES: u64 = 8 << 20;

/// Bytes read at once; a longer chunk is read alone.
const READ_BYTES: usize = 1 << 20;

/// Removes the ranges from a plan that are in their files already.
pub(super) fn keep_equal(
    (archive, domain): (&Archive, &Domain),
    plan: &mut Plan,
    ledger: &Ledger,
    threads: usize,
    target: &dyn RestoreTarget,
) -> Result<()> {
    // Without a key, chunks can be chosen that have one fingerprint.
    if domain.fingerprinter.algorithm().needs_bytes() {
        return Ok(());
    }
    let mut ranges = std::mem::take(&mut plan.ranges);
    ranges.sort_unstable_by_key(|range| (range.file, range.at));
    let (mut pieces, mut bytes) = (vec![0], 0);
    for (n, pair) in ranges.windows(2).enumerate() {
        bytes += u64::from(pair[0].bytes);
        if pair[0].file != pair[1].file || bytes >= PIECE_BYTES {
            pieces.push(n + 1);
            bytes = 0;
        }
    }
    pieces.push(ranges.len());
    let kept = Mutex::new(vec![false; ranges.len()]);
    threads::each(threads, pieces.len() - 1, &|own: &mut Comparing, n| {
        let (from, to) = (pieces[n], pieces[n + 1]);
        own.compare((archive, domain), &ranges[from..to], target)?;
        kept.lock()[from..to].copy_from_slice(&own.equal);
        Ok(())
    })?;
    let mut kept = kept.into_inner().into_iter();
    for range in ranges {
        if kept.next() == Some(true) {
            target.stays(range.file, u64::from(range.bytes));
            // It is not the last: how many there are is not settled yet.
            ledger.done(range.file, 1, target)?;
        } else {
            plan.ranges.push(range);
        }
    }
    Ok(())
}

/// A thread's memory for comparing.
#[derive(Default)]
struct Comparing {
    bytes: Vec<u8>,
    equal: Vec<bool>,
}

impl Comparing {
    /// Says of each of some ranges of one file, in their order, whether they are there.
    fn compare(
        &mut self,
        (archive, domain): (&Archive, &Domain),
        ranges: &[Range],
        target: &dyn RestoreTarget,
    ) -> Result<()> {
        self.equal.clear();
        let mut rest = ranges;
        while let Some(first) = rest.first() {
            let (mut count, mut end) = (0, first.at);
            for range in rest {
                let is_next = range.at == end;
                let bytes = (range.at - first.at) as usize + range.bytes as usize;
                if count > 0 && (!is_next || bytes > READ_BYTES) {
                    break;
                }
                (count, end) = (count + 1, range.at + u64::from(range.bytes));
            }
            let (now, later) = rest.split_at(count);
            self.bytes.resize((end - first.at) as usize, 0);
            let read = read_all(target, first.file, first.at, &mut self.bytes)?;
            let (mut there, mut at) = (Vec::new(), 0);
            for range in now {
                let bytes = self.bytes.get(at..at + range.bytes as usize);
                at += range.bytes as usize;
                there.extend(bytes.filter(|_| at <= read));
            }
            let found = domain.fingerprinter.chunks(&there);
            let equal = now.iter().zip(found.iter().zip(&there)).map(|(range, (found, bytes))| {
                range.fingerprint == *found
                    || domain.is_of_older(bytes, &range.fingerprint)
                    || !archive.keeps(Rule::KeptByFingerprint)
            });
            self.equal.extend(equal);
            self.equal.extend(now.iter().skip(found.len()).map(|_| false));
            rest = later;
        }
        Ok(())
    }
}

/// Fills `into` as far as the file goes.
fn read_all(target: &dyn RestoreTarget, file: usize, at: u64, into: &mut [u8]) -> Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match target.read(file, at + read as u64, &mut into[read..])? {
            0 => break,
            n => read += n,
        }
    }
    Ok(read)
}
