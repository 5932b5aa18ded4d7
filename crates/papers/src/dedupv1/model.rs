//! The paper's machines in virtual time: clients, their links, the server's processors, the devices
//! of the index, the array (dedupv1 4.1).
//!
//! Each block of a run is a request. The request crosses its client's link, is cut and hashed on a
//! processor, looks its chunks up one after the other on the devices of the index, passes what
//! requests pass one at a time, and hands its new chunks to a thread that writes containers. The
//! work at each place is what the engine was counted to do.
//!
//! Devices and the ways between them are fitted to the paper, each constant to one figure of it,
//! which is named there; statements about that figure are calibrated.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use onefold_testbed::SplitMix;

use super::ingest::{Cost, Ingested};

/// Nanoseconds.
type Time = u64;

/// Bytes a second that a link of 1 Gbit/s carries besides the headers of Ethernet, TCP and iSCSI
/// and its requests to send.
pub(super) const LINK: f64 = 112e6;
/// Requests that a client has under way: fitted to what two and four clients gain.
const WINDOW: usize = 15;
/// Processors of the server.
const CORES: usize = 8;
/// Cutting by Rabin's window and SHA-1 on one of them; stated, of its time. Bytes a second.
const CPU: f64 = 120e6;
/// Reads of the index that are under way together, as queue lengths of 9-12 on one SSD and 5-6 on
/// each of two and four say.
const READERS: [(usize, usize); 3] = [(1, 11), (2, 11), (4, 22)];
/// An X25-M works on ten reads at a time.
const SSD_CHANNELS: usize = 10;
/// One of them takes so long: 5,375 a second when all ten are busy, and 2,848 within a tenth with
/// five to six under way.
const SSD_READ: Time = 1_860_465;
/// Bytes a second of an SSD's sequential reads and writes, by its maker: 250 and 100 MB/s; of both
/// in turn.
const SSD_SEQUENTIAL: f64 = 143e6;
/// Disks of the array, each with 79 random reads a second: 8.5 ms of seeking, half a turn at 7,200
/// turns a minute.
const DISKS: usize = 11;
const DISK_READ: Time = 12_670_000;
/// Bytes a second of the array's sequential writes: fitted to the index in memory, 162 and 242.7
/// MB/s.
const ARRAY: f64 = 275e6;
/// Reads of the block index for each block: a page of its tree has the mappings of two and a half.
/// Fitted to the same.
const BLOCK_INDEX_READS: f64 = 0.4;
/// The work that requests do one after the other (locks, log, mapping), and the bytes a second at
/// which new chunks go into the container: fitted to the 209.4 and 250.5 MB/s of chunks of 16 KB,
/// of which 70 and 20 % are new.
const PATH: Time = 482_000;
const PATH_NEW: f64 = 640e6;
/// Bytes of containers that may wait to be written.
const BEHIND: f64 = 64e6;

/// Where the index lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    /// On so many SSDs, the block index with it.
    Ssds(usize),
    /// In memory; the block index is on the array.
    Memory,
    /// Everything is on the array.
    Array,
}

impl Index {
    pub(super) fn name(self) -> String {
        match self {
            Index::Ssds(1) => "1 SSD".into(),
            Index::Ssds(n) => format!("{n} SSDs"),
            Index::Memory => "memory".into(),
            Index::Array => "disks".into(),
        }
    }
}

/// The stages of a request in their order, by their names in the figures.
pub(super) const STAGES: [&str; 6] =
    ["network", "chunking", "chunk index", "block index", "lock and log", "storage"];

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timed {
    /// MB (10⁶ bytes) a second while all clients write.
    pub(super) speed: f64,
    /// Shares of the requests' time in each stage, waiting there included.
    pub(super) shares: [f64; 6],
    /// Reads a second and device of the index.
    pub(super) iops: f64,
}

/// Servers that take what waits in the order of its coming.
struct Station(BinaryHeap<Reverse<Time>>);

impl Station {
    fn new(servers: usize) -> Station {
        Station((0..servers).map(|_| Reverse(0)).collect())
    }

    /// When something is done that comes now and takes so long.
    fn serve(&mut self, now: Time, takes: Time) -> Time {
        let free = self.0.pop().map_or(0, |free| free.0);
        let done = free.max(now) + takes;
        self.0.push(Reverse(done));
        done
    }
}

/// A request under way.
#[derive(Clone, Copy, Default)]
struct Request {
    cost: Cost,
    stage: usize,
    /// Reads that are left in this stage.
    reads: u32,
    /// When it came to the stage.
    since: Time,
}

struct World<'a> {
    queues: Vec<VecDeque<&'a Cost>>,
    requests: Vec<Request>,
    /// Time, order of coming, request.
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    order: u64,
    links: Vec<Station>,
    cores: Station,
    devices: Vec<Station>,
    device_read: Time,
    array: Station,
    path: Station,
    readers: usize,
    waiting: VecDeque<usize>,
    index: Index,
    rng: SplitMix,
    owed: f64,
    spent: [Time; 6],
    index_reads: u64,
}

fn nanoseconds(bytes: f64, rate: f64) -> Time {
    (bytes / rate * 1e9) as Time
}

/// How long a generation takes with so many clients and such an index.
pub(super) fn time(run: &Ingested, clients: usize, index: Index) -> Timed {
    let (devices, device_read) = match index {
        Index::Ssds(n) => ((0..n).map(|_| Station::new(SSD_CHANNELS)).collect(), SSD_READ),
        Index::Memory | Index::Array => (Vec::new(), DISK_READ),
    };
    let readers = match index {
        Index::Ssds(n) => {
            READERS.iter().find(|(ssds, _)| *ssds == n).map_or(11 * n, |(_, readers)| *readers)
        }
        Index::Memory | Index::Array => usize::MAX,
    };
    let mut queues = vec![VecDeque::new(); clients];
    // Fewer clients have longer streams: the same data.
    run.costs.iter().for_each(|cost| queues[usize::from(cost.client) % clients].push_back(cost));
    let mut world = World {
        queues,
        requests: Vec::new(),
        events: BinaryHeap::new(),
        order: 0,
        links: (0..clients).map(|_| Station::new(1)).collect(),
        cores: Station::new(CORES),
        devices,
        device_read,
        array: Station::new(DISKS),
        path: Station::new(1),
        readers,
        waiting: VecDeque::new(),
        index,
        rng: SplitMix::new(3),
        owed: 0.0,
        spent: [0; 6],
        index_reads: 0,
    };
    for client in 0..clients {
        (0..WINDOW).for_each(|_| world.begin(client, 0, None));
    }
    let (mut bytes, mut now) = (0u64, 0);
    while let Some(Reverse((at, _, request))) = world.events.pop() {
        now = at;
        if let Some(done) = world.advance(at, request) {
            bytes += u64::from(done.bytes);
            // The steady state: all clients are writing.
            if world.queues.iter().any(VecDeque::is_empty) {
                break;
            }
            world.begin(usize::from(done.client) % clients, at, Some(request));
        }
    }
    let seconds = now as f64 / 1e9;
    let all = world.spent.iter().sum::<Time>().max(1) as f64;
    let devices = world.devices.len().max(1) as f64;
    Timed {
        speed: bytes as f64 / 1e6 / seconds,
        shares: world.spent.map(|spent| spent as f64 / all),
        iops: world.index_reads as f64 / devices / seconds,
    }
}

impl World<'_> {
    /// A client's next request begins, in the place of one that ended.
    fn begin(&mut self, client: usize, now: Time, place: Option<usize>) {
        let Some(&cost) = self.queues[client].pop_front() else { return };
        let request = Request { cost, since: now, ..Request::default() };
        let place = place.unwrap_or_else(|| {
            self.requests.push(Request::default());
            self.requests.len() - 1
        });
        self.requests[place] = request;
        let done = self.links[client].serve(now, nanoseconds(f64::from(cost.bytes), LINK));
        self.at(done, place);
    }

    fn at(&mut self, when: Time, request: usize) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, request)));
    }

    /// The request ends what it was doing; gives what it cost when that was the last.
    fn advance(&mut self, now: Time, n: usize) -> Option<Cost> {
        let request = self.requests[n];
        if request.reads > 0 {
            self.requests[n].reads -= 1;
            self.read(now, n);
            return None;
        }
        self.spent[request.stage] += now - request.since;
        if request.stage == 2 {
            self.leave_index(now);
        }
        (self.requests[n].stage, self.requests[n].since) = (request.stage + 1, now);
        match request.stage + 1 {
            1 => {
                let done = self.cores.serve(now, nanoseconds(f64::from(request.cost.bytes), CPU));
                self.at(done, n);
            }
            2 if self.index == Index::Memory => self.at(now, n),
            2 if self.readers == 0 => self.waiting.push_back(n),
            2 => self.look_up(now, n),
            3 => self.block_index(now, n),
            4 => {
                let done = self
                    .path
                    .serve(now, PATH + nanoseconds(f64::from(request.cost.new_bytes), PATH_NEW));
                self.at(done, n);
            }
            5 => self.store(now, n),
            _ => return Some(request.cost),
        }
        None
    }

    /// Begins the lookups of a request: one of the readers is its own.
    fn look_up(&mut self, now: Time, n: usize) {
        self.readers -= 1;
        let cost = self.requests[n].cost;
        // A full auxiliary index is spilled in one go, which keeps all devices busy at once.
        if cost.spilled > 0 {
            let each =
                nanoseconds(cost.spilled as f64 / self.devices.len().max(1) as f64, SSD_SEQUENTIAL);
            for device in &mut self.devices {
                let all: Vec<Time> = device.0.drain().map(|free| free.0.max(now) + each).collect();
                device.0.extend(all.into_iter().map(Reverse));
            }
        }
        self.requests[n].reads = u32::from(cost.pages);
        if cost.pages == 0 {
            self.at(now, n);
        } else {
            self.requests[n].reads -= 1;
            self.read(now, n);
        }
    }

    /// A page of the index.
    fn read(&mut self, now: Time, n: usize) {
        self.index_reads += 1;
        let done = if self.devices.is_empty() {
            self.array.serve(now, self.device_read)
        } else {
            let device = self.rng.below(self.devices.len() as u64) as usize;
            self.devices[device].serve(now, self.device_read)
        };
        self.at(done, n);
    }

    fn leave_index(&mut self, now: Time) {
        if self.index == Index::Memory {
            return;
        }
        self.readers += 1;
        if let Some(next) = self.waiting.pop_front() {
            self.look_up(now, next);
        }
    }

    /// The block's old mapping is read, wherever that lies.
    fn block_index(&mut self, now: Time, n: usize) {
        if self.rng.chance(BLOCK_INDEX_READS) { self.read(now, n) } else { self.at(now, n) }
    }

    /// New chunks go to the thread that writes containers, which may be behind by so much; metadata
    /// of containers is read from the array.
    fn store(&mut self, now: Time, n: usize) {
        let cost = self.requests[n].cost;
        let mut done = now;
        for _ in 0..cost.metadata {
            done = self.array.serve(done, DISK_READ);
        }
        self.owed += f64::from(cost.new_bytes);
        // A container at a time, over all disks.
        const CONTAINER: f64 = (4 << 20) as f64;
        while self.owed >= CONTAINER {
            self.owed -= CONTAINER;
            let takes = nanoseconds(CONTAINER, ARRAY);
            let all: Vec<Time> = self.array.0.drain().map(|free| free.0.max(now) + takes).collect();
            self.array.0.extend(all.into_iter().map(Reverse));
        }
        let first_free = self.array.0.peek().map_or(0, |free| free.0);
        let behind = nanoseconds(BEHIND, ARRAY);
        self.at(done.max(first_free.saturating_sub(behind)), n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pages: u16, new_bytes: u32) -> Ingested {
        let cost = |client| Cost {
            client,
            bytes: 131_072,
            new_bytes,
            chunks: 15,
            pages,
            ..Cost::default()
        };
        Ingested { costs: (0..8000).map(|n| cost((n % 4) as u8)).collect(), ..Ingested::default() }
    }

    #[test]
    fn devices_give_the_reads_a_second_that_the_paper_measured() {
        let one = time(&run(9, 0), 4, Index::Ssds(1));
        let four = time(&run(9, 0), 4, Index::Ssds(4));
        assert!((one.iops - 5375.0).abs() < 160.0, "{one:?}");
        assert!((four.iops / 2848.0 - 1.0).abs() < 0.1, "{four:?}");
        let disks = time(&run(9, 0), 4, Index::Array);
        assert!((disks.iops - 868.0).abs() < 20.0, "{disks:?}");
    }

    #[test]
    fn nothing_is_faster_than_what_it_passes() {
        let one = time(&run(0, 0), 1, Index::Memory);
        assert!(one.speed <= LINK / 1e6 + 0.1, "{one:?}");
        let four = time(&run(0, 131_072), 4, Index::Ssds(4));
        assert!(four.speed <= 275.0, "{four:?}");
        let shares: f64 = four.shares.iter().sum();
        assert!((shares - 1.0).abs() < 1e-9);
    }
}
