//! When the time of a file's last change says that it is the same file.
//!
//! A change within the time's smallest step leaves the time as it is, and a mapped page that stays
//! dirty moves it only when the system writes the page back. So a time counts only when it was
//! older than both when the reading *began*, and is the same at its end.

use std::{collections::HashMap, fs::File, str::FromStr, time::Duration};

use onefold_archive::{Stat, TreeEntry, TreeWhat};
use onefold_backend::tree::Found;

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

/// Those of them whose times are told by the clock of another machine.
const REMOTE: [u64; 3] = [0x6573_5546, 0xff53_4d42, 0xfe53_4d42];

/// What has to be the same, beside kind, length, owner, mode and the time of the last change of the
/// content, that a file counts as unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matching {
    /// The inode number.
    pub(super) inode: bool,
    /// The time of the last change of the file or of what is told of it.
    pub(super) ctime: bool,
}

impl FromStr for Matching {
    type Err = String;

    /// Words with commas between them; `mtime` and `size` are among them.
    fn from_str(text: &str) -> Result<Matching, String> {
        let words: Vec<&str> = text.split(',').collect();
        let known = ["mtime", "size", "inode", "ctime"];
        match words.iter().find(|word| !known.contains(word)) {
            Some(word) => Err(format!("'{word}' is none of {}", known.join(", "))),
            None if !words.contains(&"mtime") || !words.contains(&"size") => {
                Err("mtime and size count in any case: say mtime,size".to_owned())
            }
            None => {
                Ok(Matching { inode: words.contains(&"inode"), ctime: words.contains(&"ctime") })
            }
        }
    }
}

/// How files of a file system are known to be unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    /// A time that is younger when a reading begins may have missed a change.
    pub(super) age: Duration,
    /// What has to be the same.
    pub(super) matching: Matching,
}

impl Trust {
    /// True when the time of a file's last change says from now on whether it is the same file. The
    /// time was `before` when a reading began, at `began`, and `after` when it ended: seconds since
    /// 1970, and nanoseconds.
    pub(super) fn is_settled(
        &self,
        began: Duration,
        before: (i64, u32),
        after: (i64, u32),
    ) -> bool {
        let changed = Duration::new(u64::try_from(after.0).unwrap_or(0), after.1);
        before == after && changed.saturating_add(self.age) < began
    }
}

/// The worth of each file system's times, by its magic number.
#[derive(Default)]
pub(super) struct Settled {
    /// What counts where times of change and inode numbers may mean nothing; without it nothing does.
    elsewhere: Option<Matching>,
    dirty: Option<Duration>,
    known: HashMap<u64, Option<Trust>>,
    /// Devices whose files were asked about, and what counts there.
    devices: HashMap<u64, Option<Trust>>,
}

impl Settled {
    /// On tmpfs, FUSE, FAT and SMB this counts.
    pub(super) fn new(elsewhere: Option<Matching>) -> Settled {
        Settled { elsewhere, ..Settled::default() }
    }

    /// True when no file of the device was asked about.
    pub(super) fn is_new(&self, device: u64) -> bool {
        !self.devices.contains_key(&device)
    }

    /// What counts on a device, one of whose files was asked about; `None` where nothing does. Who mounts
    /// a file system of his own says of its files what he likes.
    pub(super) fn trust(&self, device: u64) -> Option<Trust> {
        self.devices.get(&device).copied().flatten()
    }

    /// What counts for a file, by its file system; `None` where nothing does. A disk is asked once.
    /// Other devices have numbers that the system gives to the next one when they go, which may be a
    /// user's own, so each of their files is asked.
    pub(super) fn ask(&mut self, device: u64, file: &File) -> Option<Trust> {
        if rustix::fs::major(device) != 0
            && let Some(trust) = self.devices.get(&device)
        {
            return *trust;
        }
        let trust = self.of_file_system(file);
        self.devices.insert(device, trust);
        trust
    }

    fn of_file_system(&mut self, file: &File) -> Option<Trust> {
        let magic = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u64).ok()?;
        let dirty = *self.dirty.get_or_insert_with(dirty_expire);
        let elsewhere = self.elsewhere;
        *self.known.entry(magic).or_insert_with(|| of_magic(magic, dirty, elsewhere))
    }
}

fn of_magic(magic: u64, dirty: Duration, elsewhere: Option<Matching>) -> Option<Trust> {
    let is_remote = magic == NFS || REMOTE.contains(&magic);
    let matching = match NOT_TRUSTED.contains(&magic) {
        true => elsewhere?,
        false => Matching { inode: true, ctime: true },
    };
    Some(Trust { age: if is_remote { SETTLED_REMOTE } else { SETTLED.max(2 * dirty) }, matching })
}

/// What is told of a file now, by which it is known to be the one of a snapshot.
pub(super) struct Now {
    bytes: u64,
    /// The time of the last change of its content.
    time: (i64, u32),
    /// Owner, group and mode.
    owner: (u32, u32, u32),
    stat: Stat,
}

impl Now {
    /// Of what a walk found, and its length.
    pub(super) fn of(found: &Found, bytes: u64) -> Now {
        let entry = &found.entry;
        Now {
            bytes,
            time: (entry.seconds, entry.nanoseconds),
            owner: (entry.uid, entry.gid, entry.mode & 0o7777),
            stat: stat_of(found),
        }
    }

    /// True when nothing changed since the snapshot with this entry.
    pub(super) fn is_same(&self, entry: &TreeEntry, known: &Stat, matching: Matching) -> bool {
        let now = &self.stat;
        known.is_settled
            && matches!(entry.what, TreeWhat::File(length, _) if length == self.bytes)
            && (entry.seconds, entry.nanoseconds) == self.time
            // A changed owner or mode moves the time of change, on a file system that is honest.
            && (entry.uid, entry.gid, entry.mode) == self.owner
            && (known.inode == now.inode || !matching.inode)
            && (!matching.ctime
                || (known.changed_seconds, known.changed_nanoseconds)
                    == (now.changed_seconds, now.changed_nanoseconds))
    }
}

/// What is compared, beside an entry, to know that a file did not change.
pub(super) fn stat_of(found: &Found) -> Stat {
    Stat {
        inode: found.inode,
        changed_seconds: found.changed.0,
        changed_nanoseconds: found.changed.1,
        ..Stat::default()
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
        assert!(settled.is_new(unknown) && settled.trust(unknown).is_none());
        let device = rustix::fs::fstat(&file).unwrap().st_dev;
        let trust = settled.ask(device, &file);
        assert_eq!((settled.is_new(device), settled.trust(device)), (false, trust));
        // What the system makes up has no times that count.
        if let Ok(file) = File::open("/dev/shm/.").or_else(|_| File::open("/run/.")) {
            let device = rustix::fs::fstat(&file).unwrap().st_dev;
            settled.ask(device, &file);
            let magic = rustix::fs::fstatfs(&file).unwrap().f_type as u64;
            assert_eq!(settled.trust(device).is_some(), !NOT_TRUSTED.contains(&magic));
        }
    }

    #[test]
    fn rule_10_a_time_counts_when_it_was_old_as_the_reading_began_and_is_the_same_at_its_end() {
        let trust = of_magic(0xef53, Duration::from_secs(30), None).unwrap();
        assert_eq!(trust.age, Duration::from_secs(60));
        let counts = |began: u64, before: i64, after: i64| {
            trust.is_settled(Duration::from_secs(began), (before, 7), (after, 7))
        };
        assert!(counts(1_061, 1_000, 1_000));
        // A change within the same tick, or of a page that is not written back, may follow.
        assert!(!counts(1_060, 1_000, 1_000) && !counts(1_000, 1_000, 1_000));
        // It changed after a long reading began: at the end the time is old, and was not at the beginning.
        assert!(!counts(1_000, 1_010, 1_010));
        // It changed between beginning and end.
        assert!(!counts(2_000, 1_000, 1_001));
        assert!(!trust.is_settled(Duration::from_secs(2_000), (1_000, 7), (1_000, 8)));
        // A clock that went back, and one before 1970.
        assert!(!counts(1_000, 5_000, 5_000) && counts(1_000, -5, -5));
        assert!(!counts(1_000, i64::MAX, i64::MAX));
        // Pages stay dirty for longer here; there a server has the clock.
        let slow = of_magic(0xef53, Duration::from_secs(300), None).unwrap();
        assert_eq!(slow.age, Duration::from_secs(600));
        assert_eq!(of_magic(NFS, Duration::ZERO, None).unwrap().age, SETTLED_REMOTE);
    }

    #[test]
    fn rule_10_what_matches_is_said_where_times_of_change_mean_nothing_and_holds_nowhere_else() {
        let told: Matching = "mtime,size".parse().unwrap();
        assert_eq!(told, Matching { inode: false, ctime: false });
        let with_inode = Ok(Matching { inode: true, ctime: false });
        assert_eq!("size,inode,mtime".parse(), with_inode);
        for wrong in ["", "mtime", "size", "mtime,size,", "mtime,size,name", "ctime,inode"] {
            assert!(wrong.parse::<Matching>().is_err(), "{wrong}");
        }
        for magic in NOT_TRUSTED {
            assert_eq!(of_magic(magic, Duration::ZERO, None), None);
            assert_eq!(of_magic(magic, Duration::ZERO, Some(told)).unwrap().matching, told);
        }
        let ext4 = of_magic(0xef53, Duration::ZERO, Some(told)).unwrap();
        assert_eq!(ext4.matching, Matching { inode: true, ctime: true });
    }
}
