//! Single flipped bits of table pages and carriers, set right in place.

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Result, Run};

use super::outcome::Repaired;
use crate::{
    check::{
        batch::read_one,
        report::Place,
        rot,
        walk::{Visit, Walker},
    },
    format::{
        Identity,
        carrier::Carrier,
        geometry::Geometry,
        in_place,
        pack::{Pack, near_pack},
        page::{self, PageId, Pointer},
        record::WindowNumber,
        superblock::Superblock,
    },
};

/// Writes one block of metadata. Durable with the next flush.
pub(super) fn write(disk: &dyn Disk, at: Pba, block: &Block) -> Result<()> {
    disk.write(&[Run { at, blocks: &[BlockRef { block, class: Class::Table }] }])
}

/// Repairs damaged pages, and those that are found to be damaged below them. Returns how many.
pub(super) fn pages(
    walker: Walker<'_>,
    superblock: &Superblock,
    mut damaged: Vec<(PageId, Pointer)>,
    repaired: &mut Repaired,
) -> Result<u64> {
    let (mut restored, mut tries) = (0, rot::Tries::default());
    while let Some((id, pointer)) = damaged.pop() {
        let Ok(mut block) = read_one(walker.disk, pointer.address) else { continue };
        let whole = |block: &Block| match pointer.in_place {
            true => in_place::decode(walker.identity, id, &pointer, block).is_ok(),
            false => {
                let mut copy = block.0;
                page::differs(walker.identity, id, &pointer, &mut copy).is_none()
            }
        };
        let Some(bit) = tries.restore_copy(&mut block, whole) else { continue };
        write(walker.disk, pointer.address, &block)?;
        repaired
            .restored
            .push(format!("{}: bit {bit} was flipped back", Place::Page(id, pointer.address)));
        restored += 1;
        walker.walk_from(
            id,
            &pointer,
            &mut Damaged { geometry: superblock.fixed.geometry, found: &mut damaged },
        );
    }
    tell(&tries, "damaged pages of tables", repaired);
    Ok(restored)
}

/// Tells how many blocks were not tried.
fn tell(tries: &rot::Tries, what: &str, repaired: &mut Repaired) {
    if tries.refused > 0 {
        repaired.left.push(format!(
            "{} {what} were not looked through for a flipped bit: {} were, and that is enough for one \
             repair",
            tries.refused,
            rot::TRIED_MAX
        ));
    }
}

/// Collects the damaged pages of a tree.
struct Damaged<'a> {
    geometry: Geometry,
    found: &'a mut Vec<(PageId, Pointer)>,
}

impl Visit for Damaged<'_> {
    fn named(&mut self, _: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        self.geometry.holds(pointer.address)
    }

    fn page(&mut self, id: PageId, pointer: &Pointer, page: Result<&Block>) {
        if page.is_err() {
            self.found.push((id, *pointer));
        }
    }
}

/// Heals damaged carriers. Returns how many.
pub(super) fn carriers(
    disk: &dyn Disk,
    identity: &Identity,
    damaged: &[Pba],
    repaired: &mut Repaired,
) -> Result<u64> {
    let (mut restored, mut tries) = (0, rot::Tries::default());
    for &pba in damaged {
        let Ok(mut block) = read_one(disk, pba) else { continue };
        let is_whole = |block: &Block| {
            Carrier::proven(identity, block, pba).is_some()
                || near_pack(identity, block, pba) && Pack::proven(identity, block, pba).is_some()
        };
        if let Some(bit) = tries.restore_copy(&mut block, is_whole) {
            write(disk, pba, &block)?;
            let name = if near_pack(identity, &block, pba) { "pack" } else { "carrier" };
            repaired.restored.push(format!("{name} at block {pba}: bit {bit} was flipped back"));
            restored += 1;
        }
    }
    tell(&tries, "damaged carriers", repaired);
    Ok(restored)
}
