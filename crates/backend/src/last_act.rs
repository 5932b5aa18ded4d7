//! Before a signal ends a process that asks or waits, the process says a sentence and gives the terminal
//! back what a question changed.
//!
//! While a [`LastAct`] is there, SIGINT, SIGTERM, SIGHUP and SIGQUIT do it and end the process, so that
//! whoever waits for the process learns which of them it was. That holds also where the process has
//! [`StopSignals`](crate::signals::StopSignals): who is asked, or waits, has nothing to stop in order.
//! Handlers that stood before stand again afterwards. A signal that was ignored stays so.
//!
//! *Invariant:* the handler takes no memory, and calls only what POSIX allows there: `open`, `tcsetattr`,
//! `write`, `signal`, `raise`.
#![allow(unsafe_code, reason = "rustix has no handlers of signals, nor what may be called in them")]

use std::{
    fs::File,
    mem::zeroed,
    os::fd::AsRawFd,
    ptr,
    sync::atomic::{AtomicPtr, Ordering::SeqCst},
};

const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The act that a handler finds. It is never freed, as a handler may be at work in another thread.
struct Act {
    words: Vec<u8>,
    /// The terminal of the process, as it was.
    terminal: Option<libc::termios>,
}

static ACT: AtomicPtr<Act> = AtomicPtr::new(ptr::null_mut());

/// In place until it is dropped. One within another takes its place meanwhile.
pub struct LastAct {
    before: [Option<libc::sigaction>; SIGNALS.len()],
    outer: *mut Act,
}

impl LastAct {
    /// Says a sentence on standard error.
    #[must_use]
    pub fn of_words(sentence: &str) -> LastAct {
        LastAct::of(Act { words: format!("{sentence}\n").into_bytes(), terminal: None })
    }

    /// Gives the terminal of the process back what it is now.
    #[must_use]
    pub fn of_terminal() -> LastAct {
        let terminal = File::open("/dev/tty").ok().and_then(|terminal| {
            // SAFETY: it is of numbers, for which zeroes stand.
            let mut now: libc::termios = unsafe { zeroed() };
            // SAFETY: the descriptor is open, and the structure is there.
            let known = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut now) } == 0;
            known.then_some(now)
        });
        // The shell goes on in a line of its own.
        LastAct::of(Act { words: b"\n".to_vec(), terminal })
    }

    fn of(act: Act) -> LastAct {
        // Words and a structure each time that somebody is asked, or waits.
        let outer = ACT.swap(Box::into_raw(Box::new(act)), SeqCst);
        let before = if outer.is_null() { SIGNALS.map(install) } else { [None; SIGNALS.len()] };
        LastAct { before, outer }
    }
}

impl Drop for LastAct {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.into_iter().zip(self.before) {
            if let Some(before) = before {
                // SAFETY: it is what the system gave.
                unsafe { libc::sigaction(signal, &raw const before, ptr::null_mut()) };
            }
        }
        ACT.store(self.outer, SeqCst);
    }
}

/// Puts the handler in place; gives what was there, unless that stays.
fn install(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: both structures are of numbers and sets, for which zeroes stand, and the handler calls only
    // what a handler may. All signals wait while it runs: also that of a terminal for who is in its
    // background.
    unsafe {
        let (mut before, mut handler): (libc::sigaction, libc::sigaction) = (zeroed(), zeroed());
        if libc::sigaction(signal, ptr::null(), &raw mut before) != 0
            || before.sa_sigaction == libc::SIG_IGN
        {
            return None;
        }
        handler.sa_sigaction = end as extern "C" fn(libc::c_int) as usize;
        libc::sigfillset(&raw mut handler.sa_mask);
        (libc::sigaction(signal, &raw const handler, ptr::null_mut()) == 0).then_some(before)
    }
}

extern "C" fn end(signal: libc::c_int) {
    // SAFETY: an act is never freed, and all of it was there before the handler was. These calls may be made
    // in a handler. The signal ends the process when the handler returns, until when it waits.
    unsafe {
        if let Some(Act { words, terminal }) = ACT.load(SeqCst).as_ref() {
            if let Some(before) = terminal {
                let terminal = libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
                libc::tcsetattr(terminal, libc::TCSANOW, before);
            }
            libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len());
        }
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
