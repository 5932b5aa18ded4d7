//! An archive's directory: found, opened for what a verb wants, and named in errors.
//!
//! An archive on one node is its directory. One on several has a directory with the file `nodes`, which says where they are; it holds nothing else, and
//! can be made again from the nodes.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use onefold_archive::{Archive, Settings, archive::find_label, nodes::Nodes};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};

use crate::control::Client;

/// Names the directories of an archive's nodes, a line each, the first that of node 0.
const NODES: &str = "nodes";

/// The directory of an archive.
pub(crate) struct ArchiveDir {
    path: PathBuf,
    /// Those of its nodes, when there are several.
    nodes: Option<Vec<PathBuf>>,
}

impl ArchiveDir {
    /// True when `path` is a directory, which no block store is.
    pub(crate) fn is_there(path: &Path) -> bool {
        path.is_dir()
    }

    /// The archive at `path`.
    ///
    /// # Errors
    /// One sentence for what is missing or no archive.
    pub(crate) fn look(path: &Path) -> Result<ArchiveDir> {
        if let Some(nodes) = read_nodes(path)? {
            let directory = ArchiveDir { path: path.to_owned(), nodes: Some(nodes) };
            directory.nodes(false, false)?;
            return Ok(directory);
        }
        let found = Directory::open(path, false).and_then(|files| find_label(&files));
        match found {
            Ok(_) => Ok(ArchiveDir { path: path.to_owned(), nodes: None }),
            Err(error) => Err(name_archive(path, error)),
        }
    }

    /// Makes the directory of an archive whose nodes are elsewhere; durable on return.
    ///
    /// # Errors
    /// `Exists` when something is in it, and those of the system.
    pub(crate) fn create(path: &Path, nodes: &[PathBuf]) -> Result<ArchiveDir> {
        drop(Directory::create(path)?);
        let whole = |node: &PathBuf| {
            let whole = std::path::absolute(node).map_err(|e| Error::from_io(node.display(), e))?;
            match whole.to_str() {
                Some(text) if !text.contains('\n') => Ok(whole),
                _ => Err(Error::new(Kind::InvalidInput, format!("{} can't be written into a list", whole.display()))),
            }
        };
        let directory = ArchiveDir { path: path.to_owned(), nodes: Some(nodes.iter().map(whole).collect::<Result<_>>()?) };
        directory.write_nodes()?;
        Ok(directory)
    }

    /// Says where a node is from now on; durable on return.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn move_node(&mut self, number: usize, to: &Path) -> Result<()> {
        let to = std::path::absolute(to).map_err(|e| Error::from_io(to.display(), e))?;
        if let Some(place) = self.nodes.as_mut().and_then(|nodes| nodes.get_mut(number)) {
            *place = to;
        }
        self.write_nodes()
    }

    fn write_nodes(&self) -> Result<()> {
        let wrong = |e| Error::from_io(self.path.join(NODES).display(), e);
        let (file, new) = (self.path.join(NODES), self.path.join("nodes.new"));
        let mut out = File::create(&new).map_err(wrong)?;
        for node in self.nodes.iter().flatten() {
            writeln!(out, "{}", node.display()).map_err(wrong)?;
        }
        out.sync_all().map_err(wrong)?;
        fs::rename(&new, &file).map_err(wrong)?;
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(wrong)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the control socket of the archive's server: its id, and which directory it is.
    ///
    /// # Errors
    /// Those of looking at it.
    pub(crate) fn control_name(&self) -> Result<String> {
        let id = match self.nodes(false, false)? {
            Some(nodes) => nodes.archive_id(),
            None => find_label(&Directory::open(&self.path, false)?)?.id,
        };
        let metadata = self.metadata()?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{id}{:016x}{:016x}", metadata.dev(), metadata.ino()))
    }

    fn metadata(&self) -> Result<fs::Metadata> {
        fs::metadata(&self.path).map_err(|e| Error::from_io(self.path.display(), e))
    }

    /// A connection to the server of the archive; `None` when nobody serves it.
    ///
    /// # Errors
    /// `Denied` when it can't be trusted, and those of looking at the archive.
    pub(crate) fn server(&self) -> Result<Option<Client>> {
        match Client::connect_to(&self.control_name()?, self.metadata()?.uid(), &self.path) {
            Ok(client) => Ok(Some(client)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A sentence for each node that does not count.
    pub(crate) fn notes(&self, nodes: &Nodes) -> Vec<String> {
        let note = |(number, why)| format!("node {number} ({}) does not count: {why}", self.node(number).display());
        nodes.absent().into_iter().map(note).collect()
    }

    /// The directory of a node.
    pub(crate) fn node(&self, number: usize) -> PathBuf {
        self.nodes.as_ref().and_then(|nodes| nodes.get(number)).cloned().unwrap_or_default()
    }

    /// Its nodes, when there are several.
    ///
    /// # Errors
    /// Those of looking at them.
    pub(crate) fn nodes(&self, writes: bool, degraded: bool) -> Result<Option<Arc<Nodes>>> {
        let Some(nodes) = &self.nodes else { return Ok(None) };
        let open = |path: &PathBuf| Some(Arc::new(Directory::open(path, writes).ok()?) as Arc<dyn Files>);
        let nodes = Nodes::open(nodes.iter().map(open).collect(), degraded);
        nodes.map(|nodes| Some(Arc::new(nodes))).map_err(|error| match error.kind() {
            Kind::NotFound => Error::new(Kind::NotFound, format!("none of the nodes of {} is there", self.path.display())),
            _ => name_archive(&self.path, error),
        })
    }

    /// Opens it for changes.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn open(&self, settings: Settings) -> Result<Arc<Archive>> {
        self.open_nodes(settings, false).map(|(archive, _)| archive)
    }

    /// The same with its nodes, when there are several. With `degraded` puts go on while `k + 1` nodes of a stripe are there.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn open_nodes(&self, settings: Settings, degraded: bool) -> Result<(Arc<Archive>, Option<Arc<Nodes>>)> {
        let nodes = self.nodes(true, degraded)?;
        let files: Arc<dyn Files> = match &nodes {
            Some(nodes) => nodes.clone(),
            None => Arc::new(Directory::open(&self.path, true).map_err(|e| name_archive(&self.path, e))?),
        };
        let archive = Archive::open(files, true, settings).map_err(|e| name_archive(&self.path, e))?;
        Ok((Arc::new(archive), nodes))
    }

    /// Opens it for looking; it may be on a file system that takes no writes. Whoever wrote it, its tables take at most `memory` bytes, and more for what
    /// they occupy there.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn open_to_read(&self, memory: u64) -> Result<Arc<Archive>> {
        let settings = Settings { memory, ..Settings::default() };
        // Who may write makes durable what a killed process left, before it shows it.
        match self.open(settings.clone()) {
            Err(error) if error.kind() != Kind::Memory => {}
            opened => return opened,
        }
        let files: Arc<dyn Files> = match self.nodes(false, false)? {
            Some(nodes) => nodes,
            None => Arc::new(Directory::open(&self.path, false).map_err(|e| name_archive(&self.path, e))?),
        };
        Archive::open(files, false, settings).map(Arc::new).map_err(|e| name_archive(&self.path, e))
    }
}

/// The list of nodes in a directory, if there is one.
fn read_nodes(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    match fs::read_to_string(path.join(NODES)) {
        Ok(text) => Ok(Some(text.lines().map(PathBuf::from).collect())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::from_io(path.join(NODES).display(), e)),
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The engine does not know what its directory is called.
pub(crate) fn name_archive(path: &Path, error: Error) -> Error {
    let shown = path.display().to_string();
    match error.kind() {
        Kind::NotFound if error.to_string() == "no archive" => {
            Error::new(Kind::NotFound, format!("{shown} is a directory and no archive; `onefold archive create` makes one"))
        }
        _ if error.to_string().contains(&shown) => error,
        _ => error.context(shown),
    }
}
