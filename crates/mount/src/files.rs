//! The answers to the kernel.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyXattr,
};
use onefold_archive::{Attributes, Snapshot, SnapshotId, TreeEntry, TreeWhat};
use onefold_core::{
    Error, Kind, Result,
    tree::{ACCESS_LIST, mode_without_list},
};
use parking_lot::Mutex;

use super::{
    inodes::{Inodes, Is, Node},
    listings::{Entries, Listing, Listings},
    names,
    trees::{Trees, Walk},
};

/// How long the kernel may keep what never changes, and what does.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
const A_SECOND: Duration = Duration::from_secs(1);

/// The file system.
pub(crate) struct Files {
    trees: Arc<Trees>,
    inodes: Mutex<Inodes>,
    listings: Mutex<Listings>,
    began: SystemTime,
    /// The system compares owners and modes, and knows no lists of access rights.
    by_modes: bool,
    /// An entry with a label of SELinux was met.
    has_labels: AtomicBool,
}

/// The label of a file, for SELinux.
const SELINUX: &[u8] = b"security.selinux";

/// What is told of an inode, and for how long that is true.
type Told = (FileAttr, Duration);

impl Files {
    /// All snapshots, or `only` one; with `by_modes` the system compares owners and modes.
    pub(crate) fn new(
        trees: Arc<Trees>,
        only: Option<SnapshotId>,
        by_modes: bool,
    ) -> Result<Files> {
        let root = match only {
            None => Node::Sets,
            Some(id) => {
                trees.tables()?.snapshots.get(id)?;
                Node::Snapshot(id)
            }
        };
        Ok(Files {
            trees,
            inodes: Mutex::new(Inodes::new(root)),
            listings: Mutex::default(),
            began: SystemTime::now(),
            by_modes,
            has_labels: AtomicBool::new(false),
        })
    }

    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        self.inodes.lock().node(number.0).ok_or(Errno::ESTALE)
    }

    fn snapshot(&self, id: SnapshotId) -> Result<Snapshot> {
        let tables = self.trees.tables()?;
        let gone = |_| Error::new(Kind::Stopped, "the snapshot is gone");
        tables.snapshots.get(id).cloned().map_err(gone)
    }

    /// What an inode is in its snapshot; `None` for directories of names, and links to them.
    fn entry(&self, node: &Node) -> Result<Option<(SnapshotId, TreeEntry)>> {
        Ok(match node {
            Node::Sets | Node::Set(_) | Node::Latest(..) => None,
            Node::Snapshot(id) => Some((*id, self.trees.root(&self.snapshot(*id)?)?)),
            Node::Entry(id, place) => Some((*id, self.trees.entry(place)?)),
        })
    }

    /// What is told of an entry. Where modes decide, one with a list of access rights gives nobody
    /// more than the list.
    fn of_entry(&self, number: u64, entry: &TreeEntry) -> Result<FileAttr> {
        let mut attr = attr(number, entry);
        if self.by_modes && entry.attributes != Attributes::default() {
            let all = self.trees.attributes(entry)?;
            if let Some((_, list)) = all.iter().find(|(name, _)| name == ACCESS_LIST) {
                attr.perm = mode_without_list(u32::from(attr.perm), list) as u16;
            }
        }
        Ok(attr)
    }

    fn attr(&self, number: u64, node: &Node) -> Result<Told> {
        match self.entry(node)? {
            Some((_, entry)) => Ok((self.of_entry(number, &entry)?, FOR_EVER)),
            None => {
                let kind = match node {
                    Node::Latest(..) => FileType::Symlink,
                    _ => FileType::Directory,
                };
                Ok((self.plain(number, kind), A_SECOND))
            }
        }
    }

    /// A directory, or a link, that no snapshot has.
    fn plain(&self, number: u64, kind: FileType) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
            crtime: self.began,
            kind,
            perm: 0o555,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn find(&self, above: u64, node: &Node, name: &OsStr) -> Result<Option<Told>> {
        let bytes = name.as_bytes();
        let text = || String::from_utf8_lossy(bytes).into_owned();
        let found = match node {
            Node::Sets => names::sets(&*self.trees.tables()?).remove(&text()).map(Node::Set),
            Node::Set(set) if bytes == names::LATEST.as_bytes() => {
                let newest = names::newest(&*self.trees.tables()?, set);
                newest.map(|id| Node::Latest(set.clone(), id))
            }
            Node::Set(set) => {
                let tables = self.trees.tables()?;
                names::snapshots(&tables, set).remove(&text()).map(Node::Snapshot)
            }
            Node::Latest(..) => None,
            Node::Snapshot(_) | Node::Entry(..) => return self.find_entry(above, node, bytes),
        };
        let Some(found) = found else { return Ok(None) };
        let number = self.inodes.lock().tell(found.clone());
        self.attr(number, &found).map(Some)
    }

    fn find_entry(&self, above: u64, node: &Node, name: &[u8]) -> Result<Option<Told>> {
        let Some((snapshot, directory)) = self.entry(node)? else { return Ok(None) };
        let TreeWhat::Directory(Some(top)) = directory.what else { return Ok(None) };
        let Some((place, entry)) = self.trees.find(&top, name)? else { return Ok(None) };
        let number =
            self.inodes.lock().tell_entry(above, snapshot, place, is(&entry), self.bare(&entry));
        Ok(Some((self.of_entry(number, &entry)?, FOR_EVER)))
    }

    /// True for an entry without extended attributes.
    fn bare(&self, entry: &TreeEntry) -> bool {
        let has_label = match &entry.attributes {
            Attributes::Inline(all) => all.iter().any(|(name, _)| name == SELINUX),
            Attributes::Stored(..) => true,
        };
        if has_label {
            self.has_labels.store(true, Relaxed);
        }
        entry.attributes == Attributes::default()
    }

    fn file(&self, number: INodeNo) -> Result<TreeEntry, Errno> {
        let node = self.node(number)?;
        let entry = self.entry(&node).map_err(|error| errno(&error))?;
        entry.map(|(_, entry)| entry).ok_or(Errno::EINVAL)
    }

    fn listing(&self, node: Node) -> Result<Listing, Errno> {
        let listing = || -> Result<Listing> {
            Ok(match &node {
                Node::Sets => {
                    let sets = names::sets(&*self.trees.tables()?);
                    let sets = sets.into_iter().map(|(name, set)| (name, Node::Set(set)));
                    Listing::Names(self.listings.lock().shared(sets.collect()))
                }
                Node::Set(set) => {
                    let tables = self.trees.tables()?;
                    let all = names::snapshots(&tables, set);
                    let all = all.into_iter().map(|(name, id)| (name, Node::Snapshot(id)));
                    let latest = names::newest(&tables, set)
                        .map(|id| (names::LATEST.to_owned(), Node::Latest(set.clone(), id)));
                    Listing::Names(self.listings.lock().shared(all.chain(latest).collect()))
                }
                _ => match self.entry(&node)? {
                    Some((snapshot, TreeEntry { what: TreeWhat::Directory(top), .. })) => {
                        Listing::Entries(Box::new(Entries { snapshot, walk: Walk::new(top) }))
                    }
                    _ => return Err(Error::new(Kind::InvalidInput, "it is no directory")),
                },
            })
        };
        listing().map_err(|error| errno(&error))
    }

    /// Gives the entries from `offset` on to `add`, with the offset behind each, until that is full.
    fn list(
        &self,
        above: u64,
        handle: u64,
        offset: u64,
        add: &mut dyn FnMut(u64, &[u8], &dyn Fn() -> Result<Told>) -> Result<bool>,
    ) -> Result<()> {
        let Some(mut listing) = self.listings.lock().take(handle) else { return Ok(()) };
        let listed = self.list_on(above, &mut listing, offset, add);
        if let Listing::Entries(entries) = &mut listing {
            // The cache has it, as far as there is room.
            entries.walk.let_go();
        }
        self.listings.lock().put(handle, listing);
        listed
    }

    fn list_on(
        &self,
        above: u64,
        listing: &mut Listing,
        offset: u64,
        add: &mut dyn FnMut(u64, &[u8], &dyn Fn() -> Result<Told>) -> Result<bool>,
    ) -> Result<()> {
        match listing {
            Listing::Names(names) => {
                for (n, (name, node)) in (1..).zip(names.iter()).skip(offset as usize) {
                    let told = || {
                        let number = self.inodes.lock().tell(node.clone());
                        self.attr(number, node)
                    };
                    if add(n, name.as_bytes(), &told)? {
                        break;
                    }
                }
                Ok(())
            }
            Listing::Entries(entries) => {
                let Entries { snapshot, walk } = &mut **entries;
                walk.seek(offset);
                while let Some((place, entry)) = walk.next(&self.trees)? {
                    let told = || {
                        let (is, bare) = (is(&entry), self.bare(&entry));
                        let number =
                            self.inodes.lock().tell_entry(above, *snapshot, place, is, bare);
                        Ok((self.of_entry(number, &entry)?, FOR_EVER))
                    };
                    let at = walk.at();
                    if add(at, &entry.name, &told)? {
                        walk.seek(at - 1);
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    fn attributes(&self, number: INodeNo) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        let node = self.node(number)?;
        let all = self.entry(&node).and_then(|entry| match entry {
            None => Ok(Vec::new()),
            Some((_, entry)) => self.trees.attributes(&entry),
        });
        all.map_err(|error| errno(&error))
    }
}

fn is(entry: &TreeEntry) -> Is {
    match (&entry.what, entry.link) {
        (TreeWhat::Directory(_), _) => Is::Directory,
        (_, 0) => Is::File,
        (_, link) => Is::Link(link),
    }
}

fn attr(number: u64, entry: &TreeEntry) -> FileAttr {
    let (kind, size, rdev) = match &entry.what {
        TreeWhat::Directory(_) => (FileType::Directory, 0, 0),
        TreeWhat::File(bytes, _) => (FileType::RegularFile, *bytes, 0),
        TreeWhat::Symlink(target) => (FileType::Symlink, target.len() as u64, 0),
        TreeWhat::Fifo => (FileType::NamedPipe, 0, 0),
        TreeWhat::Socket => (FileType::Socket, 0, 0),
        TreeWhat::CharacterDevice(device) => (FileType::CharDevice, 0, *device),
        TreeWhat::BlockDevice(device) => (FileType::BlockDevice, 0, *device),
    };
    let since = Duration::new(entry.seconds.unsigned_abs(), 0);
    let whole = match entry.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(since),
        false => UNIX_EPOCH.checked_add(since),
    };
    let nanoseconds = Duration::from_nanos(u64::from(entry.nanoseconds));
    let time = whole.and_then(|time| time.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH);
    let nlink = match (kind, entry.link) {
        (FileType::Directory, _) => 2,
        (_, 0) => 1,
        // How many there are is not known; programs look for others when there is more than one.
        _ => 2,
    };
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: (entry.mode & 0o7777) as u16,
        nlink,
        uid: entry.uid,
        gid: entry.gid,
        rdev: rdev as u32,
        blksize: 4096,
        flags: 0,
    }
}

/// What the kernel is told of an error; a person sees the rest in the log.
fn errno(error: &Error) -> Errno {
    match error.kind() {
        Kind::Stopped => Errno::ESTALE,
        Kind::NotFound => Errno::ENOENT,
        Kind::InvalidInput => Errno::ENOTDIR,
        _ => {
            tracing::warn!("{error}");
            Errno::EIO
        }
    }
}

/// Answers a question about extended attributes: with their length, or with themselves.
pub(crate) fn answer(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match size {
        0 => reply.size(bytes.len() as u32),
        size if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

/// The requests. Each is answered before its call returns.
impl Files {
    pub(crate) fn lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match self.node(parent) {
            Ok(node) => node,
            Err(errno) => return reply.error(errno),
        };
        match self.find(parent.0, &node, name) {
            Ok(Some((attr, ttl))) => reply.entry(&ttl, &attr, Generation(0)),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(error) => reply.error(errno(&error)),
        }
    }

    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) {
        self.inodes.lock().forget(number.0, lookups);
    }

    pub(crate) fn getattr(&self, number: INodeNo, reply: ReplyAttr) {
        let told = self
            .node(number)
            .and_then(|node| self.attr(number.0, &node).map_err(|error| errno(&error)));
        match told {
            Ok((attr, ttl)) => reply.attr(&ttl, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    pub(crate) fn readlink(&self, number: INodeNo, reply: ReplyData) {
        let target = self.node(number).and_then(|node| match &node {
            Node::Latest(set, id) => {
                let tables = self.trees.tables().map_err(|error| errno(&error))?;
                names::name_of(&tables, set, *id).map(String::into_bytes).ok_or(Errno::ENOENT)
            }
            _ => match self.file(number)?.what {
                TreeWhat::Symlink(target) => Ok(target),
                _ => Err(Errno::EINVAL),
            },
        });
        match target {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    pub(crate) fn open(&self, flags: OpenFlags, reply: ReplyOpen) {
        match flags.acc_mode() {
            fuser::OpenAccMode::O_RDONLY => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            _ => reply.error(Errno::EROFS),
        }
    }

    pub(crate) fn read(&self, number: INodeNo, offset: u64, size: u32, reply: ReplyData) {
        let read = self.file(number).and_then(|entry| match &entry.what {
            TreeWhat::File(bytes, map) => {
                self.trees.read(*bytes, map, offset, u64::from(size)).map_err(|error| errno(&error))
            }
            _ => Err(Errno::EINVAL),
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    pub(crate) fn opendir(&self, user: u32, number: INodeNo, reply: ReplyOpen) {
        if !self.listings.lock().open(user) {
            return reply.error(Errno::ENFILE);
        }
        match self.node(number).and_then(|node| self.listing(node)) {
            Ok(listing) => {
                let handle = self.listings.lock().add(user, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(errno) => {
                self.listings.lock().closed(user);
                reply.error(errno);
            }
        }
    }

    pub(crate) fn readdir(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(number.0, handle.0, offset, &mut |at, name, told| {
            let (attr, _) = told()?;
            // The kernel is told of the name alone.
            self.inodes.lock().forget(attr.ino.0, 1);
            Ok(reply.add(attr.ino, at, attr.kind, OsStr::from_bytes(name)))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    pub(crate) fn readdirplus(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(number.0, handle.0, offset, &mut |at, name, told| {
            let (attr, ttl) = told()?;
            let name = OsStr::from_bytes(name);
            let full = reply.add(attr.ino, at, name, &ttl, &attr, Generation(0));
            if full {
                self.inodes.lock().forget(attr.ino.0, 1);
            }
            Ok(full)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    pub(crate) fn releasedir(&self, handle: FileHandle, reply: ReplyEmpty) {
        self.listings.lock().close(handle.0);
        reply.ok();
    }

    pub(crate) fn statfs(&self, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    /// True for an entry that is known to have no extended attributes. Questions about them come for
    /// each file that is listed, and are answered without its page.
    pub(crate) fn is_bare(&self, number: INodeNo) -> bool {
        self.inodes.lock().is_bare(number.0)
    }

    /// The answer to a question about an attribute of an entry that has none. Of a host without
    /// SELinux no file has a label: until one was met, labels are *not supported*, so that `ls` does not
    /// ask for that of each file.
    pub(crate) fn has_none(&self, name: &OsStr) -> Errno {
        match name.as_bytes() == SELINUX && !self.has_labels.load(Relaxed) {
            true => Errno::EOPNOTSUPP,
            false => Errno::ENODATA,
        }
    }

    pub(crate) fn getxattr(&self, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.attributes(number) {
            Ok(all) => match all.iter().find(|(known, _)| known == name.as_bytes()) {
                Some((_, value)) => answer(reply, size, value),
                None => reply.error(Errno::ENODATA),
            },
            Err(errno) => reply.error(errno),
        }
    }

    /// The names of attributes; those that only root may read are for root alone.
    pub(crate) fn listxattr(&self, number: INodeNo, is_root: bool, size: u32, reply: ReplyXattr) {
        match self.attributes(number) {
            Ok(all) => {
                let shown = all.iter().map(|(name, _)| name);
                let shown = shown.filter(|name| is_root || !name.starts_with(b"trusted."));
                let names: Vec<u8> =
                    shown.flat_map(|name| name.iter().copied().chain([0])).collect();
                answer(reply, size, &names);
            }
            Err(errno) => reply.error(errno),
        }
    }
}
