//! Whole transfers by plain system calls: short ones are continued, interrupted ones repeated.
//!
//! Continuation starts at a whole block, since direct I/O takes no other: a block that was moved in
//! part is moved again, which harms neither a read nor a write.

use std::{io::IoSlice, os::fd::BorrowedFd, thread, time::Duration};

use onefold_core::BLOCK_BYTES;
use rustix::io::Errno;

/// Blocks gathered into one write by the kernel (`IOV_MAX`).
pub(crate) const GATHER_MAX: usize = 1024;

/// Attempts that may move nothing (interrupted, try again, part of a block) before a transfer
/// counts as failed: enough for signals that keep coming, and still an end.
const STALLS_MAX: u32 = 100;

/// Pause before a request that the kernel asked to repeat.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Why a transfer did not move all its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The file or device ends before the transfer does.
    Ended,
    /// Only part of a block is moved, however often it is asked for.
    Stalled,
    /// The system said so.
    System(Errno),
}

/// Reads `into.len()` bytes from `at`, of which the first `done` are there already.
pub(crate) fn read(
    fd: BorrowedFd<'_>,
    at: u64,
    into: &mut [u8],
    done: usize,
) -> Result<(), Failure> {
    let total = into.len();
    complete(total, done, |done| match rustix::io::pread(fd, &mut into[done..], at + done as u64) {
        Ok(0) => Err(Failure::Ended),
        Ok(n) => Ok(n),
        Err(errno) => Err(Failure::System(errno)),
    })
}

/// Writes whole blocks, one in each of `from`, at `at`; the first `done` bytes are there already.
pub(crate) fn write(
    fd: BorrowedFd<'_>,
    at: u64,
    from: &[IoSlice<'_>],
    done: usize,
) -> Result<(), Failure> {
    complete(from.len() * BLOCK_BYTES, done, |done| {
        let rest = &from[done / BLOCK_BYTES..];
        let rest = &rest[..rest.len().min(GATHER_MAX)];
        rustix::io::pwritev(fd, rest, at + done as u64).map_err(Failure::System)
    })
}

/// Writes `from`, whole blocks that lie one after the other in memory, at `at`.
pub(crate) fn write_bytes(fd: BorrowedFd<'_>, at: u64, from: &[u8]) -> Result<(), Failure> {
    complete(from.len(), 0, |done| {
        rustix::io::pwrite(fd, &from[done..], at + done as u64).map_err(Failure::System)
    })
}

/// Calls `step` with the bytes done, a whole number of blocks, until `total` are.
fn complete(
    total: usize,
    done: usize,
    mut step: impl FnMut(usize) -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let whole = |bytes: usize| bytes - bytes % BLOCK_BYTES;
    let mut done = whole(done);
    let mut stalls = 0;
    while done < total {
        let moved = match step(done) {
            Ok(n) => whole(n),
            Err(Failure::System(Errno::INTR)) => 0,
            Err(Failure::System(Errno::AGAIN)) => {
                thread::sleep(RETRY_PAUSE);
                if stalls == STALLS_MAX {
                    return Err(Failure::System(Errno::AGAIN));
                }
                0
            }
            Err(failure) => return Err(failure),
        };
        if moved == 0 {
            stalls += 1;
            if stalls > STALLS_MAX {
                return Err(Failure::Stalled);
            }
        }
        done += moved;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const BLOCK: usize = BLOCK_BYTES;

    /// Runs `complete` over scripted results and returns what it asked for.
    fn script(
        total: usize,
        done: usize,
        answers: &[Result<usize, Failure>],
    ) -> (Vec<usize>, Result<(), Failure>) {
        let mut asked = Vec::new();
        let mut answers = answers.iter().copied();
        let result = complete(total, done, |from| {
            asked.push(from);
            answers.next().unwrap()
        });
        (asked, result)
    }

    #[test]
    fn a_short_transfer_goes_on_at_the_next_whole_block() {
        let (asked, result) = script(4 * BLOCK, 0, &[Ok(BLOCK + 512), Ok(2 * BLOCK), Ok(BLOCK)]);
        assert_eq!(asked, [0, BLOCK, 3 * BLOCK]);
        assert_eq!(result, Ok(()));
        let (asked, result) = script(4 * BLOCK, 2 * BLOCK + 1, &[Ok(2 * BLOCK)]);
        assert_eq!(asked, [2 * BLOCK]);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn an_interrupted_transfer_is_repeated() {
        let again =
            [Err(Failure::System(Errno::INTR)), Err(Failure::System(Errno::AGAIN)), Ok(BLOCK)];
        let (asked, result) = script(BLOCK, 0, &again);
        assert_eq!(asked, [0, 0, 0]);
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn a_transfer_that_never_moves_a_whole_block_fails() {
        assert_eq!(complete(BLOCK, 0, |_| Ok(512)), Err(Failure::Stalled));
        assert_eq!(
            complete(BLOCK, 0, |_| Err(Failure::System(Errno::INTR))),
            Err(Failure::Stalled)
        );
        assert_eq!(complete(BLOCK, 0, |_| Ok(0)), Err(Failure::Stalled));
    }

    #[test]
    fn an_error_ends_a_transfer_at_once() {
        let (asked, result) = script(2 * BLOCK, 0, &[Ok(BLOCK), Err(Failure::System(Errno::IO))]);
        assert_eq!(asked, [0, BLOCK]);
        assert_eq!(result, Err(Failure::System(Errno::IO)));
    }

    #[test]
    fn a_write_without_room_says_so() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let block = [0; BLOCK];
        let from = [IoSlice::new(&block)];
        let failure = write(full.as_fd(), 0, &from, 0).unwrap_err();
        assert_eq!(failure, Failure::System(Errno::NOSPC));
        assert_eq!(
            super::super::explain_errno("writing", Errno::NOSPC).kind(),
            onefold_core::Kind::NoSpace
        );
    }
}
