//! The blocks that the maps name, and the entries among them that can't be true.
//!
//! An entry is wrong when it can't be read, or names a block that is not there or holds a table
//! page, or when the content of its block shows that it is another one. Where the tables contradict
//! an entry, the content decides; an entry that is right by it stays, and the tables follow. Wrong
//! entries read as errors already; they become lost, so that writing to them works again.

use std::collections::BTreeMap;

use onefold_core::{Disk, Error, Fingerprint, Kind, Lba, Pba, Result};

use super::once::each_map_leaf;
use crate::{
    block_set::BlockSet,
    check::{
        batch::read_one,
        packs::{Fragment, Packs},
        tables::Checker,
        usage::{Named as Verdict, Usage},
        walk::Walker,
    },
    format::{
        Identity,
        page::{Form, MapEntry, Table},
        stored::{self, Stored},
    },
};

/// Wrong entries that are mended; a store with more of them is not mended but abandoned.
const WRONG_MAX: usize = 1 << 20;

/// The account of the maps.
pub(super) struct Named {
    /// Blocks that right entries name.
    pub(super) data: BlockSet,
    /// Wrong entries, by the leaf and their place in it, and what they become: a hole where they
    /// are beyond the end of a volume.
    pub(super) wrong: BTreeMap<(Pba, u64), MapEntry>,
}

/// An entry that the tables contradict.
struct Contradiction {
    at: (Pba, u64),
    pba: Pba,
    form: Form,
    prefix: u64,
}

/// Reads all maps.
pub(super) fn find(checker: &mut Checker<'_>) -> Result<Named> {
    let mut named = Named { data: BlockSet::new(checker.geometry), wrong: BTreeMap::new() };
    for stretch in checker.stretches.clone() {
        let mut usage = Usage::counting(checker.geometry, stretch, &checker.dark);
        checker.load_blocks(&mut usage, |_, _, _| {});
        let mut contradictions = Vec::new();
        each_map_leaf(checker, None, &mut |checker, volume, id, pointer, page| {
            let Walker { disk, identity } = checker.walker;
            let packs = Packs::of_leaf(disk, identity, page, |pba| {
                checker.can_be_data(pba) && usage.has(pba)
            });
            for slot in 0..Table::Map.per_leaf() {
                let lba = Lba(id.index * Table::Map.per_leaf() + slot);
                let at = (pointer.address, slot);
                let entry = MapEntry::get(page, slot);
                let dropped = checker
                    .discards
                    .get(volume.id, lba.0)
                    .is_some_and(|span| span.window > pointer.birth);
                if entry == Some(MapEntry::Hole) {
                    continue;
                }
                if lba.0 >= volume.blocks && !dropped && !volume.is_leaving() {
                    named.wrong.insert(at, MapEntry::Hole);
                    continue;
                }
                match entry {
                    None => _ = named.wrong.insert(at, MapEntry::Lost),
                    Some(entry @ MapEntry::Block { pba, form, prefix }) => {
                        let is_of_pack = |fragment| match packs.judge(pba, fragment, prefix) {
                            Fragment::Agrees | Fragment::Unknown => true,
                            Fragment::Differs(_) => false,
                        };
                        if !checker.can_be_data(pba) {
                            named.wrong.insert(at, MapEntry::Lost);
                        } else if let Verdict::Differs(_) = usage.count(&entry) {
                            contradictions.push(Contradiction { at, pba, form, prefix });
                        } else if let Form::Packed(fragment) = form
                            && !is_of_pack(fragment)
                        {
                            named.wrong.insert(at, MapEntry::Lost);
                        } else {
                            named.data.insert(pba);
                        }
                    }
                    Some(_) => {}
                }
            }
            // What is beyond all memory is told below.
            contradictions.truncate(WRONG_MAX + 1);
        });
        if named.wrong.len() + contradictions.len() > WRONG_MAX {
            let message =
                format!("more than {WRONG_MAX} map entries are wrong: this can't be repaired");
            return Err(Error::new(Kind::Corrupt, message));
        }
        for Contradiction { at, pba, form, prefix } in contradictions {
            if content(checker.walker.disk, checker.walker.identity, pba, form, prefix).is_some() {
                named.data.insert(pba);
            } else {
                named.wrong.insert(at, MapEntry::Lost);
            }
        }
    }
    Ok(named)
}

/// The fingerprint of a block's content, shared or not, when it begins with `prefix` in some domain. Of
/// one that was erased nobody knows it.
pub(super) fn content(
    disk: &dyn Disk,
    identity: &Identity,
    pba: Pba,
    form: Form,
    prefix: u64,
) -> Option<Fingerprint> {
    let block = read_one(disk, pba).ok()?;
    let kept = |found: &Fingerprint| {
        [*found, found.unshared()].into_iter().find(|kept| kept.prefix() == prefix)
    };
    let stored = Stored { pba, form, prefix };
    let (_, _, fingerprint) =
        stored::found(identity, stored, &block, |found| kept(found).is_some())?;
    kept(&fingerprint)
}

impl Checker<'_> {
    /// True for blocks that a map entry may name.
    pub(super) fn can_be_data(&self, pba: Pba) -> bool {
        self.may_hold(pba) && !self.pages.contains(pba)
    }
}
