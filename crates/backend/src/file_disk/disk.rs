//! The disk itself: which requests go which way.

use std::{
    fs::File,
    io::IoSlice,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use onefold_core::{
    BLOCK_BYTES, Block, BlockRef, Disk, Error, Kind, Pba, Read, Result, Run, block,
};
use parking_lot::Mutex;
use rustix::{
    fs::FallocateFlags,
    io::{Errno, ReadWriteFlags},
};

use super::{
    handle::{Access, explain_errno, size},
    locks::Backing,
    longer,
    ring::{self, Buffer, Transfer},
    standing::Standing,
    transfer::{self, Failure, GATHER_MAX},
};
use crate::{Counters, range};

/// Threads that share a batch where io_uring is refused. More would cost more to start than the
/// depth gains.
const FALLBACK_THREADS: usize = 8;

/// Transfers for each of those threads, at least: starting a thread costs about a third of a
/// transfer.
const TRANSFERS_PER_THREAD_MIN: usize = 2;

/// A regular file or block device, locked while open.
#[derive(Debug)]
pub struct FileDisk {
    pub(super) file: File,
    /// «store /path», for messages.
    pub(super) name: String,
    pub(super) blocks: AtomicU64,
    pub(super) standing: Standing,
    /// The files below a loop device.
    pub(super) backing: Vec<Backing>,
    pub(super) device: bool,
    pub(super) access: Access,
    pub(super) direct: bool,
    pub(super) uring: bool,
    pub(super) counters: Counters,
}

impl FileDisk {
    /// Whether I/O bypasses the page cache (`O_DIRECT`). Without it everything works, but slower
    /// and with a second copy of the data in memory.
    #[must_use]
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Whether batches go through io_uring.
    #[must_use]
    pub fn uring(&self) -> bool {
        self.uring
    }

    /// Whether this is a block device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.device
    }

    /// The access with which the disk was opened.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Counters of the requests so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn offset(&self, at: Pba, blocks: usize) -> Result<u64> {
        range::offset(&self.name, self.blocks(), at, blocks as u64)
    }

    fn writable(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => {
                Err(Error::new(Kind::Denied, format!("{} is open for reading only", self.name)))
            }
        }
    }

    /// The sentence for a transfer that failed.
    pub(super) fn explain(&self, doing: &str, at: Pba, blocks: usize, failure: Failure) -> Error {
        let context = format!("{}: {doing} {blocks} blocks at block {at}", self.name);
        match failure {
            Failure::Ended | Failure::Stalled => match size(self.fd()) {
                Ok(bytes) if bytes / BLOCK_BYTES as u64 >= self.blocks() => {
                    Error::new(Kind::Io, format!("{context} moves only a part of them"))
                }
                size => range::smaller(
                    &self.name,
                    size.unwrap_or(0) / BLOCK_BYTES as u64,
                    at,
                    blocks as u64,
                ),
            },
            Failure::System(errno) => explain_errno(&context, errno),
        }
    }

    /// Runs a batch of transfers, in any order, and stores the result of each.
    fn transfer_all(&self, transfers: &mut [Transfer<'_>]) -> Vec<Result<(), Failure>> {
        let mut ends = vec![Ok(()); transfers.len()];
        let batched = self.uring && transfers.len() > 1 && ring::available();
        if batched {
            ring::run(self.fd(), transfers);
        }
        let threads = if batched {
            1
        } else {
            (transfers.len() / TRANSFERS_PER_THREAD_MIN).clamp(1, FALLBACK_THREADS)
        };
        let left = Mutex::new(transfers.iter_mut().zip(&mut ends));
        let work = || {
            loop {
                let next = left.lock().next();
                let Some((transfer, end)) = next else { break };
                *end = finish(self.fd(), transfer);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // A thread that cannot be started leaves its share to the others.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        ends
    }

    fn read_one(&self, at: Pba, into: &mut [Block]) -> Result<()> {
        let (offset, blocks) = (self.offset(at, into.len())?, into.len());
        self.counters.read(blocks);
        transfer::read(self.fd(), offset, block::bytes_mut(into), 0)
            .map_err(|failure| self.explain("reading", at, blocks, failure))
    }

    fn write_one(&self, run: &Run<'_>) -> Result<()> {
        let offset = self.offset(run.at, run.blocks.len())?;
        transfer::write(self.fd(), offset, &gather(run.blocks), 0)
            .map_err(|failure| self.explain("writing", run.at, run.blocks.len(), failure))
    }

    /// Writes a run durably by one system call. False when the call did not do all of it: the run is
    /// then written again as any other, and flushed.
    fn write_at_once(&self, run: &Run<'_>) -> Result<bool> {
        let offset = self.offset(run.at, run.blocks.len())?;
        if run.blocks.len() > GATHER_MAX {
            return Ok(false);
        }
        let slices = gather(run.blocks);
        match rustix::io::pwritev2(self.fd(), &slices, offset, ReadWriteFlags::DSYNC) {
            Ok(bytes) => Ok(bytes == run.blocks.len() * BLOCK_BYTES),
            // Some sandboxes' kernels know no flags of single writes.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR | Errno::AGAIN) => Ok(false),
            Err(errno) => {
                let failure = Failure::System(errno);
                Err(self.explain("writing", run.at, run.blocks.len(), failure))
            }
        }
    }

    fn write_batch(&self, runs: &[Run<'_>]) -> Result<()> {
        let slices: Vec<IoSlice<'_>> =
            runs.iter().flat_map(|run| run.blocks).map(|b| IoSlice::new(&b.block.0)).collect();
        let mut rest = &slices[..];
        let mut transfers = Vec::with_capacity(runs.len());
        let mut places = Vec::with_capacity(runs.len());
        for run in runs {
            let offset = self.offset(run.at, run.blocks.len())?;
            let (own, others) = rest.split_at(run.blocks.len());
            rest = others;
            for (i, part) in own.chunks(GATHER_MAX).enumerate() {
                transfers.push(Transfer::new(
                    offset + (i * GATHER_MAX * BLOCK_BYTES) as u64,
                    Buffer::From(part),
                ));
                places.push((run.at.plus((i * GATHER_MAX) as u64), part.len()));
            }
        }
        for (end, (at, blocks)) in self.transfer_all(&mut transfers).into_iter().zip(places) {
            end.map_err(|failure| self.explain("writing", at, blocks, failure))?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.counters.flush();
        rustix::fs::fdatasync(self.fd())
            .map_err(|errno| explain_errno(&format!("{}: flushing", self.name), errno))?;
        self.look_around()
    }

    /// Checks that the file or device is as it was: durable data in a file that nobody can find
    /// again are lost.
    fn look_around(&self) -> Result<()> {
        self.standing.look(self.fd(), &self.name)?;
        self.backing
            .iter()
            .try_for_each(|below| below.standing.look(below.file.as_fd(), &below.name))
    }
}

impl Disk for FileDisk {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        if let [read] = reads {
            read.result = self.read_one(read.at, read.into);
            return;
        }
        let mut transfers = Vec::with_capacity(reads.len());
        let mut results = Vec::with_capacity(reads.len());
        for Read { at, into, result } in reads {
            let blocks = into.len();
            match self.offset(*at, blocks) {
                Ok(offset) => {
                    self.counters.read(blocks);
                    transfers.push(Transfer::new(offset, Buffer::Into(block::bytes_mut(into))));
                    results.push((*at, blocks, result));
                }
                Err(error) => *result = Err(error),
            }
        }
        for (end, (at, blocks, result)) in
            self.transfer_all(&mut transfers).into_iter().zip(results)
        {
            *result = end.map_err(|failure| self.explain("reading", at, blocks, failure));
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.writable()?;
        runs.iter().for_each(|run| self.counters.write(run.blocks));
        match runs {
            [run] => self.write_one(run),
            _ => self.write_batch(runs),
        }
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.writable()?;
        self.counters.durable_write(run.blocks);
        if self.write_at_once(run)? {
            return self.look_around();
        }
        self.write_one(run)?;
        self.sync()
    }

    /// As the trait says. On a disk that is open for reading only there is nothing to make durable,
    /// and nothing is done.
    fn flush(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => self.sync(),
            Access::ReadOnly => Ok(()),
        }
    }

    /// As the trait says, for regular files. A block device has its space. On a file system that
    /// cannot reserve space this succeeds without reserving, and a later write may still find
    /// it full.
    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.writable()?;
        let offset = range::offset(&self.name, self.blocks(), at, blocks)?;
        if self.device || blocks == 0 {
            return Ok(());
        }
        loop {
            match rustix::fs::fallocate(
                self.fd(),
                FallocateFlags::empty(),
                offset,
                blocks * BLOCK_BYTES as u64,
            ) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(explain_errno(
                        &format!("{}: allocating {blocks} blocks at block {at}", self.name),
                        errno,
                    ));
                }
            }
        }
    }

    /// A file gets its new length only with its space; on a file system that
    /// cannot reserve space it gets the length alone.
    fn extend(&self, from: Pba, blocks: Option<u64>, reserve: bool) -> Result<u64> {
        self.writable()?;
        let there = size(self.fd())
            .map_err(|e| Error::from_io(format!("{}: looking at its size", self.name), e))?;
        let wanted = blocks.unwrap_or(there / BLOCK_BYTES as u64).max(self.blocks());
        let bytes = range::offset(&self.name, wanted, Pba(wanted), 0)?;
        if self.device && bytes > there {
            let name = &self.name;
            let message = format!(
                "{name}: the device has {there} bytes, and {bytes} were asked for: make the device larger first"
            );
            return Err(Error::new(Kind::InvalidInput, message));
        }
        if !self.device {
            let from = from.0 * BLOCK_BYTES as u64;
            longer::lengthen(&self.file, &self.name, longer::Room { from, bytes, there, reserve })?;
        }
        self.standing.rise(bytes);
        self.blocks.fetch_max(wanted, Ordering::AcqRel);
        Ok(self.blocks())
    }
}

/// `blocks` in the form that the kernel expects.
pub(crate) fn gather<'a>(blocks: &[BlockRef<'a>]) -> Vec<IoSlice<'a>> {
    blocks.iter().map(|b| IoSlice::new(&b.block.0)).collect()
}

/// Completes what the ring left of a transfer: nothing, the rest of a short one, or all of one that
/// did not run.
fn finish(fd: BorrowedFd<'_>, transfer: &mut Transfer<'_>) -> Result<(), Failure> {
    let done = match transfer.result {
        Ok(done) => done,
        // Not run, interrupted, or an operation that this kernel's ring does not know.
        Err(Errno::AGAIN | Errno::INTR | Errno::INVAL | Errno::OPNOTSUPP | Errno::CANCELED) => 0,
        Err(errno) => return Err(Failure::System(errno)),
    };
    match &mut transfer.buffer {
        Buffer::Into(into) => transfer::read(fd, transfer.at, into, done),
        Buffer::From(from) => transfer::write(fd, transfer.at, from, done),
    }
}
