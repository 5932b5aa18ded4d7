//! A store's file or device: looked at without a lock, opened with one, or put to work with its two
//! threads.

use std::{
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_backend::{
    Access, FileDisk, MonotonicClock, lock::is_locked_here, peek, peer::own_uid,
};
use onefold_block::{
    Engine, KeySource, Settings, Store,
    check::look_with,
    durable_state,
    format::{
        geometry::{KEY_AREAS, SUPERBLOCKS},
        superblock::{Found, Superblock, seen},
    },
};
use onefold_core::{Block, Disk, Error, Kind, Pba, Read, Result, hex_digits};
use onefold_seal::{AREA_BYTES, KeyArea};

use super::{
    control,
    keeper::Keeper,
    keys, operator, sealed_before,
    witness::{Teller, UNTOLD},
};

/// How long a lock that nobody answers for is tried: the kernel may still be ending the requests of
/// a server that was killed.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// How often the newest durable state of an encrypted store is noted.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// A file or device that holds a store, as it was when it was looked at.
#[derive(Clone)]
pub struct StoreFile {
    path: PathBuf,
    superblock: Superblock,
    metadata: std::fs::Metadata,
}

impl StoreFile {
    /// Looks at the store without a lock, whether it is served or not.
    ///
    /// # Errors
    /// One sentence for what is missing, no store, too new, damaged or not allowed. `Denied`: it is
    /// plain, and an encrypted store was there before.
    pub fn look(path: &Path) -> Result<StoreFile> {
        let superblock = read_superblock(path).map_err(|e| name_store(path, e))?;
        if !superblock.state.is_sealed() {
            sealed_before::refuse_plain(path, &superblock.fixed.id)?;
        }
        let metadata = std::fs::metadata(path).map_err(|e| Error::from_io(path.display(), e))?;
        Ok(StoreFile { path: path.to_owned(), superblock, metadata })
    }

    /// Opens a file or device for reading, whatever is in it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_any(path: &Path) -> Result<Arc<dyn Disk>> {
        match StoreFile::look(path) {
            Ok(file) => file.open_for_reading(),
            Err(_) => Ok(Arc::new(FileDisk::open(path, Access::ReadOnly)?)),
        }
    }

    /// This store with a path that does not depend on the directory of the process.
    pub fn at_absolute_path(mut self) -> StoreFile {
        self.path = std::path::absolute(&self.path).unwrap_or(self.path);
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The key area of an encrypted store as it is read without a key: its higher whole copy. Needs no lock.
    ///
    /// # Errors
    /// `NotFound`: the store is not encrypted. `Corrupt`: no copy is whole.
    pub fn key_area(&self) -> Result<KeyArea> {
        if !self.is_encrypted() {
            return Err(Error::new(Kind::NotFound, "the store is not encrypted"));
        }
        let copy = |first: Pba| -> Result<KeyArea> {
            let mut bytes = Vec::with_capacity(AREA_BYTES);
            for n in 0..(AREA_BYTES / 4096) as u64 {
                let block = peek(&self.path, first.plus(n))?;
                bytes.extend_from_slice(&block.map_or([0; 4096], |block| block.0));
            }
            KeyArea::decode(&bytes)
        };
        match KEY_AREAS.map(copy) {
            [Ok(first), Ok(second)] if second.sequence() > first.sequence() => Ok(second),
            [Ok(area), _] | [_, Ok(area)] => Ok(area),
            [Err(error), _] => Err(error),
        }
    }

    /// The opener of the store: it gives the key, and knows the states that were seen.
    pub fn keys(&self) -> KeySource {
        keys::of_block_store(&self.path)
    }

    /// True when the store is sealed at rest.
    pub fn is_encrypted(&self) -> bool {
        self.superblock.state.is_sealed()
    }

    /// The store's id in hexadecimal digits.
    pub fn id(&self) -> String {
        hex_digits(self.superblock.fixed.id)
    }

    /// Bytes that the host's file system gives to the file; `None` for a device.
    pub fn host_bytes(&self) -> Option<u64> {
        (!self.is_device()).then(|| self.metadata.blocks() * 512)
    }

    pub fn is_device(&self) -> bool {
        self.metadata.file_type().is_block_device()
    }

    /// The user that a server of the store may run as, besides root and us.
    pub fn owner(&self) -> u32 {
        self.metadata.uid()
    }

    /// The name of the control socket: the store's id, and which file it is in. A copy has the same
    /// id and is yet another store: a verb for one must never reach the server of the other.
    pub fn control_name(&self) -> String {
        let (space, number) = if self.is_device() {
            (u64::MAX, self.metadata.rdev())
        } else {
            (self.metadata.dev(), self.metadata.ino())
        };
        format!("{}{space:016x}{number:016x}", self.id())
    }

    /// Opens it for `access`, with a lock.
    ///
    /// # Errors
    /// `Busy`, which names the server when there is one, and those of the system.
    pub fn open(&self, access: Access) -> Result<FileDisk> {
        let begun = Instant::now();
        loop {
            let error = match FileDisk::open(&self.path, access) {
                Err(error) if error.kind() == Kind::Busy => error,
                opened => return self.is_same(opened?),
            };
            if let Some(pid) =
                control::Client::connect(self).ok().and_then(|mut server| server.pid().ok())
            {
                let message = format!(
                    "store {} is served by process {pid}; stop it first",
                    self.path.display()
                );
                return Err(Error::new(Kind::Busy, message));
            }
            if begun.elapsed() > LOCK_WAIT && is_locked_here(&self.path) {
                return Err(error);
            }
            if begun.elapsed() > LOCK_WAIT {
                return Err(unreachable_server(error, self.owner()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the opened disk if it is the one that was looked at. Another user who can change a link or
    /// a directory of the path may have put something else there, into which the operator did not mean to
    /// write.
    ///
    /// # Errors
    /// `Io`: it is another one.
    fn is_same(&self, disk: FileDisk) -> Result<FileDisk> {
        let (medium, own) = (disk.medium(), &self.metadata);
        let is_file = if self.is_device() {
            disk.is_device() && medium.device == own.rdev()
        } else {
            !disk.is_device() && (medium.device, medium.inode) == (own.dev(), own.ino())
        };
        let place = |place: u32| {
            let mut block = Block::zeroed_vec(1);
            let mut read = [Read::new(SUPERBLOCKS[place as usize], &mut block)];
            disk.read(&mut read);
            let [read] = read;
            let id = self.superblock.fixed.id;
            read.result.is_ok()
                && match Superblock::decode(&block[0], place) {
                    Found::Good(found) | Found::Sealed(found) => found.fixed.id == id,
                    _ => false,
                }
        };
        if is_file && (place(0) || place(1)) {
            return Ok(disk);
        }
        let why = format!("{} was replaced while it was being opened", self.path.display());
        Err(Error::new(Kind::Io, why))
    }

    /// Opens it for reading; others may read it too.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for_reading(&self) -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.open(Access::ReadOnly)?))
    }

    /// The store as it is, for looking only: nothing on the disk changes, and what a recovery would
    /// write stays in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of recovery.
    pub fn open_unchanged(&self) -> Result<Engine> {
        let engine = look_with(&self.open_for_reading()?, &self.keys())
            .map_err(|e| name_store(&self.path, e))?;
        self.note_encrypted();
        Ok(engine)
    }

    /// Notes that an encrypted store was opened by this user.
    fn note_encrypted(&self) {
        if self.is_encrypted() {
            sealed_before::note(&self.path, &self.superblock.fixed.id);
        }
    }

    /// Opens it for writing, and claims it against other machines.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Busy` while another machine works on it.
    pub fn claim(&self) -> Result<Keeper> {
        let disk = self.open(Access::ReadWrite)?;
        Keeper::take(disk, self.superblock.fixed.id).map_err(|e| name_store(&self.path, e))
    }

    /// Opens the store for work.
    ///
    /// # Errors
    /// As [`open_unchanged`](Self::open_unchanged).
    pub fn work(&self, settings: Settings) -> Result<WorkingStore> {
        let keeper = self.claim()?;
        let settings = Settings { keys: self.keys(), ..settings };
        let store = Store::open(keeper.disk(), Arc::new(MonotonicClock::new()), settings)
            .map_err(|e| name_store(&self.path, e))?;
        self.note_encrypted();
        if store.engine().fixed().scheme.loses_everything() {
            let message = "it keeps no metadata and would lose everything: it is for measuring \
                           only, and is not served";
            return Err(name_store(&self.path, Error::new(Kind::Unsupported, message)));
        }
        WorkingStore::start(store, keeper, self)
    }
}

/// Notes the durable state of an encrypted store with this id.
fn note_state(id: &[u8; 16], store: &Store) {
    match durable_state(store.engine()) {
        Ok(state) => sealed_before::note_state(id, state.sequence),
        Err(error) => tracing::debug!("the state of a store is not remembered: {error}"),
    }
}

/// The error of a store that a process has open which no command reaches. This may be a server without a
/// control socket, or with one elsewhere.
fn unreachable_server(error: Error, owner: u32) -> Error {
    let places = control::places::told(owner);
    let hint = "if it is a server that was started with --control DIR, say the same here";
    let users = own_uid() == 0 && owner != 0 && operator::word().owner != Some(owner);
    let hint = if users {
        format!(
            "{hint}; if user {owner} started it, and you trust what it says, add --owner {owner}"
        )
    } else {
        hint.to_owned()
    };
    Error::new(error.kind(), format!("{error}, which has no control socket {places}; {hint}"))
}

/// The newer superblock of the file or device at `path`.
fn read_superblock(path: &Path) -> Result<Superblock> {
    let look = |place: u32| -> Result<Found> {
        let block = peek(path, SUPERBLOCKS[place as usize])?;
        Ok(block.map_or(Found::Foreign, |block| Superblock::decode(&block, place)))
    };
    match seen(look(0)?, look(1)?) {
        // A server may have been writing one of them while we read.
        Err(error) if error.kind() == Kind::Corrupt => seen(look(0)?, look(1)?),
        chosen => chosen,
    }
}

/// True when a block of the first or last MiB of `path` holds anything.
///
/// # Errors
/// `Io`: the system failed.
pub fn holds_something(path: &Path, blocks: u64) -> Result<bool> {
    const EDGE: u64 = 256;
    let edges = (0..EDGE.min(blocks)).chain(blocks.saturating_sub(EDGE)..blocks);
    for at in edges {
        if peek(path, Pba(at))?.is_some_and(|block| !block.is_zero()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds the path of the store to an error of the engine, which does not know how its disk is called.
fn name_store(path: &Path, error: Error) -> Error {
    let shown = path.display().to_string();
    if error.to_string().contains(&shown) { error } else { error.context(shown) }
}

/// A store with its working threads.
pub struct WorkingStore {
    store: Arc<Store>,
    threads: Vec<JoinHandle<()>>,
    /// The id of an encrypted store, whose states are noted.
    noted: Option<[u8; 16]>,
    /// Tells the witness, if there is one.
    teller: Option<Arc<Teller>>,
    /// Dropped to end the threads that keep states elsewhere.
    keeping: Vec<mpsc::Sender<()>>,
    /// Given up last, when nobody writes any more.
    _keeper: Keeper,
}

impl WorkingStore {
    fn start(store: Arc<Store>, keeper: Keeper, file: &StoreFile) -> Result<WorkingStore> {
        let mut working = WorkingStore {
            store,
            threads: Vec::new(),
            noted: file.is_encrypted().then_some(file.superblock.fixed.id),
            teller: Teller::of(file.superblock.fixed.id),
            keeping: Vec::new(),
            _keeper: keeper,
        };
        working.spawn("store writer", Store::run_writer)?;
        working.spawn("store background", Store::run_background)?;
        if let Some(id) = working.noted {
            working.keep("store states", move |store, ended| {
                while ended.recv_timeout(NOTE_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                    note_state(&id, store);
                }
            })?;
        }
        if let Some(teller) = working.teller.clone() {
            working.keep("store witness", move |store, ended| teller.run(store, ended))?;
        }
        Ok(working)
    }

    /// Starts a thread that keeps states of the store elsewhere until it is ended.
    fn keep(
        &mut self,
        name: &str,
        job: impl FnOnce(&Store, &mpsc::Receiver<()>) + Send + 'static,
    ) -> Result<()> {
        let (end, ended) = mpsc::channel();
        self.keeping.push(end);
        self.spawn(name, move |store| job(store, &ended))
    }

    /// The teller of the witness, if there is one.
    pub fn teller(&self) -> Option<&Arc<Teller>> {
        self.teller.as_ref()
    }

    fn spawn(&mut self, name: &str, job: impl FnOnce(&Store) + Send + 'static) -> Result<()> {
        let store = self.store.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || job(&store));
        self.threads
            .push(thread.map_err(|e| Error::from_io("cannot start a thread for the store", e))?);
        Ok(())
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// True when a thread ended although nothing failed and nobody asked it to: a defect of the
    /// program.
    pub fn is_broken(&self) -> bool {
        self.store.engine().stopped().is_none() && self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends the threads, makes everything durable and marks the store clean. Nobody else may use it
    /// any more.
    ///
    /// # Errors
    /// The reason, when the store stopped.
    pub fn close(mut self) -> Result<()> {
        if !self.join() {
            return Err(Error::new(
                Kind::Io,
                "a thread of the store failed; the store recovers when it is opened again",
            ));
        }
        if let Some(reason) = self.store.engine().stopped() {
            return Err(reason);
        }
        self.store.close()?;
        if let Some(id) = &self.noted {
            note_state(id, &self.store);
        }
        if let Some(Err(error)) = self.teller.as_ref().map(|teller| teller.tell(&self.store)) {
            // The witness knows an older state, which refuses nobody.
            operator::warn(&format!("{UNTOLD}: {error}"));
        }
        Ok(())
    }

    /// True when no thread panicked.
    fn join(&mut self) -> bool {
        self.store.stop();
        self.keeping.clear();
        // All of them are waited for, whatever one of them says.
        let ends: Vec<bool> = self.threads.drain(..).map(|thread| thread.join().is_ok()).collect();
        ends.into_iter().all(|well| well)
    }
}

impl Drop for WorkingStore {
    /// Leaves the store as after a crash, which loses nothing that was acknowledged as durable.
    fn drop(&mut self) {
        self.join();
    }
}
