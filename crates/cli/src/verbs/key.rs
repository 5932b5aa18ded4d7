//! `onefold key`: the slots by which an encrypted store opens.

mod data_keys;
mod roles;

use std::{
    os::fd::RawFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use onefold_archive::{
    Archive, DataKeyListed, READER_BYTES, Settings, allow_data_keys, change_keys, data_keys,
    domain_called, erase_keys, key_area, rotate_data_key,
};
use onefold_backend::{
    rados::TIMEOUT,
    secrets::{GivenWords, SystemRandom, machine_memory},
};
use onefold_cluster::key_areas;
use onefold_core::{Error, Kind, Result, hex_digits};
use onefold_seal::{Argon, KeyArea, Keys, Random, Slot, SlotKind};
use serde_json::{Value, json};

use self::roles::Granted;
use super::archive_at;
use crate::key::{KeyFrom, New, new_secret};
use onefold::parts::{
    Found,
    archive_dir::{ArchiveDir, now},
    cluster_store::{Backing, Opened, Url, key_settings},
    keys::{Asker, asker},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::{Size, counted},
};

/// Shows and changes the keys of an encrypted store
///
/// A store has up to 16 slots. Each opens it by a secret of its own: a passphrase, a key file, what a
/// program gives, a credential of a service, or a recovery key on paper. Data are not written again when
/// slots change. Whoever had a secret and has a copy of the keys from before can still open what they can
/// read. Keys of a block store, and of a cluster store in a folder, are changed while nobody serves it.
/// Encryption is experimental.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold key list backups\n  \
                  onefold key test backups --key /root/backups.key\n  \
                  onefold key add disk.onefold --new recovery\n  \
                  onefold key add backups --new passphrase --key /root/backups.key\n  \
                  onefold key remove backups 2")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows the slots; needs no key, and proves them if there is one
    #[command(after_help = "Examples:\n  onefold key list backups")]
    List {
        /// The store
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Tells which slot the key opens
    #[command(after_help = "Examples:\n  onefold key test backups --key passphrase")]
    Test {
        /// The store
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Adds a slot
    #[command(after_help = "Examples:\n  \
                      onefold key add backups --new recovery\n  \
                      onefold key add backups --new /root/second.key --name 'the other machine'")]
    Add {
        /// The store
        store: PathBuf,
        #[command(flatten)]
        new: NewKey,
        /// What people call the slot; whoever has the store can read it
        #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
        name: String,
        #[command(flatten)]
        answer: Answer,
    },
    /// Removes a slot, but not the last one
    #[command(after_help = "Examples:\n  onefold key remove backups 2")]
    Remove {
        /// The store
        store: PathBuf,
        /// The slot's number, as `onefold key list` shows it
        slot: usize,
        #[command(flatten)]
        answer: Answer,
    },
    /// Gives a slot another secret
    #[command(after_help = "Examples:\n  onefold key change backups 0 --new passphrase")]
    Change {
        /// The store
        store: PathBuf,
        /// The slot's number, as `onefold key list` shows it
        slot: usize,
        #[command(flatten)]
        new: NewKey,
        #[command(flatten)]
        answer: Answer,
    },
    /// Renews the root key, and keeps only the slot that --key opens; with --data, changes the data key
    ///
    /// For when a secret, or a copy of the keys, is in wrong hands. Without --data the keys of the data stay
    /// the same: whoever opened the store before can still read copies of it, and what comes to it.
    ///
    /// With --data an archive or a block store, or a domain of it, gets another data key beside the one that it
    /// has, and slots stay. All that is stored from then on is under the new key, and shares nothing with what
    /// was stored before: equal content takes space twice as long as the older one is kept. The rest is written
    /// again, and the older key is erased when nothing is left under it: in an archive by `onefold gc --reseal`;
    /// a block store does the first when clients leave it time, and `--finish` does what is left of it, and the
    /// second. So whoever had a slot and a copy of the keys is locked out by all of it: first `key rotate`, then
    /// `key rotate --data`, then `gc --reseal` or `--finish`. Names of volumes, sets, streams and snapshots stay
    /// under the store key. Nobody may store, serve or collect at that moment. `--finish` may take hours: it reads all
    /// that is under the older key, and overwrites what is free in the store. It may be killed, and given again. After
    /// the first change older programs refuse the archive or store. Copies of the keys from before lack the new
    /// key, and open no content once the older one is erased: make new ones. Cluster stores can't change their data
    /// keys yet.
    #[command(after_help = "Examples:\n  \
                      onefold key rotate backups --drop-others\n  \
                      onefold key rotate backups --data --key vault.key\n  \
                      onefold key rotate backups --data --domain customer-7 --key vault.key\n  \
                      onefold key rotate disk.onefold --data --key vault.key\n  \
                      onefold key rotate disk.onefold --data --finish --key vault.key")]
    Rotate {
        /// The store
        store: PathBuf,
        /// Drops all other slots; needed when there are some
        #[arg(long, conflicts_with = "data")]
        drop_others: bool,
        /// Changes the data key of an archive or a block store in place of the root key
        #[arg(long)]
        data: bool,
        /// The domain whose data key is changed; the one that the store began with when it is not given
        #[arg(long, value_name = "NAME", requires = "data")]
        domain: Option<String>,
        /// Writes again what a block store still has under the older data key, overwrites what is free, and erases
        /// that key
        #[arg(long, requires = "data")]
        finish: bool,
        #[command(flatten)]
        answer: Answer,
    },
    /// Makes a key with a role for an archive that was made with --roles, and writes it to a new file
    ///
    /// By a put key a machine adds snapshots to the sets that are named here. It reads no content, and
    /// neither replaces nor removes anything. By a read key a machine restores, and changes nothing. Give the
    /// file to that machine, where --key names it.
    #[command(after_help = "Examples:\n  \
                      onefold key grant backups put --to web1.key --name web1 --set web1 --key vault.key\n  \
                      onefold key grant backups read --to restore.key --name vault --key vault.key")]
    Grant {
        /// The archive
        store: PathBuf,
        /// What the key may do
        #[arg(value_enum)]
        role: Granted,
        /// The new file of the key
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// What people call the key; of a put key, also the host whose snapshots it adds
        #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// A set that a put key may add snapshots to; several with the option again
        #[arg(long = "set", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
        sets: Vec<String>,
        #[command(flatten)]
        answer: Answer,
    },
    /// Removes a put key: nothing that is signed by it counts from now on
    ///
    /// What it stored stays. A read key can't be removed: who has one can read what is in the archive,
    /// and what comes to it.
    #[command(after_help = "Examples:\n  onefold key revoke backups 1 --key vault.key")]
    Revoke {
        /// The archive
        store: PathBuf,
        /// The put key's number, as `onefold key roles` shows it
        number: u32,
        #[command(flatten)]
        answer: Answer,
    },
    /// Shows the role of the key, and the put keys of an archive
    #[command(after_help = "Examples:\n  onefold key roles backups --key vault.key")]
    Roles {
        /// The archive
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Destroys all keys of a store: nobody can read it any more
    ///
    /// Both copies of the keys are overwritten. Copies of them elsewhere still open it, and so
    /// may old blocks of a flash disk or of a file system that copies on write. It is refused while
    /// somebody serves the store or stores into it; of a store on Ceph, while servers or workers do.
    #[command(after_help = "Examples:\n  onefold key erase backups --confirm 1f2e3d4c")]
    Erase {
        /// The store
        store: PathBuf,
        /// The first 8 digits of the store's id, which this verb tells
        #[arg(long, value_name = "DIGITS")]
        confirm: Option<String>,
        #[command(flatten)]
        answer: Answer,
    },
}

/// A new secret.
#[derive(Debug, Args)]
struct NewKey {
    /// Where the new key is: as in --key. A key file that is not there is made
    #[arg(long, value_name = "WHERE")]
    new: KeyFrom,
    /// Reads the new passphrase from this open descriptor, up to the end of a line
    #[arg(long, value_name = "N")]
    new_passphrase_fd: Option<RawFd>,
}

impl NewKey {
    /// The descriptor of the new passphrase, which no program gets that this one starts.
    fn given(&self) -> Result<Option<GivenWords>> {
        self.new_passphrase_fd.map(GivenWords::take).transpose()
    }
}

/// Does what was asked for.
pub(crate) fn run(options: &Options) -> std::result::Result<(), Failure> {
    match &options.verb {
        Verb::List { store, answer } => list(store, answer),
        Verb::Test { store, answer } => test(store, answer),
        Verb::Add { store, new, name, answer } => add(store, new, name, answer),
        Verb::Remove { store, slot, answer } => {
            let mut removed = None;
            change(store, &mut |keys, _| {
                removed = keys.slots().find(|(number, _)| number == slot).map(|(_, it)| it.clone());
                keys.remove_slot(*slot)
            })?;
            let kind = removed.as_ref().map_or("", |it| it.kind().name());
            let name = removed.as_ref().map_or("", |it| it.name());
            let called = if name.is_empty() { String::new() } else { format!(" '{name}'") };
            let words =
                format_args!("slot {slot} of {} is removed: {kind}{called}", store.display());
            let report = json!({
                "store": shown(store), "removed": slot, "kind": kind, "name": name,
            });
            answer.tell(&report, words)
        }
        Verb::Change { store, slot, new, answer } => exchange(store, *slot, new, answer),
        Verb::Rotate { store, data: true, domain, finish, answer, .. } => {
            let domain = domain.as_deref();
            match at(store)? {
                Store::Block(file) => data_keys::rotate(store, &file, (domain, *finish), answer),
                Store::Archive(_) if *finish => Err(Failure::new(format!(
                    "of an archive, `onefold gc {} --reseal` writes the rest again, and erases the older key",
                    store.display()
                ))),
                _ => rotate_data(store, domain, answer),
            }
        }
        Verb::Rotate { store, drop_others, answer, .. } => rotate(store, *drop_others, answer),
        Verb::Grant { store, role, to, name, sets, answer } => {
            roles::grant(store, *role, to, (name, sets), answer)
        }
        Verb::Revoke { store, number, answer } => roles::revoke(store, *number, answer),
        Verb::Roles { store, answer } => roles::list(store, answer),
        Verb::Erase { store, confirm, answer } => erase(store, confirm.as_deref(), answer),
    }
}

fn shown(store: &Path) -> String {
    store.display().to_string()
}

/// As long as servers and workers are silent at most.
const LOOK: Duration = Duration::from_secs(4);

/// A store that has keys, or may have.
enum Store {
    Archive(ArchiveDir),
    Block(Box<StoreFile>),
    Cluster(Url),
}

fn at(store: &Path) -> std::result::Result<Store, Failure> {
    match Found::at(store)? {
        Found::Archive(directory) => Ok(Store::Archive(directory)),
        Found::Block(file) => Ok(Store::Block(file)),
        Found::Cluster(url) => Ok(Store::Cluster(url)),
    }
}

/// The key area, as whoever has no key reads it.
fn area(store: &Path) -> std::result::Result<KeyArea, Failure> {
    let area = match at(store)? {
        Store::Archive(directory) => directory.files().and_then(|files| key_area(&*files)),
        Store::Block(file) => file.key_area(),
        Store::Cluster(url) => area_of_cluster(&url),
    };
    Ok(area.map_err(|error| error.context(store.display()))?)
}

/// The whole copy of a cluster store's key area that has the higher number.
fn area_of_cluster(url: &Url) -> Result<KeyArea> {
    let objects = Backing::look(url)?;
    let found = key_areas(&*objects.objects()?, &key_settings(url))?;
    let not_encrypted = || Error::new(Kind::InvalidInput, "the store is not encrypted");
    let (id, copies) = found.ok_or_else(not_encrypted)?;
    let mut why = Error::new(Kind::Corrupt, "there is no key area");
    let mut newest: Option<KeyArea> = None;
    for copy in copies {
        match copy {
            Ok(copy) if *copy.id() == id => {
                let newer = newest.as_ref().is_none_or(|one| one.sequence() < copy.sequence());
                newest = if newer { Some(copy) } else { newest };
            }
            Ok(_) => {}
            Err(error) => why = error,
        }
    }
    newest.ok_or(why)
}

/// The settings by which a block store is opened.
fn settings_of_block(file: &StoreFile) -> onefold_block::Settings {
    onefold_block::Settings {
        keys: file.keys(),
        ..onefold_block::Settings::for_memory(onefold_block::MEMORY_MIN)
    }
}

fn the_asker() -> Result<&'static Arc<Asker>> {
    asker().ok_or_else(|| Error::new(Kind::Denied, "nobody can be asked for a key"))
}

fn row(number: usize, slot: &Slot) -> Value {
    json!({
        "slot": number, "kind": slot.kind().name(), "name": slot.name(), "made": slot.made(),
    })
}

fn words_of(number: usize, slot: &Slot) -> String {
    let made = humantime::format_rfc3339_seconds(
        std::time::UNIX_EPOCH + std::time::Duration::from_secs(slot.made().min(1 << 37)),
    );
    let name = if slot.name().is_empty() { String::new() } else { format!("  {}", slot.name()) };
    format!("{number:>4}  {:<10}  {made}{name}", slot.kind().name())
}

fn list(store: &Path, answer: &Answer) -> std::result::Result<(), Failure> {
    let asker = the_asker()?;
    let proven = asker.named().is_some();
    // An older key area opens nothing. Of a block store that is served only its server knows that.
    let is_served = proven
        && match opens(&at(store)?) {
            Err(error) if error.kind() == Kind::Busy => true,
            opened => {
                opened.map_err(|error| error.context(store.display()))?;
                false
            }
        };
    let area = area(store)?;
    let rows: Vec<Value> = area.slots().map(|(number, slot)| row(number, slot)).collect();
    let words: Vec<String> = area.slots().map(|(number, slot)| words_of(number, slot)).collect();
    if proven
        && !area.is_of(&asker.root(&area, store).map_err(|error| error.context(store.display()))?)
    {
        let why =
            "the key area was changed by somebody without its key; nothing that it says counts";
        return Err(Failure::new(format!("{}: {why}", store.display())));
    }
    // The name of a credential has it.
    let id = hex_digits(area.id());
    let older = if proven { older_data_keys(store)? } else { Vec::new() };
    let of_blocks = match at(store)? {
        Store::Block(file) if proven => data_keys::older(&file)?,
        _ => Vec::new(),
    };
    let report = json!({
        "store": shown(store), "id": id, "keys": area.sequence(), "proven": proven, "slots": rows,
        "older_data_keys": older.iter().map(|one| json!({
            "domain": one.domain, "generation": one.generation, "containers": one.containers, "bytes": one.bytes,
        })).chain(of_blocks.iter().map(|one| json!({
            "domain": one.number, "generation": one.generation,
        }))).collect::<Vec<_>>(),
    });
    let said = match (proven, is_served) {
        (false, _) => "\nnot proven: with --key it is",
        (true, true) => "\nproven, but perhaps older than its server knows: it is served",
        (true, false) => "",
    };
    let words = words.join("\n");
    let older = older.iter().map(older_words);
    let older = older.chain(of_blocks.iter().map(|one| data_keys::older_words(store, one)));
    let older: String = older.map(|words| format!("\n{words}")).collect();
    answer.tell(&report, format_args!("id {id}\nslot  kind        made\n{words}{older}{said}"))
}

/// The domains of an archive that have two data keys, with what is left under the older one.
fn older_data_keys(store: &Path) -> std::result::Result<Vec<DataKeyListed>, Failure> {
    let Store::Archive(directory) = at(store)? else { return Ok(Vec::new()) };
    let archive = directory.open_to_read(READER_BYTES)?;
    let all = data_keys(&archive.tables()).map_err(|error| error.context(store.display()))?;
    Ok(all.into_iter().filter(|one| one.has_older).collect())
}

/// Containers that are left under an older data key.
pub(in crate::verbs) fn older_words(one: &DataKeyListed) -> String {
    format!(
        "domain {} has two data keys: {} with {} left under the older one; gc --reseal writes them again",
        one.domain,
        counted(one.containers, "container"),
        Size(one.bytes)
    )
}

/// Fails unless the key opens all of the store, and not only a slot: an older key area opens nothing.
fn opens(store: &Store) -> Result<()> {
    match store {
        Store::Archive(directory) => drop(directory.open_to_read(READER_BYTES)?),
        Store::Block(file) => drop(file.open_unchanged()?),
        Store::Cluster(url) => drop(Opened::look(url)?),
    }
    Ok(())
}

fn test(store: &Path, answer: &Answer) -> std::result::Result<(), Failure> {
    opens(&at(store)?)?;
    let area = area(store)?;
    let (slot, _) =
        the_asker()?.open(&area, store).map_err(|error| error.context(store.display()))?;
    let words = format_args!("the key opens slot {slot} of {}", store.display());
    answer.tell(&json!({ "store": shown(store), "slot": slot }), words)
}

/// Changes the keys.
fn change(
    store: &Path,
    change: &mut dyn FnMut(&mut Keys, &dyn Random) -> Result<()>,
) -> std::result::Result<(), Failure> {
    let changed = match at(store)? {
        Store::Archive(directory) => {
            let archive: Arc<Archive> = directory.open(Settings::default())?;
            change_keys(&archive, |keys, random| change(keys, random))
        }
        Store::Block(file) => {
            let keeper = file.claim()?;
            let change = |keys: &mut Keys, random: &dyn Random| change(keys, random);
            onefold_block::change_keys(&*keeper.disk(), &settings_of_block(&file), change)
        }
        Store::Cluster(url) => {
            let backing = Backing::open(&url, TIMEOUT)?;
            let objects = backing.objects()?;
            onefold_cluster::change_keys(&*objects, &key_settings(&url), |keys, random| {
                change(keys, random)
            })
        }
    };
    Ok(changed.map_err(|error| error.context(store.display()))?)
}

/// Adds a slot with a new secret; gives its number.
fn with_new(
    keys: &mut Keys,
    (kind, name): (SlotKind, &str),
    new: &New,
    random: &dyn Random,
) -> Result<usize> {
    let memory = machine_memory();
    keys.add_slot((kind, name), &new.secret, Argon::usual(memory), (now(), memory), random)
}

fn add(
    store: &Path,
    new: &NewKey,
    name: &str,
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let given = new.given()?;
    let id = *area(store)?.id();
    let kind = new.new.0.kind();
    let made = new_secret(&new.new.0, given.as_ref(), &id, store)?;
    let mut slot = 0;
    change(store, &mut |keys, random| {
        slot = with_new(keys, (kind, name), &made, random)?;
        Ok(())
    })?;
    tell_new(store, slot, &made, answer)
}

fn exchange(
    store: &Path,
    slot: usize,
    new: &NewKey,
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let given = new.given()?;
    let made = new_secret(&new.new.0, given.as_ref(), area(store)?.id(), store)?;
    let kind = new.new.0.kind();
    let (mut number, mut replaced) = (slot, None);
    change(store, &mut |keys, random| {
        let old = slot_of(keys, slot)?;
        number = with_new(keys, (kind, old.name()), &made, random)?;
        replaced = Some(old);
        Ok(())
    })?;
    // The old secret opens the store until somebody has the new one.
    tell_new(store, number, &made, answer).map_err(|failure| {
        failure.and(format!(
            "slot {slot} is still there, and slot {number} is new: remove one of them"
        ))
    })?;
    change(store, &mut |keys, _| match slot_of(keys, slot).ok() == replaced {
        true => keys.remove_slot(slot),
        // Somebody else removed it meanwhile, and perhaps uses its number.
        false => Ok(()),
    })
    .map_err(|failure| {
        failure.and(format!("slot {slot} still opens the store: `onefold key remove` removes it"))
    })
}

fn slot_of(keys: &Keys, slot: usize) -> Result<Slot> {
    let found = keys.slots().find(|(number, _)| *number == slot).map(|(_, found)| found.clone());
    found.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no slot {slot}")))
}

fn tell_new(
    store: &Path,
    slot: usize,
    made: &New,
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let report = json!({
        "store": shown(store), "slot": slot,
        "recovery_key": made.words.as_ref().map(|words| words.as_str()),
    });
    let words = made.words.as_ref().map_or_else(String::new, |words| {
        format!("\nrecovery key, which is shown this once:\n{}", words.as_str())
    });
    answer.tell(&report, format_args!("{} opens by slot {slot}{words}", store.display()))?;
    if made.words.is_some() { output::shown_once() } else { Ok(()) }
}

fn rotate(store: &Path, drop_others: bool, answer: &Answer) -> std::result::Result<(), Failure> {
    let (whence, secret) = the_asker()?.secret_of(&area(store)?, store)?;
    let mut secret = Some(secret);
    let (mut slot, mut others, mut kinds) = (0, 0, Vec::new());
    // What the area says without its key counts for nothing: slots are counted once it is proven.
    change(store, &mut |keys, random| {
        others = keys.slots().count().saturating_sub(1);
        if others > 0 && !drop_others {
            let what = counted(others as u64, "other slot");
            return Err(Error::new(
                Kind::InvalidInput,
                format!(
                    "there is {what}, which would be dropped: --drop-others says so, and `onefold key add` makes \
                     them again"
                ),
            ));
        }
        let memory = machine_memory();
        let secret = secret.take().ok_or_else(|| Error::new(Kind::Denied, "no key"))?;
        slot = keys.slot_of(&secret, memory)?.ok_or_else(|| {
            Error::new(Kind::Denied, format!("this {} opens no slot", whence.kind().name()))
        })?;
        let dropped = keys.slots().filter(|(number, _)| *number != slot);
        kinds = dropped.map(|(_, slot)| slot.kind().name()).collect();
        keys.rotate(&[(slot, secret)], memory, random)
    })?;
    let words = format_args!(
        "{} opens by slot {slot} and a new root key; dropped {}",
        store.display(),
        dropped(store, &kinds)
    );
    answer.tell(&json!({ "store": shown(store), "slot": slot, "dropped": others }), words)
}

/// Gives a domain another data key.
fn rotate_data(
    store: &Path,
    domain: Option<&str>,
    answer: &Answer,
) -> std::result::Result<(), Failure> {
    let directory = archive_at(store, "its data key can't be changed yet")?;
    let in_store = |error: Error| error.context(store.display());
    let mut archive: Arc<Archive> = directory.open(Settings::default())?;
    let number = |archive: &Archive| match domain {
        Some(name) => domain_called(archive, name),
        None => Ok(0),
    };
    // A name that is not there changes nothing.
    number(&archive).map_err(in_store)?;
    if allow_data_keys(&archive).map_err(in_store)? {
        drop(archive);
        archive = directory.open(Settings::default())?;
    }
    let number = number(&archive).map_err(in_store)?;
    let generation = rotate_data_key(&archive, number).map_err(in_store)?;
    let which =
        domain.map_or_else(String::new, |name| format!("domain '{}' of ", name.escape_debug()));
    let words = format_args!(
        "{which}{} has a new data key; `onefold gc {} --reseal` writes what is under the older one again. Copies of \
         `keys` from before do not have it: make new ones",
        store.display(),
        store.display()
    );
    let report = json!({
        "store": shown(store), "domain": number, "name": domain, "generation": generation,
    });
    answer.tell(&report, words)
}

/// The slots that were dropped, by their kinds. A recovery key is on paper in another house, where nobody
/// sees that it opens nothing any more.
fn dropped(store: &Path, kinds: &[&str]) -> String {
    let count = counted(kinds.len() as u64, "other slot");
    let which = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    let paper = match kinds.contains(&SlotKind::Recovery.name()) {
        true => format!(
            "; the printed recovery key opens it no more; `onefold key add {} --new recovery` prints a \
             new one",
            store.display()
        ),
        false => String::new(),
    };
    format!("{count}{which}{paper}")
}

fn erase(store: &Path, confirm: Option<&str>, answer: &Answer) -> std::result::Result<(), Failure> {
    let area = area(store)?;
    let digits = hex_digits(&area.id()[..4]);
    if confirm != Some(&digits) {
        return Err(Failure::new(format!(
            "nobody could read {} any more: if you mean it, say --confirm {digits}",
            store.display()
        )));
    }
    // By its key: who lacks it may not destroy what others need.
    let erased = match at(store)? {
        Store::Archive(directory) => {
            erase_keys(&*directory.open(Settings::default())?, &SystemRandom)
        }
        Store::Block(file) => {
            let keeper = file.claim()?;
            onefold_block::erase_keys(&*keeper.disk(), &settings_of_block(&file), &SystemRandom)
        }
        Store::Cluster(url) => erase_of_cluster(&url),
    };
    erased.map_err(|error| error.context(store.display()))?;
    let words = format_args!("the keys of {} are destroyed", store.display());
    answer.tell(&json!({ "store": shown(store), "erased": true }), words)
}

/// Destroys the keys of a cluster store, at which nobody may be at work: servers and workers have the
/// keys of its data in memory, and would go on writing what nobody can read.
fn erase_of_cluster(url: &Url) -> Result<()> {
    let backing = Backing::open(url, TIMEOUT)?;
    let session = backing.session(key_settings(url))?;
    let before = session.published()?;
    std::thread::sleep(LOOK);
    let sessions = session.published()?.since(&before);
    if sessions.servers + sessions.workers > 0 {
        let why = format!(
            "{} and {} are at work on it: end them first",
            counted(sessions.servers, "server"),
            counted(sessions.workers, "worker")
        );
        return Err(Error::new(Kind::Busy, why));
    }
    drop(session);
    onefold_cluster::erase_keys(&*backing.objects()?, &key_settings(url))
}

#[cfg(test)]
mod tests {
    use onefold::parts::keys::Whence;

    use super::*;

    #[test]
    fn what_a_rotation_drops_is_named() {
        let store = Path::new("backups");
        assert_eq!(dropped(store, &[]), "0 other slots");
        assert_eq!(dropped(store, &["file"]), "1 other slot: file");
        let said = dropped(store, &["recovery", "passphrase"]);
        assert!(said.starts_with("2 other slots: recovery, passphrase; the printed"), "{said}");
        assert!(said.contains("`onefold key add backups --new recovery`"), "{said}");
    }

    #[test]
    fn each_kind_of_key_has_its_kind_of_slot() {
        for (whence, name) in [
            (Whence::Passphrase, "passphrase"),
            (Whence::Recovery, "recovery"),
            (Whence::File("key".into()), "file"),
            (Whence::Command("/bin/kms".into()), "command"),
            (Whence::Credential, "credential"),
        ] {
            assert_eq!(whence.kind().name(), name);
        }
    }
}
