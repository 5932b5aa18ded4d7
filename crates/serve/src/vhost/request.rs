//! A request, as it lies in a guest's memory: a chain of buffers, which begins with a header, and
//! ends with a byte for the answer.
//!
//! *Invariants.* The chain is read once, and what was read is what counts, whatever the guest does
//! to its memory afterwards. A chain that ends without an end, or has buffers in the wrong order,
//! stops the device.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{ByteValued, GuestAddress, GuestMemoryMmap};

use super::memory;
use super::wire::{u32_at, u64_at};

/// Bytes of a sector, in which addresses count.
pub(crate) const SECTOR: u64 = 512;
/// Bytes of a request's header: kind 4, priority 4, sector 8.
const HEADER_BYTES: usize = 16;
/// Most buffers of one request, in a table beside the ring or not: as many as any ring has places.
pub(crate) const BUFFERS: usize = 1024;
/// Most bytes of data in one request, for which a queue keeps its working place. What guests are told
/// of segments comes to less.
pub(crate) const REQUEST_BYTES: u64 = 16 << 20;
/// Bytes of a range to discard or to fill with zeroes: sector 8, sectors 4, flags 4.
pub(crate) const RANGE_BYTES: usize = 16;
/// Most ranges in one request.
pub(crate) const RANGES: usize = 32;
/// The flag of a range: what is filled with zeroes may become free.
const UNMAP: u32 = 1;
/// Bytes of the name of a device.
pub(crate) const ID_BYTES: usize = 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    Zeroes,
    Identify,
    /// Nothing that this device can do.
    Other,
}

impl From<u32> for Kind {
    fn from(number: u32) -> Kind {
        match number {
            VIRTIO_BLK_T_IN => Kind::Read,
            VIRTIO_BLK_T_OUT => Kind::Write,
            VIRTIO_BLK_T_FLUSH => Kind::Flush,
            VIRTIO_BLK_T_DISCARD => Kind::Discard,
            VIRTIO_BLK_T_WRITE_ZEROES => Kind::Zeroes,
            VIRTIO_BLK_T_GET_ID => Kind::Identify,
            _ => Kind::Other,
        }
    }
}

/// Buffers of a guest, one behind the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    parts: Vec<(GuestAddress, u32)>,
    bytes: u64,
}

/// A piece of memory that the guest does not share.
const NOT_SHARED: &str = "a buffer outside the memory that the guest shares";

impl Buffers {
    fn push(&mut self, address: GuestAddress, bytes: u32) {
        if bytes > 0 {
            self.parts.push((address, bytes));
            self.bytes += u64::from(bytes);
        }
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many buffers there are.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Calls `act` with the pieces of `bytes` bytes from `from` on.
    fn pieces(
        &self,
        from: u64,
        bytes: usize,
        mut act: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let (mut skip, mut done) = (from, 0);
        for (address, length) in &self.parts {
            let length = u64::from(*length);
            if skip >= length {
                skip -= length;
                continue;
            }
            if done == bytes {
                break;
            }
            let take = (length - skip).min((bytes - done) as u64) as usize;
            let start = address.0.checked_add(skip).ok_or(NOT_SHARED)?;
            act(GuestAddress(start), done..done + take)?;
            done += take;
            skip = 0;
        }
        if done == bytes { Ok(()) } else { Err("buffers shorter than they were") }
    }

    /// Copies what the guest has there, from the byte `from` on.
    pub(crate) fn copy_from(
        &self,
        memory: &GuestMemoryMmap,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        self.pieces(from, into.len(), |address, range| {
            memory::read(memory, &mut into[range], address).map_err(|_| NOT_SHARED)
        })
    }

    /// Copies bytes to the guest, from the byte `from` on.
    pub(crate) fn copy_to(
        &self,
        memory: &GuestMemoryMmap,
        from: u64,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        self.pieces(from, bytes.len(), |address, range| {
            memory::write(memory, &bytes[range], address).map_err(|_| NOT_SHARED)
        })
    }

    /// Forgets where the buffers are; their bytes still count.
    fn forget(&mut self) {
        self.parts = Vec::new();
    }

    /// Takes away the first bytes.
    fn skip(&mut self, bytes: u32) {
        let mut left = bytes;
        self.parts.retain_mut(|(address, length)| {
            let cut = left.min(*length);
            left -= cut;
            *length -= cut;
            // The start of a buffer that goes on is no later than its end, which was read.
            address.0 = address.0.saturating_add(u64::from(cut));
            *length > 0
        });
        self.bytes -= u64::from(bytes);
    }

    /// Takes away the last byte, and gives its address.
    fn pop_last(&mut self) -> Option<GuestAddress> {
        let (address, length) = self.parts.last_mut()?;
        *length -= 1;
        let last = address.0.checked_add(u64::from(*length))?;
        if *length == 0 {
            self.parts.pop();
        }
        self.bytes -= 1;
        Some(GuestAddress(last))
    }
}

/// Bytes of a descriptor of a buffer.
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();

/// A table of buffers: that of a ring, or one beside it.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) at: GuestAddress,
    pub(crate) places: u32,
}

impl Table {
    fn read(self, memory: &GuestMemoryMmap, place: u32) -> Result<Descriptor, &'static str> {
        if place >= self.places {
            return Err("a buffer at a place that the table lacks");
        }
        let at = self.at.0.checked_add(u64::from(place) * DESCRIPTOR_BYTES as u64);
        let at = GuestAddress(at.ok_or(NOT_SHARED)?);
        let mut descriptor = Descriptor::default();
        memory::read(memory, descriptor.as_mut_slice(), at).map_err(|_| NOT_SHARED)?;
        Ok(descriptor)
    }
}

/// A request that was taken from its ring.
#[derive(Debug)]
pub(crate) struct Request {
    /// The place of its chain in the ring.
    pub(crate) head: u16,
    pub(crate) kind: Kind,
    pub(crate) sector: u64,
    /// What the guest gives, behind the header.
    pub(crate) given: Buffers,
    /// Where the guest takes data.
    pub(crate) wanted: Buffers,
    /// Where it takes the answer.
    pub(crate) answer: GuestAddress,
}

impl Request {
    /// Reads the chain that begins at place `head` of a ring.
    ///
    /// # Errors
    /// A sentence: the ring is broken.
    pub(crate) fn read(
        memory: &GuestMemoryMmap,
        table: Table,
        head: u16,
    ) -> Result<Request, &'static str> {
        let (mut given, mut wanted) = (Buffers::default(), Buffers::default());
        let (mut table, mut place, mut beside) = (table, u32::from(head), false);
        for steps in 0.. {
            if steps == BUFFERS {
                return Err("a request whose buffers have no end");
            }
            let buffer = table.read(memory, place)?;
            if buffer.refers_to_indirect_table() {
                let whole = buffer.len().is_multiple_of(DESCRIPTOR_BYTES as u32);
                if beside || buffer.has_next() || !whole {
                    return Err("a table of buffers that is none");
                }
                let places = buffer.len() / DESCRIPTOR_BYTES as u32;
                (table, place, beside) = (Table { at: buffer.addr(), places }, 0, true);
                continue;
            }
            match buffer.is_write_only() {
                true => wanted.push(buffer.addr(), buffer.len()),
                false if !wanted.parts.is_empty() => {
                    return Err("a request with what it gives behind what it takes");
                }
                false => given.push(buffer.addr(), buffer.len()),
            }
            if !buffer.has_next() {
                break;
            }
            place = u32::from(buffer.next());
        }
        if given.bytes() < HEADER_BYTES as u64 {
            return Err("a request without a header");
        }
        let mut header = [0; HEADER_BYTES];
        given.copy_from(memory, 0, &mut header)?;
        given.skip(HEADER_BYTES as u32);
        let answer = wanted.pop_last().ok_or("a request without room for an answer")?;
        let kind = Kind::from(u32_at(&header, 0));
        // Lists that the kind does not need would be memory of the guest's choice while the request waits.
        match kind {
            Kind::Read | Kind::Identify => given.forget(),
            Kind::Write | Kind::Discard | Kind::Zeroes => wanted.forget(),
            Kind::Flush | Kind::Other => {
                given.forget();
                wanted.forget();
            }
        }
        Ok(Request { head, kind, sector: u64_at(&header, 8), given, wanted, answer })
    }

    /// The first byte and the bytes that it is about, when they are whole sectors of a volume of
    /// `size` bytes.
    pub(crate) fn range(&self, bytes: u64, size: u64) -> Option<(u64, u64)> {
        range(self.sector, bytes, size)
    }

    /// The ranges to discard or to fill with zeroes, and whether each may become free.
    pub(crate) fn ranges(
        &self,
        memory: &GuestMemoryMmap,
        size: u64,
    ) -> Result<Ranges, &'static str> {
        let bytes = self.given.bytes();
        let whole = bytes > 0 && bytes.is_multiple_of(RANGE_BYTES as u64);
        if !whole || bytes > (RANGES * RANGE_BYTES) as u64 {
            return Ok(Ranges::Wrong);
        }
        let mut given = [0; RANGES * RANGE_BYTES];
        let given = &mut given[..bytes as usize];
        self.given.copy_from(memory, 0, given)?;
        let mut ranges = Vec::with_capacity(given.len() / RANGE_BYTES);
        for one in given.chunks_exact(RANGE_BYTES) {
            let (sectors, flags) = (u64::from(u32_at(one, 8)), u32_at(one, 12));
            let allowed = if self.kind == Kind::Zeroes { UNMAP } else { 0 };
            if flags & !allowed != 0 {
                return Ok(Ranges::Unsupported);
            }
            match range(u64_at(one, 0), sectors * SECTOR, size) {
                Some((offset, bytes)) => ranges.push((offset, bytes, flags & UNMAP != 0)),
                None => return Ok(Ranges::Wrong),
            }
        }
        Ok(Ranges::All(ranges))
    }
}

/// What ranges a request has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// Offset, bytes, and whether it may become free, of each.
    All(Vec<(u64, u64, bool)>),
    /// They are not what the protocol has, or beyond the end.
    Wrong,
    /// A flag that is not known.
    Unsupported,
}

fn range(sector: u64, bytes: u64, size: u64) -> Option<(u64, u64)> {
    let offset = sector.checked_mul(SECTOR)?;
    let end = offset.checked_add(bytes)?;
    (bytes.is_multiple_of(SECTOR) && end <= size).then_some((offset, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_whole_sectors_inside_the_volume() {
        assert_eq!(range(1, 512, 1024), Some((512, 512)));
        assert_eq!(range(1, 1024, 1024), None);
        assert_eq!(range(0, 511, 1024), None);
        assert_eq!(range(u64::MAX / 256, 512, u64::MAX), None);
        assert_eq!(range(u64::MAX / 512, 1024, u64::MAX), None);
    }

    #[test]
    fn buffers_are_cut_at_both_ends() {
        let mut buffers = Buffers::default();
        for (at, bytes) in [(0, 10), (100, 0), (200, 10), (300, 1)] {
            buffers.push(GuestAddress(at), bytes);
        }
        buffers.skip(16);
        assert_eq!(buffers.pop_last(), Some(GuestAddress(300)));
        assert_eq!(buffers.pop_last(), Some(GuestAddress(209)));
        assert_eq!((buffers.bytes(), buffers.parts.len()), (3, 1));
        let memory = super::super::memory::Memory::of(&[7; 208]).unwrap();
        let map = memory.map_of_guest();
        let mut three = [0; 3];
        assert!(buffers.copy_from(map, 0, &mut three).is_err(), "beyond the memory");
        let memory = super::super::memory::Memory::of(&[7; 256]).unwrap();
        let map = memory.map_of_guest();
        buffers.copy_from(map, 1, &mut three[..2]).unwrap();
        assert_eq!(three, [7, 7, 0]);
        assert!(buffers.copy_to(map, 1, &[0; 3]).is_err(), "beyond the buffers");
        assert!(Buffers::default().pop_last().is_none());
    }
}
