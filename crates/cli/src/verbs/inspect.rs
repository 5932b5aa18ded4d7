//! `onefold inspect`: what any block of a store says.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};
use onefold_block::check::{What, inspect_with};
use onefold_core::{BLOCK_BYTES, Error, Kind, Lba, Pba, ZoneId};

use onefold::parts::{keys::of_block_store, store_file::StoreFile};
use onefold_console::{failure::Failure, output, size::Size};

/// Shows parts of a block store that is not served: superblocks, zones, blocks, volumes, the way to
/// data
///
/// The verb writes nothing, shows damage where it finds some, and never shows the store's secret.
#[derive(Debug, Args)]
#[command(subcommand_required = false)]
#[command(after_help = "Examples:\n  \
                  onefold inspect disk.onefold\n  \
                  onefold inspect disk.onefold zone-list\n  \
                  onefold inspect disk.onefold zone 12\n  \
                  onefold inspect disk.onefold block 12345\n  \
                  onefold inspect disk.onefold volume vm1\n  \
                  onefold inspect disk.onefold address vm1 1.5G")]
pub(crate) struct Options {
    /// The store
    store: PathBuf,

    #[command(subcommand)]
    what: Option<Part>,

    /// Prints JSON: the lines of each part
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Part {
    /// Both superblocks, or one of them
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold superblock 1")]
    Superblock {
        /// 0 or 1
        #[arg(value_parser = clap::value_parser!(u32).range(0..=1))]
        place: Option<u32>,
    },
    /// The zone list: both copies of every page
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold zone-list")]
    ZoneList,
    /// A zone: its bitmap, and what lies in it
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold zone 12")]
    Zone {
        /// Number of the zone
        zone: u64,
    },
    /// A block, whatever it is
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold block 12345")]
    Block {
        /// Number of the block of 4096 bytes in the store
        block: u64,
    },
    /// Entries of a physical block in the tables
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold physical 12345")]
    Physical {
        /// Number of the block of 4096 bytes in the store
        block: u64,
    },
    /// A volume
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold volume vm1")]
    Volume {
        /// Its name
        name: String,
    },
    /// The way from a place in a volume to its data
    #[command(after_help = "Examples:\n  onefold inspect disk.onefold address vm1 1.5G")]
    Address {
        /// The volume
        name: String,
        /// The place in bytes, like 1.5G
        offset: Offset,
    },
}

/// A place in a volume.
#[derive(Clone, Copy, Debug)]
struct Offset(u64);

impl FromStr for Offset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Offset, Error> {
        let Size(bytes) = text.parse().map_err(|_| {
            Error::new(Kind::InvalidInput, "a place is a number of bytes, like 4096 or 1.5G")
        })?;
        Ok(Offset(bytes))
    }
}

/// Prints what was asked for.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    // Superblocks can be shown of what is no good store any more; the disk says what is wrong then.
    let disk = StoreFile::open_any(&options.store)?;
    let wanted = match &options.what {
        None | Some(Part::Superblock { place: None }) => {
            vec![What::Superblock(0), What::Superblock(1)]
        }
        Some(Part::Superblock { place: Some(place) }) => vec![What::Superblock(*place)],
        Some(Part::ZoneList) => vec![What::ZoneList],
        Some(Part::Zone { zone }) => vec![What::Zone(ZoneId(*zone))],
        Some(Part::Block { block }) => vec![What::Block(Pba(*block))],
        Some(Part::Physical { block }) => vec![What::Physical(Pba(*block))],
        Some(Part::Volume { name }) => vec![What::Volume(name.clone())],
        Some(Part::Address { name, offset }) => {
            vec![What::Address(name.clone(), Lba(offset.0 / BLOCK_BYTES as u64))]
        }
    };
    let mut parts = Vec::new();
    for what in wanted {
        let text = inspect_with(&*disk, &of_block_store(&options.store), &what)
            .map_err(|e| e.context(options.store.display()))?;
        if options.json {
            parts.push(text.lines().map(str::to_owned).collect::<Vec<_>>());
        } else {
            output::line(text.trim_end());
        }
    }
    if options.json { output::json(&parts) } else { Ok(()) }
}
