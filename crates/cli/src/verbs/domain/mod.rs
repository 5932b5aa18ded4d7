//! `onefold domain`: what is deduplicated together in an encrypted archive or block store, each with a key of
//! its own.

pub(in crate::verbs) mod block;
mod called;
mod limits;

use onefold_core::hex_digits;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, Subcommand};
use onefold_archive::{
    Archive, DomainListed, READER_BYTES, Settings, Tables, allow_domains, create_domain,
    domain_called, domains, erase_domain,
};
use serde_json::{Value, json};

use self::{
    called::{Called, shown},
    limits::Limits,
};
use super::{
    Found, refused,
    volume::{done, said},
};
use onefold::parts::{archive_dir::ArchiveDir, store_file::StoreFile};
use onefold_console::{
    failure::Failure,
    output::Answer,
    progress::Progress,
    size::{Size, counted},
};

/// Why stores of other engines refuse.
const NOT_YET: &str = "it has one domain, and can't have others yet";

/// Shows and changes the domains of an encrypted archive or block store
///
/// A domain is what is deduplicated together: of two domains nobody finds out by size or time whether one
/// holds what the other one does. Each has a key of its own, so that one of them can be erased: nobody
/// reads what was in it any more, and its space comes back by gc, in a block store by deleting its volumes.
/// Each store begins with a domain that has no name, to which everything belongs that was stored without
/// --domain. Encryption is experimental.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:\n  \
                  onefold domain create backups customer-7\n  \
                  onefold domain list backups\n  \
                  onefold domain erase backups customer-7 --confirm 1f2e3d4c-1\n  \
                  onefold domain set disk.onefold customer-7 --quota 500G\n\n\
                  A snapshot in a domain:\n\n    \
                  onefold backup backups /srv/customer-7 --set customer-7 --domain customer-7\n\n\
                  A volume in a domain:\n\n    \
                  onefold volume create disk.onefold vm7 --size 1T --domain customer-7")]
pub(crate) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes a domain
    ///
    /// A store that has only the domain that it began with gets a feature, which programs from before
    /// domains refuse; nobody may work on it meanwhile. Nobody may serve a block store meanwhile in any
    /// case.
    #[command(after_help = "Examples:\n  \
                      onefold domain create backups customer-7\n  \
                      onefold domain create disk.onefold customer-7 --quota 500G --reserve 200G")]
    Create {
        /// The archive or block store
        store: PathBuf,
        /// Its name, of 30 bytes at most; only whoever has a key can read it
        name: String,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        answer: Answer,
    },
    /// Sets how much a domain of a block store may store, and how much is kept for it
    ///
    /// The store may be served meanwhile. What counts are blocks that are stored: each once, whatever
    /// names it in the domain's volumes and snapshots. --quota bounds them, and with them the pages of its
    /// volumes' maps beyond 64 and a 64th of the quota. A write that would pass it gets "no space left",
    /// and so does an overwrite, since what it replaces is freed later; other domains go on. --reserve keeps
    /// space: all others leave alone what is missing from it to what the domain stores. It is refused when
    /// the store has no room for it. Limits that no option names stay as they are.
    #[command(after_help = "Examples:\n  \
                      onefold domain set disk.onefold customer-7 --quota 500G --reserve 200G\n  \
                      onefold domain set disk.onefold customer-7 --reserve none")]
    Set {
        /// The block store
        store: PathBuf,
        /// The domain's name
        name: String,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        answer: Answer,
    },
    /// Shows the domains, those that were erased too
    #[command(after_help = "Examples:\n  onefold domain list backups --json")]
    List {
        /// The archive or block store
        store: PathBuf,
        #[command(flatten)]
        answer: Answer,
    },
    /// Destroys the key of a domain: nobody can read what is in it any more
    ///
    /// All other domains stay as they are. Both copies of the keys are overwritten. Copies of them
    /// elsewhere still open the domain, and so may old blocks of a flash disk or of a file system that
    /// copies on write. Names of its sets and streams stay until `onefold forget` and `onefold rm` remove
    /// them; `onefold gc` frees its space. Its volumes give errors until `onefold volume delete` removes
    /// them. So do volumes and snapshots of a block store, and deleting them frees their space; nobody may
    /// serve a block store meanwhile.
    #[command(after_help = "Examples:\n  \
                      onefold domain erase backups customer-7 --confirm 1f2e3d4c-1")]
    Erase {
        /// The archive or block store
        store: PathBuf,
        /// Its name
        name: String,
        /// The first 8 digits of the store's id and the number of the domain, which this verb tells
        #[arg(long, value_name = "DIGITS")]
        confirm: Option<String>,
        #[command(flatten)]
        answer: Answer,
    },
}

/// Why archives refuse limits.
const NO_LIMITS: &str = "its domains have no limits";

/// Does what was asked for.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    match &options.verb {
        Verb::Create { store, name, limits, answer } => match at(store)? {
            Store::Archive(directory) if limits.are_given() => {
                Err(refused(store, &Found::Archive(directory), NO_LIMITS))
            }
            Store::Archive(directory) => create(store, &directory, name, answer),
            Store::Block(file) => block::create(store, &file, (name, limits), answer),
        },
        Verb::Set { limits, .. } if !limits.are_given() => {
            Err(Failure::usage("nothing to set: give --quota or --reserve"))
        }
        Verb::Set { store, name, limits, answer } => match at(store)? {
            Store::Archive(directory) => Err(refused(store, &Found::Archive(directory), NO_LIMITS)),
            Store::Block(file) => {
                let request = limits.request(name);
                super::volume::block::change(&file, &request)?;
                answer.tell(&done(&request), said(&request))
            }
        },
        Verb::List { store, answer } => match at(store)? {
            Store::Archive(directory) => list(store, &directory, answer),
            Store::Block(file) => block::list(store, &file, answer),
        },
        Verb::Erase { store, name, confirm, answer } => {
            let which = (name.as_str(), confirm.as_deref());
            match at(store)? {
                Store::Archive(directory) => erase(store, &directory, which, answer),
                Store::Block(file) => block::erase(store, &file, which, answer),
            }
        }
    }
}

/// A store that may have domains.
enum Store {
    Archive(ArchiveDir),
    Block(Box<StoreFile>),
}

fn at(store: &Path) -> Result<Store, Failure> {
    match Found::at(store)? {
        Found::Archive(directory) => Ok(Store::Archive(directory)),
        Found::Block(file) => Ok(Store::Block(file)),
        other => Err(refused(store, &other, NOT_YET)),
    }
}

fn opened(directory: &ArchiveDir) -> Result<Arc<Archive>, Failure> {
    Ok(directory.open(Settings::default())?)
}

fn create(
    store: &Path,
    directory: &ArchiveDir,
    name: &str,
    answer: &Answer,
) -> Result<(), Failure> {
    let in_store = |error: onefold_core::Error| error.context(store.display());
    let mut archive = opened(directory)?;
    // A name that does not fit changes nothing.
    if !domains(&archive).map_err(in_store)?.iter().any(|one| one.name.as_deref() == Some(name)) {
        onefold_seal::valid_domain_name(name)?;
    }
    if allow_domains(&archive).map_err(in_store)? {
        drop(archive);
        archive = opened(directory)?;
    }
    let number = create_domain(&archive, name).map_err(in_store)?;
    let words =
        format_args!("domain '{}' of {} has number {number}", name.escape_debug(), store.display());
    let report = json!({ "store": shown(store), "name": name, "number": number });
    answer.tell(&report, words)
}

/// What an archive has in a domain.
#[derive(Clone, Copy, Default)]
struct Holds {
    snapshots: u64,
    streams: u64,
    volumes: u64,
    bytes: u64,
}

/// What an archive has in each of its domains, forgotten snapshots too.
fn holds(tables: &Tables) -> onefold_core::Result<BTreeMap<u32, Holds>> {
    let mut all: BTreeMap<u32, Holds> = BTreeMap::new();
    for snapshot in tables.snapshots.values() {
        all.entry(snapshot.domain).or_default().snapshots += 1;
    }
    for stream in tables.streams.values() {
        all.entry(stream.domain).or_default().streams += 1;
    }
    for volume in tables.volumes.all().values() {
        all.entry(volume.domain).or_default().volumes += 1;
    }
    let (bar, most) =
        (Progress::of("looking through the archive", "containers"), tables.containers.len());
    for (done, container) in tables.containers.iter().enumerate() {
        bar.set(done as u64, most as u64);
        let stored = container?.stored;
        all.entry(stored.domain).or_default().bytes += tables.taken(&stored.place);
    }
    Ok(all)
}

fn row(domain: &DomainListed, holds: Holds) -> Value {
    json!({
        "number": domain.number, "name": domain.name, "erased": domain.name.is_none(),
        "snapshots": holds.snapshots, "streams": holds.streams, "volumes": holds.volumes,
        "bytes": holds.bytes,
    })
}

fn words_of(domain: &DomainListed, holds: Holds) -> String {
    let name = Called(domain.name.as_deref());
    format!(
        "{:>6}  {name:<30}  {}, {}, {}, {}",
        domain.number,
        counted(holds.snapshots, "snapshot"),
        counted(holds.streams, "stream"),
        counted(holds.volumes, "volume"),
        Size(holds.bytes)
    )
}

fn list(store: &Path, directory: &ArchiveDir, answer: &Answer) -> Result<(), Failure> {
    let archive = directory.open_to_read(READER_BYTES)?;
    let all = domains(&archive).map_err(|error| error.context(store.display()))?;
    let holds = holds(&archive.tables())?;
    let of = |domain: &DomainListed| holds.get(&domain.number).copied().unwrap_or_default();
    let rows: Vec<Value> = all.iter().map(|domain| row(domain, of(domain))).collect();
    let words: Vec<String> = all.iter().map(|domain| words_of(domain, of(domain))).collect();
    let report = json!({ "store": shown(store), "domains": rows });
    answer.tell(&report, format_args!("number  name\n{}", words.join("\n")))
}

fn erase(
    store: &Path,
    directory: &ArchiveDir,
    (name, confirm): (&str, Option<&str>),
    answer: &Answer,
) -> Result<(), Failure> {
    let archive = opened(directory)?;
    let in_store = |error: onefold_core::Error| error.context(store.display());
    let number = domain_called(&archive, name).map_err(in_store)?;
    let holds = holds(&archive.tables())?.get(&number).copied().unwrap_or_default();
    let digits = hex_digits(&archive.label().id[..4]);
    let digits = format!("{digits}-{number}");
    let held = format!(
        "{}, {} and {}, {}",
        counted(holds.snapshots, "snapshot"),
        counted(holds.streams, "stream"),
        counted(holds.volumes, "volume"),
        Size(holds.bytes)
    );
    if confirm != Some(&digits) {
        return Err(Failure::new(format!(
            "nobody could read what is in domain '{}' of {} any more ({held}): if you mean it, say \
             --confirm {digits}",
            name.escape_debug(),
            store.display()
        )));
    }
    erase_domain(&archive, number).map_err(in_store)?;
    let words = format_args!(
        "domain {number} of {} is erased ({held}); gc frees its space",
        store.display()
    );
    let report = json!({
        "store": shown(store), "name": name, "number": number, "erased": true,
        "snapshots": holds.snapshots, "streams": holds.streams, "volumes": holds.volumes,
        "bytes": holds.bytes,
    });
    answer.tell(&report, words)
}
