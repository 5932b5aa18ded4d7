//! What files that are restored in place have no data in: looked at, and made so.
//!
//! Whoever wrote the snapshot decides how many zeroes and holes a file has, and how short they are. So
//! those that are too short for a hole are looked at, and written, together.

use std::{fs::File, os::unix::fs::FileExt};

use onefold_backend::{
    sparse::first_data,
    tree::{punch, write_part},
};
use onefold_core::Result;

/// Zeroes or a hole of a file: the first byte, how many there are, and whether it is a hole.
pub(super) type Gap = (u64, u64, bool);

/// A gap of fewer bytes is no hole.
pub(super) const HOLE_BYTES: u64 = 4 << 10;

/// Bytes of a file that are looked at at a time.
const LOOK_BYTES: u64 = 256 << 10;

/// What of a file is asked for here.
pub(super) trait Old {
    /// Reads bytes as far as the file has some; gives how many.
    fn read(&self, into: &mut [u8], at: u64) -> std::io::Result<usize>;

    /// The first byte from here on that has data.
    fn data(&self, from: u64) -> Result<Option<u64>>;

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    fn punch(&self, at: u64, bytes: u64) -> Result<()>;
}

impl Old for File {
    fn read(&self, into: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.read_at(into, at)
    }

    fn data(&self, from: u64) -> Result<Option<u64>> {
        first_data(self, from)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        write_part(self, at, bytes)
    }

    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        punch(self, at, bytes)
    }
}

/// The last stretch without data that was found in a file, and the byte behind it. As gaps rise, no part
/// of a file is looked through twice, however many gaps it has.
#[derive(Default)]
pub(super) struct Known(Option<(u64, u64)>);

impl Known {
    /// The first byte from here on that has data; `u64::MAX` when there is none.
    fn data(&mut self, file: &impl Old, from: u64) -> Result<u64> {
        match self.0 {
            Some((first, data)) if (first..=data).contains(&from) => Ok(data),
            _ => {
                let data = file.data(from)?.unwrap_or(u64::MAX);
                self.0 = Some((from, data));
                Ok(data)
            }
        }
    }
}

/// The gaps of a file, which rise: one, or several short ones that are near each other.
pub(super) fn together(gaps: &[Gap]) -> impl Iterator<Item = &[Gap]> {
    let mut rest = gaps;
    std::iter::from_fn(move || {
        let (first, later) = rest.split_first()?;
        let near = |gap: &&Gap| {
            let is_near = gap.0.saturating_add(gap.1) - first.0 <= LOOK_BYTES;
            first.1 < HOLE_BYTES && gap.1 < HOLE_BYTES && is_near
        };
        let count = 1 + later.iter().take_while(near).count();
        let (now, later) = rest.split_at(count);
        rest = later;
        Some(now)
    })
}

/// True when a file of so many bytes has zeroes in gaps that are looked at [`together`], or no data where
/// a hole is to be. What is `known` of the file is from gaps before these.
///
/// # Errors
/// Those of the system.
pub(super) fn are_gaps(
    file: &impl Old,
    length: u64,
    gaps: &[Gap],
    known: &mut Known,
) -> Result<bool> {
    match gaps {
        [(at, bytes, is_hole)] if *bytes >= HOLE_BYTES => {
            is_gap(file, (*at, at.saturating_add(*bytes).min(length)), *is_hole, known)
        }
        // What can't be read is written.
        _ => Ok(window(file, gaps).is_some_and(|(from, window)| {
            let zero = |range: &[u8]| range.iter().all(|&byte| byte == 0);
            gaps.iter().all(|gap| window.get(within(from, *gap)).is_some_and(zero))
        })),
    }
}

/// Makes gaps that are looked at [`together`] zeroes, or holes.
///
/// # Errors
/// Those of the system.
pub(super) fn clear(file: &impl Old, gaps: &[Gap]) -> Result<()> {
    match (gaps, window(file, gaps)) {
        ([_, _, ..], Some((from, mut window))) => {
            for gap in gaps {
                if let Some(range) = window.get_mut(within(from, *gap)) {
                    range.fill(0);
                }
            }
            file.write(from, &window)
        }
        _ => gaps.iter().try_for_each(|(at, bytes, _)| file.punch(*at, *bytes)),
    }
}

/// Where a gap is in a window that begins at this byte.
fn within(from: u64, (at, bytes, _): Gap) -> std::ops::Range<usize> {
    let at = (at - from) as usize;
    at..at + bytes as usize
}

/// What a file has from the first to the last of short gaps, and zeroes behind its end; `None` where it
/// can't be read.
fn window(file: &impl Old, gaps: &[Gap]) -> Option<(u64, Vec<u8>)> {
    let (&(from, ..), &(last, bytes, _)) = (gaps.first()?, gaps.last()?);
    let length = usize::try_from(last.saturating_add(bytes) - from).ok()?;
    if length as u64 > LOOK_BYTES {
        return None;
    }
    let mut window = vec![0; length];
    read_all(file, from, &mut window)?;
    Some((from, window))
}

/// Reads what a file has from a byte on, with zeroes behind its end; `None` where it can't be read.
pub(super) fn read_all(file: &impl Old, from: u64, into: &mut [u8]) -> Option<()> {
    let mut read = 0;
    while read < into.len() {
        match file.read(&mut into[read..], from + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// True when a file has zeroes in a range, or no data when it is to be a hole.
fn is_gap(
    file: &impl Old,
    (mut at, end): (u64, u64),
    is_hole: bool,
    known: &mut Known,
) -> Result<bool> {
    let mut room = Vec::new();
    while at < end {
        at = known.data(file, at)?;
        if at >= end {
            break;
        }
        if is_hole {
            return Ok(false);
        }
        // Where its data end is not asked: holes are read as zeroes.
        room.resize(LOOK_BYTES as usize, 0);
        let most = room.len().min((end - at) as usize);
        let n = file.read(&mut room[..most], at).unwrap_or(0);
        if n == 0 || room[..n].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A file that counts what is asked of it.
    pub(in super::super) struct Counted {
        pub(in super::super) bytes: RefCell<Vec<u8>>,
        pub(in super::super) calls: Cell<u64>,
        /// Bytes that were passed over in search of data: all in which there are none.
        passed: Cell<u64>,
    }

    impl Counted {
        pub(in super::super) fn new(bytes: Vec<u8>) -> Counted {
            Counted { bytes: RefCell::new(bytes), calls: Cell::new(0), passed: Cell::new(0) }
        }
    }

    impl Old for Counted {
        fn read(&self, into: &mut [u8], at: u64) -> std::io::Result<usize> {
            self.calls.set(self.calls.get() + 1);
            let bytes = self.bytes.borrow();
            let from = bytes.get(at as usize..).unwrap_or_default();
            let n = from.len().min(into.len());
            into[..n].copy_from_slice(&from[..n]);
            Ok(n)
        }

        fn data(&self, from: u64) -> Result<Option<u64>> {
            self.calls.set(self.calls.get() + 1);
            let bytes = self.bytes.borrow();
            let rest = bytes.get(from as usize..).unwrap_or_default();
            let data = rest.iter().position(|&byte| byte != 0);
            self.passed.set(self.passed.get() + data.unwrap_or(rest.len()) as u64);
            Ok(data.map(|passed| from + passed as u64))
        }

        fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
            self.calls.set(self.calls.get() + 1);
            self.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn punch(&self, at: u64, bytes: u64) -> Result<()> {
            self.write(at, &vec![0; bytes as usize])
        }
    }

    #[test]
    fn rule_09_tiny_gaps_are_looked_at_and_cleared_together() {
        let length = 3_000_000;
        let file = Counted::new(vec![7; length]);
        let mut gaps: Vec<Gap> = (0..900_000).map(|n| (3 * n + 1, 1 + n % 2, n % 3 == 0)).collect();
        gaps.push((2_800_000, 100_000, false));
        let mut clean = 0;
        for round in 0..2 {
            let mut known = Known::default();
            for near in together(&gaps) {
                match are_gaps(&file, length as u64, near, &mut known).unwrap() {
                    true => clean += 1,
                    false => clear(&file, near).unwrap(),
                }
            }
            assert_eq!(clean > 0, round == 1);
        }
        assert_eq!(clean, together(&gaps).count());
        let mut expected = vec![7; length];
        gaps.iter().for_each(|(at, bytes, _)| expected[*at as usize..][..*bytes as usize].fill(0));
        assert!(*file.bytes.borrow() == expected, "what is no gap stays");
        let calls = file.calls.get();
        assert!(calls < 100, "{calls} calls");
    }

    #[test]
    fn gaps_behind_the_end_are_zeroes_and_a_hole_has_no_data() {
        let file = Counted::new(vec![0; 10_000]);
        let are = |gaps: &[Gap]| are_gaps(&file, 10_000, gaps, &mut Known::default()).unwrap();
        assert!(are(&[(9_999, 5, false), (10_010, 9, true)]));
        assert!(are(&[(1_000, 900_000, false)]));
        assert!(are(&[(1_000, 5_000, true)]));
        file.bytes.borrow_mut()[5_999] = 1;
        assert!(!are(&[(1_000, 5_000, true)]) && !are(&[(1_000, 5_000, false)]));
        assert!(are(&[(1_000, 4_999, true)]) && are(&[(6_000, 4_000, true)]));
        let short = [(5, 5, true), (20, 5, true), (300_000, 5, true), (300_005, 1 << 40, true)];
        let groups: Vec<usize> = together(&short).map(<[Gap]>::len).collect();
        assert_eq!(groups, [2, 1, 1]);
    }
    /// A file of a million holes is not looked through a million times.
    #[test]
    fn rule_05_no_part_of_an_old_file_is_looked_through_for_each_gap() {
        let length = 3_000_000;
        let file = Counted::new(vec![0; length]);
        for at in [1_000_000, 1_000_100, 2_999_999] {
            file.bytes.borrow_mut()[at] = 1;
        }
        let gaps: Vec<Gap> = (0..500).map(|n| (6_000 * n, 4_096, n % 2 == 0)).collect();
        let mut known = Known::default();
        let are = |near| are_gaps(&file, length as u64, near, &mut known).unwrap();
        let clean = together(&gaps).map(are).filter(|clean| *clean).count();
        assert_eq!(clean, 499, "two bytes are in one gap, and one is in none");
        assert!(file.passed.get() <= length as u64, "{} bytes passed", file.passed.get());
    }
}
