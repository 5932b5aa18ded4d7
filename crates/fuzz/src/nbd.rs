//! A client's bytes: a session ends without a panic and without unbounded answers, whatever they
//! are.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use onefold_core::{Error, Kind};
use onefold_serve::nbd::{Ending, Limits, session_over};

use crate::{memory::OneVolume, reach};

const SIZE: usize = 256 << 10;

/// Most bytes that answers to one input may have: an input of 28 bytes can ask for a read of the
/// whole volume.
const ANSWERS_MAX: usize = 256 << 20;

/// More bytes than this are answers to commands, and not to options alone.
const OPTIONS_ANSWERED: usize = 4096;

/// Counts what is sent.
struct Sink(Arc<AtomicUsize>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let before = self.0.fetch_add(bytes.len(), Relaxed);
        assert!(before + bytes.len() <= ANSWERS_MAX, "endless answers");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One connection, from the greeting to the end of the bytes.
pub fn nbd_session(data: &[u8]) {
    let limits = Limits {
        payload_bytes: 64 << 10,
        receive_bytes: 4096,
        read_batch_bytes: 16 << 10,
        whole_read_bytes: 32 << 10,
        extents: 8,
        waits: 4,
        ..Limits::default()
    };
    let sent = Arc::new(AtomicUsize::new(0));
    let ending = session_over(&OneVolume::new(SIZE), &limits, data, Sink(sent.clone()));
    if sent.load(Relaxed) > OPTIONS_ANSWERED {
        reach::good();
    }
    match ending {
        Ending::Closed => reach::good(),
        Ending::Protocol(how) => reach::refused(&Error::new(Kind::InvalidInput, how)),
        Ending::Broken(error) => reach::refused(&Error::new(Kind::Io, error.to_string())),
    }
}

/// The bytes of an option.
pub(crate) fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &kind.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Sessions in each dialect, with every command.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let name = |data: &[u8]| [&4u32.to_be_bytes()[..], b"disk", data].concat();
    let go = option(7, &name(&[0, 2, 0, 1, 0, 3]));
    let meta = option(
        10,
        &name(&[&1u32.to_be_bytes()[..], &15u32.to_be_bytes(), b"base:allocation"].concat()),
    );
    let flags = 3u32.to_be_bytes();
    let mut sessions = Vec::new();
    for dialect in [&[][..], &option(8, &[]), &option(11, &[])] {
        let extended = dialect.get(11) == Some(&11);
        let mut session = [
            &flags[..],
            dialect,
            &option(3, &[]),
            &option(9, &meta[16..]),
            &meta,
            &option(6, &name(&[0, 0])),
            &go,
        ]
        .concat();
        for (command, flag, length) in [
            (1u16, 1u16, 512u64),
            (0, 0, 8192),
            (3, 0, 0),
            (4, 0, 4096),
            (6, 2, 8192),
            (5, 0, 100),
            (7, 8, 65_536),
            (0, 4, 4096),
        ] {
            let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
            session.extend_from_slice(&magic.to_be_bytes());
            session.extend_from_slice(
                &(flag | if extended && command == 1 { 32 } else { 0 }).to_be_bytes(),
            );
            session.extend_from_slice(&command.to_be_bytes());
            session.extend_from_slice(&7u64.to_be_bytes());
            session.extend_from_slice(&4096u64.to_be_bytes());
            if extended {
                session.extend_from_slice(&length.to_be_bytes());
            } else {
                session.extend_from_slice(&(length as u32).to_be_bytes());
            }
            if command == 1 {
                session.extend_from_slice(&[9; 512]);
            }
        }
        sessions.push(session);
    }
    sessions.push([&flags[..], &option(1, b"disk")].concat());
    sessions.push([&flags[..], &option(2, &[])].concat());
    sessions
}
