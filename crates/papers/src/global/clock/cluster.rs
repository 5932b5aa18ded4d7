//! The paper's cluster: four servers of four OSDs each, SSDs with a file system and a journal
//! below, 10 GbE, two copies or two parts and one of parity.
//!
//! | constant | whence |
//! |---|---|
//! | 4 × 4 OSDs, three of 12 cores for each, 10 GbE, two copies | the paper, 6.1 |
//! | [`SSD_WRITE`] | fitted: one OSD of the original takes in 12.5 GB in 68.04 s (Table 3); every byte is written twice, to the journal and to the file system |
//! | [`OSD_WAIT`] | fitted: 1.26 ms on average for the database's requests with two copies (Figure 12, original) |
//! | [`SSD_READ`], [`SSD_OP`], `*_LATENCY`, [`HOP`] | of the class: SATA SSDs of 480 GB with 30,000 written and 70,000 read operations a second, kernel TCP on 10 GbE |
//! | `CPU_*` | of the class: Ceph spends about 0.1 ms of a core on an operation of the primary, and half of that on one of a replica |
//! | [`CPU_KEYS`] | an operation that compares and sets keys; measured beside one without on the one-host cluster, see docs/laboratory.md |
//! | [`HASH`] | BLAKE3 on one core of the paper's, 2 GB/s |
//!
//! Nothing is fitted to the paper's figures of its own system. Processors and disks serve who comes
//! first. A journal write is waited for by the client, the write of the file system behind it is
//! not, and both keep the disk busy. The file system reads ahead when a client reads one object in
//! sequence: this takes the disk's time, but the client does not wait for it.

use std::collections::BTreeMap;

use onefold_core::{
    checksum,
    object::{Change, Guard, ObjectName, Pool, PoolKind, ReadPart, Refusal, Seen, Write},
};

use super::world::{Op, Reply, Stage};

/// Servers, and OSDs of each.
const SERVERS: usize = 4;
const SERVER_OSDS: usize = 4;

/// All OSDs.
pub(in super::super) const OSDS: usize = SERVERS * SERVER_OSDS;

/// Cores for each OSD.
const CORES: usize = 3;

const MICROSECOND: u64 = 1_000;

/// One way between two nodes.
const HOP: u64 = 50 * MICROSECOND;

/// Bytes a second of a link.
const LINK: u64 = 1_170_000_000;

/// The time that an operation waits at each OSD that it visits, besides processor and disk: threads
/// hand it on.
const OSD_WAIT: u64 = 690 * MICROSECOND;

/// A core's time for an operation of the primary that writes, of a replica, of one that reads; and
/// for each KiB.
const CPU_WRITE: u64 = 100 * MICROSECOND;
const CPU_REPLICA: u64 = 50 * MICROSECOND;
const CPU_READ: u64 = 60 * MICROSECOND;
const CPU_KIB: u64 = 250;

/// The same for keys that are compared, set or read.
const CPU_KEYS: u64 = 50 * MICROSECOND;

/// Bytes a second of a disk.
const SSD_WRITE: u64 = 395_000_000;
const SSD_READ: u64 = 530_000_000;

/// The time that a write and a read keep a disk busy beside their bytes: 30,000 and 70,000 of 4 KiB
/// a second.
const SSD_OP: u64 = 23 * MICROSECOND;
const SSD_READ_OP: u64 = 7 * MICROSECOND;

/// The time that a write and a read wait beside that, while the disk serves others.
const WRITE_LATENCY: u64 = 100 * MICROSECOND;
const READ_LATENCY: u64 = 90 * MICROSECOND;

/// A transaction in the journal beside its bytes; it is padded to whole blocks.
const JOURNAL: u64 = 1024;

/// A file system writes whole blocks, too; keys go to a database that gathers them.
const BLOCK: u64 = 4096;

/// A client's processor hashes a chunk of 32 KiB.
pub(super) const HASH: u64 = 16 * MICROSECOND;

/// Data parts of an erasure-coded chunk; one of parity comes with them.
const PARTS: usize = 2;

fn transfer(bytes: u64, a_second: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(a_second)) as u64
}

/// The nodes and what is known of the objects.
pub(in super::super) struct Cluster {
    clients: usize,
    /// The chunk pool is erasure-coded.
    erasure: bool,
    /// Where the last read of an object ended.
    read_to: BTreeMap<ObjectName, u64>,
}

impl Cluster {
    pub(super) fn new(chunks: PoolKind, clients: usize) -> Cluster {
        Cluster { clients, erasure: chunks == PoolKind::Erasure, read_to: BTreeMap::new() }
    }

    /// Resources and how many each serves at once: links out and in of servers and clients,
    /// processors, disks.
    pub(super) fn resources(&self) -> impl Iterator<Item = usize> {
        let links = 2 * (SERVERS + self.clients);
        std::iter::repeat_n(1, links)
            .chain(std::iter::repeat_n(CORES, OSDS))
            .chain(std::iter::repeat_n(1, OSDS))
    }

    fn server_out(osd: usize) -> usize {
        osd / SERVER_OSDS
    }

    fn server_in(osd: usize) -> usize {
        SERVERS + osd / SERVER_OSDS
    }

    fn client_out(&self, client: usize) -> usize {
        2 * SERVERS + client
    }

    fn client_in(&self, client: usize) -> usize {
        2 * SERVERS + self.clients + client
    }

    fn processor(&self, osd: usize) -> usize {
        2 * (SERVERS + self.clients) + osd
    }

    fn disk(&self, osd: usize) -> usize {
        2 * (SERVERS + self.clients) + OSDS + osd
    }

    /// The OSDs of an object, each on another server; the first is its primary.
    pub(in super::super) fn placed(object: &ObjectName) -> [usize; 3] {
        let hash = checksum::fast(object.pool as u64 + 11, object.name.as_bytes());
        let first = (hash % SERVERS as u64) as usize;
        let second = (first + 1 + (hash >> 8) as usize % (SERVERS - 1)) % SERVERS;
        let third = (0..SERVERS).find(|server| *server != first && *server != second).unwrap_or(0);
        let osd = |server: usize, shift: u32| {
            server * SERVER_OSDS + (hash >> shift) as usize % SERVER_OSDS
        };
        [osd(first, 16), osd(second, 24), osd(third, 32)]
    }

    /// From the client to the objects, once the client is `ready` in so many nanoseconds.
    pub(super) fn way_there(&self, client: usize, ready: u64, op: &Op) -> Vec<Stage> {
        let (object, bytes, work) = match op {
            Op::Sleep(time) => return vec![Stage::Wait(*time)],
            Op::Small(object) => (object, 0, CPU_READ + CPU_KEYS),
            Op::Write(op) => {
                let bytes = written(op);
                (&op.object, bytes, CPU_WRITE + keys_work(has_keys(op)) + bytes / 1024 * CPU_KIB)
            }
            Op::Read(op) => {
                let keys = op
                    .parts
                    .iter()
                    .any(|part| matches!(part, ReadPart::Keys(_) | ReadPart::Page(..)));
                (&op.object, 0, CPU_READ + keys_work(keys))
            }
        };
        let [primary, ..] = Cluster::placed(object);
        vec![
            Stage::Wait(ready),
            Stage::Use(self.client_out(client), transfer(bytes, LINK)),
            Stage::Wait(HOP),
            Stage::Use(Cluster::server_in(primary), transfer(bytes, LINK)),
            Stage::Wait(OSD_WAIT),
            Stage::Use(self.processor(primary), work),
            Stage::Apply,
        ]
    }

    /// From the objects to the client.
    pub(super) fn way_back(
        &mut self,
        client: usize,
        op: &Op,
        reply: &Result<Reply, Refusal>,
    ) -> Vec<Stage> {
        let back = Stage::Wait(HOP);
        match (op, reply) {
            (Op::Write(op), Ok(_)) => vec![self.committed(op), back],
            (Op::Read(op), Ok(Reply::ReadResult(answer))) => {
                let [primary, ..] = Cluster::placed(&op.object);
                let bytes: u64 = answer.seen.iter().map(seen).sum();
                let mut way = Vec::new();
                let data = op.parts.iter().zip(&answer.seen).find_map(|part| match part {
                    (ReadPart::Data(at, _), Seen::Data(bytes)) if !bytes.is_empty() => {
                        Some((*at, bytes.len() as u64))
                    }
                    _ => None,
                });
                if let Some((at, length)) = data {
                    let ahead =
                        self.read_to.insert(op.object.clone(), at + length) == Some(at) && at > 0;
                    way.extend(self.data_read(&op.object, length, ahead));
                }
                way.extend([
                    Stage::Use(self.processor(primary), bytes / 1024 * CPU_KIB),
                    Stage::Use(Cluster::server_out(primary), transfer(bytes, LINK)),
                    back,
                    Stage::Use(self.client_in(client), transfer(bytes, LINK)),
                ]);
                way
            }
            _ => vec![back],
        }
    }

    /// Data is read by the primary, or all its parts at once where they lie.
    fn data_read(&self, object: &ObjectName, bytes: u64, ahead: bool) -> Vec<Stage> {
        let placed = Cluster::placed(object);
        if !self.is_erasure(object) {
            return self.disk_read(placed[0], bytes, ahead);
        }
        let part = bytes.div_ceil(PARTS as u64);
        let way = |(n, osd): (usize, &usize)| {
            if n == 0 {
                return self.disk_read(*osd, part, ahead);
            }
            let mut way =
                vec![Stage::Wait(HOP + OSD_WAIT), Stage::Use(self.processor(*osd), CPU_READ)];
            way.extend(self.disk_read(*osd, part, ahead));
            way.extend([
                Stage::Use(Cluster::server_out(*osd), transfer(part, LINK)),
                Stage::Wait(HOP),
                Stage::Use(Cluster::server_in(placed[0]), transfer(part, LINK)),
            ]);
            way
        };
        vec![Stage::Fork(placed[..PARTS].iter().enumerate().map(way).collect())]
    }

    fn is_erasure(&self, object: &ObjectName) -> bool {
        self.erasure && object.pool == Pool::Chunks
    }

    fn disk_read(&self, osd: usize, bytes: u64, ahead: bool) -> Vec<Stage> {
        let busy = Stage::Use(self.disk(osd), SSD_READ_OP + transfer(bytes, SSD_READ));
        if ahead { vec![Stage::Detach(vec![busy])] } else { vec![busy, Stage::Wait(READ_LATENCY)] }
    }

    /// The journal, which is waited for, and the file system behind it.
    fn disk_write(&self, osd: usize, data: u64, keys: u64) -> Vec<Stage> {
        let disk = self.disk(osd);
        let journal = SSD_OP + transfer((data + keys + JOURNAL).next_multiple_of(BLOCK), SSD_WRITE);
        let file = if data > 0 { SSD_OP } else { 0 };
        let behind = file + transfer(data.next_multiple_of(BLOCK) + keys, SSD_WRITE);
        vec![
            Stage::Use(disk, journal),
            Stage::Wait(WRITE_LATENCY),
            Stage::Detach(vec![Stage::Use(disk, behind)]),
        ]
    }

    /// All copies or parts of a change, at once.
    fn committed(&self, op: &Write) -> Stage {
        let erasure = self.is_erasure(&op.object);
        let placed = Cluster::placed(&op.object);
        let part = |bytes: u64| if erasure { bytes.div_ceil(PARTS as u64) } else { bytes };
        let (copies, data, key_bytes) = (
            if erasure { PARTS + 1 } else { 2 },
            part(data_written(op)),
            written(op) - data_written(op),
        );
        let bytes = data + key_bytes;
        let keys = keys_work(has_keys(op));
        let ways = placed[..copies].iter().enumerate().map(|(n, osd)| {
            let mut way = Vec::new();
            if n > 0 {
                way.extend([
                    Stage::Use(Cluster::server_out(placed[0]), transfer(bytes, LINK)),
                    Stage::Wait(HOP),
                    Stage::Use(Cluster::server_in(*osd), transfer(bytes, LINK)),
                    Stage::Wait(OSD_WAIT),
                    Stage::Use(
                        self.processor(*osd),
                        CPU_REPLICA + keys / 2 + bytes / 1024 * CPU_KIB,
                    ),
                ]);
            }
            way.extend(self.disk_write(*osd, data, key_bytes));
            if n > 0 {
                way.push(Stage::Wait(HOP));
            }
            way
        });
        Stage::Fork(ways.collect())
    }

    /// An object with so many bytes of data and of keys is copied from the OSD that has it to one
    /// that lost it.
    pub(super) fn recovered(&self, from: usize, to: usize, (data, keys): (u64, u64)) -> Vec<Stage> {
        let bytes = data + keys;
        let work = keys_work(keys > 0) + bytes / 1024 * CPU_KIB;
        let mut way = vec![
            Stage::Use(self.processor(from), CPU_READ + work),
            Stage::Use(self.disk(from), SSD_READ_OP + transfer(bytes, SSD_READ)),
            Stage::Wait(READ_LATENCY),
            Stage::Use(Cluster::server_out(from), transfer(bytes, LINK)),
            Stage::Wait(HOP),
            Stage::Use(Cluster::server_in(to), transfer(bytes, LINK)),
            Stage::Wait(OSD_WAIT),
            Stage::Use(self.processor(to), CPU_REPLICA + work),
        ];
        way.extend(self.disk_write(to, data, keys));
        way.extend([Stage::Wait(HOP), Stage::Wait(OSD_WAIT)]);
        way
    }
}

const fn keys_work(keys: bool) -> u64 {
    if keys { CPU_KEYS } else { 0 }
}

/// Bytes that a change carries, those of keys included.
fn written(op: &Write) -> u64 {
    let of = |change: &Change| match change {
        Change::Write(_, bytes)
        | Change::Full(bytes)
        | Change::Overwrite(bytes)
        | Change::SetXattr(_, bytes) => bytes.len(),
        Change::SetOmap(pairs) => pairs.iter().map(|(key, value)| key.len() + value.len()).sum(),
        Change::DropOmap(keys) => keys.iter().map(Vec::len).sum(),
        Change::Zero(..) | Change::Remove => 0,
    };
    op.changes.iter().map(of).sum::<usize>() as u64
}

/// Bytes of data that a change carries.
fn data_written(op: &Write) -> u64 {
    let of = |change: &Change| {
        if let Change::Write(_, bytes) | Change::Full(bytes) = change { bytes.len() } else { 0 }
    };
    op.changes.iter().map(of).sum::<usize>() as u64
}

fn has_keys(op: &Write) -> bool {
    let changes =
        op.changes.iter().any(|change| matches!(change, Change::SetOmap(_) | Change::DropOmap(_)));
    changes || op.guards.iter().any(|guard| matches!(guard, Guard::Omap(..)))
}

/// True for what comes with a new name of a chunk.
pub(super) fn names_chunk(op: &Write) -> bool {
    let reference =
        |change: &Change| matches!(change, Change::SetOmap(_)) && op.object.pool == Pool::Chunks;
    op.changes.iter().any(|change| matches!(change, Change::Full(_)) || reference(change))
}

fn seen(seen: &Seen) -> u64 {
    match seen {
        Seen::Data(bytes) => bytes.len() as u64,
        Seen::Pairs { pairs, .. } => {
            pairs.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
        }
        Seen::Xattr(value) => value.as_ref().map_or(0, |value| value.len() as u64),
        Seen::Stat { .. } => 0,
    }
}
