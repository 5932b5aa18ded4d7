//! The streams of a connection, which this process can end by itself, so that the archive's files are closed before
//! anything else is done that may hang.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use onefold_core::{Error, Result};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};

/// Why this process ends the connection.
pub(super) struct Reason {
    /// For the audit log.
    pub(super) why: &'static str,
    /// For standard error.
    pub(super) told: String,
}

/// The end of a connection, for which all of its streams look.
#[derive(Clone)]
pub(super) struct Ends(Arc<State>);

struct State {
    reason: OnceLock<Reason>,
    /// Can be read from once there is a reason.
    bell: OwnedFd,
}

impl Ends {
    /// # Errors
    /// Those of the system.
    pub(super) fn new() -> Result<Ends> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell =
            bell.map_err(|errno| Error::from_io("the connection can't be watched", errno.into()))?;
        Ok(Ends(Arc::new(State { reason: OnceLock::new(), bell })))
    }

    /// Lets all streams fail from now on, those that are waited for too. The first reason counts.
    pub(super) fn end(&self, reason: Reason) {
        let _ = self.0.reason.set(reason);
        let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn reason(&self) -> Option<&Reason> {
        self.0.reason.get()
    }

    /// Waits until a stream can be read from or written to.
    fn wait(&self, stream: BorrowedFd<'_>, until: PollFlags) -> io::Result<()> {
        loop {
            let mut both =
                [PollFd::from_borrowed_fd(stream, until), PollFd::new(&self.0.bell, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) if self.reason().is_some() => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

/// One direction of the connection.
pub(super) struct Stream {
    pipe: File,
    ends: Ends,
    is_output: bool,
}

impl Stream {
    pub(super) fn input(pipe: File, ends: &Ends) -> Stream {
        Stream { pipe, ends: ends.clone(), is_output: false }
    }

    /// For writing. Nobody else may write to it meanwhile: it does not block.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn output(pipe: File, ends: &Ends) -> io::Result<Stream> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Stream { pipe, ends: ends.clone(), is_output: true })
    }

    fn retry(
        &self,
        until: PollFlags,
        mut call: impl FnMut(&File) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            // Input may block: it is waited for first.
            if until == PollFlags::IN {
                self.ends.wait(self.pipe.as_fd(), until)?;
            }
            match call(&self.pipe) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.ends.wait(self.pipe.as_fd(), until)?;
                }
                done => return done,
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, |mut pipe| pipe.read(into))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, |mut pipe| pipe.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, |mut pipe| pipe.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_output {
            let _ = rustix::io::ioctl_fionbio(&self.pipe, false);
        }
    }
}
