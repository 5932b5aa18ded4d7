//! Shared by the benches of the engine: contents, the content of each address, and a store at work.

#![allow(dead_code, reason = "each bench uses a part")]

use std::{ops::Range, sync::Arc, thread};

use onefold_backend::MonotonicClock;
use onefold_block::{Engine, Format, Settings, Store, StoreExports};
use onefold_core::{Block, Disk, Exports, Volume};

/// Blocks of a GiB.
pub(crate) const GIB: u64 = 1 << 18;

/// Blocks of a request of the first fill: 128 KiB.
const FILL_BLOCKS: u64 = 32;

/// How far back a duplicate of the first fill lies at most.
const NEAR: u64 = 8192;

/// The word for a bar that was reached or missed; `cargo xtask bench` looks for it.
pub(crate) fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

/// A sequence that is the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

fn mix(n: u64) -> u64 {
    let z = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Blocks by number: random bytes that differ in the first eight, which costs a copy. Chance
/// decides which four in five compress to 0.8; the others do not compress.
pub(crate) struct Contents {
    compressible: Box<Block>,
    random: Box<Block>,
    /// No block with a lower number compresses.
    compressible_from: u64,
}

impl Contents {
    pub(crate) fn new() -> Contents {
        let mut random = Random(1);
        let mut noise = |bytes: usize| {
            let mut block = Block::zeroed();
            block.0[..bytes]
                .chunks_mut(8)
                .for_each(|part| part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]));
            block
        };
        Contents { compressible: noise(3277), random: noise(4096), compressible_from: 0 }
    }

    /// Blocks of which none compresses.
    pub(crate) fn incompressible() -> Contents {
        Contents { compressible_from: u64::MAX, ..Contents::new() }
    }

    /// Writes block number `n` into 4096 bytes.
    pub(crate) fn fill(&self, n: u64, into: &mut [u8]) {
        let like = if n < self.compressible_from || mix(n).is_multiple_of(5) {
            &self.random
        } else {
            &self.compressible
        };
        into.copy_from_slice(&like.0);
        into[..8].copy_from_slice(&mix(!n).to_le_bytes());
    }
}

/// Which content each address of a volume holds.
pub(crate) struct Live {
    contents: Vec<u32>,
    newest: u32,
}

impl Live {
    /// Addresses that hold nothing yet.
    pub(crate) fn new(blocks: u64) -> Live {
        Live { contents: vec![0; blocks as usize], newest: 0 }
    }

    /// Addresses.
    pub(crate) fn blocks(&self) -> u64 {
        self.contents.len() as u64
    }

    /// Contents there were so far.
    pub(crate) fn newest(&self) -> u64 {
        u64::from(self.newest)
    }

    /// Notes what an address holds again, when it was not written after all.
    pub(crate) fn set(&mut self, lba: u64, content: u64) {
        self.contents[lba as usize] = content as u32;
    }

    /// The content of an address.
    pub(crate) fn at(&self, lba: u64) -> u64 {
        u64::from(self.contents[lba as usize])
    }

    /// Gives `lba` a content: with a chance of `duplicates` in a hundred that of a random address
    /// among `others` as it is now, so that it is stored at this moment; otherwise, and where
    /// that address holds nothing, a new one.
    pub(crate) fn write(
        &mut self,
        random: &mut Random,
        lba: u64,
        others: Range<u64>,
        duplicates: u64,
    ) -> u64 {
        let copied = if duplicates > 0 && random.below(100) < duplicates {
            self.contents[(others.start + random.below(others.end - others.start)) as usize]
        } else {
            0
        };
        let content = if copied > 0 {
            copied
        } else {
            self.newest += 1;
            self.newest
        };
        self.contents[lba as usize] = content;
        u64::from(content)
    }
}

/// A store with one volume and its two threads.
pub(crate) struct Ours {
    pub(crate) store: Arc<Store>,
    pub(crate) volume: Arc<dyn Volume>,
    workers: Vec<thread::JoinHandle<()>>,
    contents: Contents,
    buffer: Vec<u8>,
}

impl Ours {
    /// Makes a store on all of `disk`, with a volume of `blocks` blocks.
    pub(crate) fn create(disk: Arc<dyn Disk>, blocks: u64, settings: Settings) -> Ours {
        Engine::format(&*disk, &Format::new([1; 16], [2; 32], disk.blocks())).unwrap();
        let store = Store::open(disk, Arc::new(MonotonicClock::new()), settings).unwrap();
        let (writer, background) = (store.clone(), store.clone());
        let workers = vec![
            thread::spawn(move || writer.run_writer()),
            thread::spawn(move || background.run_background()),
        ];
        store.create_volume("bench", blocks * 4096).unwrap();
        let volume = StoreExports(store.clone()).open("bench").unwrap();
        Ours {
            store,
            volume,
            workers,
            contents: Contents::new(),
            buffer: vec![0; FILL_BLOCKS as usize * 4096],
        }
    }

    /// Writes one block of content number `n`.
    pub(crate) fn write(&mut self, lba: u64, n: u64) {
        self.contents.fill(n, &mut self.buffer[..4096]);
        self.volume.write(lba * 4096, &self.buffer[..4096]).unwrap();
    }

    /// Writes all of the volume once, in order, and carries it into the tables. Duplicates are near
    /// to what they repeat, which is quicker. The new blocks are incompressible unless
    /// `compressible`.
    pub(crate) fn fill(
        &mut self,
        live: &mut Live,
        random: &mut Random,
        duplicates: u64,
        compressible: bool,
    ) {
        self.contents.compressible_from = if compressible { 0 } else { u64::MAX };
        for at in (0..live.blocks()).step_by(FILL_BLOCKS as usize) {
            for (lba, block) in (at..).zip(self.buffer.chunks_mut(4096)) {
                let n = live.write(random, lba, lba.saturating_sub(NEAR)..lba + 1, duplicates);
                self.contents.fill(n, block);
            }
            self.volume.write(at * 4096, &self.buffer).unwrap();
        }
        self.contents.compressible_from = if compressible { 0 } else { live.newest() + 1 };
        self.make_durable();
    }

    /// Makes everything durable and carries it into the tables, so that nothing is left to be done
    /// later.
    pub(crate) fn make_durable(&self) {
        self.volume.flush().unwrap();
        self.store.engine().checkpoint().unwrap();
    }

    /// Ends the threads and closes the store.
    pub(crate) fn close(self) {
        self.store.stop();
        for worker in self.workers {
            worker.join().unwrap();
        }
        self.store.close().unwrap();
    }
}

/// A command line of options and their values.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn new() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    /// The first, which names what is wanted.
    pub(crate) fn first(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|argument| argument == name)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str, otherwise: u64) -> u64 {
        self.text(name).map_or(otherwise, |value| {
            value.parse().unwrap_or_else(|_| panic!("{name} takes a number"))
        })
    }
}
