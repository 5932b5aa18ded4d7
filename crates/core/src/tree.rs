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
    /// A socket; nothing is restored for it.
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
