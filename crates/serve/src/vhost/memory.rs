//! A guest's memory, as its client shares it.
//!
//! *Invariants.* Only files that nobody can make shorter are mapped: otherwise the client could do
//! that, and the next access would end the whole server. Whatever the guest shares is read by
//! copying it, once, and never looked at in place.

use std::{
    fs::File,
    sync::{Arc, atomic::Ordering::Acquire},
};

use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat, fstatfs};
use vm_memory::mmap::MmapRegion;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap,
    GuestMemoryRegion, GuestRegionMmap, VolatileMemory, VolatileSlice,
};

use super::room::{Held, Share};
use crate::client_fd::ClientFd;

/// The kind of file system on which huge pages are. A page of it that nobody reserved can't be had
/// when it is touched, which ends the process just like a file that became shorter.
const HUGE_PAGES: u64 = 0x9584_58f6;
/// Most memory of one guest.
const MEMORY_BYTES: u64 = 4 << 40;

/// Part of a guest's memory, as the client describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The address by which the guest knows it.
    pub(crate) guest: u64,
    pub(crate) bytes: u64,
    /// The address by which the client knows it, as in the addresses of rings.
    pub(crate) user: u64,
    /// Where it begins in its file.
    pub(crate) offset: u64,
}

/// The memory of a guest.
pub(crate) struct Memory {
    map: GuestMemoryMmap,
    parts: Vec<Part>,
    /// Given back after the map is gone.
    _held: Option<Held>,
}

/// Bytes of the guest's memory, where one of its parts has all of them.
fn piece(map: &GuestMemoryMmap, at: GuestAddress, bytes: usize) -> Option<VolatileSlice<'_>> {
    map.iter().find_map(|part| {
        let offset = at.0.checked_sub(part.start_addr().0)?;
        VolatileMemory::get_slice(&**part, usize::try_from(offset).ok()?, bytes).ok()
    })
}

/// Copies what the guest has at an address. What lies in one part of its memory, as nearly everything
/// does, is found at less cost than by [`Bytes::read_slice`].
///
/// # Errors
/// The guest does not share all of it.
pub(crate) fn read(
    map: &GuestMemoryMmap,
    into: &mut [u8],
    at: GuestAddress,
) -> Result<(), GuestMemoryError> {
    let Some(piece) = piece(map, at, into.len()) else { return map.read_slice(into, at) };
    piece.copy_to(into);
    Ok(())
}

/// Copies bytes to the guest, likewise.
///
/// # Errors
/// As [`read`].
pub(crate) fn write(
    map: &GuestMemoryMmap,
    bytes: &[u8],
    at: GuestAddress,
) -> Result<(), GuestMemoryError> {
    let Some(piece) = piece(map, at, bytes.len()) else { return map.write_slice(bytes, at) };
    piece.copy_from(bytes);
    Ok(())
}

/// A number that the guest changes meanwhile, at an address that is a multiple of its size.
///
/// # Errors
/// As [`read`].
pub(crate) fn load(map: &GuestMemoryMmap, at: GuestAddress) -> Result<u16, GuestMemoryError> {
    let loaded = piece(map, at, size_of::<u16>()).and_then(|piece| piece.load(0, Acquire).ok());
    loaded.map_or_else(|| map.load(at, Acquire), Ok)
}

impl Memory {
    /// Maps the parts, each from its file, within the room of a device.
    ///
    /// # Errors
    /// A sentence: a file can become shorter, or ends too early, parts overlap, there is no room, or the
    /// system refuses.
    pub(crate) fn map(
        parts: Vec<Part>,
        files: Vec<ClientFd>,
        share: &Arc<Share>,
    ) -> Result<Memory, String> {
        let all = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes));
        let all = all.filter(|all| *all <= MEMORY_BYTES && parts.len() == files.len());
        let all = all.ok_or("the guest has too much memory")?;
        let held =
            share.take(all).ok_or("there is no room for the guest's memory beside others'")?;
        let mut regions = Vec::with_capacity(parts.len());
        for (part, file) in parts.iter().zip(files) {
            if part.user.checked_add(part.bytes).is_none() {
                return Err("the memory of the guest has no end".to_owned());
            }
            let mapping = map(file, part.offset, part.bytes)?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(part.guest));
            regions.push(region.ok_or("the memory of the guest has no end")?);
        }
        regions.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region).0);
        let map = GuestMemoryMmap::from_regions(regions)
            .map_err(|error| format!("the memory of the guest is not clear: {error}"))?;
        Ok(Memory { map, parts, _held: Some(held) })
    }

    /// Memory that is this process's own, with `bytes` in it.
    pub(crate) fn of(bytes: &[u8]) -> Option<Memory> {
        let start = GuestAddress(0);
        let map = GuestMemoryMmap::from_ranges(&[(start, bytes.len().max(1))]).ok()?;
        vm_memory::Bytes::write_slice(&map, bytes, start).ok()?;
        let part = Part { guest: 0, bytes: bytes.len() as u64, user: 0, offset: 0 };
        Some(Memory { map, parts: vec![part], _held: None })
    }

    pub(crate) fn map_of_guest(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// The guest's address of what the client knows by `user`.
    pub(crate) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.parts.iter().find_map(|part| {
            let within = user.checked_sub(part.user).filter(|within| *within < part.bytes)?;
            Some(GuestAddress(part.guest + within))
        })
    }
}

/// Maps a part of a file that nobody can make shorter.
pub(crate) fn map(file: ClientFd, offset: u64, bytes: u64) -> Result<MmapRegion, String> {
    let seals = fcntl_get_seals(&file);
    if !seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err("memory is refused that its owner could make shorter: it is not sealed \
                    against that, as memory-backend-memfd of qemu is"
            .to_owned());
    }
    let failed = |error: rustix::io::Errno| format!("can't look at the memory: {error}");
    let found = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err("memory is refused that is no file".to_owned());
    }
    if fstatfs(&file).map_err(failed)?.f_type as u64 == HUGE_PAGES {
        return Err("memory of huge pages is refused: pages may be missing when they are \
                    touched"
            .to_owned());
    }
    let end = offset.checked_add(bytes);
    if bytes == 0 || end.is_none_or(|end| end > found.st_size as u64) {
        return Err("memory is refused whose file ends too early".to_owned());
    }
    // Only files in memory have seals, and closing one takes no time.
    let file = FileOffset::new(File::from(file.harmless().map_err(failed)?), offset);
    MmapRegion::from_file(file, bytes as usize)
        .map_err(|error| format!("can't map the memory: {error}"))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::vhost::room::Room;

    fn file(bytes: u64, seals: SealFlags) -> ClientFd {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        ClientFd::brought(file)
    }

    #[test]
    fn rule_47_memory_that_can_shrink_is_refused() {
        let part = Part { guest: 0, bytes: 8192, user: 1 << 40, offset: 0 };
        let sealed = || file(8192, SealFlags::SHRINK);
        let share = Arc::new(Room::default()).share();
        let refused = |file, part| Memory::map(vec![part], vec![file], &share).err().unwrap();
        assert!(refused(file(8192, SealFlags::empty()), part).contains("make shorter"));
        assert!(refused(file(8192, SealFlags::GROW), part).contains("make shorter"));
        assert!(
            refused(ClientFd::brought(tempfile::tempfile().unwrap().into()), part)
                .contains("make shorter")
        );
        assert!(refused(sealed(), Part { bytes: 8193, ..part }).contains("too early"));
        assert!(refused(sealed(), Part { offset: u64::MAX, ..part }).contains("too early"));
        assert!(refused(sealed(), Part { bytes: 0, ..part }).contains("too early"));
        assert!(refused(sealed(), Part { offset: 1, bytes: 8191, ..part }).contains("map"));
        assert!(refused(sealed(), Part { guest: u64::MAX - 1, ..part }).contains("no end"));
        assert!(refused(sealed(), Part { user: u64::MAX - 1, ..part }).contains("no end"));
        assert!(
            refused(file(8192, SealFlags::SHRINK | SealFlags::WRITE), part).contains("map"),
            "memory that can't be written"
        );
        let two = Memory::map(vec![part; 2], vec![sealed(), sealed()], &share);
        assert!(two.is_err_and(|refusal| refusal.contains("not clear")));
        let memory = Memory::map(vec![part], vec![sealed()], &share).unwrap();
        assert_eq!(memory.guest_address((1 << 40) + 5), Some(GuestAddress(5)));
        assert_eq!(memory.guest_address(1 << 39), None);
        assert_eq!(memory.guest_address((1 << 40) + 8192), None);
        // Without room beside what is mapped already there is no more, and then there is again.
        let rest = share.take((64 << 40) - 8192).unwrap();
        let full = Memory::map(vec![part], vec![sealed()], &share);
        assert!(full.is_err_and(|refusal| refusal.contains("no room")));
        drop(memory);
        assert!(Memory::map(vec![part], vec![sealed()], &share).is_ok());
        drop(rest);
    }
}
