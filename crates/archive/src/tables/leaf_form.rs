//! How the entries of a leaf are written and read, table by table.

use onefold_core::Result;

use super::{
    container::Container,
    leaf_entries::{
        COMPACT_BYTES, STREAM_BYTES, STREAM_MEMORY, decode_container, decode_stream,
        encode_container, encode_stream,
    },
    persistent::LEAF_MAX,
    snapshots::{SNAPSHOT_BYTES, SNAPSHOT_MEMORY, decode_one, encode_one},
};
use crate::{
    format::{
        ContainerId,
        backup::Snapshot,
        bytes::{Reader, Writer, corrupt},
        record::{CONTAINER_MEMORY, Stream},
    },
    memory::Drawn,
};

/// How the entries of a table are written and read.
pub(super) struct Form<K, V> {
    /// The table's number in its leaves.
    pub(super) table: u8,
    /// Bytes of an entry at least.
    least: usize,
    /// Memory of an entry, about.
    pub(super) memory: usize,
    encode: fn(&mut Writer, &K, &V),
    decode: fn(&mut Reader<'_>) -> Result<(K, V)>,
}

pub(super) const STREAMS: Form<String, Stream> = Form {
    table: 1,
    least: STREAM_BYTES,
    memory: STREAM_MEMORY,
    encode: encode_stream,
    decode: decode_stream,
};

pub(super) const fn containers(late: bool) -> Form<ContainerId, Container> {
    Form {
        table: 2,
        least: COMPACT_BYTES,
        memory: CONTAINER_MEMORY,
        encode: if late { encode_container::<true> } else { encode_container::<false> },
        decode: if late { decode_container::<true> } else { decode_container::<false> },
    }
}

pub(super) const SNAPSHOTS: Form<u64, Snapshot> = Form {
    table: 3,
    least: SNAPSHOT_BYTES,
    memory: SNAPSHOT_MEMORY,
    encode: encode_one,
    decode: decode_one,
};

impl<K: Ord + Clone, V: Clone> Form<K, V> {
    /// The bytes of entries.
    pub(super) fn encoded(&self, entries: &[(K, V)]) -> Vec<u8> {
        let mut w = Writer::default();
        entries.iter().for_each(|(key, value)| (self.encode)(&mut w, key, value));
        w.0
    }

    /// Reads `count` entries, and zeroes behind them.
    pub(super) fn decoded(&self, count: usize, bytes: &[u8], drawn: &Drawn) -> Result<Vec<(K, V)>> {
        if count > LEAF_MAX || count * self.least > bytes.len() {
            return Err(corrupt(format!("a leaf of the tables can't have {count} entries")));
        }
        drawn.more((count * self.memory) as u64)?;
        let r = &mut Reader(bytes, Some(drawn));
        let entries = (0..count).map(|_| (self.decode)(r)).collect::<Result<_>>()?;
        if r.0.iter().any(|byte| *byte != 0) {
            return Err(corrupt("a leaf of the tables has more than its entries"));
        }
        Ok(entries)
    }
}

/// The error about leaves whose keys do not ascend.
pub(super) fn out_of_order() -> onefold_core::Error {
    corrupt("the leaves of the tables are out of order")
}
