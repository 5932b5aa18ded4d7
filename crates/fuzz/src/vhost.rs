//! A guest's memory, with a ring in it: whatever the bytes are, each request is answered once, or the
//! ring is refused.

use onefold_core::{Error, Exports, Kind};
use onefold_serve::{
    nbd::Limits,
    vhost::{AVAILABLE, PLACES, USED, ring_over},
};

use crate::{memory::OneVolume, reach};

const SIZE: usize = 256 << 10;
/// Bytes of the guest's memory: a ring, and room for some requests.
const MEMORY: usize = 32 << 10;
/// Where the requests of the examples are.
const REQUESTS: u64 = 0x400;

/// All requests of one ring.
pub fn vhost_ring(data: &[u8]) {
    let mut memory = data[..data.len().min(MEMORY)].to_vec();
    memory.resize(MEMORY, 0);
    let limits = Limits { read_batch_bytes: 16 << 10, ..Limits::default() };
    let Ok(volume) = OneVolume::new(SIZE).open("disk") else { return };
    match ring_over(&*volume, &limits, &memory) {
        Ok(answered) => {
            assert!(answered <= PLACES, "more answers than requests");
            if answered > 0 {
                reach::good();
            }
        }
        Err(how) => reach::refused(&Error::new(Kind::InvalidInput, how)),
    }
}

/// A buffer: its address, its length, its flags and the next one.
type Buffer = (u64, u32, u16, u16);

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

fn describe(memory: &mut [u8], at: u64, (address, bytes, flags, next): Buffer) {
    put(memory, at, &address.to_le_bytes());
    put(memory, at + 8, &bytes.to_le_bytes());
    put(memory, at + 12, &flags.to_le_bytes());
    put(memory, at + 14, &next.to_le_bytes());
}

/// Rings with every kind of request, with tables beside them and without.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let range = [&8u64.to_le_bytes()[..], &16u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    let kinds: [(u32, &[u8], u32); 6] = [
        (1, &[7; 512], 0),
        (0, &[], 512),
        (4, &[], 0),
        (11, &range, 0),
        (13, &range, 0),
        (8, &[], 20),
    ];
    let mut all = Vec::new();
    for beside in [false, true] {
        let mut memory = vec![0; 0x2000];
        let mut heads = Vec::new();
        for (n, (kind, gives, takes)) in kinds.iter().enumerate() {
            let at = REQUESTS + 0x400 * n as u64;
            put(&mut memory, at, &kind.to_le_bytes());
            put(&mut memory, at + 0x20, gives);
            let (table, first) = if beside { (at + 0x300, 0) } else { (0, 3 * n as u16) };
            if first + 2 >= PLACES {
                break;
            }
            let middle = match gives.is_empty() {
                true => (at + 0x20, *takes, 3, first + 2),
                false => (at + 0x20, gives.len() as u32, 1, first + 2),
            };
            let chain = [(at, 16, 1, first + 1), middle, (at + 0x10, 1, 2, 0)];
            for (m, buffer) in chain.into_iter().enumerate() {
                describe(&mut memory, table + 16 * (u64::from(first) + m as u64), buffer);
            }
            if beside {
                describe(&mut memory, 16 * n as u64, (table, 48, 4, 0));
            }
            heads.push(if beside { n as u16 } else { first });
        }
        put(&mut memory, AVAILABLE + 2, &(heads.len() as u16).to_le_bytes());
        for (n, head) in heads.iter().enumerate() {
            put(&mut memory, AVAILABLE + 4 + 2 * n as u64, &head.to_le_bytes());
        }
        put(&mut memory, USED, &[0; 4]);
        all.push(memory);
    }
    all
}
