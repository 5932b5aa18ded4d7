//! Memory for keys that the system neither swaps nor dumps.
#![allow(unsafe_code, reason = "pages of the system's are handed out in parts")]

use std::{ptr::NonNull, sync::OnceLock};

use onefold_core::{
    Error, Result,
    key_memory::{Cell, KeyMemory, keep_keys_in},
};
use parking_lot::Mutex;
use rustix::{
    mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous},
    process::{Resource, getrlimit},
};
use zeroize::Zeroize;

/// Bytes that are taken from the system at once; they are never given back.
const REGION_BYTES: usize = 16 << 10;

/// Bytes of the smallest part.
const PART_BYTES: usize = 32;

const PARTS: usize = REGION_BYTES / PART_BYTES;

/// Pages of which parts are handed out.
struct Region {
    at: NonNull<u8>,
    taken: [bool; PARTS],
}

// SAFETY: the pages belong to the process, and nobody reaches a part but its one owner.
unsafe impl Send for Region {}

static REGIONS: Mutex<Vec<Region>> = Mutex::new(Vec::new());

impl Region {
    /// A new one, and why it is not locked, if it is not.
    fn new() -> Result<(Region, Option<rustix::io::Errno>)> {
        let failed = |errno: rustix::io::Errno| Error::from_io("memory for keys", errno.into());
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses the place of new pages, so they overlap nothing.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), REGION_BYTES, access, flags) };
        let at = at.map_err(failed)?;
        // SAFETY: these are the pages of the call before.
        let (locked, dumped) =
            unsafe { (mlock(at, REGION_BYTES), madvise(at, REGION_BYTES, Advice::LinuxDontDump)) };
        dumped.map_err(failed)?;
        let at = NonNull::new(at.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        Ok((Region { at, taken: [false; PARTS] }, locked.err()))
    }

    /// So many parts, one behind the other.
    fn take(&mut self, parts: usize) -> Option<NonNull<u8>> {
        let first = self.taken.windows(parts).position(|parts| !parts.contains(&true))?;
        self.taken[first..first + parts].fill(true);
        // SAFETY: it is a part of the region.
        Some(unsafe { self.at.add(first * PART_BYTES) })
    }

    /// Takes parts back; false when they are of another region.
    fn give_back(&mut self, at: NonNull<u8>, parts: usize) -> bool {
        let offset = at.addr().get().wrapping_sub(self.at.addr().get());
        if offset >= REGION_BYTES {
            return false;
        }
        let first = offset / PART_BYTES;
        self.taken[first..first + parts].fill(false);
        true
    }
}

/// A value in such memory.
struct Locked<T: Zeroize>(NonNull<T>);

// SAFETY: it owns its part alone, like a box.
unsafe impl<T: Zeroize + Send> Send for Locked<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroize + Sync> Sync for Locked<T> {}

impl<T: Zeroize + Send + Sync + 'static> Locked<T> {
    const PARTS: usize = {
        assert!(align_of::<T>() <= PART_BYTES && size_of::<T>() <= REGION_BYTES);
        size_of::<T>().div_ceil(PART_BYTES)
    };

    /// Memory that is zero, which is a value of this type; `None` when the system gives none.
    fn zero() -> Option<Locked<T>>
    where
        T: zerocopy::FromZeros,
    {
        let mut regions = REGIONS.lock();
        let found = regions.iter_mut().find_map(|region| region.take(Self::PARTS));
        let at = match found {
            Some(at) => at,
            None => {
                let (mut region, _) = Region::new().ok()?;
                let at = region.take(Self::PARTS)?;
                regions.push(region);
                at
            }
        };
        Some(Locked(at.cast()))
    }
}

impl<T: Zeroize + Send + Sync> Cell<T> for Locked<T> {
    fn get(&self) -> &T {
        // SAFETY: the part is this value's alone, aligned, and was zero or a value of the type.
        unsafe { self.0.as_ref() }
    }

    fn get_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T: Zeroize> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: as above; and the bytes are zero for the next one.
        unsafe { self.0.as_mut() }.zeroize();
        let (at, parts) = (self.0.cast(), size_of::<T>().div_ceil(PART_BYTES));
        REGIONS.lock().iter_mut().any(|region| region.give_back(at, parts));
    }
}

struct Memory;

impl KeyMemory for Memory {
    fn key(&self) -> Option<Box<dyn Cell<[u8; 32]>>> {
        Some(Box::new(Locked::zero()?))
    }

    fn table(&self) -> Option<Box<dyn Cell<[u64; 256]>>> {
        Some(Box::new(Locked::zero()?))
    }
}

/// From now on keys of this process lie in memory that is not dumped, and that is locked where the
/// system allows it. The first call gives a sentence where it does not: keys may then come into swap.
pub fn keep_keys() -> Option<String> {
    static BEGUN: OnceLock<()> = OnceLock::new();
    let mut told = None;
    BEGUN.get_or_init(|| {
        told = match Region::new() {
            Ok((region, refused)) => {
                REGIONS.lock().push(region);
                refused.map(|errno| sentence(&errno.to_string()))
            }
            Err(error) => Some(sentence(&error.to_string())),
        };
        keep_keys_in(Box::new(Memory));
    });
    told
}

fn sentence(why: &str) -> String {
    let limit = getrlimit(Resource::Memlock).current;
    let limit =
        limit.map_or_else(String::new, |bytes| format!("; the limit is {} KiB", bytes >> 10));
    format!(
        "keys are not locked in memory ({why}{limit}), and may come into swap: raise the limit \
         (ulimit -l, or LimitMEMLOCK= of a service), or encrypt swap"
    )
}

#[cfg(test)]
mod tests {
    use onefold_core::key_memory::{Key, Table};
    use onefold_seal::Secret;

    use super::*;

    /// What the system says of the pages at an address.
    fn flags(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let ends = range.map(|(a, b)| [a, b].map(|end| usize::from_str_radix(end, 16)));
            if let Some([Ok(from), Ok(to)]) = ends {
                within = (from..to).contains(&at);
            }
            if within && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("no pages at {at:x}");
    }

    #[test]
    fn rule_28_keys_lie_in_memory_that_is_locked_and_not_dumped_and_are_overwritten() {
        let told = keep_keys();
        assert!(keep_keys().is_none(), "it is told once");
        let mut bytes = [7; 32];
        let secrets: Vec<Secret> = (0..3).map(|_| Secret::take(&mut bytes.clone())).collect();
        let derived = secrets[0].derive(onefold_seal::Use::BLOCKS);
        let (key, table) = (Key::of(&[9; 32]), Table::of(u64::from));
        let places = secrets.iter().chain([&derived]).map(|secret| secret.expose().as_ptr().addr());
        let places = places.chain([key.as_ptr().addr(), table.as_ptr().addr()]);
        for at in places {
            let flags = flags(at);
            assert!(flags.contains(" dd"), "{flags}");
            assert!(told.is_some() || flags.contains(" lo"), "{flags}");
        }
        assert!((0..=255).zip(&*table).all(|(n, &number)| number == n));
        assert!(secrets.iter().all(|secret| secret.equals(&[7; 32])));
        bytes.zeroize();
        let at = key.as_ptr();
        drop(key);
        // SAFETY: the pages stay, and no other test of this process has keys here.
        assert_eq!(unsafe { *at.cast::<[u8; 32]>() }, [0; 32]);
        // More than a region has.
        let many: Vec<Key> = (0..2000).map(|n: u32| Key::of(&[n as u8; 32])).collect();
        assert!((0..).zip(&many).all(|(n, key): (u32, _)| **key == [n as u8; 32]));
        let places: std::collections::BTreeSet<usize> =
            many.iter().map(|key| key.as_ptr().addr()).collect();
        assert_eq!(places.len(), 2000);
        let regions = REGIONS.lock().len();
        drop(many);
        let _again: Vec<Key> = (0..1000).map(|_| Key::zero()).collect();
        assert_eq!(REGIONS.lock().len(), regions);
    }
}
