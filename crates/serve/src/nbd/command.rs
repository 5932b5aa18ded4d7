//! Requests, checked: a command, flags that belong to it, and a range inside the volume.
//!
//! *Invariant:* what [`check`] lets pass has `offset + length <= size`, and `offset` and `length`
//! below 2^63.

use super::limits::Limits;
use super::reply::{Code, Refusal};
use super::wire::{Dialect, Request, command_flag as flag};

/// The commands of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
}

/// The protocol's number of WRITE, which decides whether a payload follows even where nothing else
/// is understood.
const WRITE: u16 = 1;

impl Command {
    pub(crate) fn from_wire(number: u16) -> Option<Command> {
        Some(match number {
            0 => Command::Read,
            WRITE => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            _ => return None,
        })
    }

    /// The flags that it may have. FUA is valid everywhere, and ignored where it means nothing.
    fn flags(self, dialect: Dialect) -> u16 {
        let chunks = dialect >= Dialect::Structured;
        let extended = dialect == Dialect::Extended;
        flag::FUA
            | match self {
                Command::Read if chunks => flag::DF,
                Command::Write if extended => flag::PAYLOAD_LEN,
                Command::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
                Command::BlockStatus if extended => flag::REQ_ONE | flag::PAYLOAD_LEN,
                Command::BlockStatus => flag::REQ_ONE,
                _ => 0,
            }
    }
}

impl Request {
    /// Bytes that follow the request: its payload, whether or not it makes sense.
    pub(crate) fn payload_bytes(&self, dialect: Dialect) -> u64 {
        let counted = dialect == Dialect::Extended && self.flags & flag::PAYLOAD_LEN != 0;
        if self.command == WRITE || counted { self.length } else { 0 }
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

impl Command {
    /// True for commands that change a volume.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// Checks the parts of a request that are visible in its header; `size` is the volume's.
pub(crate) fn check(
    request: &Request,
    dialect: Dialect,
    size: u64,
    limits: &Limits,
) -> Result<Command, Refusal> {
    let Some(command) = Command::from_wire(request.command) else {
        return Err(Refusal::new(
            Code::Invalid,
            format!("command {} is not known here", request.command),
        ));
    };
    let strange = request.flags & !command.flags(dialect);
    if strange != 0 {
        return Err(Refusal::new(
            Code::Invalid,
            format!("{command:?} does not take the flags {strange:#x}"),
        ));
    }
    let fits = request.offset.checked_add(request.length).is_some_and(|end| end <= size);
    let beyond = |code| {
        Refusal::new(
            code,
            format!(
                "{} bytes at {} end beyond the volume's {size} bytes",
                request.length, request.offset
            ),
        )
    };
    match command {
        Command::Disconnect | Command::Flush => {}
        // The range is in the payload.
        Command::BlockStatus if request.has(flag::PAYLOAD_LEN) => {}
        Command::BlockStatus if request.length == 0 => {
            return Err(Refusal::new(Code::Invalid, "the status of nothing was asked for"));
        }
        Command::Read if request.length > u64::from(limits.payload_bytes) => {
            let code = if request.has(flag::DF) { Code::TooLarge } else { Code::Invalid };
            return Err(Refusal::new(
                code,
                format!("a read of {} bytes is more than {}", request.length, limits.payload_bytes),
            ));
        }
        Command::Write if request.length > u64::from(limits.payload_bytes) => {
            return Err(Refusal::new(
                Code::Invalid,
                format!(
                    "a write of {} bytes is more than {}",
                    request.length, limits.payload_bytes
                ),
            ));
        }
        Command::Write | Command::WriteZeroes if !fits => return Err(beyond(Code::NoSpace)),
        Command::Read | Command::Trim | Command::Cache | Command::BlockStatus if !fits => {
            return Err(beyond(Code::Invalid));
        }
        Command::Read
        | Command::Write
        | Command::Trim
        | Command::Cache
        | Command::WriteZeroes
        | Command::BlockStatus => {}
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn code(command: u16, flags: u16, offset: u64, length: u64) -> Option<Code> {
        let request = Request { flags, command, cookie: 0, offset, length, begun: None };
        check(&request, Dialect::Extended, SIZE, &Limits::default())
            .err()
            .map(|refusal| refusal.code)
    }

    #[test]
    fn a_range_must_lie_inside_the_volume_even_when_its_end_wraps() {
        for command in [0, 1, 4, 5, 6, 7] {
            let expected = if matches!(command, 1 | 6) { Code::NoSpace } else { Code::Invalid };
            assert_eq!(code(command, 0, SIZE - 1, 1), None);
            assert_eq!(code(command, 0, SIZE, 1), Some(expected));
            assert_eq!(code(command, 0, SIZE - 1, 2), Some(expected));
            assert_eq!(code(command, 0, u64::MAX, 1), Some(expected));
            assert_eq!(code(command, 0, 1 << 63, 4096), Some(expected));
        }
        assert_eq!(code(6, 0, 4096, u64::MAX - 4095), Some(Code::NoSpace));
    }

    #[test]
    fn flags_belong_to_commands() {
        for command in 0..8 {
            assert_eq!(code(command, flag::FUA, 0, 1), None);
            assert_eq!(code(command, flag::DF, 0, 1), (command != 0).then_some(Code::Invalid));
            assert_eq!(code(command, flag::REQ_ONE, 0, 1), (command != 7).then_some(Code::Invalid));
            assert_eq!(
                code(command, flag::FAST_ZERO, 0, 1),
                (command != 6).then_some(Code::Invalid)
            );
            assert_eq!(code(command, 1 << 15, 0, 1), Some(Code::Invalid));
        }
        assert_eq!(code(8, 0, 0, 0), Some(Code::Invalid));
        assert_eq!(code(u16::MAX, 0, 0, 0), Some(Code::Invalid));
    }

    #[test]
    fn a_read_too_large_says_so_by_its_fragmentation_flag() {
        let limits = Limits::default();
        let mut request = Request {
            flags: 0,
            command: 0,
            cookie: 0,
            offset: 0,
            length: (32 << 20) + 1,
            begun: None,
        };
        let code = |request: &Request| {
            check(request, Dialect::Structured, 1 << 40, &limits).map_err(|refusal| refusal.code)
        };
        assert_eq!(code(&request), Err(Code::Invalid));
        request.flags = flag::DF;
        assert_eq!(code(&request), Err(Code::TooLarge));
        request.length -= 1;
        assert_eq!(code(&request), Ok(Command::Read));
    }
}
