//! `onefold create cluster`.

use std::{fs, path::Path};

use clap::{Args, ValueEnum};
use onefold_backend::{
    EmbeddedStore, RadosObjects,
    rados::{Connection, TIMEOUT},
    random::random_bytes,
    secrets::SystemRandom,
};
use onefold_cluster::{Cut, Format, create, create_sealed, is_made};
use onefold_core::object::{ObjectStore, PoolKind};
use serde_json::json;

use super::encryption::{NOT_ENCRYPTED, NewKeys, new_keys};
use onefold::parts::{
    address::is_away,
    cluster_store::{Url, warn_of_untried},
    operator,
};
use onefold_console::{failure::Failure, output::Answer, size::Size};

/// Creates an empty store of the cluster engine in a new folder, or in two pools of a Ceph cluster
///
/// One process at a time can use a folder; on Ceph any number of servers and workers use a store
/// together. A write is acknowledged when it is durable. Workers deduplicate objects that nobody
/// wrote to for a while.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold create cluster pool\n  \
                  onefold create cluster pool --chunk 64K --cut static\n  \
                  onefold create cluster pool --key /root/pool.key\n  \
                  onefold create cluster rados: --metadata-pool meta --chunk-pool chunks")]
pub(super) struct Options {
    /// A folder that is empty, or does not exist yet; or rados:[CONF]
    store: Url,

    /// The replicated pool for metadata and for what is not deduplicated yet; it holds nothing
    /// else. Only with rados:
    #[arg(long, value_name = "POOL")]
    metadata_pool: Option<String>,

    /// The pool for chunks, replicated or erasure-coded. Only with rados:
    #[arg(long, value_name = "POOL")]
    chunk_pool: Option<String>,

    /// Accepts pools that take writes with a single copy left (min_size 1)
    #[arg(long)]
    force: bool,

    /// Size of a chunk of a volume, and the average of a chunk that is cut by its content: 16K, 32K
    /// or 64K
    #[arg(long, default_value = "32K")]
    chunk: Size,

    /// How objects that are put are cut into chunks
    #[arg(long, value_enum, default_value = "content")]
    cut: CutName,

    /// How volumes are cut into chunks; by content it is at multiples of 4 KiB, and needs chunks of
    /// 32K or 64K
    #[arg(long, value_enum, default_value = "static")]
    volume_cut: CutName,

    /// Stores chunks as they are, also where compression would save space
    #[arg(long)]
    no_compression: bool,

    /// Encrypts nothing, and does not ask for a passphrase
    #[arg(long)]
    no_encryption: bool,

    #[command(flatten)]
    answer: Answer,
}

/// How data is cut into chunks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::verbs) enum CutName {
    /// At places that the content decides: what moved is found again
    Content,
    /// All of the same size
    Static,
}

impl From<CutName> for Cut {
    fn from(name: CutName) -> Cut {
        match name {
            CutName::Content => Cut::Content,
            CutName::Static => Cut::Static,
        }
    }
}

/// Creates it, and says what was made.
pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let chunks = chunk_format(options.chunk, options.cut, !options.no_compression)?;
    let format = Format { volume_cut: options.volume_cut.into(), ..chunks };
    format.check()?;
    let shown = options.store.to_string();
    let of_store = (&format.id, Path::new(&shown));
    let mut keys = new_keys(options.no_encryption, None, of_store)?;
    make(options, &format, keys.as_mut())?;
    let told = keys.as_ref().map_or_else(|| NOT_ENCRYPTED.to_owned(), NewKeys::told);
    options.answer.tell(
        &json!({
            "store": options.store.to_string(), "encrypted": keys.is_some(),
            "recovery_key": keys.as_ref().map(|keys| keys.recovery.as_str()),
        }),
        format_args!("created {}\n{told}", options.store),
    )?;
    NewKeys::arrived(keys.as_ref())
}

/// Writes the catalogue of a new store, and its keys if it is encrypted.
fn fill(
    store: &dyn ObjectStore,
    format: &Format,
    keys: Option<&mut NewKeys>,
) -> onefold_core::Result<()> {
    match keys {
        Some(new) => create_sealed(store, format, &mut new.keys, &SystemRandom),
        None => create(store, format),
    }
}

/// A format with these chunks, and with an id and a secret of its own.
pub(in crate::verbs) fn chunk_format(
    chunk: Size,
    cut: CutName,
    compress: bool,
) -> Result<Format, Failure> {
    let sizes = [16 << 10, 32 << 10, 64 << 10];
    let Some(chunk_bytes) = u32::try_from(chunk.0).ok().filter(|bytes| sizes.contains(bytes))
    else {
        return Err(Failure::usage("--chunk is 16K, 32K or 64K"));
    };
    Ok(Format {
        chunk_bytes,
        cut: cut.into(),
        compress,
        ..Format::new(random_bytes()?, random_bytes()?, PoolKind::Replicated)
    })
}

/// Makes it in a folder. A failure leaves none of the folders that this made.
fn in_folder(
    folder: &Path,
    format: &Format,
    mut keys: Option<&mut NewKeys>,
) -> Result<(), Failure> {
    let is_absent = |path: &&Path| !path.as_os_str().is_empty() && path.symlink_metadata().is_err();
    let new: Vec<&Path> = folder.ancestors().take_while(is_absent).collect();
    let mut filled = |store: &EmbeddedStore| {
        EmbeddedStore::exposed(folder).iter().for_each(|sentence| operator::warn(sentence));
        fill(&store.session(), format, keys.take())
    };
    let (kind, word) = (PoolKind::Replicated, operator::word());
    EmbeddedStore::create_filled(folder, kind, word, &mut filled)
        // Only empty ones go.
        .inspect_err(|_| new.iter().for_each(|path| drop(fs::remove_dir(path))))?;
    Ok(())
}

fn make(options: &Options, format: &Format, keys: Option<&mut NewKeys>) -> Result<(), Failure> {
    match (&options.store, options.metadata_pool.as_deref(), options.chunk_pool.as_deref()) {
        (Url::Folder(folder), None, None) if is_away(folder) => {
            return Err(Failure::usage(
                "a store of the cluster engine is in a folder of this host, or on Ceph: only archives have \
                 addresses of ssh and of buckets",
            ));
        }
        (Url::Folder(folder), None, None) => in_folder(folder, format, keys)?,
        (Url::Folder(_), ..) => {
            return Err(Failure::usage("a folder has no pools; they are for rados:"));
        }
        (Url::Rados(_, location), Some(metadata), Some(chunks)) if metadata != chunks => {
            let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
            warn_of_untried(&connection);
            let (metadata, chunks) = (connection.pool(metadata)?, connection.pool(chunks)?);
            connection.check_pools(&[&metadata, &chunks], options.force)?;
            let store = RadosObjects::new(connection.clone(), &metadata, &chunks)?;
            if is_made(&store)? {
                return Err(Failure::new("there is a store already"));
            }
            // Tags without a store are as if nothing had been done; a store without tags is not
            // found.
            connection.tag(&metadata, &chunks)?;
            fill(&store, &Format { chunks: chunks.kind, ..format.clone() }, keys)?;
        }
        (Url::Rados(..), ..) => {
            return Err(Failure::usage(
                "rados: needs --metadata-pool and --chunk-pool, two different ones",
            ));
        }
    }
    Ok(())
}
