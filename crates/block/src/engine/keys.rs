//! The key area of a sealed store: two copies, in blocks 1 to 3 and 9 to 11.
//!
//! A change writes one copy and makes it durable, then the other one; then both superblocks bear its
//! number, so that an older key area that somebody puts back is noticed. What a crash leaves, and which
//! copy counts, is told in `onefold_seal`.

use std::sync::Arc;

use onefold_core::{Block, BlockRef, Class, Disk, Error, Kind, Read, Result, Run};
use onefold_seal::{AREA_BYTES, Care, Judged, Keys, Opener, Random, is_being_erased, judge};

#[cfg(feature = "planted-bugs")]
use super::broken;
use super::freshness::{read_superblock_block, refuse_older, whole_superblocks};
use crate::{
    format::{
        geometry::{KEY_AREAS, SUPERBLOCKS},
        sealing::{Flaws, Sealing, What},
        superblock::{self, Found, State, Superblock},
    },
    rules::Rule,
    settings::{KeySource, Settings},
};

/// Blocks of a copy.
const AREA_BLOCKS: usize = AREA_BYTES / 4096;

/// What is done with a copy of the key area that is not like the one that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: the store is only looked at.
    Reads,
    /// It is written again before anything else happens.
    Writes,
}

/// Writes copies one after the other, and makes each durable before the next.
pub(crate) fn write_copies(disk: &dyn Disk, bytes: &[u8], which: [bool; 2]) -> Result<()> {
    let mut blocks = Block::zeroed_vec(AREA_BLOCKS);
    for (block, bytes) in blocks.iter_mut().zip(bytes.chunks_exact(4096)) {
        block.0.copy_from_slice(bytes);
    }
    let refs: Vec<BlockRef<'_>> =
        blocks.iter().map(|block| BlockRef { block, class: Class::Super }).collect();
    for (at, _) in KEY_AREAS.into_iter().zip(which).filter(|(_, written)| *written) {
        disk.write(&[Run { at, blocks: &refs }])?;
        disk.flush()?;
    }
    Ok(())
}

/// Overwrites both copies: the second one first, since the first one says that they are being erased.
/// Each is durable before the next.
pub(super) fn overwrite(disk: &dyn Disk, random: &dyn Random) -> Result<()> {
    for copy in [1, 0] {
        let mut noise = vec![0; AREA_BYTES];
        random.fill(&mut noise)?;
        write_copies(disk, &noise, [copy == 0, copy == 1])?;
    }
    Ok(())
}

/// Ends an erasure of the keys that a crash cut off. True when there was one: nobody opens the store any
/// more.
pub(super) fn end_erasure(
    disk: &dyn Disk,
    id: &[u8; 16],
    settings: &Settings,
    opener: &dyn Opener,
) -> Result<bool> {
    let copies = read_copies(disk);
    let copies = [&copies[0][..], &copies[1][..]];
    if !settings.keeps(Rule::ErasureEnded)
        || !is_being_erased(copies, id, &mut |area| opener.root(area))
    {
        return Ok(false);
    }
    overwrite(disk, &*opener.random())?;
    Ok(true)
}

/// The bytes of both copies; none of one that can't be read.
fn read_copies(disk: &dyn Disk) -> [Vec<u8>; 2] {
    KEY_AREAS.map(|at| {
        let mut blocks = Block::zeroed_vec(AREA_BLOCKS);
        if at.0 + AREA_BLOCKS as u64 > disk.blocks() {
            return Vec::new();
        }
        let mut read = [Read::new(at, &mut blocks)];
        disk.read(&mut read);
        let [read] = read;
        match read.result {
            Ok(()) => blocks.iter().flat_map(|block| block.0).collect(),
            Err(_) => Vec::new(),
        }
    })
}

/// The id of a sealed store, as its superblocks show it; `None` of a plain one.
pub(super) fn sealed_id(disk: &dyn Disk) -> Option<[u8; 16]> {
    let mut newest: Option<Box<Superblock>> = None;
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let block = read_superblock_block(disk, at);
        if let Some(Found::Sealed(found)) = block.map(|block| Superblock::decode(&block, place))
            && newest.as_ref().is_none_or(|one| one.state.sequence < found.state.sequence)
        {
            newest = Some(found);
        }
    }
    newest.map(|newest| newest.fixed.id)
}

/// What a store that breaks its rules leaves out.
fn flaws(settings: &Settings) -> Flaws {
    let unproven =
        [(Rule::SealedPagesProven, What::Page), (Rule::SealedCarriersProven, What::Carrier)];
    Flaws {
        no_prefix: !settings.keeps(Rule::CountersHavePrefix),
        no_address: !settings.keeps(Rule::CountersHaveAddress),
        plain_blocks: !settings.keeps(Rule::BlocksSealed),
        counted_payloads: !settings.keeps(Rule::CompressedHasNoCounter),
        unproven: unproven
            .into_iter()
            .find(|(rule, _)| !settings.keeps(*rule))
            .map(|(_, what)| what),
        one_fingerprint: !settings.keeps(Rule::FingerprintsByDomain),
        one_key: !settings.keeps(Rule::DataByDomain),
        payloads_by_store: !settings.keeps(Rule::PayloadsByDomain),
        writes_by_older: !settings.keeps(Rule::WritesByNewestKey),
        payloads_by_older: !settings.keeps(Rule::PayloadsByNewestKey),
    }
}

pub(super) fn no_key() -> Error {
    Error::new(Kind::Denied, "the store is encrypted: say where its key is with --key")
}

/// The copy that counts, of the store with this id.
pub(super) fn judged(
    disk: &dyn Disk,
    id: &[u8; 16],
    access: Access,
    settings: &Settings,
    opener: &dyn Opener,
) -> Result<Judged> {
    let copies = read_copies(disk);
    #[cfg(feature = "planted-bugs")]
    let copies = match access == Access::Writes && !settings.keeps(Rule::CodeBeforeCopying) {
        true => {
            let (copies, which) = broken::copied(copies);
            write_copies(disk, &copies[0], which)?;
            copies
        }
        false => copies,
    };
    if access == Access::Writes && end_erasure(disk, id, settings, opener)? {
        return Err(Error::new(Kind::Corrupt, "its keys were destroyed: nobody can read it"));
    }
    let care = Care {
        compares_code: settings.keeps(Rule::KeyAreaProven),
        takes_higher: settings.keeps(Rule::HigherKeyAreaCounts),
    };
    let copies = [&copies[0][..], &copies[1][..]];
    let word = (0, opener.accepts_older());
    let mut judged = judge(copies, id, word, &mut |area| opener.root(area), care)?;
    is_newest(disk, &mut judged.keys, settings, opener)?;
    if access == Access::Writes
        && judged.differs != [false; 2]
        && settings.keeps(Rule::BothKeyAreasWritten)
    {
        // Who was killed may have left the copy that counts in a cache alone. A power cut amid a flush
        // of both would damage both.
        disk.flush()?;
        write_copies(disk, judged.area.bytes(), judged.differs)?;
    }
    Ok(judged)
}

/// Errors when the store is older than somebody knows, and when a superblock bears a higher number than
/// the key area has which was opened. The keys learn which numbers of domains were given, also when an
/// older key area is accepted.
fn is_newest(
    disk: &dyn Disk,
    keys: &mut Keys,
    settings: &Settings,
    opener: &dyn Opener,
) -> Result<()> {
    let sealing = Sealing::new(keys, Flaws::default())?;
    let whole = whole_superblocks(disk, Some(&sealing));
    let given = whole.iter().filter_map(|one| one.state.next_domain.checked_sub(1)).max();
    given.into_iter().for_each(|last| keys.saw_domain(last));
    let generation = whole.iter().map(|one| one.state.data_generation).max();
    keys.saw_generation(generation.unwrap_or(0));
    refuse_older(&whole, settings, opener)?;
    let told = whole.iter().map(|one| one.state.keys).max().unwrap_or(0);
    let opened = keys.sequence();
    if opener.accepts_older() || told <= opened || !settings.keeps(Rule::KeyAreaNumberCompared) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Denied,
        format!(
            "the key area is an older one ({opened}, and the store has seen {told}): slots that were \
             removed and domains that were erased would be back; --accept-older takes it"
        ),
    ))
}

/// What seals the store on a disk, by the key that its opener is asked for; `None` of a plain one.
///
/// # Errors
/// `Denied`: there is no key, or it opens no slot, or a key was named and the store is plain, or the store
/// is older than somebody knows;
/// `Corrupt`: no copy of the key area is whole, or somebody changed it.
pub(crate) fn unlock(
    disk: &dyn Disk,
    access: Access,
    settings: &Settings,
) -> Result<Option<Arc<Sealing>>> {
    let opener = settings.keys.of();
    let Some(id) = sealed_id(disk) else {
        if opener.is_some_and(|opener| opener.refuses_plain()) {
            let why =
                "a key was named, and the store is not encrypted: it is not the one that you mean";
            return Err(Error::new(Kind::Denied, why));
        }
        if let Some(opener) = opener {
            refuse_older(&whole_superblocks(disk, None), settings, opener)?;
        }
        return Ok(None);
    };
    let opener = opener.ok_or_else(no_key)?;
    let judged = judged(disk, &id, access, settings, opener)?;
    Ok(Some(Arc::new(Sealing::new(&judged.keys, flaws(settings))?)))
}

/// As [`unlock`], of a store that is only looked at.
pub(crate) fn unlock_to_look(disk: &dyn Disk, keys: &KeySource) -> Result<Option<Arc<Sealing>>> {
    let settings =
        Settings { keys: keys.clone(), ..Settings::for_memory(crate::settings::MEMORY_MIN) };
    unlock(disk, Access::Reads, &settings)
}

/// The state of a new store whose keys have this number.
pub(super) fn sealed_state(keys: u64) -> State {
    State { features: superblock::SEALED, keys, ..State::default() }
}
