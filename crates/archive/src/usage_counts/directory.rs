//! The directory of usage counts in pages: where each page lies, and the bytes of both.
//!
//! A page has the counts of containers whose numbers follow one another. Each file of counts has the
//! pages that its portion of counting changed, and a directory of all pages, of which most lie in the
//! files of earlier portions.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Result, compress};

use crate::format::{
    ContainerId, Identity,
    bytes::{Reader, Writer, corrupt},
    parameters::SLOTS_MAX,
    sealing::What,
};

pub(super) const MAGIC: &[u8; 8] = b"ONEFCNTP";

/// Bytes of the header of a plain archive's file.
const HEADER_BYTES: usize = 48;

/// Bytes of the header that nobody seals: whose it is.
const NAME_BYTES: usize = 16;

/// A sealed archive's file ends at a multiple of so many bytes: its length would tell how well counts
/// compress.
pub(super) const STEP_BYTES: u64 = 4096;

/// Bytes before the first page.
pub(super) fn header_bytes(identity: &Identity) -> usize {
    HEADER_BYTES + identity.tail()
}

/// Bytes that a directory takes in its file, of which so many are stored from `at` on.
pub(super) fn taken(identity: &Identity, at: u64, bytes: u32) -> usize {
    match identity.tail() {
        0 => bytes as usize,
        tail => {
            let end = at + u64::from(bytes) + tail as u64;
            (end.next_multiple_of(STEP_BYTES) - at) as usize
        }
    }
}

/// Bytes of a page in the directory.
const ENTRY_BYTES: usize = 40 + BITS_BYTES;

/// Bits of the containers of a page: 512.
const BITS_BYTES: usize = 64;

/// Containers of a page at most.
pub(crate) const PAGE_CONTAINERS: u64 = 8 * BITS_BYTES as u64;

/// Files that pages lie in, at most.
const FILES_MAX: usize = 256;

/// Bytes of a page that is expanded, at most.
const PAGE_BYTES_MAX: usize = PAGE_CONTAINERS as usize * (2 + 2 * SLOTS_MAX);

/// How many times its bytes a directory expands to, at most: no entry takes less than the 8 bytes of its
/// checksum.
const EXPANDS_MAX: usize = 16;

/// Where the directory of a file lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The first byte.
    pub at: u64,
    /// The bytes as they are stored, without the end of a tag and what fills them up.
    pub bytes: u32,
    /// The bytes when they are expanded; as many where they are stored as they are.
    pub expanded: u32,
    /// The checksum of the stored bytes, or the first half of their tag.
    pub checksum: u64,
}

impl Header {
    /// The first bytes of file `number`, and the checksum at their end.
    ///
    /// # Errors
    /// `Io`: what seals it refuses to.
    pub(super) fn encode(self, number: u64, identity: &Identity) -> Result<(Vec<u8>, u64)> {
        let mut w = Writer::default();
        w.raw(MAGIC).u64(number).u64(self.at).u32(self.bytes).u32(self.expanded);
        w.u64(self.checksum);
        w.0.resize(header_bytes(identity) - 8, 0);
        let (name, fields) = w.0.split_at_mut(NAME_BYTES);
        let checksum = identity.seal(What::CountsHeader, (number, 0), name, fields)?;
        w.u64(checksum);
        Ok((w.0, checksum))
    }

    /// The header of file `number`, and the checksum at its end. That is the first half of the tag in a
    /// sealed archive: it proves the header, this one's `checksum` the directory, and the directory each
    /// page.
    pub(super) fn decode(bytes: &[u8], number: u64, identity: &Identity) -> Result<(Header, u64)> {
        let damaged = || corrupt("the file of usage counts is damaged");
        let (fields, checksum) =
            bytes.split_at_checked(header_bytes(identity) - 8).ok_or_else(damaged)?;
        let checksum = checksum.try_into().map(u64::from_le_bytes).map_err(|_| damaged())?;
        let (name, fields) = fields.split_at(NAME_BYTES);
        let mut fields = fields.to_vec();
        if !identity.open(What::CountsHeader, (number, 0), name, &mut fields, checksum) {
            return Err(damaged());
        }
        let r = &mut Reader(name, None);
        if r.take(8)? != MAGIC || r.u64()? != number {
            return Err(corrupt("the file of usage counts is another one"));
        }
        let r = &mut Reader(&fields, None);
        let header =
            Header { at: r.u64()?, bytes: r.u32()?, expanded: r.u32()?, checksum: r.u64()? };
        let is_possible = header.at < 1 << 62
            && header.expanded >= header.bytes
            && u64::from(header.expanded) <= u64::from(header.bytes) * EXPANDS_MAX as u64;
        if is_possible { Ok((header, checksum)) } else { Err(damaged()) }
    }
}

/// Where a page lies, and which containers are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagePlace {
    /// The number of the file.
    pub file: u64,
    /// The first byte in it.
    pub at: u64,
    /// Bytes as they are stored, without the end of a tag.
    pub bytes: u32,
    /// Bytes when they are expanded; as many where they are stored as they are.
    pub expanded: u32,
    /// The checksum of the stored bytes, or the first half of their tag.
    pub checksum: u64,
    /// A bit for each container that the page has counts of.
    pub has: [u8; BITS_BYTES],
}

impl PagePlace {
    /// True when the page has counts of its `n`th container.
    pub(super) fn has(&self, n: u64) -> bool {
        self.has.get((n / 8) as usize).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
    }
}

/// Where all pages lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directory {
    /// The files that pages lie in, and the bytes of the pages that were written to each of them.
    pub files: BTreeMap<u64, u64>,
    /// The pages: the first number of its containers, divided by how many a page has.
    pub pages: BTreeMap<u64, PagePlace>,
}

impl Directory {
    /// Bytes of the pages that count, of each file.
    pub(super) fn live(&self) -> BTreeMap<u64, u64> {
        let mut live: BTreeMap<u64, u64> = self.files.keys().map(|file| (*file, 0)).collect();
        for place in self.pages.values() {
            *live.entry(place.file).or_default() += u64::from(place.bytes);
        }
        live
    }

    /// Forgets the files that no page lies in any more.
    pub(super) fn forget_empty(&mut self) {
        let named: BTreeSet<u64> = self.pages.values().map(|place| place.file).collect();
        self.files.retain(|file, _| named.contains(file));
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.files.len() as u32);
        for (&file, &bytes) in &self.files {
            w.u64(file).u64(bytes);
        }
        w.u32(self.pages.len() as u32);
        for (&page, place) in &self.pages {
            w.u64(page).u64(place.file).u64(place.at).u32(place.bytes).u32(place.expanded);
            w.u64(place.checksum).raw(&place.has);
        }
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Directory> {
        let damaged = || corrupt("the directory of the usage counts can't be true");
        let (r, mut directory) = (&mut Reader(bytes, None), Directory::default());
        let files = r.count(16, 0)?;
        if files > FILES_MAX {
            return Err(damaged());
        }
        for _ in 0..files {
            directory.files.insert(r.counter()?, r.counter()?);
        }
        for _ in 0..r.count(ENTRY_BYTES, 0)? {
            let (page, file, at) = (r.counter()?, r.u64()?, r.counter()?);
            let (bytes, expanded, checksum) = (r.u32()?, r.u32()?, r.u64()?);
            let place = PagePlace { file, at, bytes, expanded, checksum, has: r.array()? };
            let is_possible = directory.files.contains_key(&file)
                && expanded >= bytes
                && expanded as usize <= PAGE_BYTES_MAX
                && directory.pages.last_key_value().is_none_or(|(last, _)| *last < page);
            if !is_possible {
                return Err(damaged());
            }
            directory.pages.insert(page, place);
        }
        r.end().map(|()| directory)
    }
}

/// The bytes as they are stored: compressed where that is shorter.
pub(super) fn shortest(bytes: Vec<u8>) -> Vec<u8> {
    let packed = compress::pack(&bytes);
    if packed.len() < bytes.len() { packed } else { bytes }
}

/// The bytes of which `stored` is stored.
pub(super) fn expand(stored: Vec<u8>, expanded: u32) -> Result<Vec<u8>> {
    match stored.len() == expanded as usize {
        true => Ok(stored),
        false => compress::unpack(&stored, expanded as usize),
    }
}

/// A page with the counts of containers, in the order of their numbers: which of them it has, and its
/// bytes. `all` is how many containers a page has.
pub(super) fn encode_page<'a>(
    counts: impl Iterator<Item = (ContainerId, &'a [u16])>,
    all: u64,
) -> ([u8; BITS_BYTES], Vec<u8>) {
    let (mut w, mut has) = (Writer::default(), [0; BITS_BYTES]);
    for (id, counts) in counts {
        let n = (id.0 % all) as usize;
        has[n / 8] |= 1 << (n % 8);
        // No container has more chunks.
        let counts = &counts[..counts.len().min(SLOTS_MAX)];
        w.u16(counts.len() as u16);
        counts.iter().for_each(|count| {
            w.u16(*count);
        });
    }
    (has, w.0)
}

/// The counts in page `page`.
pub(super) fn decode_page(
    page: u64,
    place: &PagePlace,
    bytes: &[u8],
    all: u64,
) -> Result<Vec<(ContainerId, Vec<u16>)>> {
    let (r, mut found) = (&mut Reader(bytes, None), Vec::new());
    for n in (0..all).filter(|n| place.has(*n)) {
        let slots = usize::from(r.u16()?);
        let (counts, _) = r.take(2 * slots)?.as_chunks::<2>();
        let counts = counts.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        found.push((ContainerId(page.saturating_mul(all).saturating_add(n)), counts));
    }
    r.end().map(|()| found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

    use proptest::prelude::*;

    use super::*;

    fn place(file: u64, at: u64) -> PagePlace {
        PagePlace { file, at, bytes: 10, expanded: 20, checksum: at * 3, has: [255; BITS_BYTES] }
    }

    #[test]
    fn directories_come_back_and_those_that_can_not_be_true_are_refused() {
        let mut directory = Directory::default();
        directory.files.extend([(3, 100), (7, 20)]);
        directory.pages.extend((0..300).map(|page| (page, place(3 + page % 2 * 4, page))));
        let bytes = directory.encode();
        assert_eq!(Directory::decode(&bytes).unwrap(), directory);
        let (length, stored) = (bytes.len(), shortest(bytes.clone()));
        assert!(stored.len() < length / 2 && stored.len() * EXPANDS_MAX > length);
        assert_eq!(expand(stored, length as u32).unwrap(), bytes);
        let wrong = |change: &dyn Fn(&mut Directory)| {
            let mut wrong = directory.clone();
            change(&mut wrong);
            Directory::decode(&wrong.encode()).is_err()
        };
        assert!(wrong(&|directory| directory.files.retain(|file, _| *file < 7)), "not named");
        assert!(wrong(&|directory| directory.pages.extend([(1 << 62, place(3, 0))])));
        let set = |change: fn(&mut PagePlace)| wrong(&|d| change(d.pages.get_mut(&5).unwrap()));
        assert!(set(|place| place.expanded = PAGE_BYTES_MAX as u32 + 1));
        assert!(set(|place| place.bytes = 21));
        assert!(wrong(&|directory| directory.files.extend((10..400).map(|file| (file, 1)))));
        assert!(Directory::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_header_is_of_its_file() {
        let identity = Identity::new([1; 16], &[2; 32]);
        let header = Header { at: 500, bytes: 40, expanded: 90, checksum: 7 };
        let (bytes, checksum) = header.encode(9, &identity).unwrap();
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(Header::decode(&bytes, 9, &identity).unwrap(), (header, checksum));
        assert!(Header::decode(&bytes, 8, &identity).is_err());
        assert!(Header::decode(&bytes[..47], 9, &identity).is_err());
        for wrong in [
            Header { expanded: 39, ..header },
            Header { expanded: 40 * 16 + 1, ..header },
            Header { at: 1 << 62, ..header },
        ] {
            assert!(Header::decode(&wrong.encode(9, &identity).unwrap().0, 9, &identity).is_err());
        }
    }

    #[test]
    fn pages_come_back_with_as_many_slots_as_a_container_may_have() {
        let long = vec![7; SLOTS_MAX + 5];
        let counts =
            [(ContainerId(8), vec![1, 2]), (ContainerId(9), Vec::new()), (ContainerId(11), long)];
        let (has, bytes) = encode_page(counts.iter().map(|(id, counts)| (*id, &counts[..])), 4);
        let place = PagePlace { has, ..place(1, 0) };
        let read = decode_page(2, &place, &bytes, 4).unwrap();
        assert_eq!(read[..2], counts[..2]);
        assert_eq!(read[2], (ContainerId(11), vec![7; SLOTS_MAX]));
        assert!((0..4).map(|n| place.has(n)).eq([true, true, false, true]));
        assert!(decode_page(2, &place, &bytes[1..], 4).is_err());
        assert!(decode_page(2, &place, &[&bytes[..], &[0]].concat(), 4).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let identity = Identity::new([1; 16], &[2; 32]);
            let _ = Header::decode(&bytes, 1, &identity);
            let _ = Directory::decode(&bytes);
            let _ = decode_page(u64::MAX, &place(1, 0), &bytes, PAGE_CONTAINERS);
            let _ = expand(bytes, 1000);
        }
    }
}
