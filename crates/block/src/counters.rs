//! The engine's counters, for `status` and the laboratory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters, raised as things happen.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        /// The counters at one moment. All in blocks of 4 KiB or plain numbers, since the store was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            pub(crate) fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed)),* }
            }
        }

        impl Counts {
            /// Names and values, in order.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Requests of clients that change something.
    client_changes,
    /// Blocks that clients wrote.
    client_blocks,
    /// Blocks that clients read.
    read_blocks,
    /// Blocks that compaction wrote again by records.
    moved_blocks,
    /// Blocks that were moved to lie next to their neighbours.
    neighbour_blocks,
    /// Blocks that were moved to make whole zones free.
    emptied_blocks,
    /// Blocks that came from the older data key of their domain under the newest one.
    resealed_blocks,
    /// Blocks that were packed with others into one.
    packed_blocks,
    /// Blocks of data written raw, and packs.
    data_blocks,
    /// Carriers written, with a client's block or alone.
    carrier_blocks,
    /// Carriers written that hold only records.
    record_blocks,
    /// Pages of the leftover table written.
    leftover_blocks,
    /// Zone list pages written.
    list_blocks,
    /// Changes of entries of leaves in place.
    in_place_changes,
    /// Leaves written in place.
    in_place_blocks,
    /// Leaves among them that were written for changes alone that nobody waited for.
    delayed_blocks,
    /// Table pages written by checkpoints.
    checkpoint_blocks,
    /// Superblocks written.
    super_blocks,
    /// Flushes, and durable writes, which count as one.
    flushes,
    /// Durable writes among them.
    durable_writes,
    /// Windows that became durable.
    windows,
    /// Records in them.
    records,
    /// Records that found room beside a compressed block.
    hidden_records,
    /// Records that went to the leftover table.
    leftover_records,
    /// Blocks that were stored already.
    duplicate_blocks,
    /// Blocks of zeroes, which are stored nowhere.
    zero_blocks,
    /// Checkpoints that became durable.
    checkpoints,
    /// Leaves of maps in which they applied ranges that had waited.
    discard_leaves,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
