//! Ranges of a file that are too short to be written one by one. Chunks come in the order of their places
//! in the archive, and whoever wrote that decides how short they are.

use std::collections::BTreeMap;

use onefold_core::Result;

use super::gaps::{Old, read_all};

/// A range of so many bytes is written by itself.
pub(super) const TINY_BYTES: usize = 4 << 10;

/// A file of fewer bytes has few ranges.
pub(super) const FILE_BYTES: u64 = 64 << 10;

/// Ranges of a file that are held, at most.
const HELD_MAX: usize = 4096;

/// Bytes of a file that are written at once.
const WINDOW_BYTES: u64 = 256 << 10;

/// Ranges of a file that are not written yet, by their places.
#[derive(Default)]
pub(super) struct Tiny(BTreeMap<u64, Vec<u8>>);

impl Tiny {
    /// Takes a range; true when there are so many that they have to be written.
    pub(super) fn take(&mut self, at: u64, bytes: &[u8]) -> bool {
        self.0.insert(at, bytes.to_vec());
        self.0.len() >= HELD_MAX
    }

    /// Writes what is held. Ranges that are near each other go out together, with what the file has
    /// between them: nobody else may write to it meanwhile.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn write(&mut self, file: &impl Old) -> Result<()> {
        let mut held = std::mem::take(&mut self.0).into_iter().peekable();
        while let Some((from, first)) = held.next() {
            let end_of = |at: u64, bytes: &[u8]| at + bytes.len() as u64;
            let (mut end, mut near) = (end_of(from, &first), vec![(from, first)]);
            while let Some((at, bytes)) =
                held.next_if(|(at, bytes)| end_of(*at, bytes) - from <= WINDOW_BYTES)
            {
                end = end.max(end_of(at, &bytes));
                near.push((at, bytes));
            }
            if let [(at, only)] = &near[..] {
                file.write(*at, only)?;
                continue;
            }
            let mut window = vec![0; (end - from) as usize];
            if read_all(file, from, &mut window).is_none() {
                // What can't be read is not written over.
                near.iter().try_for_each(|(at, bytes)| file.write(*at, bytes))?;
                continue;
            }
            for (at, bytes) in &near {
                window[(at - from) as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            file.write(from, &window)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::gaps::tests::Counted, *};

    #[test]
    fn rule_09_tiny_ranges_in_any_order_are_written_together() {
        let length = 600_000;
        let file = Counted::new(vec![9; length]);
        let mut expected = vec![9; length];
        let mut tiny = Tiny::default();
        // One chunk at many places, then another one between them.
        for (from, byte) in [(0, 1), (1, 2)] {
            for at in (from..length).step_by(3) {
                expected[at] = byte;
                if tiny.take(at as u64, &[byte]) {
                    tiny.write(&file).unwrap();
                }
            }
        }
        tiny.write(&file).unwrap();
        assert!(*file.bytes.borrow() == expected, "what lies between stays");
        assert!(file.calls.get() < 400, "{} calls", file.calls.get());
        // Far from each other each is written by itself.
        let file = Counted::new(vec![0; 3 << 20]);
        for at in [0, 1 << 20, 2 << 20] {
            tiny.take(at, &[1, 2, 3]);
        }
        tiny.write(&file).unwrap();
        assert_eq!(file.calls.get(), 3);
        assert_eq!(file.bytes.borrow()[(1 << 20)..][..4], [1, 2, 3, 0]);
    }
}
