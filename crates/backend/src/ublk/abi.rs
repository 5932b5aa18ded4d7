//! The bytes of `linux/ublk_cmd.h`, written and read by offsets: nothing depends on the headers of the machine that builds.

/// Bytes of a device's state.
pub(super) const INFO_BYTES: usize = 64;
/// Bytes of its parameters, as far as they are used here.
pub(super) const PARAMS_BYTES: usize = 112;
/// Bytes of a request's description.
pub(super) const DESCRIPTION_BYTES: usize = 24;
/// Descriptions for which each queue has room in the mapping.
pub(super) const DEPTH_MAX: u64 = 4096;

/// Devices that die with their server keep their requests for the next one.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
/// The next server gets again what the last one had not answered.
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Commands have the numbers of ioctls.
pub(super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// The size of a running device can be changed.
pub(super) const UPDATE_SIZE: u64 = 1 << 10;

const READS: u32 = 2;
const BOTH: u32 = 3;

const fn command(direction: u32, number: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

const fn control(direction: u32, number: u32) -> u32 {
    command(direction, number, 32)
}

pub(super) const GET_DEV_INFO: u32 = control(READS, 0x02);
pub(super) const ADD_DEV: u32 = control(BOTH, 0x04);
pub(super) const DEL_DEV: u32 = control(BOTH, 0x05);
pub(super) const START_DEV: u32 = control(BOTH, 0x06);
pub(super) const STOP_DEV: u32 = control(BOTH, 0x07);
pub(super) const SET_PARAMS: u32 = control(BOTH, 0x08);
pub(super) const START_USER_RECOVERY: u32 = control(BOTH, 0x10);
pub(super) const END_USER_RECOVERY: u32 = control(BOTH, 0x11);
pub(super) const GET_FEATURES: u32 = control(READS, 0x13);
pub(super) const SET_SIZE: u32 = control(BOTH, 0x15);

pub(super) const FETCH: u32 = command(BOTH, 0x20, 16);
pub(super) const COMMIT_AND_FETCH: u32 = command(BOTH, 0x21, 16);

/// A command for `/dev/ublk-control`: 32 bytes at the end of an entry of 128.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Command {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) bytes: u16,
    pub(super) data: u64,
}

impl Command {
    pub(super) fn encode(&self) -> [u8; 80] {
        let mut all = [0; 80];
        all[0..4].copy_from_slice(&self.device.to_le_bytes());
        // No queue.
        all[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
        all[6..8].copy_from_slice(&self.bytes.to_le_bytes());
        all[8..16].copy_from_slice(&self.address.to_le_bytes());
        all[16..24].copy_from_slice(&self.data.to_le_bytes());
        all
    }
}

/// The state of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) request_bytes: u32,
    pub(super) id: u32,
    pub(super) process: i32,
    pub(super) flags: u64,
    /// A number of the server's own, by which it knows its device again.
    pub(super) mark: u64,
}

impl Info {
    pub(super) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut all = [0; INFO_BYTES];
        all[0..2].copy_from_slice(&self.queues.to_le_bytes());
        all[2..4].copy_from_slice(&self.depth.to_le_bytes());
        all[4..6].copy_from_slice(&self.state.to_le_bytes());
        all[8..12].copy_from_slice(&self.request_bytes.to_le_bytes());
        all[12..16].copy_from_slice(&self.id.to_le_bytes());
        all[16..20].copy_from_slice(&self.process.to_le_bytes());
        all[24..32].copy_from_slice(&self.flags.to_le_bytes());
        all[32..40].copy_from_slice(&self.mark.to_le_bytes());
        all
    }

    pub(super) fn decode(all: &[u8; INFO_BYTES]) -> Info {
        let at = |from: usize, bytes: usize| {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&all[from..from + bytes]);
            u64::from_le_bytes(number)
        };
        Info {
            queues: at(0, 2) as u16,
            depth: at(2, 2) as u16,
            state: at(4, 2) as u16,
            request_bytes: at(8, 4) as u32,
            id: at(12, 4) as u32,
            process: at(16, 4) as u32 as i32,
            flags: at(24, 8),
            mark: at(32, 8),
        }
    }
}

/// What programs may do with a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) bytes: u64,
    pub(super) request_bytes: u32,
    pub(super) is_read_only: bool,
}

/// Bytes of a block as a power of two: no smaller write is whole.
const BLOCK_SHIFT: u8 = 12;
const SECTOR_SHIFT: u8 = 9;
/// The basic parameters, and those of discards.
const TYPES: u32 = 1 | 2;
const READ_ONLY: u32 = 1;
const VOLATILE_CACHE: u32 = 4;
const FUA: u32 = 8;
/// Sectors of a discard at most: 1 GiB.
const DISCARD_SECTORS: u32 = 1 << 21;

impl Shape {
    pub(super) fn encode(&self) -> [u8; PARAMS_BYTES] {
        let mut all = [0; PARAMS_BYTES];
        let mut attributes = VOLATILE_CACHE | FUA;
        if self.is_read_only {
            attributes |= READ_ONLY;
        }
        all[0..4].copy_from_slice(&(PARAMS_BYTES as u32).to_le_bytes());
        all[4..8].copy_from_slice(&TYPES.to_le_bytes());
        all[8..12].copy_from_slice(&attributes.to_le_bytes());
        all[12..16].copy_from_slice(&[SECTOR_SHIFT, BLOCK_SHIFT, BLOCK_SHIFT, BLOCK_SHIFT]);
        all[16..20].copy_from_slice(&(self.request_bytes >> SECTOR_SHIFT).to_le_bytes());
        all[24..32].copy_from_slice(&(self.bytes >> SECTOR_SHIFT).to_le_bytes());
        all[44..48].copy_from_slice(&(1_u32 << BLOCK_SHIFT).to_le_bytes());
        all[48..52].copy_from_slice(&DISCARD_SECTORS.to_le_bytes());
        all[52..56].copy_from_slice(&DISCARD_SECTORS.to_le_bytes());
        all[56..58].copy_from_slice(&1_u16.to_le_bytes());
        all
    }
}

/// The description of a request, as the kernel wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) op: u8,
    pub(super) is_durable: bool,
    pub(super) keeps: bool,
    pub(super) sectors: u32,
    pub(super) first: u64,
}

pub(super) const OP_READ: u8 = 0;
pub(super) const OP_WRITE: u8 = 1;
pub(super) const OP_FLUSH: u8 = 2;
pub(super) const OP_DISCARD: u8 = 3;
pub(super) const OP_ZEROES: u8 = 5;

impl Description {
    pub(super) fn decode(all: &[u8; DESCRIPTION_BYTES]) -> Description {
        let word = |at: usize| u32::from_le_bytes([all[at], all[at + 1], all[at + 2], all[at + 3]]);
        let flags = word(0);
        Description {
            op: flags as u8,
            is_durable: flags >> 13 & 1 == 1,
            keeps: flags >> 15 & 1 == 1,
            sectors: word(4),
            first: u64::from(word(8)) | u64::from(word(12)) << 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        // As `_IOWR('u', UBLK_CMD_ADD_DEV, struct ublksrv_ctrl_cmd)` and `_IOR` come out on Linux.
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(FETCH, 0xc010_7520);
    }

    #[test]
    fn the_state_of_a_device_is_read_as_it_was_written() {
        let info = Info {
            queues: 4,
            depth: 64,
            state: 2,
            request_bytes: 1 << 18,
            id: 7,
            process: -3,
            flags: 88,
            mark: u64::MAX - 5,
        };
        assert_eq!(Info::decode(&info.encode()), info);
    }

    #[test]
    fn a_description_has_its_operation_and_flags_apart() {
        let mut all = [0; DESCRIPTION_BYTES];
        all[0..4].copy_from_slice(&(1_u32 | 1 << 13).to_le_bytes());
        all[4..8].copy_from_slice(&8_u32.to_le_bytes());
        all[8..16].copy_from_slice(&(1_u64 << 33).to_le_bytes());
        let found = Description::decode(&all);
        assert_eq!(
            found,
            Description {
                op: OP_WRITE,
                is_durable: true,
                keeps: false,
                sectors: 8,
                first: 1 << 33
            }
        );
    }
}
