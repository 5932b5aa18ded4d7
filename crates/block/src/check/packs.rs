//! Packs and the mappings that name their fragments: the directory of a pack is compared with what
//! maps say of it, as the table of fingerprints is for other blocks.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{Block, Disk, Fingerprint, Pba};

use super::batch::{read_each, read_one};
use crate::format::{
    Identity,
    carrier::Carrier,
    pack::Pack,
    page::{Form, MapEntry, Table},
};

/// The result of reading the fragment that a mapping names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// The fragment is what the mapping says.
    Agrees,
    /// The block is damaged, or can't be read: it is judged alone.
    Unknown,
    /// The block is whole, and not what the mapping says.
    Differs(&'static str),
}

/// The blocks that the mappings of one leaf name as packs.
#[derive(Default)]
pub(crate) struct Packs(BTreeMap<Pba, Seen>);

/// A block that was read.
enum Seen {
    /// A pack, with the fingerprints of its fragments.
    Pack(Vec<Fingerprint>),
    /// Whole, and something else.
    Another,
    /// Damaged, or not to be read.
    Damaged,
}

impl Packs {
    /// Reads the packs that a leaf of a map names, of those that are `wanted`.
    pub(crate) fn of_leaf(
        disk: &dyn Disk,
        identity: &Identity,
        page: &Block,
        wanted: impl Fn(Pba) -> bool,
    ) -> Packs {
        let packed =
            (0..Table::Map.per_leaf()).filter_map(|slot| match MapEntry::get(page, slot) {
                Some(MapEntry::Block { pba, form: Form::Packed(_), .. }) if wanted(pba) => {
                    Some(pba)
                }
                _ => None,
            });
        let places: Vec<Pba> = packed.collect::<BTreeSet<Pba>>().into_iter().collect();
        let mut seen = BTreeMap::new();
        if !places.is_empty() {
            read_each(disk, &places, &mut |pba, block| {
                let what = block.map_or(Seen::Damaged, |block| look_at(identity, pba, block));
                seen.insert(pba, what);
            });
        }
        Packs(seen)
    }

    /// The result for a mapping that names a fragment of one of them.
    pub(crate) fn judge(&self, pba: Pba, fragment: u8, prefix: u64) -> Fragment {
        match self.0.get(&pba) {
            Some(Seen::Pack(fragments)) => match fragments.get(usize::from(fragment)) {
                None => Fragment::Differs("a fragment that the pack does not have"),
                Some(kept) if kept.prefix() == prefix || kept.unshared().prefix() == prefix => {
                    Fragment::Agrees
                }
                Some(_) => Fragment::Differs("another fingerprint than the pack has for it"),
            },
            Some(Seen::Another) => Fragment::Differs("a fragment of a block that is no pack"),
            Some(Seen::Damaged) | None => Fragment::Unknown,
        }
    }
}

fn look_at(identity: &Identity, pba: Pba, block: &Block) -> Seen {
    if let Some(pack) = Pack::proven(identity, block, pba) {
        let fragments = (0..pack.len() as u8).filter_map(|n| pack.fingerprint(n));
        return Seen::Pack(fragments.collect());
    }
    match Carrier::proven(identity, block, pba) {
        Some(_) => Seen::Another,
        None => Seen::Damaged,
    }
}

/// The checksum of a pack that is whole.
pub(crate) fn checksum_of(disk: &dyn Disk, identity: &Identity, pba: Pba) -> Option<Fingerprint> {
    let block = read_one(disk, pba).ok()?;
    Pack::proven(identity, &block, pba).map(|pack| pack.checksum())
}
