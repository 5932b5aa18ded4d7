//! `onefold send --negotiate`: a command that starts a receive is run, and asked what is missing there.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use onefold_backend::random::random_bytes;
use onefold_block::{Copies, MEMORY_MIN, SendWhat, Settings};
use onefold_core::{Error, Kind, Result};
use serde::de::DeserializeOwned;

use super::{
    patience::{Patience, Watched},
    served_or_not,
};
use onefold::parts::{
    control::{Request, stream::UNWRITTEN},
    store_file::StoreFile,
};

/// How long the command may take to end when all is said.
const END_WAIT: Duration = Duration::from_secs(10);

/// Time between two looks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The fate of a receive that is silent for too long.
const SILENT: &str = "the receive that --negotiate started took nothing and said nothing";

/// Sends to the receive that a command starts; `request` is the same for a server.
pub(super) fn send<T>(
    file: &StoreFile,
    what: &SendWhat,
    request: &Request,
    command: &str,
    patience: &Patience,
) -> Result<T>
where
    T: DeserializeOwned + for<'t> From<&'t onefold_block::Totals>,
{
    let sent = served_or_not(
        file,
        |server| {
            let (receive, mut to, from) = Receive::start(command, patience)?;
            let sent = server.talk(request, from, &mut to);
            receive.end(to, sent)
        },
        || {
            let working = file.work(Settings::for_memory(MEMORY_MIN))?;
            let sent = Receive::start(command, patience).and_then(|(receive, mut to, from)| {
                let copies = Copies::of(working.store());
                let sent = copies.negotiate(what, &random_bytes()?, &mut to, from);
                receive.end(to, sent)
            });
            let closed = working.close();
            sent.and_then(|totals| closed.map(|()| T::from(&totals)))
        },
    );
    patience.judge(sent, SILENT)
}

/// The command, which is ended with what it is for.
struct Receive(Child, Patience);

impl Receive {
    fn start(command: &str, patience: &Patience) -> Result<(Receive, Watched, Watched)> {
        let failed = |e| Error::from_io("the command of --negotiate can't be run", e);
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => {
                let (to, from) = (Watched::sink(to, patience)?, Watched::source(from, patience)?);
                Ok((Receive(child, patience.clone()), to, from))
            }
            _ => Err(Error::new(Kind::Io, "the command of --negotiate has no pipes")),
        }
    }

    /// Closes its input and waits for it, so that what it says stands before what we do.
    fn end<T>(mut self, mut to: Watched, sent: Result<T>) -> Result<T> {
        let _ = to.flush();
        drop(to);
        let begun = Instant::now();
        while !self.1.has_ended()
            && begun.elapsed() < END_WAIT
            && matches!(self.0.try_wait(), Ok(None))
        {
            std::thread::sleep(LOOK_EVERY);
        }
        sent.map_err(|error| match error.to_string().starts_with(UNWRITTEN) {
            true => {
                let message = "the receive ended before it was done; what it printed says why";
                Error::new(Kind::Io, message).caused_by(error)
            }
            false => error,
        })
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        // One that has ended can't be ended again.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
