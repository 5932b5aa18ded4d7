//! What the snapshot of a sealed archive has beside its tables: halves of the tags of what the tables name
//! by a number alone.
//!
//! Sealed bytes prove their place. A process that crashed, or a copy of the archive, may have written other
//! bytes for the same place, and whoever holds the directory may put these back. So the snapshot says
//! which of them count.

use onefold_core::Result;

use crate::{
    format::bytes::{Reader, Writer},
    tables::Tables,
};

/// The halves of tags of a snapshot.
pub(super) struct Proofs {
    /// Of the file of usage counts.
    counts: u64,
    /// Of the pages of the volumes' maps, in the order of the volumes and their leaves.
    pages: Vec<u64>,
}

/// Writes those of these tables.
pub(super) fn encode(tables: &Tables, w: &mut Writer) {
    let pages: Vec<u64> = tables.volumes.proofs().collect();
    w.u64(tables.counts_proof).u32(pages.len() as u32);
    pages.into_iter().for_each(|proof| {
        w.u64(proof);
    });
}

impl Proofs {
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Proofs> {
        let counts = r.u64()?;
        let pages = (0..r.count(8, 8)?).map(|_| r.u64()).collect::<Result<_>>()?;
        Ok(Proofs { counts, pages })
    }

    /// Gives them to the tables of the same snapshot.
    pub(super) fn give(self, tables: &mut Tables) {
        tables.counts_proof = self.counts;
        tables.volumes.set_proofs(self.pages);
    }
}
