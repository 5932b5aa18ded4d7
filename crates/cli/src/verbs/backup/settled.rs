//! When the time of a file's last change says that it is the same file.
//!
//! A change within the time's smallest step leaves the time as it is, and a mapped page that stays
//! dirty moves it only when the system writes the page back. So a time counts only when it was
//! older than both when the reading *began*, and is the same at its end.

use std::{collections::HashMap, fs::File, time::Duration};

/// A time younger than this may have missed a change.
const SETTLED: Duration = Duration::from_secs(60);

/// The same by the clock of a server.
const SETTLED_REMOTE: Duration = Duration::from_secs(24 * 3600);

/// Magic numbers of file systems.
const NFS: u64 = 0x6969;
const NOT_TRUSTED: [u64; 6] = [
    0x0102_1994, // tmpfs
    0x6573_5546, // FUSE
    0x4d44,      // FAT
    0x2011_BAB0, // exFAT
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2
];

/// The worth of each file system's times, by its magic number.
#[derive(Default)]
pub(super) struct Settled {
    dirty: Option<Duration>,
    known: HashMap<u64, Option<Duration>>,
    /// Devices whose files were asked about, and how old times that count are.
    devices: HashMap<u64, Option<Duration>>,
}

impl Settled {
    /// True when no file of the device was asked about.
    pub(super) fn is_new(&self, device: u64) -> bool {
        !self.devices.contains_key(&device)
    }

    /// True when the times of the device are known to count: one of its files was asked about. Who
    /// mounts a file system of his own says of its files what he likes.
    pub(super) fn is_trusted(&self, device: u64) -> bool {
        self.devices.get(&device).is_some_and(Option::is_some)
    }

    /// How old the time of a file's last change must be to count; `None` where it never counts. A
    /// disk is asked once. Other devices have numbers that the system gives to the next one when
    /// they go, which may be a user's own, so each of their files is asked.
    pub(super) fn age(&mut self, device: u64, file: &File) -> Option<Duration> {
        if rustix::fs::major(device) != 0
            && let Some(age) = self.devices.get(&device)
        {
            return *age;
        }
        let age = self.of_file_system(file);
        self.devices.insert(device, age);
        age
    }

    fn of_file_system(&mut self, file: &File) -> Option<Duration> {
        let magic = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u64).ok()?;
        let dirty = *self.dirty.get_or_insert_with(dirty_expire);
        *self.known.entry(magic).or_insert_with(|| match magic {
            NFS => Some(SETTLED_REMOTE),
            magic if NOT_TRUSTED.contains(&magic) => None,
            _ => Some(SETTLED.max(2 * dirty)),
        })
    }
}

/// How long a page stays dirty.
fn dirty_expire() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/vm/dirty_expire_centisecs");
    let centiseconds = text.ok().and_then(|text| text.trim().parse().ok());
    // The system's default, where it can't be asked.
    Duration::from_millis(10 * centiseconds.unwrap_or(3000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_trusted_when_its_file_system_is() {
        let mut settled = Settled::default();
        let (unknown, file) = (1 << 40, tempfile::tempfile().unwrap());
        assert!(settled.is_new(unknown) && !settled.is_trusted(unknown));
        let device = rustix::fs::fstat(&file).unwrap().st_dev;
        let age = settled.age(device, &file);
        assert_eq!((settled.is_new(device), settled.is_trusted(device)), (false, age.is_some()));
        // What the system makes up has no times that count.
        if let Ok(file) = File::open("/dev/shm/.").or_else(|_| File::open("/run/.")) {
            let device = rustix::fs::fstat(&file).unwrap().st_dev;
            settled.age(device, &file);
            let magic = rustix::fs::fstatfs(&file).unwrap().f_type as u64;
            assert_eq!(settled.is_trusted(device), !NOT_TRUSTED.contains(&magic));
        }
    }
}
