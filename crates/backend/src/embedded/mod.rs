//! An object store in a folder, for one machine: `redb` holds objects, keys and where data lies, a
//! plain file holds the data.
//!
//! | module | what |
//! |---|---|
//! | this one | sessions, locks, fences, the queue |
//! | [`tables`] | what `redb` holds, and one operation on it |
//! | [`guard`] | panics of `redb` on damaged tables become errors |
//! | [`opening`] | the file of `redb` opened, and repaired when it was not closed |
//! | [`own`] | the file of `redb` for its owner |
//! | [`look`] | the same file for a process that only reads |
//! | [`numbers`] | which object has which number |
//! | [`trees`] | the shape of the trees in it, checked before `redb` reads it |
//! | [`watched`] | whether the files still stand under their names |
//! | [`blocks`] | the data file: free blocks, writing, punching |
//!
//! *Threads:* one thread receives all waiting operations, and applies each whole or not at all. The
//! thread writes their data into free blocks, makes the data durable, commits one transaction, and
//! then replies to all of them (group commit). Reads see committed data.
//!
//! *Crash argument:* data are written into blocks that nothing names, and are durable before the
//! commit that names them. Blocks that a commit frees are reused only after the commit is durable
//! and every read that began before it has ended. After a crash, blocks that no commit names are
//! free, since none of their operations was acknowledged.
//!
//! *Invariant:* one process owns the folder, and belongs to the user who owns it; the file of
//! `redb` is locked. Locks and fences of sessions are in memory, since no session outlives the
//! process.

mod blocks;
mod guard;
mod look;
mod numbers;
mod opening;
mod own;
mod tables;
mod trees;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use onefold_core::{
    Clock, Error, Hold, Kind, Result,
    object::{
        Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult, Refusal, Space,
        Version, Write,
    },
};
use parking_lot::{Mutex, RwLock};

pub use self::guard::is_guarded;
use self::{blocks::Blocks, guard::guarded, tables::Tables, watched::Watched};
use crate::{
    beneath::{Beneath, Stands, Word},
    claim_file::CLAIM,
    clock::{BootClock, wall_time},
    lock,
};

/// The file of `redb`.
const TABLES: &str = "objects.redb";

/// The file with the data.
const DATA: &str = "data";

/// Most operations in one commit.
const GROUP: usize = 256;

/// Bytes kept free on the host's file system, for commits and removals.
const RESERVE: u64 = 1 << 30;

/// The channel for replies: the index in the batch, and the result.
type Answer = mpsc::Sender<(usize, Result<Version, Refusal>)>;

/// Operations of one session that go into one commit, in their order.
struct Job {
    identity: String,
    ops: Vec<Write>,
    answer: Answer,
}

/// Messages to the committing thread.
enum Message {
    Job(Job),
    /// The store is closed; later messages are not read.
    End,
}

/// A lock and when it ends.
struct Lock {
    holder: Holder,
    until: Option<Duration>,
}

struct Shared {
    tables: Tables,
    blocks: Mutex<Blocks>,
    /// Held for reading while data of a committed state are read; held for writing before blocks
    /// are reused.
    reading: RwLock<()>,
    kind: PoolKind,
    fenced: Mutex<BTreeSet<String>>,
    locks: Mutex<BTreeMap<(ObjectName, &'static str), Lock>>,
    sessions: AtomicU64,
    /// Asked before a commit, and before it is acknowledged.
    stands: Option<Stands>,
    /// Looked at then, too.
    watched: Vec<Watched>,
    /// The first failure of a commit; later operations are refused.
    broken: Mutex<Option<Error>>,
}

/// The purpose for which a folder is opened.
enum Use<'a> {
    /// Everything, while its owner stands.
    Work(Option<&'a mut dyn FnMut() -> Result<Stands>>),
    /// Reading.
    Look,
}

/// The folder, while this process owns it.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
    thread: Option<JoinHandle<()>>,
}

/// One session of an embedded store.
pub struct EmbeddedObjects {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
    identity: String,
}

impl EmbeddedStore {
    /// The file that makes a folder one of these.
    pub const TABLES: &str = TABLES;

    /// Makes an empty store in a folder that is not there yet, or empty; nobody else can enter what
    /// is made.
    ///
    /// # Errors
    /// `Exists` when something is in it, and those of the system.
    pub fn create(folder: &Path, chunks: PoolKind) -> Result<EmbeddedStore> {
        EmbeddedStore::create_as(folder, chunks, Word::default())
    }

    /// The same for an operator who gave their word.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_as(folder: &Path, chunks: PoolKind, word: Word) -> Result<EmbeddedStore> {
        EmbeddedStore::create_filled(folder, chunks, word, &mut |_| Ok(()))
    }

    /// The same with a first content. When anything of it fails, the files that this made are removed, by the
    /// directory that they were made in: its path may lead elsewhere by then.
    ///
    /// # Errors
    /// As [`create`](Self::create), and those of `fill`.
    pub fn create_filled(
        folder: &Path,
        chunks: PoolKind,
        word: Word,
        fill: &mut dyn FnMut(&EmbeddedStore) -> Result<()>,
    ) -> Result<EmbeddedStore> {
        if let Some(parent) = folder.parent() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|e| Error::from_io(parent.display(), e))?;
        }
        let own = Beneath::make(folder, word)?;
        if !own.names()?.is_empty() {
            return Err(Error::new(Kind::Exists, format!("{} is not empty", folder.display())));
        }
        let mut made = Vec::new();
        let mut make = || -> Result<EmbeddedStore> {
            let tables = own.create(TABLES)?;
            made.push(TABLES);
            Tables::create(tables, chunks)?;
            let data = own.create(DATA)?;
            made.push(DATA);
            data.sync_all().map_err(|e| Error::from_io(own.at(DATA), e))?;
            own.sync()?;
            let store = EmbeddedStore::open_as(folder, word)?;
            let (was, now) = (own.stat()?, Beneath::open(folder, word)?.stat()?);
            if (was.st_dev, was.st_ino) != (now.st_dev, now.st_ino) {
                let why = format!("{} is another folder by now", folder.display());
                return Err(Error::new(Kind::Denied, why));
            }
            fill(&store)?;
            Ok(store)
        };
        let created = make();
        if created.is_err() {
            made.iter().for_each(|name| drop(own.remove(name)));
        }
        created
    }

    /// True when there is a store in a folder.
    #[must_use]
    pub fn is_at(folder: &Path) -> bool {
        folder.join(TABLES).symlink_metadata().is_ok()
    }

    /// A sentence with what to do when users other than the owner can enter a folder.
    #[must_use]
    pub fn exposed(folder: &Path) -> Option<String> {
        Beneath::open(folder, Word::default()).ok()?.exposed()
    }

    /// Opens the store in a folder.
    ///
    /// # Errors
    /// `NotFound`, `Busy` when another process owns it, `Denied` when it is another user's,
    /// `Corrupt`, and those of the system.
    pub fn open(folder: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_as(folder, Word::default())
    }

    /// The same for an operator who gave their word.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(folder: &Path, word: Word) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(folder, word, Use::Work(None))
    }

    /// The same, written only while its owner stands, as `claim` makes it when the folder is locked
    /// and nothing is changed yet.
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of `claim`.
    pub fn open_while(
        folder: &Path,
        word: Word,
        claim: &mut dyn FnMut() -> Result<Stands>,
    ) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(folder, word, Use::Work(Some(claim)))
    }

    /// Opens the store in a folder for looking, which may be another user's: nothing on the disk
    /// changes, and others may look too.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for `Denied`; and `Denied` for each change.
    pub fn look(folder: &Path) -> Result<EmbeddedStore> {
        EmbeddedStore::open_for(folder, Word::default(), Use::Look)
    }

    fn open_for(folder: &Path, word: Word, use_: Use<'_>) -> Result<EmbeddedStore> {
        let writes = !matches!(use_, Use::Look);
        let found =
            Beneath::open(folder, word).and_then(|own| Ok((own.file(TABLES, writes)?, own)));
        let (tables, own) = found.map_err(|error| match error.kind() {
            Kind::NotFound => {
                let why = "there is no store in this folder; onefold create cluster makes one";
                Error::new(Kind::NotFound, why).context(folder.display())
            }
            _ => error,
        })?;
        lock::lock(
            &tables,
            &own.at(TABLES),
            if writes { Hold::Alone } else { Hold::Shared },
            false,
        )
        .map_err(|error| match error.kind() {
            Kind::Busy if lock::is_locked_here(&folder.join(TABLES)) => {
                let why =
                    format!("this process has the store in {} open already", folder.display());
                Error::new(Kind::Busy, why)
            }
            Kind::Busy => {
                let why = "another process has the store open; a folder has one owner (workers run \
                           inside onefold serve): stop the process that serves it, then try again";
                Error::new(Kind::Busy, format!("{why}; {error}"))
            }
            _ => error,
        })?;
        let stands = match use_ {
            Use::Work(Some(claim)) => Some(claim()?),
            Use::Work(None) | Use::Look => None,
        };
        let data = own.file(DATA, writes)?;
        let mut watched = Vec::new();
        if writes {
            watched.push(Watched::of(&own, TABLES, &tables)?);
            watched.push(Watched::of(&own, DATA, &data)?);
        }
        if stands.is_some() {
            watched.push(Watched::of(&own, CLAIM, &own.file(CLAIM, false)?)?);
        }
        let owner = |file: usize| watched.get(file).map(|file| file.standing.clone());
        let again = data.try_clone().map_err(|e| Error::from_io(own.at(DATA), e))?;
        let (tables, kind) = Tables::open(tables, again, owner(0).as_ref())
            .map_err(|e| e.context(folder.display()))?;
        let used = tables.used_blocks()?;
        let mut blocks = Blocks::of(data, &used, owner(1))?;
        let to_erase = if writes { tables.erasing()? } else { Vec::new() };
        if !to_erase.is_empty() {
            // A crash came between. What an older program has used meanwhile stays.
            blocks.erase_later(to_erase)?;
            blocks.erase()?;
            tables.erased()?;
        }
        let shared = Arc::new(Shared {
            tables,
            blocks: Mutex::new(blocks),
            reading: RwLock::new(()),
            kind,
            fenced: Mutex::default(),
            locks: Mutex::default(),
            sessions: AtomicU64::new(0),
            broken: Mutex::new(
                (!writes).then(|| Error::new(Kind::Denied, "the store is open for looking only")),
            ),
            stands,
            watched,
        });
        let (queue, jobs) = mpsc::channel();
        let committer = shared.clone();
        let thread = std::thread::Builder::new()
            .name("commit".into())
            .spawn(move || committer.commit_all(&jobs));
        let thread =
            thread.map_err(|e| Error::from_io("cannot start a thread for the store", e))?;
        Ok(EmbeddedStore { shared, queue, thread: Some(thread) })
    }

    /// Why nothing is written any more, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        self.shared.broken.lock().clone()
    }

    /// Another session. Its operations are refused once the store is dropped.
    #[must_use]
    pub fn session(&self) -> EmbeddedObjects {
        let number = self.shared.sessions.fetch_add(1, Relaxed) + 1;
        let identity = format!("local.{}.{}.{number}", wall_time().as_nanos(), std::process::id());
        EmbeddedObjects { shared: self.shared.clone(), queue: self.queue.clone(), identity }
    }
}

impl Drop for EmbeddedStore {
    /// Waits until what was sent is committed.
    fn drop(&mut self) {
        // Sending fails when the thread has ended already.
        let _ = self.queue.send(Message::End);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn commit_all(&self, jobs: &mpsc::Receiver<Message>) {
        let mut open = true;
        while open && let Ok(Message::Job(first)) = jobs.recv() {
            let mut group = vec![first];
            let mut count = group[0].ops.len();
            while count < GROUP
                && let Ok(message) = jobs.try_recv()
            {
                let Message::Job(job) = message else {
                    open = false;
                    break;
                };
                count += job.ops.len();
                group.push(job);
            }
            self.commit(&group);
        }
    }

    /// Applies the operations of a group in one transaction, and replies to all of them once it is
    /// durable.
    fn commit(&self, group: &[Job]) {
        let broken = self.broken.lock().clone();
        let results = match broken {
            Some(error) => Err(error),
            None => self
                .standing(|| guarded(|| self.apply(group)))
                .inspect_err(|error| *self.broken.lock() = Some(error.clone())),
        };
        match results {
            Ok(results) => {
                let mut results = results.into_iter();
                for job in group {
                    for n in 0..job.ops.len() {
                        // The thread that asked may be gone.
                        let _ =
                            job.answer.send((n, results.next().unwrap_or(Err(Refusal::Unknown))));
                    }
                }
            }
            Err(error) => {
                for job in group {
                    (0..job.ops.len()).for_each(|n| {
                        drop(job.answer.send((n, Err(Refusal::Failed(error.clone())))))
                    });
                }
            }
        }
    }

    /// Does something while the owner of the folder stands and so do its files, before and after.
    fn standing<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let stands = || {
            self.stands.as_ref().map_or(Ok(()), |stands| stands())?;
            self.watched.iter().try_for_each(Watched::look)
        };
        stands()?;
        let done = work()?;
        stands().map(|()| done)
    }

    fn apply(&self, group: &[Job]) -> Result<Vec<Result<Version, Refusal>>> {
        let mut transaction = self.tables.begin()?;
        let mut blocks = self.blocks.lock();
        let full = blocks.host_free()? < RESERVE;
        let mut results = Vec::new();
        for job in group {
            let fenced = self.fenced.lock().contains(&job.identity);
            for op in &job.ops {
                results.push(if fenced {
                    Err(Refusal::Fenced)
                } else {
                    transaction.apply(op, &mut blocks, self.kind, wall_time(), full)?
                });
            }
        }
        blocks.sync()?;
        transaction.commit(blocks.to_erase())?;
        // Reads that began before the commit may still look at what it let go.
        drop(self.reading.write());
        blocks.release()?;
        if !blocks.to_erase().is_empty() {
            blocks.erase()?;
            self.tables.erased()?;
        }
        drop(blocks);
        for (op, result) in group.iter().flat_map(|job| &job.ops).zip(&results) {
            if result.is_ok() && op.changes.contains(&onefold_core::object::Change::Remove) {
                self.locks.lock().retain(|(object, _), _| *object != op.object);
            }
        }
        Ok(results)
    }
}

impl EmbeddedObjects {
    fn check(&self) -> Result<(), Refusal> {
        if self.shared.fenced.lock().contains(&self.identity) {
            Err(Refusal::Fenced)
        } else {
            Ok(())
        }
    }

    fn me(&self, cookie: &str) -> Holder {
        Holder { identity: self.identity.clone(), cookie: cookie.into() }
    }
}

impl ObjectStore for EmbeddedObjects {
    fn kind(&self, pool: Pool) -> PoolKind {
        if pool == Pool::Metadata { PoolKind::Replicated } else { self.shared.kind }
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let mut results: Vec<Result<Version, Refusal>> =
            batch.iter().map(|_| Err(Refusal::Unknown)).collect();
        let (answer, answers) = mpsc::channel();
        if self
            .queue
            .send(Message::Job(Job {
                identity: self.identity.clone(),
                ops: batch.to_vec(),
                answer,
            }))
            .is_err()
        {
            return results;
        }
        for (n, result) in answers.iter().take(batch.len()) {
            results[n] = result;
        }
        results
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let _reading = self.shared.reading.read();
        let look = |op: &Read| {
            self.check()?;
            self.shared.tables.read(op, self.shared.kind)
        };
        batch.iter().map(look).collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.check()?;
        self.shared.tables.list(pool, from, most)
    }

    fn lists_by_name(&self) -> bool {
        true
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        self.check()?;
        let (now, me) = (wall_time(), self.me(cookie));
        {
            let mut locks = self.shared.locks.lock();
            let key = (object.clone(), lock);
            if locks
                .get(&key)
                .is_some_and(|lock| lock.holder != me && lock.until.is_none_or(|until| now < until))
            {
                return Err(Refusal::Busy);
            }
            locks.insert(key, Lock { holder: me, until: lease.map(|lease| now + lease) });
        }
        let there = self.read(&[Read { object: object.clone(), parts: Vec::new() }]).remove(0);
        if matches!(there, Err(Refusal::Missing)) {
            self.write(&[Write {
                object: object.clone(),
                guards: Vec::new(),
                changes: Vec::new(),
            }])
            .remove(0)?;
        }
        Ok(())
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.break_lock(object, lock, &self.me(cookie))
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        let locks = self.shared.locks.lock();
        let lock = locks
            .get(&(object.clone(), lock))
            .filter(|lock| lock.until.is_none_or(|until| wall_time() < until));
        Ok(lock.map(|lock| lock.holder.clone()))
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.check()?;
        self.shared
            .locks
            .lock()
            .retain(|key, lock_| key.0 != *object || key.1 != lock || lock_.holder != *holder);
        Ok(())
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.check()?;
        self.shared.fenced.lock().insert(identity.to_owned());
        // Messages that are in the queue before this one are done when it is done.
        let (answer, answers) = mpsc::channel();
        let nothing = Job { identity: self.identity.clone(), ops: Vec::new(), answer };
        self.queue.send(Message::Job(nothing)).map_err(|_| Refusal::Unknown)?;
        let _ = answers.recv();
        Ok(())
    }

    fn time(&self) -> Duration {
        wall_time()
    }

    fn monotonic(&self) -> Duration {
        BootClock.now()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn space(&self) -> Result<Space, Refusal> {
        let blocks = self.shared.blocks.lock();
        let used = blocks.used_bytes() + self.shared.tables.file_bytes();
        let free = blocks.host_free().map_err(Refusal::Failed)?;
        Ok(Space { total: used + free.saturating_sub(RESERVE), used })
    }
}
