//! The abilities of the device, and its configuration, as guests see them.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::request::{RANGES, REQUEST_BYTES, SECTOR};

/// Queues that a device has at most: one for each processor of a guest.
pub(crate) const QUEUES: u16 = 64;
/// Bytes of the configuration that a client may ask for.
const CONFIG_BYTES: usize = 256;
/// Buffers of data in a request: a ring of 128 places, as hypervisors have, holds one such request
/// whole.
const SEGMENTS: u32 = 126;
/// Bytes of such a buffer at most.
const SEGMENT_BYTES: u32 = 128 << 10;
const _: () = assert!(SEGMENTS as u64 * SEGMENT_BYTES as u64 <= REQUEST_BYTES);
/// Most sectors of one range to discard or to fill with zeroes: 2 GiB.
const RANGE_SECTORS: u32 = 4 << 20;

/// The client and the server have protocol features to agree on; then rings are disabled at first.
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Features of the protocol, by their bits.
pub(crate) mod protocol {
    const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    const BACKEND_REQ: u64 = 1 << 5;
    const CONFIG: u64 = 1 << 9;
    const INFLIGHT: u64 = 1 << 12;
    const RESET: u64 = 1 << 13;

    /// All that this server has.
    pub(crate) const OFFERED: u64 = MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT | RESET;
}

/// True when the guest agreed to this feature.
fn has(features: u64, bit: u32) -> bool {
    features & (1 << bit) != 0
}

/// The guest flushes when it wants something durable; one that can't expects it of each write.
pub(crate) fn flushes(features: u64) -> bool {
    has(features, VIRTIO_BLK_F_FLUSH)
}

/// Both sides say in the rings when they want to be told.
pub(crate) fn event_index(features: u64) -> bool {
    has(features, VIRTIO_RING_F_EVENT_IDX)
}

/// The features of a device that may be changed, or not.
pub(crate) fn offered(writes: bool) -> u64 {
    let of_both = [
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_MQ,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_F_VERSION_1,
    ];
    let more: &[u32] = match writes {
        true => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
        false => &[VIRTIO_BLK_F_RO],
    };
    of_both.iter().chain(more).fold(PROTOCOL_FEATURES, |all, bit| all | 1 << bit)
}

/// The bytes of the configuration of a volume of `size` bytes; nothing when there are none there.
pub(crate) fn config(size: u64, offset: u32, bytes: u32) -> Option<Vec<u8>> {
    let mut config = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(size / SECTOR).to_le_bytes());
    put(8, &SEGMENT_BYTES.to_le_bytes());
    put(12, &SEGMENTS.to_le_bytes());
    // A guest may write sectors. Blocks of 4 KiB, eight of them, cost the engine least.
    put(20, &(SECTOR as u32).to_le_bytes());
    put(24, &[3, 0]);
    put(26, &8u16.to_le_bytes());
    put(34, &QUEUES.to_le_bytes());
    put(36, &RANGE_SECTORS.to_le_bytes());
    put(40, &(RANGES as u32).to_le_bytes());
    put(44, &8u32.to_le_bytes());
    put(48, &RANGE_SECTORS.to_le_bytes());
    put(52, &(RANGES as u32).to_le_bytes());
    put(56, &[1]);
    let end = offset.checked_add(bytes)?;
    config.get(offset as usize..end as usize).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_can_only_be_read_says_so() {
        let discard = 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        assert_eq!(offered(true) & (1 << VIRTIO_BLK_F_RO | discard), discard);
        assert_eq!(offered(false) & (1 << VIRTIO_BLK_F_RO | discard), 1 << VIRTIO_BLK_F_RO);
    }

    #[test]
    fn the_configuration_has_an_end() {
        assert_eq!(config(1 << 30, 0, 8).unwrap(), (1u64 << 21).to_le_bytes());
        assert_eq!(config(1 << 30, 34, 2).unwrap(), QUEUES.to_le_bytes());
        assert_eq!(config(0, 0, 256).unwrap().len(), 256);
        assert!(config(0, 0, 257).is_none() && config(0, u32::MAX, 2).is_none());
    }
}
