//! Patience with the other side of a stream: a pipe in which nothing moves for so long is given up.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use onefold_core::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long nothing may move, and whether that time ran out.
#[derive(Clone)]
pub(super) struct Patience {
    /// `None` without end.
    most: Option<Duration>,
    ended: Arc<AtomicBool>,
}

impl Patience {
    /// Of so many seconds; 0 stands for no end.
    pub(super) fn of(seconds: u32) -> Patience {
        let most = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Patience { most, ended: Arc::default() }
    }

    /// What came of it: when the time ran out, that is the reason, which begins with `what`.
    pub(super) fn judge<T>(&self, result: Result<T>, what: &str) -> Result<T> {
        match (result, self.most) {
            (Err(_), Some(most)) if self.has_ended() => {
                let message =
                    format!("{what} for {} s, so it was given up (--wait)", most.as_secs());
                Err(Error::new(Kind::Io, message))
            }
            (result, _) => result,
        }
    }

    /// True when the time ran out.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Waits until a pipe can be read from or written to.
    fn wait(&self, pipe: BorrowedFd<'_>, until: PollFlags) -> io::Result<()> {
        let Some(most) = self.most else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let left = most.saturating_sub(begun.elapsed());
            let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
            match poll(&mut [PollFd::from_borrowed_fd(pipe, until)], Some(&left)) {
                Ok(0) if begun.elapsed() >= most => {
                    self.ended.store(true, Ordering::SeqCst);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing moved"));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A pipe, read and written with patience.
pub(super) struct Watched {
    pipe: File,
    patience: Patience,
}

impl Watched {
    /// For reading.
    pub(super) fn source(pipe: impl AsFd, patience: &Patience) -> Result<Watched> {
        let own = pipe.as_fd().try_clone_to_owned();
        let own = own.map_err(|e| Error::from_io("a pipe can't be used", e))?;
        Ok(Watched { pipe: File::from(own), patience: patience.clone() })
    }

    /// For writing. Nobody else may write to it: from now on it does not block.
    pub(super) fn sink(pipe: impl AsFd, patience: &Patience) -> Result<Watched> {
        if patience.most.is_some() {
            rustix::io::ioctl_fionbio(pipe.as_fd(), true)
                .map_err(|e| Error::from_io("a pipe can't be used", e.into()))?;
        }
        Watched::source(pipe, patience)
    }
}

impl Read for Watched {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.patience.wait(self.pipe.as_fd(), PollFlags::IN)?;
        self.pipe.read(into)
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.patience.wait(self.pipe.as_fd(), PollFlags::OUT)?;
            match self.pipe.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
