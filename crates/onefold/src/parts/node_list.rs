//! The file `nodes` in the directory of an archive on several nodes: where the nodes are, and the
//! seal by which they know the list.
//!
//! Anybody can write a list that names directories of somebody else's, and have it copied. So a
//! list ends with a line that has its seal, made with the archive's secret, and the directory in
//! which it lies: the number of the directory's inode and its path. One of both must be true where
//! the list is found; so a directory may be moved, or made again under its old path. Before anybody
//! connects to another host for it, the inode must be true.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use onefold_archive::Nodes;
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};

use super::{
    address::is_bucket,
    far::{self, Far},
    operator::{warn, word},
};

/// Names the directories of an archive's nodes, or their addresses on other hosts, a line each, the first that of
/// node 0.
pub(super) const NODES: &str = "nodes";

/// Most nodes of an archive.
const NODES_MAX: usize = 64;

/// Bytes of that list at most.
const LIST_BYTES_MAX: u64 = 64 << 10;

/// The first byte of the line with the seal. Paths are absolute, and begin with another one.
const SEALED: u8 = b'=';

/// Digits of a seal.
const SEAL_DIGITS: usize = 64;

/// Where the nodes are.
#[derive(Clone)]
pub(super) struct NodeList {
    pub(super) paths: Vec<PathBuf>,
    /// To whom the list belongs; directories of others are no nodes of it.
    owner: u32,
    seal: Option<Seal>,
    /// This process makes it, from what the user named.
    is_new: bool,
}

/// The line behind the paths.
#[derive(Clone)]
struct Seal {
    /// `None` when it can't be read.
    seal: Option<[u8; 32]>,
    /// The directory of the list when it was written: inode, space, path.
    place: Vec<u8>,
}

impl NodeList {
    /// A list without a seal, in a directory of our own.
    ///
    /// # Errors
    /// `InvalidInput` for paths that a list can't hold.
    pub(super) fn new(paths: &[PathBuf], own: &Directory) -> Result<NodeList> {
        let paths = paths.iter().map(|path| whole(path)).collect::<Result<_>>()?;
        Ok(NodeList { paths, owner: own.owner()?, seal: None, is_new: true })
    }

    /// The list in a directory, if there is one.
    pub(super) fn read(own: &Directory) -> Result<Option<NodeList>> {
        let Some((bytes, owner)) = own.small(NODES, LIST_BYTES_MAX)? else { return Ok(None) };
        let mut lines: Vec<&[u8]> =
            bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
        let seal = lines.pop_if(|line| line.first() == Some(&SEALED)).map(Seal::read);
        let paths: Vec<_> = lines
            .into_iter()
            .map(|line| PathBuf::from(OsString::from_vec(line.to_vec())))
            .collect();
        if paths.len() > NODES_MAX {
            let why =
                format!("the list names {} nodes, and an archive has {NODES_MAX}", paths.len());
            return Err(Error::new(Kind::InvalidInput, why));
        }
        Ok(Some(NodeList { paths, owner, seal, is_new: false }))
    }

    /// Writes it to the directory at `path` with a seal of the archive; durable on return.
    ///
    /// # Errors
    /// `InvalidInput` when it is too long, and those of the system.
    pub(super) fn write_sealed(
        &mut self,
        path: &Path,
        seals: &dyn Fn(&[u8]) -> [u8; 32],
    ) -> Result<()> {
        let own = Directory::open_as(path, true, word())?;
        let place = place(&own, path)?;
        let seal = Some(seals(&self.sealed_bytes(&place)));
        self.seal = Some(Seal { seal, place });
        self.write_to(&own)
    }

    /// Says where a node is from now on, to the directory at `path` too; durable on return. A list
    /// that had a seal gets a new one; any other belongs to an older archive, and stays as it was.
    ///
    /// # Errors
    /// As [`write_sealed`](Self::write_sealed).
    pub(super) fn move_node(
        &mut self,
        path: &Path,
        nodes: &Nodes,
        number: usize,
        to: &Path,
    ) -> Result<()> {
        let to = whole(to)?;
        if let Some(place) = self.paths.get_mut(number) {
            *place = to;
        }
        match self.seal {
            Some(_) => self.write_sealed(path, &|list| nodes.seal(list)),
            None => self.write_to(&Directory::open_as(path, true, word())?),
        }
    }

    fn write_to(&self, own: &Directory) -> Result<()> {
        let mut text = self.paths_bytes();
        if let Some(Seal { seal: Some(seal), place }) = &self.seal {
            text.push(SEALED);
            text.extend(seal.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
            text.push(b' ');
            text.extend_from_slice(place);
            text.push(b'\n');
        }
        if text.len() as u64 > LIST_BYTES_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("the paths of the nodes have more than {} KiB", LIST_BYTES_MAX >> 10),
            ));
        }
        own.replace(NODES, &text)
    }

    fn paths_bytes(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for node in &self.paths {
            text.extend_from_slice(node.as_os_str().as_bytes());
            text.push(b'\n');
        }
        text
    }

    /// All that a seal is about.
    fn sealed_bytes(&self, place: &[u8]) -> Vec<u8> {
        let mut text = self.paths_bytes();
        text.push(SEALED);
        text.extend_from_slice(place);
        text
    }

    /// Reaches the directory of a node on another host. Only a list of the user's own leads there, which was written
    /// for the directory at `own` and in it: else whoever wrote it would choose with whom this process speaks, and
    /// with which keys. A path alone does not show that: whoever has a list unpacked somewhere knows the path before.
    ///
    /// # Errors
    /// `Denied` for a list of somebody else's, and those of reaching it.
    pub(super) fn reach(&self, own: &Path, path: &Path) -> Result<Arc<Far>> {
        let shown = path.display();
        let users = [Some(rustix::process::geteuid().as_raw()), word().owner];
        let is_for_here = match &self.seal {
            Some(seal) => has_inode(&seal.place, own)?,
            None => self.is_new,
        };
        if !users.contains(&Some(self.owner)) || !is_for_here {
            let why = format!(
                "{shown} is on another host, and the list that names it as a node was not written by this user \
                 for {} itself: nobody connects there for it; `onefold node attach` makes a directory of the archive",
                own.display()
            );
            return Err(Error::new(Kind::Denied, why));
        }
        far::reach(path)
    }

    /// True when a node is on another host.
    pub(super) fn leads_away(&self) -> bool {
        self.paths.iter().any(|path| far::is_address(path))
    }

    /// The directories of nodes that are on this host.
    pub(super) fn here(&self) -> impl Iterator<Item = &PathBuf> {
        self.paths.iter().filter(|path| !far::is_address(path))
    }

    /// Opens the directory of a node on this host.
    pub(super) fn open(&self, path: &Path, writes: bool) -> Result<Directory> {
        let files = Directory::open_as(path, writes, word())?;
        let owner = files.owner()?;
        if owner == self.owner {
            return Ok(files);
        }
        let why = format!(
            "{} belongs to user {owner}, and the list that names it as a node to user {}",
            path.display(),
            self.owner
        );
        Err(Error::new(Kind::Denied, why))
    }

    /// Judges the list in the directory at `path`, before anything of the archive on these nodes is
    /// changed.
    ///
    /// # Errors
    /// `Denied` when the list is not of this archive, or was written for another directory.
    pub(super) fn may_change(&self, nodes: &Nodes, path: &Path) -> Result<()> {
        let shown = path.display();
        let stranger = |_| {
            let why = format!(
                "{shown} is not the directory of the archive whose nodes it names, so nothing of that \
                 archive is changed by way of it; if you wrote this list of nodes yourself, `onefold \
                 node attach` makes a directory of the archive"
            );
            Error::new(Kind::Denied, why)
        };
        let Some(Seal { seal, place }) = &self.seal else {
            if !nodes.may_change(&[], None).map_err(stranger)? {
                warn(&format!(
                    "an older program made {shown}/{NODES}, and nobody can tell who wrote it; \
                     `onefold node attach` makes a directory whose list the nodes know"
                ));
            }
            return Ok(());
        };
        let seal = seal.unwrap_or_default();
        nodes.may_change(&self.sealed_bytes(place), Some(&seal)).map_err(stranger)?;
        if is_here(place, path)? {
            return Ok(());
        }
        let made_for =
            place.iter().position(|&byte| byte == b' ').map_or(&[][..], |at| &place[at + 1..]);
        let why = format!(
            "{shown} is a copy of {}, the directory of an archive, so nothing of the archive is \
             changed by way of it; `onefold node attach` makes another directory of the archive",
            String::from_utf8_lossy(made_for)
        );
        Err(Error::new(Kind::Denied, why))
    }
}

impl Seal {
    /// Reads the line.
    fn read(line: &[u8]) -> Seal {
        let (digits, place) = line[1..].split_at_checked(SEAL_DIGITS).unwrap_or_default();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
        let bytes: Option<Vec<u8>> = digits.as_chunks::<2>().0.iter().map(byte).collect();
        Seal {
            seal: bytes.and_then(|bytes| bytes.try_into().ok()),
            place: place.strip_prefix(b" ").unwrap_or_default().to_vec(),
        }
    }
}

/// A path as a list has it, or the address of a directory on another host.
pub(super) fn whole(path: &Path) -> Result<PathBuf> {
    if far::is_address(path) {
        return far::check(path).map(|()| path.to_owned());
    }
    if is_bucket(path) {
        let why = format!(
            "{} is a bucket; a node is a directory, here or on another host",
            path.display()
        );
        return Err(Error::new(Kind::InvalidInput, why));
    }
    let whole = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
    match whole.to_str() {
        Some(text) if !text.contains('\n') => Ok(whole),
        _ => Err(Error::new(
            Kind::InvalidInput,
            format!("{} can't be written into a list", whole.display()),
        )),
    }
}

/// How a directory is named where a copy of it must not pass for it: its inode and its path.
pub(super) fn place(own: &Directory, path: &Path) -> Result<Vec<u8>> {
    let mut place = format!("{} ", own.inode()?).into_bytes();
    place.extend_from_slice(&resolved(path)?);
    Ok(place)
}

/// The path of a directory; nothing when a line can't hold it, and then only the inode tells.
fn resolved(path: &Path) -> Result<Vec<u8>> {
    let whole = fs::canonicalize(path).map_err(|e| Error::from_io(path.display(), e))?;
    let bytes = whole.into_os_string().into_vec();
    Ok(if bytes.contains(&b'\n') { Vec::new() } else { bytes })
}

/// True when the directory at `path` has the inode of `place`.
fn has_inode(place: &[u8], path: &Path) -> Result<bool> {
    let inode = place.iter().position(|&byte| byte == b' ').map(|at| &place[..at]);
    let own = Directory::open(path, false)?;
    Ok(inode == Some(own.inode()?.to_string().as_bytes()))
}

/// True when the directory at `path` has the inode or the path of `place`.
pub(super) fn is_here(place: &[u8], path: &Path) -> Result<bool> {
    let Some(at) = place.iter().position(|&byte| byte == b' ') else { return Ok(false) };
    let was = &place[at + 1..];
    Ok(has_inode(place, path)? || (!was.is_empty() && was == resolved(path)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_any_bytes_are_a_list_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let own = Directory::create(&dir.path().join("a")).unwrap();
        let mut list = NodeList::new(&["/x/0".into(), "/x/1".into()], &own).unwrap();
        list.write_to(&own).unwrap();
        assert!(NodeList::read(&own).unwrap().unwrap().seal.is_none());
        list.write_sealed(&dir.path().join("a"), &|_| [0xa7; 32]).unwrap();
        let read = NodeList::read(&own).unwrap().unwrap();
        assert_eq!(read.paths, list.paths);
        let seal = read.seal.unwrap();
        assert_eq!(seal.seal, Some([0xa7; 32]));
        assert!(is_here(&seal.place, &dir.path().join("a")).unwrap());
        assert!(!is_here(&seal.place, dir.path()).unwrap());
        for line in [&b"="[..], b"==", b"=\xff", &[b'='; 70], &[b'0'; 90]] {
            let text = [b"/x/0\n", line, b"\n"].concat();
            own.replace(NODES, &text).unwrap();
            let read = NodeList::read(&own).unwrap().unwrap();
            assert!(read.seal.is_none_or(|seal| seal.seal.is_none()), "{line:?}");
        }
    }
}
