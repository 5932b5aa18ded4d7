//! The files of an archive whose decoders are reached only by who works with them: the index, the
//! counts of a collection, and the maps of volumes. Each target changes files of one kind.

use std::sync::Arc;

use onefold_archive::{
    ArchiveExports, ChunkIndex, INDEX_PAGE_BYTES as PAGE_BYTES, Ingest, Volumes,
};
use onefold_core::{BLOCK_BYTES, Block, BlockRead, Error, Exports, Fingerprint, Kind, Lba, Result};

use super::{
    STEP_BYTES, all_verbs, changed, collected, files::MemoryFiles, good, index_made, open,
};
use crate::reach;

/// Blocks of the volume that are read.
const READ_BLOCKS: u64 = 64;

/// The chunk index: what it says of the chunks that are there, and what is made of it by a merge.
pub fn index(data: &[u8]) {
    let files = changed(data, "index-");
    let Some(archive) = reach::noted(open(&files, false)) else { return };
    let Some(mut index) = reach::noted(ChunkIndex::open(archive.clone(), &archive.tables())) else {
        return;
    };
    for fingerprint in fingerprints(data.first().copied().unwrap_or_default()) {
        let _ = index.may_hold(&fingerprint);
        for filtered in [false, true] {
            if let Some(found) = reach::noted(index.look_up(&fingerprint, filtered)) {
                reach::is(found, "the index does not know the chunk");
            }
        }
    }
    reach::noted(index_made(&files));
}

/// Of the chunks that the good index of an archive has.
fn fingerprints(archive: u8) -> Vec<Fingerprint> {
    let all = good::archives();
    let files =
        all[usize::from(archive) % all.len()].iter().filter(|(name, _)| name.starts_with("index-"));
    let pages = files.flat_map(|(_, bytes)| bytes.chunks_exact(PAGE_BYTES));
    let entries = pages.flat_map(|page| page[16..].chunks_exact(24).take(usize::from(page[12])));
    entries.map(|entry| Fingerprint(std::array::from_fn(|n| entry[n]))).take(32).collect()
}

/// The file of usage counts: a collection begins from it.
pub fn counts(data: &[u8]) {
    let files = changed(data, "counts-");
    reach::noted(collected(&files));
}

/// The leaves of tables: the archive is opened by them, read, and collected.
pub fn tables(data: &[u8]) {
    all_verbs(&changed(&good::with_leaves(data), "tables"));
}

/// The leaves of volumes' maps: the volume is read through them.
pub fn maps(data: &[u8]) {
    let files = changed(data, "maps");
    reach::noted(volume_read(&files));
}

fn volume_read(files: &Arc<MemoryFiles>) -> Result<()> {
    let archive = open(files, true)?;
    let exports = ArchiveExports(Volumes::new(&Ingest::begin(&archive, false, true)?, 100));
    let volume =
        exports.list().into_iter().next().ok_or_else(|| Error::new(Kind::NotFound, "no volume"))?;
    let disk = exports.open(&volume.name)?;
    let blocks = disk.size() / BLOCK_BYTES as u64;
    for n in 0..READ_BLOCKS {
        let mut into = Block::zeroed_vec(1);
        let mut reads =
            [BlockRead { first: Lba(blocks * n / READ_BLOCKS), into: &mut into, result: Ok(()) }];
        disk.read(&mut reads);
        let [read] = reads;
        reach::noted(read.result);
    }
    disk.extents(0, disk.size(), 1000)?;
    disk.trim(0, 1 << 20)?;
    disk.flush()?;
    exports.0.close()
}

/// Files without a change, and with one in each page.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for archive in 0..good::archives().len() as u8 {
        examples.push(vec![archive]);
        for (page, place) in (0..8).flat_map(|page| [(page, 4u8), (page, 8), (page, 20)]) {
            let step: [u8; STEP_BYTES] = [8 | 1, 0, place, page, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
            examples.push([&[archive][..], &step].concat());
        }
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_the_parts_of_good_archives_are_taken_for_good() {
        for (name, target) in [("index", index as fn(&[u8])), ("counts", counts), ("maps", maps)] {
            assert!(
                good::archives()[0].keys().any(|file| file.starts_with(name)),
                "there are no {name}"
            );
            for archive in 0..3 {
                reach::taken();
                target(&[archive as u8]);
                let reached = reach::taken();
                assert!(
                    reached.good > 0 && reached.refused.is_empty(),
                    "{name} of archive {archive}: {reached:?}"
                );
            }
        }
    }
}
