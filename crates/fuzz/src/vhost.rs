//! A guest's memory, with a ring in it: whatever the bytes are, each request is answered once, or the
//! ring is refused. And a client's messages: whatever they are, the connection ends.

use onefold_core::{Error, Exports, Kind};
use onefold_serve::{
    nbd::Limits,
    vhost::{AVAILABLE, PLACES, USED, messages_over, ring_over},
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

/// Bytes of all messages of a client: its answers have room in the socket.
const MESSAGES: usize = 2 << 10;

/// All messages of one client, whose guest's memory begins with the same bytes.
pub fn vhost_messages(data: &[u8]) {
    let Ok(volume) = OneVolume::new(SIZE).open("disk") else { return };
    let limits = Limits { read_batch_bytes: 16 << 10, ..Limits::default() };
    match messages_over(&*volume, &limits, &data[..data.len().min(MESSAGES)]) {
        Ok(()) => reach::good(),
        Err(how) => reach::refused(&Error::new(Kind::InvalidInput, how)),
    }
}

/// A message: what it asks for, and its body.
fn message(request: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let head = [request, 1 | 8, body.len() as u32].map(u32::to_le_bytes).concat();
    [head, body].concat()
}

/// Connections that go well: one that only asks, and one that starts a ring and stops it.
pub(crate) fn conversations() -> Vec<Vec<u8>> {
    const MEMORY: u64 = 1 << 32;
    let numbers =
        |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let state = |queue: u32, number: u32| [queue, number].map(u32::to_le_bytes).concat();
    let places = [1u16, 16].map(u16::to_le_bytes).concat();
    let region = [&numbers(&[4096, 0])[..], &places, &[0; 4]].concat();
    let asks = [
        message(1, &[]),
        message(15, &[]),
        message(17, &[]),
        message(24, &[&[0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0], &[0; 60]]),
        message(31, &[&region]),
        message(3, &[]),
        message(34, &[]),
    ]
    .concat();
    let ring = [
        message(2, &[&numbers(&[1 << 32 | 1 << 30])]),
        message(3, &[]),
        message(5, &[&state(1, 0), &numbers(&[0, 64 << 10, MEMORY, 0])]),
        message(8, &[&state(0, 16)]),
        message(10, &[&state(0, 0)]),
        message(
            9,
            &[&state(0, 0), &numbers(&[MEMORY + 0x8000, MEMORY + 0xa000, MEMORY + 0x9000, 0])],
        ),
        message(13, &[&numbers(&[0])]),
        message(14, &[&numbers(&[0])]),
        message(12, &[&numbers(&[0])]),
        message(18, &[&state(0, 1)]),
        message(21, &[]),
        message(11, &[&state(0, 0)]),
    ]
    .concat();
    vec![asks, ring]
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
