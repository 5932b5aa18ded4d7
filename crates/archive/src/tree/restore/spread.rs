//! Groups in the order of their places: read, several neighbours at a time, expanded, verified, and
//! written to the files that want them.

use std::ops::Range as Span;

use onefold_core::{Error, Kind, Result};

use super::{
    ledger::Ledger,
    plan::{GroupAt, Plan, Range},
    target::RestoreTarget,
    threads,
};
use crate::{
    container::ContainerReader,
    format::{container::Packer, damage::is_damage, parameters::Compression},
    operations_log::{Archive, Domain},
    rules::Rule,
    stream::Verify,
};

/// Bytes of groups that are read at once; a longer one is read alone.
const READ_BYTES: u64 = 2 << 20;

/// Bytes between two groups that are read with them.
const GAP_BYTES: u64 = 64 << 10;

/// Writes the ranges of a plan.
pub(super) struct Spread<'a> {
    pub(super) archive: &'a Archive,
    pub(super) domain: &'a Domain,
    pub(super) container_reader: &'a ContainerReader,
    pub(super) plan: &'a Plan,
    pub(super) ledger: &'a Ledger,
    pub(super) verify: Verify,
    pub(super) target: &'a dyn RestoreTarget,
}

/// Ranges whose groups are read at once.
struct Read {
    ranges: Span<usize>,
    segment: u32,
    at: u64,
    end: u64,
}

/// A thread's memory.
#[derive(Default)]
struct Hands {
    packer: Packer,
    /// Groups as stored.
    stored: Vec<u8>,
    /// Groups expanded, and how many of these are used.
    raw: Vec<Vec<u8>>,
}

/// Where the bytes of a group are.
enum Expanded {
    /// In the bytes as stored, since it is not compressed.
    Stored(Span<usize>),
    /// Among the expanded ones.
    Raw(usize),
    /// Nowhere.
    Lost(Error),
}

impl Spread<'_> {
    /// Does it. The ranges are sorted.
    pub(super) fn all(&self, threads: usize) -> Result<()> {
        let reads = self.reads();
        threads::each(threads, reads.len(), &|hands: &mut Hands, n| self.read(hands, &reads[n]))
    }

    fn group(&self, range: &Range) -> &GroupAt {
        &self.plan.groups[range.group as usize]
    }

    fn reads(&self) -> Vec<Read> {
        let mut reads: Vec<Read> = Vec::new();
        for (n, range) in self.plan.ranges.iter().enumerate() {
            let group = self.group(range);
            let bytes = group.at..group.at + u64::from(group.group.stored);
            let Span { start, end } = self.container_reader.steps_around(bytes);
            match reads.last_mut() {
                Some(last)
                    if last.segment == group.segment
                        && (end <= last.end
                            || (start <= last.end + GAP_BYTES && end - last.at <= READ_BYTES)) =>
                {
                    last.end = last.end.max(end);
                    last.ranges.end = n + 1;
                }
                _ => {
                    let (segment, at) = (group.segment, start);
                    reads.push(Read { ranges: n..n + 1, segment, at, end });
                }
            }
        }
        reads
    }

    fn read(&self, hands: &mut Hands, read: &Read) -> Result<()> {
        let ranges = &self.plan.ranges[read.ranges.clone()];
        hands.stored.resize((read.end - read.at) as usize, 0);
        let got = self.container_reader.bytes(read.segment, read.at, &mut hands.stored);
        let mut whole = match got {
            Ok(()) => true,
            Err(error) if is_damage(&error) => false,
            Err(error) => return Err(error),
        };
        // A bad sector costs its own group only: then each one is read by itself.
        whole &= self.archive.keeps(Rule::RestoredVerified);
        let mut expanded: Vec<(usize, Expanded)> = Vec::new();
        let mut raws = 0;
        for range in ranges {
            if expanded.last().is_some_and(|(group, _)| *group == range.group as usize) {
                continue;
            }
            let group = self.group(range);
            let start = (group.at - read.at) as usize;
            let span = start..start + group.group.stored as usize;
            let there = match whole {
                true => Ok(()),
                false => {
                    let stored = &mut hands.stored[span.clone()];
                    self.container_reader.bytes(group.segment, group.at, stored)
                }
            };
            let made = there.and_then(|()| self.expand(hands, group, span, &mut raws));
            let made = match made {
                Err(error) if is_damage(&error) => {
                    Expanded::Lost(error.context(format!("container {}", group.container)))
                }
                made => made?,
            };
            expanded.push((range.group as usize, made));
        }
        self.write(hands, ranges, &expanded)
    }

    fn expand(
        &self,
        hands: &mut Hands,
        group: &GroupAt,
        span: Span<usize>,
        raws: &mut usize,
    ) -> Result<Expanded> {
        let identity = self.container_reader.identity();
        let stored = &mut hands.stored[span.clone()];
        let is_checked = self.archive.keeps(Rule::RestoredVerified);
        let seal = group.metadata.group_seal(group.number);
        if group.group.compression == Compression::None {
            let stored = &*seal.open(&group.group, stored)?;
            let span = span.start..span.start + stored.len();
            if is_checked && identity.checksum(stored) != group.group.checksum {
                let what = "a group of chunks fails its checksum";
                return Err(Error::new(Kind::Corrupt, what));
            }
            return Ok(Expanded::Stored(span));
        }
        if hands.raw.len() == *raws {
            hands.raw.push(Vec::new());
        }
        let raw = &mut hands.raw[*raws];
        match is_checked {
            true => hands.packer.expand(identity, seal, &group.group, stored, raw)?,
            false => {
                let stored = seal.open(&group.group, stored)?;
                hands.packer.expand_unchecked(&group.group, stored, raw)?;
            }
        }
        *raws += 1;
        Ok(Expanded::Raw(*raws - 1))
    }

    /// Verifies the chunks of ranges, and writes these.
    fn write(&self, hands: &Hands, ranges: &[Range], expanded: &[(usize, Expanded)]) -> Result<()> {
        // For each range its whole group, if its chunk is in it.
        let mut found: Vec<Option<&[u8]>> = Vec::with_capacity(ranges.len());
        let mut groups = expanded.iter().peekable();
        for range in ranges {
            while groups.next_if(|(group, _)| *group != range.group as usize).is_some() {}
            let group = match groups.peek() {
                Some((_, Expanded::Stored(span))) => hands.stored.get(span.clone()),
                Some((_, Expanded::Raw(n))) => hands.raw.get(*n).map(|raw| &raw[..]),
                Some((_, Expanded::Lost(error))) => {
                    self.ledger.lose(range.file, error.clone());
                    None
                }
                None => None,
            };
            found.push(group.filter(|group| group.get(range.span()).is_some()));
        }
        if self.verify == Verify::Chunks && self.archive.keeps(Rule::RestoredVerified) {
            self.verified(ranges, &mut found);
        }
        let mut at = 0;
        while at < ranges.len() {
            at += self.write_next(&ranges[at..], &found[at..])?;
        }
        Ok(())
    }

    /// Forgets the groups of chunks that don't have their fingerprints.
    fn verified(&self, ranges: &[Range], found: &mut [Option<&[u8]>]) {
        // A chunk that several files want is looked at once.
        let (mut chunks, mut numbers) = (Vec::new(), Vec::with_capacity(ranges.len()));
        let mut last = None;
        for (range, group) in ranges.iter().zip(&*found) {
            if let Some(group) = group
                && last != Some((range.group, range.span()))
            {
                chunks.push(&group[range.span()]);
                last = Some((range.group, range.span()));
            }
            numbers.push(chunks.len());
        }
        let fingerprints = self.domain.fingerprinter.chunks(&chunks);
        for ((range, group), number) in ranges.iter().zip(found).zip(numbers) {
            let of =
                number.checked_sub(1).and_then(|n| Some((fingerprints.get(n)?, chunks.get(n)?)));
            let is_whole = of.is_some_and(|(found, bytes)| {
                *found == range.fingerprint || self.domain.is_of_older(bytes, &range.fingerprint)
            });
            if group.is_some() && !is_whole {
                let container = self.group(range).container;
                let what =
                    format!("a chunk of container {container} is not the one that was stored");
                self.ledger.lose(range.file, Error::new(Kind::Corrupt, what));
                *group = None;
            }
        }
    }

    /// Writes the first range, and those behind it that go on in the same file and group; gives how
    /// many that were.
    fn write_next(&self, ranges: &[Range], found: &[Option<&[u8]>]) -> Result<usize> {
        let (Some(first), Some(group)) = (ranges.first(), found.first()) else { return Ok(0) };
        let mut count = 1;
        if let Some(group) = group {
            let mut span = first.span();
            for (pair, next) in ranges.windows(2).zip(&found[1..]) {
                let goes_on = pair[0].file == pair[1].file
                    && pair[0].group == pair[1].group
                    && pair[0].at + u64::from(pair[0].bytes) == pair[1].at
                    && pair[0].from + pair[0].bytes == pair[1].from;
                if !goes_on || next.is_none() {
                    break;
                }
                (count, span.end) = (count + 1, pair[1].span().end);
            }
            self.target.write(self.file_of(first), first.at, &group[span])?;
        }
        self.ledger.done(first.file, count as u64, self.target)?;
        Ok(count)
    }

    /// The file of a range; with the planted bug, that of the next one.
    fn file_of(&self, range: &Range) -> usize {
        let next = range.file + 1;
        match self.archive.keeps(Rule::RangesInTheirFile) || !self.ledger.numbers().contains(&next)
        {
            true => range.file,
            false => next,
        }
    }
}
