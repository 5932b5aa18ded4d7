//! Notes of the last head that this user saw of each encrypted archive. If an archive does not descend from
//! its head, somebody put it back, or shows others another history. A head counts for the archive's id,
//! whatever path leads there.
//!
//! Each head is a file `ID.head` beside the notes of encrypted stores ([`sealed_before`]). Processes that
//! note at one time take turns by a lock, and the highest number stays, unless the operator takes an
//! older archive. Where nothing can be noted, a warning says so, and nothing fails.
//!
//! *Crash argument:* a head is noted when its frame is durable, never before. So a crash leaves a note
//! that is too old, and an archive that goes on from there.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use onefold_backend::{lock::lock, new_file::replace_durably};
use onefold_core::{Error, Hold, Kind, Result, hex_digits};
use onefold_seal::Head;
use parking_lot::Mutex;

use super::{operator::warn, sealed_before};

/// Bytes of a note at most: a number and a hash.
const NOTE_MAX: u64 = 256;

/// Time between two notes of a process at least, but for its last head.
const PAUSE: Duration = Duration::from_secs(1);

/// How often a process tries to get the lock, every 10 ms. Another one holds it for as long as it takes to
/// write a note.
const TRIES: usize = 100;

/// True once a warning said that nothing is noted.
static WARNED: AtomicBool = AtomicBool::new(false);

/// The last head that was noted of the archive with this id; `None` when none was, or it can't be read.
pub(super) fn seen(id: &[u8; 16]) -> Option<Head> {
    read(&file_of(&sealed_before::directory()?, id))
}

fn file_of(directory: &Path, id: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.head", hex_digits(id)))
}

fn read(file: &Path) -> Option<Head> {
    sealed_before::text_of(file, NOTE_MAX)?.parse().ok()
}

/// Notes the heads of an archive that this process has open. The last one is noted when this is dropped.
pub(super) struct HeadNotes {
    /// True when the operator takes an archive that is older than the noted head.
    accepts_older: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The head that this process noted last, and when.
    noted: Option<(Head, Instant)>,
    /// A head that is not noted yet, and its archive's id.
    newer: Option<([u8; 16], Head)>,
}

impl HeadNotes {
    pub(super) fn new(accepts_older: bool) -> HeadNotes {
        HeadNotes { accepts_older, state: Mutex::default() }
    }

    /// Notes that the archive has come to this head, which is durable: at once, or up to a second later
    /// with a later head.
    pub(super) fn saw(&self, id: &[u8; 16], head: &Head) {
        let mut state = self.state.lock();
        if state.noted.is_some_and(|(noted, _)| noted == *head) {
            state.newer = None;
            return;
        }
        state.newer = Some((*id, *head));
        if state.noted.is_none_or(|(_, at)| at.elapsed() >= PAUSE) {
            self.note(&mut state);
        }
    }

    fn note(&self, state: &mut State) {
        let Some((id, head)) = state.newer.take() else { return };
        // The first note of a process replaces a newer one if the operator said so. Later on other processes
        // may have come further.
        let replaces_newer = self.accepts_older && state.noted.is_none();
        state.noted = Some((head, Instant::now()));
        if let Err(error) = write(&id, &head, replaces_newer)
            && !WARNED.swap(true, Relaxed)
        {
            warn(&format!(
                "it can't be remembered up to where the encrypted archive was seen, and nobody will notice \
                 when an older one is put back: {error}"
            ));
        }
    }
}

impl Drop for HeadNotes {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.note(&mut state);
    }
}

fn write(id: &[u8; 16], head: &Head, replaces_newer: bool) -> Result<()> {
    let none = "no directory of this user is named by $STATE_DIRECTORY, $XDG_STATE_HOME or $HOME";
    let directory = sealed_before::directory().ok_or_else(|| Error::new(Kind::NotFound, none))?;
    let file = file_of(&directory, id);
    // Most commands see what was seen before.
    if read(&file) == Some(*head) {
        return Ok(());
    }
    sealed_before::make(&directory)?;
    let _turn = turn(&directory).map_err(|e| Error::from_io(directory.display(), e))?;
    if !replaces_newer && read(&file).is_some_and(|noted| noted.number > head.number) {
        // Another process has come further.
        return Ok(());
    }
    replace_durably(&file, format!("{}\n", head.to_text()).as_bytes())
}

/// Waits until no other process notes heads, but for no longer than a second: without the turn, the worst
/// is a note that is too old.
fn turn(directory: &Path) -> std::io::Result<File> {
    let path = directory.join("heads.lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path)?;
    let shown = path.display().to_string();
    for _ in 0..TRIES {
        match lock(&file, &shown, Hold::Alone, false) {
            Err(error) if error.kind() == Kind::Busy => {
                std::thread::sleep(Duration::from_millis(10))
            }
            _ => break,
        }
    }
    Ok(file)
}
