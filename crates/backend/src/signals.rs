//! Signals that ask a server to stop, and those that must not kill it.
//!
//! The first SIGTERM or SIGINT is handed to the thread that waits. A second one ends the process at
//! once, for a person who will not wait for an orderly stop. A store survives this like any crash.
//! SIGPIPE does nothing, so a client that went away causes only an error of its connection.
//!
//! Threads: handlers are the process's; one thread waits.

use std::sync::{Arc, atomic::AtomicBool};

use onefold_core::{Error, Result};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

/// From now on a write beyond the limit of a file's size (`ulimit -f`) is an error of that write, and does
/// not kill the process in its middle.
pub fn survive_file_limits() {
    // Where the system refuses it, such a write kills, as everywhere.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Ends the process at once with this status: nothing that is done at an orderly end is done, also not by
/// native libraries whose threads are at work.
pub fn end_now(status: i32) -> ! {
    signal_hook::low_level::exit(status)
}

/// Exit status after a second signal: what a shell shows for a process that SIGINT ended.
const INTERRUPTED_STATUS: i32 = 130;

/// The signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM: a service manager asks. Or SIGHUP: the terminal went away.
    Terminate,
    /// SIGINT: somebody pressed Ctrl-C.
    Interrupt,
}

/// Handlers for the signals that stop a server, in place until the value is dropped; then the
/// signals do nothing.
#[derive(Debug)]
pub struct StopSignals {
    signals: Signals,
}

impl StopSignals {
    /// Installs the handlers. From here on no signal is lost, also before
    /// [`wait`](StopSignals::wait).
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install() -> Result<StopSignals> {
        StopSignals::of(&[SIGTERM, SIGINT])
    }

    /// The same for a command that must not end in its middle, also when its terminal goes away
    /// (SIGHUP).
    ///
    /// # Errors
    /// As [`install`](StopSignals::install).
    pub fn install_with_hangup() -> Result<StopSignals> {
        StopSignals::of(&[SIGTERM, SIGINT, SIGHUP])
    }

    fn of(all: &[i32]) -> Result<StopSignals> {
        let install = || {
            // A handler instead of SIG_IGN: programs started from here begin with the default
            // again.
            flag::register(SIGPIPE, Arc::default())?;
            // One flag for all, in this order: the first signal finds it down and raises it, the
            // second finds it up.
            let stopping = Arc::new(AtomicBool::new(false));
            for &signal in all {
                flag::register_conditional_shutdown(
                    signal,
                    INTERRUPTED_STATUS,
                    Arc::clone(&stopping),
                )?;
                flag::register(signal, Arc::clone(&stopping))?;
            }
            Signals::new(all)
        };
        let signals = install().map_err(|e| Error::from_io("cannot handle signals", e))?;
        Ok(StopSignals { signals })
    }

    /// Waits for the next signal.
    pub fn wait(&mut self) -> Stop {
        loop {
            match self.signals.wait().next() {
                Some(SIGINT) => return Stop::Interrupt,
                Some(_) => return Stop::Terminate,
                None => {}
            }
        }
    }
}

/// A handler for SIGHUP as a request to read files again, in place as long as the process.
#[derive(Debug)]
pub struct Hangups {
    signals: Signals,
}

impl Hangups {
    /// Installs the handler. From here on no signal is lost, and none ends the process.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn install() -> Result<Hangups> {
        let signals =
            Signals::new([SIGHUP]).map_err(|e| Error::from_io("cannot handle SIGHUP", e))?;
        Ok(Hangups { signals })
    }

    /// Waits for the next one; several that came meanwhile are one.
    pub fn wait(&mut self) {
        while self.signals.wait().next().is_none() {}
    }
}
