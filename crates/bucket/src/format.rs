//! The bytes of frames and names. `docs/archive-format.md` describes them. Bytes of a store are hostile: a
//! decoder returns a typed value or `Corrupt`.

use std::fmt;

use onefold_core::{Error, Kind, Result, hex_digits};

/// Begins a frame.
const FRAME_MAGIC: [u8; 8] = *b"ONEFFRM1";

/// Bytes of a frame before its records.
const HEAD: usize = 96;

/// Bytes of a hash.
const SUM: usize = 32;

/// Most bytes of a frame.
pub(crate) const FRAME_MAX: u64 = 32 << 20;

/// Most records of a frame: more than stand in [`FRAME_MAX`] bytes where one has 9 bytes, as all that writers make in numbers have.
pub(crate) const RECORDS_MAX: usize = 1 << 22;

/// Most bytes of a pack that stands in its frame. Each read of one reads the whole frame, so a frame has one, which is kept in
/// memory as a whole.
pub(crate) const INLINE_MAX: usize = 64 << 10;

/// Most bytes of a pack.
pub(crate) const PACK_MAX: usize = 32 << 20;

/// Most bytes of a table.
pub(crate) const TABLE_MAX: u64 = 1 << 30;

/// Most bytes of a file, in an archive that nobody damaged.
pub(crate) const FILE_MAX: u64 = 1 << 56;

/// Most bytes of a file's name.
const NAME_MAX: usize = 255;

/// Most bytes of what a writer says of itself.
const WHO_MAX: usize = 1024;

/// The folder of frames.
pub(crate) const LOG: &str = "log/";

/// The folder of leases.
pub(crate) const LEASES: &str = "writer/";

/// The folder of what is made to try the store.
pub(crate) const PROBES: &str = "probe/";

/// The kind of an object that a writer names by its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sort {
    /// Bytes of files.
    Pack,
    /// A state as of a frame.
    Table,
    /// Bytes of files with keys. They have a folder of their own, so that all of them are found at once.
    Keys,
}

impl Sort {
    pub(crate) const ALL: [Sort; 3] = [Sort::Pack, Sort::Table, Sort::Keys];

    /// Its folder.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Sort::Pack => "data/",
            Sort::Table => "table/",
            Sort::Keys => "keys/",
        }
    }
}

/// A pack or a table, by its owner and the owner's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) sort: Sort,
    /// The number of the frame by which the writer joined.
    pub(crate) writer: u64,
    pub(crate) number: u64,
}

impl Id {
    /// The one that an object's name tells.
    pub(crate) fn parse(name: &str) -> Option<Id> {
        let sort = Sort::ALL.into_iter().find(|s| name.starts_with(s.folder()))?;
        let (writer, number) = name.strip_prefix(sort.folder())?.split_once('-')?;
        let id = Id {
            sort,
            writer: u64::from_str_radix(writer, 16).ok()?,
            number: u64::from_str_radix(number, 16).ok()?,
        };
        (id.to_string() == name).then_some(id)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:016x}-{:08x}", self.sort.folder(), self.writer, self.number)
    }
}

/// The object of a pack, by its owner and the owner's own number.
pub(crate) fn pack_id((writer, number): (u64, u64), secret: bool) -> Id {
    Id { sort: if secret { Sort::Keys } else { Sort::Pack }, writer, number }
}

/// The name of a frame.
pub(crate) fn frame_name(number: u64) -> String {
    format!("{LOG}{number:020}")
}

/// The number of the frame of this name; `None` for a name that no frame has.
pub(crate) fn frame_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix(LOG)?.parse().ok()?;
    (number > 0 && frame_name(number) == name).then_some(number)
}

/// The name of a writer's lease.
pub(crate) fn lease_name(writer: u64) -> String {
    format!("{LEASES}{writer:016x}")
}

/// The writer of the lease of this name; `None` for a name that no lease has.
pub(crate) fn lease_of(name: &str) -> Option<u64> {
    let writer = u64::from_str_radix(name.strip_prefix(LEASES)?, 16).ok()?;
    (writer > 0 && lease_name(writer) == name).then_some(writer)
}

/// The name of what is made to try the store.
pub(crate) fn probe_name(chance: [u8; 16]) -> String {
    format!("{PROBES}{}", hex_digits(chance))
}

/// True for names that [`probe_name`] gives.
pub(crate) fn is_probe(name: &str) -> bool {
    name.strip_prefix(PROBES).is_some_and(is_chance)
}

/// True for 16 bytes of chance as this crate writes them: 32 hexadecimal digits.
pub(crate) fn is_chance(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A decoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first record of a log: what the bucket's id is.
    Made { id: [u8; 16] },
    /// The writer of this frame joins, and shuts out another one, unless that is 0.
    Join { fences: u64, told: String, mark: String },
    /// The writer ends.
    Leave,
    /// A pack of the writer with its hash, that is an object, or stands at this byte of the frame.
    Pack { number: u64, bytes: u32, sum: [u8; 32], secret: bool, inline: Option<u32> },
    /// A file.
    Create { inode: u64, name: String },
    /// A file is gone.
    Remove { inode: u64 },
    /// A file is so long.
    Size { inode: u64, bytes: u64 },
    /// A range reads as zeroes.
    Punch { inode: u64, at: u64, bytes: u64 },
    /// A range has the bytes of a pack of the writer.
    Extent { inode: u64, at: u64, bytes: u32, pack: u64, pack_at: u32 },
    /// The state before this frame is in a table of the writer.
    Table { number: u64, bytes: u64, sum: [u8; 32] },
    /// A dropped object was deleted.
    Gone { id: Id },
}

/// Bytes that grow.
#[derive(Default)]
pub(crate) struct Writing(pub(crate) Vec<u8>);

impl Writing {
    pub(crate) fn byte(&mut self, value: u8) -> &mut Writing {
        self.0.push(value);
        self
    }

    pub(crate) fn four(&mut self, value: u32) -> &mut Writing {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn eight(&mut self, value: u64) -> &mut Writing {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Writing {
        self.0.extend(bytes);
        self
    }

    /// A text behind its length.
    pub(crate) fn text(&mut self, text: &str) -> &mut Writing {
        let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.raw(bytes)
    }
}

/// Bytes that are read.
pub(crate) struct Reading<'a>(pub(crate) &'a [u8]);

/// An error about bytes that are no frame, table or name.
pub(crate) fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, what)
}

impl<'a> Reading<'a> {
    pub(crate) fn raw(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (head, rest) =
            self.0.split_at_checked(bytes).ok_or_else(|| damaged("it is cut off"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.raw(N)?.try_into().map_err(|_| damaged("it is cut off"))
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn four(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn eight(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn truth(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(damaged("a truth is neither 0 nor 1")),
        }
    }

    pub(crate) fn text(&mut self, most: usize) -> Result<String> {
        let bytes = usize::from(self.array().map(u16::from_le_bytes)?);
        if bytes > most {
            return Err(damaged("a text is too long"));
        }
        let text = String::from_utf8(self.raw(bytes)?.to_vec());
        text.map_err(|_| damaged("a text is none"))
    }

    /// The name of a file.
    pub(crate) fn name(&mut self) -> Result<String> {
        let name = self.text(NAME_MAX)?;
        match is_name(&name) {
            true => Ok(name),
            false => Err(damaged("a file's name is none")),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// True for what can be a file's name.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_graphic() && b != b'/';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain)
}

impl Record {
    fn write(&self, to: &mut Writing) {
        match self {
            Record::Made { id } => to.byte(1).raw(id),
            Record::Join { fences, told, mark } => to.byte(2).eight(*fences).text(told).text(mark),
            Record::Leave => to.byte(3),
            Record::Pack { number, bytes, sum, secret, inline } => {
                let place = inline.map_or(0, |at| at + 1);
                to.byte(4).eight(*number).four(*bytes).raw(sum);
                to.byte(u8::from(*secret)).four(place)
            }
            Record::Create { inode, name } => to.byte(5).eight(*inode).text(name),
            Record::Remove { inode } => to.byte(6).eight(*inode),
            Record::Size { inode, bytes } => to.byte(7).eight(*inode).eight(*bytes),
            Record::Punch { inode, at, bytes } => to.byte(8).eight(*inode).eight(*at).eight(*bytes),
            Record::Extent { inode, at, bytes, pack, pack_at } => {
                to.byte(9).eight(*inode).eight(*at).four(*bytes).eight(*pack).four(*pack_at)
            }
            Record::Table { number, bytes, sum } => {
                to.byte(10).eight(*number).eight(*bytes).raw(sum)
            }
            Record::Gone { id } => write_id(to.byte(11), id),
        };
    }

    fn read(from: &mut Reading<'_>) -> Result<Record> {
        Ok(match from.byte()? {
            1 => Record::Made { id: from.array()? },
            2 => Record::Join {
                fences: from.eight()?,
                told: from.text(WHO_MAX)?,
                mark: from.text(WHO_MAX)?,
            },
            3 => Record::Leave,
            4 => Record::Pack {
                number: from.eight()?,
                bytes: from.four()?,
                sum: from.array()?,
                secret: from.truth()?,
                inline: from.four()?.checked_sub(1),
            },
            5 => Record::Create { inode: from.eight()?, name: from.name()? },
            6 => Record::Remove { inode: from.eight()? },
            7 => Record::Size { inode: from.eight()?, bytes: from.eight()? },
            8 => Record::Punch { inode: from.eight()?, at: from.eight()?, bytes: from.eight()? },
            9 => Record::Extent {
                inode: from.eight()?,
                at: from.eight()?,
                bytes: from.four()?,
                pack: from.eight()?,
                pack_at: from.four()?,
            },
            10 => Record::Table { number: from.eight()?, bytes: from.eight()?, sum: from.array()? },
            11 => Record::Gone { id: read_id(from)? },
            _ => {
                let why = "the bucket has records of a newer program";
                return Err(Error::new(Kind::Unsupported, why));
            }
        })
    }
}

pub(crate) fn write_id<'a>(to: &'a mut Writing, id: &Id) -> &'a mut Writing {
    let sort = match id.sort {
        Sort::Pack => 0,
        Sort::Table => 1,
        Sort::Keys => 2,
    };
    to.byte(sort).eight(id.writer).eight(id.number)
}

pub(crate) fn read_id(from: &mut Reading<'_>) -> Result<Id> {
    let sort = match from.byte()? {
        0 => Sort::Pack,
        1 => Sort::Table,
        2 => Sort::Keys,
        _ => return Err(damaged("an object is of no sort")),
    };
    Ok(Id { sort, writer: from.eight()?, number: from.eight()? })
}

/// A frame of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number, from 1 on.
    pub number: u64,
    /// Its writer: the number of the frame by which that one joined.
    pub writer: u64,
    /// Chance, by which two frames of one writer differ.
    pub nonce: [u8; 16],
    /// The hash of the frame before; zeroes in the first one.
    pub before: [u8; 32],
    /// The newest frame up to this one that names a table, or 0.
    pub table_frame: u64,
    /// When it was made, by its writer's clock: seconds since 1970. Shown, and nothing else.
    pub time: u64,
    /// Its hash.
    pub sum: [u8; 32],
    pub(crate) records: Vec<Record>,
    /// Bytes of the object.
    pub(crate) bytes: u64,
}

/// The parts of which a frame is made.
pub(crate) struct Parts<'a> {
    pub(crate) number: u64,
    pub(crate) writer: u64,
    pub(crate) nonce: [u8; 16],
    pub(crate) before: [u8; 32],
    pub(crate) table_frame: u64,
    pub(crate) time: u64,
    pub(crate) records: &'a [Record],
    pub(crate) inline: &'a [u8],
}

/// Bytes that records of a frame take.
pub(crate) fn records_bytes(records: &[Record]) -> usize {
    let mut all = Writing::default();
    records.iter().for_each(|record| record.write(&mut all));
    all.0.len()
}

/// The byte of a frame at which its inline bytes begin, behind records of this length.
pub(crate) fn inline_at(records_bytes: usize) -> usize {
    HEAD + records_bytes
}

impl Frame {
    /// The bytes of a frame, and its hash.
    pub(crate) fn encode(parts: &Parts<'_>) -> (Vec<u8>, [u8; 32]) {
        let mut records = Writing::default();
        parts.records.iter().for_each(|record| record.write(&mut records));
        let mut all = Writing::default();
        all.raw(&FRAME_MAGIC).eight(parts.number).eight(parts.writer).raw(&parts.nonce);
        all.raw(&parts.before).eight(parts.table_frame).eight(parts.time);
        all.four(records.0.len() as u32).four(parts.inline.len() as u32);
        all.raw(&records.0).raw(parts.inline);
        let sum = *blake3::hash(&all.0).as_bytes();
        all.raw(&sum);
        (all.0, sum)
    }

    /// The frame of this number that the object has.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` when a newer program made it.
    pub fn decode(bytes: &[u8], number: u64) -> Result<Frame> {
        Frame::decode_checked(bytes, number, true)
    }

    pub(crate) fn decode_checked(bytes: &[u8], number: u64, hashed: bool) -> Result<Frame> {
        let body = bytes.len().checked_sub(SUM).map(|end| bytes.split_at(end));
        let (body, sum) = body.ok_or_else(|| damaged("it is too short"))?;
        let mut from = Reading(body);
        if from.array()? != FRAME_MAGIC {
            return Err(damaged("it does not begin as a frame"));
        }
        if hashed && blake3::hash(body).as_bytes() != sum {
            return Err(damaged("its hash is another one"));
        }
        let frame = (from.eight()?, from.eight()?, from.array()?, from.array()?);
        let (table_frame, time) = (from.eight()?, from.eight()?);
        let (records, inline) = (from.four()? as usize, from.four()? as usize);
        if frame.0 != number || body.len() != HEAD + records + inline {
            return Err(damaged("it is another one"));
        }
        let mut from = Reading(from.raw(records)?);
        let mut records = Vec::new();
        let mut packs_here = 0;
        while !from.is_over() {
            if records.len() == RECORDS_MAX {
                return Err(damaged("it has more records than a frame has"));
            }
            let record = Record::read(&mut from)?;
            packs_here += usize::from(matches!(record, Record::Pack { inline: Some(_), .. }));
            records.push(record);
        }
        if inline > INLINE_MAX || packs_here > 1 {
            return Err(damaged("it has more bytes of files than a frame has"));
        }
        let sum = sum.try_into().map_err(|_| damaged("it is too short"))?;
        let (number, writer, nonce, before) = frame;
        let bytes = bytes.len() as u64;
        Ok(Frame { number, writer, nonce, before, table_frame, time, sum, records, bytes })
    }

    /// True when its writer joins by it, and whom it shuts out if that is not 0.
    #[must_use]
    pub fn joins(&self) -> Option<u64> {
        self.records.iter().find_map(|record| match record {
            Record::Join { fences, .. } => Some(*fences),
            _ => None,
        })
    }

    /// True when its writer ends by it.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.records.contains(&Record::Leave)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_no_byte_of_it_can_change() {
        let records = vec![
            Record::Made { id: [3; 16] },
            Record::Join { fences: 7, told: "host".into(), mark: "m".into() },
            Record::Pack { number: 1, bytes: 5, sum: [5; 32], secret: false, inline: Some(0) },
            Record::Create { inode: 1, name: "log-1".into() },
            Record::Extent { inode: 1, at: 10, bytes: 5, pack: 1, pack_at: 0 },
            Record::Punch { inode: 1, at: 0, bytes: 3 },
            Record::Size { inode: 1, bytes: 100 },
            Record::Remove { inode: 1 },
            Record::Table { number: 2, bytes: 9, sum: [4; 32] },
            Record::Gone { id: Id { sort: Sort::Table, writer: 1, number: 1 } },
            Record::Gone { id: Id { sort: Sort::Keys, writer: 1, number: 3 } },
            Record::Leave,
        ];
        let parts = Parts {
            number: 9,
            writer: 2,
            nonce: [1; 16],
            before: [2; 32],
            table_frame: 9,
            time: 77,
            records: &records,
            inline: b"bytes",
        };
        let (bytes, sum) = Frame::encode(&parts);
        let frame = Frame::decode(&bytes, 9).unwrap();
        assert_eq!((frame.records.as_slice(), frame.sum), (records.as_slice(), sum));
        let at = inline_at(records_bytes(&records));
        assert_eq!(&bytes[at..at + 5], b"bytes");
        assert!(Frame::decode(&bytes, 8).is_err());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(Frame::decode(&other, 9).is_err(), "byte {at}");
            assert!(Frame::decode(&bytes[..at], 9).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn names_of_other_forms_are_nobodys() {
        assert_eq!(frame_of(&frame_name(7)), Some(7));
        assert_eq!(lease_of(&lease_name(255)), Some(255));
        assert!(is_probe(&probe_name([0xa5; 16])));
        for name in [
            "log/00000000000000000000",
            "log/7",
            "log/+0000000000000000007",
            "log/log/00000000000000000007",
            "log/00000000000000000007.old",
            "log/99999999999999999999",
            "writer/0000000000000000",
            "writer/00000000000000FF",
            "writer/+0000000000000ff",
            "writer/a/00000000000000ff",
            "probe/log/00000000000000000001",
            "probe/A5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5",
            "probe/",
        ] {
            assert_eq!((frame_of(name), lease_of(name), is_probe(name)), (None, None, false));
        }
    }

    #[test]
    fn names_tell_their_owner_and_have_one_form() {
        let id = Id { sort: Sort::Pack, writer: 255, number: 1 };
        assert_eq!(id.to_string(), "data/00000000000000ff-00000001");
        assert_eq!(Id::parse("data/00000000000000ff-00000001"), Some(id));
        assert_eq!(pack_id((255, 1), true).to_string(), "keys/00000000000000ff-00000001");
        assert_eq!(Id::parse("keys/00000000000000ff-00000001"), Some(pack_id((255, 1), true)));
        for name in ["data/ff-1", "data/00000000000000FF-00000001", "data/", "log/1", "table/x-y"] {
            assert_eq!(Id::parse(name), None, "{name}");
        }
    }
}
