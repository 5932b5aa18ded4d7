//! The byte compare filter (dedupv1 3.2): compares the chunk with the stored one, so that no
//! collision goes unnoticed.

use onefold_core::{Kind, Result};

use super::filter::{Answer, Best, Filter, Known, Query, address_of};
use crate::container::ChunkReader;

/// Reads the stored chunk.
#[derive(Default)]
pub(crate) struct ByteCompare {
    reader: Option<ChunkReader>,
}

impl Filter for ByteCompare {
    fn best(&self) -> Best {
        Best::Existing
    }

    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer> {
        let Some(address) = address_of(query.answer) else { return Ok(Answer::WeakMaybe) };
        let judge = |stored: &[u8]| {
            if stored == query.bytes { Answer::Existing(address) } else { Answer::NonExisting }
        };
        if let Some(open) = known.unwritten.iter().find(|open| open.id == address.container) {
            return Ok(open.bytes_of(address.slot).map_or(Answer::NonExisting, judge));
        }
        let reader = self.reader.get_or_insert_with(ChunkReader::default);
        match reader.chunk(&known.archive.tables(), known.container_reader, address) {
            Ok(bytes) => Ok(judge(bytes)),
            // A chunk that can't be read is stored again.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {
                Ok(Answer::NonExisting)
            }
            Err(error) => Err(error),
        }
    }
}
