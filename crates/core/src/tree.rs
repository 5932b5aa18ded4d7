//! The content of a directory, as archives keep it.

/// The bit of [`Entry::mode`] of a file that could not be read to its end when it was stored: what
/// is missing reads as a hole. Programs from before it existed take it for a permission that the
/// system does not know.
pub const IN_PART: u32 = 1 << 31;

/// Something in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path below the tree's root, with `/` between the parts; empty for the root itself. All
    /// bytes but zero are allowed.
    pub path: Vec<u8>,
    /// The kind of the entry.
    pub what: What,
    /// Permission bits, with set-id and sticky bits, and perhaps [`IN_PART`].
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change, in seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
    /// Extended attributes, name and value.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// About how many bytes of memory its attributes take, however short they are.
    #[must_use]
    pub fn attributes_memory(&self) -> usize {
        memory_of(&self.attributes)
    }
}

/// About how many bytes of memory attributes take: the vectors of a name and of a value, and what is
/// allocated for each of them.
#[must_use]
pub fn memory_of(attributes: &[(Vec<u8>, Vec<u8>)]) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.len() + ATTRIBUTE_MEMORY).sum()
}

/// Bytes of memory that an attribute takes beside its name and value.
const ATTRIBUTE_MEMORY: usize = 96;

/// Kinds of things in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A directory.
    Directory,
    /// A file: its length, and where it has data; the rest are holes.
    File {
        /// The length in bytes.
        bytes: u64,
        /// Ranges of data, first byte and length, in order.
        data: Vec<(u64, u64)>,
    },
    /// A symbolic link.
    Symlink {
        /// The content of the link.
        target: Vec<u8>,
    },
    /// Another name of a file that came before.
    HardLink {
        /// The path of the first name.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A socket; it is restored without a listener.
    Socket,
    /// A character device.
    CharacterDevice(u64),
    /// A block device.
    BlockDevice(u64),
}

impl Entry {
    /// True for a file that is there in part only.
    #[must_use]
    pub fn is_in_part(&self) -> bool {
        self.mode & IN_PART != 0
    }

    /// True when the path stays below the root, whoever wrote it: no empty part, no `.`, no `..`,
    /// no zero byte.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        let part_is_safe =
            |part: &[u8]| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0);
        self.path.is_empty() || self.path.split(|&byte| byte == b'/').all(part_is_safe)
    }
}

/// The extended attribute that is a file's list of access rights (POSIX ACL).
pub const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// The mode of a file whose list of access rights is not kept: nobody gets more by it than the list
/// gave. The bits of the group are the list's mask; its own entry of the owning group counts, and
/// what named users and groups may not do, others may not either. A list that can't be read leaves
/// the owner's rights alone.
#[must_use]
pub fn mode_without_list(mode: u32, list: &[u8]) -> u32 {
    const VERSION: &[u8] = &[2, 0, 0, 0];
    const USER: u16 = 0x02;
    const OWNING_GROUP: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    let entries = list.strip_prefix(VERSION).filter(|entries| entries.len() % 8 == 0);
    let entries = entries.unwrap_or_default().chunks_exact(8).map(|entry| {
        let number = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        (number(0), u32::from(number(2)) & 7)
    });
    let entries: Vec<(u16, u32)> = entries.collect();
    let only = |tag: u16| entries.iter().find(|(of, _)| *of == tag).map(|(_, may)| *may);
    let mask = only(MASK).unwrap_or(7);
    let (mut group, mut others) = (only(OWNING_GROUP).unwrap_or(0) & mask, mode & 7);
    if entries.is_empty() {
        others = 0;
    }
    for (tag, may) in &entries {
        match *tag {
            USER => {
                group &= may & mask;
                others &= may & mask;
            }
            GROUP => others &= may & mask,
            _ => {}
        }
    }
    mode & !0o077 | group << 3 | others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_06_a_mode_without_its_list_gives_nobody_more() {
        let list = |entries: &[(u16, u16)]| {
            let mut bytes = vec![2, 0, 0, 0];
            for (tag, may) in entries {
                bytes.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
                bytes.extend([0; 4]);
            }
            bytes
        };
        // A user may read and write, the owning group nothing; the mode shows the mask.
        let one = list(&[(1, 6), (2, 6), (4, 0), (0x10, 6), (0x20, 0)]);
        assert_eq!(mode_without_list(0o660, &one), 0o600);
        // All may read but one.
        let but = list(&[(1, 6), (2, 0), (4, 4), (0x10, 4), (0x20, 4)]);
        assert_eq!(mode_without_list(0o644, &but), 0o600);
        // All may read but the members of a group; the owning group may.
        let group = list(&[(1, 6), (4, 4), (8, 0), (0x10, 4), (0x20, 4)]);
        assert_eq!(mode_without_list(0o4644, &group), 0o4640);
        assert_eq!(mode_without_list(0o666, b"strange"), 0o600);
    }
}
