//! The operations log, read frame by frame in pieces of 4 MiB, whoever wrote it.

use onefold_core::{File, Result};

use super::{
    bytes::corrupt,
    frame,
    frame::{FRAME_ALIGN, FRAME_HEADER_BYTES, Frame},
};
use crate::{format::Identity, memory::Drawn};

/// Bytes of a log at most. A snapshot begins a new one long before; only where no snapshot finds
/// room on the disk a log goes on, and not beyond this.
pub(crate) const LOG_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a log at which put keys add nothing more: whoever manages the archive begins a new one.
pub(crate) const PUT_LOG_BYTES: u64 = 192 << 20;

/// Bytes read at once.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Bytes behind the end of a log in which later frames are looked for, each time from one that
/// claims to be there. A crash leaves one torn frame.
const CLAIMED_MAX: u64 = 1 << 30;

/// The bytes behind the last frame that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Nothing, or what a crash left of one frame.
    End,
    /// Later frames: what is here was damaged, and not torn by a crash.
    Later,
    /// Bytes that are no frame, nor a part of one. No crash leaves them.
    Rubbish,
}

/// Reads a log from a place on.
pub(crate) struct LogReader<'a> {
    log: &'a dyn File,
    drawn: &'a Drawn,
    /// Bytes of the file.
    end: u64,
    /// Of which byte on `held` is.
    at: u64,
    held: Vec<u8>,
    /// Bytes of `held` that are behind the reader.
    taken: usize,
    /// Bytes drawn from the budget for `held`.
    room: usize,
}

impl<'a> LogReader<'a> {
    /// From byte `from` on.
    ///
    /// # Errors
    /// `Corrupt` when the log is longer than any, and those of the system.
    pub(crate) fn new(log: &'a dyn File, from: u64, drawn: &'a Drawn) -> Result<LogReader<'a>> {
        let end = log.bytes()?;
        if end > LOG_BYTES_MAX {
            return Err(corrupt(format!(
                "the operations log is damaged: it has {end} bytes, and none has more than {LOG_BYTES_MAX}"
            )));
        }
        Ok(LogReader { log, drawn, end, at: from, held: Vec::new(), taken: 0, room: PIECE_BYTES })
    }

    /// The bytes from here on: `wanted` of them and no more, fewer where the file ends before.
    fn look(&mut self, wanted: usize) -> Result<&[u8]> {
        let there = self.held.len() - self.taken;
        if there < wanted && self.at + (self.held.len() as u64) < self.end {
            self.held.drain(..self.taken);
            self.at += self.taken as u64;
            self.taken = 0;
            self.fill(wanted.max(PIECE_BYTES))?;
        }
        let rest = &self.held[self.taken..];
        Ok(&rest[..rest.len().min(wanted)])
    }

    /// Holds `wanted` bytes, as far as there are so many.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        if wanted > self.room {
            self.drawn.more((wanted - self.room) as u64)?;
            self.room = wanted;
        }
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let (from, to) = (self.held.len(), wanted.min(left));
        self.held.resize(to.max(from), 0);
        let n = self.log.read_at(self.at + from as u64, &mut self.held[from..])?;
        if from + n < to {
            // Somebody cut it meanwhile.
            self.held.truncate(from + n);
            self.end = self.at + self.held.len() as u64;
        }
        Ok(())
    }

    /// The frame that is here, if it is whole, and the checksum that it gives of the one before.
    /// Checksums are always compared; only the simulator gives `compares` as false.
    pub(crate) fn frame(
        &mut self,
        identity: &Identity,
        compares: bool,
    ) -> Result<Option<(Frame<'_>, u64)>> {
        let Some(wanted) = frame::claimed(self.look(FRAME_HEADER_BYTES)?) else { return Ok(None) };
        Ok(frame::decode(identity, self.look(wanted)?, !compares))
    }

    /// The bytes of the frame that is here, as they were written, and no more memory than they need.
    pub(crate) fn whole(&mut self, bytes: u64) -> Result<Vec<u8>> {
        let mut whole = Vec::with_capacity(bytes as usize);
        whole.extend_from_slice(self.look(bytes as usize)?);
        whole.resize(bytes as usize, 0);
        Ok(whole)
    }

    /// Goes on behind so many bytes, which were looked at; never beyond the end.
    pub(crate) fn pass(&mut self, bytes: u64) {
        self.taken = self.held.len().min(self.taken.saturating_add(bytes as usize));
    }

    /// A reader at the same place.
    pub(crate) fn again(&self) -> LogReader<'a> {
        let at = self.at + self.taken as u64;
        LogReader { at, held: Vec::new(), taken: 0, room: PIECE_BYTES, ..*self }
    }

    /// How many frames can be opened from here on that have a higher number than this one.
    pub(crate) fn later(&mut self, identity: &Identity, sequence: u64) -> Result<u64> {
        let (mut count, mut claimed) = (0, 0_u64);
        loop {
            let header = self.look(FRAME_HEADER_BYTES)?;
            if header.is_empty() {
                return Ok(count);
            }
            let wanted = frame::claimed(header);
            claimed += wanted.unwrap_or(0) as u64;
            let frame = match wanted {
                Some(_) if claimed <= CLAIMED_MAX => self.frame(identity, true)?,
                _ => None,
            };
            let later = frame.filter(|(frame, _)| frame.sequence > sequence);
            let bytes = later.map(|(frame, _)| frame.bytes);
            count += u64::from(bytes.is_some());
            self.pass(bytes.unwrap_or(FRAME_ALIGN));
        }
    }

    /// The bytes here and behind, where no frame follows the one of this number. Frames are later
    /// ones when they are whole and have higher numbers. Of a sealed log headers are enough: nobody
    /// writes one into the bytes of a frame there, and a crash leaves one torn frame.
    pub(crate) fn behind(&mut self, identity: &Identity, sequence: u64) -> Result<Behind> {
        let is_sealed = identity.sealing().is_some();
        let (is_first, mut claimed, mut is_here) = (self.at + self.taken as u64 == 0, 0, true);
        loop {
            let header = self.look(FRAME_HEADER_BYTES)?;
            if header.is_empty() {
                return Ok(Behind::End);
            }
            if let Some(wanted) = frame::claimed(header) {
                let is_later = frame::claimed_sequence(header) > sequence;
                claimed += wanted as u64;
                if claimed > CLAIMED_MAX || is_sealed && is_later && !is_here {
                    return Ok(Behind::Later);
                }
                let whole = self.frame(identity, true)?;
                if whole.is_some_and(|(frame, _)| frame.sequence > sequence) {
                    return Ok(Behind::Later);
                }
            } else if is_first && is_here && self.look(SECTOR)?.iter().any(|&byte| byte != 0) {
                // The first sector of a frame is there or not, and before it nothing was there. Those
                // behind it may be there without it.
                return Ok(Behind::Rubbish);
            }
            is_here = false;
            self.pass(FRAME_ALIGN);
        }
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::Files;
    use onefold_testbed::{Rng, VirtualFiles, files::Layout};

    use super::*;

    fn behind(bytes: &[u8]) -> Behind {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        let log = files.create("log").unwrap();
        log.write_at(0, bytes).unwrap();
        let (identity, drawn) = (Identity::new([1; 16], &[2; 32]), Drawn::default());
        let mut reader = LogReader::new(&*log, 0, &drawn).unwrap();
        reader.behind(&identity, 0).unwrap()
    }

    /// A frame of three sectors.
    fn frame() -> Vec<u8> {
        let identity = Identity::new([1; 16], &[2; 32]);
        frame::encode(&identity, 1, 1, 0, &[7; 2 * SECTOR + 100]).unwrap().0
    }

    #[test]
    fn a_crash_may_leave_any_sectors_of_the_first_frame() {
        for there in 0..7 {
            let mut log = frame();
            for (n, sector) in log.chunks_mut(SECTOR).enumerate() {
                if there >> n & 1 == 0 {
                    sector.fill(0);
                }
            }
            assert_eq!(behind(&log), Behind::End, "{there:03b}");
        }
        assert_eq!(behind(&frame()), Behind::Later);
    }

    #[test]
    fn no_crash_leaves_anything_else_in_the_first_sector() {
        for at in [0, FRAME_HEADER_BYTES, SECTOR - 1] {
            let mut log = frame();
            log[..SECTOR].fill(0);
            log[at] = 1;
            assert_eq!(behind(&log), Behind::Rubbish, "byte {at}");
            assert_eq!(behind(&log[..=at]), Behind::Rubbish, "byte {at}");
        }
    }
}
