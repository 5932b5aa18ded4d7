//! Room in the server's address space for the memory of guests.
//!
//! A client may share files that are far larger than what is in them, so a few clients could map all
//! that a process can. Half of the room is divided among the devices, and what one of them needs beyond
//! its part comes from the other half, which all have in common. So a device always gets its part.

use std::sync::{
    Arc, OnceLock,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use parking_lot::Mutex;

/// What is divided among the devices, and as much again is common: half of what a process of x86-64 can
/// map.
const HALF_BYTES: u64 = 32 << 40;

/// The room of a server.
#[derive(Default)]
pub(crate) struct Room {
    devices: AtomicU64,
    /// Bytes that are each device's own, once one asked.
    own: OnceLock<u64>,
    /// Bytes of the common half that are taken.
    common: Mutex<u64>,
}

/// The room of a device.
pub(crate) struct Share {
    room: Arc<Room>,
    /// Bytes that it has taken; changed while `common` is locked.
    taken: AtomicU64,
}

/// Room that is taken, until this is dropped.
pub(crate) struct Held {
    share: Arc<Share>,
    bytes: u64,
}

impl Room {
    /// The share of one more device: all have theirs before the first takes something.
    pub(crate) fn share(self: &Arc<Room>) -> Arc<Share> {
        self.devices.fetch_add(1, SeqCst);
        Arc::new(Share { room: self.clone(), taken: AtomicU64::new(0) })
    }

    /// Bytes of the common half that a device has which took so many.
    fn beyond(&self, taken: u64) -> u64 {
        let own = || HALF_BYTES / self.devices.load(SeqCst).max(1);
        taken.saturating_sub(*self.own.get_or_init(own))
    }
}

impl Share {
    /// Takes room; none when that of the device and the common one do not suffice.
    pub(crate) fn take(self: &Arc<Share>, bytes: u64) -> Option<Held> {
        let mut common = self.room.common.lock();
        let before = self.taken.load(Relaxed);
        let after = before.checked_add(bytes)?;
        let taken = *common + self.room.beyond(after) - self.room.beyond(before);
        if taken > HALF_BYTES {
            return None;
        }
        *common = taken;
        self.taken.store(after, Relaxed);
        Some(Held { share: self.clone(), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let room = &self.share.room;
        let mut common = room.common.lock();
        let before = self.share.taken.load(Relaxed);
        let after = before - self.bytes;
        *common -= room.beyond(before) - room.beyond(after);
        self.share.taken.store(after, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_47_each_device_has_room_whatever_others_map() {
        const T: u64 = 1 << 40;
        let room = Arc::new(Room::default());
        let shares: Vec<_> = (0..32).map(|_| room.share()).collect();
        // Ten devices take 4 TiB each, of which 3 are common; the others have 1 of their own.
        let greedy: Vec<_> = shares[..10].iter().map(|share| share.take(4 * T)).collect();
        assert!(greedy.iter().all(Option::is_some));
        let more = shares[10].take(4 * T);
        assert!(more.is_none());
        let all: Vec<_> = shares[10..].iter().map(|share| share.take(T)).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(shares[0].take(2 * T + 1).is_none());
        let rest = shares[0].take(2 * T).unwrap();
        assert_eq!(*room.common.lock(), HALF_BYTES);
        drop((greedy, rest, all));
        assert_eq!(*room.common.lock(), 0);
        assert!(shares[0].take(33 * T).is_some() && shares[0].take(33 * T + 1).is_none());
        assert!(shares[0].take(u64::MAX).is_none());
    }
}
