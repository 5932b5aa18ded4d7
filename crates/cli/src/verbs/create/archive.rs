//! `onefold create archive`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::{Args, ValueEnum};
use onefold_archive::{
    Archive, Chunking, Compression, Format, Nodes, READER_BYTES, Spread, create_sealed,
};
use onefold_backend::{Directory, random::random_bytes, secrets::SystemRandom};
use onefold_core::{Algorithm, Error, Files, Kind, Result};
use serde_json::json;

use super::{
    encryption::{NOT_ENCRYPTED, NewKeys, new_keys},
    placement::{Placed, code},
};
use crate::verbs::archive_at;
use onefold::parts::{
    address::{is_away, is_bucket},
    archive_dir::{ArchiveDir, make_directory, make_node, name_archive},
    foreign, index_move, keys, sealed_before,
};
use onefold_console::{failure::Failure, output::Answer, size::counted};

/// Creates an empty archive in a new or empty directory
///
/// Any number of readers, one `put` and one `gc` work on an archive at the same time. A kill at any
/// point loses nothing that was acknowledged. With --nodes the archive cuts containers into shards
/// with parity and copies log and tables, so that any N-K of the nodes may be lost. The archive's
/// own directory only says where the nodes are.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold create archive backups\n  \
                  onefold create archive ssh://vault/srv/backups\n  \
                  onefold create archive vault --roles --key /root/vault.key\n  \
                  onefold create archive ssh://vault/srv/backups --pad --key /root/vault.key\n  \
                  onefold create archive images --chunking static:4K --compress lz4\n  \
                  onefold create archive big --fast /ssd/big\n  \
                  onefold create archive ssh://second/srv/backups --like backups\n  \
                  onefold create archive safe --nodes /mnt/a,/mnt/b,/mnt/c --code 3,2\n  \
                  onefold create archive far --nodes n0,n1,n2,n3,n4,n5 --code 6,4 --placement rad \
                  --class-codes 6,4:5,3:4,2\n  \
                  onefold create archive far --nodes n0,n1,n2,n3,n4,n5 --code 6,4 --placement rad \
                  --delay 0 --batch 256M")]
pub(super) struct Options {
    /// A directory that is empty, or does not exist yet; on another host: ssh://user@host/directory; in object
    /// storage: s3://bucket/prefix
    store: PathBuf,

    /// How streams are cut, and the mean size of a chunk: fastcdc:8K, rabin:8K or static:4K; any
    /// power of two from 1K to 256K
    #[arg(long, default_value = "fastcdc:8K", value_name = "KIND:SIZE")]
    chunking: Chunking,

    /// How chunks are compressed: zstd, lz4 or none
    #[arg(long, default_value = "zstd", value_name = "KIND")]
    compress: Compression,

    /// How chunks are fingerprinted. SHA-256 is slower, for where rules ask for it. The choice is
    /// for the archive's life
    #[arg(long, value_enum, default_value = "blake3", value_name = "NAME")]
    fingerprint: FingerprintName,

    /// Gives the archive the secret of this one, and its ways to cut, compress and fingerprint, so that equal
    /// chunks have equal fingerprints in both: `onefold copy` then reads of it only what is missing. Not for
    /// encrypted archives, which have keys of their own
    #[arg(long, value_name = "ARCHIVE", conflicts_with_all = ["chunking", "compress", "fingerprint"])]
    like: Option<PathBuf>,

    /// Nodes: new or empty directories, each on a disk of its own, so that a lost disk costs one
    /// node; on another host: ssh://user@host/directory
    #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "DIRS", requires = "code")]
    nodes: Vec<PathBuf>,

    /// Shards of a container with and without parity: N-K nodes may be lost
    #[arg(long, value_name = "N,K", value_parser = code, requires = "nodes")]
    code: Option<(usize, usize)>,

    /// A directory on a faster disk for the chunk index: one that is empty, or does not exist yet. If it
    /// is lost, the index is made anew from the data. `onefold index` moves it later
    #[arg(long, value_name = "DIR", conflicts_with = "nodes")]
    fast: Option<PathBuf>,

    /// Does not ask for a passphrase on a terminal: everybody who can read the archive's files can read
    /// its data. --key encrypts it
    #[arg(long)]
    no_encryption: bool,

    /// Makes an encrypted archive whose keys have roles: `onefold key grant` gives a machine a key by which
    /// it adds snapshots to its own sets, and reads, changes and removes nothing. Such an archive holds
    /// snapshots of `onefold backup` alone, and has one domain
    #[arg(long, conflicts_with_all = ["nodes", "no_encryption"])]
    roles: bool,

    /// Makes an encrypted archive whose containers take few lengths, so that whoever holds its files learns less
    /// from how well they compress: 2 to 6 % larger. The choice is for the archive's life
    #[arg(long, conflicts_with_all = ["nodes", "no_encryption"])]
    pad: bool,

    #[command(flatten)]
    placement: Placed,

    #[command(flatten)]
    answer: Answer,
}

/// An algorithm whose fingerprints nobody can choose.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FingerprintName {
    /// BLAKE3, keyed with a secret of the archive
    Blake3,
    /// SHA-256, keyed with a secret of the archive
    Sha256,
}

/// Creates it, and says what was made.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let Options { store, nodes, code, .. } = options;
    let format = Format {
        chunking: options.chunking,
        compression: options.compress,
        fingerprint: match options.fingerprint {
            FingerprintName::Blake3 => Algorithm::Blake3,
            FingerprintName::Sha256 => Algorithm::HmacSha256,
        },
        late: options.placement.late(nodes.len(), *code)?,
        ..Format::new(random_bytes()?, random_bytes()?, random_bytes()?).with_features()
    };
    // A bucket does not fill up.
    let reserve_bytes = if is_bucket(store) { 0 } else { format.reserve_bytes };
    let format = Format { pads: options.pad, reserve_bytes, ..format };
    let format = if options.roles { format.with_roles() } else { format };
    let has_key = keys::asker().is_some_and(|asker| asker.named().is_some());
    if options.like.is_some() && (has_key || options.roles || options.pad) {
        return Err(Failure::usage(ALIKE_IS_PLAIN));
    }
    let format = match &options.like {
        Some(like) => alike(format, like)?,
        None => format,
    };
    let chunking = format.chunking;
    if let Some(error) = foreign(store).filter(|_| !store.exists()) {
        return Err(error.into());
    }
    let elsewhere = !nodes.is_empty() || options.fast.is_some();
    if is_away(store) && elsewhere {
        let why = "an archive on another host or in a bucket lies in one place there, without --nodes and --fast";
        return Err(Failure::usage(why));
    }
    let several = "an archive on several nodes can't be encrypted yet";
    let plain = (!nodes.is_empty()).then_some(several);
    let plain = plain.or(options.like.as_ref().map(|_| ALIKE_IS_PLAIN));
    let mut keys = new_keys(options.no_encryption, plain, (&format.id, store))?;
    if options.roles && keys.is_none() {
        return Err(Failure::usage(
            "keys have roles in an encrypted archive: name a key with --key",
        ));
    }
    if options.pad && keys.is_none() {
        return Err(Failure::usage(
            "only containers of an encrypted archive are padded: name a key with --key",
        ));
    }
    let directories = nodes.iter().chain(&options.fast).chain([store]);
    let new: Vec<&PathBuf> = directories.filter(|path| !is_away(path) && !path.exists()).collect();
    let made = make(options, &format, &mut keys).inspect_err(|_| remove(&new))?;
    sealed_before::made(store, keys.as_ref().map(|_| &format.id));
    let shown = store.display();
    let nodes: Vec<String> = nodes.iter().map(|node| node.display().to_string()).collect();
    let report = json!({
        "store": shown.to_string(), "chunking": chunking.to_string(),
        "compression": format.compression.to_string(), "nodes": nodes, "code": code,
        "fingerprint": format.fingerprint.to_string(),
        "index_directory": options.fast.as_ref().map(|fast| fast.display().to_string()),
        "encrypted": keys.is_some(), "roles": options.roles, "pads": options.pad,
        "recovery_key": keys.as_ref().map(|new| new.recovery.as_str()),
    });
    let encryption = keys.as_ref().map_or_else(|| NOT_ENCRYPTED.to_owned(), NewKeys::told);
    let (compression, fingerprint) = (format.compression, format.fingerprint);
    let words = format_args!(
        "created {shown}: chunks by {chunking}, compressed by {compression}, fingerprints by \
         {fingerprint}{made}\n{encryption}"
    );
    options.answer.tell(&report, words)?;
    NewKeys::arrived(keys.as_ref())
}

/// Why an archive like another one is not encrypted.
const ALIKE_IS_PLAIN: &str = "an encrypted archive has keys of its own, so its fingerprints can't be those of another \
                              archive: leave out --like, or --key";

/// The same with the secret of another archive, and with how that cuts, compresses and fingerprints.
fn alike(format: Format, like: &Path) -> Result<Format, Failure> {
    let other = archive_at(like, "no archive is made like it")?.open_to_read(READER_BYTES)?;
    let label = other.label();
    if label.sealed.is_some() {
        return Err(Failure::new(format!(
            "{} is encrypted: its fingerprints follow from its keys, which no other archive gets; make the \
             new one without --like",
            like.display()
        )));
    }
    Ok(Format {
        secret: label.secret,
        chunking: label.chunking,
        compression: label.compression,
        fingerprint: label.fingerprint,
        ..format
    })
}

/// Makes it; says where, if that is not one directory.
fn make(options: &Options, format: &Format, keys: &mut Option<NewKeys>) -> Result<String, Failure> {
    let Options { store, nodes, code, .. } = options;
    Ok(match code {
        Some(code) => create_on(store, nodes, *code, format)?,
        None => {
            let fast = options.fast.as_deref();
            fast.map_or(Ok(()), |fast| index_move::prepare(fast, store))?;
            let (files, _making) = make_directory(store)?;
            let created = match keys {
                Some(new) => {
                    let random = Arc::new(SystemRandom);
                    create_sealed(&*files, format, &mut new.keys, random)
                }
                None => Archive::create(&*files, format),
            };
            created.map_err(|error| {
                clear(&[&*files], &error);
                let error = match error.kind() {
                    Kind::NoSpace => Error::new(Kind::NoSpace, format!("{error}; {NEEDS}")),
                    _ => error,
                };
                name_archive(store, error)
            })?;
            match fast {
                Some(fast) => {
                    index_move::move_index(&ArchiveDir::look(store)?, Some(fast), &mut |_, _| {})?;
                    format!(", chunk index in {}", fast.display())
                }
                None => String::new(),
            }
        }
    })
}

/// Removes directories that a creation made and that are empty, since it failed.
fn remove(new: &[&PathBuf]) {
    // Where something is left, it stays for its user to look at.
    new.iter().for_each(|path| drop(std::fs::remove_dir(path)));
}

/// What a new archive takes of a disk.
const NEEDS: &str =
    "a new archive takes 12 MiB, and 16 MiB more for its log with what is stored first";

/// Removes what is in these directories when a full disk ended a creation: they were empty, and a part
/// of an archive is none.
fn clear(directories: &[&dyn Files], error: &Error) {
    if error.kind() != Kind::NoSpace {
        return;
    }
    for files in directories {
        let made = files.names().unwrap_or_default();
        made.iter().for_each(|name| drop(files.remove(name)));
    }
}

/// Makes an archive on several nodes; says how.
fn create_on(
    archive: &Path,
    nodes: &[PathBuf],
    (n, k): (usize, usize),
    format: &Format,
) -> Result<String, Failure> {
    let ids = nodes.iter().map(|_| random_bytes()).collect::<Result<_>>()?;
    let spread = Spread { n, k, ids, listed: true };
    spread.check().map_err(|error| name_archive(archive, error))?;
    let directories = nodes.iter().map(|node| make_node(node)).collect::<Result<Vec<_>>>()?;
    // Its own directory comes first: what fails below it leaves nothing that looks like an archive.
    ArchiveDir::create(archive, nodes, (&format.id, &format.secret))?;
    Nodes::create(directories.clone(), &spread, format.id, format.secret)
        .and_then(|files| Archive::create_on_nodes(&files, format))
        .map_err(|error| {
            let of_nodes: Vec<&dyn Files> = directories.iter().map(|files| &**files).collect();
            clear(&of_nodes, &error);
            if let Ok(own) = Directory::open(archive, true) {
                clear(&[&own], &error);
            }
            name_archive(archive, error)
        })?;
    Ok(format!(", on {} of which {} may be lost", counted(nodes.len() as u64, "node"), n - k))
}
