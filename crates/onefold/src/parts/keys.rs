//! Who is asked for the keys of stores, for the whole process.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use onefold_archive::KeySource;
use onefold_backend::{
    locked::keep_keys,
    secrets::{
        SystemRandom, credential, credential_file, has_credentials, key_file, key_from_command,
        machine_memory, no_dumps,
    },
};
use onefold_core::{Error, Kind, Result, hex_digits};
use onefold_seal::{
    DurableState, Head, KeyArea, Opener, Random, RoleKey, Secret, SlotKind, SlotSecret, StateSeen,
    from_words, key_file as key_of,
};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{
    heads_before::{self, HeadNotes},
    operator::warn,
    sealed_before,
    witness::{UNTOLD, witness},
};

/// Where a key comes from. None of it ever comes from a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Somebody knows a passphrase.
    Passphrase,
    /// A file has it.
    File(PathBuf),
    /// A program gives it.
    Command(PathBuf),
    /// The service manager gives it.
    Credential,
    /// It is on paper.
    Recovery,
}

impl Whence {
    /// The kind of slot that it opens.
    #[must_use]
    pub fn kind(&self) -> SlotKind {
        match self {
            Whence::Passphrase => SlotKind::Passphrase,
            Whence::File(_) => SlotKind::File,
            Whence::Command(_) => SlotKind::Command,
            Whence::Credential => SlotKind::Credential,
            Whence::Recovery => SlotKind::Recovery,
        }
    }
}

/// Slots of so many key areas are remembered.
const TRIED_MAX: usize = 16;

/// Asks a person for words that nobody else sees; the text says for what, and for which store.
pub type Ask = Box<dyn Fn(&str) -> Result<Zeroizing<Vec<u8>>> + Send + Sync>;

/// Who is asked for keys.
pub struct Asker {
    /// Where keys come from, as the operator named it; else what a store has slots for is tried.
    whence: Option<Whence>,
    ask: Ask,
    /// A person or a descriptor is there to be asked.
    can_ask: bool,
    accepts_older: bool,
    /// The operator means an encrypted store, also without a word where keys come from.
    refuses_plain: bool,
    /// Root keys of stores that were opened, by their ids.
    known: Mutex<Vec<([u8; 16], Secret)>>,
    /// What the secret opened of slots that were tried: each is tried once, also when somebody without a
    /// key changed the rest of a key area.
    tried: Mutex<Vec<Tried>>,
}

/// Slots that were tried.
struct Tried {
    id: [u8; 16],
    slots: Vec<u8>,
    found: Result<Option<(usize, Secret)>>,
}

impl Tried {
    fn found(&self) -> Result<Option<(usize, Secret)>> {
        match &self.found {
            Ok(found) => Ok(found.as_ref().map(|(number, root)| (*number, root.again()))),
            Err(error) => Err(error.clone()),
        }
    }
}

impl Asker {
    /// By what the operator said.
    #[must_use]
    pub fn new(whence: Option<Whence>, ask: Ask, can_ask: bool, accepts_older: bool) -> Asker {
        Asker {
            whence,
            ask,
            can_ask,
            accepts_older,
            refuses_plain: false,
            known: Mutex::default(),
            tried: Mutex::default(),
        }
    }

    /// Refuses stores that are not encrypted, as with a key that was named.
    #[must_use]
    pub fn refusing_plain(self, refuses_plain: bool) -> Asker {
        Asker { refuses_plain, ..self }
    }

    /// The secret that opens a slot of the store with this id, from where the operator said.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn secret(&self, whence: &Whence, id: &[u8; 16], store: &Path) -> Result<SlotSecret> {
        guard()?;
        let ask = |what: &str| (self.ask)(&format!("{what} of {}", store.display()));
        let shown = hex_digits(id);
        Ok(match whence {
            Whence::Passphrase => SlotSecret::Passphrase(ask("passphrase")?),
            Whence::Recovery => {
                let words = ask("recovery key")?;
                let words = std::str::from_utf8(&words);
                let wrong = |_| Error::new(Kind::InvalidInput, "the recovery key is no text");
                SlotSecret::Key(from_words(words.map_err(wrong)?)?)
            }
            Whence::File(path) => {
                let read = key_file(path).map_err(|error| match error.kind() {
                    Kind::NotFound => {
                        let way = "if the key file is lost, --key recovery asks for the key that was written down";
                        Error::new(Kind::NotFound, format!("{error}; {way}"))
                    }
                    _ => error,
                })?;
                if RoleKey::from_text(&read).is_ok_and(|key| key.is_some()) {
                    let why = "this is a role key, which opens no slot: `onefold key roles` shows what it may do";
                    return Err(Error::new(Kind::Denied, why).context(path.display()));
                }
                SlotSecret::Key(key_of(&read).map_err(|error| error.context(path.display()))?)
            }
            Whence::Command(program) => {
                let request = format!("{{\"store\":\"{shown}\",\"wanted\":\"key\"}}\n");
                let given = key_from_command(program, &request)?;
                SlotSecret::Key(key_of(&given).map_err(|error| error.context(program.display()))?)
            }
            Whence::Credential => {
                let path = credential(id).ok_or_else(|| {
                    let why =
                        "no service manager gives credentials: $CREDENTIALS_DIRECTORY is not set";
                    Error::new(Kind::NotFound, why)
                })?;
                SlotSecret::Key(
                    key_of(&credential_file(&path)?)
                        .map_err(|error| error.context(path.display()))?,
                )
            }
        })
    }

    /// The role key for the archive with this id, if what the operator named is one.
    ///
    /// # Errors
    /// Those of reading it; `InvalidInput`: it was changed or cut off.
    pub fn role(&self, id: &[u8; 16]) -> Result<Option<RoleKey>> {
        let content = match (&self.whence, credential(id)) {
            (Some(Whence::File(path)), _) => {
                guard()?;
                key_file(path).map(|read| (path.clone(), read))
            }
            (Some(Whence::Credential) | None, Some(path)) if path.exists() => {
                guard()?;
                credential_file(&path).map(|read| (path, read))
            }
            _ => return Ok(None),
        };
        match content {
            // Whoever wants a slot's secret says what is to do.
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            read => {
                let (path, read) = read?;
                RoleKey::from_text(&read).map_err(|error| error.context(path.display()))
            }
        }
    }

    /// Where the operator says that keys are.
    #[must_use]
    pub fn named(&self) -> Option<&Whence> {
        self.whence.as_ref()
    }

    /// The secret for a store that has this key area, and where it is from.
    ///
    /// # Errors
    /// `Denied`: nothing says where it is; those of reading it.
    pub fn secret_of(&self, area: &KeyArea, store: &Path) -> Result<(Whence, SlotSecret)> {
        let whence = self.whence(area)?;
        let secret = self.secret(&whence, area.id(), store)?;
        Ok((whence, secret))
    }

    /// Where the key of a store comes from that has this key area.
    fn whence(&self, area: &KeyArea) -> Result<Whence> {
        if let Some(whence) = &self.whence {
            return Ok(whence.clone());
        }
        let has = |kind| area.slots().any(|(_, slot)| slot.kind() == kind);
        if credential(area.id()).is_some_and(|path| path.exists()) {
            return Ok(Whence::Credential);
        }
        if has(SlotKind::Passphrase) && self.can_ask {
            return Ok(Whence::Passphrase);
        }
        let why = format!("it is encrypted: say where its key is ({})", ways(area));
        Err(Error::new(Kind::Denied, why))
    }

    /// The slot that the key opens, and the root key.
    ///
    /// # Errors
    /// `Denied`: no slot opens.
    pub fn open(&self, area: &KeyArea, store: &Path) -> Result<(usize, Secret)> {
        let whence = self.whence(area)?;
        let mut tried = self.tried.lock();
        let is_it = |tried: &&Tried| tried.id == *area.id() && tried.slots == area.slot_bytes();
        let found = match tried.iter().find(is_it) {
            Some(tried) => tried.found(),
            None => {
                let secret = self.secret(&whence, area.id(), store)?;
                let found = area.root(&secret, machine_memory());
                let now = Tried { id: *area.id(), slots: area.slot_bytes().to_vec(), found };
                let found = now.found();
                // A process that opens many stores forgets the oldest.
                if tried.len() == TRIED_MAX {
                    tried.remove(0);
                }
                tried.push(now);
                found
            }
        };
        found?.ok_or_else(|| {
            let what = match whence {
                Whence::Passphrase => "wrong passphrase: it",
                _ => "wrong key: it",
            };
            Error::new(
                Kind::Denied,
                format!("{what} opens no slot of it; try another ({})", ways(area)),
            )
        })
    }

    /// The root key of the store that has this key area.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn root(&self, area: &KeyArea, store: &Path) -> Result<Secret> {
        let mut known = self.known.lock();
        if let Some((_, root)) = known.iter().find(|(id, root)| id == area.id() && area.is_of(root))
        {
            return Ok(root.again());
        }
        let (_, root) = self.open(area, store)?;
        known.retain(|(id, _)| id != area.id());
        known.push((*area.id(), root.again()));
        Ok(root)
    }

    fn refuses_plain(&self) -> bool {
        // Who puts a plain store in place of a sealed one gives it another id, if need be.
        self.whence.is_some() || self.refuses_plain || has_credentials()
    }
}

/// What opens a store, and how verbs are told of it.
fn ways(area: &KeyArea) -> String {
    let of = |kind| match kind {
        SlotKind::Passphrase => "its passphrase: --key passphrase",
        SlotKind::File => "its key file: --key PATH",
        SlotKind::Command => "its program: --key command:PROGRAM",
        SlotKind::Credential => "its credential of a service: --key credential",
        SlotKind::Recovery => "the recovery key that was written down: --key recovery",
    };
    let has = |kind| area.slots().any(|(_, slot)| slot.kind() == kind);
    let all = SlotKind::ALL.iter().map(|row| row.0);
    let all: Vec<&str> = all.filter(|kind| has(*kind)).map(of).collect();
    all.join("; ")
}

/// Before this process has a key: it leaves no core dump, and its keys lie in locked memory. Once it
/// warns where the system does not lock them.
///
/// # Errors
/// Those of the system.
pub fn guard() -> Result<()> {
    no_dumps()?;
    if let Some(sentence) = keep_keys() {
        warn(&sentence);
    }
    Ok(())
}

static ASKER: OnceLock<Arc<Asker>> = OnceLock::new();

/// Takes who is asked for keys; once, before anything is opened. Without it encrypted stores are
/// refused.
pub fn give(asker: Asker) {
    // It is given once, at the beginning.
    let _ = ASKER.set(Arc::new(asker));
}

/// Who is asked.
#[must_use]
pub fn asker() -> Option<&'static Arc<Asker>> {
    ASKER.get()
}

/// Somebody else who is asked for keys, from where `whence` says, beside the one for the whole process; who asks
/// a person, and whether older states are accepted, is the same. `None` where nobody is asked.
#[must_use]
pub fn asker_by(whence: Option<Whence>) -> Option<Arc<Asker>> {
    let main = asker()?;
    let ask: Ask = Box::new(|what| (main.ask)(what));
    Some(Arc::new(Asker::new(whence, ask, main.can_ask, main.accepts_older)))
}

/// The opener for an archive by another one than the process's [`asker`].
#[must_use]
pub fn of_archive_by(store: &Path, asker: &Arc<Asker>) -> KeySource {
    let heads = Some(HeadNotes::new(asker.accepts_older));
    KeySource::new(Arc::new(OfStore { heads, ..OfStore::new(asker, store, false) }))
}

/// The opener for a block store. The engine refuses an older state of the store than was seen here or the
/// witness knows.
#[must_use]
pub fn of_block_store(store: &Path) -> onefold_block::KeySource {
    let given = |asker| onefold_block::KeySource::new(Arc::new(OfStore::new(asker, store, true)));
    asker().map_or_else(onefold_block::KeySource::default, given)
}

/// The opener for a store of the cluster engine.
#[must_use]
pub fn of_cluster_store(store: &Path) -> onefold_cluster::KeySource {
    let given =
        |asker| onefold_cluster::KeySource::new(Arc::new(OfStore::new(asker, store, false)));
    asker().map_or_else(onefold_cluster::KeySource::default, given)
}

/// True when the operator takes stores that are older than what this host knows.
pub(super) fn accepts_older() -> bool {
    asker().is_some_and(|asker| asker.accepts_older)
}

/// The opener for an archive. The engine refuses an archive that does not descend from the head that was seen
/// here.
pub(super) fn of_archive(store: &Path) -> KeySource {
    asker().map_or_else(KeySource::default, |asker| of_archive_by(store, asker))
}

/// The opener of one store, for its engine.
struct OfStore {
    asker: Arc<Asker>,
    /// The path of the store as the operator gave it.
    store: PathBuf,
    /// True for a block store, whose states are noted and told to the witness.
    has_states: bool,
    /// The notes of heads, for an archive.
    heads: Option<HeadNotes>,
}

impl OfStore {
    fn new(asker: &Arc<Asker>, store: &Path, has_states: bool) -> OfStore {
        OfStore { asker: asker.clone(), store: store.to_owned(), has_states, heads: None }
    }
}

impl Opener for OfStore {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        self.asker.root(area, &self.store)
    }

    fn role(&self, id: &[u8; 16]) -> Result<Option<RoleKey>> {
        self.asker.role(id)
    }

    fn accepts_older(&self) -> bool {
        self.asker.accepts_older
    }

    fn states_seen(&self, id: &[u8; 16]) -> Result<Vec<StateSeen>> {
        if !self.has_states {
            return Ok(Vec::new());
        }
        let noted = |sequence| StateSeen { by: "this user", sequence, tag: None };
        let here = sealed_before::state(id).map(noted);
        let there = match witness() {
            Some(witness) => witness.seen(id)?,
            None => None,
        };
        Ok(here.into_iter().chain(there).collect())
    }

    fn saw_state(&self, id: &[u8; 16], state: &DurableState) {
        if !self.has_states {
            return;
        }
        sealed_before::note_state(id, state.sequence);
        if let Some(Err(error)) = witness().map(|witness| witness.tell(id, state)) {
            warn(&format!("{UNTOLD}: {error}"));
        }
    }

    fn head_seen(&self, id: &[u8; 16]) -> Option<Head> {
        self.heads.as_ref().and_then(|_| heads_before::seen(id))
    }

    fn saw_head(&self, id: &[u8; 16], head: &Head) {
        if let Some(heads) = &self.heads {
            heads.saw(id, head);
        }
    }

    fn cannot_compare(&self, _id: &[u8; 16], changes: u64) {
        warn(&format!(
            "{} had {changes} changes since it was last seen here, too many to find out whether they go on \
             from what was seen",
            self.store.display()
        ));
    }

    fn refuses_plain(&self) -> bool {
        self.asker.refuses_plain()
    }

    fn random(&self) -> Arc<dyn Random> {
        Arc::new(SystemRandom)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn rule_23_slots_are_tried_once_whatever_else_was_changed() {
        let id = [7; 16];
        let words = || Zeroizing::new(b"words".to_vec());
        let mut keys = onefold_seal::Keys::create(id, &SystemRandom).unwrap();
        let secret = SlotSecret::Passphrase(words());
        let argon = onefold_seal::Argon::LEAST;
        let slot = (SlotKind::Passphrase, "");
        keys.add_slot(slot, &secret, argon, (1, 8 << 30), &SystemRandom).unwrap();
        let area = keys.next_area(&SystemRandom).unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let ask: Ask = Box::new(move |what| {
            assert_eq!(what, "passphrase of /srv/store");
            count.fetch_add(1, Relaxed);
            Ok(Zeroizing::new(b"words".to_vec()))
        });
        let asker = Asker::new(Some(Whence::Passphrase), ask, true, false);
        let store = Path::new("/srv/store");
        // Somebody set the mark of an erasure: no root key is that area's.
        let mut bytes = area.bytes().to_vec();
        bytes[40] = 1;
        let end = bytes.len() - 8;
        let seed = u64::from_le_bytes([7; 8]);
        let sum = onefold_core::checksum::fast(seed, &bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        let forged = KeyArea::decode(&bytes).unwrap();
        for _ in 0..3 {
            let root = asker.root(&forged, store).unwrap();
            assert!(area.is_of(&root) && !forged.is_of(&root));
        }
        asker.root(&area, store).unwrap();
        assert_eq!(asked.load(Relaxed), 1);
    }
}
