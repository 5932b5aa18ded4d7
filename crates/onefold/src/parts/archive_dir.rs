//! An archive's directory: found, opened for what a verb wants, and named in errors.
//!
//! An archive on one node is its directory. One on several has a directory with the file `nodes`,
//! which says where they are; it holds nothing else, and can be made again from the nodes. One on another
//! host has an address of `ssh`, and all that is not its files stays with that host: who serves it, its
//! claim, and the processes that use it there.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use onefold_archive::{
    Archive, IndexDirectory, MAY_ADD_ONLY, Nodes, READER_BYTES, Role, Settings, find_label,
    is_unfinished, lost_index_files, seal,
};
use onefold_backend::{Directory, Making, Stands, lock, room::room, secrets::process_memory};
pub use onefold_bucket::Collected;
use onefold_core::{Error, Files, Kind, Result, hex_digits};
use onefold_remote::Right;

use super::{
    address::is_away,
    away::Away,
    control::{Client, places},
    far,
    index_place::IndexPlace,
    keeper::{self, Keeper},
    keys,
    node_list::{NODES, NodeList, whole},
    operator::{warn, word},
    sealed_before,
    standing::{Standing, Unreached},
};

/// The label of an archive on one node.
const LABEL: &str = "label";

/// The lock of the process that stores.
const WRITER: &str = "lock-writer";

/// One part in so many of the memory that this process can have is what the tables of an archive on another
/// host may take, and as much the filters of its chunk index.
const FAR_SHARE: u64 = 4;

/// Locks that readers and puts hold.
const USED: [&str; 3] = ["epoch-0", "epoch-1", WRITER];

/// A server of an archive whose control socket is out of sight: a fact without advice, as a sentence
/// without its end.
pub struct UnseenServer {
    pub pid: u32,
    /// A lock shows that it runs: without, it may have been killed.
    pub is_sure: bool,
    told: String,
}

impl std::fmt::Display for UnseenServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.told)
    }
}

/// The directory of an archive.
#[derive(Clone)]
pub struct ArchiveDir {
    path: PathBuf,
    /// Where its files are, when that is on another host or in an object store.
    far: Option<Away>,
    /// The list of its nodes, when there are several.
    nodes: Option<NodeList>,
    /// Where the chunk index is, unless it is beside the data, or what is wrong with what says so.
    index: Option<Result<IndexPlace>>,
    /// The archive's directory is our user's: else nobody follows what it says of the index.
    is_ours: bool,
    /// A warning said that the index directory is not used: verbs that open the archive again say no more.
    told: Arc<AtomicBool>,
}

/// Settings with who is asked for the key, and with a limit of memory where another host says how large
/// everything is.
fn suited(directory: &ArchiveDir, settings: Settings) -> Settings {
    let settings = with_keys(&directory.path, settings);
    let leads_away = directory.nodes.as_ref().is_some_and(NodeList::leads_away);
    if !directory.is_far() && !leads_away {
        return settings;
    }
    let given = if settings.memory == u64::MAX { READER_BYTES } else { settings.memory };
    let memory = given.max(process_memory() / FAR_SHARE);
    Settings { memory, memory_is_all: true, ..settings }
}

impl ArchiveDir {
    /// True when `path` is a directory, or an address of another host: neither is a block store.
    pub fn is_there(path: &Path) -> bool {
        is_away(path) || path.is_dir()
    }

    /// The archive at `path`.
    ///
    /// # Errors
    /// One sentence for what is missing or no archive.
    pub fn look(path: &Path) -> Result<ArchiveDir> {
        if let Some(far) = Away::reach(path)? {
            find_label(&*far.files()?).map_err(|error| name_archive(path, error))?;
            return Ok(ArchiveDir {
                path: path.to_owned(),
                far: Some(far),
                nodes: None,
                index: None,
                is_ours: true,
                told: Arc::default(),
            });
        }
        let files = Directory::open(path, false)?;
        let nodes = NodeList::read(&files)?;
        let index = match nodes {
            Some(_) => None,
            None => IndexPlace::read(&files).transpose(),
        };
        let is_ours = Directory::open_as(path, false, word())?.is_ours();
        let directory = ArchiveDir {
            path: path.to_owned(),
            far: None,
            nodes,
            index,
            is_ours,
            told: Arc::default(),
        };
        if directory.nodes.is_some() {
            directory.nodes(false, false)?;
        } else {
            find_label(&files).map_err(|error| name_archive(path, error))?;
        }
        directory.warn_of_others(&files);
        Ok(directory)
    }

    /// Tells of directories that others can enter, but for empty ones, where perhaps nothing is
    /// mounted.
    fn warn_of_others(&self, files: &Directory) {
        let exposed = |node: &PathBuf| {
            let files = Directory::open(node, false).ok()?;
            files.exposed().filter(|_| files.names().is_ok_and(|names| !names.is_empty()))
        };
        let nodes = self.nodes.iter().flat_map(NodeList::here).filter_map(exposed);
        let index = self.index_place().filter(|_| self.is_ours);
        let index = index.map(|place| place.path().to_owned());
        let index = index.as_ref().and_then(exposed);
        files.exposed().into_iter().chain(nodes).chain(index).for_each(|sentence| warn(&sentence));
    }

    /// Makes the directory of an archive whose nodes are elsewhere, by the archive's id and secret;
    /// durable on return.
    ///
    /// # Errors
    /// `Exists` when something is in it, and those of the system.
    pub fn create(
        path: &Path,
        nodes: &[PathBuf],
        (id, secret): (&[u8; 16], &[u8; 32]),
    ) -> Result<ArchiveDir> {
        let mut list = NodeList::new(nodes, &Directory::create_as(path, word())?)?;
        list.write_sealed(path, &|list| seal(id, secret, list))?;
        Ok(ArchiveDir::on_nodes(path, list))
    }

    /// One that this process made.
    fn on_nodes(path: &Path, list: NodeList) -> ArchiveDir {
        ArchiveDir {
            path: path.to_owned(),
            far: None,
            nodes: Some(list),
            index: None,
            is_ours: true,
            told: Arc::default(),
        }
    }

    /// Makes another directory of the archive that has these nodes; durable on return.
    ///
    /// # Errors
    /// `Exists` when something is in it, those of looking at the nodes and those of the system.
    pub fn attach(path: &Path, nodes: &[PathBuf]) -> Result<ArchiveDir> {
        let list = NodeList::new(nodes, &Directory::create_as(path, word())?)?;
        let mut directory = ArchiveDir::on_nodes(path, list);
        let found = directory.nodes(false, false)?;
        if let (Some(list), Some(found)) = (&mut directory.nodes, found) {
            list.write_sealed(path, &|list| found.seal(list))?;
        }
        Ok(directory)
    }

    /// Says where a node is from now on; durable on return.
    ///
    /// # Errors
    /// `Io`: the system failed.
    pub fn move_node(&mut self, nodes: &Nodes, number: usize, to: &Path) -> Result<()> {
        let list = self.nodes.as_mut();
        list.map_or(Ok(()), |list| list.move_node(&self.path, nodes, number, to))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True when it is on another host, or in an object store.
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.far.is_some()
    }

    /// Errors when it is on another host, where alone `what` is possible, or in an object store.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn refuse_far(&self, what: &str) -> Result<()> {
        match &self.far {
            None => Ok(()),
            Some(far) => Err(far.refusal(&self.path, what)),
        }
    }

    /// Its files, for reading, when it has no nodes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn files(&self) -> Result<Arc<dyn Files>> {
        Ok(match &self.far {
            Some(far) => far.files()?,
            None => Arc::new(Directory::open(&self.path, false)?),
        })
    }

    /// Free bytes of its file system.
    ///
    /// # Errors
    /// Those of the system.
    pub fn free_bytes(&self) -> Result<u64> {
        match &self.far {
            Some(far) => far.free_bytes(),
            None => room(&self.path).map(|room| room.bytes),
        }
    }

    /// The name of the control socket of the archive's server: its id, and which directory it is.
    ///
    /// # Errors
    /// The error of looking at it.
    pub fn control_name(&self) -> Result<String> {
        let metadata = self.metadata()?;
        let id = hex_digits(self.id()?);
        Ok(format!("{id}{:016x}{:016x}", metadata.dev(), metadata.ino()))
    }

    fn id(&self) -> Result<[u8; 16]> {
        Ok(match self.nodes(false, false)? {
            Some(nodes) => nodes.archive_id(),
            None => find_label(&*self.files()?)?.id,
        })
    }

    /// Claims the archive for its server, against others on this machine and elsewhere.
    ///
    /// # Errors
    /// `Busy` while another one has it, `Unsupported` on another host; those of looking at the archive.
    pub fn claim(&self) -> Result<Keeper> {
        self.refuse_far("a process on that host serves it, and no other one")?;
        Keeper::of_folder(&self.path, self.id()?, &[LABEL, NODES])
    }

    /// A server of the archive whose control socket is out of sight, if its claim says that there is one.
    ///
    /// # Errors
    /// The error of looking at the archive.
    pub fn unseen_server(&self) -> Result<Option<UnseenServer>> {
        if self.is_far() {
            return Ok(None);
        }
        let Some((claim, is_sure)) = keeper::found(&self.path)? else { return Ok(None) };
        let (shown, places) = (self.path.display(), places::told(self.metadata()?.uid()));
        let (pid, host) = (claim.claimant.pid, claim.claimant.host);
        let told = format!(
            "{shown} is served by process {pid} on host {host}, which has no control socket {places}"
        );
        Ok(Some(UnseenServer { pid, is_sure, told }))
    }

    fn metadata(&self) -> Result<fs::Metadata> {
        fs::metadata(&self.path).map_err(|e| Error::from_io(self.path.display(), e))
    }

    /// A connection to the server of the archive; `None` when nobody serves it.
    ///
    /// # Errors
    /// `Denied` when it can't be trusted, `Busy` when it is on another host, and those of looking at the
    /// archive.
    pub fn server(&self) -> Result<Option<Client>> {
        if let Some(far) = &self.far {
            let server = far.greeting().and_then(|greeting| greeting.server.as_ref());
            let Some(server) = server else { return Ok(None) };
            let why =
                format!("{} can't be asked for that from here: {server}", self.path.display());
            return Err(Error::new(Kind::Busy, why));
        }
        match Client::connect_to(&self.control_name()?, self.metadata()?.uid(), &self.path) {
            Ok(client) => Ok(Some(client)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A sentence for each node that does not count.
    pub fn notes(&self, nodes: &Nodes) -> Vec<String> {
        let note = |(number, why)| {
            format!("node {number} ({}) does not count: {why}", self.node(number).display())
        };
        nodes.absent().into_iter().map(note).collect()
    }

    /// Other processes that read or put now: what they may need is freed when they have ended. Each
    /// with its number and the first words of its command line, as far as this system tells. Of another
    /// host nothing is known.
    #[must_use]
    pub fn users(&self) -> Vec<(u32, String)> {
        holders(self, &USED)
    }

    /// The process that stores into it now, a server or a put, told in the same way.
    #[must_use]
    pub fn writers(&self) -> Vec<(u32, String)> {
        holders(self, &[WRITER])
    }

    /// True when it is on several nodes.
    #[must_use]
    pub fn has_nodes(&self) -> bool {
        self.nodes.is_some()
    }

    /// Where the chunk index is, when it is elsewhere and what says so can be read.
    pub(super) fn index_place(&self) -> Option<&IndexPlace> {
        self.index.as_ref()?.as_ref().ok()
    }

    /// True when this process looks for the chunk index where it is.
    #[must_use]
    pub fn sees_index(&self) -> bool {
        self.index.is_none() || self.is_ours
    }

    /// Tells that the next step makes the chunk index anew, when files of it are lost.
    pub fn warn_of_lost_index(&self, archive: &Archive) {
        if lost_index_files(archive).is_ok_and(|lost| lost > 0) {
            warn(&format!(
                "{}: files of the chunk index are lost; this reads the metadata of all containers and \
                 makes it anew",
                self.path.display()
            ));
        }
    }

    /// Opens the directory of the chunk index, unless that is beside the data.
    fn open_index(&self, writes: bool) -> Option<Result<Directory>> {
        if !self.is_ours {
            return None;
        }
        Some(match self.index.as_ref()? {
            Ok(place) => self.id().and_then(|id| place.open(id, &self.path, writes)),
            Err(error) => Err(error.clone()),
        })
    }

    /// The directory of the chunk index, and why it is not used if it is not; `None` when the index is
    /// beside the data. Of somebody else's archive nobody looks whether it is.
    #[must_use]
    pub fn index_directory(&self) -> Option<(PathBuf, Option<String>)> {
        let path = match self.index.as_ref()? {
            Ok(place) => place.path().to_owned(),
            Err(_) => PathBuf::new(),
        };
        let opened = self.open_index(false).transpose();
        Some((path, opened.err().map(|error| error.to_string())))
    }

    /// The same for the engine. What is wrong with it is told, and costs speed.
    fn index_directories(&self, writes: bool, stands: Option<&Stands>) -> Vec<IndexDirectory> {
        let opened = self.open_index(writes).map(|opened| {
            let files = opened?;
            Ok::<_, Error>(watched(files, Some(&self.index_stands(stands)?)))
        });
        match opened {
            None => Vec::new(),
            Some(Ok(files)) => {
                let shown = self.path.display().to_string();
                let then = match writes {
                    true => ", and new files of the chunk index are made beside the data",
                    false => "",
                };
                let tell = move |error: &Error| {
                    warn(&format!("{shown}: its index directory failed{then}: {error}"));
                };
                vec![IndexDirectory::new(files, tell)]
            }
            Some(Err(error)) => {
                if writes && !self.told.swap(true, Relaxed) {
                    let shown = self.path.display();
                    warn(&format!(
                        "{shown} works without its index directory, and makes new files of the chunk \
                         index beside the data: {error} (`onefold index {shown} --beside-data` forgets \
                         a directory that is lost for good)"
                    ));
                }
                Vec::new()
            }
        }
    }

    /// Errors once this process may not write to the directory of the chunk index any more.
    fn index_stands(&self, stands: Option<&Stands>) -> Result<Stands> {
        let gone = || Error::new(Kind::NotFound, "it has no index directory");
        let place = self.index_place().ok_or_else(gone)?;
        let own = place.stands(self.open_index(false).ok_or_else(gone)??);
        let outer = stands.cloned();
        Ok(Arc::new(move || {
            outer.as_ref().map_or(Ok(()), |stands| stands())?;
            own()
        }))
    }

    /// The archive as it is now, when its chunk index was moved since this was looked at: whoever waited
    /// for the move opens it anew.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn after_move(&self) -> Result<Option<ArchiveDir>> {
        if self.has_nodes() || self.is_far() {
            return Ok(None);
        }
        let now = IndexPlace::read(&Directory::open(&self.path, false)?).unwrap_or(None);
        if now.as_ref() == self.index_place() {
            Ok(None)
        } else {
            ArchiveDir::look(&self.path).map(Some)
        }
    }

    /// Device and inode of its directory, and of the directories of its nodes and its chunk index, as far
    /// as they are there.
    #[must_use]
    pub fn identities(&self) -> Vec<(u64, u64)> {
        if self.is_far() {
            return Vec::new();
        }
        let nodes = self.nodes.iter().flat_map(NodeList::here);
        let index = self.index_place().filter(|_| self.is_ours).map(|place| place.path());
        let paths = std::iter::once(&*self.path).chain(nodes.map(PathBuf::as_path)).chain(index);
        let there = paths.filter_map(|at| fs::metadata(at).ok());
        there.map(|metadata| (metadata.dev(), metadata.ino())).collect()
    }

    /// The directory of a node.
    pub fn node(&self, number: usize) -> PathBuf {
        self.nodes.as_ref().and_then(|list| list.paths.get(number)).cloned().unwrap_or_default()
    }

    /// Its nodes, when there are several.
    ///
    /// # Errors
    /// The error of looking at them.
    pub fn nodes(&self, writes: bool, degraded: bool) -> Result<Option<Arc<Nodes>>> {
        self.nodes_while(writes, degraded, None)
    }

    fn nodes_while(
        &self,
        writes: bool,
        degraded: bool,
        stands: Option<&Stands>,
    ) -> Result<Option<Arc<Nodes>>> {
        let Some(list) = &self.nodes else { return Ok(None) };
        // A disk that is not mounted may show a directory of somebody else's: that node is absent.
        // When all are, the first reason is the one to tell.
        let (mut directories, mut refused) = (Vec::new(), None);
        let mut far_ones = 0;
        for (n, path) in list.paths.iter().enumerate() {
            if far::is_address(path) {
                far_ones |= 1 << n;
                directories.push(Some(
                    match far_node(list, (&self.path, path), (writes, degraded), stands)? {
                        Ok(files) => files,
                        Err(error) => {
                            refused.get_or_insert(error.clone());
                            Arc::new(Unreached(error))
                        }
                    },
                ));
                continue;
            }
            directories.push(match list.open(path, writes) {
                Ok(files) => Some(watched(files, stands)),
                Err(error) if error.kind() == Kind::NotFound => None,
                // Left out, the node would count as one that missed the coming writes.
                Err(error) if error.kind() == Kind::Unsupported && writes => return Err(error),
                Err(error) => {
                    refused.get_or_insert(error);
                    None
                }
            });
        }
        let none = || {
            Error::new(
                Kind::NotFound,
                format!("none of the nodes of {} is there", self.path.display()),
            )
        };
        let nodes =
            Nodes::open_far(directories, far_ones, degraded).map_err(|error| {
                match error.kind() {
                    Kind::NotFound => refused.unwrap_or_else(none),
                    _ => name_archive(&self.path, error),
                }
            })?;
        if writes {
            list.may_change(&nodes, &self.path)?;
        }
        Ok(Some(Arc::new(nodes)))
    }

    /// Opens it for changes.
    ///
    /// # Errors
    /// The error of opening.
    pub fn open(&self, settings: Settings) -> Result<Arc<Archive>> {
        self.open_nodes(settings, false).map(|(archive, _)| archive)
    }

    /// The same with its nodes, when there are several. With `degraded` puts go on while `k + 1`
    /// nodes of a stripe are there.
    ///
    /// # Errors
    /// The error of opening.
    pub fn open_nodes(
        &self,
        settings: Settings,
        degraded: bool,
    ) -> Result<(Arc<Archive>, Option<Arc<Nodes>>)> {
        self.open_while(settings, degraded, None)
    }

    /// The same, written only while its owner stands. The tables of an archive on another host take at most
    /// a quarter of the memory that this process can have, or what the settings allow if that is more.
    ///
    /// # Errors
    /// The error of opening.
    pub fn open_while(
        &self,
        settings: Settings,
        degraded: bool,
        stands: Option<&Stands>,
    ) -> Result<(Arc<Archive>, Option<Arc<Nodes>>)> {
        let settings = suited(self, settings);
        let nodes = self.nodes_while(true, degraded, stands)?;
        let opened = match (&nodes, &self.far) {
            (Some(nodes), _) => Archive::open_on_nodes(nodes.clone(), true, settings),
            (None, Some(far)) => may_change(&self.path, far).and_then(|()| {
                let opened = far
                    .files_to_change()
                    .and_then(|files| Archive::open_with_index(files, Vec::new(), true, settings));
                adding(far, opened)
            }),
            (None, None) => Directory::open_as(&self.path, true, word()).and_then(|files| {
                let index = self.index_directories(true, stands);
                Archive::open_with_index(watched(files, stands), index, true, settings)
            }),
        };
        let opened = opened.map_err(|e| name_archive(&self.path, e))?;
        self.compare_with_before(&opened)?;
        Ok((Arc::new(opened), nodes))
    }

    /// Opens it for looking, and writes nothing; it may be somebody else's, or on a file system
    /// that takes no writes. Even when an attacker wrote the archive, its tables take at most
    /// `memory` bytes, and more for what they occupy there. Of another host nobody believes what they
    /// occupy: see [`open_while`](Self::open_while).
    ///
    /// # Errors
    /// The error of opening.
    pub fn open_to_read(&self, memory: u64) -> Result<Arc<Archive>> {
        let settings = suited(self, Settings { memory, ..Settings::default() });
        let opened = match (self.nodes(false, false)?, &self.far) {
            (Some(nodes), _) => Archive::open_on_nodes(nodes, false, settings),
            (None, Some(far)) => far
                .files()
                .and_then(|files| Archive::open_with_index(files, Vec::new(), false, settings)),
            (None, None) => Directory::open(&self.path, false).and_then(|files| {
                let index = self.index_directories(false, None);
                Archive::open_with_index(Arc::new(files), index, false, settings)
            }),
        };
        let opened = opened.map_err(|e| name_archive(&self.path, e))?;
        self.compare_with_before(&opened)?;
        Ok(Arc::new(opened))
    }

    /// An encrypted archive that was opened is remembered as such; a plain one is refused where an
    /// encrypted one was.
    fn compare_with_before(&self, opened: &Archive) -> Result<()> {
        let label = opened.label();
        match label.sealed {
            Some(_) => sealed_before::note(&self.path, &label.id),
            None => sealed_before::refuse_plain(&self.path, &label.id)?,
        }
        Ok(())
    }

    /// Opens it for scrub and repair; where this user may not change it, only for reading.
    ///
    /// # Errors
    /// The error of opening.
    pub fn open_to_mend(&self, memory: u64) -> Result<Arc<Archive>> {
        let settings = Settings { memory, ..Settings::default() };
        let may = match &self.far {
            Some(far) => may_change(&self.path, far),
            None => Directory::open_as(&self.path, true, word()).map(drop),
        };
        match may.and_then(|()| self.open(settings)) {
            Ok(archive) => Ok(archive),
            // Somebody else's, or on a file system that takes no writes.
            Err(_) => self.open_to_read(memory),
        }
    }
}

/// True when the archive is in an object store.
#[must_use]
pub fn is_in_bucket(archive: &ArchiveDir) -> bool {
    matches!(archive.far, Some(Away::Bucket(_)))
}

/// Deletes objects that nothing in the archive needs; `None` when it is in no object store.
///
/// # Errors
/// `Busy` while another process changes the archive, and those of the store.
pub fn collect_objects(archive: &ArchiveDir) -> Result<Option<Collected>> {
    match &archive.far {
        Some(Away::Bucket(place)) => place.collect().map(Some),
        _ => Ok(None),
    }
}

/// A sentence for each object that the archive needs and that is lost, or has another length.
///
/// # Errors
/// Those of the store.
pub fn lost_objects(archive: &ArchiveDir) -> Result<Vec<String>> {
    match &archive.far {
        Some(Away::Bucket(place)) => place.losses(),
        _ => Ok(Vec::new()),
    }
}

/// Other processes that hold one of these locks.
fn holders(archive: &ArchiveDir, names: &[&str]) -> Vec<(u32, String)> {
    if archive.is_far() {
        return Vec::new();
    }
    let nodes = archive.nodes.as_ref().map(|list| list.here().collect::<Vec<_>>());
    let directories = nodes.unwrap_or_else(|| vec![&archive.path]);
    let locks = names.iter().flat_map(|name| directories.iter().map(move |at| at.join(name)));
    lock::holders(&locks.collect::<Vec<_>>())
}

/// Makes the directory of an archive that is to be created, or takes an empty one, here or on another
/// host. What a creation left that was killed is removed. A creation here is noted until what is returned
/// beside it is dropped.
///
/// # Errors
/// `Exists` when something is in it, `Busy` while another process creates an archive there, those of
/// reaching another host, and those of the system.
pub fn make_directory(path: &Path) -> Result<(Arc<dyn Files>, Option<Making>)> {
    if let Some(files) = Away::make(path)? {
        return Ok((files, None));
    }
    let (files, making) = Directory::create_over(path, word(), is_unfinished)?;
    files.exposed().iter().for_each(|sentence| warn(sentence));
    Ok((Arc::new(files), making))
}

/// The directory of a node on another host, written only while its owner stands, or why it is lost.
///
/// # Errors
/// `Unsupported` where the other host lets it be read only, and it is to be changed. Lost, the node would miss
/// the change, and somebody may have mounted its disk so for a moment. With `degraded` it is lost: no host
/// has a say in whether the others go on.
fn far_node(
    list: &NodeList,
    (own, path): (&Path, &Path),
    (writes, degraded): (bool, bool),
    stands: Option<&Stands>,
) -> Result<Result<Arc<dyn Files>>> {
    let far = match list.reach(own, path) {
        Ok(far) => far,
        Err(error) => return Ok(Err(error)),
    };
    let files: Arc<dyn Files> = Arc::new(far.files().clone());
    if !writes || far.greeting().right == Right::Manage {
        return Ok(Ok(match stands {
            Some(stands) => Arc::new(Standing { files, stands: stands.clone() }),
            None => files,
        }));
    }
    let bar = far.greeting().bar.as_deref();
    let bar = bar.unwrap_or("the other host lets this user change nothing there");
    let why = format!("{} can't be changed: {bar}", path.display());
    if degraded {
        return Ok(Err(Error::new(Kind::Denied, why)));
    }
    let way_out = "`onefold node replace` puts another directory in its place, and put --degraded goes on without it";
    Err(Error::new(Kind::Unsupported, format!("{why}; {way_out}")))
}

/// Makes the directory of a node, here or on another host, or takes an empty one.
///
/// # Errors
/// `Exists` when something is in it, those of reaching another host, and those of the system.
pub fn make_node(path: &Path) -> Result<Arc<dyn Files>> {
    let path = whole(path)?;
    match Away::make(&path)? {
        Some(files) => Ok(files),
        None => Ok(Arc::new(Directory::create_as(&path, word())?)),
    }
}

/// Opens the directory of a node to fill it anew: an empty one, a new one, that of a node that missed changes, or one
/// whose filling was cut off. The engine looks what is in it.
///
/// # Errors
/// Those of reaching it, and `Denied` when it can't be changed.
pub fn node_to_fill(path: &Path) -> Result<Arc<dyn Files>> {
    let path = whole(path)?;
    if !far::is_address(&path) {
        return make_node(&path)
            .or_else(|_| Ok(Arc::new(Directory::open_as(&path, true, word())?) as Arc<dyn Files>));
    }
    // What is there already is taken as it is. Only where nothing is the other host makes something.
    let far = match far::reach(&path) {
        Err(error) if error.kind() == Kind::NotFound => far::make(&path)?,
        reached => reached?,
    };
    may_change(&path, &Away::Host(far.clone()))?;
    Ok(Arc::new(far.files().clone()))
}

/// Errors when the other host lets us only read.
fn may_change(path: &Path, far: &Away) -> Result<()> {
    let Some(greeting) = far.greeting().filter(|greeting| greeting.right <= Right::Read) else {
        return Ok(());
    };
    let bar = greeting.bar.as_deref();
    let bar = bar.unwrap_or("the other host lets this user read it, and change nothing");
    Err(Error::new(Kind::Denied, format!("{} can't be changed: {bar}", path.display())))
}

/// Errors when the other host lets us only add, and the key is for more: what it does to files is refused
/// there.
fn adding(far: &Away, opened: Result<Archive>) -> Result<Archive> {
    let is_refused = match &opened {
        Ok(archive) => !matches!(archive.role(), Some(Role::Put(_))),
        // Who manages may write when it opens.
        Err(error) => error.to_string().contains(MAY_ADD_ONLY),
    };
    let may_only_add = far.greeting().is_some_and(|greeting| greeting.right == Right::Put);
    if !may_only_add || !is_refused {
        return opened;
    }
    let why = "the other host lets this user only add, by a put key";
    match opened {
        Ok(_) => Err(Error::new(Kind::Denied, format!("{why}; this key is for more"))),
        Err(error) => Err(error.context(why)),
    }
}

/// Settings with who is asked for the key of an archive, unless they say so themselves.
fn with_keys(archive: &Path, settings: Settings) -> Settings {
    match settings.opener.is_nobody() {
        true => Settings { opener: keys::of_archive(archive), ..settings },
        false => settings,
    }
}

/// The files of a directory, written only while their owner stands.
fn watched(files: Directory, stands: Option<&Stands>) -> Arc<dyn Files> {
    Arc::new(match stands {
        Some(stands) => files.while_stands(stands.clone()),
        None => files,
    })
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The engine does not know what its directory is called.
pub fn name_archive(path: &Path, error: Error) -> Error {
    let shown = path.display().to_string();
    match error.kind() {
        Kind::NotFound if error.to_string() == "no archive" => Error::new(
            Kind::NotFound,
            format!("{shown} is a directory and no archive; `onefold create archive` makes one"),
        ),
        _ if error.to_string().contains(&shown) => error,
        _ => error.context(shown),
    }
}
