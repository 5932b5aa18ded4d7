//! `onefold create block`: an empty store in a new file, or on a device.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::{Args, ValueEnum};
use onefold_backend::{
    Access, FileDisk, Preallocate, device_bytes,
    new_file::Spot,
    random::random_bytes,
    secrets::SystemRandom,
    signals::{Stop, StopSignals},
};
use onefold_block::{
    Engine, Format,
    claim::{clear, found},
    format::{
        geometry::{Geometry, SUPERBLOCKS, ZONE_BLOCKS_MAX},
        superblock::{Fixed, Found, Layout, Leftover, SchemeName, Superblock, choose},
    },
};
use onefold_core::{Algorithm, BLOCK_BYTES, Block, Disk, Error, Kind, Result};
use serde_json::json;

use super::encryption::{NOT_ENCRYPTED, NewKeys, new_keys};
use onefold::parts::{
    keeper::Keeper,
    sealed_before,
    store_file::{StoreFile, holds_something},
};
use onefold_console::{failure::Failure, output::Answer, progress::Progress, size::Size};

/// Bytes of a store that are read for `--like -`.
const LIKE_BYTES: u64 = 1 << 20;

/// Creates an empty store of block volumes in a new file or on a block device
///
/// The store is durable when the command returns. When the command fails, it removes what it made.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold create block disk.onefold --size 100G\n  \
                  onefold create block disk.onefold --size 1T --preallocate none\n  \
                  onefold create block /dev/sdb --force --fingerprint sha256\n  \
                  onefold create block disk.onefold --size 100G --key /root/disk.key\n  \
                  onefold create block copy.onefold --size 100G --like disk.onefold\n  \
                  head -c 1M disk.onefold | ssh host onefold create block /srv/copy.onefold --size 100G \
                  --like -\n  \
                  onefold create block disk.onefold --size 20G --fingerprint md5 --verify bytes \
                  --preallocate full")]
pub(crate) struct Options {
    /// A path where there is no file yet, or a block device
    store: PathBuf,

    /// Size of the store: a number with K, M, G, T or P for powers of 1024. Without it, all of a
    /// device is used
    #[arg(long)]
    size: Option<Size>,

    /// How equal blocks are found; sha1 and md5 are broken and need --verify bytes
    #[arg(long, value_enum, default_value = "blake3")]
    fingerprint: FingerprintName,

    /// When a block counts as a duplicate: its 128-bit fingerprint agrees, or all its bytes
    #[arg(long, value_enum, default_value = "hash")]
    verify: Verify,

    /// Gives the store the secret of this one, so that equal blocks have equal fingerprints in both: for
    /// `onefold send --negotiate`. `-` reads the first MiB of a store from standard input
    #[arg(long, value_name = "STORE", conflicts_with_all = ["fingerprint", "verify"])]
    like: Option<PathBuf>,

    /// How a file gets its space: reserve takes it now, full also writes it once (slow to create,
    /// fastest after), none lets it grow
    #[arg(long, value_enum, default_value = "reserve")]
    preallocate: Space,

    /// How changes become durable; all but the default are for comparison
    #[arg(long, value_enum, default_value = "thin")]
    scheme: Scheme,

    /// Where records go for which compressed blocks have no room
    #[arg(long, value_enum, default_value = "log")]
    leftover: LeftoverName,

    /// How the blocks of a window lie on the disk
    #[arg(long, value_enum, default_value = "run")]
    layout: LayoutName,

    /// Overwrites what is on a device
    #[arg(long)]
    force: bool,

    /// Does not ask for a passphrase on a terminal: everybody who can read the store's file or device can
    /// read its data. --key encrypts it
    #[arg(long)]
    no_encryption: bool,

    #[command(flatten)]
    answer: Answer,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FingerprintName {
    /// BLAKE3, keyed with a secret of the store
    Blake3,
    /// SHA-256, keyed with a secret of the store
    Sha256,
    /// SHA-1, with --verify bytes
    Sha1,
    /// MD5, with --verify bytes
    Md5,
}

impl From<FingerprintName> for Algorithm {
    fn from(name: FingerprintName) -> Algorithm {
        match name {
            FingerprintName::Blake3 => Algorithm::Blake3,
            FingerprintName::Sha256 => Algorithm::HmacSha256,
            FingerprintName::Sha1 => Algorithm::Sha1,
            FingerprintName::Md5 => Algorithm::Md5,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Verify {
    /// Its fingerprint agrees
    Hash,
    /// Its fingerprint and its bytes agree
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Space {
    /// All space is taken from the file system now
    Reserve,
    /// The file grows as it is needed
    None,
    /// All space is taken and written with zeroes once
    Full,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Scheme {
    /// Records hide in compressed data blocks (ThinDedup)
    Thin,
    /// Records are written in place, after the data
    Ordered,
    /// Each flush is a transaction of copy-on-write trees (Dmdedup)
    Cow,
    /// The tables themselves change in place, in an order that is safe (OrderMergeDedup)
    Ordermerge,
}

impl From<Scheme> for SchemeName {
    fn from(name: Scheme) -> SchemeName {
        match name {
            Scheme::Thin => SchemeName::Thin,
            Scheme::Ordered => SchemeName::Ordered,
            Scheme::Cow => SchemeName::Cow,
            Scheme::Ordermerge => SchemeName::OrderMerge,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LeftoverName {
    /// Into one more block of the same write
    Log,
    /// Into tables that are written in place, as in the ThinDedup paper: for comparison
    Table,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutName {
    /// Blocks that hold records and others side by side in one run
    Run,
    /// In zones of their own, as in the ThinDedup paper: for comparison
    Split,
}

impl From<LeftoverName> for Leftover {
    fn from(name: LeftoverName) -> Leftover {
        match name {
            LeftoverName::Log => Leftover::Log,
            LeftoverName::Table => Leftover::Table,
        }
    }
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Layout {
        match name {
            LayoutName::Run => Layout::Run,
            LayoutName::Split => Layout::Split,
        }
    }
}

/// Creates the store and says what was made.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let like = options.like.as_deref().map(like).transpose()?;
    let algorithm = like.as_ref().map_or(options.fingerprint.into(), |like| like.algorithm);
    if like.is_none() && algorithm.needs_bytes() && options.verify == Verify::Hash {
        return Err(Failure::usage(format!(
            "different blocks with equal {algorithm} fingerprints can be made on purpose: \
             {algorithm} needs --verify bytes"
        )));
    }
    let path = &options.store;
    let device = is_device(path);
    let blocks = blocks(options, device)?;
    let id = random_bytes()?;
    if device && !options.force && holds_something(path, blocks)? {
        let shown = path.display();
        return Err(Failure::new(format!(
            "there is something on {shown} already; --force overwrites it, and what is there is \
             lost"
        )));
    }
    let mut keys = new_keys(options.no_encryption, plain(options), (&id, &options.store))?;
    let preallocate = match options.preallocate {
        Space::Reserve => Preallocate::Reserve,
        Space::None => Preallocate::None,
        Space::Full => Preallocate::Full,
    };
    if device {
        vacate(path)?;
    }
    let existed = path.exists();
    // Without its directory nothing will be made.
    let spot = Arc::new(Spot::of(path).ok());
    let abandoned = Abandoned::watch(spot.clone(), existed)?;
    let bar = Progress::new(format!("writing {} once", path.display()));
    let disk = FileDisk::create(path, Some(blocks), preallocate, &mut |done, total| {
        // The file is there and locked: from now on it is ours to remove.
        abandoned.ours.store(!device, Ordering::SeqCst);
        bar.set(done, total);
    })?;
    drop(bar);
    let formatted = format(&disk, options, like, (id, blocks), keys.as_mut());
    if formatted.is_err() && !device {
        // The disk still holds the lock, so nobody else took the file meanwhile.
        spot.iter().for_each(|spot| spot.take_back(existed));
    }
    formatted?;
    abandoned.ours.store(false, Ordering::SeqCst);
    sealed_before::made(path, keys.as_ref().map(|_| &id));
    let bytes = disk.blocks() * BLOCK_BYTES as u64;
    let report = json!({
        "store": path.display().to_string(), "bytes": bytes, "encrypted": keys.is_some(),
        "recovery_key": keys.as_ref().map(|new| new.recovery.as_str()),
    });
    let encryption = keys.as_ref().map_or_else(|| NOT_ENCRYPTED.to_owned(), NewKeys::told);
    let words = format_args!("created store {} of {}\n{encryption}", path.display(), Size(bytes));
    options.answer.tell(&report, words)?;
    NewKeys::arrived(keys.as_ref())
}

/// Why a store of these choices can't be encrypted.
fn plain(options: &Options) -> Option<&'static str> {
    if options.like.is_some() {
        return Some(
            "an encrypted store has keys of its own, so its fingerprints can't be those of another \
             store: leave out --like or --key",
        );
    }
    if matches!(options.scheme, Scheme::Ordered | Scheme::Ordermerge) {
        return Some(
            "the schemes ordered and ordermerge write sectors of 512 bytes, which have no room for a \
             proof: an encrypted store needs another scheme",
        );
    }
    if matches!(options.leftover, LeftoverName::Table) {
        return Some(
            "the leftover table has sectors of 512 bytes, which have no room for a proof: an \
             encrypted store needs --leftover log",
        );
    }
    Algorithm::from(options.fingerprint).needs_bytes().then_some(
        "an encrypted store is proven by its fingerprints, which need a key: blake3 and sha256 have \
         one, sha1 and md5 have none",
    )
}

/// Sees to it that nobody works on the store that is on a device, perhaps of another machine: its
/// claim is taken, whosever it is, and given up.
fn vacate(path: &Path) -> Result<()> {
    let disk = FileDisk::open(path, Access::ReadWrite)?;
    match found(&disk)? {
        Some(claim) => {
            Keeper::take(disk, claim.store).map(drop).map_err(|error| error.context(path.display()))
        }
        None => Ok(()),
    }
}

/// Removes the file when a signal ends the command while a large store is written.
struct Abandoned {
    /// The file is ours, and not a store yet.
    ours: Arc<AtomicBool>,
}

impl Abandoned {
    fn watch(spot: Arc<Option<Spot>>, existed: bool) -> Result<Abandoned> {
        let mut signals = StopSignals::install()?;
        let ours = Arc::new(AtomicBool::new(false));
        let flag = ours.clone();
        let watching = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let signal = signals.wait();
            if flag.load(Ordering::SeqCst) {
                spot.iter().for_each(|spot| spot.take_back(existed));
            }
            std::process::exit(if signal == Stop::Interrupt { 130 } else { 143 });
        });
        watching.map_err(|e| Error::from_io("cannot start a thread for signals", e))?;
        Ok(Abandoned { ours })
    }
}

fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Blocks of the store, checked before anything is made.
fn blocks(options: &Options, device: bool) -> Result<u64, Failure> {
    let shown = options.store.display();
    let bytes = match options.size {
        Some(Size(bytes)) => bytes,
        None if device => device_bytes(&options.store)?,
        None => {
            return Err(Failure::usage(format!(
                "the new file {shown} needs a size, like --size 100G"
            )));
        }
    };
    let blocks = bytes / BLOCK_BYTES as u64;
    let leftover = if matches!(options.scheme, Scheme::Ordered) {
        Leftover::Table
    } else {
        options.leftover.into()
    };
    Geometry::new(blocks, ZONE_BLOCKS_MAX, leftover)
        .map_err(|e| Failure::new(format!("{shown} can't be a store of {}: {e}", Size(bytes))))?;
    Ok(blocks)
}

/// The choices of a store whose fingerprints another one is to have.
fn like(path: &Path) -> Result<Fixed> {
    if path.as_os_str() != "-" {
        let file = StoreFile::look(path)?;
        if file.superblock().state.is_sealed() {
            let why = "it is encrypted, and gives its keys to no other store";
            return Err(Error::new(Kind::InvalidInput, why).context(path.display()));
        }
        return Ok(file.superblock().fixed.clone());
    }
    let mut begins = Vec::new();
    let read = std::io::stdin().lock().take(LIKE_BYTES).read_to_end(&mut begins);
    read.map_err(|e| Error::from_io("standard input can't be read", e))?;
    let found = |place: u32| {
        let at = SUPERBLOCKS[place as usize].0 as usize * BLOCK_BYTES;
        let bytes = begins.get(at..at + BLOCK_BYTES).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(Found::Foreign, |bytes| Superblock::decode(&Block(bytes), place))
    };
    let chosen = choose(found(0), found(1)).map_err(|e| e.context("standard input"))?;
    Ok(chosen.fixed)
}

fn format(
    disk: &FileDisk,
    options: &Options,
    like: Option<Fixed>,
    (id, blocks): ([u8; 16], u64),
    keys: Option<&mut NewKeys>,
) -> Result<()> {
    let secret = match &like {
        Some(like) => like.secret,
        None => random_bytes()?,
    };
    let format = Format {
        algorithm: like.as_ref().map_or(options.fingerprint.into(), |like| like.algorithm),
        verify_bytes: match &like {
            Some(like) => like.verify_bytes,
            None => options.verify == Verify::Bytes,
        },
        grow: options.preallocate == Space::None && !disk.is_device(),
        scheme: options.scheme.into(),
        leftover: options.leftover.into(),
        layout: options.layout.into(),
        ..Format::new(id, secret, blocks)
    };
    if disk.is_device() {
        // A process that works on an older store there stops at its next look.
        clear(disk)?;
    }
    let made = match keys {
        Some(new) => onefold_block::format_sealed(disk, &format, &mut new.keys, &SystemRandom),
        None => Engine::format(disk, &format),
    };
    made.map_err(|e| match e.kind() {
        Kind::InvalidInput => {
            Error::new(Kind::InvalidInput, format!("{}: {e}", options.store.display()))
        }
        _ => e,
    })
}
