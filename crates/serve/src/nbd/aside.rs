//! Reads aside: while helpers carry out batches of reads and send their replies, the connection's
//! thread takes the next requests. So the disk works while data is verified and sent, as a client
//! that keeps many reads under way expects. When they have nothing to answer, they read
//! [ahead](super::ahead).
//!
//! *Threads:* a connection has at most [`HELPERS`] of them, started when first needed, and each has
//! one batch, or one part of what is read ahead, at a time.
//!
//! *Invariant:* who wants blocks that are read ahead waits only for a thread that reads them at that
//! moment; what no thread has begun it reads by itself.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use onefold_core::{BLOCK_BYTES, Block, BlockRead, Lba, Volume};
use parking_lot::{Condvar, Mutex};

use super::ahead::{Ahead, Found};
use super::reads::{ReadBatch, Source};
use super::reply::{Code, Outbox, Refusal, Replies};
use super::statistics::{Counters, add, sub};
use super::wire::Dialect;

/// Bytes of reads that are worth another thread: eight blocks of random reads, which the disk works on
/// while the blocks of others are verified and sent.
pub(crate) const WORTH_BYTES: usize = 32 << 10;

/// Helpers of a connection: with its own thread one for the disk, one for verifying and one for
/// sending.
pub(crate) const HELPERS: usize = 2;

/// A batch of reads, and the replies to it.
struct Errand<'a> {
    reads: ReadBatch<'a>,
    replies: Replies,
}

struct State<'a> {
    /// Batches that no helper has begun yet.
    given: VecDeque<Errand<'a>>,
    /// An empty batch for each helper that has nothing to do.
    spare: Vec<Errand<'a>>,
    ahead: Ahead<'a>,
    closed: bool,
}

impl State<'_> {
    /// All helpers have nothing to do.
    fn is_quiet(&self) -> bool {
        self.spare.len() == HELPERS && !self.ahead.is_reading()
    }
}

/// Batches of reads on their way between a connection's thread and its helpers.
pub(crate) struct Aside<'a> {
    state: Mutex<State<'a>>,
    changed: Condvar,
    /// All helpers have nothing to do.
    quiet: Condvar,
    /// A part of what is read ahead was read.
    arrived: Condvar,
    /// Something is read ahead; for a look without the lock.
    is_ahead: AtomicBool,
}

/// A volume, with what is read ahead of it.
pub(crate) struct WithAhead<'a, 'b>(pub(crate) &'a Aside<'b>, pub(crate) &'a dyn Volume);

impl Source for WithAhead<'_, '_> {
    fn read(&self, reads: &mut [BlockRead<'_>]) {
        self.0.read(self.1, reads);
    }
}

fn blocks_of(read: &BlockRead<'_>) -> Range<u64> {
    read.first.0..read.first.0 + read.into.len() as u64
}

impl<'a> Aside<'a> {
    /// With empty batches to begin with, which take memory when they are used.
    pub(crate) fn new(
        dialect: Dialect,
        empty: impl Fn() -> ReadBatch<'a>,
        ahead: Ahead<'a>,
    ) -> Aside<'a> {
        let spare = (0..HELPERS)
            .map(|_| Errand { reads: empty(), replies: Replies::new(dialect) })
            .collect();
        Aside {
            state: Mutex::new(State { given: VecDeque::new(), spare, ahead, closed: false }),
            changed: Condvar::new(),
            quiet: Condvar::new(),
            arrived: Condvar::new(),
            is_ahead: AtomicBool::new(false),
        }
    }

    /// Gives a batch to a helper and leaves an empty one; false, having done nothing, when all of
    /// them are at work.
    pub(crate) fn give(&self, reads: &mut ReadBatch<'a>) -> bool {
        let mut state = self.state.lock();
        if state.spare.len() <= state.ahead.reading() {
            return false;
        }
        let Some(mut errand) = state.spare.pop() else { return false };
        std::mem::swap(&mut errand.reads, reads);
        state.given.push_back(errand);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Has blocks read ahead, as far as there is room: of older ones all but those to `keep` make way.
    /// Returns how many blocks are to be read; `None` when there is no room.
    pub(crate) fn want(&self, blocks: Range<u64>, keep: &Range<u64>) -> Option<u64> {
        let mut state = self.state.lock();
        let wanted = state.ahead.want(blocks, keep);
        self.is_ahead.store(!state.ahead.is_empty(), Relaxed);
        drop(state);
        if wanted.is_some_and(|blocks| blocks > 0) {
            self.changed.notify_one();
        }
        wanted
    }

    /// True when more is lent for what is read ahead than may be beside others.
    pub(crate) fn has_too_much(&self) -> bool {
        self.is_ahead.load(Relaxed) && self.state.lock().ahead.has_too_much()
    }

    /// Reads blocks, from what was read ahead where it has all of a read.
    fn read(&self, volume: &dyn Volume, reads: &mut [BlockRead<'_>]) {
        let changes = volume.changes().filter(|_| self.is_ahead.load(Relaxed));
        let Some(changes) = changes else { return volume.read(reads) };
        let (covered, mut rest): (Vec<_>, Vec<_>) = {
            let state = self.state.lock();
            reads.iter_mut().partition(|read| state.ahead.covers(&blocks_of(read)))
        };
        read_each(volume, &mut rest);
        for read in covered {
            let blocks = blocks_of(read);
            let mut state = self.state.lock();
            let pieces = loop {
                match state.ahead.find(changes, &blocks) {
                    Found::There(pieces) => break Some(pieces),
                    Found::No => break None,
                    Found::Reading => self.arrived.wait(&mut state),
                    Found::Wanted(id, wanted) => {
                        drop(state);
                        if let Err(panic) = self.read_part(volume, id, wanted) {
                            resume_unwind(panic);
                        }
                        state = self.state.lock();
                    }
                }
            };
            drop(state);
            // It may have waited for long, and others may change the volume by now.
            let Some(pieces) = pieces.filter(|_| volume.changes().is_some()) else {
                read_each(volume, &mut [read]);
                continue;
            };
            let mut into = &mut *read.into;
            for (data, piece) in pieces {
                let (now, later) = into.split_at_mut(piece.len());
                now.clone_from_slice(&data[piece]);
                into = later;
            }
            read.result = Ok(());
            volume.was_read_ahead(1, (blocks.end - blocks.start) * BLOCK_BYTES as u64);
            let mut state = self.state.lock();
            state.ahead.given(&blocks);
            self.is_ahead.store(!state.ahead.is_empty(), Relaxed);
        }
    }

    /// Reads one part ahead. What can't be read is dropped: who asks for it reads it again, and hears
    /// why.
    fn read_part(
        &self,
        volume: &dyn Volume,
        id: u64,
        blocks: Range<u64>,
    ) -> std::thread::Result<()> {
        let look = volume.changes().and_then(|changes| changes.look(blocks.clone()));
        let spare = self.state.lock().ahead.take_spare();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let look = look?;
            let mut data = room(spare, (blocks.end - blocks.start) as usize);
            let mut reads =
                [BlockRead { first: Lba(blocks.start), into: &mut data, result: Ok(()) }];
            volume.read_ahead(&mut reads);
            let [BlockRead { result, .. }] = reads;
            result.ok().map(|()| (data, look))
        }));
        let mut state = self.state.lock();
        let (read, panicked) = match read {
            Ok(read) => (read, Ok(())),
            Err(panic) => (None, Err(panic)),
        };
        state.ahead.put(id, read);
        self.is_ahead.store(!state.ahead.is_empty(), Relaxed);
        let quiet = state.is_quiet();
        drop(state);
        self.arrived.notify_all();
        if quiet {
            self.quiet.notify_one();
        }
        panicked
    }

    /// Waits until the helpers have answered what they were given, and gives back the memory for
    /// it, and for what was read ahead.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.ahead.forget();
        self.quiet.wait_while(&mut state, |state| !state.is_quiet());
        state.ahead.forget();
        self.is_ahead.store(false, Relaxed);
        for errand in &mut state.spare {
            errand.reads.release();
            errand.replies.release();
        }
    }

    /// Ends the helpers once they have answered what they were given.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    /// A helper: reads and answers until closed.
    ///
    /// # Panics
    /// At its end, when the volume panicked before: a client must not wait for ever for an answer
    /// because of that.
    pub(crate) fn help<W: Write>(
        &self,
        volume: &dyn Volume,
        outbox: &Outbox<W>,
        counters: &Counters,
    ) {
        let mut panicked = None;
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| {
                state.given.is_empty() && !state.ahead.is_wanted() && !state.closed
            });
            let Some(mut errand) = state.given.pop_front() else {
                if state.closed {
                    break;
                }
                let Some((id, blocks)) = state.ahead.take() else { continue };
                drop(state);
                panicked = self.read_part(volume, id, blocks).err().or(panicked);
                continue;
            };
            drop(state);
            let Errand { reads, replies } = &mut errand;
            let from = WithAhead(self, volume);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reads.run(&from, replies))) {
                panicked = Some(panic);
                reads.refuse(&Refusal::new(Code::Io, "the server failed while it read"), replies);
            }
            let (answered, errors) = replies.answered();
            replies.count_durations(counters);
            // A connection that can't be sent to ends by its own thread.
            let _ = replies.send(outbox, reads.data());
            sub(&counters.in_flight, answered);
            add(&counters.errors, errors);
            let mut state = self.state.lock();
            state.spare.push(errand);
            let quiet = state.is_quiet();
            drop(state);
            if quiet {
                self.quiet.notify_one();
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

/// So many blocks of any content: those that are spare, where they are as many.
fn room(spare: Vec<Block>, blocks: usize) -> Vec<Block> {
    if spare.len() == blocks { spare } else { Block::zeroed_vec(blocks) }
}

/// Reads from the volume.
fn read_each(volume: &dyn Volume, reads: &mut [&mut BlockRead<'_>]) {
    if reads.is_empty() {
        return;
    }
    let mut own: Vec<BlockRead<'_>> = reads
        .iter_mut()
        .map(|read| BlockRead { first: read.first, into: &mut *read.into, result: Ok(()) })
        .collect();
    volume.read(&mut own);
    let results: Vec<_> = own.into_iter().map(|read| read.result).collect();
    reads.iter_mut().zip(results).for_each(|(read, result)| read.result = result);
}

/// Closes also when the connection's thread panics, so that the helpers end.
pub(crate) struct CloseOnDrop<'a, 'b>(pub(crate) &'a Aside<'b>);

impl Drop for CloseOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
