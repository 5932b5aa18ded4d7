//! Blocks that are read before a client asks for them.
//!
//! They are read and verified as any others, in memory that is borrowed as that of other large
//! buffers, and given to the client once. [`aside`](super::aside) has the threads.
//!
//! *Invariant:* a client gets only what a read would have returned at that moment: what changed since
//! it was read is dropped (see [`Changes`]).

use std::{ops::Range, sync::Arc};

use onefold_core::{BLOCK_BYTES, Block, Changes, Look};

use super::buffers::Loan;

/// Blocks that are read ahead together, at most: 512 KiB. The device sees their reads at once.
pub(crate) const PART_BLOCKS: u64 = 128;

/// What is read ahead for one connection.
pub(crate) struct Ahead<'a> {
    /// In the order in which they were wanted.
    parts: Vec<Part>,
    /// Blocks of all of them, at most.
    most: u64,
    /// The memory for them, and for the spare blocks.
    loan: Loan<'a>,
    /// Memory of a part that is over, for the next one: new memory would be zeroed first.
    spare: Vec<Block>,
    next: u64,
}

struct Part {
    id: u64,
    blocks: Range<u64>,
    /// Blocks that the client was given.
    given: u64,
    content: Content,
}

enum Content {
    Wanted,
    /// A thread reads it.
    Reading,
    There(Arc<Vec<Block>>, Look),
}

/// Consecutive blocks of a part.
pub(crate) type Piece = (Arc<Vec<Block>>, Range<usize>);

/// Where the blocks of a read are.
pub(crate) enum Found {
    /// In these pieces.
    There(Vec<Piece>),
    /// A thread reads some of them.
    Reading,
    /// Some of them wait in a part, which is to be read by who has found it.
    Wanted(u64, Range<u64>),
    /// Not all of them are or will be there.
    No,
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl<'a> Ahead<'a> {
    /// Nothing yet; at most so many bytes.
    pub(crate) fn new(most_bytes: usize, loan: Loan<'a>) -> Ahead<'a> {
        let most = (most_bytes / BLOCK_BYTES) as u64;
        Ahead { parts: Vec::new(), most, loan, spare: Vec::new(), next: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// True while a thread reads.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading() > 0
    }

    /// Threads that read.
    pub(crate) fn reading(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part.content, Content::Reading)).count()
    }

    /// True when something waits to be read.
    pub(crate) fn is_wanted(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.content, Content::Wanted))
    }

    /// True when more is lent than may be beside others.
    pub(crate) fn has_too_much(&self) -> bool {
        self.loan.is_too_much()
    }

    fn blocks(&self) -> u64 {
        self.parts.iter().map(|part| length(&part.blocks)).sum()
    }

    /// Gives back the memory that is not needed any more.
    fn settle(&mut self) {
        self.lend(0);
    }

    /// Has memory lent for so many blocks more; false when there is none, not even that of the spare
    /// blocks.
    fn lend(&mut self, more: u64) -> bool {
        let needed = (self.blocks() + more) as usize;
        if self.loan.keep((needed + self.spare.len()) * BLOCK_BYTES) {
            return true;
        }
        self.spare = Vec::new();
        self.loan.keep(needed * BLOCK_BYTES)
    }

    /// The spare blocks, for the part that is read next. They hold what was read before.
    pub(crate) fn take_spare(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.spare)
    }

    /// These blocks are to be read, as far as they are not there or on their way; old ones make way
    /// for them, but none of those to `keep`. Returns how many blocks are to be read; `None` when
    /// there is no room.
    pub(crate) fn want(&mut self, mut blocks: Range<u64>, keep: &Range<u64>) -> Option<u64> {
        while let Some(part) = self.parts.iter().find(|part| part.blocks.contains(&blocks.start)) {
            blocks.start = part.blocks.end;
        }
        let starts = self.parts.iter().map(|part| part.blocks.start);
        let beyond = starts.filter(|start| *start >= blocks.start).min();
        blocks.end = blocks.end.min(beyond.unwrap_or(u64::MAX));
        if blocks.is_empty() {
            return Some(0);
        }
        let more = length(&blocks);
        while self.blocks() + more > self.most {
            let is_old = |part: &Part| {
                let kept = part.blocks.start < keep.end && keep.start < part.blocks.end;
                !kept && !matches!(part.content, Content::Reading)
            };
            let old = self.parts.iter().position(is_old)?;
            self.parts.remove(old);
        }
        if !self.lend(more) {
            return None;
        }
        self.next += 1;
        let content = Content::Wanted;
        self.parts.push(Part { id: self.next, blocks, given: 0, content });
        Some(more)
    }

    /// The next part to be read, by who calls.
    pub(crate) fn take(&mut self) -> Option<(u64, Range<u64>)> {
        let part = self.parts.iter_mut().find(|part| matches!(part.content, Content::Wanted))?;
        part.content = Content::Reading;
        Some((part.id, part.blocks.clone()))
    }

    /// A part was read; it is dropped when that failed.
    pub(crate) fn put(&mut self, id: u64, read: Option<(Vec<Block>, Look)>) {
        let Some(at) = self.parts.iter().position(|part| part.id == id) else { return };
        match read {
            Some((blocks, look)) => {
                self.parts[at].content = Content::There(Arc::new(blocks), look);
            }
            None => {
                self.parts.remove(at);
                self.settle();
            }
        }
    }

    /// True when all of these blocks are there or on their way.
    pub(crate) fn covers(&self, blocks: &Range<u64>) -> bool {
        let mut at = blocks.start;
        while at < blocks.end {
            let Some(part) = self.parts.iter().find(|part| part.blocks.contains(&at)) else {
                return false;
            };
            at = part.blocks.end;
        }
        true
    }

    /// Where these blocks are. Parts that changed are dropped.
    pub(crate) fn find(&mut self, changes: &Changes, blocks: &Range<u64>) -> Found {
        let (mut at, mut pieces) = (blocks.start, Vec::new());
        while at < blocks.end {
            let Some(n) = self.parts.iter().position(|part| part.blocks.contains(&at)) else {
                return Found::No;
            };
            let part = &mut self.parts[n];
            let (first, end) = (part.blocks.start, part.blocks.end.min(blocks.end));
            match &part.content {
                Content::Reading => return Found::Reading,
                Content::Wanted => {
                    part.content = Content::Reading;
                    return Found::Wanted(part.id, part.blocks.clone());
                }
                Content::There(data, look) => {
                    let same = changes.is_unchanged(look, at..end);
                    #[cfg(scheduled)]
                    let same = same || parking_lot::planted("what changed is still given");
                    if !same {
                        self.parts.remove(n);
                        self.settle();
                        return Found::No;
                    }
                    pieces.push((data.clone(), (at - first) as usize..(end - first) as usize));
                }
            }
            at = end;
        }
        Found::There(pieces)
    }

    /// The client was given these blocks. Parts of which it has all are dropped.
    pub(crate) fn given(&mut self, blocks: &Range<u64>) {
        for part in &mut self.parts {
            let of_it = blocks.start.max(part.blocks.start)..blocks.end.min(part.blocks.end);
            part.given += if of_it.is_empty() { 0 } else { length(&of_it) };
        }
        let is_over = |part: &mut Part| {
            part.given >= length(&part.blocks) && matches!(part.content, Content::There(..))
        };
        for over in self.parts.extract_if(.., is_over) {
            let Content::There(data, _) = over.content else { continue };
            self.spare = Arc::try_unwrap(data).unwrap_or_default();
        }
        self.settle();
    }

    /// Drops everything that no thread reads.
    pub(crate) fn forget(&mut self) {
        self.parts.retain(|part| matches!(part.content, Content::Reading));
        self.spare = Vec::new();
        self.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        buffers::{Borrower, Buffers, Share},
        limits::Limits,
    };
    use super::*;

    /// Calls with a connection's read-ahead of at most `most` blocks, of which there is memory for
    /// `lent`.
    fn with_ahead(most: u64, lent: u64, test: impl FnOnce(Ahead<'_>)) {
        let limits = Limits { connections: 2, places: 2, ..Limits::default() };
        let buffer_bytes = limits.needed_bytes() + lent as usize * BLOCK_BYTES;
        let buffers = Buffers::new(&Limits { buffer_bytes, ..limits });
        let (peer, volume) = (Share::default(), Share::default());
        let loan = buffers.loan(Borrower { peer: &peer, volume: &volume });
        test(Ahead::new(most as usize * BLOCK_BYTES, loan));
    }

    fn read(ahead: &mut Ahead<'_>, changes: &Changes) {
        while let Some((id, blocks)) = ahead.take() {
            let data = Block::zeroed_vec(length(&blocks) as usize);
            ahead.put(id, changes.look(blocks).map(|look| (data, look)));
        }
    }

    fn is_there(ahead: &mut Ahead<'_>, changes: &Changes, blocks: Range<u64>) -> bool {
        matches!(ahead.find(changes, &blocks), Found::There(_))
    }

    #[test]
    fn memory_is_bounded_by_the_limit_and_by_what_is_lent() {
        with_ahead(8, 100, |mut ahead| {
            assert_eq!(ahead.want(0..6, &(0..6)), Some(6));
            assert_eq!(ahead.want(6..12, &(0..12)), None, "all of it is to be kept");
            assert_eq!(ahead.want(6..12, &(6..12)), Some(6));
            assert!(!ahead.covers(&(0..6)) && ahead.covers(&(7..12)) && ahead.blocks() == 6);
        });
        with_ahead(8, 5, |mut ahead| {
            assert_eq!(ahead.want(0..6, &(0..6)), None, "there is no memory");
            assert_eq!(ahead.want(0..5, &(0..6)), Some(5));
            ahead.forget();
            assert_eq!(ahead.want(20..25, &(20..25)), Some(5), "it was given back");
        });
    }

    #[test]
    fn memory_of_a_part_that_is_over_is_kept_for_the_next_while_there_is_room() {
        let changes = Changes::default();
        for (lent, spare, whose) in [(12, 6, "it is lent"), (11, 0, "it made way")] {
            with_ahead(12, lent, |mut ahead| {
                ahead.want(0..6, &(0..6));
                read(&mut ahead, &changes);
                ahead.given(&(0..6));
                assert_eq!(ahead.spare.len(), 6);
                assert_eq!(ahead.want(6..12, &(6..12)), Some(6), "{whose}");
                assert_eq!(ahead.take_spare().len(), spare, "{whose}");
            });
        }
        with_ahead(12, 12, |mut ahead| {
            ahead.want(0..6, &(0..6));
            read(&mut ahead, &changes);
            ahead.given(&(0..6));
            ahead.forget();
            assert!(ahead.take_spare().is_empty() && ahead.want(0..12, &(0..12)) == Some(12));
        });
    }

    #[test]
    fn nothing_is_read_twice_and_each_block_is_given_once() {
        with_ahead(32, 100, |mut ahead| {
            let changes = Changes::default();
            assert_eq!(ahead.want(4..8, &(0..0)), Some(4));
            assert_eq!(ahead.want(0..20, &(0..0)), Some(4), "up to what is on its way");
            assert_eq!(ahead.want(2..20, &(0..0)), Some(12));
            assert_eq!(ahead.want(2..20, &(0..0)), Some(0));
            read(&mut ahead, &changes);
            assert!(is_there(&mut ahead, &changes, 0..20));
            assert!(!is_there(&mut ahead, &changes, 10..21));
            ahead.given(&(0..10));
            assert!(!ahead.covers(&(0..1)) && is_there(&mut ahead, &changes, 8..20));
            ahead.given(&(10..20));
            assert!(ahead.is_empty() && ahead.blocks() == 0);
        });
    }

    #[test]
    fn what_changed_before_in_and_after_the_reading_is_dropped() {
        with_ahead(256, 1000, |mut ahead| {
            let changes = Changes::default();
            drop(changes.begin(0..1));
            ahead.want(0..64, &(0..0));
            ahead.want(64..128, &(0..0));
            read(&mut ahead, &changes);
            assert!(is_there(&mut ahead, &changes, 0..128));
            let change = changes.begin(3..4);
            assert!(!is_there(&mut ahead, &changes, 10..20), "it is being changed");
            assert!(!ahead.covers(&(0..1)) && is_there(&mut ahead, &changes, 64..128));
            ahead.want(0..64, &(0..0));
            read(&mut ahead, &changes);
            assert!(!ahead.covers(&(0..1)), "what is being changed is not kept");
            drop(change);
            ahead.want(0..64, &(0..0));
            let (id, blocks) = ahead.take().unwrap();
            let look = changes.look(blocks).unwrap();
            drop(changes.begin(5..6));
            ahead.put(id, Some((Block::zeroed_vec(64), look)));
            assert!(!is_there(&mut ahead, &changes, 0..10), "it was changed while it was read");
        });
    }
}
