//! Archives in object stores: what their addresses mean, joining and leaving, and what this host remembers.
//!
//! An address is `s3://BUCKET/PREFIX`, or `bucket:DIRECTORY` for a directory that stands for a bucket.
//! Credentials come from the environment, and are in no address. A process that only reads sees the archive as it
//! was when it first looked. One that changes it joins, says every 20 s that it is there, and leaves at its end.
//!
//! Beside the notes of encrypted stores this host remembers the last frame that it saw of each bucket, in `ID.bucket`:
//! a log that lacks it is refused. A second line has the day when the store was last found to keep its word.

use std::{
    collections::HashMap,
    fs,
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

use onefold_archive::{READER_BYTES, is_archive_file, is_unfinished};
use onefold_backend::{
    Directory, new_file::replace, random::random_bytes, secrets::process_memory,
};
use onefold_bucket::{
    Bucket, BucketFiles, Collected, Difference, DirectoryObjects, Known, Objects, Pace, Settings,
    SystemPace, Who, probe,
};
use onefold_core::{Error, Files, Kind, Result, checksum, hex_digits};
use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};

use super::{
    address::Address,
    kept_objects, keys,
    operator::{warn, word},
    sealed_before,
};

/// How often a process that changes an archive says that it is there.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// Seconds after which a store is tried again.
const PROBE_EVERY: u64 = 24 * 3600;

/// Where the kernel tells of processes.
const PROC: &str = "/proc";

/// Most bytes of a note.
const NOTE_MAX: u64 = 1024;

/// The state of a bucket takes at most this part of the memory that this process can have.
const MEMORY_SHARE: u64 = 4;

static WAIT: OnceLock<Duration> = OnceLock::new();

/// Sets how long this process waits for others that change an archive in a bucket. The command calls this once,
/// before it opens anything; later calls change nothing.
pub fn wait_for_others(time: Duration) {
    let _ = WAIT.set(time);
}

/// The store at an address.
fn store_at(address: &Address) -> Result<Arc<dyn Objects>> {
    Ok(match address {
        #[cfg(feature = "s3")]
        Address::S3 { bucket, prefix } => {
            // This process has the credentials of the store, also where no key is asked for.
            onefold_backend::secrets::no_dumps()?;
            Arc::new(onefold_bucket::S3::open(bucket, prefix)?)
        }
        #[cfg(not(feature = "s3"))]
        Address::S3 { .. } => {
            let why = "this program was built without object stores behind S3 (the feature s3)";
            return Err(Error::new(Kind::Unsupported, why));
        }
        Address::Directory(path) => {
            // Another user's is looked at all the same, and nothing in it is changed.
            Directory::open(path, false)?
                .exposed()
                .into_iter()
                .for_each(|sentence| warn(&sentence));
            Arc::new(DirectoryObjects::open(path, random_bytes()?, word().user())?)
        }
    })
}

/// A host's memory of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Note {
    known: Option<Known>,
    /// When the store was tried last, by this host's clock: seconds since 1970.
    probed: u64,
}

fn note_file(key: &str) -> Option<PathBuf> {
    let hash = checksum::forgery_proof(&[0; 32], key.as_bytes());
    Some(sealed_before::directory()?.join(format!("{}.bucket", hex_digits(hash))))
}

impl Note {
    fn read(key: &str) -> Note {
        let text = note_file(key).and_then(|file| sealed_before::text_of(&file, NOTE_MAX));
        text.and_then(|text| Note::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Note> {
        let mut words = text.split_whitespace();
        let (frame, sum, probed) = (words.next()?, words.next()?, words.next()?);
        let digits = (0..32).map(|at| u8::from_str_radix(sum.get(2 * at..2 * at + 2)?, 16).ok());
        let sum: Vec<u8> = digits.collect::<Option<_>>()?;
        let frame = frame.parse().ok()?;
        let known = Known { frame, sum: sum.try_into().ok()? };
        Some(Note { known: (frame > 0).then_some(known), probed: probed.parse().ok()? })
    }

    fn write(&self, key: &str) {
        let known = self.known.unwrap_or(Known { frame: 0, sum: [0; 32] });
        let text = format!("{} {} {}\n", known.frame, hex_digits(known.sum), self.probed);
        let written = || -> Result<()> {
            let Some(file) = note_file(key) else { return Ok(()) };
            file.parent().map_or(Ok(()), sealed_before::make)?;
            replace(&file, text.as_bytes())
        };
        if let Err(error) = written() {
            tracing::debug!("it is not remembered up to where a bucket was seen: {error}");
        }
    }
}

/// The name of a process for others on its machine: the boot, the namespace of process numbers, the number,
/// and when it began. `proc` is where the kernel tells of processes.
fn mark_of(proc: &Path, process: &str) -> std::io::Result<String> {
    let boot = fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?;
    let namespace = fs::read_link(proc.join("self/ns/pid"))?;
    let stat = fs::read_to_string(proc.join(process).join("stat"))?;
    // Behind the command's name, which may have anything in it.
    let begun = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let (begun, number) =
        begun.zip(stat.split_whitespace().next()).ok_or(ErrorKind::InvalidData)?;
    Ok(format!("{} {} {number} {begun}", boot.trim(), namespace.display()))
}

/// True when the process with this mark was on this machine and has surely ended: its number is another one's
/// now, or nobody's. Where a process does not see those of others, it sees no first one either, and knows nothing.
fn has_ended(proc: &Path, mark: &str) -> bool {
    let Ok(own) = mark_of(proc, "self") else { return false };
    let place = |mark: &str| -> Option<(String, String)> {
        let (place, rest) = mark.rsplit_once(' ').and_then(|(rest, _)| rest.rsplit_once(' '))?;
        Some((place.to_owned(), rest.to_owned()))
    };
    let (Some(own), Some((there, number))) = (place(&own), place(mark)) else { return false };
    if own.0 != there || number.parse::<u32>().is_err() {
        return false;
    }
    match mark_of(proc, &number) {
        Ok(now) => now != mark,
        Err(error) => {
            let sees_others = fs::read(proc.join("1/stat")).is_ok();
            error.kind() == ErrorKind::NotFound && sees_others && is_free(&number)
        }
    }
}

/// True when no process has this number, by the kernel's own word: it knows those that a process does not see.
fn is_free(number: &str) -> bool {
    let number = number.parse().ok().and_then(Pid::from_raw);
    number.is_some_and(|number| test_kill_process(number) == Err(Errno::SRCH))
}

fn who() -> Who {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let told = format!("process {} on host {}", std::process::id(), host.trim());
    Who { told, mark: mark_of(Path::new(PROC), "self").unwrap_or_default() }
}

/// A bucket that this process changes.
struct Joined {
    bucket: Arc<Bucket>,
    /// Dropped to end the thread that says that this process is there.
    renewing: Option<(mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Joined {
    fn new(bucket: Bucket) -> Result<Joined> {
        let bucket = Arc::new(bucket);
        let (stop, stopped) = mpsc::channel::<()>();
        let renewed = bucket.clone();
        let renew = move || {
            while stopped.recv_timeout(RENEW_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Err(error) = renewed.renew() {
                    tracing::debug!("others do not hear that this process is at work: {error}");
                }
            }
        };
        let thread = std::thread::Builder::new().name("lease".into()).spawn(renew);
        let thread = thread.map_err(|e| Error::from_io("can't hold a bucket", e))?;
        Ok(Joined { bucket, renewing: Some((stop, thread)) })
    }

    fn leave(mut self) -> (Known, Result<()>) {
        if let Some((stop, thread)) = self.renewing.take() {
            drop(stop);
            let _ = thread.join();
        }
        let left = self.bucket.leave();
        (self.bucket.known(), left)
    }
}

/// An archive's place in an object store.
pub(super) struct Place {
    /// As it was typed.
    shown: String,
    key: String,
    accepts_older: bool,
    objects: Arc<dyn Objects>,
    pace: Arc<dyn Pace>,
    reader: Mutex<Option<Bucket>>,
    writer: Mutex<Option<Joined>>,
}

fn nonce() -> [u8; 16] {
    // Without chance from the system nothing else works either.
    random_bytes().unwrap_or_default()
}

impl Place {
    fn open(path: &Path, address: &Address) -> Result<Place> {
        Ok(Place {
            shown: path.display().to_string(),
            key: address.key(),
            accepts_older: keys::accepts_older(),
            objects: store_at(address).map_err(|error| error.context(path.display()))?,
            pace: Arc::new(SystemPace::new(nonce)),
            reader: Mutex::default(),
            writer: Mutex::default(),
        })
    }

    fn settings(&self, note: &Note) -> Settings {
        let known = note.known.filter(|_| !self.accepts_older);
        let shown = self.shown.clone();
        Settings {
            who: who(),
            has_ended: Arc::new(|mark| has_ended(Path::new(PROC), mark)),
            tell: Arc::new(move |sentence| warn(&format!("{shown}: {sentence}"))),
            known,
            memory: (process_memory() / MEMORY_SHARE).max(READER_BYTES),
            wait: WAIT.get().copied().unwrap_or_default(),
            keep: kept_objects::of_this_user(),
            ..Settings::default()
        }
    }

    fn named(&self, error: Error) -> Error {
        match error.kind() {
            Kind::NotFound if error.to_string() == "no archive" => {
                let why = format!(
                    "there is no archive at {0}; `onefold create archive {0}` makes one",
                    self.shown
                );
                Error::new(Kind::NotFound, why)
            }
            _ if error.to_string().contains(&self.shown) => error,
            _ => error.context(&self.shown),
        }
    }

    /// Files as they were when this process first looked, or as it has changed them.
    ///
    /// # Errors
    /// `NotFound` when there is no archive, `Corrupt`, and those of the store.
    pub(super) fn files(&self) -> Result<BucketFiles> {
        if let Some(joined) = &*self.writer.lock() {
            return Ok(joined.bucket.files());
        }
        let mut reader = self.reader.lock();
        if reader.is_none() {
            let note = Note::read(&self.key);
            let settings = self.settings(&note);
            let looked = Bucket::look(self.objects.clone(), self.pace.clone(), settings);
            let looked = looked.map_err(|error| self.named(error))?;
            Note { known: Some(looked.known()), ..note }.write(&self.key);
            *reader = Some(looked);
        }
        reader.as_ref().map(Bucket::files).ok_or_else(|| Error::new(Kind::NotFound, "no archive"))
    }

    /// Files that this process may change.
    ///
    /// # Errors
    /// `Busy` while another process does, and as [`files`](Self::files).
    pub(super) fn files_to_change(&self) -> Result<BucketFiles> {
        self.join(false)
    }

    fn join(&self, new: bool) -> Result<BucketFiles> {
        let mut writer = self.writer.lock();
        if let Some(joined) = &*writer {
            return Ok(joined.bucket.files());
        }
        let mut note = Note::read(&self.key);
        let now = self.pace.wall();
        if new || now.abs_diff(note.probed) >= PROBE_EVERY {
            let probed = probe(&self.objects, &*self.pace);
            probed.map_err(|error| self.named(error))?;
            note.probed = now;
        }
        let settings = self.settings(&note);
        let (objects, pace) = (self.objects.clone(), self.pace.clone());
        let joined = match new {
            true => Bucket::make(objects, pace, settings),
            false => match &*self.reader.lock() {
                Some(looked) => Bucket::join_after(looked, settings),
                None => Bucket::join(objects, pace, settings),
            },
        };
        let bucket = joined.map_err(|error| self.named(error))?;
        Note { known: Some(bucket.known()), ..note }.write(&self.key);
        let joined = Joined::new(bucket)?;
        let files = joined.bucket.files();
        *writer = Some(joined);
        Ok(files)
    }

    /// Leaves, if this process has joined.
    fn end(&self) {
        let Some(joined) = self.writer.lock().take() else { return };
        let (known, left) = joined.leave();
        let note = Note::read(&self.key);
        Note { known: Some(known), ..note }.write(&self.key);
        if let Err(error) = left
            && error.kind() != Kind::Stopped
        {
            let error = self.named(error);
            warn(&format!("{error}: other hosts wait ten minutes before they change the archive"));
        }
    }

    /// Deletes what nothing in the archive needs, after a collection of the engine.
    ///
    /// # Errors
    /// As [`files_to_change`](Self::files_to_change).
    pub(super) fn collect(&self) -> Result<Collected> {
        self.join(false)?;
        let writer = self.writer.lock();
        let none = || Error::new(Kind::Stopped, "this process has left the bucket");
        let collected = writer.as_ref().ok_or_else(none)?.bucket.collect();
        collected.map_err(|error| self.named(error))
    }

    /// A sentence for each object that is lost or has another length.
    ///
    /// # Errors
    /// As [`files`](Self::files).
    pub(super) fn losses(&self) -> Result<Vec<String>> {
        self.files()?;
        let differences = match &*self.writer.lock() {
            Some(joined) => joined.bucket.differences(),
            None => self.reader.lock().as_ref().map_or(Ok(Vec::new()), Bucket::differences),
        };
        let told = |difference| match difference {
            Difference::Lost(name) => format!("object {name} is lost"),
            Difference::Length(name, found, stored) => {
                format!("object {name} has {found} bytes, and {stored} were stored")
            }
        };
        let differences = differences.map_err(|error| self.named(error))?;
        Ok(differences.into_iter().map(told).collect())
    }
}

static PLACES: Mutex<Option<HashMap<Address, Arc<Place>>>> = Mutex::new(None);

/// The archive's place at an address; one that this process has is used again.
///
/// # Errors
/// `InvalidInput` for what is no address, and those of the store's settings.
pub(super) fn reach(path: &Path) -> Result<Arc<Place>> {
    let address = Address::of(path)?;
    let mut places = PLACES.lock();
    let all = places.get_or_insert_default();
    if let Some(place) = all.get(&address) {
        return Ok(place.clone());
    }
    let place = Arc::new(Place::open(path, &address)?);
    all.insert(address, place.clone());
    Ok(place)
}

/// Files for an archive that is to be made at an address. The remains of a killed creation are removed.
///
/// # Errors
/// `Exists` when an archive is there, `Unsupported` when the store does not create an object once, `Busy`, and
/// those of the store.
pub(super) fn make(path: &Path) -> Result<Arc<dyn Files>> {
    if let Address::Directory(directory) = Address::of(path)? {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|e| Error::from_io(path.display(), e))?;
    }
    let place = reach(path)?;
    let exists = || {
        let why = format!("there is an archive at {} already", path.display());
        Error::new(Kind::Exists, why)
    };
    // Looking waits for nobody, and leaves no frame in somebody's archive.
    match place.files() {
        Ok(files) if !is_unfinished(&files) && !files.names()?.is_empty() => return Err(exists()),
        Err(error) if error.kind() != Kind::NotFound => return Err(error),
        _ => {}
    }
    let files = place.join(true)?;
    let names = files.names()?;
    if !names.is_empty() {
        if !is_unfinished(&files) {
            return Err(exists());
        }
        names
            .iter()
            .filter(|name| is_archive_file(name))
            .try_for_each(|name| files.remove(name))?;
        files.sync_names()?;
    }
    Ok(Arc::new(files))
}

/// Leaves all buckets.
pub(super) fn end() {
    let all = PLACES.lock().take().unwrap_or_default();
    all.values().for_each(|place| place.end());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = Note { known: Some(Known { frame: 7, sum: [0xa5; 32] }), probed: 12 };
        let text = format!("7 {} 12\n", hex_digits([0xa5_u8; 32]));
        assert_eq!(Note::parse(&text), Some(note));
        assert_eq!(Note::parse("7 a5 12"), None);
        assert_eq!(Note::parse(""), None);
    }

    #[test]
    fn a_process_that_runs_has_not_ended_and_others_are_unknown() {
        let proc = Path::new(PROC);
        let own = mark_of(proc, "self").unwrap();
        assert!(!has_ended(proc, &own));
        let (place, _) = own.rsplit_once(' ').unwrap();
        assert!(has_ended(proc, &format!("{place} 1")), "another process had this number");
        assert!(!has_ended(proc, &format!("x{own}")), "of another machine nothing is known");
        assert!(!has_ended(proc, ""));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let mark = mark_of(proc, &ended.id().to_string()).unwrap();
        ended.wait().unwrap();
        assert!(has_ended(proc, &mark));
    }

    /// The kernel's files as a process sees them that does not see those of others, as the option `hidepid` of the mount makes it.
    #[test]
    fn a_process_that_can_not_be_seen_is_not_taken_for_ended() {
        let dir = tempfile::tempdir().unwrap();
        let own = mark_of(Path::new(PROC), "self").unwrap();
        let copied = ["sys/kernel/random/boot_id", "self/stat"];
        for name in copied {
            let to = dir.path().join(name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(&to, fs::read(Path::new(PROC).join(name)).unwrap()).unwrap();
        }
        fs::create_dir_all(dir.path().join("self/ns")).unwrap();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
        std::os::unix::fs::symlink(namespace, dir.path().join("self/ns/pid")).unwrap();
        let (place, _) = own.rsplit_once(' ').unwrap();
        let (place, _) = place.rsplit_once(' ').unwrap();
        // A number that nobody has: there is no such process, and nothing else proves it.
        let hidden = format!("{place} 2147483647 77");
        assert!(!has_ended(dir.path(), &hidden), "the first process can't be seen either");
        fs::create_dir_all(dir.path().join("1")).unwrap();
        fs::write(dir.path().join("1/stat"), "1 (init) S").unwrap();
        assert!(has_ended(dir.path(), &hidden));
        // One that runs is there although its file is not.
        let running = format!("{place} {} 77", std::process::id());
        assert!(!has_ended(dir.path(), &running));
    }
}
