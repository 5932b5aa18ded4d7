//! The witness of block stores: a program of the operator that keeps elsewhere in which state they are.
//! Somebody who puts back both an older image of a disk and the state directory of its host does not
//! put back what the witness knows.
//!
//! The program gets one line on standard input, `get ID` or `put ID SEQUENCE TAG`, and answers with one
//! line that says what it knows of the store then: `SEQUENCE TAG`, or `none`. It ends within [`WAIT`], with
//! status 0. Its words may come from another machine: this module takes a short line of this form and
//! nothing else for an answer, and errors show the words without what a terminal obeys.
//!
//! *Crash argument:* the witness is told durable states ([`durable_state`]) and no others, one after the
//! other. So it may know an older state than the store has, as when this process is killed before it
//! tells one, and never a newer one.
//!
//! *Threads:* one thread of a served store tells the witness, and waits for it. Nobody else does.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc},
    time::{Duration, Instant},
};

use onefold_backend::program::{Role, answer_heard};
use onefold_block::{Store, durable_state, want_checkpoint};
use onefold_core::{Error, Kind, Result, hex_digits};
use onefold_seal::{DurableState, StateSeen};
use parking_lot::Mutex;

/// How long the program may take to answer.
const WAIT: Duration = Duration::from_secs(20);

/// The sentence that an operator reads while the witness lacks the newest state; a reason follows.
pub const UNTOLD: &str = "the witness does not know the newest state";

/// The purpose of the program, for errors.
const ROLE: Role = Role { does: "is the witness", gives: "answer", wait: WAIT };

/// How often a served store is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time between two tellings at least. With [`CHECKPOINT_EVERY`] it stays below the minute within which a
/// change is told.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How often a checkpoint is asked for: changes behind the last one belong to no state with a number.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// How often the log says that the witness does not take a state.
const WARN_EVERY: Duration = Duration::from_secs(600);

/// Characters of the program's words that an error shows at most.
const SAID_MAX: usize = 300;

static WITNESS: OnceLock<Witness> = OnceLock::new();

/// Sets the program that is the witness of this process. The command calls this once, before it opens
/// anything; later calls change nothing.
pub fn give(program: PathBuf) {
    let _ = WITNESS.set(Witness { program });
}

/// The witness of this process, if it has one.
#[must_use]
pub fn witness() -> Option<&'static Witness> {
    WITNESS.get()
}

/// Logs that an archive or a store of the cluster engine is served without the witness, if there is one.
pub fn is_not_for(store: &Path) {
    if witness().is_some() {
        let store = store.display();
        tracing::warn!("--witness is for block stores: it hears nothing of {store}");
    }
}

/// A program that keeps states of stores.
pub struct Witness {
    program: PathBuf,
}

impl Witness {
    /// Asks the witness for the state of the store with this id that it knows; `None` when it knows none.
    ///
    /// # Errors
    /// The witness did not answer, so that nobody can tell whether the store is older.
    pub(super) fn seen(&self, id: &[u8; 16]) -> Result<Option<StateSeen>> {
        let known = self.ask(&format!("get {}\n", hex_digits(id))).map_err(|error| {
            let why = format!(
                "the witness does not say in which state it was, so that it may be an older image: \
                 {error}; --accept-older opens it without asking"
            );
            Error::new(error.kind(), why)
        })?;
        if known.is_none() {
            tracing::info!("the witness knows nothing of the store {} yet", hex_digits(id));
        }
        let seen = |DurableState { sequence, tag }| StateSeen {
            by: "the witness",
            sequence,
            tag: Some(tag),
        };
        Ok(known.map(seen))
    }

    /// Tells the witness the durable state of a store.
    ///
    /// # Errors
    /// The witness did not answer. `Denied`: it goes on knowing another state.
    pub(super) fn tell(&self, id: &[u8; 16], state: &DurableState) -> Result<()> {
        let DurableState { sequence, tag } = state;
        let known =
            self.ask(&format!("put {} {sequence} {}\n", hex_digits(id), hex_digits(tag)))?;
        match known {
            Some(known) if known == *state => Ok(()),
            Some(known) => {
                let why = format!("it goes on knowing state {}, not {sequence}", known.sequence);
                Err(self.failed(Kind::Denied, &why))
            }
            None => Err(self.failed(Kind::Denied, "it took nothing")),
        }
    }

    fn ask(&self, line: &str) -> Result<Option<DurableState>> {
        let answer = answer_heard(&self.program, line, &ROLE)
            .map_err(|error| Error::new(error.kind(), plain(&error.to_string())))?;
        understood(&answer).ok_or_else(|| {
            let said = plain(&String::from_utf8_lossy(&answer));
            self.failed(Kind::Io, &format!("its answer is not 'SEQUENCE TAG' or 'none': {said:?}"))
        })
    }

    fn failed(&self, kind: Kind, why: &str) -> Error {
        Error::new(kind, format!("{}: {why}", self.program.display()))
    }
}

/// Understands an answer of the witness; `None` for bytes that are no answer.
#[allow(clippy::option_option, reason = "the inner one is the answer 'none'")]
fn understood(answer: &[u8]) -> Option<Option<DurableState>> {
    let line = std::str::from_utf8(answer).ok()?;
    let line = line.strip_suffix('\n').unwrap_or(line);
    if line == "none" {
        return Some(None);
    }
    let (sequence, hex) = line.split_once(' ')?;
    let is_number = (1..=20).contains(&sequence.len()) && all(sequence, |c| c.is_ascii_digit());
    if !is_number || hex.len() != 32 || !all(hex, |c| matches!(c, '0'..='9' | 'a'..='f')) {
        return None;
    }
    let tag = u128::from_str_radix(hex, 16).ok()?.to_be_bytes();
    Some(Some(DurableState { sequence: sequence.parse().ok()?, tag }))
}

fn all(text: &str, is_right: impl Fn(char) -> bool) -> bool {
    text.chars().all(is_right)
}

/// The first words of the program in one line, without control characters.
fn plain(said: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    said.chars().take(SAID_MAX).map(shown).collect()
}

/// The tellings to the witness about one store, so far.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The number of the last state that the witness took.
    pub state: Option<u64>,
    /// When that state was told.
    pub at: Option<Instant>,
    /// Since when there is a newer durable state; `None` when the witness knows the newest.
    pub behind_since: Option<Instant>,
    /// States that the witness took.
    pub taken: u64,
    /// Tellings that failed.
    pub failures: u64,
    /// Why the last telling failed; `None` when it did not.
    pub failure: Option<String>,
}

/// Tells the witness the durable states of one store.
pub struct Teller {
    witness: &'static Witness,
    id: [u8; 16],
    told: Mutex<Told>,
}

impl Teller {
    /// A teller for the store with this id; `None` without a witness.
    pub(super) fn of(id: [u8; 16]) -> Option<Arc<Teller>> {
        let of = |witness| Arc::new(Teller { witness, id, told: Mutex::default() });
        witness().map(of)
    }

    /// The tellings so far.
    pub fn told(&self) -> Told {
        self.told.lock().clone()
    }

    /// Tells the witness each new durable state, at most every [`TELL_EVERY`], until the other side of the
    /// channel is dropped. A witness that fails or hangs holds up this thread and no other.
    pub(super) fn run(&self, store: &Store, ended: &mpsc::Receiver<()>) {
        let (mut wanted, mut tried, mut warned) = (Instant::now(), None::<Instant>, None);
        while ended.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            if wanted.elapsed() >= CHECKPOINT_EVERY {
                want_checkpoint(store.engine());
                wanted = Instant::now();
            }
            let is_soon = tried.is_some_and(|at| at.elapsed() < TELL_EVERY);
            if !self.is_behind(store) || is_soon {
                continue;
            }
            let failed = self.told.lock().failure.is_some();
            match self.tell(store) {
                Ok(()) if failed => tracing::info!("the witness takes the store's states again"),
                Ok(()) => {}
                Err(error) => {
                    let is_due = |at: Instant| at.elapsed() >= WARN_EVERY;
                    if !failed || warned.is_none_or(is_due) {
                        warned = Some(Instant::now());
                        tracing::error!("{UNTOLD}: {error}");
                    }
                }
            }
            tried = Some(Instant::now());
        }
    }

    /// True when a state became durable that the witness was not told of.
    fn is_behind(&self, store: &Store) -> bool {
        let Ok(state) = durable_state(store.engine()) else { return false };
        let mut told = self.told.lock();
        if told.state == Some(state.sequence) {
            return false;
        }
        told.behind_since.get_or_insert_with(Instant::now);
        true
    }

    /// Tells the witness the state that is durable now, unless the witness took it before.
    ///
    /// # Errors
    /// As [`Witness::tell`].
    pub(super) fn tell(&self, store: &Store) -> Result<()> {
        let (state, asked) = (durable_state(store.engine())?, Instant::now());
        if self.told.lock().state == Some(state.sequence) {
            return Ok(());
        }
        let result = self.witness.tell(&self.id, &state);
        let mut told = self.told.lock();
        match &result {
            Ok(()) => {
                told.taken += 1;
                (told.state, told.at) = (Some(state.sequence), Some(asked));
                (told.behind_since, told.failure) = (None, None);
            }
            Err(error) => {
                told.failures += 1;
                told.failure = Some(error.to_string());
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_43_an_answer_of_a_witness_is_one_line_of_one_form() {
        let tag = "00112233445566778899aabbccddeeff";
        let known = understood(format!("17 {tag}\n").as_bytes()).unwrap().unwrap();
        assert_eq!((known.sequence, hex_digits(known.tag)), (17, tag.to_owned()));
        assert_eq!(understood(b"none\n"), Some(None));
        let long = "9".repeat(21);
        for wrong in [
            String::new(),
            "\n".to_owned(),
            "none \n".to_owned(),
            format!("17 {tag} \n"),
            format!("17 {tag}\n\n"),
            format!("17  {tag}"),
            format!("-1 {tag}"),
            format!("+1 {tag}"),
            format!("{long} {tag}"),
            format!("18446744073709551616 {tag}"),
            format!("17 {}", tag.to_uppercase()),
            "17 +0112233445566778899aabbccddeeff".to_owned(),
            "17 ".to_owned(),
            format!("17 {tag}\n18 {tag}\n"),
        ] {
            assert_eq!(understood(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(understood(b"\xff\xfe"), None);
        assert!(!plain("\u{1b}[31mred\r\n").contains(char::is_control));
        assert_eq!(plain(&"x".repeat(1 << 20)).len(), SAID_MAX);
    }
}
