//! Content on its way out, in large writes. Whoever wrote an archive decides how short its chunks, zeroes
//! and holes are; each of them as a write of its own would be a call of the system for a byte.

use std::fs::File;

use onefold_backend::tree::write_part;
use onefold_core::Result;

/// Bytes that are written at once.
const GATHERED_BYTES: usize = 256 << 10;

/// Bytes of a file that are written at once without being copied.
const DIRECT_BYTES: usize = 32 << 10;

/// Zeroes that are as many or more are not written to a file, where they are a hole. Fewer ones take as
/// much space there as a hole of fewer bytes than a block does.
const HOLE_BYTES: u64 = 4 << 10;

/// Zeroes that are written at once.
static ZEROES: [u8; GATHERED_BYTES] = [0; GATHERED_BYTES];

/// Writes some bytes that come next.
type Write<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Content that goes out as a stream.
pub(super) struct Gathered<'a> {
    held: Vec<u8>,
    write: &'a mut Write<'a>,
}

impl<'a> Gathered<'a> {
    pub(super) fn new(write: &'a mut Write<'a>) -> Gathered<'a> {
        Gathered { held: Vec::new(), write }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// Those of the writing.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if self.held.len() + bytes.len() > GATHERED_BYTES {
            self.end()?;
        }
        if bytes.len() >= GATHERED_BYTES {
            return (self.write)(bytes);
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    /// The next zeroes.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub(super) fn zeroes(&mut self, mut zeroes: u64) -> Result<()> {
        while zeroes > 0 {
            let now = zeroes.min(ZEROES.len() as u64);
            self.bytes(&ZEROES[..now as usize])?;
            zeroes -= now;
        }
        Ok(())
    }

    /// Writes what is held.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub(super) fn end(&mut self) -> Result<()> {
        if !self.held.is_empty() {
            (self.write)(&self.held)?;
            self.held.clear();
        }
        Ok(())
    }
}

/// Content of one new file after the other, each in the order of its bytes. What is left out stays a
/// hole.
#[derive(Default)]
pub(super) struct Stretch {
    /// Where what is held begins.
    at: u64,
    held: Vec<u8>,
}

impl Stretch {
    /// Bytes at a place that is not before the last one.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn bytes(&mut self, file: &File, at: u64, bytes: &[u8]) -> Result<()> {
        self.bytes_by(&mut |at, bytes| write_part(file, at, bytes), at, bytes)
    }

    /// Writes what is held, before anything of another file comes.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn end(&mut self, file: &File) -> Result<()> {
        self.end_by(&mut |at, bytes| write_part(file, at, bytes))
    }

    fn bytes_by(
        &mut self,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
        at: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let end = self.at + self.held.len() as u64;
        let gap = at.checked_sub(end).filter(|gap| *gap < HOLE_BYTES && !self.held.is_empty());
        let room = GATHERED_BYTES.saturating_sub(self.held.len());
        match gap {
            Some(gap) if gap as usize + bytes.len() <= room && bytes.len() < DIRECT_BYTES => {
                self.held.resize(self.held.len() + gap as usize, 0);
            }
            _ => {
                self.end_by(write)?;
                self.at = at;
            }
        }
        if bytes.len() >= DIRECT_BYTES {
            return write(at, bytes);
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    fn end_by(&mut self, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        if !self.held.is_empty() {
            write(self.at, &self.held)?;
            self.held.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_09_a_stream_of_tiny_pieces_goes_out_in_few_writes() {
        let (mut writes, mut all) = (0, Vec::new());
        let mut write = |bytes: &[u8]| {
            writes += 1;
            all.extend_from_slice(bytes);
            Ok(())
        };
        let mut out = Gathered::new(&mut write);
        let mut expected = Vec::new();
        for n in 0..1_000_000_u64 {
            out.bytes(b"\n").unwrap();
            out.zeroes(n % 3).unwrap();
            expected.push(b'\n');
            expected.resize(expected.len() + (n % 3) as usize, 0);
        }
        for bytes in [vec![1; 300_000], vec![2; 5]] {
            out.bytes(&bytes).unwrap();
            expected.extend(bytes);
        }
        out.zeroes(600_000).unwrap();
        expected.resize(expected.len() + 600_000, 0);
        out.end().unwrap();
        assert!(all == expected);
        assert!(writes < 30, "{writes} writes");
    }

    /// Bytes that were written at a place.
    fn written(pieces: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
        let (mut stretch, mut writes) = (Stretch::default(), Vec::new());
        let mut write = |at, bytes: &[u8]| {
            writes.push((at, bytes.to_vec()));
            Ok(())
        };
        for (at, bytes) in pieces {
            stretch.bytes_by(&mut write, *at, bytes).unwrap();
        }
        stretch.end_by(&mut write).unwrap();
        writes
    }

    #[test]
    fn rule_09_a_file_of_tiny_holes_is_written_in_few_writes() {
        let tiny: Vec<(u64, Vec<u8>)> = (0..1_000_000).map(|n| (3 * n, vec![7])).collect();
        let writes = written(&tiny);
        assert!(writes.len() < 30, "{} writes", writes.len());
        let mut at = 0;
        for (from, bytes) in &writes {
            assert_eq!(*from, at);
            assert!(
                bytes.chunks(3).all(|three| three[0] == 7 && three[1..].iter().all(|b| *b == 0))
            );
            at = from + bytes.len() as u64 + 2;
        }
    }

    #[test]
    fn holes_of_a_block_or_more_stay_holes() {
        let pieces = [
            (10, vec![1; 10]),
            (20, vec![2]),
            (5000, vec![3]),
            (5001, vec![4; 300_000]),
            (310_000, vec![5]),
        ];
        let expected = vec![
            (10, [vec![1; 10], vec![2]].concat()),
            (5000, vec![3]),
            (5001, vec![4; 300_000]),
            (310_000, vec![5]),
        ];
        assert_eq!(written(&pieces), expected);
        assert_eq!(written(&[]), []);
    }
}
