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
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

use onefold_archive::{is_archive_file, is_unfinished};
use onefold_backend::{new_file::replace, random::random_bytes};
use onefold_bucket::{
    Bucket, BucketFiles, Collected, Difference, DirectoryObjects, Known, Objects, Pace, S3,
    Settings, SystemPace, Who, probe,
};
use onefold_core::{Error, Files, Kind, Result, checksum, hex_digits};
use parking_lot::Mutex;

use super::{
    address::{DIRECTORY_SCHEME, S3_SCHEME},
    keys,
    operator::warn,
    sealed_before,
};

/// How often a process that changes an archive says that it is there.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// Seconds after which a store is tried again.
const PROBE_EVERY: u64 = 24 * 3600;

/// Most bytes of a note.
const NOTE_MAX: u64 = 1024;

/// Most bytes of an address.
const ADDRESS_MAX: usize = 2048;

/// Where an archive is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Address {
    S3 { bucket: String, prefix: String },
    Directory(PathBuf),
}

impl Address {
    fn of(path: &Path) -> Result<Address> {
        let shown = path.display();
        let wrong = |why: &str| {
            let why = format!("{shown} is no address like s3://bucket/prefix: {why}");
            Error::new(Kind::InvalidInput, why)
        };
        let text = path.to_str().ok_or_else(|| wrong("it is no text"))?;
        if text.len() > ADDRESS_MAX || text.chars().any(char::is_control) {
            return Err(wrong("it is too long, or has control characters"));
        }
        if let Some(directory) = text.strip_prefix(DIRECTORY_SCHEME) {
            if directory.is_empty() {
                return Err(wrong("it names no directory"));
            }
            let directory = std::path::absolute(directory);
            return directory.map(Address::Directory).map_err(|e| Error::from_io(shown, e));
        }
        let rest = text.strip_prefix(S3_SCHEME).ok_or_else(|| wrong("it begins otherwise"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') || bucket.contains(':') {
            return Err(wrong("credentials and ports are in the environment, not in an address"));
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(plain) {
            return Err(wrong("a bucket has 3 to 63 small letters, digits, dots and hyphens"));
        }
        let prefix = prefix.trim_end_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/ ".contains(c);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !prefix.is_empty() && !(prefix.chars().all(plain) && prefix.split('/').all(is_part)) {
            let why = "a prefix has names of letters, digits, dots, hyphens, spaces and ~, with / between";
            return Err(wrong(why));
        }
        Ok(Address::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    fn store(&self) -> Result<Arc<dyn Objects>> {
        Ok(match self {
            Address::S3 { bucket, prefix } => Arc::new(S3::open(bucket, prefix)?),
            Address::Directory(path) => Arc::new(DirectoryObjects::open(path, random_bytes()?)?),
        })
    }

    /// The same for one place, however it was typed.
    fn key(&self) -> String {
        match self {
            Address::S3 { bucket, prefix } => {
                // Two stores of one bucket's name are at two endpoints.
                let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
                    .iter()
                    .find_map(|name| std::env::var(name).ok());
                format!("{S3_SCHEME}{bucket}/{prefix} {}", endpoint.unwrap_or_default())
            }
            Address::Directory(path) => {
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                format!("{DIRECTORY_SCHEME}{}", path.display())
            }
        }
    }
}

/// What this host remembers of a bucket.
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

/// What a process is called by others on its machine: the boot, the namespace of process numbers, the number,
/// and when it began.
fn mark_of(process: &str) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the command's name, which may have anything in it.
    let begun = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    let number = stat.split_whitespace().next()?;
    Some(format!("{} {} {number} {begun}", boot.trim(), namespace.display()))
}

/// True when the process with this mark was on this machine, where all processes can be seen, and has ended.
fn has_ended(mark: &str) -> bool {
    let Some(own) = mark_of("self") else { return false };
    let place = |mark: &str| -> Option<(String, String)> {
        let (place, rest) = mark.rsplit_once(' ').and_then(|(rest, _)| rest.rsplit_once(' '))?;
        Some((place.to_owned(), rest.to_owned()))
    };
    let (Some(own), Some((there, number))) = (place(&own), place(mark)) else { return false };
    own.0 == there
        && number.bytes().all(|b| b.is_ascii_digit())
        && mark_of(&number).is_none_or(|now| now != mark)
}

fn who() -> Who {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let told = format!("process {} on host {}", std::process::id(), host.trim());
    Who { told, mark: mark_of("self").unwrap_or_default() }
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
            objects: address.store().map_err(|error| error.context(path.display()))?,
            pace: Arc::new(SystemPace::new(nonce)),
            reader: Mutex::default(),
            writer: Mutex::default(),
        })
    }

    fn settings(&self, note: &Note) -> Settings {
        let known = note.known.filter(|_| !self.accepts_older);
        Settings { who: who(), has_ended: Arc::new(has_ended), known, ..Settings::default() }
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
            false => Bucket::join(objects, pace, settings),
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

/// Files for an archive that is to be made at an address. What a creation left that was killed is removed.
///
/// # Errors
/// `Exists` when an archive is there, `Unsupported` when the store does not create an object once, `Busy`, and
/// those of the store.
pub(super) fn make(path: &Path) -> Result<Arc<dyn Files>> {
    if let Address::Directory(directory) = Address::of(path)? {
        let made = fs::DirBuilder::new().recursive(true).create(&directory);
        made.map_err(|e| Error::from_io(path.display(), e))?;
    }
    let place = reach(path)?;
    let files = place.join(true)?;
    let names = files.names()?;
    if !names.is_empty() {
        if !is_unfinished(&files) {
            let why = format!("there is an archive at {} already", path.display());
            return Err(Error::new(Kind::Exists, why));
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
    fn addresses_name_a_bucket_and_no_credentials() {
        let of = |text: &str| Address::of(Path::new(text));
        let s3 = |bucket: &str, prefix: &str| Address::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(of("s3://backups").unwrap(), s3("backups", ""));
        assert_eq!(of("s3://backups/").unwrap(), s3("backups", ""));
        assert_eq!(of("s3://my.backups-1/web/one/").unwrap(), s3("my.backups-1", "web/one"));
        assert_eq!(of("bucket:/srv/b").unwrap(), Address::Directory("/srv/b".into()));
        for text in [
            "s3://",
            "s3://ab",
            "s3://Backups",
            "s3://key:secret@backups/x",
            "s3://backups:9000/x",
            "s3://backups//x",
            "s3://backups/../x",
            "s3://backups/a?b",
            "s3://backups/a\nb",
            "bucket:",
        ] {
            assert_eq!(of(text).unwrap_err().kind(), Kind::InvalidInput, "{text}");
        }
    }

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
        let own = mark_of("self").unwrap();
        assert!(!has_ended(&own));
        let (place, _) = own.rsplit_once(' ').unwrap();
        assert!(has_ended(&format!("{place} 1")), "another process had this number");
        assert!(!has_ended(&format!("x{own}")), "of another machine nothing is known");
        assert!(!has_ended(""));
    }
}
