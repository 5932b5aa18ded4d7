//! The claim: one sector that says who works on a store (rule 15 of SECURITY.md; `docs/format.md`
//! has the table and the protocol).

use onefold_core::{Block, Pba, checksum};

/// The block whose first sector is the claim. Blocks 0 to 15 hold nothing but this and the
/// superblocks.
pub const CLAIM_AT: Pba = Pba(4);

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Longest host name, in bytes; longer ones are cut.
pub const HOST_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"OFclaim1";

const _: () = assert!(HOST_AT + HOST_MAX <= SECTOR);

const CHECKSUM_AT: usize = 8;
const STORE_AT: usize = 16;
const TOKEN_AT: usize = 32;
const MACHINE_AT: usize = 48;
const BOOT_AT: usize = 64;
const DEVICE_AT: usize = 80;
const INODE_AT: usize = 88;
const PID_AT: usize = 96;
const STATE_AT: usize = 100;
const HOST_AT: usize = 104;

/// The claimant of a store, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// The host's name, for messages.
    pub host: String,
    /// Tells machines apart; zero when it is not known.
    pub machine: [u8; 16],
    /// Tells boots of machines apart; zero when it is not known.
    pub boot: [u8; 16],
    /// The process, for messages.
    pub pid: u32,
    /// The device that the file is on, or that the store is.
    pub device: u64,
    /// The inode of the file or of the device's name.
    pub inode: u64,
}

/// The content of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nobody works on the store.
    Free,
    /// The claimant works on it.
    Held,
    /// The claimant waits until it may. Never taken at once, whoever wrote it.
    Wanted,
}

/// A claim of one store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The store's id.
    pub store: [u8; 16],
    /// Random bytes, new with each write.
    pub token: [u8; 16],
    /// Its claimant.
    pub claimant: Claimant,
    /// Its content.
    pub state: State,
}

impl Claim {
    /// The block with the claim in its first sector.
    #[must_use]
    pub fn encode(&self) -> Box<Block> {
        let mut block = Block::zeroed();
        let mut put =
            |at: usize, bytes: &[u8]| block.0[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(STORE_AT, &self.store);
        put(TOKEN_AT, &self.token);
        put(MACHINE_AT, &self.claimant.machine);
        put(BOOT_AT, &self.claimant.boot);
        put(DEVICE_AT, &self.claimant.device.to_le_bytes());
        put(INODE_AT, &self.claimant.inode.to_le_bytes());
        put(PID_AT, &self.claimant.pid.to_le_bytes());
        let state = match self.state {
            State::Free => 0u8,
            State::Held => 1,
            State::Wanted => 2,
        };
        put(STATE_AT, &[state]);
        put(HOST_AT, cut(&self.claimant.host).as_bytes());
        let sum = sum(&block);
        block.0[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The claim in a block, of whatever store. Anything but a claim as [`encode`](Self::encode)
    /// writes it is none.
    #[must_use]
    pub fn decode(block: &Block) -> Option<Claim> {
        let claim = Claim {
            store: bytes(block, STORE_AT),
            token: bytes(block, TOKEN_AT),
            claimant: Claimant {
                host: host(block)?,
                machine: bytes(block, MACHINE_AT),
                boot: bytes(block, BOOT_AT),
                pid: u32::from_le_bytes(bytes(block, PID_AT)),
                device: u64::from_le_bytes(bytes(block, DEVICE_AT)),
                inode: u64::from_le_bytes(bytes(block, INODE_AT)),
            },
            state: match block.0[STATE_AT] {
                0 => State::Free,
                1 => State::Held,
                2 => State::Wanted,
                _ => return None,
            },
        };
        (claim.encode().0[..SECTOR] == block.0[..SECTOR]).then_some(claim)
    }
}

fn bytes<const N: usize>(block: &Block, at: usize) -> [u8; N] {
    std::array::from_fn(|n| block.0[at + n])
}

/// A name that can be shown on a terminal: it comes from a disk that anybody may have written.
fn host(block: &Block) -> Option<String> {
    let all = &block.0[HOST_AT..HOST_AT + HOST_MAX];
    let end = all.iter().position(|&byte| byte == 0).unwrap_or(HOST_MAX);
    let host = std::str::from_utf8(&all[..end]).ok()?;
    (!host.chars().any(char::is_control)).then(|| host.to_owned())
}

fn cut(host: &str) -> &str {
    let mut end = host.len().min(HOST_MAX);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    &host[..end]
}

fn sum(block: &Block) -> u64 {
    let mut sector = [0; SECTOR];
    sector.copy_from_slice(&block.0[..SECTOR]);
    sector[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
    checksum::fast(1, &sector)
}

/// Mends the checksum, for tests with hostile claims.
#[doc(hidden)]
pub fn repair(block: &mut Block) {
    let sum = sum(block);
    block.0[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(host: &str) -> Claim {
        let claimant = Claimant {
            host: host.to_owned(),
            machine: [1; 16],
            boot: [2; 16],
            pid: 3,
            device: 4,
            inode: 5,
        };
        Claim { store: [6; 16], token: [7; 16], claimant, state: State::Held }
    }

    #[test]
    fn a_claim_comes_back_as_it_was_written() {
        for state in [State::Free, State::Held, State::Wanted] {
            let claim = Claim { state, ..claim("host") };
            assert_eq!(Claim::decode(&claim.encode()), Some(claim));
        }
    }

    #[test]
    fn what_is_not_a_claim_is_none() {
        assert_eq!(Claim::decode(&Block::zeroed()), None);
        let good = claim("host").encode();
        for at in 0..SECTOR {
            let mut block = good.clone();
            block.0[at] ^= 0x80;
            assert_eq!(Claim::decode(&block), None, "byte {at}");
        }
        let mut block = good.clone();
        block.0[HOST_AT] = 0x1b;
        repair(&mut block);
        assert_eq!(Claim::decode(&block), None, "a name that a terminal obeys");
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let long = "é".repeat(40);
        let back = Claim::decode(&claim(&format!("x{long}")).encode()).unwrap();
        assert_eq!(back.claimant.host, format!("x{}", "é".repeat(31)));
    }
}
