//! Notes of when the archive was collected and read.
//!
//! A note is a record of unfinished containers that names no container: its number of seconds is
//! the note. Programs that know no notes read a list of nothing, and change nothing by it.

use super::ContainerId;

/// A note in the log. Times are seconds since 1970, by the clock of the process that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CareNote {
    /// A collection went through to its end, and nobody held anything back before it dropped what
    /// was dead.
    Collected(u64),
    /// A round of scrubs began, with the lowest number of a container.
    ScrubBegan(u64),
    /// The round has read all containers up to this number.
    Scrubbed(ContainerId),
    /// The round has read all containers.
    ScrubEnded(u64),
}

/// Where the kind of a note stands in its number; below it is the value.
const KIND_SHIFT: u32 = 56;

const VALUE_MAX: u64 = (1 << KIND_SHIFT) - 1;

impl CareNote {
    pub(super) fn encode(self) -> u64 {
        let (kind, value) = match self {
            CareNote::Collected(at) => (1, at),
            CareNote::ScrubBegan(at) => (2, at),
            CareNote::Scrubbed(upto) => (3, upto.0),
            CareNote::ScrubEnded(at) => (4, at),
        };
        kind << KIND_SHIFT | value.min(VALUE_MAX)
    }

    /// `None` for what is no note, or one of a later program.
    pub(super) fn decode(number: u64) -> Option<CareNote> {
        let value = number & VALUE_MAX;
        Some(match number >> KIND_SHIFT {
            1 => CareNote::Collected(value),
            2 => CareNote::ScrubBegan(value),
            3 => CareNote::Scrubbed(ContainerId(value)),
            4 => CareNote::ScrubEnded(value),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::Record;

    #[test]
    fn a_note_is_a_list_of_no_containers() {
        let last = ContainerId(ContainerId::END - 1);
        for note in [
            CareNote::Collected(0),
            CareNote::ScrubBegan(1_795_608_000),
            CareNote::Scrubbed(last),
            CareNote::ScrubEnded(VALUE_MAX),
        ] {
            let bytes = Record::encode_all(&[Record::CareNoted(note)]);
            assert_eq!((bytes[0], &bytes[9..]), (2, &[0; 4][..]));
            assert_eq!(Record::decode_all(&bytes).unwrap(), [Record::CareNoted(note)]);
        }
        for at in [0, 1_795_608_000, 5 << KIND_SHIFT, u64::MAX] {
            let none = Record::Unfinished { containers: Vec::new(), at };
            let bytes = Record::encode_all(std::slice::from_ref(&none));
            assert_eq!(Record::decode_all(&bytes).unwrap(), [none]);
        }
    }
}
