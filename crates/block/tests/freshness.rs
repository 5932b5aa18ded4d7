//! States that are told of a store, and what an opening makes of them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;
mod golden;

use std::sync::Arc;

use damage::{copy, get, put};
use golden::{BLOCKS, Calls, begin, fill, history};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Engine, Format, KeySource, Settings, durable_state,
    format::{
        geometry::SUPERBLOCKS,
        superblock::{Found, Superblock},
    },
    want_checkpoint,
};
use onefold_core::{Block, Error, Kind, Result};
use onefold_seal::{KeyArea, Opener, Random, Secret, StateSeen};

/// Who knows a state of a plain store.
struct Knows(StateSeen);

impl Opener for Knows {
    fn root(&self, _: &KeyArea) -> Result<Secret> {
        Err(Error::new(Kind::Denied, "a plain store has no key"))
    }

    fn states_seen(&self, _: &[u8; 16]) -> Result<Vec<StateSeen>> {
        Ok(vec![self.0.clone()])
    }

    fn random(&self) -> Arc<dyn Random> {
        unreachable!("nothing is sealed")
    }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), damage::settings()).unwrap()
}

fn opens(disk: &Arc<MemoryDisk>, sequence: u64, tag: [u8; 16]) -> Result<Engine> {
    let keys =
        KeySource::new(Arc::new(Knows(StateSeen { by: "the witness", sequence, tag: Some(tag) })));
    let settings = Settings { keys, ..damage::settings() };
    Engine::open(copy(disk), Arc::new(MonotonicClock::new()), settings)
}

/// The number of the superblock at a place, if it is whole.
fn sequence(disk: &Arc<MemoryDisk>, place: u32) -> Option<u64> {
    let block = get(disk, SUPERBLOCKS[place as usize]);
    match Superblock::decode(&block, place) {
        Found::Good(found) => Some(found.state.sequence),
        _ => None,
    }
}

#[test]
fn rule_43_what_was_told_is_on_the_disk_without_the_twin_and_bears_its_tag() {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*disk, &Format { zone_blocks: 64, ..Format::new([7; 16], [0; 32], BLOCKS) })
        .unwrap();
    let engine = open(&disk);
    want_checkpoint(&engine);
    assert!(!engine.checkpoint_due(), "there is nothing to carry");
    begin(&engine);
    let calls = Calls {
        zeroes: &|engine, id, at, bytes| engine.write_zeroes(id, at, bytes, true, &mut 0),
        act: &|_, _| (),
    };
    fill(&engine, &history(false), &calls);
    engine.flush().unwrap();
    want_checkpoint(&engine);
    assert!(engine.checkpoint_due(), "what was flushed is to get a number");
    while engine.checkpoint_useful() {
        engine.checkpoint().unwrap();
    }
    let told = durable_state(&engine).unwrap();
    drop(engine);
    let twin = (told.sequence + 1) % 2;
    assert_eq!(sequence(&disk, twin as u32), Some(told.sequence + 1));
    opens(&disk, told.sequence, told.tag).unwrap();
    // The twin was never durable.
    put(&disk, SUPERBLOCKS[twin as usize], &Block([0; 4096]));
    opens(&disk, told.sequence, told.tag).unwrap();
    let refused = |sequence, tag: [u8; 16]| {
        let error = opens(&disk, sequence, tag).err().unwrap();
        assert_eq!(error.kind(), Kind::Denied);
        error.to_string()
    };
    assert!(refused(told.sequence, [1; 16]).contains("is not the one that the witness knows"));
    assert!(refused(told.sequence + 1, told.tag).contains("older state"));
    opens(&disk, told.sequence - 1, [1; 16]).unwrap();
}
