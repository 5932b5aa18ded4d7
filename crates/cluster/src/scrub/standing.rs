//! Blocks that stand in metadata objects: those that no worker has deduplicated yet, and those that
//! are kept there for readers.

use std::ops::Range;

use onefold_core::object::{ReadPart, Refusal};

use super::Scrub;
use crate::{
    chunk_map::{ChunkMap, map_parts},
    format::{BLOCK, ObjectId, catalogue::What, entry::Entry},
    replies::failed,
};

impl Scrub {
    /// Reads the blocks that stand in an object, with its map at the same moment. The store
    /// compares their checksums, and that of a sealed store the sums of their entries.
    pub(super) fn standing(&mut self, object: ObjectId, map: &ChunkMap) -> Result<(), Refusal> {
        let runs = runs(map.entries.iter());
        if runs.is_empty() {
            return Ok(());
        }
        self.read += runs.iter().map(|run| run.end - run.start).sum::<u64>();
        let data = runs.into_iter().map(|run| ReadPart::Data(run.start, run.end - run.start));
        let parts = map_parts().into_iter().chain(data).collect();
        match self.session.kernel().read_one(&object.name(), parts) {
            Ok(_) | Err(Refusal::Missing) => Ok(()),
            Err(Refusal::Failed(error)) => {
                let title = self.title(object);
                self.report.tell(failed(title, Refusal::Failed(error)).to_string());
                Ok(())
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// What an object is called in sentences.
    fn title(&mut self, object: ObjectId) -> String {
        match self.named(object.volume) {
            Some((name, What::Volume)) => {
                format!("object {object} of volume '{}'", name.escape_debug())
            }
            Some((name, What::Put)) => {
                format!("object {object} of stream '{}'", name.escape_debug())
            }
            None => format!("object {object}"),
        }
    }
}

/// The bytes of an object in which the blocks of all masks stand; neighbours together.
fn runs<'a>(entries: impl Iterator<Item = (&'a u32, &'a Entry)>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (offset, entry) in entries {
        for block in (0..entry.length.div_ceil(BLOCK)).filter(|n| entry.mask >> n & 1 == 1) {
            let start = u64::from(offset + block * BLOCK);
            let end = start + u64::from(BLOCK);
            match runs.last_mut() {
                Some(run) if run.end == start => run.end = end,
                _ => runs.push(start..end),
            }
        }
    }
    runs
}
